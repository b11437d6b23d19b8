//! Filters loaded into the kernel as whole programs, and run there.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use trawl_bpf::loading;
use trawl_bpf::program::{self, HAS_FRAGS, LoadOptions};
use trawl_bpf::{map, test_run};
use trawl_capture::filter::Block;
use trawl_ebpf::{Insn, op};
use trawl_filter::lower::standalone::{Verdicts, verdicts};
use trawl_filter::{Classic, Hook, Quick, Target, lower, lower_quick, standalone};
use trawl_sys::{Error, Result};

/// Number of bytes that the copy-reading variant sees.
pub const BUFFER: u16 = 512;

/// Returns false, with a message, without root.
pub fn root_or_skip() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        println!("SKIPPED: requires root, to load programs into the kernel");
    }
    root
}

/// A filter in the kernel.
pub struct Loaded {
    program: OwnedFd,
    target: Target,
    matched: u32,
    /// Buffer of the copy-reading variant, which must outlive its program.
    _buffer: Option<OwnedFd>,
    /// Tables of the program.
    _tables: Block,
}

impl Loaded {
    pub fn new(classic: &Classic, target: Target) -> Result<Self> {
        Self::with_flags(classic, target, 0)
    }

    /// Loads a filter with additional load flags.
    pub fn with_flags(classic: &Classic, target: Target, more: u32) -> Result<Self> {
        let failed = |why: &dyn std::fmt::Display| Error::failed("cannot lower", why);
        let tables = Block::new(&lower(classic, &target).map_err(|e| failed(&e))?)?;
        let buffer = match target.hook {
            Hook::Copy { buffer } => Some(map::create_mmapable_array("buffer", buffer.into(), 1)?),
            _ => None,
        };
        let whole = standalone(&tables, &target, buffer.as_ref().map(AsRawFd::as_raw_fd))
            .ok_or_else(|| failed(&"no buffer"))?;
        let whole = [quick_first(classic, &target), whole].concat();
        let (kind, flags) = match target.hook {
            Hook::Xdp => (program::XDP, HAS_FRAGS),
            _ => (program::SCHED_CLS, 0),
        };
        let options = LoadOptions { flags: flags | more, ..LoadOptions::new("trawl_oracle", kind) };
        Ok(Self {
            program: loading::load(&whole, &options)?,
            target,
            matched: verdicts(&target).matched,
            _buffer: buffer,
            _tables: tables,
        })
    }

    /// Returns true if the kernel accepts this frame for a test run. It refuses frames shorter than an Ethernet header;
    /// at tc also bare Ethernet headers, and (since 6.18) frames too short for the IP header that their type announces.
    /// The filter crate's tests compare those in user space.
    pub fn can_ask(&self, frame: &[u8]) -> bool {
        let least = match (self.target.hook, frame.get(12..14)) {
            (Hook::Xdp, _) => 14,
            (_, Some([0x08, 0x00])) => 14 + 20,
            (_, Some([0x86, 0xdd])) => 14 + 40,
            _ => 15,
        };
        frame.len() >= least
    }

    /// Returns true if the kernel lets a test run put a short frame into fragments.
    pub fn can_fragment(&self) -> bool {
        test_run::xdp(self.program.as_fd(), &[0; 64], Some(32), 1).is_ok()
    }

    /// Runs the filter in the kernel, with everything after `linear` in fragments, if given.
    pub fn ask(&self, frame: &[u8], linear: Option<usize>) -> bool {
        let program = self.program.as_fd();
        let answer = match self.target.hook {
            Hook::Xdp => test_run::xdp(program, frame, linear, 1),
            _ => test_run::tc(program, frame, 1),
        };
        let answer =
            answer.unwrap_or_else(|e| panic!("{:?}, {} bytes, {linear:?} linear: {e}", self.target, frame.len()));
        answer.value == self.matched
    }
}

/// Returns instructions before a whole program at XDP that answer if the filter's quick version knows the answer, as in
/// the taps' programs.
fn quick_first(classic: &Classic, target: &Target) -> Vec<Insn> {
    let Some(quick) = lower_quick(classic, target) else {
        return Vec::new();
    };
    let Verdicts { matched, unmatched } = verdicts(target);
    let answer = |outcome: Quick, verdict: u32| {
        let skip = Insn::new(op::JMP | op::JNE | op::K, 0, 0, 2, outcome as i32);
        [skip, op::mov32_imm(0, verdict), op::exit()]
    };
    let mut program = vec![op::load(op::W, 2, 1, 0), op::load(op::W, 3, 1, 4)];
    program.extend(quick);
    program.extend(answer(Quick::Matched, matched));
    program.extend(answer(Quick::Rejected, unmatched));
    program
}
