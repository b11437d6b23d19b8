//! The parts of a program that packets reach: one byte for each basic block, which the block sets when it begins.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use trawl_bpf::prepared::LineRecord;
use trawl_bpf::{info, map};
use trawl_ebpf::Edits;
use trawl_ebpf::coverage::add_probes;
use trawl_ebpf::{Insn, op, starts};
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result};

use crate::digest;
use crate::report::{Coverage, FunctionCoverage, LineCoverage, Share, SourceCoverage, SourceLine};

/// Room for blocks. The kernel accepts a million instructions, but no program with nearly as many blocks.
const MOST_BLOCKS: usize = 1 << 16;
const WORD: usize = size_of::<u64>();

/// A basic block of one of the programs.
#[derive(Clone, Debug)]
struct Block {
    /// Position of the program.
    program: usize,
    start: usize,
    end: usize,
    /// False if the verifier removed it, since it is never reached with these constants.
    exists: bool,
}

/// One of the programs that are tested together.
#[derive(Debug)]
struct Code {
    name: String,
    lines: Vec<LineRecord>,
    functions: Vec<(usize, String)>,
}

/// The probes in the blocks of a program, and of those that it can jump to.
#[derive(Debug)]
pub(crate) struct Probes {
    map: OwnedFd,
    memory: Mapping,
    always_on_stack: bool,
    programs: Vec<Code>,
    blocks: Vec<Block>,
    /// Packets that reached each block.
    packets: Vec<u64>,
    /// Blocks that the last packet reached, one bit for each.
    path: Vec<u64>,
}

/// A set of blocks, by a number that other sets do not have.
pub(crate) type Path = u64;

impl Probes {
    pub fn new(always_on_stack: bool) -> Result<Self> {
        let map = map::create_mmapable_array("trawl_probes", MOST_BLOCKS as u32, 1)?;
        let memory = Mapping::of_map(map.as_fd(), MOST_BLOCKS)?;
        Ok(Self {
            map,
            memory,
            always_on_stack,
            programs: Vec::new(),
            blocks: Vec::new(),
            packets: Vec::new(),
            path: Vec::new(),
        })
    }

    /// Adds a probe to each block of a program. `stack_depths` is called only if a probe needs the stack, since the
    /// verifier has to measure it.
    pub fn add(
        &mut self,
        name: &str,
        program: &[Insn],
        edits: &mut Edits,
        stack_depths: impl FnOnce() -> Option<Vec<u32>>,
        (lines, functions): (Vec<LineRecord>, Vec<(usize, String)>),
    ) -> Result<()> {
        let first = self.blocks.len();
        let map = self.map.as_raw_fd();
        let add = |edits: &mut Edits, stack_depths: Option<&[u32]>| {
            add_probes(program, edits, map, first as u32, stack_depths, |_| true, self.always_on_stack)
        };
        let needs_stack = self.always_on_stack || !add(&mut Edits::default(), None).unseen.is_empty();
        let stack_depths = if needs_stack { stack_depths() } else { None };
        let probes = add(edits, stack_depths.as_deref());
        if first + probes.blocks.len() > MOST_BLOCKS {
            return Err(Error::failed(
                format!("cannot measure the coverage of {name}"),
                format!("it has more than {MOST_BLOCKS} blocks"),
            ));
        }
        let ends = probes.blocks.iter().skip(1).copied().chain([program.len()]);
        let program = self.programs.len();
        for (number, (start, end)) in probes.blocks.iter().copied().zip(ends).enumerate() {
            let exists = !probes.unseen.contains(&number);
            self.blocks.push(Block { program, start, end, exists });
        }
        self.programs.push(Code { name: name.to_owned(), lines, functions });
        self.packets.resize(self.blocks.len(), 0);
        self.path.resize(self.blocks.len().div_ceil(u64::BITS as usize), 0);
        Ok(())
    }

    /// Leaves out the blocks that the verifier removed from the loaded programs.
    pub fn find_removed(&mut self, loaded: &[BorrowedFd<'_>]) -> Result<()> {
        let about = |e| Error::os("cannot read the loaded program", e);
        let own = info::map(self.map.as_fd()).map_err(about)?.id as i32;
        let mut kept = vec![false; self.blocks.len()];
        for program in loaded {
            let instructions = info::instructions(*program).map_err(about)?;
            for at in starts(&instructions) {
                let one = instructions[at];
                if one.code == op::LOAD_IMMEDIATE
                    && one.src() == op::MAP_VALUE
                    && one.imm == own
                    && let Some(kept) = kept.get_mut(instructions[at + 1].imm as usize)
                {
                    *kept = true;
                }
            }
        }
        for (block, kept) in self.blocks.iter_mut().zip(kept) {
            block.exists &= kept;
        }
        Ok(())
    }

    /// Reads and clears the probes after a run. Returns the path of the packet.
    pub fn collect(&mut self, counts: bool) -> Path {
        self.path.fill(0);
        for at in (0..self.blocks.len()).step_by(WORD) {
            let word = self.memory.word(at);
            let bytes = word.load(std::sync::atomic::Ordering::Relaxed);
            if bytes == 0 {
                continue;
            }
            word.store(0, std::sync::atomic::Ordering::Relaxed);
            for (byte, _) in bytes.to_ne_bytes().iter().enumerate().filter(|(_, byte)| **byte != 0) {
                let block = at + byte;
                if block >= self.blocks.len() {
                    continue;
                }
                self.packets[block] += u64::from(counts);
                self.path[block / u64::BITS as usize] |= 1 << (block % u64::BITS as usize);
            }
        }
        self.path.iter().copied().fold(digest::BASIS, digest::add)
    }

    /// Counts the last packet. Returns the number of blocks that no counted packet had reached.
    pub fn count_path(&mut self) -> u64 {
        let mut new = 0;
        for (block, packets) in self.packets.iter_mut().enumerate() {
            if self.path[block / u64::BITS as usize] >> (block % u64::BITS as usize) & 1 != 0 {
                new += u64::from(*packets == 0);
                *packets += 1;
            }
        }
        new
    }

    /// Returns the lines that the last packet reached, in the order of the program.
    pub fn lines_of_path(&self) -> Vec<SourceLine> {
        let reached = |block: &usize| self.path[block / u64::BITS as usize] >> (block % u64::BITS as usize) & 1 != 0;
        let mut lines: Vec<SourceLine> = Vec::new();
        for block in (0..self.blocks.len()).filter(reached) {
            for line in self.lines_of(block) {
                let line = SourceLine { file: line.file.clone(), line: line.line, text: line.text.clone() };
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        lines
    }

    fn lines_of(&self, block: usize) -> impl Iterator<Item = &LineRecord> {
        let Block { program, start, end, .. } = self.blocks[block];
        let lines = &self.programs[program].lines;
        let first = lines.partition_point(|line| line.instruction <= start).saturating_sub(1);
        let last = lines.partition_point(|line| line.instruction < end);
        // The compiler names line 0 for instructions of its own.
        lines[first.min(last)..last].iter().filter(|line| line.line > 0)
    }

    /// Returns what the counted packets reached.
    pub fn coverage(&self) -> Coverage {
        let is_reached = |block: &usize| self.packets[*block] > 0;
        let existing: Vec<usize> = (0..self.blocks.len()).filter(|block| self.blocks[*block].exists).collect();
        let share = |blocks: &[usize]| Share {
            reached: blocks.iter().filter(|block| is_reached(block)).count() as u64,
            total: blocks.len() as u64,
        };
        let mut lines: BTreeMap<(&str, u32), (&str, Vec<usize>)> = BTreeMap::new();
        for block in &existing {
            for line in self.lines_of(*block) {
                let (_, blocks) =
                    lines.entry((&line.file, line.line)).or_insert_with(|| (line.text.as_str(), Vec::new()));
                if !blocks.contains(block) {
                    blocks.push(*block);
                }
            }
        }
        let mut files: Vec<SourceCoverage> = Vec::new();
        for ((file, line), (text, blocks)) in lines {
            if files.last().is_none_or(|last| last.name != file) {
                files.push(SourceCoverage { name: file.to_owned(), lines: Vec::new() });
            }
            let packets = blocks.iter().map(|block| self.packets[*block]).max().unwrap_or(0);
            let line = LineCoverage { line, text: text.to_owned(), packets, blocks: share(&blocks) };
            files.last_mut().into_iter().for_each(|file| file.lines.push(line.clone()));
        }
        let lines = files.iter().flat_map(|file| &file.lines);
        let lines = Share {
            reached: lines.clone().filter(|line| line.packets > 0).count() as u64,
            total: lines.count() as u64,
        };
        let functions = self.functions(&existing).into_iter().map(|(name, line, blocks)| FunctionCoverage {
            name,
            file: line.map(|line| line.file.clone()),
            line: line.map(|line| line.line),
            packets: blocks.first().map_or(0, |block| self.packets[*block]),
            blocks: share(&blocks),
        });
        Coverage { blocks: share(&existing), lines, functions: functions.collect(), files }
    }

    /// Returns the functions with blocks, and the records of their first lines.
    fn functions(&self, existing: &[usize]) -> Vec<(String, Option<&LineRecord>, Vec<usize>)> {
        let mut functions = Vec::new();
        for (number, code) in self.programs.iter().enumerate() {
            let whole = vec![(0, code.name.clone())];
            let known = if code.functions.is_empty() { &whole } else { &code.functions };
            for (at, (start, name)) in known.iter().enumerate() {
                let end = known.get(at + 1).map_or(usize::MAX, |(next, _)| *next);
                let blocks = existing.iter().copied().filter(|block| {
                    let block = &self.blocks[*block];
                    block.program == number && (*start..end).contains(&block.start)
                });
                let blocks: Vec<usize> = blocks.collect();
                let line = code.lines.iter().find(|line| line.instruction >= *start && line.line > 0);
                if !blocks.is_empty() {
                    functions.push((name.clone(), line, blocks));
                }
            }
        }
        functions
    }
}
