//! Simulates a thousand agents, wall clocks that step, and a bus that drops, delays, repeats, reorders and partitions,
//! all from one seed. The state machines are the real ones of `trawl fleet agent`; processes and bus are simulated.
//! Once the bus is quiet, each host runs exactly its desired captures.
//!
//! Two operators command each host. They want captures of the same names, and the first one ends the second one's at times.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Action, Capture, CaptureEnd, Counts, End, Event, Incident, IncidentPhase, IncidentReport, Machine, Memory, Now,
    Policy, Request, State,
};
use crate::agent::report::Frozen;

const HOSTS: usize = 1000;
const SECOND: u64 = 1_000_000_000;
const STORM: u64 = 300;
const QUIET: u64 = 200;
/// Interval in seconds at which an agent asks the bus for missed commands.
const ASK: u64 = 5;

/// Random numbers, reproducible from the seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone)]
struct Process {
    name: String,
    filter: String,
    /// Time at which the process ends once it is stopped or its agent is gone.
    ends_at: Option<u64>,
}

struct Host {
    machine: Machine,
    memory: Vec<Memory>,
    incidents: Vec<IncidentReport>,
    /// Incidents that are being frozen: time of the end, and name.
    freezing: Vec<(u64, String)>,
    processes: BTreeMap<u64, Process>,
    /// Processes of killed agents: they end after a while.
    orphans: Vec<Process>,
    partitioned: bool,
    /// Seconds since 1970 at the start, by the host's clock.
    wall: u64,
    /// Messages in flight: arrival time, operator, revision and desired state.
    messages: Vec<(u64, usize, u64, State)>,
    /// The desired state of each operator, if it has one, with its revision.
    desired: [(u64, State); OPERATORS.len()],
}

const OPERATORS: [&str; 2] = ["UA", "UB"];
const MOST: usize = 3;

fn sender(operator: usize) -> Option<String> {
    Some(OPERATORS[operator].to_owned())
}

fn policy() -> Policy {
    Policy::parse(&format!("operators = {OPERATORS:?}\ninterfaces = [\"eth*\"]\nmax_captures = {MOST}")).unwrap()
}

/// Returns an operator's next state of a host.
fn desired(chance: &mut Chance, operator: usize, before: &[(u64, State); OPERATORS.len()]) -> State {
    let number = chance.below(5);
    let revision = before[operator].0 + 1;
    let capture = |n: u64| Capture {
        name: format!("c{n}"),
        // The policy refuses the last interface.
        interfaces: vec![if n == 2 { "lo" } else { "eth0" }.to_owned()],
        store: "file:///s".to_owned(),
        filter: format!("port {} and {operator}", n + number),
        // Longer than the simulation, shorter than a step of a clock.
        duration_seconds: Some(1800),
        ..Capture::default()
    };
    let request = |n: u64| Request { requested: revision, capture: capture(n) };
    let incident = |n: u64| Incident { id: format!("i{operator}-{}", 3 * number + n), ..Incident::default() };
    let others = before[1].1.captures.iter().filter(|_| operator == 0 && chance.one_in(2));
    let end = |request: &Request| CaptureEnd {
        operator: OPERATORS[1].to_owned(),
        capture: request.capture.name.clone(),
        requested: request.requested,
    };
    State {
        ends: others.map(end).collect(),
        captures: (0..number.min(4)).map(request).collect(),
        incidents: (0..chance.below(3)).map(incident).collect(),
        ..State::default()
    }
}

/// Checks that a host runs as many captures as it may, each as an operator wants it who is the only one with its name.
fn check(running: &[(String, String)], desired: &[(u64, State); OPERATORS.len()]) {
    let ends = &desired[0].1.ends;
    let wanted = desired.iter().enumerate().flat_map(|(operator, (_, state))| {
        let alive = state.captures.iter().filter(move |one| ends.iter().all(|end| !end.is_of(&sender(operator), one)));
        let alive = alive.map(|one| &one.capture).filter(|one| policy().refuses(one, 0).is_none());
        alive.map(|one| (one.name.clone(), one.filter.clone()))
    });
    let wanted: BTreeSet<_> = wanted.collect();
    assert!(running.iter().all(|one| wanted.contains(one)), "{running:?} of {wanted:?}");
    let names: BTreeSet<_> = running.iter().map(|(name, _)| name).collect();
    let all: BTreeSet<_> = wanted.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), running.len(), "one of each name: {running:?}");
    assert!(running.len() >= all.len().min(MOST - 1) && running.len() <= MOST, "{running:?} of {wanted:?}");
}

impl Host {
    fn new() -> Self {
        Self {
            machine: Machine::new(policy(), false, Vec::new(), Vec::new()),
            memory: Vec::new(),
            incidents: Vec::new(),
            freezing: Vec::new(),
            processes: BTreeMap::new(),
            orphans: Vec::new(),
            partitioned: false,
            wall: 1_000_000,
            messages: Vec::new(),
            desired: Default::default(),
        }
    }

    fn step(&mut self, time: u64, chance: &mut Chance, quiet: bool, event: Event) {
        let now = Now { monotonic: time * SECOND, wall: (self.wall + time) * SECOND };
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.machine.step(now, event) {
                match action {
                    Action::Start { run, capture, .. } => {
                        let (capture, counts) = (*capture, Counts::default());
                        let held = self.orphans.iter().any(|one| one.name == capture.name);
                        let end = if held {
                            Some(End::Held)
                        } else if !quiet && chance.one_in(4) {
                            Some(End::Failed("by chance".to_owned()))
                        } else {
                            None
                        };
                        if let Some(end) = end {
                            events.push(Event::Ended { run, end, counts });
                            continue;
                        }
                        // At no time may two processes capture the same.
                        let mut alive = self.processes.values();
                        assert!(alive.all(|one| one.name != capture.name), "a double");
                        let process = Process { name: capture.name, filter: capture.filter, ends_at: None };
                        self.processes.insert(run, process);
                        events.push(Event::Ready { run });
                    }
                    Action::Stop { run, force } => {
                        if let Some(process) = self.processes.get_mut(&run) {
                            let wait = if force { 0 } else { chance.below(90) };
                            let end = process.ends_at.unwrap_or(u64::MAX).min(time + wait);
                            process.ends_at = Some(end);
                        }
                    }
                    Action::Freeze(incident) => {
                        let is_twice = self.freezing.iter().any(|(_, id)| *id == incident.id);
                        assert!(!is_twice, "frozen twice");
                        self.freezing.push((time + chance.below(20), incident.id));
                    }
                    Action::Push => events.push(Event::Pushed { all: quiet || !chance.one_in(2) }),
                }
            }
        }
        self.memory = self.machine.memory();
        self.incidents = self.machine.incidents();
    }

    /// Simulates SIGKILL: the kernel interrupts the captures, which takes a while; a new agent starts.
    fn kill(&mut self, time: u64, chance: &mut Chance) {
        let left = std::mem::take(&mut self.processes);
        for (_, mut process) in left {
            process.ends_at = Some(time + chance.below(20));
            self.orphans.push(process);
        }
        self.freezing.clear();
        self.machine = Machine::new(policy(), false, self.memory.clone(), self.incidents.clone());
    }

    fn second(&mut self, time: u64, chance: &mut Chance, quiet: bool) {
        if !quiet {
            if chance.one_in(100) {
                let operator = chance.below(2) as usize;
                self.desired[operator] = (self.desired[operator].0 + 1, desired(chance, operator, &self.desired));
                // Published once, twice or never; late messages may be overtaken.
                for _ in 0..chance.below(3) {
                    let (revision, state) = self.desired[operator].clone();
                    let at = time + chance.below(60);
                    self.messages.push((at, operator, revision, state));
                }
            }
            if chance.one_in(40) {
                self.partitioned = !self.partitioned;
            }
            if chance.one_in(100) {
                self.kill(time, chance);
            }
            if chance.one_in(100) {
                self.wall = [self.wall + 3600, self.wall - 3600][chance.below(2) as usize];
            }
        }
        if quiet {
            self.partitioned = false;
        }
        let mut events = Vec::new();
        if !self.partitioned && time.is_multiple_of(ASK) {
            for (operator, (revision, state)) in self.desired.iter().enumerate() {
                events.push(match revision {
                    0 => Event::Nothing { operator: OPERATORS[operator].to_owned() },
                    _ => Event::Desired { sender: sender(operator), revision: *revision, state: state.clone() },
                });
            }
        }
        let partitioned = self.partitioned;
        self.messages.retain(|(at, operator, revision, state)| {
            if *at <= time && !partitioned {
                let (revision, state) = (*revision, state.clone());
                events.push(Event::Desired { sender: sender(*operator), revision, state });
            }
            *at > time
        });
        self.orphans.retain(|one| one.ends_at.is_none_or(|at| at > time));
        let over = self.processes.iter();
        let over: Vec<u64> =
            over.filter(|(_, one)| one.ends_at.is_some_and(|at| at <= time)).map(|(run, _)| *run).collect();
        for run in over {
            self.processes.remove(&run);
            events.push(Event::Ended { run, end: End::Well, counts: Counts::default() });
        }
        if !quiet
            && chance.one_in(200)
            && let Some((run, _)) = self.processes.pop_first()
        {
            events.push(Event::Ended { run, end: End::Failed("it died".to_owned()), counts: Counts::default() });
        }
        let frozen = self.freezing.extract_if(.., |(at, _)| *at <= time);
        events.extend(frozen.map(|(_, id)| Event::Frozen { id, outcome: Ok(Frozen::default()) }));
        events.push(Event::Tick);
        for event in events {
            self.step(time, chance, quiet, event);
        }
    }

    fn runs(&self) -> Vec<(String, String)> {
        let all = self.processes.values().filter(|one| one.ends_at.is_none());
        let mut all: Vec<_> = all.map(|one| (one.name.clone(), one.filter.clone())).collect();
        all.sort();
        all
    }
}

/// Returns the captures that each host runs after the storm and the quiet.
fn simulate(seed: u64) -> Vec<Vec<(String, String)>> {
    let mut chance = Chance(seed);
    let mut hosts: Vec<Host> = (0..HOSTS).map(|_| Host::new()).collect();
    for time in 0..STORM + QUIET {
        for host in &mut hosts {
            host.second(time, &mut chance, time >= STORM);
        }
    }
    for (number, host) in hosts.iter().enumerate() {
        check(&host.runs(), &host.desired);
        assert_eq!(host.processes.len(), host.runs().len(), "seed {seed}");
        assert!(host.orphans.is_empty());
        for incident in host.desired.iter().flat_map(|(_, state)| &state.incidents) {
            let of_it = host.incidents.iter().find(|one| one.id == incident.id);
            let phase = of_it.map(|one| one.phase);
            assert_eq!(phase, Some(IncidentPhase::Stored), "seed {seed}, host {number}");
        }
    }
    hosts.iter().map(Host::runs).collect()
}

#[test]
fn thousand_hosts_run_their_desired_captures_after_quiet() {
    let runs = simulate(1);
    let running: usize = runs.iter().map(Vec::len).sum();
    assert!(running > HOSTS / 2, "something runs: {running}");
    simulate(2);
}

#[test]
fn same_seed_gives_the_same_run() {
    assert_eq!(simulate(3), simulate(3));
}
