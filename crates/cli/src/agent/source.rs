//! Where the desired state comes from: a file that is looked at again and again, or a bus.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trawl_agent::{Desired, Event, HostReport};
use trawl_sys::events::Wake;
use trawl_sys::{Result, create, text_file};

use super::bus::{Bus, BusArgs, shown};
use crate::terminal;

const READ_EVERY: Duration = Duration::from_millis(500);
/// Between two starts of trawl-bus, if it ends.
const RESTART: Duration = Duration::from_secs(2);
/// Between two puts of a state that stays the same: the bus may have been without its bucket.
const PUT_EVERY: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum News {
    Connected,
    Disconnected,
    Refused { why: String },
    Desired { revision: u64, value: String },
}

#[derive(Serialize)]
struct Put<'a> {
    state: &'a HostReport,
}

pub(super) enum Source {
    File {
        path: PathBuf,
        /// What was read last, or why it could not be.
        last: Option<std::result::Result<String, String>>,
        /// How often it has changed.
        revision: u64,
        read: Option<Instant>,
    },
    Bus(Box<OnBus>),
}

pub(super) struct OnBus {
    url: String,
    host: String,
    operators: Vec<String>,
    args: BusArgs,
    wake: Wake,
    bus: Option<Bus<News>>,
    started: Instant,
    put: Instant,
    last_state: Option<HostReport>,
    said: Option<String>,
    /// The latest that was told.
    revision: u64,
    revision_file: PathBuf,
}

/// Zero where there is no such file, or damage.
fn remembered(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Bus(bus) => write!(f, "trawl.cmd.{} at {}", bus.host, shown(&bus.url)),
        }
    }
}

impl Source {
    pub fn file(path: PathBuf) -> Self {
        Self::File {
            path,
            last: None,
            revision: 0,
            read: None,
        }
    }

    /// What these operators desire. The last revision is remembered in a file: an older one is not followed, whoever sends
    /// it again.
    pub fn bus(
        url: &str,
        host: &str,
        operators: Vec<String>,
        revision_file: PathBuf,
        args: &BusArgs,
        wake: &Wake,
    ) -> Result<Self> {
        let bus = Bus::start("agent", url, host, &operators, args, Some(wake))?;
        Ok(Self::Bus(Box::new(OnBus {
            url: url.to_owned(),
            host: host.to_owned(),
            operators,
            args: args.clone(),
            wake: wake.clone(),
            bus: Some(bus),
            started: Instant::now(),
            put: Instant::now(),
            last_state: None,
            said: None,
            // What is desired now is told again.
            revision: remembered(&revision_file).saturating_sub(1),
            revision_file,
        })))
    }

    /// A file that is wrong at the start is a wrong usage; later the state before stays.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::File { path, .. } => Desired::parse(&text_file::read(path)?).map(drop),
            Self::Bus(_) => Ok(()),
        }
    }

    pub fn events(&mut self) -> Vec<Event> {
        match self {
            Self::File {
                path,
                last,
                revision,
                read,
            } => {
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

    pub fn tell(&mut self, report: &HostReport) {
        if let Self::Bus(bus) = self {
            bus.last_state = Some(report.clone());
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
            terminal::say(&format!("{why}; the state before stays"));
            Event::Unreadable { revision, why }
        }
    }
}

impl OnBus {
    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let news: Vec<News> = self
            .bus
            .iter()
            .flat_map(|bus| bus.news.try_iter())
            .collect();
        for one in news {
            match one {
                // The same one is told again and again, in case that it was missed.
                News::Desired { revision, value } if revision > self.revision => {
                    self.revision = revision;
                    let text = revision.to_string();
                    if let Err(error) = create::replace(&self.revision_file, text.as_bytes()) {
                        let path = self.revision_file.display();
                        self.say(format!("cannot write {path}: {error}"));
                    }
                    events.push((revision, value));
                }
                News::Desired { .. } => {}
                News::Connected => {
                    self.say(format!("connected to {}", shown(&self.url)));
                    self.put();
                }
                News::Disconnected => self.say(format!(
                    "no connection to {}; captures continue",
                    shown(&self.url)
                )),
                News::Refused { why } => self.say(format!("{}: {why}", shown(&self.url))),
            }
        }
        if self.bus.as_mut().is_none_or(Bus::is_over) && self.started.elapsed() >= RESTART {
            self.started = Instant::now();
            self.say("trawl-bus ended and is started again".to_owned());
            self.bus = None;
            let (url, host, operators) = (&self.url, &self.host, &self.operators);
            match Bus::start("agent", url, host, operators, &self.args, Some(&self.wake)) {
                Ok(bus) => self.bus = Some(bus),
                Err(error) => self.say(error.to_string()),
            }
            self.put();
        }
        if self.put.elapsed() >= PUT_EVERY {
            self.put();
        }
        let events = events.into_iter();
        events
            .map(|(revision, value)| event(revision, Ok(value)))
            .collect()
    }

    fn put(&mut self) {
        self.put = Instant::now();
        if let (Some(bus), Some(state)) = (&mut self.bus, &self.last_state) {
            // One that has ended is started again.
            let _ = bus.send(&Put { state });
        }
    }

    /// What is the same again and again is said once.
    fn say(&mut self, words: String) {
        if self.said.as_ref() != Some(&words) {
            terminal::say(&words);
            self.said = Some(words);
        }
    }
}
