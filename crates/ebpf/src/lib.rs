//! eBPF instructions as values: constructed, printed, analysed, and inserted into or removed from programs. This crate
//! loads nothing and makes no system calls: other crates exchange blocks of [`Insn`].

mod blocks;
pub mod coverage;
mod edges;
mod edit;
mod flow;
pub mod helper;
mod insn;
mod liveness;
pub mod op;
mod simplify;
pub mod splice;
mod stack;
mod text;

pub use blocks::{blocks, functions};
pub use edges::{Edge, Way, edges};
pub use edit::{Edited, Edits, TooFar};
pub use flow::{starts, target};
pub use insn::Insn;
pub use liveness::live_before;
pub use simplify::simplify;
pub use stack::{STACK_SIZE, slot_below};
pub use text::disassemble;
