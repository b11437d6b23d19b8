//! The spool of a capture: sealed chunks and manifests in a directory for each run, which `trawl-fleet upload` stores.
//! This crate needs files, and connection tracking if addresses are translated. `docs/internals/store.md` describes the
//! format.

pub mod chunk;
mod chunker;
pub mod figures;
pub mod key;
pub mod manifest;
pub mod processes;
pub mod spool;
mod translations;
mod uploader;
mod writer;

pub use spool::{Spool, Target, default_spool};
pub use translations::Watched;
pub use uploader::{Report, Uploader};
pub use writer::{Config, Control, StoreWriter, StoredCapture};
