//! The source of an agent's desired state: a file, or the operators' commands on a bus.

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

use super::{Desired, Event, HostReport};
use crate::bus::agent::{self, Bus};
use crate::bus::{Answers, Config, News, shown};

/// Interval at which the file is read, or the connection to the bus is checked.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Time between two starts of the connection, if it ends.
const RESTART: Duration = Duration::from_secs(2);
/// Time between two puts of an unchanged state, by which operators see that the agent runs.
const PUT_EVERY: Duration = Duration::from_secs(3);

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
    /// The latest revision that was reported.
    revision: u64,
    revision_file: PathBuf,
}

/// Returns the remembered revision; zero if the file is missing or damaged.
fn remembered_revision(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Bus(bus) => {
                let Config { name, url, .. } = &bus.config;
                write!(f, "trawl.cmd.{name} at {}", shown(url))
            }
        }
    }
}

impl Source {
    pub fn file(path: PathBuf) -> Self {
        Self::File { path, last: None, revision: 0, read: None }
    }

    /// Creates the source of the operators' desired state. The last revision is remembered in a file: older ones are
    /// ignored from any sender.
    pub fn bus(config: Config, answers: Answers, revision_file: PathBuf, wake: &Wake) -> Result<Self> {
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
            // The revision before the remembered one, so that the current state is reported again.
            revision: remembered_revision(&revision_file).saturating_sub(1),
            revision_file,
        })))
    }

    /// Checks the file: an error at the start is a usage error; later the previous state stays.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::File { path, .. } => Desired::parse(&text_file::read(path)?).map(drop),
            Self::Bus(_) => Ok(()),
        }
    }

    pub fn events(&mut self) -> Vec<Event> {
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
                vec![event(*revision, text)]
            }
            Self::Bus(bus) => bus.events(),
        }
    }

    /// Returns the time until `events` must be called again.
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

    pub fn end(self) {
        if let Self::Bus(bus) = self
            && let Some(bus) = bus.bus
        {
            bus.end();
        }
    }
}

fn event(revision: u64, text: std::result::Result<String, String>) -> Event {
    let parsed = text.and_then(|text| Desired::parse(&text).map_err(|e| e.to_string()));
    match parsed {
        Ok(desired) => Event::Desired { revision, desired },
        Err(why) => {
            terminal::say(&format!("{why}; the agent follows the previous state"));
            Event::Unreadable { revision, why }
        }
    }
}

impl OnBus {
    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let url = shown(&self.config.url);
        let news: Vec<News<agent::Command>> = self.bus.iter().flat_map(|bus| bus.news.try_iter()).collect();
        for one in news {
            match one {
                // Operators' states arrive repeatedly, in case one was missed: only a newer revision counts.
                News::Message(command) if command.revision > self.revision => {
                    self.revision = command.revision;
                    let text = command.revision.to_string();
                    if let Err(error) = create::replace(&self.revision_file, text.as_bytes()) {
                        let path = self.revision_file.display();
                        self.say(format!("cannot write {path}: {error}"));
                    }
                    events.push(event(command.revision, Ok(command.value)));
                }
                News::Message(_) => {}
                News::Connected => {
                    self.say(format!("connected to {url}"));
                    self.put();
                }
                News::Disconnected => {
                    self.say(format!("the connection to {url} is lost; captures continue"));
                }
                News::Refused(why) | News::Ended(why) => self.say(format!("{url}: {why}")),
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
        events
    }

    fn put(&mut self) {
        self.put = Instant::now();
        if let (Some(bus), Some(state)) = (&self.bus, &self.last_state)
            && let Ok(text) = serde_json::to_string(state)
        {
            bus.send(text);
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
