//! Classic BPF programs: what libpcap compiles to and what `tcpdump -ddd` prints.

mod check;
mod display;
mod parse;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::FilterError;
use crate::table::Table;
pub use run::ClassicAnswer;

/// Most instructions of a raw program, as the kernel's `BPF_MAXINSNS`.
pub const MAX_RAW: usize = 4096;
/// Most instructions of a program compiled by libpcap; far beyond what a hook can run.
pub const MAX_COMPILED: usize = 65_535;
/// Cells of scratch memory.
pub const MEMORY_CELLS: usize = 16;
/// Backward jumps a packet may take before the filter gives up with "no match", as in newer
/// libpcap. Only `protochain` jumps backward, once for each header of the chain.
pub const MAX_BACKWARD_JUMPS: u32 = 64;

/// Opcodes, by the names of `<linux/bpf_common.h>`.
#[allow(missing_docs)]
pub mod op {
    pub const LD: u16 = 0x00;
    pub const LDX: u16 = 0x01;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ALU: u16 = 0x04;
    pub const JMP: u16 = 0x05;
    pub const RET: u16 = 0x06;
    pub const MISC: u16 = 0x07;

    pub const W: u16 = 0x00;
    pub const H: u16 = 0x08;
    pub const B: u16 = 0x10;

    pub const IMM: u16 = 0x00;
    pub const ABS: u16 = 0x20;
    pub const IND: u16 = 0x40;
    pub const MEM: u16 = 0x60;
    pub const LEN: u16 = 0x80;
    pub const MSH: u16 = 0xa0;

    pub const ADD: u16 = 0x00;
    pub const SUB: u16 = 0x10;
    pub const MUL: u16 = 0x20;
    pub const DIV: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const LSH: u16 = 0x60;
    pub const RSH: u16 = 0x70;
    pub const NEG: u16 = 0x80;
    pub const MOD: u16 = 0x90;
    pub const XOR: u16 = 0xa0;

    pub const JA: u16 = 0x00;
    pub const JEQ: u16 = 0x10;
    pub const JGT: u16 = 0x20;
    pub const JGE: u16 = 0x30;
    pub const JSET: u16 = 0x40;

    pub const K: u16 = 0x00;
    pub const X: u16 = 0x08;
    pub const A: u16 = 0x10;

    pub const TAX: u16 = 0x00;
    pub const TXA: u16 = 0x80;
}

/// Offsets from which Linux reads not packet bytes but facts about the packet (`SKF_AD_OFF`…).
pub mod ancillary {
    /// First ancillary offset, -4096.
    pub const AD_OFF: u32 = 0xffff_f000;
    /// Offsets from here to [`AD_OFF`] count from the network header, -1048576.
    pub const NET_OFF: u32 = 0xfff0_0000;
    /// Offsets from here to [`NET_OFF`] count from the link header, -2097152.
    pub const LL_OFF: u32 = 0xffe0_0000;

    /// The offset in an Ethernet frame. The network header is taken to be right after the 14 bytes
    /// of the Ethernet header; a Linux socket has it there too, once a tag is taken off the frame.
    /// Ancillary fields are nowhere in it.
    pub fn offset(k: u32) -> Option<u32> {
        Some(match k {
            AD_OFF.. => return None,
            NET_OFF.. => k - NET_OFF + 14,
            LL_OFF.. => k - LL_OFF,
            _ => k,
        })
    }
}

/// One classic instruction, laid out as the kernel's `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip when the condition holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Constant, offset or jump distance.
    pub k: u32,
}

impl Instruction {
    /// An instruction from its four fields.
    pub const fn new(code: u16, jt: u8, jf: u8, k: u32) -> Self {
        Self { code, jt, jf, k }
    }

    /// The instruction's class: load, store, arithmetic, jump, return, other.
    pub const fn class(self) -> u16 {
        self.code & 0x07
    }

    const fn is_jump_always(self) -> bool {
        self.code == op::JMP | op::JA
    }
}

/// A checked classic program: it ends, stays within itself and touches nothing that it should not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classic {
    instructions: Vec<Instruction>,
    /// Offsets below zero count from the packet's headers, as in the kernel's programs.
    counts_from_headers: bool,
    /// Comparisons that are look-ups, by their numbers, and in which of the tables.
    finds: BTreeMap<usize, usize>,
    tables: Arc<[Table]>,
}

impl Classic {
    fn plain(instructions: Vec<Instruction>) -> Self {
        Self {
            instructions,
            counts_from_headers: true,
            finds: BTreeMap::new(),
            tables: Arc::new([]),
        }
    }

    /// A program of libpcap's compiler in which some comparisons look a value up in a table.
    pub(crate) fn with_tables(
        instructions: Vec<Instruction>,
        finds: Vec<(usize, usize)>,
        tables: Vec<Table>,
    ) -> Result<Self, FilterError> {
        let program = Self::from_compiler(instructions)?;
        Ok(Self {
            finds: finds.into_iter().collect(),
            tables: tables.into(),
            ..program
        })
    }

    /// Whether long lists in it are looked up in tables, which a classic program as such cannot say.
    pub fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    pub(crate) fn tables(&self) -> &[Table] {
        &self.tables
    }

    pub(crate) fn shared_tables(&self) -> Arc<[Table]> {
        Arc::clone(&self.tables)
    }

    /// The offset in the packet that a load's constant means, if any.
    pub(crate) fn offset(&self, k: u32) -> Option<u32> {
        match k {
            ancillary::LL_OFF.. if !self.counts_from_headers => None,
            _ => ancillary::offset(k),
        }
    }

    /// Whether the sum of X and a load's constant has 32 bits, as in the kernel. libpcap's interpreter, which judges by the
    /// programs of its compiler, finds nothing there.
    pub(crate) fn wraps(&self) -> bool {
        self.counts_from_headers
    }

    /// The table that an instruction looks A up in.
    pub(crate) fn find_at(&self, index: usize) -> Option<usize> {
        self.finds.get(&index).copied()
    }

    /// Takes a raw program if the kernel's classic checker (`bpf_check_classic`) would.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, FilterError> {
        check::check(&instructions, check::Source::Raw)?;
        Ok(Self::plain(instructions))
    }

    /// Takes a program of libpcap's compiler: longer, and with the backward jumps of `protochain`.
    pub fn from_compiler(instructions: Vec<Instruction>) -> Result<Self, FilterError> {
        check::check(&instructions, check::Source::Compiler)?;
        Ok(Self {
            counts_from_headers: false,
            ..Self::plain(instructions)
        })
    }

    /// Reads a program as `tcpdump -ddd` prints it, with newlines or with commas.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        Self::new(parse::parse(text)?)
    }

    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Whether the program loops; the kernel takes no such program on a socket.
    pub fn has_backward_jumps(&self) -> bool {
        self.instructions
            .iter()
            .any(|i| i.is_jump_always() && (i.k as i32) < 0)
    }

    /// Whether a Linux socket takes the program: no loop, and no longer than the kernel allows.
    pub fn fits_socket(&self) -> bool {
        self.instructions.len() <= MAX_RAW && !self.has_backward_jumps() && !self.has_tables()
    }

    /// The program as `tcpdump -ddd` prints it, on one line with commas.
    pub fn to_ddd(&self) -> String {
        parse::print(&self.instructions)
    }

    /// Runs the program on a packet of which `bytes` is the beginning and `length` the true length.
    ///
    /// Semantics are libpcap's: 0 is "no match", and so is any load beyond `bytes`.
    pub fn run(&self, bytes: &[u8], length: u32) -> u32 {
        self.evaluate(bytes, length).value
    }

    /// The same, and whether the program had to be stopped. Older libpcap does not stop such a
    /// program at all: `protochain` can go round for ever there on a packet made for it.
    pub fn evaluate(&self, bytes: &[u8], length: u32) -> ClassicAnswer {
        run::run(self, bytes, length)
    }

    /// Whether the packet has more headers than a program in the kernel follows.
    pub fn exceeds_kernel(&self, bytes: &[u8], length: u32) -> bool {
        self.has_backward_jumps()
            && run::run_within(self, bytes, length, MAX_BACKWARD_JUMPS).gave_up
    }
}
