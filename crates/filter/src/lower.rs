//! Classic BPF to eBPF.
//!
//! # The splice contract
//!
//! [`lower`] gives a straight block of instructions that replaces a placeholder in a program.
//!
//! On entry:
//!
//! | register | at [`Hook::Xdp`] and [`Hook::Tc`] | at [`Hook::Copy`] |
//! |---|---|---|
//! | r1 | the context (`xdp_md`, `__sk_buff`) | anything |
//! | r2 | the packet's `data` | a buffer of `buffer` bytes |
//! | r3 | the packet's `data_end` | how many bytes of the buffer are packet bytes |
//! | r4 | nothing | the packet's length, as 32 bits |
//! | r5 | [`SCRATCH_SIZE`] bytes of stack, 8-aligned, need not be initialised | the same |
//!
//! - At the first two the block asks for the length by itself, and only where it needs it: most
//!   packets are judged by their first bytes. It counts bytes in fragments too, and the four bytes
//!   of a tag beside the packet where [`Target::vlan_out_of_band`] is set: the filter sees the frame
//!   with its tag put back.
//! - [`Hook::Socket`] is as tc, but r2 and r3 may hold anything: a socket filter may not read packet
//!   memory.
//! - At [`Hook::Copy`] the buffer lies in a map's value (the verifier takes only aligned reads of a
//!   stack, and fields are not aligned). It is the packet's beginning; a filter that looks beyond r3 finds
//!   no match, as libpcap does in a file with short snapshots. r3 is trusted to be no more than
//!   `buffer` only in what it means: every access is checked against `buffer` too.
//!
//! On exit r0 is 0 for "no match" and otherwise what the classic program returned, and control
//! falls off the end of the block. r1 to r9 and the scratch may have changed; r10 is untouched.
//! The block reads nothing that it has not been given or written itself. Jumps stay inside it.
//!
//! # What a filter means
//!
//! The same as in libpcap's interpreter on the whole packet: 32-bit arithmetic, a load beyond the
//! packet's end is "no match", and so is a division by zero; a shift by 32 or more gives 0; `X + k`
//! does not wrap. Ancillary loads, of which libpcap's interpreter knows nothing, mean what they do
//! on a Linux socket, where the hook can tell.
//!
//! # How packets are read
//!
//! Twice: a *fast* version reads packet memory with as few comparisons with `data_end` as it
//! can, and a *slow* version of the same program reads each field with the kernel's load helper,
//! which reaches bytes beyond the linear part. The fast one goes over to the slow one, at the
//! instruction it has come to, when a comparison fails and the packet is long enough to match; it
//! never comes back. The slow version is exact for itself, so the comparisons may ask for a little
//! more than the next load needs. At [`Hook::Socket`] there is only the slow version.

pub(crate) mod ancillary;
mod assembler;
mod emit;
mod flow;
mod graph;
pub mod inner;

mod load;
pub mod quick;
mod sets;
mod slow;
pub mod standalone;
mod values;

use crate::classic::Classic;
use crate::error::FilterError;
use crate::table::Table;
use trawl_ebpf::{Insn, helper};

/// Bytes of stack below r5 that a block may use.
pub const SCRATCH_SIZE: i16 = 256;

/// Where a block runs, which decides what the registers hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// An XDP program, on packet memory.
    Xdp,
    /// A tc program, on packet memory.
    Tc,
    /// A filter of a packet socket (a program of the type "socket filter").
    Socket,
    /// Any program that has the packet's first bytes in a buffer of this many bytes.
    Copy {
        /// Size of the buffer.
        buffer: u16,
    },
}

impl Hook {
    fn words(self) -> &'static str {
        match self {
            Hook::Xdp => "the XDP hook",
            Hook::Tc => "the tc hook",
            Hook::Socket => "a packet socket",
            Hook::Copy { .. } => "a tracing hook",
        }
    }
}

/// What a block is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The hook.
    pub hook: Hook,
    /// A VLAN tag may stand beside the packet instead of in it (tc and sockets only).
    pub vlan_out_of_band: bool,
    /// The kernel has the helper that reads bytes beyond the linear part. XDP has it since 5.18,
    /// which is also since when there are such bytes there.
    pub load_helper: bool,
    /// The kernel has jumps of 32 bits (since 6.6).
    pub gotol: bool,
    /// Packets that a loop (`protochain`) cannot be followed through to its end match: somebody else looks at them again.
    /// Otherwise they do not match.
    pub accepts_unfinished: bool,
}

impl Target {
    /// XDP on a kernel of 5.18 or later.
    pub fn xdp() -> Self {
        Target {
            hook: Hook::Xdp,
            vlan_out_of_band: false,
            load_helper: true,
            gotol: false,
            accepts_unfinished: false,
        }
    }

    /// tc, where tags stand beside the packet.
    pub fn tc() -> Self {
        Target {
            hook: Hook::Tc,
            vlan_out_of_band: true,
            load_helper: true,
            gotol: false,
            accepts_unfinished: false,
        }
    }

    /// A packet socket, whose packets have their tags beside them as well.
    pub fn socket() -> Self {
        Target {
            hook: Hook::Socket,
            ..Target::tc()
        }
    }

    /// A copy of the packet's first bytes in a buffer of this size.
    pub fn copy(buffer: u16) -> Self {
        Target {
            hook: Hook::Copy { buffer },
            vlan_out_of_band: false,
            load_helper: false,
            gotol: false,
            accepts_unfinished: false,
        }
    }

    fn helper(&self) -> Option<i32> {
        match self.hook {
            Hook::Xdp if self.load_helper => Some(helper::XDP_LOAD_BYTES),
            Hook::Tc if self.load_helper => Some(helper::SKB_LOAD_BYTES),
            // Older than any kernel with such helpers to choose from, and the only way to read there.
            Hook::Socket => Some(helper::SKB_LOAD_BYTES),
            _ => None,
        }
    }

    /// The context is an `__sk_buff`.
    fn has_skb(&self) -> bool {
        matches!(self.hook, Hook::Tc | Hook::Socket)
    }

    fn puts_tag_back(&self) -> bool {
        self.vlan_out_of_band && self.has_skb()
    }
}

/// Sizes of a lowered filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Classic instructions.
    pub classic: usize,
    /// eBPF instructions, all versions together.
    pub ebpf: usize,
    /// eBPF instructions of the fast versions, which is what ordinary packets meet.
    pub fast: usize,
    /// Comparisons with the packet's end in the fast versions.
    pub checks: usize,
}

/// A filter as eBPF instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowered {
    /// The block to splice in.
    pub insns: Vec<Insn>,
    /// What it looks values up in. An instruction that loads the address of a map's value names the table by its
    /// number, and needs the descriptor of an array map that holds the table's bytes in its place.
    pub tables: Vec<Table>,
    /// Its sizes.
    pub stats: Stats,
}

/// Lowers a classic program to a block that keeps the splice contract.
pub fn lower(classic: &Classic, target: &Target) -> Result<Lowered, FilterError> {
    emit::program(classic, target)
}
