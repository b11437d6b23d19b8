//! Filter expressions: text to classic BPF to eBPF instructions. Needs no root, loads nothing.
//!
//! A packet filter has three forms here:
//!
//! 1. text, in tcpdump's syntax. libpcap's own compiler turns it into
//! 2. a classic BPF program ([`Classic`]), which can also come from `tcpdump -ddd`, and which
//!    [`lower()`] turns into
//! 3. a block of eBPF instructions ([`trawl_ebpf::Insn`]) that another crate splices into a program at a hook.
//!
//! The contract between the block and the program around it is at the top of [`mod@lower`].
//!
//! A filter that was compiled elsewhere, run on a packet's bytes and turned into an XDP program:
//!
//! ```
//! use trawl_filter::{Classic, Hook, Target, lower, standalone};
//!
//! // tcpdump -ddd ip
//! let filter = Classic::parse("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0")?;
//! let mut frame = [0; 60];
//! assert_eq!(filter.run(&frame, 60), 0);
//! frame[12] = 8;
//! assert_ne!(filter.run(&frame, 60), 0);
//!
//! let target = Target {
//!     hook: Hook::Xdp,
//!     vlan_out_of_band: false,
//!     load_helper: true,
//!     gotol: false,
//!     copy_of_skb: false,
//!     accepts_unfinished: false,
//! };
//! let block = lower(&filter, &target)?;
//! let program = standalone(&block.insns, &target, None).expect("no packet buffer is needed");
//! println!("{}", trawl_ebpf::disassemble(&program));
//! # Ok::<(), trawl_filter::FilterError>(())
//! ```
//!
//! [`compile`] accepts expressions. libpcap's compiler is loaded at run time by the crate `trawl-io`, which this crate
//! does not use: a program sets it with [`expression::compile_with`].

pub mod classic;
pub mod error;
pub mod expression;
pub mod lower;
pub mod select;
mod table;

pub use classic::{Classic, Instruction};
pub use error::FilterError;
pub use expression::{CompilerOptions, LinkType, check_length, compile};

pub use table::Table;

pub use lower::either::lower_either;
pub use lower::inner::{Inner, lower_inner};
pub use lower::quick::{Quick, lower_quick};
pub use lower::standalone::standalone;
pub use lower::{Hook, Lowered, Stats, Target, lower};
