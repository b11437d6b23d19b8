//! Objects of a store: reading, writing and listing them, in an object store or in a directory.

pub mod complete;
pub mod directory;
pub mod hashed_name;
pub mod remote;
