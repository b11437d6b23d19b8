//! Filter expressions: text to classic BPF to eBPF instructions. No root, no loading.
//!
//! A packet filter goes through three shapes here:
//!
//! 1. text, as tcpdump takes it. libpcap's own compiler turns it into
//! 2. a classic BPF program ([`Classic`]), which can also come from `tcpdump -ddd`, and which
//!    [`lower`] turns into
//! 3. a block of eBPF instructions ([`trawl_ebpf::Insn`]) that another crate splices into a program at a hook.
//!
//! The contract between the block and the program around it stands at the top of [`mod@lower`].

pub mod classic;
pub mod error;
pub mod exercise;
pub mod expression;
pub mod lower;
mod table;

pub use classic::{Classic, Instruction};
pub use error::FilterError;
pub use expression::{LinkType, Options, compile};

pub use table::Table;

pub use lower::inner::{Inner, lower_inner};
pub use lower::quick::{Quick, lower_quick};
pub use lower::standalone::standalone;
pub use lower::{Hook, Lowered, Stats, Target, lower};
