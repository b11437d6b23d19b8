//! What an operator knows of the hosts over the bus, and changes of what is desired of them.

use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trawl_agent::{Desired, HostReport, Selector};
use trawl_sys::events::Wake;
use trawl_sys::{Error, Result, clock};
use trawl_view::text::steers;

use super::show::{Fleet, Host};
use crate::agent::bus::{Bus, BusArgs, shown};

/// For the connection and the list, or for one answer.
const PATIENCE: Duration = Duration::from_secs(15);
const NANOSECONDS: u64 = 1_000_000_000;
/// Two operators that change the same host at once try again.
const ATTEMPTS: u32 = 10;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Desired,
    State,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum News {
    Entry {
        what: What,
        host: String,
        number: u64,
        revision: u64,
        value: String,
        refused: Option<String>,
    },
    Listed,
    Stored {
        host: String,
        number: u64,
    },
    Key {
        public: String,
    },
    Conflict {
        host: String,
    },
    Failed {
        host: String,
        why: String,
    },
    Connected,
    Disconnected,
    Refused {
        why: String,
    },
}

#[derive(Serialize)]
struct Request<'a> {
    host: &'a str,
    number: u64,
    revision: u64,
    value: String,
}

/// What became of a change.
pub(super) enum Put {
    Stored(u64),
    Failed(String),
}

#[derive(Default)]
struct Known {
    desired: Entry,
    state: Option<HostReport>,
}

/// What is desired of a host, as an operator signed it; nothing where no operator did.
#[derive(Clone, Default)]
struct Entry {
    /// The server's count of changes, by which two operators notice each other; 0: there was none.
    number: u64,
    revision: u64,
    text: String,
    refused: Option<String>,
}

pub(super) struct Operator {
    bus: Bus<News>,
    url: String,
    hosts: BTreeMap<String, Known>,
    /// What the server refused last.
    refused: Option<String>,
}

impl Operator {
    /// Returns once all that is known now is known here.
    pub fn open(url: &str, operators: &[String], args: &BusArgs, wake: &Wake) -> Result<Self> {
        let mut operator = Self {
            bus: Bus::start("fleet", url, "operator", operators, args, Some(wake))?,
            url: shown(url),
            hosts: BTreeMap::new(),
            refused: None,
        };
        while !matches!(operator.next(Instant::now() + PATIENCE)?, News::Listed) {}
        Ok(operator)
    }

    fn next(&mut self, until: Instant) -> Result<News> {
        let left = until.saturating_duration_since(Instant::now());
        let what = || format!("cannot ask {}", self.url);
        let news = self.bus.news.recv_timeout(left).map_err(|e| match e {
            RecvTimeoutError::Timeout => Error::failed(what(), "it does not answer"),
            // Its own words are on standard error.
            RecvTimeoutError::Disconnected => {
                let why = self.refused.clone();
                Error::failed(what(), why.unwrap_or("trawl-bus ended".to_owned()))
            }
        })?;
        match &news {
            News::Entry {
                what: What::Desired,
                host,
                number,
                revision,
                value,
                refused,
            } => {
                self.known(host).desired = Entry {
                    number: *number,
                    revision: *revision,
                    text: value.clone(),
                    refused: refused.clone(),
                }
            }
            News::Entry {
                what: What::State,
                host,
                value,
                ..
            } => self.known(host).state = state_of(value),
            News::Refused { why } => self.refused = Some(why.clone()),
            _ => {}
        }
        Ok(news)
    }

    fn known(&mut self, host: &str) -> &mut Known {
        self.hosts.entry(host.to_owned()).or_default()
    }

    /// Takes in what has come meanwhile.
    pub fn listen(&mut self) -> Result<()> {
        loop {
            match self.next(Instant::now()) {
                Ok(_) => {}
                Err(error) if self.bus.is_over() => return Err(error),
                Err(_) => return Ok(()),
            }
        }
    }

    pub fn hosts(&self, wanted: &Selector) -> Vec<String> {
        let fleet = self.fleet(wanted).hosts;
        fleet.into_iter().map(|host| host.host).collect()
    }

    pub fn fleet(&self, wanted: &Selector) -> Fleet {
        let host = |(name, known): (&String, &Known)| {
            let Entry {
                revision,
                text,
                refused,
                ..
            } = &known.desired;
            let revision = *revision;
            let desired = match refused {
                Some(why) => Err(why.clone()),
                None => Desired::parse(text).map_err(|error| error.to_string()),
            };
            let mut labels = desired.as_ref().map_or_else(
                |_| trawl_agent::desired::Labels::new(),
                |desired| desired.labels.clone(),
            );
            labels.extend(known.state.iter().flat_map(|state| state.labels.clone()));
            wanted.selects(name, &labels).then(|| Host {
                host: name.clone(),
                labels,
                revision,
                follows: known
                    .state
                    .as_ref()
                    .is_some_and(|state| state.revision == revision),
                error: desired.err(),
                state: known.state.clone(),
            })
        };
        Fleet {
            hosts: self.hosts.iter().filter_map(host).collect(),
        }
    }

    /// Changes what is desired of a host; if another operator was faster, what that one desires. What no operator signed, or
    /// what cannot be read, is replaced.
    pub fn change(&mut self, host: &str, change: &dyn Fn(&mut Desired)) -> Result<Put> {
        for _ in 0..ATTEMPTS {
            let entry = self.known(host).desired.clone();
            let mut desired = Desired::parse(&entry.text).unwrap_or_default();
            change(&mut desired);
            // A server that lost what it had counts anew, and agents follow no older revision.
            let revision = (entry.revision + 1).max(clock::wall() / NANOSECONDS);
            let value = serde_json::to_string(&desired);
            let value = value.map_err(|e| Error::failed("cannot write JSON", e))?;
            let request = Request {
                host,
                number: entry.number,
                revision,
                value: value.clone(),
            };
            self.bus.send(&request)?;
            let until = Instant::now() + PATIENCE;
            loop {
                match self.next(until)? {
                    News::Stored { host: of, number } if of == host => {
                        self.known(host).desired = Entry {
                            number,
                            revision,
                            text: value,
                            refused: None,
                        };
                        return Ok(Put::Stored(revision));
                    }
                    News::Failed { host: of, why } if of == host => return Ok(Put::Failed(why)),
                    // The other one's change is on its way.
                    News::Conflict { host: of } if of == host => break,
                    _ => {}
                }
            }
            while self.known(host).desired.number == entry.number {
                self.next(until)?;
            }
        }
        Ok(Put::Failed(
            "other operators change it all the time".to_owned(),
        ))
    }

    pub fn end(self) {
        self.bus.end();
    }
}

/// The public part of the key that these options name.
pub(super) fn public_key(args: &BusArgs) -> Result<String> {
    let bus = Bus::<News>::start("key", "", "operator", &[], args, None)?;
    match bus.news.recv_timeout(PATIENCE) {
        Ok(News::Key { public }) => Ok(public),
        // The helper's own words are on standard error.
        _ => Err(Error::failed("cannot show a public key", "there is none")),
    }
}

/// Bytes of a name or message that another host reports, and entries of its lists.
const LONGEST_TEXT: usize = 512;
const MOST_ENTRIES: usize = 10_000;

/// Reads what a host says of itself. It may be anybody's: texts are cut and lose the characters that would forge rows or
/// steer the terminal, lists are cut.
fn state_of(text: &str) -> Option<HostReport> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    serde_json::from_value(bounded(value)).ok()
}

fn bounded(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    let text = |text: String| -> String {
        let plain = text
            .chars()
            .map(|letter| if steers(letter) { '.' } else { letter });
        plain.take(LONGEST_TEXT).collect()
    };
    match value {
        Value::String(one) => Value::String(text(one)),
        Value::Array(all) => all.into_iter().take(MOST_ENTRIES).map(bounded).collect(),
        Value::Object(all) => {
            let entries = all.into_iter().take(MOST_ENTRIES);
            Value::Object(
                entries
                    .map(|(key, value)| (text(key), bounded(value)))
                    .collect(),
            )
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_hosts_are_cut_and_forge_no_rows() {
        let long = "n".repeat(400_000);
        let hostile = serde_json::json!([long, {"a\nb": "x\n\u{1b}[2J\u{202e}y"}]);
        let bounded = bounded(hostile);
        assert_eq!(bounded[0].as_str().map(str::len), Some(LONGEST_TEXT));
        assert_eq!(bounded[1]["a.b"], "x..[2J.y");
    }
}
