//! `guard-rules`: the guard with few and with many rules beside the bare drop, in one run, taking turns with it: does
//! the number of rules cost anything, and how much does the guard cost at all.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::Instant;

use serde::Serialize;
use trawl_attach::Request;
use trawl_bpf::test_run;
use trawl_guard::rule::Ports;
use trawl_guard::{Action, Care, Draft, Guard, Match, Prefix};
use trawl_program::{Installed, Site};
use trawl_sys::{Error, Result, host, process};

use super::Spread;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, sender};

/// Test runs of the program alone, in each turn.
const REPEAT: u32 = 200_000;
const UDP: u8 = 17;
const DISCARD: u16 = 9;
/// Spreads numbers over all there are: Knuth's multiplicative hashing.
const SCATTER: u32 = 2_654_435_761;

#[derive(Clone, Debug)]
pub struct GuardBench {
    pub frames: u64,
    pub frame_bytes: usize,
    pub repetitions: u32,
    /// Sender and program are both on this one.
    pub cpu: usize,
}

/// What drops the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Bare,
    /// The guard with this many source addresses denied, the sender's among them.
    Addresses(u32),
    /// With a protocol and a port in each rule.
    Services(u32),
}

const GUARDED: [Contender; 4] = [
    Contender::Addresses(10),
    Contender::Addresses(10_000),
    Contender::Addresses(100_000),
    Contender::Services(10_000),
];

#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub what: String,
    pub repetition: u32,
    pub sent: u64,
    pub seconds: f64,
    pub dropped_per_second: f64,
    /// Frames a second of the sender's CPU time, which is also the program's.
    pub dropped_per_cpu_second: f64,
    /// One run of the program over and over on one packet, by BPF_PROG_TEST_RUN.
    pub program_ns: f64,
    /// From rules in memory to rules in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules_seconds: Option<f64>,
    /// Of the bare drop's right before it or after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_bare: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_bare_by_cpu_time: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Median {
    pub what: String,
    pub dropped_per_second: Spread,
    pub program_ns: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules_seconds: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_bare: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_bare_by_cpu_time: Option<Spread>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    pub hardware: String,
    pub os: String,
    pub cpus: usize,
    pub load: String,
    pub topology: String,
    pub frame_bytes: usize,
    pub frames: u64,
    pub repetitions: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct GuardResults {
    pub experiment: &'static str,
    pub conditions: Conditions,
    pub runs: Vec<Run>,
    pub medians: Vec<Median>,
    /// Why the experiment is not whole.
    pub failures: Vec<String>,
}

pub fn run(plan: &GuardBench, progress: &mut dyn FnMut(&str)) -> Result<GuardResults> {
    let conditions = Conditions::of(plan);
    let (mut runs, mut failures) = (Vec::new(), Vec::new());
    progress("setting up");
    let mut bare = Stand::new(Contender::Bare, plan)?;
    let mut stands = Vec::new();
    for one in GUARDED {
        match Stand::new(one, plan) {
            Ok(stand) => stands.push(stand),
            Err(why) => failures.push(format!("{} did not run: {why}", one.name())),
        }
    }
    for repetition in 1..=plan.repetitions {
        for stand in &mut stands {
            let label = format!("repetition {repetition}: {}", stand.contender.name());
            progress(&label);
            match pair(&mut bare, stand, plan, repetition) {
                Ok(pair) => runs.extend(pair),
                Err(why) => failures.push(format!("{label} did not run: {why}")),
            }
        }
    }
    for stand in stands {
        if let Err(why) = stand.end() {
            failures.push(why.to_string());
        }
    }
    Ok(GuardResults {
        experiment: "guard-rules",
        conditions,
        medians: std::iter::once(Contender::Bare)
            .chain(GUARDED)
            .filter_map(|one| median(&one.name(), &runs))
            .collect(),
        runs,
        failures,
    })
}

/// The bare drop and one with the guard, right after each other, since machines are not equally fast all the time; who
/// is first changes.
fn pair(
    bare: &mut Stand,
    guarded: &mut Stand,
    plan: &GuardBench,
    repetition: u32,
) -> Result<[Run; 2]> {
    let (bare, mut guarded) = match repetition % 2 {
        0 => {
            let guarded = guarded.flood(plan, repetition)?;
            (bare.flood(plan, repetition)?, guarded)
        }
        _ => (
            bare.flood(plan, repetition)?,
            guarded.flood(plan, repetition)?,
        ),
    };
    guarded.of_bare = Some(guarded.dropped_per_second / bare.dropped_per_second);
    guarded.of_bare_by_cpu_time =
        Some(guarded.dropped_per_cpu_second / bare.dropped_per_cpu_second);
    Ok([bare, guarded])
}

impl Conditions {
    fn of(plan: &GuardBench) -> Self {
        let host = host::describe();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            hardware: host.hardware,
            os: host.os,
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            load: load.trim().to_owned(),
            topology: format!(
                "two hosts joined by a veth; native XDP; live XDP frames of one UDP flow, sender and program on CPU {}",
                plan.cpu
            ),
            frame_bytes: plan.frame_bytes,
            frames: plan.frames,
            repetitions: plan.repetitions,
        }
    }
}

impl Contender {
    fn name(self) -> String {
        match self {
            Self::Bare => "bare drop".to_owned(),
            Self::Addresses(count) => format!("{count} addresses"),
            Self::Services(count) => format!("{count} addresses with protocol and port"),
        }
    }

    /// The sender's address stands in the middle of others.
    fn drafts(self, sender: Ipv4Addr) -> Vec<Draft> {
        let (count, service) = match self {
            Self::Bare => (0, false),
            Self::Addresses(count) => (count, false),
            Self::Services(count) => (count, true),
        };
        let addresses = (0..count).map(|number| match number == count / 2 {
            true => sender,
            false => Ipv4Addr::from_bits(number.wrapping_mul(SCATTER) ^ 1),
        });
        let draft = |address: Ipv4Addr| Draft {
            action: Action::Deny,
            what: Match {
                source: Some(Prefix::host(address.into())),
                protocol: service.then_some(UDP),
                ports: service.then_some(Ports {
                    first: DISCARD,
                    last: DISCARD,
                }),
                ..Match::default()
            },
            rate: None,
            expires: None,
        };
        addresses.map(draft).collect()
    }
}

/// Two hosts, and on the second one what drops the first one's frames.
struct Stand {
    contender: Contender,
    // In this order they go.
    program: Dropping,
    lab: Pair,
    frame: Vec<u8>,
    rules_seconds: Option<f64>,
    /// Frames sent to it, and test runs.
    shown: u64,
}

enum Dropping {
    Bare(Box<Loaded>),
    Guard(Box<(Guard, Site, Installed)>),
}

impl Dropping {
    fn program_ns(&self, frame: &[u8]) -> Result<f64> {
        match self {
            Self::Bare(loaded) => time(loaded.program(), frame),
            Self::Guard(guarded) => time(guarded.2.program()?.as_fd(), frame),
        }
    }
}

impl Stand {
    fn new(contender: Contender, plan: &GuardBench) -> Result<Self> {
        let lab = Pair::new(&PairOptions::default())?;
        let frame = sender::udp_from(lab.a.mac, plan.frame_bytes)?;
        let (program, rules_seconds) = match contender {
            Contender::Bare => (
                Dropping::Bare(Box::new(Loaded::native(Does::Drop, &lab.b)?)),
                None,
            ),
            _ => {
                let guard = Guard::find_or_make(Some(&lab.b.namespace))?;
                let drafts = contender.drafts(lab.a.ipv4);
                let start = Instant::now();
                guard.change(Care::Without, |set| {
                    set.replace_all(drafts);
                    Ok(())
                })?;
                let took = start.elapsed().as_secs_f64();
                let site = Site::find(&format!("{}:{}", lab.b.name, lab.b.interface), None)?;
                let installed =
                    guard.load(&site, None, &Request::default(), false, Care::Without)?;
                (
                    Dropping::Guard(Box::new((guard, site, installed))),
                    Some(took),
                )
            }
        };
        Ok(Self {
            contender,
            program,
            lab,
            frame,
            rules_seconds,
            shown: 0,
        })
    }

    fn flood(&mut self, plan: &GuardBench, repetition: u32) -> Result<Run> {
        let program_ns = self.program.program_ns(&self.frame)?;
        let own = || process::cpu_seconds(std::process::id());
        let before = own();
        let sent = send(&Job {
            namespace: Some(&self.lab.a.namespace),
            interface: &self.lab.a.interface,
            frames: std::slice::from_ref(&self.frame),
            count: plan.frames,
            engine: Engine::Live,
            rate: None,
            cpu: Some(plan.cpu),
        })?;
        let cpu_seconds = own() - before;
        self.shown += u64::from(REPEAT) + sent.packets;
        Ok(Run {
            what: self.contender.name(),
            repetition,
            sent: sent.packets,
            seconds: sent.took.as_secs_f64(),
            dropped_per_second: sent.per_second(),
            dropped_per_cpu_second: sent.packets as f64 / cpu_seconds.max(f64::EPSILON),
            program_ns,
            rules_seconds: self.rules_seconds,
            of_bare: None,
            of_bare_by_cpu_time: None,
        })
    }

    /// The rules must have seen everything.
    fn end(self) -> Result<()> {
        let Dropping::Guard(guarded) = &self.program else {
            return Ok(());
        };
        let (guard, site, _) = guarded.as_ref();
        let dropped = decided(guard);
        guard.unload(site)?;
        match dropped? {
            dropped if dropped == self.shown => Ok(()),
            dropped => Err(Error::failed(
                format!("{}: {} frames were sent", self.contender.name(), self.shown),
                format!("the rules dropped {dropped}"),
            )),
        }
    }
}

/// What all rules together have decided about.
fn decided(guard: &Guard) -> Result<u64> {
    let set = guard.rules()?;
    Ok(set
        .rules
        .iter()
        .map(|rule| set.hits_of(rule.id).decided)
        .sum())
}

fn time(program: std::os::fd::BorrowedFd<'_>, frame: &[u8]) -> Result<f64> {
    let answer = test_run::xdp(program, frame, None, REPEAT)
        .map_err(|e| Error::os("cannot measure the program by itself", e))?;
    Ok(answer.duration.as_nanos() as f64)
}

fn median(what: &str, runs: &[Run]) -> Option<Median> {
    let own = || runs.iter().filter(|run| run.what == what);
    Some(Median {
        what: what.to_owned(),
        dropped_per_second: Spread::of(own().map(|run| run.dropped_per_second))?,
        program_ns: Spread::of(own().map(|run| run.program_ns))?,
        rules_seconds: Spread::of(own().filter_map(|run| run.rules_seconds)),
        of_bare: Spread::of(own().filter_map(|run| run.of_bare)),
        of_bare_by_cpu_time: Spread::of(own().filter_map(|run| run.of_bare_by_cpu_time)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_among_the_rules_once() {
        let sender = Ipv4Addr::new(10, 77, 0, 1);
        for one in &GUARDED {
            let drafts = one.drafts(sender);
            let own = drafts
                .iter()
                .filter(|draft| draft.what.source == Some(Prefix::host(sender.into())));
            assert_eq!(own.count(), 1, "{one:?}");
        }
        assert_eq!(Contender::Services(10_000).drafts(sender).len(), 10_000);
    }
}
