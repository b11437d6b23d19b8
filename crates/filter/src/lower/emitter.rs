//! The state of an emission: the versions of its programs, their registers, and the layout of the scratch.

use std::collections::BTreeMap;

use super::Target;
use super::assembler::{Assembler, Label};
use super::flow::Checks;
use super::graph::Graph;
use super::values::LiveAtStart;
use crate::table::Table;

/// Offsets in `__sk_buff`.
pub(super) mod skb {
    pub const LEN: i16 = 0;
    pub const VLAN_PRESENT: i16 = 20;
    pub const VLAN_TCI: i16 = 24;
    pub const VLAN_PROTO: i16 = 28;
}

/// Layout of the packet's bytes in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// As seen by the filter.
    Plain,
    /// Without the four bytes from offset 12, which are out of band.
    Tagged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Fast,
    Slow,
}

impl Mode {
    pub(super) fn scratch(self) -> u8 {
        match self {
            Mode::Fast => reg::SCRATCH,
            Mode::Slow => reg::SLOW_SCRATCH,
        }
    }

    pub(super) fn context(self) -> u8 {
        match self {
            Mode::Fast => reg::CONTEXT,
            Mode::Slow => reg::SLOW_CONTEXT,
        }
    }
}

/// Use of a program's result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Returns {
    /// It is the block's result.
    Result,
    /// The following code uses it in r0, unless it is 0.
    To { fast: Label, slow: Label },
}

/// One program in one view, ready to be emitted in both modes.
pub(super) struct Version {
    pub(super) graph: Graph,
    pub(super) plan: Checks,
    pub(super) x_bounds: Vec<Vec<u32>>,
    pub(super) start: LiveAtStart,
    pub(super) view: View,
    /// Index of its program's first table among all tables.
    pub(super) first_table: usize,
    /// Maximum offset of the program's packet in the real one.
    pub(super) max_base: Option<u32>,
    pub(super) returns: Returns,
    pub(super) fast: Vec<Label>,
    /// Entry points of the slow version.
    pub(super) slow: BTreeMap<(usize, usize), Label>,
    pub(super) slow_start: Label,
}

/// The code emitted so far, and the versions and labels of the rest.
pub(super) struct Emitter<'a> {
    pub(super) asm: Assembler,
    pub(super) target: &'a Target,
    pub(super) no_match: Label,
    pub(super) end: Label,
    /// One tail for each constant return value.
    pub(super) tails: BTreeMap<u32, Label>,
    pub(super) versions: Vec<Version>,
    pub(super) stubs: Vec<Stub>,
    pub(super) checks: usize,
    /// Tables of all versions.
    pub(super) tables: Vec<Table>,
    /// True if the fast versions have the packet's length in a register.
    pub(super) keeps_length: bool,
    /// Target of a loop that reaches the end of a copy.
    pub(super) end_of_copy: Option<Label>,
    /// Target of a quick version for undecided packets.
    pub(super) undecided: Option<Label>,
}

/// The exit of a fast version.
pub(super) struct Stub {
    pub(super) label: Label,
    pub(super) point: EmitPoint,
    pub(super) needed: u32,
}

/// A position in a version.
#[derive(Debug, Clone, Copy)]
pub(super) struct EmitPoint {
    pub(super) version: usize,
    pub(super) block: usize,
    pub(super) op: usize,
}

/// Registers of the block, in addition to r1 to r5 of the contract.
pub(super) mod reg {
    /// A temporary, and the result at the end.
    pub const TMP: u8 = 0;
    pub const CONTEXT: u8 = 1;
    pub const DATA: u8 = 2;
    pub const DATA_END: u8 = 3;
    pub const LENGTH: u8 = 4;
    pub const SCRATCH: u8 = 5;
    /// In the slow version, which calls helpers, the scratch is in a register that calls preserve.
    pub const SLOW_SCRATCH: u8 = 6;
    pub const A: u8 = 7;
    pub const X: u8 = 8;
    /// In the fast version, the pointer to the packet's data at X.
    pub const POINTER: u8 = 9;
    /// In the slow version, the context.
    pub const SLOW_CONTEXT: u8 = 9;
}

/// Layout of the scratch.
pub(super) mod slot {
    /// The sixteen cells of scratch memory, eight bytes each so that the verifier keeps bounds.
    pub const MEMORY: i16 = 0;
    /// Destination of the load helper.
    pub const STAGING: i16 = 128;
    pub const LENGTH: i16 = 136;
    /// Backward jumps left.
    pub const LOOPS: i16 = 144;
    /// Start of the inner packet.
    pub const BASE: i16 = 152;
    /// The frame's first twenty bytes with the tag restored; the tag itself is always present.
    pub const IMAGE: i16 = 160;
    pub const TAG: i16 = IMAGE + 12;
    /// Registers saved over a helper call; the first slot also holds an offset in the slow version.
    pub const KEPT: i16 = 184;
    /// Final state of a table search, in the upper half.
    pub const STATE: i16 = KEPT + 5 * 8;
}

const _: () = assert!(slot::STATE + 8 <= super::SCRATCH_SIZE);
