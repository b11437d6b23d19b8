//! eBPF instructions as values: built, shown, followed, put into programs and taken out of them. Nothing is loaded
//! here, and nothing is asked of the kernel: blocks of [`Insn`] are what other crates hand to each other.

mod flow;
pub mod helper;
mod insn;
pub mod op;
mod simplify;
pub mod splice;
mod text;

pub use flow::{places, target};
pub use insn::Insn;
pub use simplify::simplify;
pub use text::disassemble;
