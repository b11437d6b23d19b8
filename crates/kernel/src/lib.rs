//! The kernel's side of things: the only crate with `unsafe` and system calls. `system` holds the system calls,
//! `toolchain` what loads BPF programs and asks about them, `datapath` what packets go through. Their modules are exported
//! under the crate's name.

mod datapath;
pub mod error;
mod system;
#[cfg(test)]
mod testing;
mod toolchain;

pub use datapath::*;
pub use error::{Error, Result};
pub use system::*;
pub use toolchain::*;
