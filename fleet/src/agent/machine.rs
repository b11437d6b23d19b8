//! The agent's state machine: it turns events and the time into actions. It follows the desired states within the
//! policy, starts each capture once, and restarts failed ones after a delay that doubles.

mod incidents;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use trawl_plan::outputs::{Kept, PacketsAt, StorePlan};

use super::desired::{Capture, Incident, Labels};
use super::log::Command;
use super::policy::{Policy, Refusal, Role};
use super::report::{CaptureReport, Counts, Frozen, HostReport, IncidentReport, Phase, RateEvent};
use super::states::{Request, Sender, State};
use incidents::Incidents;

const SECOND: u64 = 1_000_000_000;
/// Delay between a failure and the next start; doubles with each failure up to the longest.
const BACKOFF: u64 = SECOND;
const BACKOFF_MOST: u64 = 60 * SECOND;
/// Run time after which an end no longer counts as a failed start.
const HEALTHY: u64 = 60 * SECOND;
/// Time that a stopped capture has to seal and store its data before it is killed.
const STOP_PATIENCE: u64 = 60 * SECOND;
/// Delay between two attempts to store the captures' leftovers in the spool.
const PUSH_EVERY: u64 = 30 * SECOND;
/// Time after which the spool is checked without a reason: this removes old chunks from it.
const PUSH_ANYWAY: u64 = 3600 * SECOND;

/// Both clocks: the time since the host's start, which no step changes, and the wall clock, which continues after a new
/// start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub monotonic: u64,
    pub wall: u64,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A new desired state of a sender. A revision that is not newer is an echo and changes nothing.
    Desired { sender: Sender, revision: u64, state: State },
    /// A desired state that cannot be parsed: the sender's previous one stays.
    Unreadable { sender: Sender, revision: u64, why: String },
    /// The operator has never sent a desired state.
    Nothing { operator: String },
    /// The capture is attached.
    Ready { run: u64 },
    /// The capture's counts so far. The packets since the last counts came within `over_ns`.
    Counted { run: u64, counts: Counts, over_ns: u64 },
    /// The process has ended or could not be started.
    Ended { run: u64, end: End, counts: Counts },
    /// The packets of an incident are frozen, or cannot be.
    Frozen { id: String, outcome: Result<Frozen, String> },
    /// The attempt to store the spool's contents has ended.
    Pushed { all: bool },
    /// The agent has been asked to end.
    Shutdown,
    /// Time has passed.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Success: stopped or at its bounds, with everything stored.
    Well,
    /// A process of a previous agent still holds the capture and will end on its own.
    Held,
    /// Failure, with the last messages of the process.
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Starts the capture with its remaining bounds, for the first time or again.
    Start { run: u64, capture: Box<Capture>, kept: Kept },
    /// Stops the capture: by a signal first, later by force.
    Stop { run: u64, force: bool },
    /// Freezes the packets of an incident.
    Freeze(Box<Incident>),
    /// Stores the captures' leftovers in the spool.
    Push,
}

/// The agent's memory of a capture after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub capture: Capture,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Sender,
    /// Place in the order in which the captures came.
    #[serde(default)]
    pub place: u64,
    pub begun_wall: Option<u64>,
    /// The same time, counted from the host's start; negative if it was before.
    #[serde(default)]
    pub begun: Option<i64>,
    pub finished: bool,
    pub starts: u64,
    pub counts: Counts,
}

impl Memory {
    /// Adopts a memory from before the host's start: only the wall clock shows the time that has passed.
    pub fn adopt(&mut self, now: Now) {
        let passed = |wall| now.wall.saturating_sub(wall).cast_signed();
        self.begun = self.begun_wall.map(|wall| now.monotonic.cast_signed() - passed(wall));
    }
}

#[derive(Debug)]
pub struct Machine {
    policy: Policy,
    /// Set if the desired state is a file's.
    is_file: bool,
    /// Labels of the policy, then labels of the desired state that the policy does not set.
    labels: Labels,
    states: BTreeMap<Sender, Followed>,
    /// Senders whose states are not known yet: their remembered captures and incidents are not forgotten.
    awaited: BTreeSet<Sender>,
    /// Reasons why senders' latest states are not followed.
    errors: BTreeMap<Sender, String>,
    /// The captures to run, as their senders wrote them, in the order in which they came.
    desired: Vec<Capture>,
    entries: BTreeMap<String, Entry>,
    /// Captures without an entry, because of their operators' rights, or since another one has the name.
    unplaced: Vec<Unplaced>,
    last_place: u64,
    last_run: u64,
    stopping: bool,
    incidents: Incidents,
    push: Push,
}

/// Returns true if a sender's state is known, or its absence. A capture of an earlier trawl has no sender, and may be of
/// any.
fn is_known(awaited: &BTreeSet<Sender>, sender: &Sender) -> bool {
    match sender {
        Some(_) => !awaited.contains(sender),
        None => awaited.is_empty(),
    }
}

/// The present state of a sender.
#[derive(Debug)]
struct Followed {
    revision: u64,
    state: State,
}

#[derive(Debug)]
struct Unplaced {
    sender: Sender,
    capture: Capture,
    refusal: Refusal,
}

#[derive(Debug, Default)]
struct Push {
    wanted: bool,
    running: bool,
    not_before: u64,
    anyway: u64,
}

impl Machine {
    /// Creates a machine from a previous agent's memory; it follows the operators of the policy, or with `is_file` a file.
    /// Leftovers in the spool are stored first.
    pub fn new(policy: Policy, is_file: bool, memory: Vec<Memory>, incidents: Vec<IncidentReport>) -> Self {
        let last_place = memory.iter().map(|one| one.place).max().unwrap_or(0);
        let entries = memory.into_iter().map(|one| (one.capture.name.clone(), Entry::remembered(one)));
        let awaited = match is_file {
            true => BTreeSet::from([None]),
            false => policy.operators().map(|key| Some(key.to_owned())).collect(),
        };
        Self {
            labels: policy.labels.clone(),
            states: BTreeMap::new(),
            awaited,
            errors: BTreeMap::new(),
            desired: Vec::new(),
            entries: entries.collect(),
            unplaced: Vec::new(),
            last_place,
            last_run: 0,
            stopping: false,
            incidents: Incidents::remembered(incidents),
            push: Push { wanted: true, ..Push::default() },
            policy,
            is_file,
        }
    }

    pub fn step(&mut self, now: Now, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Desired { sender, revision, state } => {
                if self.is_news(&sender, revision) {
                    self.errors.remove(&sender);
                    self.awaited.remove(&sender);
                    self.states.insert(sender, Followed { revision, state });
                    actions = self.merge();
                }
            }
            Event::Unreadable { sender, revision, why } => {
                if self.is_news(&sender, revision) {
                    self.errors.insert(sender, why);
                }
            }
            Event::Nothing { operator } => {
                if self.awaited.remove(&Some(operator)) {
                    actions = self.merge();
                }
            }
            Event::Ready { run } => {
                if let Some(entry) = self.entry_of(run) {
                    entry.mark_ready(now);
                }
            }
            Event::Counted { run, counts, over_ns } => {
                if let Some(entry) = self.entry_of(run) {
                    entry.counted(now, counts, over_ns);
                }
            }
            Event::Ended { run, end, counts } => {
                if matches!(end, End::Failed(_)) {
                    self.push.wanted = true;
                }
                if let Some(entry) = self.entry_of(run) {
                    entry.ended(now, end, &counts);
                }
            }
            Event::Frozen { id, outcome } => {
                self.push.wanted |= outcome.is_ok();
                self.push.not_before = now.monotonic;
                self.incidents.frozen(&id, outcome);
            }
            Event::Pushed { all } => {
                self.incidents.pushed(all);
                self.push.running = false;
                self.push.wanted |= !all;
                self.push.not_before = now.monotonic + PUSH_EVERY;
                self.push.anyway = now.monotonic + PUSH_ANYWAY;
            }
            Event::Shutdown => self.stopping = true,
            Event::Tick => {}
        }
        actions.extend(self.settle(now));
        actions
    }

    fn is_news(&self, sender: &Sender, revision: u64) -> bool {
        self.states.get(sender).is_none_or(|followed| revision > followed.revision)
    }

    /// Returns true if another sender, who may do so, has ended a requested capture.
    fn is_ended(&self, sender: &Sender, request: &Request) -> bool {
        self.states.iter().any(|(by, followed)| {
            let mut ends = followed.state.ends.iter();
            ends.any(|end| {
                end.is_of(sender, request) && self.policy.refuses_name(by.as_deref(), &end.capture).is_none()
            })
        })
    }

    /// Returns all senders' captures that nobody has ended, with the reasons why their senders may not start them.
    fn requests(&self) -> Vec<(Sender, Capture, Option<Refusal>)> {
        let of_sender = |(sender, followed): (&Sender, &Followed)| {
            let alive = followed.state.captures.iter().filter(|request| !self.is_ended(sender, request));
            let all = alive.map(|request| {
                let refusal = self.policy.refuses_name(sender.as_deref(), &request.capture.name);
                (sender.clone(), request.capture.clone(), refusal)
            });
            all.collect::<Vec<_>>()
        };
        self.states.iter().flat_map(of_sender).collect()
    }

    /// Returns whose capture has a name: it stays with its present sender while that one wants it, or may want it.
    fn owner(&self, name: &str, wanting: &[&Sender]) -> Sender {
        let present = self.entries.get(name).map(|entry| &entry.sender);
        let stays = |sender: &&Sender| wanting.contains(sender) || !is_known(&self.awaited, sender);
        present.filter(stays).or(wanting.first().copied()).cloned().flatten()
    }

    /// Joins the senders' states; returns the actions for new incidents.
    fn merge(&mut self) -> Vec<Action> {
        let labels = self.states.get(&None).map(|followed| followed.state.labels.clone());
        self.labels = labels.unwrap_or_default();
        self.labels.extend(self.policy.labels.clone());
        let requests = self.requests();
        let mut placed = Vec::new();
        self.unplaced.clear();
        for (sender, capture, refusal) in &requests {
            let rivals = requests.iter().filter(|(_, other, refusal)| refusal.is_none() && other.name == capture.name);
            let wanting: Vec<&Sender> = rivals.map(|(sender, ..)| sender).collect();
            let owner = self.owner(&capture.name, &wanting);
            let taken = (owner != *sender).then_some(Refusal::Taken { operator: owner });
            match refusal.clone().or(taken) {
                None => placed.push((sender.clone(), capture.clone())),
                Some(refusal) => {
                    self.unplaced.push(Unplaced { sender: sender.clone(), capture: capture.clone(), refusal });
                }
            }
        }
        for entry in self.entries.values_mut() {
            entry.desire(None);
        }
        for (sender, capture) in &placed {
            let limited = self.policy.limited(capture);
            let entry = self.entries.entry(capture.name.clone()).or_default();
            if entry.desire(Some((sender.clone(), limited))) {
                self.last_place += 1;
                entry.place = self.last_place;
            }
        }
        let mut desired: Vec<Capture> = placed.into_iter().map(|(_, capture)| capture).collect();
        desired.sort_by_key(|capture| self.entries.get(&capture.name).map(|entry| entry.place));
        self.desired = desired;
        let of_sender = |(sender, followed): (&Sender, &Followed)| {
            let refusal = self.policy.refuses_role(sender.as_deref(), Role::Trigger).map(|refusal| refusal.to_string());
            let all = followed.state.incidents.iter().map(|incident| (incident.clone(), refusal.clone()));
            all.collect::<Vec<_>>()
        };
        let mut incidents: Vec<_> = self.states.iter().flat_map(of_sender).collect();
        incidents.sort_by_key(|(_, refused)| refused.is_some());
        self.incidents.desire(&incidents, self.awaited.is_empty())
    }

    /// Returns the changes that a sender's state asks for, with the reasons why they are refused for lack of a right.
    /// Before the sender's first state, the remembered captures count as desired.
    pub fn commands(&self, sender: &Sender, state: &State) -> Vec<(Command, Option<String>)> {
        let is_first = !is_known(&self.awaited, sender);
        let entries = self.entries.iter().filter(|(_, entry)| entry.sender == *sender);
        let entries = entries.filter(|(_, entry)| is_first || entry.desired.is_some());
        let entries = entries.filter_map(|(name, entry)| Some((name.clone(), entry.of.clone()?)));
        let unplaced = self.unplaced.iter().filter(|one| one.sender == *sender);
        let unplaced = unplaced.map(|one| (one.capture.name.clone(), self.policy.limited(&one.capture)));
        let known: BTreeMap<String, Capture> = entries.chain(unplaced).collect();
        let asked = state.captures.iter().filter(|request| !self.is_ended(sender, request)).filter_map(|request| {
            let capture = request.capture.name.clone();
            match known.get(&capture) {
                None => Some(Command::Start { capture }),
                Some(old) if *old == self.policy.limited(&request.capture) => None,
                Some(_) => Some(Command::Change { capture }),
            }
        });
        let is_gone = |name: &&String| state.captures.iter().all(|request| request.capture.name != **name);
        let stopped = known.keys().filter(is_gone).map(|capture| Command::Stop { capture: capture.clone() });
        let before = self.states.get(sender).map(|followed| followed.state.ends.as_slice()).unwrap_or_default();
        let ended = state
            .ends
            .iter()
            .filter(|end| !before.contains(end))
            .map(|end| Command::End { capture: end.capture.clone(), of: end.operator.clone() });
        let new = state.incidents.iter().filter(|incident| !self.incidents.knows(&incident.id));
        let triggered = new.map(|incident| Command::Trigger { incident: incident.id.clone() });
        let all = asked.chain(stopped).chain(ended).chain(triggered);
        all.map(|command| {
            let refusal = match &command {
                Command::End { capture, .. } => self.policy.refuses_name(sender.as_deref(), capture),
                Command::Trigger { .. } => self.policy.refuses_role(sender.as_deref(), Role::Trigger),
                _ => None,
            };
            (command, refusal.map(|refusal| refusal.to_string()))
        })
        .collect()
    }

    /// Returns the reason why the host does not start a sender's capture.
    pub fn refuses(&self, sender: &Sender, command: &Command) -> Option<String> {
        let (Command::Start { capture } | Command::Change { capture }) = command else { return None };
        let unplaced = self.unplaced.iter().find(|one| one.sender == *sender && one.capture.name == *capture);
        let entry = self.entries.get(capture).filter(|entry| entry.sender == *sender);
        let refusal = unplaced.map(|one| &one.refusal).or_else(|| entry?.refused.as_ref());
        refusal.map(ToString::to_string)
    }

    /// Applies the policy. A finished capture counts against no limit, so that the next one may start.
    fn apply_policy(&mut self, now: Now) {
        let mut number = 0;
        for capture in &self.desired {
            let Some(entry) = self.entries.get_mut(&capture.name) else {
                continue;
            };
            let is_finished = entry.is_finished(now);
            entry.refused = if is_finished { None } else { self.policy.refuses(capture, number) };
            number += usize::from(!is_finished);
        }
    }

    fn entry_of(&mut self, run: u64) -> Option<&mut Entry> {
        self.entries.values_mut().find(|entry| entry.run_number() == Some(run))
    }

    /// Returns the actions that lead to the desired state.
    fn settle(&mut self, now: Now) -> Vec<Action> {
        self.apply_policy(now);
        let mut actions = Vec::new();
        for entry in self.entries.values_mut() {
            let last = &mut self.last_run;
            let number = || {
                *last += 1;
                *last
            };
            actions.extend(entry.settle(now, self.stopping, number));
        }
        // Before a sender's first state, the remembered captures count as desired.
        self.entries.retain(|_, entry| entry.is_needed() || !is_known(&self.awaited, &entry.sender));
        let push = &mut self.push;
        push.wanted |= now.monotonic >= push.anyway;
        if push.wanted && !push.running && !self.stopping && now.monotonic >= push.not_before {
            (push.wanted, push.running) = (false, true);
            self.incidents.push_begins();
            actions.push(Action::Push);
        }
        actions
    }

    /// Returns the time at which a tick is due, if one is expected: it starts, kills or stores something.
    pub fn due(&self, now: Now) -> Option<u64> {
        let push = &self.push;
        let is_pushing = push.wanted && !push.running && !self.stopping;
        let of_push = is_pushing.then_some(push.not_before);
        let of_captures = self.entries.values().filter_map(|entry| entry.due(self.stopping));
        of_captures.chain(of_push).filter(|due| *due > now.monotonic).min()
    }

    /// Returns true if the agent may end: it was asked to, and no capture runs.
    pub fn is_over(&self) -> bool {
        self.stopping && self.entries.values().all(|one| one.run_number().is_none())
    }

    pub fn memory(&self) -> Vec<Memory> {
        self.entries.values().filter_map(Entry::memory).collect()
    }

    /// Returns the incidents that the next agent has to know.
    pub fn incidents(&self) -> Vec<IncidentReport> {
        self.incidents.memory()
    }

    /// Returns the largest spool of the captures whose packets stay on the host; `None` without one.
    pub fn spool_bytes(&self) -> Option<u64> {
        let near = self.entries.values().filter_map(|one| one.desired.as_ref());
        let near = near.filter(|capture| capture.packets_at == PacketsAt::Host);
        near.map(|capture| capture.spool_bytes.unwrap_or(StorePlan::SPOOL_BYTES)).max()
    }

    /// Returns the reason why a sender's latest state is not followed.
    fn error(&self) -> Option<String> {
        self.errors.first_key_value().map(|(sender, why)| match sender {
            Some(operator) => format!("the desired state of the operator {operator}: {why}"),
            None => why.clone(),
        })
    }

    pub fn report(&self, host: &str, trawl: &str, now: Now) -> HostReport {
        let unplaced = self.unplaced.iter().map(Unplaced::report);
        HostReport {
            host: host.to_owned(),
            labels: self.labels.clone(),
            revision: self.states.values().map(|followed| followed.revision).max().unwrap_or(0),
            revisions: self.states.iter().filter_map(|(sender, one)| Some((sender.clone()?, one.revision))).collect(),
            operators: if self.is_file { Vec::new() } else { self.policy.rights() },
            time_ns: now.wall,
            trawl: trawl.to_owned(),
            error: self.error(),
            stopping: self.stopping,
            captures: self.entries.values().filter_map(Entry::report).chain(unplaced).collect(),
            incidents: self.incidents.reports(),
            slow_events: Vec::new(),
            answers_key: None,
        }
    }
}

impl Unplaced {
    fn report(&self) -> CaptureReport {
        CaptureReport {
            capture: self.capture.clone(),
            operator: self.sender.clone(),
            phase: Phase::Refused,
            starts: 0,
            failures: 0,
            refused: Some(self.refusal.clone()),
            error: None,
            account: Counts::default(),
            event: None,
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    sender: Sender,
    /// Place in the order in which the captures came; a changed one comes anew.
    place: u64,
    /// `None` if the capture is not or no longer desired.
    desired: Option<Capture>,
    refused: Option<Refusal>,
    run: Option<Run>,
    /// Capture that the counts below belong to.
    of: Option<Capture>,
    begun_wall: Option<u64>,
    /// The same time, counted from the host's start.
    begun: Option<i64>,
    finished: bool,
    starts: u64,
    /// Counts of the runs that have ended.
    spent: Counts,
    failures: u32,
    error: Option<String>,
    not_before: u64,
    event: Option<RateEvent>,
}

#[derive(Debug)]
struct Run {
    number: u64,
    sender: Sender,
    /// The capture as desired, with its full bounds.
    capture: Capture,
    since: u64,
    ready: bool,
    stopping: Option<u64>,
    forced: bool,
    counts: Counts,
}

impl Entry {
    pub fn remembered(memory: Memory) -> Self {
        Self {
            sender: memory.operator,
            place: memory.place,
            of: Some(memory.capture),
            begun_wall: memory.begun_wall,
            begun: memory.begun,
            finished: memory.finished,
            starts: memory.starts,
            spent: memory.counts,
            ..Self::default()
        }
    }

    /// Follows a wish, or the end of it; returns true if the capture is another one than before.
    pub fn desire(&mut self, wish: Option<(Sender, Capture)>) -> bool {
        self.refused = None;
        let Some((sender, capture)) = wish else {
            self.desired = None;
            return false;
        };
        let is_new = self.of.as_ref() != Some(&capture) || self.sender != sender;
        if is_new {
            // A changed capture of the same name starts with fresh counts.
            self.of = Some(capture.clone());
            self.sender = sender;
            self.begun_wall = None;
            self.begun = None;
            self.finished = false;
            self.starts = 0;
            self.spent = Counts::default();
            self.failures = 0;
            self.error = None;
            self.not_before = 0;
            self.event = None;
        }
        self.desired = Some(capture);
        is_new
    }

    pub fn run_number(&self) -> Option<u64> {
        self.run.as_ref().map(|run| run.number)
    }

    pub fn mark_ready(&mut self, now: Now) {
        // The error of an earlier start is over.
        self.error = None;
        if let Some(run) = &mut self.run {
            run.ready = true;
            run.since = now.monotonic;
        }
    }

    pub fn counted(&mut self, now: Now, counts: Counts, over_ns: u64) {
        let Some(run) = &mut self.run else { return };
        let packets = counts.recorded.saturating_sub(run.counts.recorded);
        // The capture counts about once a second. Rounding up makes a single packet an event if the limit is one.
        let packets_per_second = (packets * 1000).div_ceil((over_ns / 1_000_000).max(1000));
        if run.capture.event_rate.is_some_and(|least| packets_per_second >= least) {
            self.event = Some(RateEvent { time_ns: now.wall, packets_per_second });
        }
        run.counts = counts;
    }

    pub fn ended(&mut self, now: Now, end: End, counts: &Counts) {
        let Some(run) = self.run.take() else { return };
        if self.of.as_ref() != Some(&run.capture) || self.sender != run.sender {
            return;
        }
        self.spent.add(counts);
        let was_stopped = run.stopping.is_some();
        match end {
            End::Held => {
                self.starts -= 1;
                self.not_before = now.monotonic + SECOND / 4;
            }
            End::Well if was_stopped => {}
            End::Well => self.finished = true,
            End::Failed(why) if was_stopped => self.error = Some(why),
            End::Failed(why) => {
                self.error = Some(why);
                if run.ready && now.monotonic.saturating_sub(run.since) >= HEALTHY {
                    self.failures = 0;
                }
                let wait = BACKOFF.saturating_mul(1 << self.failures.min(16));
                self.failures += 1;
                self.not_before = now.monotonic + wait.min(BACKOFF_MOST);
            }
        }
    }

    /// Returns true if the capture has ended at its bounds, or has used them up so that it cannot start again.
    fn is_finished(&mut self, now: Now) -> bool {
        self.finished |= self.run.is_none() && self.desired.is_some() && self.rest(now).is_none();
        self.finished
    }

    /// Returns the capture with its remaining bounds; `None` if one is reached.
    fn rest(&self, now: Now) -> Option<Capture> {
        let mut rest = self.desired.clone()?;
        let left = |bound: &mut Option<u64>, used: u64| {
            if let Some(bound) = bound {
                *bound = bound.saturating_sub(used);
            }
            *bound != Some(0)
        };
        let now = now.monotonic.cast_signed();
        let passed = now.saturating_sub(self.begun.unwrap_or(now));
        let seconds = u64::try_from(passed).unwrap_or(0) / SECOND;
        let all = [left(&mut rest.duration_seconds, seconds), left(&mut rest.packets, self.spent.recorded)];
        all.iter().all(|left| *left).then_some(rest)
    }

    pub fn settle(&mut self, now: Now, stopping: bool, number: impl FnOnce() -> u64) -> Option<Action> {
        let is_wanted = self.refused.is_none() && !stopping;
        if let Some(run) = &mut self.run {
            let is_right = is_wanted && self.desired.as_ref() == Some(&run.capture) && self.sender == run.sender;
            return match run.stopping {
                None if is_right => None,
                None => {
                    run.stopping = Some(now.monotonic);
                    Some(Action::Stop { run: run.number, force: false })
                }
                Some(since) if !run.forced && now.monotonic >= since + STOP_PATIENCE => {
                    run.forced = true;
                    Some(Action::Stop { run: run.number, force: true })
                }
                Some(_) => None,
            };
        }
        if !is_wanted || self.finished || now.monotonic < self.not_before {
            return None;
        }
        let desired = self.desired.clone()?;
        let capture = self.rest(now)?;
        self.begun_wall.get_or_insert(now.wall);
        self.begun.get_or_insert(now.monotonic.cast_signed());
        self.starts += 1;
        let number = number();
        self.run = Some(Run {
            number,
            sender: self.sender.clone(),
            capture: desired,
            since: now.monotonic,
            ready: false,
            stopping: None,
            forced: false,
            counts: Counts::default(),
        });
        Some(Action::Start {
            run: number,
            capture: Box::new(capture),
            kept: match self.starts {
                0 | 1 => Kept::First,
                _ => Kept::Again,
            },
        })
    }

    /// Returns the time of the next start, or at which a stopped capture is killed.
    fn due(&self, stopping: bool) -> Option<u64> {
        match &self.run {
            Some(run) => run.stopping.filter(|_| !run.forced).map(|since| since + STOP_PATIENCE),
            None if stopping || self.refused.is_some() || self.finished => None,
            None => self.desired.as_ref().map(|_| self.not_before),
        }
    }

    pub fn is_needed(&self) -> bool {
        self.desired.is_some() || self.run.is_some()
    }

    pub fn memory(&self) -> Option<Memory> {
        Some(Memory {
            capture: self.of.clone()?,
            operator: self.sender.clone(),
            place: self.place,
            begun_wall: self.begun_wall,
            begun: self.begun,
            finished: self.finished,
            starts: self.starts,
            counts: self.spent.clone(),
        })
    }

    fn phase(&self) -> Phase {
        match &self.run {
            Some(run) if run.stopping.is_some() => Phase::Stopping,
            Some(run) if run.ready => Phase::Running,
            Some(_) => Phase::Starting,
            None if self.refused.is_some() => Phase::Refused,
            None if self.finished => Phase::Finished,
            None => Phase::Waiting,
        }
    }

    pub fn report(&self) -> Option<CaptureReport> {
        let running = self.run.as_ref().map(|run| &run.capture);
        let mut account = self.spent.clone();
        if let Some(run) = &self.run {
            account.add(&run.counts);
        }
        Some(CaptureReport {
            capture: self.desired.as_ref().or(running)?.clone(),
            operator: self.sender.clone(),
            phase: self.phase(),
            starts: self.starts,
            failures: self.failures,
            refused: self.refused.clone(),
            error: self.error.clone(),
            account,
            event: self.event,
        })
    }
}
