//! The parts of a program that packets reach: one byte for each basic block, which the block sets when it begins, and for
//! each edge between blocks that these do not show.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use trawl_bpf::prepared::LineRecord;
use trawl_bpf::{info, map};
use trawl_ebpf::coverage::{Form, Parts, add_probes};
use trawl_ebpf::{Edge, Edits, Insn, Way, op, starts};
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result};

use crate::digest;
use crate::report::{BranchCoverage, Coverage, FunctionCoverage, LineCoverage, Share, SourceCoverage, SourceLine};

/// Room for parts. The kernel accepts a million instructions, but no program with nearly as many blocks and edges.
const MOST_PARTS: usize = 1 << 17;
const WORD: usize = size_of::<u64>();
const BITS: usize = u64::BITS as usize;

/// One of the programs that are tested together.
#[derive(Debug)]
struct Code {
    name: String,
    lines: Vec<LineRecord>,
    functions: Vec<(usize, String)>,
    /// Number of instructions.
    length: usize,
    parts: Parts,
    /// Number of its first part among the parts of all programs. The others follow.
    first: usize,
}

/// The probes in the blocks and edges of a program, and of those that it can jump to. Parts have numbers over all programs.
#[derive(Debug)]
pub(crate) struct Probes {
    map: OwnedFd,
    memory: Mapping,
    always_on_stack: bool,
    /// Number of times that the programs are loaded, each with an equal share of the probes, and number of the present
    /// load.
    loads: usize,
    load: usize,
    programs: Vec<Code>,
    /// Parts whose probes are in a loaded program: the verifier removes those that are never reached with these constants.
    exists: Vec<bool>,
    /// Packets that reached each part.
    packets: Vec<u64>,
    /// Parts that the last packet reached, one bit for each.
    path: Vec<u64>,
}

/// A set of parts, by a number that other sets do not have.
pub(crate) type Path = u64;

/// A basic block: its program, its instructions, and the number of its part.
#[derive(Clone, Copy, Debug)]
struct Block<'p> {
    code: &'p Code,
    start: usize,
    end: usize,
    part: usize,
}

impl Code {
    fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let starts = &self.parts.blocks;
        let ends = starts.iter().skip(1).copied().chain([self.length]);
        let block = |(number, (start, end))| Block { code: self, start, end, part: self.first + number };
        starts.iter().copied().zip(ends).enumerate().map(block)
    }

    /// Returns the edges, each with the part that shows it.
    fn edges(&self) -> impl Iterator<Item = (&Edge, usize)> {
        self.parts.edges.iter().map(|(edge, part)| (edge, self.first + part))
    }

    /// Returns the line of an instruction.
    fn line_at(&self, instruction: usize) -> Option<&LineRecord> {
        let last = self.lines.partition_point(|line| line.instruction <= instruction).checked_sub(1)?;
        Some(&self.lines[last]).filter(|line| line.line > 0)
    }
}

impl<'p> Block<'p> {
    fn lines(self) -> impl Iterator<Item = &'p LineRecord> {
        let lines = &self.code.lines;
        let first = lines.partition_point(|line| line.instruction <= self.start).saturating_sub(1);
        let last = lines.partition_point(|line| line.instruction < self.end);
        // The compiler names line 0 for instructions of its own.
        lines[first.min(last)..last].iter().filter(|line| line.line > 0)
    }
}

impl Probes {
    /// Creates probes that a number of loads share.
    pub fn new(always_on_stack: bool, loads: usize) -> Result<Self> {
        let map = map::create_mmapable_array("trawl_probes", MOST_PARTS as u32, 1)?;
        let memory = Mapping::of_map(map.as_fd(), MOST_PARTS)?;
        Ok(Self {
            map,
            memory,
            always_on_stack,
            loads,
            load: 0,
            programs: Vec::new(),
            exists: Vec::new(),
            packets: Vec::new(),
            path: Vec::new(),
        })
    }

    /// Gives the programs that are added from now on the next share of the probes.
    pub fn begin_load(&mut self, number: usize) {
        self.load = number;
    }

    /// Adds this load's probes to a program. `stack_depths` is called only if a probe needs the stack, since the verifier
    /// has to measure it.
    pub fn add(
        &mut self,
        name: &str,
        program: &[Insn],
        edits: &mut Edits,
        stack_depths: impl FnOnce() -> Option<Vec<u32>>,
        records: impl FnOnce() -> Result<(Vec<LineRecord>, Vec<(usize, String)>)>,
    ) -> Result<()> {
        let number = match self.programs.iter().position(|code| code.name == name) {
            Some(number) => number,
            None => self.add_program(name, program, records()?)?,
        };
        let Code { parts, first, .. } = &self.programs[number];
        let is_selected = |part: usize| (first + part) % self.loads == self.load;
        let form = Form {
            map: self.map.as_raw_fd(),
            first: *first as u32,
            always_spill: self.always_on_stack,
            ..Form::default()
        };
        let needs_stack = self.always_on_stack
            || !add_probes(program, parts, &mut Edits::default(), form, is_selected).unseen.is_empty();
        let stack_depths = if needs_stack { stack_depths() } else { None };
        add_probes(program, parts, edits, Form { stack_depths: stack_depths.as_deref(), ..form }, is_selected);
        Ok(())
    }

    fn add_program(
        &mut self,
        name: &str,
        program: &[Insn],
        (lines, functions): (Vec<LineRecord>, Vec<(usize, String)>),
    ) -> Result<usize> {
        let (first, parts) = (self.exists.len(), Parts::of(program));
        let count = first + parts.count;
        if count > MOST_PARTS {
            return Err(Error::failed(
                format!("cannot measure the coverage of {name}"),
                format!("it has more than {MOST_PARTS} blocks and edges"),
            ));
        }
        self.programs.push(Code { name: name.to_owned(), lines, functions, length: program.len(), parts, first });
        self.exists.resize(count, false);
        self.packets.resize(count, 0);
        self.path.resize(count.div_ceil(BITS), 0);
        Ok(self.programs.len() - 1)
    }

    /// Notes which parts the verifier has left in the loaded programs of this load.
    pub fn find_kept(&mut self, loaded: &[BorrowedFd<'_>]) -> Result<()> {
        let about = |e| Error::os("cannot read the loaded program", e);
        let own = info::map(self.map.as_fd()).map_err(about)?.id as i32;
        for program in loaded {
            let instructions = info::instructions(*program).map_err(about)?;
            for at in starts(&instructions) {
                let one = instructions[at];
                if one.code == op::LOAD_IMMEDIATE
                    && one.src() == op::MAP_VALUE
                    && one.imm == own
                    && let Some(exists) = self.exists.get_mut(instructions[at + 1].imm as usize)
                {
                    *exists = true;
                }
            }
        }
        Ok(())
    }

    /// Reads and clears the probes after a run. Returns the path of the packet.
    pub fn collect(&mut self, counts: bool) -> Path {
        let mut path = digest::BASIS;
        for (number, bits) in self.path.iter_mut().enumerate() {
            *bits = 0;
            for first in (0..BITS).step_by(WORD) {
                let word = self.memory.word(number * BITS + first);
                let bytes = word.load(Ordering::Relaxed);
                if bytes != 0 {
                    word.store(0, Ordering::Relaxed);
                    *bits |= bits_of(bytes) << first;
                }
            }
            if counts {
                each_bit(*bits, |bit| self.packets[number * BITS + bit] += 1);
            }
            path = digest::add(path, *bits);
        }
        path
    }

    /// Counts the last packet. Returns the number of blocks that no counted packet had reached.
    pub fn count_path(&mut self) -> u64 {
        let mut new = 0;
        for code in &self.programs {
            let blocks = code.first..code.first + code.parts.blocks.len();
            new += blocks.filter(|block| self.packets[*block] == 0 && self.is_in_path(*block)).count() as u64;
        }
        for (number, bits) in self.path.iter().enumerate() {
            each_bit(*bits, |bit| self.packets[number * BITS + bit] += 1);
        }
        new
    }

    fn is_in_path(&self, part: usize) -> bool {
        self.path[part / BITS] >> (part % BITS) & 1 != 0
    }

    fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        self.programs.iter().flat_map(Code::blocks)
    }

    /// Returns the lines that the last packet reached, in the order of the program.
    pub fn lines_of_path(&self) -> Vec<SourceLine> {
        let mut lines: Vec<SourceLine> = Vec::new();
        for block in self.blocks().filter(|block| self.is_in_path(block.part)) {
            for line in block.lines() {
                let line = SourceLine { file: line.file.clone(), line: line.line, text: line.text.clone() };
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        lines
    }

    fn share(&self, parts: impl IntoIterator<Item = usize>) -> Share {
        parts.into_iter().filter(|part| self.exists[*part]).fold(Share::default(), |share, part| Share {
            reached: share.reached + u64::from(self.packets[part] > 0),
            total: share.total + 1,
        })
    }

    /// Returns what the counted packets reached.
    pub fn coverage(&self) -> Coverage {
        let mut files: Vec<SourceCoverage> = Vec::new();
        for ((file, _), line) in self.lines() {
            if files.last().is_none_or(|last| last.name != file) {
                files.push(SourceCoverage { name: file.to_owned(), lines: Vec::new() });
            }
            if let Some(file) = files.last_mut() {
                file.lines.push(line);
            }
        }
        let lines = files.iter().flat_map(|file| &file.lines);
        let lines = Share {
            reached: lines.clone().filter(|line| line.packets > 0).count() as u64,
            total: lines.count() as u64,
        };
        Coverage {
            blocks: self.share(self.blocks().map(|block| block.part)),
            edges: self.share(self.programs.iter().flat_map(Code::edges).map(|(_, part)| part)),
            lines,
            functions: self.programs.iter().flat_map(|code| self.functions(code)).collect(),
            files,
        }
    }

    /// Returns the lines with existing blocks, by file and number.
    fn lines(&self) -> BTreeMap<(&str, u32), LineCoverage> {
        let mut parts: BTreeMap<(&str, u32), (&str, BTreeSet<usize>)> = BTreeMap::new();
        let mut branches = self.branches();
        for block in self.blocks().filter(|block| self.exists[block.part]) {
            for line in block.lines() {
                let (_, parts) = parts.entry((&line.file, line.line)).or_insert_with(|| (&line.text, BTreeSet::new()));
                parts.insert(block.part);
            }
        }
        let line = |(place, (text, blocks)): ((_, u32), (&str, BTreeSet<usize>))| {
            let packets = blocks.iter().map(|block| self.packets[*block]).max().unwrap_or(0);
            let branches = branches.remove(&place).unwrap_or_default();
            (
                place,
                LineCoverage { line: place.1, text: text.to_owned(), packets, blocks: self.share(blocks), branches },
            )
        };
        parts.into_iter().map(line).collect()
    }

    /// Returns the conditional jumps of lines, in the order of the programs. Jumps that the verifier removed have no way.
    fn branches(&self) -> BTreeMap<(&str, u32), Vec<BranchCoverage>> {
        let mut branches: BTreeMap<_, Vec<BranchCoverage>> = BTreeMap::new();
        for code in &self.programs {
            let edges: Vec<(&Edge, usize)> = code.edges().filter(|(edge, _)| edge.way != Way::Only).collect();
            for ways in edges.chunk_by(|(one, _), (other, _)| one.last == other.last) {
                let packets = |way| {
                    let exists = ways.iter().find(|(edge, part)| edge.way == way && self.exists[*part]);
                    exists.map(|(_, part)| self.packets[*part])
                };
                let branch = BranchCoverage {
                    packets: self.packets[code.first + ways[0].0.from],
                    taken: packets(Way::Taken),
                    not_taken: packets(Way::NotTaken),
                };
                if branch.ways().next().is_some()
                    && let Some(line) = code.line_at(ways[0].0.last)
                {
                    branches.entry((line.file.as_str(), line.line)).or_default().push(branch);
                }
            }
        }
        branches
    }

    /// Returns the functions of a program with existing blocks.
    fn functions(&self, code: &Code) -> Vec<FunctionCoverage> {
        let whole = [(0, code.name.clone())];
        let known = if code.functions.is_empty() { &whole[..] } else { &code.functions };
        let ends = known.iter().skip(1).map(|(next, _)| *next).chain([usize::MAX]);
        let function = |((start, name), end): (&(usize, String), usize)| {
            let is_inside = |at: usize| (*start..end).contains(&at);
            let blocks: Vec<usize> =
                code.blocks().filter(|block| is_inside(block.start)).map(|block| block.part).collect();
            let edges = code.edges().filter(|(edge, _)| is_inside(edge.last)).map(|(_, part)| part);
            let line = code.lines.iter().find(|line| line.instruction >= *start && line.line > 0);
            let first = blocks.iter().find(|block| self.exists[**block])?;
            Some(FunctionCoverage {
                name: name.clone(),
                file: line.map(|line| line.file.clone()),
                line: line.map(|line| line.line),
                packets: self.packets[*first],
                edges: self.share(edges),
                blocks: self.share(blocks),
            })
        };
        known.iter().zip(ends).filter_map(function).collect()
    }
}

/// Returns one bit for each byte of a word in memory order. Each byte is 0 or 1.
fn bits_of(bytes: u64) -> u64 {
    // Each byte's bit is moved to the highest byte, at the position of the byte; no sum of two bits gets there.
    bytes.to_le().wrapping_mul(0x0102_0408_1020_4080) >> (u64::BITS - u8::BITS)
}

fn each_bit(mut bits: u64, mut call: impl FnMut(usize)) {
    while bits != 0 {
        call(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}
