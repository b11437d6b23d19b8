//! The operator's side: the hosts' desired states and reports as the server has them, their changes, and the answers of
//! agents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use trawl_sys::events::Wake;
use trawl_sys::{Error, Result, clock};
use trawl_view::text::controls_terminal;

use super::draft::{self, Draft, States};
use super::{CHECK_EVERY, Change, Fleet, Host, NANOSECONDS, not_heard, phase_text};
use crate::agent::{
    CaptureReport, HostEvent, HostReport, IncidentPhase, IncidentReport, Phase, Rights, Selector, State,
};
use crate::bus::fleet::{self, Answer, Bus, Entry, Put};
use crate::bus::{Config, News, shown};

/// Time limit for connecting and listing, or for one answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time for agents to answer: they ask for missed commands every 5 s.
const ANSWER: Duration = Duration::from_secs(10);
/// Time in which each agent reports: it repeats its state every 3 s.
const REPEATED: Duration = Duration::from_secs(4);
/// Age at which a report is too old: agents repeat theirs every 3 s.
const SILENT_NS: u64 = 10 * NANOSECONDS;
/// Attempts, since two operators may change the same host at once.
const ATTEMPTS: u32 = 10;

const UNREADABLE: &str = "its agent reports in a format that this trawl does not know: update this trawl";

/// Outcome of a change: the stored revision, or the error.
pub type Changed = std::result::Result<u64, String>;
/// Changes this operator's desired state of a host, or refuses to.
pub type Alter<'a> = dyn Fn(&str, &mut Draft) -> std::result::Result<(), String> + 'a;

/// An operator's desired state of a host, as the server has it.
#[derive(Clone)]
struct Wish {
    number: u64,
    revision: u64,
    /// The state, or the reason why hosts ignore it.
    state: std::result::Result<State, Ignored>,
}

#[derive(Clone)]
struct Ignored {
    why: String,
    /// Set if it may be a state of a newer trawl.
    is_newer: bool,
}

impl From<Entry> for Wish {
    fn from(Entry { number, revision, value }: Entry) -> Self {
        let state = match value {
            Ok(text) => State::parse(&text)
                .map_err(|error| Ignored { why: error.why().to_owned(), is_newer: is_document(&text) }),
            Err(why) => Err(Ignored { why, is_newer: false }),
        };
        Self { number, revision, state }
    }
}

#[derive(Default)]
struct Known {
    /// The desired state of each operator, by public key.
    wishes: BTreeMap<String, Wish>,
    state: Option<HostReport>,
    /// Set if the last report is of a form that this trawl does not know.
    unreadable: bool,
    /// Time of the last report, since this host's start.
    heard_ns: i64,
}

impl Known {
    /// Returns true if the host's agent follows an operator, as far as it is known.
    fn follows(&self, operator: &str) -> bool {
        let followed = self.state.as_ref().map(|state| state.operators.as_slice()).unwrap_or_default();
        followed.is_empty() || followed.iter().any(|one| one.key == operator)
    }

    /// Returns the states of the operators whom the host follows.
    fn followed(&self) -> impl Iterator<Item = (&String, &Wish)> {
        self.wishes.iter().filter(|(operator, _)| self.follows(operator))
    }

    fn states(&self) -> States {
        let all =
            self.followed().filter_map(|(operator, wish)| Some((operator.clone(), wish.state.as_ref().ok()?.clone())));
        all.collect()
    }

    /// Returns the reason why the host ignores an operator's state.
    fn error(&self) -> Option<String> {
        self.followed().find_map(|(operator, wish)| {
            let ignored = wish.state.as_ref().err()?;
            Some(format!("the desired state of the operator {operator}: {}", ignored.why))
        })
    }

    /// Returns the revision that the host has of an operator's state, and the one that it does not follow yet.
    fn behind(&self) -> Option<(u64, u64)> {
        let state = self.state.as_ref()?;
        self.followed().find_map(|(operator, wish)| {
            let has = state.revisions.get(operator).copied().unwrap_or(0);
            (has != wish.revision).then_some((has, wish.revision))
        })
    }

    /// Returns true if the policy may let an operator end captures of this name.
    fn may_end(&self, operator: &str, capture: &str) -> bool {
        let rights: &[Rights] = self.state.as_ref().map(|state| state.operators.as_slice()).unwrap_or_default();
        rights.iter().find(|one| one.key == operator).is_none_or(|one| one.may_start(capture))
    }

    fn age_ns(&self) -> Option<u64> {
        let age = clock::since_boot().cast_signed() - self.heard_ns;
        self.state.as_ref().map(|_| u64::try_from(age).unwrap_or(0))
    }

    /// Returns true if no agent answers now: none has reported, or it has ended or is silent.
    fn is_absent(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.stopping) || self.is_silent()
    }

    /// Returns true if an agent has stopped reporting without announcing its end.
    fn is_silent(&self) -> bool {
        let ended = self.state.as_ref().is_some_and(|state| state.stopping);
        !ended && self.age_ns().is_some_and(|age| age >= SILENT_NS)
    }

    /// Returns the last report, in which the captures of a silent agent have no known phase.
    fn current_state(&self) -> Option<HostReport> {
        let mut state = self.state.clone()?;
        if self.is_silent() {
            let captures = state.captures.iter_mut();
            captures.for_each(|one| one.phase = Phase::Unknown);
        }
        Some(state)
    }

    /// Returns the phase of an operator's capture once the agent follows this revision, or the reason why it does not run.
    fn answer(&self, operator: &str, revision: u64, name: &str) -> Option<std::result::Result<Phase, String>> {
        let follows = |one: &&HostReport| one.revisions.get(operator).is_some_and(|has| *has >= revision);
        let state = self.state.as_ref().filter(follows)?;
        let is_it = |one: &&CaptureReport| one.capture.name == name && one.operator.as_deref() == Some(operator);
        let Some(capture) = state.captures.iter().find(is_it) else {
            return Some(Err("another operator has ended the capture".to_owned()));
        };
        Some(match (&capture.refused, &capture.error) {
            (Some(refusal), _) => Err(format!("refused by its {refusal}")),
            (None, Some(error)) if capture.phase == Phase::Waiting => Err(error.clone()),
            _ => Ok(capture.phase),
        })
    }

    /// Returns the state of an incident.
    fn incident(&self, id: &str) -> Option<IncidentReport> {
        let mut incidents = self.state.iter().flat_map(|state| &state.incidents);
        incidents.find(|one| one.id == id).cloned()
    }

    /// Returns the reason why an agent has not answered; `then` describes what happens once it does.
    fn why_unanswered(&self, then: &str) -> String {
        match &self.state {
            None if self.unreadable => UNREADABLE.to_owned(),
            None => format!("no agent has reported; {then} when one does"),
            Some(state) if state.stopping => {
                format!("the agent has ended; {then} when it is back")
            }
            Some(_) if self.is_silent() => {
                let since = not_heard(self.age_ns());
                format!("{since}; {then} when its agent is back")
            }
            Some(HostReport { error: Some(error), .. }) => error.clone(),
            Some(_) => "the agent has not followed: its policy must list the key that trawl fleet \
                        key shows as an operator, and its trawl may be too old"
                .to_owned(),
        }
    }
}

/// Returns the latest events of a host.
fn events(state: &HostReport) -> Vec<HostEvent> {
    let of_captures = state.captures.iter().filter_map(|capture| {
        let (name, event) = (&capture.capture.name, capture.event?);
        let text = format!("'{name}' recorded {} packets a second", event.packets_per_second);
        Some(HostEvent { time_ns: event.time_ns, text })
    });
    of_captures.chain(state.slow_events.iter().cloned()).collect()
}

pub struct Operator {
    bus: Bus,
    url: String,
    /// This operator's public key, or the reason why it has none.
    own: std::result::Result<String, String>,
    /// Keys, or starts of keys, of operators whose captures may be replaced.
    replace: Vec<String>,
    hosts: BTreeMap<String, Known>,
    /// Reason of the server's last refusal.
    refused: Option<String>,
    is_over: bool,
}

impl Operator {
    /// Connects, and returns once the complete current state is known.
    pub fn open(config: Config, wake: &Wake) -> Result<Self> {
        let mut operator = Self {
            url: shown(&config.url),
            own: config.key().map(|key| key.public_key()),
            replace: Vec::new(),
            bus: fleet::start(config, wake)?,
            hosts: BTreeMap::new(),
            refused: None,
            is_over: false,
        };
        while !matches!(operator.next(Instant::now() + PATIENCE)?, Some(Answer::Listed)) {}
        Ok(operator)
    }

    /// Permits changes to replace and end the captures of these operators.
    pub fn replaces(&mut self, operators: &[String]) {
        operators.clone_into(&mut self.replace);
    }

    /// Waits for the next news; returns the answer to a request, if it is one.
    fn next(&mut self, until: Instant) -> Result<Option<Answer>> {
        let left = until.saturating_duration_since(Instant::now());
        let news = match self.bus.news.recv_timeout(left) {
            Ok(news) => news,
            Err(RecvTimeoutError::Timeout) => {
                let what = format!("cannot ask {}", self.url);
                return Err(Error::failed(what, "it does not answer"));
            }
            Err(RecvTimeoutError::Disconnected) => News::Ended("the connection is closed".to_owned()),
        };
        match news {
            News::Ended(why) => {
                self.is_over = true;
                let why = match &self.refused {
                    Some(refused) if !why.contains(refused) => format!("{refused}: {why}"),
                    _ => why,
                };
                return Err(Error::failed(format!("cannot ask {}", self.url), why));
            }
            News::Refused(why) => self.refused = Some(why),
            News::Connected | News::Disconnected => {}
            News::Message(Answer::Desired { host, operator, entry }) => {
                self.entry(&host).wishes.insert(operator, entry.into());
            }
            News::Message(Answer::State { host, value, heard_ns }) => {
                let known = self.entry(&host);
                known.state = parsed_report(&value);
                known.unreadable = known.state.is_none();
                known.heard_ns = heard_ns;
            }
            News::Message(answer) => return Ok(Some(answer)),
        }
        Ok(None)
    }

    fn entry(&mut self, host: &str) -> &mut Known {
        self.hosts.entry(host.to_owned()).or_default()
    }

    /// Handles the messages that have arrived.
    pub fn listen(&mut self) -> Result<()> {
        loop {
            match self.next(Instant::now()) {
                Ok(_) => {}
                Err(error) if self.is_over => return Err(error),
                Err(_) => return Ok(()),
            }
        }
    }

    /// Waits for news, until then at most.
    pub fn read_until(&mut self, until: Instant) -> Result<()> {
        match self.next(until.min(Instant::now() + CHECK_EVERY)) {
            Err(error) if self.is_over => Err(error),
            _ => Ok(()),
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn hosts(&self, wanted: &Selector) -> Vec<String> {
        let fleet = self.fleet(wanted).hosts;
        fleet.into_iter().map(|host| host.host).collect()
    }

    pub fn fleet(&self, wanted: &Selector) -> Fleet {
        let host = |(name, known): (&String, &Known)| {
            let labels = known.state.as_ref().map(|state| state.labels.clone()).unwrap_or_default();
            let states = known.states();
            let operators =
                draft::alive(&states).map(|(operator, one)| (one.capture.name.clone(), operator.to_owned()));
            wanted.selects(name, &labels).then(|| Host {
                host: name.clone(),
                labels,
                revision: known.followed().map(|(_, wish)| wish.revision).max().unwrap_or(0),
                operators: operators.collect(),
                behind: known.behind(),
                follows: known.state.is_some() && known.behind().is_none(),
                error: if known.unreadable { Some(UNREADABLE.to_owned()) } else { known.error() },
                age_ns: known.age_ns(),
                silent: known.is_silent(),
                state: known.current_state(),
            })
        };
        Fleet { hosts: self.hosts.iter().filter_map(host).collect() }
    }

    /// Changes this operator's desired states of hosts, all at once; if another command of this operator was faster, the
    /// change applies to its state. An unsigned state is replaced, but not one of a newer trawl.
    pub fn change(&mut self, hosts: &[String], change: &Alter<'_>) -> Result<BTreeMap<String, Changed>> {
        let own = self.own.clone().map_err(|why| Error::failed("cannot sign a desired state", why))?;
        let mut done = BTreeMap::new();
        let mut left = hosts.to_vec();
        for _ in 0..ATTEMPTS {
            let known = self.hosts.values().flat_map(|known| known.wishes.keys().map(String::as_str));
            let replaced = draft::replaceable(&self.replace, known)?;
            let mut sent = BTreeMap::new();
            for host in left.drain(..) {
                match self.prepare_change(&host, change, &own, &replaced)? {
                    Ok((put, state)) => {
                        self.bus.send(put.clone());
                        sent.insert(host, (put, state));
                    }
                    Err(why) => {
                        done.insert(host, Err(why));
                    }
                }
            }
            let mut conflicts = Vec::new();
            let mut until = Instant::now() + PATIENCE;
            while !sent.is_empty() {
                let answered = match self.next(until)? {
                    Some(Answer::Stored { host, number }) => sent.remove(&host).map(|(put, state)| {
                        let revision = put.revision;
                        self.entry(&host).wishes.insert(own.clone(), Wish { number, revision, state: Ok(state) });
                        done.insert(host, Ok(revision));
                    }),
                    Some(Answer::Failed { host, why }) => sent.remove(&host).map(|_| {
                        done.insert(host, Err(why));
                    }),
                    Some(Answer::Conflict { host }) => sent.remove(&host).map(|(put, _)| conflicts.push(put)),
                    _ => None,
                };
                if answered.is_some() {
                    until = Instant::now() + PATIENCE;
                }
            }
            for put in conflicts {
                // The other command's change arrives soon.
                while self.number(&put.host, &own) == put.number {
                    self.next(until)?;
                }
                left.push(put.host);
            }
            if left.is_empty() {
                return Ok(done);
            }
        }
        let failed = |host| (host, Err("other commands changed it at each attempt; try again".to_owned()));
        done.extend(left.into_iter().map(failed));
        Ok(done)
    }

    /// Returns the server's number of an operator's desired state of a host; 0 if there is none.
    fn number(&self, host: &str, operator: &str) -> u64 {
        let wish = self.hosts.get(host).and_then(|known| known.wishes.get(operator));
        wish.map_or(0, |wish| wish.number)
    }

    /// Returns this operator's changed state of a host.
    fn prepare_change(
        &mut self,
        host: &str,
        change: &Alter<'_>,
        own: &str,
        replaced: &BTreeSet<String>,
    ) -> Result<std::result::Result<(Put, State), String>> {
        let known = &*self.entry(host);
        let (number, last) = known.wishes.get(own).map_or((0, 0), |wish| (wish.number, wish.revision));
        if let Some(Err(Ignored { why, is_newer: true })) = known.wishes.get(own).map(|wish| &wish.state) {
            return Ok(Err(format!("its desired state may come from a newer trawl, and is not changed: {why}")));
        }
        // A server that lost its data counts from 1 again, but agents ignore older revisions.
        let revision = (last + 1).max(clock::wall() / NANOSECONDS);
        let states = known.states();
        let mut draft = Draft {
            own,
            states: &states,
            replaced,
            may_end: &|capture| known.may_end(own, capture),
            revision,
            state: draft::current(own, &states),
        };
        if let Err(why) = change(host, &mut draft) {
            return Ok(Err(why));
        }
        let state = draft.state;
        let value = serde_json::to_string(&state).map_err(|e| Error::failed("cannot write JSON", e))?;
        Ok(Ok((Put { host: host.to_owned(), number, revision, value }, state)))
    }

    /// Updates the changes by their hosts' reports, until `settle` returns true for each, or the time is over. Changes
    /// with an error are settled.
    fn await_reports(
        &mut self,
        changes: &mut [Change],
        patience: Duration,
        settle: impl Fn(&Known, &mut Change) -> bool,
    ) -> Result<()> {
        let until = Instant::now() + patience;
        while !self.read_reports(changes, &settle) && Instant::now() < until {
            self.read_until(until)?;
        }
        Ok(())
    }

    /// Updates the changes by their hosts' reports; returns true if all are settled.
    fn read_reports(&mut self, changes: &mut [Change], settle: impl Fn(&Known, &mut Change) -> bool) -> bool {
        let mut all = true;
        for change in changes.iter_mut().filter(|one| one.error.is_none()) {
            all &= settle(self.entry(&change.host), change);
        }
        all
    }

    /// Waits until a host matches, and then until the others have had the time to report.
    pub fn await_hosts(&mut self, wanted: &Selector) -> Result<Vec<String>> {
        let mut until = Instant::now() + ANSWER;
        let mut found = Vec::new();
        loop {
            let hosts = self.hosts(wanted);
            if found.is_empty() && !hosts.is_empty() {
                until = until.min(Instant::now() + REPEATED);
            }
            found = hosts;
            if Instant::now() >= until {
                return Ok(found);
            }
            self.read_until(until)?;
        }
    }

    /// Waits until each changed host has accepted or refused the capture, and with `wait` until it runs or has ended.
    pub fn await_start(&mut self, changes: &mut [Change], name: &str, wait: Option<Duration>) -> Result<()> {
        let patience = wait.unwrap_or(ANSWER);
        let own = self.own.clone().unwrap_or_default();
        self.await_reports(changes, patience, |known, change| {
            match known.answer(&own, change.revision.unwrap_or(0), name) {
                Some(Ok(phase)) => {
                    change.phase = Some(phase);
                    wait.is_none() || matches!(phase, Phase::Running | Phase::Finished)
                }
                Some(Err(why)) => {
                    change.error = Some(why);
                    true
                }
                None => false,
            }
        })?;
        for change in changes.iter_mut().filter(|one| one.error.is_none()) {
            change.error = match change.phase {
                None => Some(self.entry(&change.host).why_unanswered("the capture starts")),
                Some(Phase::Running | Phase::Finished) => None,
                Some(phase) if wait.is_some() => {
                    let seconds = patience.as_secs_f64();
                    Some(format!("the capture is still {} after {seconds} s", phase_text(phase)))
                }
                Some(_) => None,
            };
        }
        Ok(())
    }

    /// Updates the parts of an incident by their hosts' reports; returns true once each host has frozen its packets, and
    /// with `stored` once they are stored. A host whose agent does not answer delays nothing.
    pub fn read_parts(&mut self, changes: &mut [Change], id: &str, stored: bool) -> bool {
        self.read_reports(changes, |known, change| {
            let report = known.incident(id);
            let is_settled = match report.as_ref().map(|report| report.phase) {
                None => known.is_absent(),
                Some(IncidentPhase::Freezing | IncidentPhase::Unknown) => known.is_absent(),
                Some(IncidentPhase::Frozen) => !stored || known.is_absent(),
                Some(IncidentPhase::Stored | IncidentPhase::Failed) => true,
            };
            change.error = report.as_ref().and_then(|report| report.error.clone());
            change.incident = report;
            is_settled
        })
    }

    /// Writes the reasons why hosts have not frozen or stored their parts within the time that they had.
    pub fn explain_parts(&mut self, changes: &mut [Change], stored: bool, waited: Duration) {
        let seconds = waited.as_secs();
        for change in changes.iter_mut().filter(|one| one.error.is_none()) {
            let known = self.entry(&change.host);
            change.error = match change.incident.as_ref().map(|one| one.phase) {
                None => Some(known.why_unanswered("the incident is stored")),
                Some(IncidentPhase::Stored | IncidentPhase::Failed) => None,
                Some(IncidentPhase::Frozen) if !stored => None,
                Some(_) if known.is_absent() => Some(known.why_unanswered("the incident is stored")),
                Some(IncidentPhase::Frozen) => {
                    Some(format!("its packets are frozen, but not stored after {seconds} s"))
                }
                Some(_) => Some(format!("its packets are not frozen after {seconds} s")),
            };
        }
    }

    /// Returns the time that hosts have to freeze a window that ends then, or with `wait` to store it.
    pub fn patience(to_ns: u64, wait: Option<Duration>) -> Duration {
        wait.unwrap_or(ANSWER) + Duration::from_nanos(to_ns.saturating_sub(clock::wall()))
    }

    /// Returns the latest events of each of these hosts.
    pub fn events(&self, wanted: &Selector) -> Vec<(String, Vec<HostEvent>)> {
        let hosts = self.fleet(wanted).hosts.into_iter();
        hosts.filter_map(|host| Some((host.host, events(&host.state?)))).collect()
    }

    pub fn end(self) {
        self.bus.end();
    }
}

/// Maximum number of characters of a name or message that a host reports.
const LONGEST_TEXT: usize = 512;
/// Maximum number of entries of a list that a host reports.
const MOST_ENTRIES: usize = 10_000;

/// Returns true if a desired state is a JSON object, as operators write it.
fn is_document(text: &str) -> bool {
    serde_json::from_str(text).is_ok_and(|value: Value| value.is_object())
}

/// Parses a host's report, which may come from anyone. Texts and lists are cut, and characters that would forge rows or
/// control the terminal are replaced.
fn parsed_report(text: &str) -> Option<HostReport> {
    let mut report = bounded(serde_json::from_str(text).ok()?);
    let captures = report.get_mut("captures").and_then(Value::as_array_mut);
    for capture in captures.into_iter().flatten() {
        if CaptureReport::deserialize(&*capture).is_err() {
            *capture = without_unknown(capture);
        }
    }
    serde_json::from_value(report).ok()
}

/// Returns the fields of a capture that every trawl reports, without the options of a newer one.
fn without_unknown(capture: &Value) -> Value {
    json!({
        "name": capture["name"], "interfaces": [], "store": "", "phase": capture["phase"], "starts": 0, "failures": 0,
        "error": "its agent reports it in a format that this trawl does not know: update it",
        "account": capture["account"],
    })
}

fn bounded(value: Value) -> Value {
    let text = |text: String| -> String {
        let plain = text.chars().map(|letter| if controls_terminal(letter) { '.' } else { letter });
        plain.take(LONGEST_TEXT).collect()
    };
    match value {
        Value::String(one) => Value::String(text(one)),
        Value::Array(all) => all.into_iter().take(MOST_ENTRIES).map(bounded).collect(),
        Value::Object(all) => {
            let entries = all.into_iter().take(MOST_ENTRIES);
            Value::Object(entries.map(|(key, value)| (text(key), bounded(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Labels;

    #[test]
    fn reports_of_hosts_are_cut_and_forge_no_rows() {
        let long = "n".repeat(400_000);
        let hostile = json!([long, {"a\nb": "x\n\u{1b}[2J\u{202e}y"}]);
        let bounded = bounded(hostile);
        assert_eq!(bounded[0].as_str().map(str::len), Some(LONGEST_TEXT));
        assert_eq!(bounded[1]["a.b"], "x..[2J.y");
    }

    #[test]
    fn report_of_a_newer_agent_is_shown() {
        let account = json!({ "seen": 9, "filtered_out": 0, "recorded": 7, "lost": {}, "sampled": 2 });
        let capture = |name: &str, phase: &str, more: Value| {
            let mut capture = json!({
                "name": name, "interfaces": ["eth0"], "store": "file:///s", "phase": phase, "starts": 1, "failures": 0,
                "account": account,
            });
            let all = capture.as_object_mut().expect("an object");
            all.extend(more.as_object().expect("an object").clone());
            capture
        };
        let report = json!({
            "host": "h", "revision": 3, "time_ns": 1, "trawl": "99", "mood": "good",
            "captures": [
                capture("a", "running", json!({ "colour": "red" })),
                capture("b", "hibernating", json!({})),
                capture("c", "refused", json!({ "refused": { "kind": "weekday", "day": 7 } })),
                capture("d", "running", json!({ "process": "ancestors" })),
            ],
        });
        let read = parsed_report(&report.to_string()).expect("a report");
        let phases: Vec<Phase> = read.captures.iter().map(|one| one.phase).collect();
        let expected = [Phase::Running, Phase::Unknown, Phase::Refused, Phase::Running];
        assert_eq!(phases, expected);
        assert!(read.captures.iter().all(|one| one.account.recorded == 7));
        let refused = read.captures[2].refused.as_ref().map(ToString::to_string);
        assert_eq!(refused.as_deref(), Some("policy: a reason that only a newer trawl knows"));
        let error = read.captures[3].error.as_deref().unwrap_or_default();
        assert!(error.contains("update it"), "{error}");
    }

    #[test]
    fn error_of_an_agent_that_does_not_follow_is_named() {
        let error = State::parse(r#"{"captures": [], "colour": 1}"#).unwrap_err();
        let state = HostReport {
            host: "h".to_owned(),
            labels: Labels::new(),
            revision: 1,
            revisions: BTreeMap::from([("U1".to_owned(), 1)]),
            operators: Vec::new(),
            time_ns: 0,
            trawl: "0".to_owned(),
            error: Some(error.to_string()),
            stopping: false,
            incidents: Vec::new(),
            captures: Vec::new(),
            slow_events: Vec::new(),
            answers_key: None,
        };
        let known = Known { state: Some(state), heard_ns: clock::since_boot().cast_signed(), ..Known::default() };
        assert_eq!(known.answer("U1", 2, "a"), None);
        let why = known.why_unanswered("the capture starts");
        assert!(why.contains("colour") && why.contains("newer trawl"), "{why}");
    }
}
