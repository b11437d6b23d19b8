//! Files and their descriptors: opened without following links, created, locked, written without waiting.

pub mod beneath;
pub mod changes;
pub mod create;
pub mod lock;
pub mod mounts;
pub mod outfile;
pub mod outlet;
pub(crate) mod owner;
pub mod run;
pub mod text_file;
