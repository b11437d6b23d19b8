//! The ways to record packets, each as one run in a lab of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use trawl_filter::ebpf::op;
use trawl_filter::lower::standalone::standalone;
use trawl_filter::lower::{Target, lower};
use trawl_kernel::bpf::object::{self, Plain};
use trawl_kernel::bpf::program::{self, LoadOptions};
use trawl_kernel::bpf::{map, splice};
use trawl_kernel::process;
use trawl_kernel::{Error, Result};

use super::Plan;
use super::count::{self, Scratch};
use super::peer::{Memory, Peer};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{Engine, Job, Sent, Variation, send};
use trawl_lab::{Pair, PairOptions, frame};

const XDP_DROP: u32 = 1;

/// A way to record packets, or what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    Bare,
    /// A hook and the clock, and nothing recorded: what no recorder at a hook can do without.
    Clock,
    Trawl,
    /// trawl beside a program that was not made for it, by fentry and fexit.
    Traced,
    /// xdpcap's way: a filter program of its own, reached by a tail call.
    TailCall,
    Tcpdump,
}

/// What the runs of one group have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub plan: &'a Plan,
    pub filter: Option<&'a str>,
    pub variation: Option<Variation>,
}

/// One mechanism's run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub mechanism: &'static str,
    pub repetition: u32,
    pub sent: u64,
    /// Frames that the interface refused for want of room, and that were sent once more.
    pub sent_again: u64,
    pub seconds: f64,
    /// Frames a second that went through the interface.
    pub sent_per_second: f64,
    /// How much of its CPU the sender had: clearly less than 1 at full speed means that others took some.
    pub sender_cpu: f64,
    /// Frames a second of the sender's CPU time, which is also the XDP program's: on a machine with other work this
    /// tells more than the rate. What the kernel gave to its own thread for packets (ksoftirqd) is not in it.
    pub sent_per_cpu_second: f64,
    /// Frames that the filter should let through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
    /// Counted in the file itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_per_second: Option<f64>,
    /// Of the expected ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through_of_bare: Option<f64>,
    /// The same by CPU time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time_of_bare: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_of_bare: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// User and system time of the capture program while frames were sent, of one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_cpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The capture's own account at its end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub says: String,
}

impl Run {
    pub(super) fn bare(
        mechanism: Mechanism,
        repetition: u32,
        sent: u64,
        seconds: f64,
        sent_per_second: f64,
    ) -> Self {
        Self {
            mechanism: mechanism.name(),
            repetition,
            sent,
            sent_again: 0,
            seconds,
            sent_per_second,
            sender_cpu: 0.0,
            sent_per_cpu_second: 0.0,
            expected: None,
            recorded: None,
            recorded_per_second: None,
            missing: None,
            through_of_bare: None,
            cpu_time_of_bare: None,
            recorded_of_bare: None,
            file_bytes: None,
            capture_cpu: None,
            memory: None,
            says: String::new(),
        }
    }

    fn count(&mut self, recorded: u64, expected: u64) {
        self.recorded = Some(recorded);
        self.recorded_per_second = Some(recorded as f64 / self.seconds);
        self.expected = Some(expected);
        self.missing = Some(expected.saturating_sub(recorded));
    }
}

impl Mechanism {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare drop",
            Self::Clock => "hook+clock",
            Self::Trawl => "trawl",
            Self::Traced => "tracing",
            Self::TailCall => "tail call",
            Self::Tcpdump => "tcpdump",
        }
    }

    /// What becomes of the frames.
    pub fn fate(self) -> &'static str {
        match self {
            Self::Bare => "an XDP program drops them; nothing is recorded",
            Self::Clock => {
                "an XDP program with a hook map jumps to one that reads the clock once and drops them; nothing is \
                 recorded: the least that any recorder at a hook takes"
            }
            Self::Trawl => {
                "an XDP program with a hook map drops them; trawl records at the hook, to a file"
            }
            Self::Traced => {
                "an XDP program without a hook drops them; trawl records at its exit by a tracing program, to a file"
            }
            Self::TailCall => {
                "as xdpcap does it: an XDP program with a hook map jumps to a program that runs the filter (trawl's \
                 instructions for it) and drops them; matches are not handed on, so this is the most it could reach"
            }
            Self::Tcpdump => {
                "no XDP program: they go up the stack, past tcpdump's socket (its default buffer, the filter on the \
                 socket), to a host that has no use for them; only those that came in count"
            }
        }
    }

    pub fn run(self, setting: &Setting<'_>, repetition: u32) -> Result<Run> {
        let lab = Pair::new(&PairOptions::default())?;
        match self {
            Self::Bare => {
                let _program = Loaded::native(Does::Drop, &lab.b)?;
                sent(self, repetition, setting, &lab)
            }
            Self::Clock => {
                let program = Loaded::native(Does::DropWithHook, &lab.b)?;
                let clock = Plain::load(object::LAB, Does::ReadClock.name())?;
                put_behind(&program, clock.program())?;
                sent(self, repetition, setting, &lab)
            }
            Self::TailCall => {
                let program = Loaded::native(Does::DropWithHook, &lab.b)?;
                let filter = tail_called_filter(setting.filter.unwrap_or_default())?;
                put_behind(&program, filter.as_fd())?;
                sent(self, repetition, setting, &lab)
            }
            Self::Trawl | Self::Traced => {
                let (does, tap) = match self {
                    Self::Traced => (Does::Drop, "xdp"),
                    _ => (Does::DropWithHook, "hook"),
                };
                let _program = Loaded::native(does, &lab.b)?;
                let file = Scratch::new(&setting.plan.directory, "trawl.pcapng")?;
                let mut command = Command::new(&setting.plan.trawl);
                trawl_capture(
                    &mut command,
                    &lab,
                    setting.plan,
                    tap,
                    file.path(),
                    setting.filter,
                );
                let peer = Peer::start(
                    self.name(),
                    &mut command,
                    setting.plan.capture_cpu,
                    "capturing on",
                )?;
                let mut run = self.captured(repetition, setting, &lab, peer, file.path())?;
                run.count(count::pcapng(file.path())?, setting.expected(run.sent));
                Ok(run)
            }
            Self::Tcpdump => {
                let file = Scratch::new(&setting.plan.directory, "tcpdump.pcap")?;
                let mut command = Command::new("ip");
                command.args([
                    "netns",
                    "exec",
                    &lab.b.name,
                    "tcpdump",
                    "-n",
                    "-i",
                    &lab.b.interface,
                ]);
                // As root, since it would not be allowed to write to most directories.
                command
                    .args(["-Z", "root", "-w"])
                    .arg(file.path())
                    .args(setting.filter);
                let peer = Peer::start(
                    self.name(),
                    &mut command,
                    setting.plan.capture_cpu,
                    "listening on",
                )?;
                let mut run = self.captured(repetition, setting, &lab, peer, file.path())?;
                let recorded = count::addressed_to(file.path(), lab.b.mac)?;
                run.count(recorded, setting.expected(run.sent));
                Ok(run)
            }
        }
    }

    fn captured(
        self,
        repetition: u32,
        setting: &Setting<'_>,
        lab: &Pair,
        peer: Peer,
        file: &Path,
    ) -> Result<Run> {
        let before = peer.cpu_seconds();
        let mut run = sent(self, repetition, setting, lab)?;
        run.capture_cpu = Some((peer.cpu_seconds() - before) / run.seconds);
        if self == Self::Tcpdump {
            // It would lose what the kernel has not handed over yet.
            peer.wait_until_idle();
        }
        run.memory = peer.memory();
        run.says = peer
            .finish()?
            .lines()
            .map(str::trim)
            .collect::<Vec<_>>()
            .join("; ");
        let size = std::fs::metadata(file)
            .map_err(|e| Error::os(format!("cannot look at {}", file.display()), e))?;
        run.file_bytes = Some(size.len());
        Ok(run)
    }
}

impl Setting<'_> {
    /// How many of the sent frames are to be recorded.
    fn expected(&self, sent: u64) -> u64 {
        self.variation
            .map_or(sent, |variation| sent / u64::from(variation.every))
    }
}

/// Puts a program behind a hook's drops.
pub(super) fn put_behind(hooked: &Loaded, program: BorrowedFd<'_>) -> Result<()> {
    let what = "cannot put a program into the hook map";
    let hook = hooked
        .hook()
        .ok_or_else(|| Error::failed(what, "there is none"))?;
    map::set_program(hook, XDP_DROP, program).map_err(|e| Error::os(what, e))
}

/// The command that records what passes the filter at a lab's XDP program.
pub fn trawl_capture(
    command: &mut Command,
    lab: &Pair,
    plan: &Plan,
    tap: &str,
    file: &Path,
    filter: Option<&str>,
) {
    command
        .args([
            "capture",
            "--netns",
            &lab.b.name,
            "-i",
            &lab.b.interface,
            "--tap",
            tap,
        ])
        .args(["--ring-size", &plan.ring_size, "-w"])
        .arg(file)
        .args(filter);
}

/// The filter as a program of its own that drops whatever it finds.
fn tail_called_filter(expression: &str) -> Result<OwnedFd> {
    let what = || format!("cannot build a program for {expression:?}");
    let target = Target::xdp();
    let classic = trawl_filter::compile(expression, &trawl_filter::Options::default())
        .map_err(|e| Error::failed(what(), e))?;
    let lowered = lower(&classic, &target).map_err(|e| Error::failed(what(), e))?;
    let mut whole = standalone(&lowered.insns, &target, None)
        .ok_or_else(|| Error::failed(what(), "there is none for XDP"))?;
    // Both of its ends set the verdict: what passes is to be dropped as well.
    for instruction in &mut whole {
        if *instruction
            == op::mov32_imm(
                0,
                trawl_filter::lower::standalone::verdicts(&target).matched,
            )
        {
            *instruction = op::mov32_imm(0, XDP_DROP);
        }
    }
    let words: Vec<u64> = whole
        .iter()
        .map(|instruction| instruction.to_u64())
        .collect();
    program::load(
        &splice::from_words(&words),
        &LoadOptions {
            name: "lab_filter",
            kind: program::XDP,
            license: "GPL",
            expected_attach_type: program::ATTACH_XDP,
            flags: program::HAS_FRAGS,
            ifindex: 0,
            traced: None,
        },
    )
}

fn sent(mechanism: Mechanism, repetition: u32, setting: &Setting<'_>, lab: &Pair) -> Result<Run> {
    let own = || process::cpu_seconds(std::process::id());
    let before = own();
    let sent = send_all(setting, lab)?;
    let cpu_seconds = own() - before;
    let seconds = sent.took.as_secs_f64();
    Ok(Run {
        sent_again: sent.again,
        sender_cpu: cpu_seconds / seconds,
        sent_per_cpu_second: sent.packets as f64 / cpu_seconds.max(f64::EPSILON),
        ..Run::bare(
            mechanism,
            repetition,
            sent.packets,
            seconds,
            sent.per_second(),
        )
    })
}

fn send_all(setting: &Setting<'_>, lab: &Pair) -> Result<Sent> {
    let Plan {
        frames,
        frame_bytes,
        rate,
        sender_cpu,
        ..
    } = *setting.plan;
    send(&Job {
        namespace: Some(&lab.a.namespace),
        interface: &lab.a.interface,
        frames: &[frame::udp_from(lab.a.mac, frame_bytes)?],
        count: frames,
        engine: setting.variation.map_or(Engine::Live, Engine::LiveVaried),
        rate,
        cpu: Some(sender_cpu),
    })
}
