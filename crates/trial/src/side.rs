//! One of the programs of a trial, loaded with its own maps, clocks and probes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use trawl_bpf::doorbell::Doorbell;
use trawl_bpf::loader::LoadedFile;
use trawl_bpf::prepared::Prepared;
use trawl_bpf::test_run::{Arrival, Outcome, Runner, TcContext};
use trawl_bpf::{info, map};
use trawl_ebpf::{Edits, helper, op, starts};
use trawl_packet::verdict::VerdictKind;
use trawl_program::load::Source;
use trawl_sys::{Error, Result};

use crate::clock::{Clock, Moment, Replaced};
use crate::coverage::Probes;
use crate::fuzz;
use crate::limits;
use crate::maps::{self, Maps};
use crate::report::Tested;
use crate::subject::Subject;

/// Preparation of a program for a trial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation {
    pub calls: Replaced,
    pub probes: ProbeKind,
}

/// Probes in the blocks and edges of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    None,
    /// Probes that use the stack only if all registers are in use.
    Frugal,
    /// Probes that always use the stack.
    #[cfg(test)]
    OnStack,
    /// Probes of which each of a number of loads has a part, though one load could have them all.
    #[cfg(test)]
    InLoads(usize),
}

impl ProbeKind {
    pub fn always_use_stack(self) -> bool {
        match self {
            Self::None | Self::Frugal => false,
            #[cfg(test)]
            Self::OnStack => true,
            #[cfg(test)]
            Self::InLoads(_) => false,
        }
    }

    /// Returns the smallest number of loads.
    pub fn loads(self) -> usize {
        match self {
            Self::None | Self::Frugal => 1,
            #[cfg(test)]
            Self::OnStack => 1,
            #[cfg(test)]
            Self::InLoads(loads) => loads,
        }
    }
}

/// A program that is run on packets.
#[derive(Debug)]
pub(crate) struct Side {
    pub tested: Tested,
    pub kind: VerdictKind,
    pub maps: Maps,
    pub clock: Clock,
    /// The probes of this load and of the others.
    pub probes: Option<Probes>,
    /// Further loads of the same program, with the other probes and with their own maps.
    pub others: Vec<Side>,
    /// The packet after the last run.
    pub left: Left,
    /// Constants with which the program compares.
    pub constants: Vec<i32>,
    program: OwnedFd,
    /// Keeps the maps and the other programs.
    pub file: LoadedFile,
    /// Objects that the maps lose when nobody holds them.
    pub held: Vec<OwnedFd>,
    /// Ring buffers, which must be emptied lest they fill up.
    buffers: Vec<Doorbell>,
    /// Properties of the kernel that the program's results depend on.
    pub notes: Vec<String>,
    /// The map of each call that redirects packets; `None` if the call names an interface.
    targets: Vec<Option<Rc<str>>>,
    /// True if a packet may have metadata after a run.
    adds_metadata: bool,
    runner: Runner,
}

/// The target of a redirected packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The map by whose key it was named; `None` for an interface.
    pub map: Option<Rc<str>>,
    pub key: u64,
}

/// A packet after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub kind: VerdictKind,
    pub verdict: u32,
    /// The metadata and the packet.
    pub bytes: Vec<u8>,
    pub metadata: u32,
    pub target: Option<Target>,
    /// Values that a tc program sets apart from the packet's bytes; zeroes for XDP.
    pub context: TcContext,
}

impl Side {
    /// Loads a program of an object file, after a function has set it up.
    pub fn load(
        subject: &Subject,
        calls: Replaced,
        mut probes: Option<&mut Probes>,
        set_up: impl FnOnce(&mut Source) -> Result<()>,
    ) -> Result<Self> {
        let (mut source, kind) = subject.open()?;
        set_up(&mut source)?;
        for map in source.maps().iter().filter(|map| maps::is_large(map.kind, map.max_entries)) {
            source.make_mappable(&map.name)?;
        }
        let mut notes = limits::of_kernel_functions(&source.kernel_functions());
        let clock = Clock::new()?;
        let mut targets = Vec::new();
        let mut instructions = 0;
        let mut tag = None;
        let mut adds_metadata = false;
        let mut constants = Vec::new();
        let mut programs = Vec::new();
        let (loaded, name) = source.load_edited(|prepared, names| {
            for name in names {
                let code = prepared.instructions(name)?;
                if instructions == 0 {
                    instructions = code.len();
                    tag = prepared.tag(name);
                    subject.check_tag(tag.as_deref())?;
                }
                adds_metadata |= starts(&code).any(|at| code[at] == op::call(helper::XDP_ADJUST_META));
                constants.extend(fuzz::constants(&code));
                notes.extend(limits::of_helpers(&code));
                let mut edits = Edits::default();
                if let Some(probes) = &mut probes {
                    add_probes(probes, prepared, name, &mut edits)?;
                }
                clock.edit(&code, &mut edits, calls, &mut targets, &prepared.map_names());
                let edited = edits.apply(&code).map_err(|far| {
                    Error::failed(
                        format!("cannot instrument {name}"),
                        format!("the jump at its instruction {} would be too far", far.instruction),
                    )
                })?;
                prepared.replace(name, &edited)?;
            }
            programs = names.to_vec();
            Ok(())
        })?;
        if let Some(probes) = probes {
            let loaded: Vec<BorrowedFd<'_>> = programs.iter().filter_map(|name| loaded.program(name)).collect();
            probes.find_kept(&loaded)?;
        }
        let maps = Maps::open(loaded.maps())?;
        let is_buffer = |fd: &BorrowedFd<'_>| info::map(*fd).is_ok_and(|about| about.kind == map::RINGBUF);
        let buffers = loaded.maps().into_iter().map(|(_, fd)| fd).filter(is_buffer).map(Doorbell::of_map);
        let buffers = buffers.collect::<Result<_>>()?;
        let program = loaded
            .program(&name)
            .ok_or_else(|| Error::failed(format!("cannot run {name}"), "it was left out"))?
            .try_clone_to_owned()
            .map_err(|e| Error::os(format!("cannot hold the program {name}"), e))?;
        let tested = Tested { name, source: subject.label(), instructions, tag };
        let targets = targets.into_iter().map(|map| map.map(Rc::from)).collect();
        Ok(Self {
            tested,
            kind,
            maps,
            clock,
            probes: None,
            others: Vec::new(),
            left: Left::new(kind),
            constants,
            program,
            file: loaded,
            held: Vec::new(),
            buffers,
            notes,
            targets,
            adds_metadata,
            runner: Runner::default(),
        })
    }

    /// Begins the sequence of random numbers again.
    pub fn seed(&self, seed: u64) {
        self.clock.seed(seed);
        self.others.iter().for_each(|other| other.seed(seed));
    }

    /// Brings the maps into their first state.
    pub fn reset(&self) -> Result<()> {
        self.maps.reset()?;
        self.others.iter().try_for_each(Self::reset)
    }

    /// Forgets the first contents of maps that no packet has changed, so that they are not brought back.
    pub fn forget_unchanged(&mut self) -> Result<()> {
        self.maps.forget_unchanged()?;
        self.others.iter_mut().try_for_each(Self::forget_unchanged)
    }

    /// Runs the program on a packet, and notes the outcome in `left`, whose memory is used again. Returns the duration.
    pub fn run(&mut self, packet: &[u8], arrival: Arrival, moment: Moment) -> Result<Duration> {
        for other in &mut self.others {
            other.run(packet, arrival, moment)?;
        }
        self.clock.set_time(moment);
        let run = match self.kind {
            VerdictKind::Xdp => {
                let (runner, program) = (&mut self.runner, self.program.as_fd());
                let needs_context = self.adds_metadata || arrival != Arrival::default();
                let outcome = if needs_context {
                    runner.xdp(program, packet, arrival)
                } else {
                    runner.xdp_without_context(program, packet)
                };
                outcome.map(|outcome| (outcome, TcContext::default()))
            }
            VerdictKind::Tc => self.runner.tc(self.program.as_fd(), packet, moment.wall),
        };
        let (Outcome { value: verdict, bytes, metadata, duration }, context) = run.map_err(|e| {
            Error::os(format!("cannot run {} on a packet of {} bytes", self.tested.name, packet.len()), e)
        })?;
        for buffer in &self.buffers {
            buffer.hush();
        }
        let redirection = self.clock.redirection().filter(|_| is_redirected(self.kind, verdict));
        self.left.target = redirection.map(|redirection| Target {
            map: self.targets.get(redirection.call).cloned().flatten(),
            key: redirection.key,
        });
        self.left.bytes.clear();
        self.left.bytes.extend_from_slice(bytes);
        (self.left.verdict, self.left.metadata, self.left.context) = (verdict, metadata, context);
        Ok(duration)
    }
}

impl AsFd for Side {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

fn is_redirected(kind: VerdictKind, verdict: u32) -> bool {
    kind.name(verdict.into()) == Some("REDIRECT")
}

fn add_probes(probes: &mut Probes, prepared: &Prepared<'_>, name: &str, edits: &mut Edits) -> Result<()> {
    let code = prepared.instructions(name)?;
    // A program that the verifier refuses as it is gets its error when it is loaded.
    let stack_depths = || prepared.stack_depths(name).ok().flatten();
    probes.add(name, &code, edits, stack_depths, || Ok((prepared.lines(name)?, prepared.functions(name)?)))
}

impl Left {
    fn new(kind: VerdictKind) -> Self {
        let context = TcContext::default();
        Self { kind, verdict: 0, bytes: Vec::new(), metadata: 0, target: None, context }
    }

    /// Returns true if somebody gets the packet.
    pub fn leaves(&self) -> bool {
        let name = self.kind.name(self.verdict.into());
        match self.kind {
            VerdictKind::Xdp => matches!(name, Some("PASS" | "TX" | "REDIRECT")),
            VerdictKind::Tc => !matches!(name, Some("SHOT" | "STOLEN" | "QUEUED" | "TRAP")),
        }
    }

    /// Returns the metadata and the packet.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at((self.metadata as usize).min(self.bytes.len()))
    }
}
