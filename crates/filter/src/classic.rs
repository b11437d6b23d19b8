//! Classic BPF programs: the output of libpcap's compiler and of `tcpdump -ddd`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::FilterError;
use crate::table::Table;

/// Maximum number of instructions of a raw program, as the kernel's `BPF_MAXINSNS`.
pub const MAX_RAW: usize = 4096;
/// Maximum number of instructions of a program compiled by libpcap; far beyond the capacity of a hook.
pub const MAX_COMPILED: usize = 65_535;
/// Number of cells of scratch memory.
pub const MEMORY_CELLS: usize = 16;
/// Maximum number of backward jumps for a packet before the filter gives up with "no match", as in newer libpcap. Only
/// `protochain` jumps backward, once for each header of the chain.
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

/// Offsets from which Linux reads facts about the packet instead of its bytes (`SKF_AD_OFF`…).
pub mod ancillary {
    /// First ancillary offset, -4096.
    pub const AD_OFF: u32 = 0xffff_f000;
    /// Offsets from here to [`AD_OFF`] count from the network header, -1048576.
    pub const NET_OFF: u32 = 0xfff0_0000;
    /// Offsets from here to [`NET_OFF`] count from the link header, -2097152.
    pub const LL_OFF: u32 = 0xffe0_0000;

    /// Returns the offset in an Ethernet frame. The network header is assumed right after the 14 bytes of the Ethernet
    /// header, which is also its position on a Linux socket once a tag is removed from the frame. Ancillary fields have
    /// no offset.
    pub fn offset(k: u32) -> Option<u32> {
        Some(match k {
            AD_OFF.. => return None,
            NET_OFF.. => k - NET_OFF + 14,
            LL_OFF.. => k - LL_OFF,
            _ => k,
        })
    }

    /// A fact about a packet, in the order of `<linux/filter.h>`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Ancillary {
        Protocol,
        PacketType,
        Interface,
        NetlinkAttribute,
        Mark,
        Queue,
        HardwareType,
        Hash,
        Cpu,
        XorX,
        VlanTag,
        VlanPresent,
        PayloadOffset,
        Random,
        VlanProtocol,
    }

    impl Ancillary {
        /// Returns the fact at this offset, if the kernel has one.
        pub(crate) fn at(k: u32) -> Option<Self> {
            use Ancillary::*;
            Some(match k.checked_sub(AD_OFF)? {
                0 => Protocol,
                4 => PacketType,
                8 => Interface,
                12 | 16 => NetlinkAttribute,
                20 => Mark,
                24 => Queue,
                28 => HardwareType,
                32 => Hash,
                36 => Cpu,
                40 => XorX,
                44 => VlanTag,
                48 => VlanPresent,
                52 => PayloadOffset,
                56 => Random,
                60 => VlanProtocol,
                _ => return None,
            })
        }

        /// Returns true if a program with this fact expects out-of-band tags.
        pub(crate) fn is_vlan(self) -> bool {
            matches!(self, Ancillary::VlanTag | Ancillary::VlanPresent | Ancillary::VlanProtocol)
        }
    }
}

/// One classic instruction, laid out as the kernel's `struct sock_filter`.
#[repr(C)]
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
    /// Creates an instruction from its four fields.
    pub const fn new(code: u16, jt: u8, jf: u8, k: u32) -> Self {
        Self { code, jt, jf, k }
    }

    /// Returns the class: load, store, arithmetic, jump, return, other.
    pub const fn class(self) -> u16 {
        self.code & 0x07
    }

    const fn is_jump_always(self) -> bool {
        self.code == op::JMP | op::JA
    }
}

/// A checked classic program: it ends, stays within itself and accesses only permitted memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classic {
    instructions: Vec<Instruction>,
    /// Offsets below zero count from the packet's headers, as in the kernel's programs.
    counts_from_headers: bool,
    /// Comparisons that are table look-ups: instruction number and table index.
    lookups: BTreeMap<usize, usize>,
    tables: Arc<[Table]>,
}

impl Classic {
    fn plain(instructions: Vec<Instruction>) -> Self {
        Self { instructions, counts_from_headers: true, lookups: BTreeMap::new(), tables: Arc::new([]) }
    }

    /// Creates a program of libpcap's compiler in which some comparisons look up a table.
    pub(crate) fn with_tables(
        instructions: Vec<Instruction>,
        lookups: Vec<(usize, usize)>,
        tables: Vec<Table>,
    ) -> Result<Self, FilterError> {
        let program = Self::from_compiler(instructions)?;
        Ok(Self { lookups: lookups.into_iter().collect(), tables: tables.into(), ..program })
    }

    /// Returns true if long lists in it are tables, which a plain classic program cannot express.
    pub fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    pub(crate) fn tables(&self) -> &[Table] {
        &self.tables
    }

    pub(crate) fn shared_tables(&self) -> Arc<[Table]> {
        Arc::clone(&self.tables)
    }

    /// Returns the packet offset for a load's constant, if any.
    pub(crate) fn offset(&self, k: u32) -> Option<u32> {
        match k {
            ancillary::LL_OFF.. if !self.counts_from_headers => None,
            _ => ancillary::offset(k),
        }
    }

    /// Returns true if the sum of X and a load's constant has 32 bits, as in the kernel. libpcap's interpreter, which
    /// defines programs of its compiler, finds no byte there.
    pub(crate) fn wraps(&self) -> bool {
        self.counts_from_headers
    }

    /// Returns the table in which an instruction looks A up.
    pub(crate) fn lookup_at(&self, index: usize) -> Option<usize> {
        self.lookups.get(&index).copied()
    }

    /// Accepts a raw program if the kernel's classic checker (`bpf_check_classic`) would.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, FilterError> {
        check(&instructions, Source::Raw)?;
        Ok(Self::plain(instructions))
    }

    /// Accepts a program of libpcap's compiler: longer, and with the backward jumps of `protochain`.
    pub fn from_compiler(instructions: Vec<Instruction>) -> Result<Self, FilterError> {
        check(&instructions, Source::Compiler)?;
        Ok(Self { counts_from_headers: false, ..Self::plain(instructions) })
    }

    /// Parses a program in the format of `tcpdump -ddd`, with newlines or commas.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        Self::new(parse(text)?)
    }

    /// Returns the instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns true if the program loops; the kernel refuses such programs on a socket.
    pub fn has_backward_jumps(&self) -> bool {
        self.instructions.iter().any(|i| i.is_jump_always() && (i.k as i32) < 0)
    }

    /// Returns true if a Linux socket accepts the program: no loop, and within the kernel's limit.
    pub fn fits_socket(&self) -> bool {
        self.instructions.len() <= MAX_RAW && !self.has_backward_jumps() && !self.has_tables()
    }

    /// Formats the program like `tcpdump -ddd`, on one line with commas.
    pub fn to_ddd(&self) -> String {
        print(&self.instructions)
    }

    /// Runs the program on a packet of which `bytes` is the beginning and `length` the true length.
    ///
    /// Semantics are libpcap's: 0 is "no match", and so is any load beyond `bytes`.
    pub fn run(&self, bytes: &[u8], length: u32) -> u32 {
        self.evaluate(bytes, length).value
    }

    /// Runs the program, and also returns whether it had to be stopped. Older versions of libpcap do not stop such a
    /// program, so that their `protochain` can loop forever on a crafted packet.
    pub fn evaluate(&self, bytes: &[u8], length: u32) -> ClassicAnswer {
        run(self, bytes, length)
    }

    /// Returns true if the packet has more headers than a program in the kernel follows.
    pub fn exceeds_kernel(&self, bytes: &[u8], length: u32) -> bool {
        self.has_backward_jumps() && run_within(self, bytes, length, MAX_BACKWARD_JUMPS).gave_up
    }
}

// The output has the exact format of `tcpdump -d`.

impl fmt::Display for Classic {
    /// Writes one line for each instruction, exactly like `tcpdump -d` (libpcap's `bpf_image`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, &instruction) in self.instructions().iter().enumerate() {
            writeln!(f, "{}", line(index, instruction))?;
        }
        Ok(())
    }
}

fn line(index: usize, i: Instruction) -> String {
    let (name, operand) = parts(index, i);
    let next = index + 1;
    if i.class() == op::JMP && !i.is_jump_always() {
        format!("({index:03}) {name:<8} {operand:<16} jt {}\tjf {}", next + usize::from(i.jt), next + usize::from(i.jf))
    } else {
        format!("({index:03}) {name:<8} {operand}")
    }
}

/// Formats the instruction for a message: name and operand only.
fn text(index: usize, i: Instruction) -> String {
    let (name, operand) = parts(index, i);
    format!("{name} {operand}").trim_end().to_owned()
}

fn parts(index: usize, i: Instruction) -> (&'static str, String) {
    use op::*;
    // libpcap prints offsets and most constants as signed numbers.
    let signed = i.k as i32;
    let absolute = |name| (name, format!("[{signed}]"));
    let indirect = |name| (name, format!("[x + {signed}]"));
    let memory = |name| (name, format!("M[{signed}]"));
    match i.code {
        code if code == LD | W | ABS => absolute("ld"),
        code if code == LD | H | ABS => absolute("ldh"),
        code if code == LD | B | ABS => absolute("ldb"),
        code if code == LD | W | IND => indirect("ld"),
        code if code == LD | H | IND => indirect("ldh"),
        code if code == LD | B | IND => indirect("ldb"),
        code if code == LD | W | LEN => ("ld", "#pktlen".into()),
        code if code == LDX | W | LEN => ("ldx", "#pktlen".into()),
        code if code == LD | IMM => ("ld", format!("#{:#x}", i.k)),
        code if code == LDX | IMM => ("ldx", format!("#{:#x}", i.k)),
        code if code == LDX | B | MSH => ("ldxb", format!("4*([{signed}]&0xf)")),
        code if code == LD | MEM => memory("ld"),
        code if code == LDX | MEM => memory("ldx"),
        ST => memory("st"),
        STX => memory("stx"),
        code if code == RET | K => ("ret", format!("#{signed}")),
        code if code == RET | A => ("ret", String::new()),
        code if code == JMP | JA => ("ja", (index as i64 + 1 + i64::from(signed)).to_string()),
        code if code == ALU | NEG => ("neg", String::new()),
        code if code == MISC | TAX => ("tax", String::new()),
        code if code == MISC | TXA => ("txa", String::new()),
        _ if i.class() == ALU || i.class() == JMP => operation(i),
        _ => ("unimp", format!("{:#x}", i.code)),
    }
}

fn operation(i: Instruction) -> (&'static str, String) {
    use op::*;
    let name = match (i.class(), i.code & 0xf0) {
        (ALU, ADD) => "add",
        (ALU, SUB) => "sub",
        (ALU, MUL) => "mul",
        (ALU, DIV) => "div",
        (ALU, MOD) => "mod",
        (ALU, AND) => "and",
        (ALU, OR) => "or",
        (ALU, XOR) => "xor",
        (ALU, LSH) => "lsh",
        (ALU, RSH) => "rsh",
        (JMP, JEQ) => "jeq",
        (JMP, JGT) => "jgt",
        (JMP, JGE) => "jge",
        (JMP, JSET) => "jset",
        _ => return ("unimp", format!("{:#x}", i.code)),
    };
    let operand = if i.code & X != 0 {
        "x".into()
    } else if i.class() == JMP || ["and", "or", "xor"].contains(&name) {
        format!("#{:#x}", i.k)
    } else {
        format!("#{}", i.k as i32)
    };
    (name, operand)
}

// Text form of classic programs: `COUNT,CODE JT JF K,…`, as in tcpdump -ddd and iptables -m bpf.

/// Shortens a text, which may be long.
fn beginning(text: &str) -> String {
    text.chars().take(60).collect()
}

fn error(reason: &'static str, text: &str) -> FilterError {
    FilterError::Text { reason, text: beginning(text) }
}

/// Parses the text form. Only its syntax is checked here.
fn parse(text: &str) -> Result<Vec<Instruction>, FilterError> {
    let mut lines = text.split([',', '\n']).map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().ok_or_else(|| error("the program is empty", text))?;
    let count: usize = first.parse().map_err(|_| error("the number of instructions is missing", first))?;
    if count == 0 || count > MAX_RAW {
        return Err(FilterError::Length { len: count, max: MAX_RAW });
    }
    let instructions = lines
        .enumerate()
        .map(|(index, line)| {
            instruction(line).map_err(|reason| FilterError::Instruction {
                index,
                text: beginning(line),
                reason: reason.to_owned(),
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    if instructions.len() != count {
        return Err(error(
            if instructions.len() < count {
                "fewer instructions than announced"
            } else {
                "more instructions than announced"
            },
            first,
        ));
    }
    Ok(instructions)
}

fn instruction(line: &str) -> Result<Instruction, &'static str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [code, jt, jf, k] = fields[..] else {
        return Err("an instruction has four numbers: CODE JT JF K");
    };
    Ok(Instruction { code: number(code)?, jt: number(jt)?, jf: number(jf)?, k: number(k)? })
}

fn number<T: TryFrom<u32>>(text: &str) -> Result<T, &'static str> {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| "one of its fields is not a 32-bit number")?;
    T::try_from(value).map_err(|_| "a number is too large for its field")
}

/// Formats the text form.
fn print(instructions: &[Instruction]) -> String {
    let mut text = instructions.len().to_string();
    for i in instructions {
        text.push_str(&format!(",{} {} {} {}", i.code, i.jt, i.jf, i.k));
    }
    text
}

// Accepted classic programs: the ones that the kernel's `bpf_check_classic` accepts, so that a raw program means the
// same on a socket and at a hook.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Written by a person or another program: the kernel's rules apply.
    Raw,
    /// Compiled by libpcap: loops and more instructions are permitted.
    Compiler,
}

fn check(program: &[Instruction], source: Source) -> Result<(), FilterError> {
    let max = match source {
        Source::Raw => MAX_RAW,
        Source::Compiler => MAX_COMPILED,
    };
    if program.is_empty() || program.len() > max {
        return Err(FilterError::Length { len: program.len(), max });
    }
    for (index, &instruction) in program.iter().enumerate() {
        let fail = |reason: String| FilterError::Instruction { index, text: text(index, instruction), reason };
        check_one(instruction, source).map_err(|reason| fail(reason.to_owned()))?;
        for target in targets(index, instruction) {
            if target < 0 || target >= program.len() as i64 {
                return Err(fail(format!(
                    "it jumps to {target}, outside the program of {} instructions",
                    program.len()
                )));
            }
            if target <= index as i64 && source == Source::Raw {
                return Err(fail("it jumps backward, which the kernel refuses".into()));
            }
        }
    }
    let last = program.len() - 1;
    if program[last].class() != op::RET {
        return Err(FilterError::Instruction {
            index: last,
            text: text(last, program[last]),
            reason: "the last instruction must be a return".into(),
        });
    }
    if source == Source::Raw {
        check_memory(program)?;
    }
    Ok(())
}

fn targets(index: usize, instruction: Instruction) -> Vec<i64> {
    if instruction.class() != op::JMP {
        return Vec::new();
    }
    let next = index as i64 + 1;
    if instruction.is_jump_always() {
        // libpcap counts the distance as signed; the kernel as unsigned, beyond any program.
        return vec![next + i64::from(instruction.k as i32)];
    }
    vec![next + i64::from(instruction.jt), next + i64::from(instruction.jf)]
}

fn check_one(i: Instruction, source: Source) -> Result<(), &'static str> {
    use op::*;
    const UNKNOWN: &str = "no such instruction";
    let k_or_x = |operation: u16| i.code == i.class() | operation | (i.code & X);
    match i.class() {
        LD => match i.code & !0x07 {
            x if [W | ABS, H | ABS, B | ABS].contains(&x) => {
                // libpcap accepts any number as an offset, and finds no byte there.
                if source == Source::Raw && i.k >= ancillary::AD_OFF && ancillary::Ancillary::at(i.k).is_none() {
                    return Err("it reads an ancillary field that the kernel does not have");
                }
                Ok(())
            }
            x if [W | IND, H | IND, B | IND, IMM, W | LEN].contains(&x) => Ok(()),
            x if x == MEM => cell(i.k),
            _ => Err(UNKNOWN),
        },
        LDX => match i.code & !0x07 {
            x if [IMM, W | LEN, B | MSH].contains(&x) => Ok(()),
            x if x == MEM => cell(i.k),
            _ => Err(UNKNOWN),
        },
        ST | STX if i.code == i.class() => cell(i.k),
        ALU => match i.code & 0xf0 {
            operation @ (ADD | SUB | MUL | AND | OR | XOR) if k_or_x(operation) => Ok(()),
            operation @ (DIV | MOD) if k_or_x(operation) => {
                if i.code & X == 0 && i.k == 0 {
                    return Err("it divides by zero");
                }
                Ok(())
            }
            operation @ (LSH | RSH) if k_or_x(operation) => {
                if i.code & X == 0 && i.k >= 32 {
                    return Err("it shifts by 32 bits or more");
                }
                Ok(())
            }
            NEG if i.code == ALU | NEG => Ok(()),
            _ => Err(UNKNOWN),
        },
        JMP => match i.code & 0xf0 {
            JA if i.code == JMP | JA => Ok(()),
            operation @ (JEQ | JGT | JGE | JSET) if k_or_x(operation) => Ok(()),
            _ => Err(UNKNOWN),
        },
        RET if i.code == RET | K || i.code == RET | A => Ok(()),
        MISC if i.code == MISC | TAX || i.code == MISC | TXA => Ok(()),
        _ => Err(UNKNOWN),
    }
}

fn cell(k: u32) -> Result<(), &'static str> {
    if k as usize >= MEMORY_CELLS {
        return Err("scratch memory has the cells M[0] to M[15]");
    }
    Ok(())
}

/// Refuses a read of a scratch cell that is unwritten on some path, as the kernel does.
fn check_memory(program: &[Instruction]) -> Result<(), FilterError> {
    // For each instruction, the cells written on every path to it. Jumps go forward only, so one pass in order sees
    // each instruction after all its predecessors.
    let mut written_at = vec![u16::MAX; program.len()];
    let mut written: u16 = 0;
    for (index, &i) in program.iter().enumerate() {
        written &= written_at[index];
        match i.class() {
            op::ST | op::STX => written |= 1 << i.k,
            op::LD | op::LDX if i.code & !0x07 == op::MEM && written & (1 << i.k) == 0 => {
                return Err(FilterError::Instruction {
                    index,
                    text: text(index, i),
                    reason: format!("M[{}] is read before any value was stored in it", i.k),
                });
            }
            op::JMP => {
                for target in targets(index, i) {
                    written_at[target as usize] &= written;
                }
                written = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

// A plain interpreter with libpcap's semantics, and the kernel's for programs from elsewhere, as a reference and for
// files.

/// Returns the big-endian value of the `size` bytes at `offset`, if all exist.
fn load(bytes: &[u8], offset: u64, size: u16) -> Option<u32> {
    let width = match size {
        op::W => 4,
        op::H => 2,
        _ => 1,
    };
    let start = usize::try_from(offset).ok()?;
    let field = bytes.get(start..start.checked_add(width)?)?;
    Some(field.iter().fold(0, |value, &b| value << 8 | u32::from(b)))
}

/// A program's answer for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassicAnswer {
    /// Return value; 0 is "no match".
    pub value: u32,
    /// True if stopped because of too many backward jumps.
    pub gave_up: bool,
}

/// Runs the program.
fn run(program: &Classic, bytes: &[u8], length: u32) -> ClassicAnswer {
    // Each iteration of libpcap's loops advances by at least eight bytes, and a program has few loops.
    let max_jumps = MAX_BACKWARD_JUMPS.max(bytes.len() as u32);
    run_within(program, bytes, length, max_jumps)
}

/// Runs the program with at most `max_jumps` backward jumps.
fn run_within(program: &Classic, bytes: &[u8], length: u32, max_jumps: u32) -> ClassicAnswer {
    let mut backward = 0;
    let value = step_through(program, bytes, length, max_jumps, &mut backward).unwrap_or(0);
    ClassicAnswer { value, gave_up: backward > max_jumps }
}

fn step_through(classic: &Classic, bytes: &[u8], length: u32, max_jumps: u32, backward: &mut u32) -> Option<u32> {
    use op::*;
    // Ancillary fields are unknown in a file.
    let fixed = |k: u32| classic.offset(k).map(u64::from);
    let program = classic.instructions();
    let (mut a, mut x) = (0u32, 0u32);
    let mut state = 0;
    let mut memory = [0u32; MEMORY_CELLS];
    let mut pc = 0usize;
    loop {
        let i = *program.get(pc)?;
        pc += 1;
        let operand = if i.code & X != 0 { x } else { i.k };
        match i.class() {
            LD => {
                a = match i.code & 0xe0 {
                    IMM => i.k,
                    ABS => load(bytes, fixed(i.k)?, i.code & 0x18)?,
                    IND if classic.wraps() => load(bytes, x.wrapping_add(i.k).into(), i.code & 0x18)?,
                    IND => load(bytes, u64::from(x) + u64::from(i.k), i.code & 0x18)?,
                    MEM => memory[i.k as usize],
                    _ => length,
                }
            }
            LDX => {
                x = match i.code & 0xe0 {
                    IMM => i.k,
                    MEM => memory[i.k as usize],
                    LEN => length,
                    _ => (load(bytes, fixed(i.k)?, B)? & 0xf) << 2,
                }
            }
            ST => memory[i.k as usize] = a,
            STX => memory[i.k as usize] = x,
            ALU => {
                a = match i.code & 0xf0 {
                    ADD => a.wrapping_add(operand),
                    SUB => a.wrapping_sub(operand),
                    MUL => a.wrapping_mul(operand),
                    DIV => a.checked_div(operand)?,
                    MOD => a.checked_rem(operand)?,
                    AND => a & operand,
                    OR => a | operand,
                    XOR => a ^ operand,
                    LSH => a.checked_shl(operand).unwrap_or(0),
                    RSH => a.checked_shr(operand).unwrap_or(0),
                    _ => a.wrapping_neg(),
                }
            }
            JMP => {
                if i.is_jump_always() {
                    let distance = i.k as i32;
                    if distance < 0 {
                        *backward += 1;
                        if *backward > max_jumps {
                            return None;
                        }
                    }
                    pc = pc.checked_add_signed(distance as isize)?;
                    continue;
                }
                if let Some(table) = classic.lookup_at(pc - 1) {
                    let table = &classic.tables()[table];
                    let next = table.look_up(if table.is_first { 0 } else { state }, a);
                    // The last word has no next state: another word may be looked up under the same state.
                    if !table.is_last {
                        state = next;
                    }
                    pc += usize::from(if next != 0 { i.jt } else { i.jf });
                    continue;
                }
                let holds = match i.code & 0xf0 {
                    JEQ => a == operand,
                    JGT => a > operand,
                    JGE => a >= operand,
                    _ => a & operand != 0,
                };
                pc += usize::from(if holds { i.jt } else { i.jf });
            }
            RET => return Some(if i.code & 0x18 == A { a } else { i.k }),
            _ => {
                if i.code & 0xf8 == TXA {
                    a = x;
                } else {
                    x = a;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Classic;

    const IP: &str = "4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0";

    #[test]
    fn errors_name_the_malformed_instruction() {
        for line in ["21 0 1", "21 0 1 2 3", "21 0 x 1", "21 0 300 1", "21 0 1 4294967296"] {
            let program = format!("3,40 0 0 12,{line},6 0 0 0");
            let error = Classic::parse(&program).unwrap_err().to_string();
            assert!(error.starts_with(&format!("filter instruction 1 ({line}): ")), "{error}");
        }
    }

    #[test]
    fn both_separators_and_a_trailing_comma_are_accepted() {
        let commas = Classic::parse(IP).unwrap();
        assert_eq!(commas.to_ddd(), IP);
        let newlines = Classic::parse(&IP.replace(',', "\n")).unwrap();
        assert_eq!(commas, newlines);
        assert_eq!(Classic::parse(&format!("{IP},\n")).unwrap(), commas);
    }

    #[test]
    fn errors_name_the_malformed_text() {
        for (text, piece) in [
            ("", ""),
            ("x,6 0 0 0", "x"),
            ("1,6 0 0", "6 0 0"),
            ("1,6 0 0 z", "6 0 0 z"),
            ("1,6 0 256 0", "6 0 256 0"),
            ("1,6 0 0 4294967296", "6 0 0 4294967296"),
            ("2,6 0 0 0", "2"),
            ("1,6 0 0 0,6 0 0 0", "1"),
            ("1,-6 0 0 0", "-6 0 0 0"),
        ] {
            match Classic::parse(text) {
                Err(FilterError::Text { text: found, .. }) => assert_eq!(found, piece),
                Err(FilterError::Instruction { text: found, .. }) => assert_eq!(found, piece),
                other => panic!("{text:?}: {other:?}"),
            }
        }
        assert!(matches!(Classic::parse("0"), Err(FilterError::Length { len: 0, .. })));
        assert!(matches!(Classic::parse("999999999,6 0 0 0"), Err(FilterError::Length { .. })));
    }

    fn refused(text: &str) -> (usize, String) {
        match Classic::parse(text) {
            Err(FilterError::Instruction { index, reason, .. }) => (index, reason),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn errors_name_the_refused_instruction() {
        for (text, index, reason) in [
            ("2,0 0 0 1,0 0 0 1", 1, "return"),
            ("2,21 5 0 1,6 0 0 0", 0, "outside"),
            ("2,21 0 1 1,6 0 0 0", 0, "outside"),
            ("2,5 0 0 4294967295,6 0 0 0", 0, "backward"),
            ("2,5 0 0 4294967294,6 0 0 0", 0, "outside"),
            ("2,52 0 0 0,6 0 0 0", 0, "zero"),
            ("2,148 0 0 0,6 0 0 0", 0, "zero"),
            ("2,100 0 0 32,6 0 0 0", 0, "32 bits"),
            ("2,2 0 0 16,6 0 0 0", 0, "M[0] to M[15]"),
            ("2,255 0 0 0,6 0 0 0", 0, "no such"),
            ("2,6 0 0 0,14 0 0 0", 1, "no such"),
            ("2,8 0 0 0,6 0 0 0", 0, "no such"),
            ("2,132 0 0 0,140 0 0 0", 1, "no such"),
            ("2,32 0 0 4294966999,6 0 0 0", 0, "ancillary"),
            ("2,96 0 0 3,6 0 0 0", 0, "M[3] is read"),
            ("4,21 0 1 1,2 0 0 3,97 0 0 3,6 0 0 0", 2, "M[3] is read"),
        ] {
            let (found, why) = refused(text);
            assert_eq!(found, index, "{text}: {why}");
            assert!(why.contains(reason), "{text}: {why}");
        }
    }

    #[test]
    fn programs_valid_in_the_kernel_are_accepted() {
        for text in [
            "1,6 0 0 0",
            "1,22 0 0 0",
            "3,2 0 0 3,97 0 0 3,6 0 0 0",
            "2,32 0 0 2147483648,6 0 0 0",
            "2,48 0 0 4294963248,6 0 0 0",
            "4,21 1 0 1,5 0 0 0,2 0 0 15,22 0 0 0",
        ] {
            Classic::parse(text).unwrap();
        }
    }
}
