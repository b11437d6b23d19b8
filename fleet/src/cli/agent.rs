//! `trawl fleet agent`: follows the desired state of this host, from a file or a bus, within the limits of the host's
//! policy. `Machine` makes the decisions; this module has the clock, and carries them out.

mod companion;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trawl_front::{json, published, terminal};
use trawl_plan::outputs::StorePlan;
use trawl_spool::default_spool;
use trawl_sys::events::{self, Signals, Wake};
use trawl_sys::{
    Error, Result, clock,
    files::{create, run, text_file},
    host,
};

use super::bus::BusArgs;
use super::health::{Facts, Health, refusals};
use crate::agent::{
    Action, Command, Counts, End, Event, Freezer, HostEvent, HostReport, IncidentReport, Machine, Memory, News, Now,
    Order, Place, Policy, Push, Record, Refused, Role, Running, Source, remove_unfinished,
};
use crate::bus::{Answers, Config, is_key, shown};
use companion::Companion;
use trawl_store::chunks::on_hosts;

/// Runs the desired captures of this host: starts each once, and stops it when it is no longer desired
///
/// The policy file is TOML and limits only the keys that it names: labels (a table), interfaces, taps and stores (lists
/// with *), pods (as for capture --pod; if only interfaces are named, no pods), filter (joined to each capture's by
/// "and"), max_captures, max_duration_seconds, max_size_bytes, max_memory_bytes, max_spool_bytes, max_snaplen, index
/// (false: chunks are not indexed here) and process (a list of permitted data about processes: plain, full, comment).
/// With --nats, operators (a list of public keys) names the operators whose commands are followed, with all rights. Each
/// [[operator]] is one with some: key, name (for messages), roles (of look: to ask for packets that stay here, trigger:
/// incidents, start: to start and end captures) and captures (the names for its captures, with *). Captures end with the
/// agent, and continue without a connection to the bus.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Follow this file, in TOML or JSON; it is read again when it changes
    #[arg(long, value_name = "FILE", required_unless_present = "nats")]
    state: Option<PathBuf>,
    /// Follow trawl.cmd.*.HOST at this NATS server, or several (URL,URL), and keep the state at $KV.trawl.state.HOST
    #[arg(long, value_name = "URL", conflicts_with = "state", requires = "policy")]
    nats: Option<String>,
    #[command(flatten)]
    bus: BusArgs,
    /// Policy of this host: the limits of its captures
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The host's name on the bus and in stores [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Directory in which chunks wait until they are stored
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: PathBuf,
    /// Directory in which the agent remembers its captures, and locks them: one agent for each directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/trawl/agent")]
    memory: PathBuf,
    /// Serve this host's metrics for Prometheus at this address, as trawl serve --listen does
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Count the verdicts of each XDP program too, as trawl serve --verdicts does
    #[arg(long, requires = "metrics")]
    verdicts: bool,
    /// Report each cause of slow connections that trawl slow --all-namespaces finds as an event, for trawl fleet trigger
    /// --on-event; with --metrics, measure the TCP connections of processes too, as trawl serve --slow does
    #[arg(long)]
    slow: bool,
    /// Answer probes by HTTP at this address: /livez while the agent responds, /readyz if all desired captures run; and
    /// /metrics with figures about captures and the spool, for Prometheus
    #[arg(long, value_name = "ADDRESS:PORT")]
    health: Option<SocketAddr>,
    /// Write the state to this file when it changes
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the state when it changes, one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Maximum number of reported causes of slow connections.
const SLOW_EVENTS: usize = 16;

pub fn run(args: Args) -> Result<ExitCode> {
    let what = "cannot run an agent";
    let policy = match &args.policy {
        Some(path) => Policy::parse(&text_file::read(path)?)?,
        None => Policy::default(),
    };
    run::make_own(&args.memory)?;
    let signals = Signals::watch()?;
    let wake = Wake::new()?;
    let host = args.host.clone().unwrap_or_else(host::name);
    let source = match (&args.state, &args.nats) {
        (Some(path), _) => Source::file(path.clone()),
        (None, Some(url)) => {
            let operators = operators_of(&policy, url)?;
            let config = Config { operators, ..args.bus.config(url, &host)? };
            let spool = args.spool.clone();
            let rights = policy.clone();
            let answers = Answers::new(
                move |operator| rights.refuses_role(Some(operator), Role::Look).map(|refusal| refusal.to_string()),
                move |question| on_hosts::answer(&spool, question),
            );
            Source::bus(config, answers, args.memory.join("revisions.json"), &wake)?
        }
        (None, None) => return Err(Error::usage(what, "--state and --nats are missing")),
    };
    let memory = args.memory.join("captures.json");
    let incidents = args.memory.join("incidents.json");
    let remembered_incidents: Vec<IncidentReport> = read_list(&incidents);
    let boot = host::boot_id();
    let remembered = read_remembered(&memory, &boot);
    remove_unfinished(&args.spool);
    let mut agent = Agent {
        machine: Machine::new(policy, args.state.is_some(), remembered.clone(), remembered_incidents.clone()),
        source,
        place: Place { host, directory: args.memory, spool: args.spool },
        running: Vec::new(),
        freezers: Vec::new(),
        push: None,
        memory,
        boot,
        remembered,
        incidents,
        remembered_incidents,
        report: args.report,
        json: args.json,
        reported: None,
        slow_events: Vec::new(),
    };
    let (sender, slow_events) = mpsc::channel();
    let on_line = {
        let wake = wake.clone();
        move |text| {
            let _ = sender.send(HostEvent { time_ns: clock::wall(), text });
            wake.ring();
        }
    };
    let serving = args.metrics.map(|address| Companion::start(serve(address, args.verdicts, args.slow), None));
    let measuring = args.slow.then(|| Companion::start(SLOW.map(str::to_owned).into(), Some(Arc::new(on_line))));
    let mut companions = serving.into_iter().chain(measuring).collect::<Result<Vec<_>>>()?;
    let health = args.health.map(Health::listen).transpose()?;
    agent.source.check()?;
    let status = format!("following {}", agent.source);
    terminal::say(&status);
    published::ready(&status);
    while !agent.machine.is_over() {
        wake.clear();
        while let Some(signal) = signals.next() {
            if signal.ends() {
                published::stopping();
                agent.step(Event::Shutdown);
            }
        }
        agent.note_slow(slow_events.try_iter());
        agent.handle_events()?;
        companions.iter_mut().try_for_each(Companion::restart_if_ended)?;
        if let Some(health) = &health {
            health.answer(|| agent.facts());
        }
        let mut wakes = vec![signals.as_fd(), wake.as_fd()];
        wakes.extend(health.as_ref().map(AsFd::as_fd));
        wakes.extend(agent.wakes());
        events::wait(&wakes, agent.rest())?;
    }
    agent.save_memory()?;
    agent.source.end();
    Ok(ExitCode::SUCCESS)
}

/// Arguments of the command whose lines are causes of slow connections.
const SLOW: [&str; 3] = ["slow", "--all-namespaces", "--events"];

/// Returns the arguments of the command that serves metrics.
fn serve(address: SocketAddr, verdicts: bool, slow: bool) -> Vec<String> {
    let options = [(verdicts, "--verdicts"), (slow, "--slow")];
    let options = options.into_iter().filter(|(is_set, _)| *is_set).map(|(_, option)| option.to_owned());
    ["serve".to_owned(), "--listen".to_owned(), address.to_string()].into_iter().chain(options).collect()
}

/// Returns the public keys of the operators whom a policy names.
fn operators_of(policy: &Policy, url: &str) -> Result<Vec<String>> {
    let wrong = |why: String| {
        let fix = "operators = [\"U…\"] in the policy, with the key that trawl fleet key --nkey FILE shows";
        Error::usage(format!("cannot follow {}", shown(url)), why).fix(fix)
    };
    let operators: Vec<String> = policy.operators().map(str::to_owned).collect();
    if operators.is_empty() {
        return Err(wrong("the policy names no operators".to_owned()));
    }
    match operators.iter().find(|key| !is_key(key)) {
        Some(key) => Err(wrong(format!("'{key}' in the policy is no public key of an operator"))),
        None => Ok(operators),
    }
}

fn now() -> Now {
    Now { monotonic: clock::since_boot(), wall: clock::wall() }
}

/// Reads a list that an earlier agent saved; without the file, or with a damaged one, the list is empty.
fn read_list<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// A remembered capture, and the host's start from which its times are counted.
#[derive(Serialize, Deserialize)]
struct Remembered {
    #[serde(flatten)]
    memory: Memory,
    #[serde(default)]
    boot: String,
}

/// Reads the remembered captures.
fn read_remembered(path: &Path, boot: &str) -> Vec<Memory> {
    let adopted = |mut one: Remembered| {
        if one.boot != boot {
            one.memory.adopt(now());
        }
        one.memory
    };
    let all = read_list::<Remembered>(path).into_iter();
    all.map(adopted).collect()
}

struct Agent {
    machine: Machine,
    source: Source,
    place: Place,
    running: Vec<Running>,
    freezers: Vec<Freezer>,
    push: Option<Push>,
    memory: PathBuf,
    boot: String,
    remembered: Vec<Memory>,
    incidents: PathBuf,
    remembered_incidents: Vec<IncidentReport>,
    report: Option<PathBuf>,
    json: bool,
    reported: Option<HostReport>,
    slow_events: Vec<HostEvent>,
}

impl Agent {
    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.machine.step(now(), event) {
                events.extend(self.act(action));
            }
        }
    }

    /// Carries out an action of the machine; returns its immediate result.
    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Start { run, capture, kept } => {
                let counts = Counts::default();
                let end = match Running::start(run, &capture, kept, &self.place) {
                    Ok(running) => {
                        self.running.push(running);
                        return None;
                    }
                    Err(Refused::Held) => End::Held,
                    Err(Refused::Failed(error)) => {
                        terminal::say(&error.to_string());
                        End::Failed(error.to_string())
                    }
                };
                Some(Event::Ended { run, end, counts })
            }
            Action::Stop { run, force } => {
                let mut these = self.running.iter().filter(|one| one.run == run);
                these.by_ref().for_each(|one| one.stop(force));
                None
            }
            Action::Freeze(incident) => {
                let most = self.machine.spool_bytes().unwrap_or(StorePlan::SPOOL_BYTES);
                let freezer = Freezer::new(&self.place.spool, *incident, most);
                self.freezers.push(freezer);
                None
            }
            Action::Push => match Push::start(&self.place.spool) {
                Ok(push) => {
                    self.push = Some(push);
                    None
                }
                Err(_) => Some(Event::Pushed { all: false }),
            },
        }
    }

    /// Follows news of the source, and logs the operators' commands in them.
    fn follow(&mut self, news: News) {
        match news {
            News::Command(order, command, refused) => self.log(order, command, refused),
            News::Event(event, None) => self.step(event),
            News::Event(event, Some(order)) => {
                let commands = match &event {
                    Event::Desired { sender, state, .. } => self.machine.commands(sender, state),
                    Event::Unreadable { why, .. } => vec![(Command::Unknown, Some(why.clone()))],
                    _ => Vec::new(),
                };
                self.step(event);
                for (command, refused) in commands {
                    let refused = refused.or_else(|| self.machine.refuses(&order.operator, &command));
                    self.log(order.clone(), command, refused);
                }
            }
        }
    }

    fn log(&self, order: Order, command: Command, refused: Option<String>) {
        let record = Record { host: self.place.host.clone(), time_ns: clock::wall(), order, command, refused };
        terminal::say(&record.to_string());
        self.source.log(&record);
    }

    /// Handles all events since the last call.
    fn handle_events(&mut self) -> Result<()> {
        for news in self.source.news() {
            self.follow(news);
        }
        let mut events = Vec::new();
        self.running.retain_mut(|one| {
            let run = one.run;
            events.extend(one.events());
            if let Some((end, counts)) = one.ended() {
                events.push(Event::Ended { run, end, counts });
                return false;
            }
            true
        });
        let running = &self.running;
        self.freezers.retain_mut(|freezer| {
            let outcome = freezer.advance(&mut || running.iter().for_each(Running::seal));
            let goes_on = outcome.is_none();
            events.extend(outcome.map(|outcome| Event::Frozen { id: freezer.incident.id.clone(), outcome }));
            goes_on
        });
        if let Some(all) = self.push.as_mut().and_then(Push::ended) {
            self.push = None;
            events.push(Event::Pushed { all });
        }
        events.push(Event::Tick);
        events.into_iter().for_each(|event| self.step(event));
        self.save_memory()
    }

    /// Returns the descriptors of all processes of the agent.
    fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let of_captures = self.running.iter().flat_map(Running::wakes);
        of_captures.chain(self.push.as_ref().and_then(Push::wake))
    }

    /// Returns the time until `handle_events` must be called again, if no descriptor becomes readable.
    fn rest(&self) -> Duration {
        let now = now();
        let due = self.machine.due(now).map(|due| Duration::from_nanos(due - now.monotonic));
        let of_freezers = self.freezers.iter().map(Freezer::rest);
        of_freezers.chain(due).fold(self.source.rest(), Duration::min)
    }

    fn note_slow(&mut self, news: impl Iterator<Item = HostEvent>) {
        self.slow_events.extend(news);
        self.slow_events.drain(..self.slow_events.len().saturating_sub(SLOW_EVENTS));
    }

    fn state(&self) -> HostReport {
        let version = env!("CARGO_PKG_VERSION");
        let of_machine = self.machine.report(&self.place.host, version, now());
        HostReport { slow_events: self.slow_events.clone(), ..of_machine }
    }

    fn facts(&self) -> Facts {
        Facts {
            report: self.state(),
            is_connected: self.source.is_connected(),
            spool: trawl_spool::figures::of(&self.place.spool),
        }
    }

    /// Saves and reports changes of the state.
    fn save_memory(&mut self) -> Result<()> {
        let memory = self.machine.memory();
        if memory != self.remembered {
            let written = memory.iter().map(|memory| Remembered { memory: memory.clone(), boot: self.boot.clone() });
            replace(&self.memory, &written.collect::<Vec<_>>())?;
            self.remembered = memory;
        }
        let incidents = self.machine.incidents();
        if incidents != self.remembered_incidents {
            replace(&self.incidents, &incidents)?;
            self.remembered_incidents = incidents;
        }
        let report = self.state();
        let is_news = self.reported.as_ref().is_none_or(|old| {
            let same_time = HostReport { time_ns: old.time_ns, ..report.clone() };
            *old != same_time
        });
        if !is_news {
            return Ok(());
        }
        if let Some(path) = &self.report {
            replace(path, &report)?;
        }
        if self.json {
            json::print(&report)?;
        }
        self.say_refusals(&report);
        self.source.publish(&report);
        self.reported = Some(report);
        Ok(())
    }

    /// Prints each refusal that the last report did not have.
    fn say_refusals(&self, report: &HostReport) {
        let known = self.reported.as_ref().map(refusals).unwrap_or_default();
        let refused = refusals(report).into_iter();
        refused.filter(|one| !known.contains(one)).for_each(|one| terminal::say(&one));
    }
}

/// Replaces a file atomically: readers see the old file or the new one.
fn replace(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let text = serde_json::to_vec(value).map_err(|e| Error::failed(what(), e))?;
    create::replace(path, &text).map_err(|e| Error::os(what(), e))
}
