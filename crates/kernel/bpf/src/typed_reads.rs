//! Reads of the kernel's memory under a lockdown for confidentiality, which takes `bpf_probe_read_kernel` away from all
//! programs: loads through a pointer to one of the kernel's structures stay possible, and `bpf_rdonly_cast` makes such
//! a pointer of any address. A load from an address that is not mapped yields zero.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::sync::OnceLock;

use trawl_ebpf::{Insn, helper, op, starts, target};

use crate::kernel::{is_unwanted, kernel_function, kernel_is_at_least};
use crate::kernel_types;
use crate::program::{LoadOptions, RAW_TRACEPOINT};

/// A structure that begins with two 64-bit numbers.
const WORDS: &str = "timespec64";
const WORDS_LENGTH: usize = 16;
/// Bytes that a variable read copies at a time.
const CHUNK: i32 = 64;
/// Lengths are below this, a power of two.
const LENGTH_MASK: i32 = 0x7fff_ffff;

/// Returns the reason for which programs cannot read the kernel's memory, neither by the helper nor by typed loads.
pub(crate) fn lack() -> Option<String> {
    (is_locked() && numbers().is_err()).then(reason)
}

/// Returns the reason for which a program cannot read the kernel's memory.
pub(crate) fn reason() -> String {
    format!(
        "the kernel is locked down ({}), which forbids bpf_probe_read_kernel; typed loads instead need Linux 6.8 and a tracing program",
        lockdown().unwrap_or_else(|| "confidentiality".to_owned())
    )
}

/// Returns the level of the lockdown and its source, if it is known.
fn lockdown() -> Option<String> {
    let path = "/sys/kernel/security/lockdown";
    let level = fs::read_to_string(path).ok().and_then(|text| {
        let level = text.split('[').nth(1)?.split(']').next()?;
        (level != "none").then(|| format!("{path} says {level}"))
    });
    level.or_else(|| {
        let line = fs::read_to_string("/proc/cmdline").ok()?;
        let mut words = line.split_whitespace();
        let word = words.find(|word| word.starts_with("lockdown="))?;
        Some(format!("{word} on its command line"))
    })
}

/// Returns true if the kernel refuses the helper, which it has since 5.5, or the user disables it. Tried once: a
/// lockdown can be raised while a process runs, and never lowered, so a later load may fail with the kernel's own
/// error.
pub(crate) fn is_locked() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if is_unwanted("probe-read") {
            return true;
        }
        let program = [
            op::mov(1, 10),
            op::alu_imm(op::ADD, 1, -8),
            op::alu_imm(op::MOV, 2, 8),
            op::alu_imm(op::MOV, 3, 0),
            op::call(helper::PROBE_READ_KERNEL),
            op::alu_imm(op::MOV, 0, 0),
            op::exit(),
        ];
        let loaded = LoadOptions::new("trawl_probe", RAW_TRACEPOINT).load(&program);
        let refused = loaded.err();
        refused.is_some_and(|error| error.raw_os_error() == Some(libc::EINVAL)) && kernel_is_at_least(5, 5)
    })
}

/// Numbers of the kernel's functions and of the structure.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    words: i32,
    cast: i32,
    new: i32,
    next: i32,
    destroy: i32,
}

/// Returns the numbers; an error if the kernel lacks a function, or its verifier does not compare two variables (6.8).
fn numbers() -> io::Result<Numbers> {
    let unknown = || io::Error::from_raw_os_error(libc::ENOENT);
    if !kernel_is_at_least(6, 8) {
        return Err(unknown());
    }
    let words = kernel_types::find(kernel_types::STRUCTURE, WORDS)?.ok_or_else(unknown)?;
    let function = |name| kernel_function(name).map(|number| number as i32);
    Ok(Numbers {
        words: words as i32,
        cast: function("bpf_rdonly_cast")?,
        new: function("bpf_iter_num_new")?,
        next: function("bpf_iter_num_next")?,
        destroy: function("bpf_iter_num_destroy")?,
    })
}

/// A function that replaces a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Read {
    Constant(usize),
    Variable,
    /// Text up to this length.
    Text(usize),
}

/// Returns the program with typed loads instead of the helpers, if it calls any and the kernel forbids them.
pub(crate) fn instead_of_helpers(program: &[Insn]) -> Option<Vec<Insn>> {
    let reads = reads(program);
    if reads.is_empty() || !is_locked() {
        return None;
    }
    numbers().ok().map(|numbers| rewritten(program, &reads, numbers))
}

/// Returns the helper calls, and the function for each. Text of unknown length stays: the kernel refuses the program.
fn reads(program: &[Insn]) -> Vec<(usize, Read)> {
    let targets: HashSet<usize> = starts(program).filter_map(|at| target(program, at)).collect();
    let mut found = Vec::new();
    // The length in r2, since the last place where paths meet or part.
    let mut length = None;
    for at in starts(program) {
        let one = program[at];
        if targets.contains(&at) {
            length = None;
        }
        if one.code == op::CALL_CODE && one.src() == 0 {
            match (one.imm, length) {
                (helper::PROBE_READ_KERNEL | helper::PROBE_READ, Some(length)) => {
                    found.push((at, Read::Constant(length)));
                }
                (helper::PROBE_READ_KERNEL | helper::PROBE_READ, None) => {
                    found.push((at, Read::Variable));
                }
                (helper::PROBE_READ_KERNEL_STR | helper::PROBE_READ_STR, Some(length)) => {
                    found.push((at, Read::Text(length)));
                }
                _ => {}
            }
        }
        if one.branches() {
            length = None;
        } else if one.sets(2) {
            length = one.number().and_then(|number| usize::try_from(number).ok());
        }
    }
    found
}

fn rewritten(program: &[Insn], reads: &[(usize, Read)], numbers: Numbers) -> Vec<Insn> {
    let mut program = program.to_vec();
    let mut functions = BTreeMap::new();
    for (at, read) in reads {
        let begin = *functions.entry(*read).or_insert_with(|| {
            let begin = program.len();
            program.extend(numbers.function(*read));
            begin
        });
        let distance = begin as i64 - *at as i64 - 1;
        program[*at] = op::call(distance as i32).with_src(op::OWN_FUNCTION);
    }
    program
}

/// Registers of the functions: the target, the address, the length or the offset, and the last offset.
const TO: u8 = 6;
const FROM: u8 = 7;
const OFFSET: u8 = 8;
const LAST: u8 = 9;

impl Numbers {
    /// Returns a function with the helper's arguments: target, length, address.
    fn function(self, read: Read) -> Vec<Insn> {
        let mut code = vec![op::mov(TO, 1), op::mov(FROM, 3)];
        match read {
            Read::Constant(length) => self.constant(&mut code, length),
            Read::Variable => self.variable(&mut code),
            Read::Text(length) => self.text(&mut code, length),
        }
        code
    }

    /// Makes r0 a pointer to two words at the address in r1.
    fn cast(self, code: &mut Vec<Insn>) {
        code.push(op::alu_imm(op::MOV, 2, self.words));
        code.push(op::call(self.cast).with_src(op::KERNEL_FUNCTION));
    }

    fn cast_at(self, code: &mut Vec<Insn>, at: usize) {
        code.push(op::mov(1, FROM));
        if at > 0 {
            code.push(op::alu_imm(op::ADD, 1, at as i32));
        }
        self.cast(code);
    }

    fn constant(self, code: &mut Vec<Insn>, length: usize) {
        for begin in (0..length).step_by(WORDS_LENGTH) {
            self.cast_at(code, begin);
            if begin == 0 {
                // The verifier prohibits sums with some pointers, of sockets for example, but not with this one.
                code.push(op::mov(FROM, 0));
            }
            let end = length.min(begin + WORDS_LENGTH);
            let mut at = begin;
            while at < end {
                // Aligned, as a stack requires.
                let (size, bytes) = match end - at {
                    8.. => (op::DW, 8),
                    4.. => (op::W, 4),
                    2.. => (op::H, 2),
                    _ => (op::B, 1),
                };
                code.push(op::load(size, 1, 0, (at - begin) as i16));
                code.push(op::store(size, TO, at as i16, 1));
                at += bytes;
            }
        }
        code.extend([op::alu_imm(op::MOV, 0, 0), op::exit()]);
    }

    /// Copies characters until the first zero byte, and zeroes after it; returns the number of bytes with one zero. It
    /// has no branches, each of which would be a path for the verifier.
    fn text(self, code: &mut Vec<Insn>, length: usize) {
        // One while no zero was read, and the number of other characters.
        let (goes_on, count) = (OFFSET, LAST);
        code.push(op::alu_imm(op::MOV, goes_on, 1));
        code.push(op::alu_imm(op::MOV, count, 0));
        for at in 0..length.saturating_sub(1) {
            self.cast_at(code, at);
            code.extend([
                op::load(op::B, 1, 0, 0),
                op::mov(2, 1),
                op::alu_imm(op::ADD, 2, 255),
                op::alu_imm(op::RSH, 2, 8),
                op::alu(op::AND, goes_on, 2),
                op::alu(op::ADD, count, goes_on),
                op::mov(2, goes_on),
                op::alu_imm(op::NEG, 2, 0),
                op::alu(op::AND, 1, 2),
                op::store(op::B, TO, at as i16, 1),
            ]);
        }
        if length > 0 {
            code.push(op::store_imm(op::B, TO, length as i16 - 1, 0));
        }
        code.extend([op::mov(0, count), op::alu_imm(op::ADD, 0, 1), op::exit()]);
    }

    /// Copies in chunks, of which the last may overlap the one before; fewer bytes than a chunk one by one. The
    /// verifier checks a loop by the kernel's iterator once, not once for each iteration.
    fn variable(self, code: &mut Vec<Insn>) {
        code.extend([
            // The result of an operation is another value for the verifier: bounds that it finds in the loops do not
            // apply to the caller's copy.
            op::mov(OFFSET, 2),
            op::alu_imm(op::AND, OFFSET, LENGTH_MASK),
            op::jump_if(op::JNE, OFFSET, 0, 2),
            op::alu_imm(op::MOV, 0, 0),
            op::exit(),
        ]);
        let mut by_chunks = Vec::new();
        self.loop_of(&mut by_chunks, CHUNK, |code| {
            for at in (0..CHUNK as usize).step_by(WORDS_LENGTH) {
                code.extend([op::mov(1, FROM), op::alu(op::ADD, 1, OFFSET)]);
                if at > 0 {
                    code.push(op::alu_imm(op::ADD, 1, at as i32));
                }
                self.cast(code);
                code.extend([op::mov(2, TO), op::alu(op::ADD, 2, OFFSET)]);
                for word in [0, 8] {
                    code.push(op::load(op::DW, 1, 0, word));
                    code.push(op::store(op::DW, 2, at as i16 + word, 1));
                }
            }
        });
        code.push(op::jump_if(op::JLT, OFFSET, CHUNK, by_chunks.len() as i16));
        code.extend(by_chunks);
        self.loop_of(code, 1, |code| {
            code.extend([op::mov(1, FROM), op::alu(op::ADD, 1, OFFSET)]);
            self.cast(code);
            code.extend([
                op::mov(2, TO),
                op::alu(op::ADD, 2, OFFSET),
                op::load(op::B, 1, 0, 0),
                op::store(op::B, 2, 0, 1),
            ]);
        });
    }

    /// Emits a loop over the length in `OFFSET`, by steps of a power of two, and the function's end.
    fn loop_of(self, code: &mut Vec<Insn>, step: i32, body: impl FnOnce(&mut Vec<Insn>)) {
        let iterator = [op::mov(1, 10), op::alu_imm(op::ADD, 1, -8)];
        let call = |number: i32| op::call(number).with_src(op::KERNEL_FUNCTION);
        let shift = step.trailing_zeros() as i32;
        code.extend([
            op::mov(LAST, OFFSET),
            op::alu_imm(op::ADD, LAST, -step),
            op::mov(3, OFFSET),
            op::alu_imm(op::ADD, 3, step - 1),
            op::alu_imm(op::RSH, 3, shift),
            op::alu_imm(op::MOV, 2, 0),
        ]);
        code.extend(iterator);
        code.push(call(self.new));
        let begin = code.len();
        code.extend(iterator);
        code.push(call(self.next));
        let mut inner = vec![
            op::load(op::W, OFFSET, 0, 0),
            op::alu_imm(op::LSH, OFFSET, shift),
            Insn::new(op::JMP | op::JLE | op::X, OFFSET, LAST, 1, 0),
            op::mov(OFFSET, LAST),
        ];
        body(&mut inner);
        code.push(op::jump_if(op::JEQ, 0, 0, inner.len() as i16 + 1));
        code.extend(inner);
        code.push(op::goto(begin as i16 - code.len() as i16 - 1));
        code.extend(iterator);
        code.push(call(self.destroy));
        code.extend([op::alu_imm(op::MOV, 0, 0), op::exit()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = Numbers { words: 1, cast: 2, new: 3, next: 4, destroy: 5 };

    fn read() -> Insn {
        op::call(helper::PROBE_READ_KERNEL)
    }

    #[test]
    fn length_is_known_only_on_a_straight_path() {
        let program = [
            op::alu_imm(op::MOV, 2, 8),
            op::mov(1, 10),
            read(),
            op::mov(2, 7),
            read(),
            op::jump_if(op::JEQ, 0, 0, 1),
            op::alu_imm(op::MOV, 2, 4),
            // Two paths meet here.
            read(),
            op::exit(),
        ];
        let expected = [(2, Read::Constant(8)), (4, Read::Variable), (7, Read::Variable)];
        assert_eq!(reads(&program), expected);
    }

    #[test]
    fn equal_reads_share_a_function() {
        let program = [op::alu_imm(op::MOV, 2, 8), read(), op::alu_imm(op::MOV, 2, 8), read(), op::exit()];
        let found = rewritten(&program, &reads(&program), NUMBERS);
        assert_eq!(target(&found, 1), Some(program.len()));
        assert_eq!(target(&found, 3), Some(program.len()));
        let function = &found[program.len()..];
        assert_eq!(function.to_vec(), NUMBERS.function(Read::Constant(8)));
    }

    #[test]
    fn odd_lengths_are_read_in_aligned_pieces() {
        let function = NUMBERS.function(Read::Constant(23));
        let stores = function.iter().filter(|one| one.code & 7 == op::STX);
        let offsets: Vec<i16> = stores.map(|one| one.off).collect();
        assert_eq!(offsets, [0, 8, 16, 20, 22]);
    }
}
