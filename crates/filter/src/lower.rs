//! Classic BPF to eBPF.
//!
//! # The splice contract
//!
//! [`lower`] returns a straight block of instructions that replaces a placeholder in a program.
//!
//! On entry:
//!
//! | register | at [`Hook::Xdp`] and [`Hook::Tc`] | at [`Hook::Copy`] |
//! |---|---|---|
//! | r1 | the context (`xdp_md`, `__sk_buff`) | anything, or the `__sk_buff`: [`Target::copy_of_skb`] |
//! | r2 | the packet's `data` | a buffer of `buffer` bytes |
//! | r3 | the packet's `data_end` | number of packet bytes in the buffer |
//! | r4 | nothing | the packet's length, as 32 bits |
//! | r5 | [`SCRATCH_SIZE`] bytes of stack, 8-aligned, need not be initialised | the same |
//!
//! - At the first two the block reads the length itself, and only if needed: the first bytes decide
//!   most packets. The length includes bytes in fragments, and the four bytes of an out-of-band tag if
//!   [`Target::vlan_out_of_band`] is set: the filter sees the frame with its tag restored.
//! - [`Hook::Socket`] is like tc, but r2 and r3 may hold anything: a socket filter may not read packet
//!   memory.
//! - At [`Hook::Copy`] the buffer is in a map's value (the verifier permits only aligned reads of a
//!   stack, and fields are not aligned). It is the packet's beginning; a filter that reads beyond r3 finds
//!   no match, as libpcap does in a file with short snapshots. r3 is not trusted to be at most `buffer`:
//!   every access is checked against `buffer` too.
//!
//! On exit r0 is 0 for "no match" and otherwise the classic program's return value, and control falls off the end of
//! the block. r1 to r9 and the scratch may have changed; r10 is untouched. The block reads only its inputs and its own
//! writes. Jumps stay inside it.
//!
//! # Semantics
//!
//! The same as libpcap's interpreter on the whole packet: 32-bit arithmetic, a load beyond the packet's end is "no
//! match", and so is a division by zero; a shift by 32 or more gives 0; `X + k` does not wrap. Ancillary loads, unknown
//! to libpcap's interpreter, mean the same as on a Linux socket, if the hook has the fact.
//!
//! # Reading packets
//!
//! A block contains two versions of the program. The *fast* version reads packet memory with as few comparisons with
//! `data_end` as possible. The *slow* version reads each field with the kernel's load helper, which reaches bytes
//! beyond the linear part. When a comparison fails and the packet is long enough to match, the fast version jumps to
//! the same instruction of the slow one, and never returns. The slow version is exact, so the comparisons may require
//! slightly more bytes than the next load. At [`Hook::Socket`] only the slow version exists.

pub(crate) mod ancillary;
mod assembler;
pub mod either;
mod emit;
mod emitter;
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

/// The hook of a block, which defines the contents of the registers.
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
    fn description(self) -> &'static str {
        match self {
            Hook::Xdp => "the XDP hook",
            Hook::Tc => "the tc hook",
            Hook::Socket => "a packet socket",
            Hook::Copy { .. } => "a tracing hook",
        }
    }
}

/// Properties of a block's destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The hook.
    pub hook: Hook,
    /// A VLAN tag may be out of band (tc and sockets only).
    pub vlan_out_of_band: bool,
    /// The kernel has the helper that reads bytes beyond the linear part. XDP has it since 5.18, like the bytes
    /// themselves.
    pub load_helper: bool,
    /// The kernel has jumps of 32 bits (since 6.6).
    pub gotol: bool,
    /// At [`Hook::Copy`]: r1 is the `__sk_buff` whose frame is in the buffer.
    pub copy_of_skb: bool,
    /// Packets that exceed a loop's limit (`protochain`) match, for a second filter in user space. Otherwise they do
    /// not match.
    pub accepts_unfinished: bool,
}

impl Target {
    /// Returns the target for XDP on a kernel of 5.18 or later.
    pub fn xdp() -> Self {
        Target {
            hook: Hook::Xdp,
            vlan_out_of_band: false,
            load_helper: true,
            gotol: false,
            copy_of_skb: false,
            accepts_unfinished: false,
        }
    }

    /// Returns the target for tc, with out-of-band tags.
    pub fn tc() -> Self {
        Target {
            hook: Hook::Tc,
            vlan_out_of_band: true,
            load_helper: true,
            gotol: false,
            copy_of_skb: false,
            accepts_unfinished: false,
        }
    }

    /// Returns the target for a packet socket, with out-of-band tags.
    pub fn socket() -> Self {
        Target { hook: Hook::Socket, ..Target::tc() }
    }

    /// Returns the target for a copy of the packet's first bytes in a buffer of this size.
    pub fn copy(buffer: u16) -> Self {
        Target {
            hook: Hook::Copy { buffer },
            vlan_out_of_band: false,
            load_helper: false,
            gotol: false,
            copy_of_skb: false,
            accepts_unfinished: false,
        }
    }

    /// Returns the target for a copy of a frame's first bytes, with its tag, in a tc program.
    pub fn tc_copy(buffer: u16) -> Self {
        Target { copy_of_skb: true, ..Target::copy(buffer) }
    }

    fn helper(&self) -> Option<i32> {
        match self.hook {
            Hook::Xdp if self.load_helper => Some(helper::XDP_LOAD_BYTES),
            Hook::Tc if self.load_helper => Some(helper::SKB_LOAD_BYTES),
            // All supported kernels have this helper, and a socket filter has no other method of reading.
            Hook::Socket => Some(helper::SKB_LOAD_BYTES),
            _ => None,
        }
    }

    /// Returns true if the context is an `__sk_buff`.
    fn has_skb(&self) -> bool {
        matches!(self.hook, Hook::Tc | Hook::Socket)
    }

    fn restores_tag(&self) -> bool {
        self.vlan_out_of_band && self.has_skb()
    }
}

/// Sizes of a lowered filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Classic instructions.
    pub classic: usize,
    /// Number of eBPF instructions of all versions.
    pub ebpf: usize,
    /// Number of eBPF instructions of the fast versions, which ordinary packets execute.
    pub fast: usize,
    /// Number of comparisons with the packet's end in the fast versions.
    pub checks: usize,
}

/// A filter as eBPF instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowered {
    /// The block to splice in.
    pub insns: Vec<Insn>,
    /// Its tables. An instruction that loads the address of a map's value contains the table's number, to be replaced
    /// by the descriptor of an array map with the table's bytes.
    pub tables: Vec<Table>,
    /// Its sizes.
    pub stats: Stats,
}

/// Lowers a classic program to a block that fulfils the splice contract.
pub fn lower(classic: &Classic, target: &Target) -> Result<Lowered, FilterError> {
    emit::program(classic, target)
}
