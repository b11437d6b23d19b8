//! The source of an agent's desired states: a file, or the operators' commands on a bus.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trawl_front::terminal;
use trawl_sys::events::Wake;
use trawl_sys::{
    Result,
    files::{create, text_file},
};

use super::{Command, Desired, Event, HostReport, Order, Record, State};
use crate::bus::agent::{self, Bus, Message, Request};
use crate::bus::{self, Answers, Config, shown};

/// Interval at which the file is read, or the connection to the bus is checked.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Time between two starts of the connection, if it ends.
const RESTART: Duration = Duration::from_secs(2);
/// Time between two puts of an unchanged state, by which operators see that the agent runs.
const PUT_EVERY: Duration = Duration::from_secs(3);

/// News for the agent.
pub enum News {
    /// A desired state, and who has sent it; nobody if it is a file, or if an earlier agent has got it.
    Event(Event, Option<Order>),
    /// A command that changes no desired state, or that is refused.
    Command(Order, Command, Option<String>),
}

pub enum Source {
    File {
        path: PathBuf,
        /// The text that was read last, or the error.
        last: Option<std::result::Result<String, String>>,
        /// Number of changes.
        revision: u64,
        read: Option<Instant>,
    },
    Bus(Box<OnBus>),
}

pub struct OnBus {
    config: Config,
    answers: Arc<Answers>,
    wake: Wake,
    bus: Option<Bus>,
    started: Instant,
    put: Instant,
    last_state: Option<HostReport>,
    said: Option<String>,
    /// The latest revision of each operator, of earlier agents too: older ones are ignored.
    latest: BTreeMap<String, u64>,
    /// The revision of each operator that this agent has reported; `None` for the absence of a state.
    reported: BTreeMap<String, Option<u64>>,
    is_connected: bool,
    /// The last refused command.
    refused: Option<(Order, String)>,
    revisions_file: PathBuf,
}

/// Returns the remembered revisions; none if the file is missing or damaged.
fn remembered_revisions(path: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Bus(bus) => {
                let Config { name, url, .. } = &bus.config;
                write!(f, "trawl.cmd.*.{name} at {}", shown(url))
            }
        }
    }
}

impl Source {
    pub fn file(path: PathBuf) -> Self {
        Self::File { path, last: None, revision: 0, read: None }
    }

    /// Creates the source of the operators' desired states. The last revision of each is remembered in a file: older ones
    /// are ignored.
    pub fn bus(config: Config, answers: Answers, revisions_file: PathBuf, wake: &Wake) -> Result<Self> {
        let answers = Arc::new(answers);
        let bus = agent::start(config.clone(), Arc::clone(&answers), wake)?;
        Ok(Self::Bus(Box::new(OnBus {
            config,
            answers,
            wake: wake.clone(),
            bus: Some(bus),
            started: Instant::now(),
            put: Instant::now(),
            last_state: None,
            said: None,
            latest: remembered_revisions(&revisions_file),
            reported: BTreeMap::new(),
            is_connected: false,
            refused: None,
            revisions_file,
        })))
    }

    /// Checks the file: an error at the start is a usage error; later the previous state stays.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::File { path, .. } => Desired::parse(&text_file::read(path)?).map(drop),
            Self::Bus(_) => Ok(()),
        }
    }

    pub fn news(&mut self) -> Vec<News> {
        match self {
            Self::File { path, last, revision, read } => {
                if read.is_some_and(|read| read.elapsed() < READ_EVERY) {
                    return Vec::new();
                }
                *read = Some(Instant::now());
                let text = text_file::read(path).map_err(|e| e.to_string());
                if last.as_ref() == Some(&text) {
                    return Vec::new();
                }
                *revision += 1;
                *last = Some(text.clone());
                let state = text.and_then(|text| Desired::parse(&text).map_err(|e| e.to_string()));
                vec![News::Event(event(None, *revision, state.map(State::from)), None)]
            }
            Self::Bus(bus) => bus.news(),
        }
    }

    /// Returns the time until `news` must be called again.
    pub fn rest(&self) -> Duration {
        match self {
            Self::File { read, .. } => read.map_or(Duration::ZERO, |read| READ_EVERY.saturating_sub(read.elapsed())),
            Self::Bus(bus) => READ_EVERY.min(PUT_EVERY.saturating_sub(bus.put.elapsed())),
        }
    }

    pub fn publish(&mut self, report: &HostReport) {
        if let Self::Bus(bus) = self {
            bus.last_state = Some(HostReport { answers_key: Some(bus.answers.public_key()), ..report.clone() });
            bus.put();
        }
    }

    /// Returns true while the bus is connected; `None` without a bus.
    pub fn is_connected(&self) -> Option<bool> {
        match self {
            Self::File { .. } => None,
            Self::Bus(bus) => Some(bus.is_connected),
        }
    }

    /// Adds a command to the log of the bus.
    pub fn log(&self, record: &Record) {
        if let Self::Bus(bus) = self
            && let (Some(bus), Ok(text)) = (&bus.bus, serde_json::to_string(record))
        {
            bus.send(Request::Log(text));
        }
    }

    pub fn end(self) {
        if let Self::Bus(bus) = self
            && let Some(bus) = bus.bus
        {
            bus.end();
        }
    }
}

fn event(sender: Option<String>, revision: u64, state: std::result::Result<State, String>) -> Event {
    match state {
        Ok(state) => Event::Desired { sender, revision, state },
        Err(why) => {
            terminal::say(&format!("{why}; the agent follows the previous state"));
            Event::Unreadable { sender, revision, why }
        }
    }
}

impl OnBus {
    fn news(&mut self) -> Vec<News> {
        let mut found = Vec::new();
        let url = shown(&self.config.url);
        let news: Vec<bus::News<Message>> = self.bus.iter().flat_map(|bus| bus.news.try_iter()).collect();
        for one in news {
            match one {
                bus::News::Message(Message::State { operator, revision, value }) => {
                    found.extend(self.follow(operator, revision, &value));
                }
                bus::News::Message(Message::Nothing { operator }) => {
                    if !self.reported.contains_key(&operator) {
                        self.reported.insert(operator.clone(), None);
                        found.push(News::Event(Event::Nothing { operator }, None));
                    }
                }
                bus::News::Message(Message::Asked { operator }) => {
                    let order = Order { operator: Some(operator), revision: None };
                    found.push(News::Command(order, Command::Ask, None));
                }
                bus::News::Message(Message::Ignored { operator, revision, why }) => {
                    found.extend(self.refuse(Order { operator, revision }, Command::Unknown, why));
                }
                bus::News::Message(Message::Unanswered { why }) => {
                    found.extend(self.refuse(Order::default(), Command::Ask, why));
                }
                bus::News::Connected => {
                    self.is_connected = true;
                    self.say(format!("connected to {url}"));
                    self.put();
                }
                bus::News::Disconnected => {
                    self.is_connected = false;
                    self.say(format!("the connection to {url} is lost; captures continue"));
                }
                bus::News::Ended(why) => {
                    self.is_connected = false;
                    self.say(format!("{url}: {why}"));
                }
                bus::News::Refused(why) => self.say(format!("{url}: {why}")),
            }
        }
        let is_over = self.bus.as_ref().is_none_or(Bus::is_over);
        if is_over && self.started.elapsed() >= RESTART {
            self.started = Instant::now();
            match agent::start(self.config.clone(), Arc::clone(&self.answers), &self.wake) {
                Ok(bus) => self.bus = Some(bus),
                Err(error) => self.say(error.to_string()),
            }
            self.put();
        }
        if self.put.elapsed() >= PUT_EVERY {
            self.put();
        }
        found
    }

    /// Reports a refused command, unless it is the last one again.
    fn refuse(&mut self, order: Order, command: Command, why: String) -> Option<News> {
        let refused = Some((order.clone(), why.clone()));
        if self.refused == refused {
            return None;
        }
        self.refused = refused;
        Some(News::Command(order, command, Some(why)))
    }

    /// Follows an operator's desired state. It arrives repeatedly, in case it was missed: only a newer revision counts.
    fn follow(&mut self, operator: String, revision: u64, value: &str) -> Option<News> {
        let latest = self.latest.get(&operator).copied();
        let reported = self.reported.get(&operator).copied().flatten();
        if latest > Some(revision) || reported >= Some(revision) {
            return None;
        }
        self.reported.insert(operator.clone(), Some(revision));
        // An earlier agent may have reported it.
        let is_new = latest < Some(revision);
        if is_new {
            self.latest.insert(operator.clone(), revision);
            self.save_revisions();
        }
        let order = Order { operator: Some(operator.clone()), revision: Some(revision) };
        let state = State::parse(value).map_err(|e| e.to_string());
        Some(News::Event(event(Some(operator), revision, state), Some(order).filter(|_| is_new)))
    }

    fn save_revisions(&mut self) {
        let text = serde_json::to_vec(&self.latest).unwrap_or_default();
        if let Err(error) = create::replace(&self.revisions_file, &text) {
            let path = self.revisions_file.display();
            self.say(format!("cannot write {path}: {error}"));
        }
    }

    fn put(&mut self) {
        self.put = Instant::now();
        if let (Some(bus), Some(state)) = (&self.bus, &self.last_state)
            && let Ok(text) = serde_json::to_string(state)
        {
            bus.send(Request::Put(text));
        }
    }

    /// Prints a message, unless it repeats the last one.
    fn say(&mut self, message: String) {
        if self.said.as_ref() != Some(&message) {
            terminal::say(&message);
            self.said = Some(message);
        }
    }
}
