//! The kernel's side of things: the only crate with `unsafe` and system calls.

pub mod error;

pub use error::{Error, Result};
