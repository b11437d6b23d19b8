//! Questions of operators to hosts, for packets that stay there. An operator signs each question together with its
//! number and time, so that a host answers no repeated question. The host encrypts its answer for the operator's key of
//! this session, with the key that the host's state names. Other readers of the bus therefore learn nothing, and an
//! answer that another party sends is refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use async_nats::{Client, jetstream};
use nkeys::{KeyPair, XKey};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use trawl_sys::events::Wake;
use trawl_sys::{Error, Result, clock};

use super::connection::{ASK, STATE, STATE_STREAM, Signature, check_name};
use super::{Config, Reporter, shown};

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest difference between the operator's clock and the host's.
const CLOCKS: u64 = 300_000_000_000;
/// Maximum number of operators' sessions within twice that time.
const SESSIONS: usize = 4096;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(flatten)]
    signature: Signature,
    /// Public key for the answer: one for a session.
    key: String,
    /// Number of the question in its session.
    number: u64,
    /// The operator's time, in nanoseconds since 1970.
    time_ns: u64,
    text: String,
}

impl Asked {
    fn new(operator: &KeyPair, host: &str, key: String, number: u64, text: &str) -> std::result::Result<Self, String> {
        let time_ns = clock::wall();
        let bytes = signed_bytes(host, &key, number, time_ns, text);
        Ok(Self { signature: Signature::new(operator, &bytes)?, key, number, time_ns, text: text.to_owned() })
    }
}

fn signed_bytes(host: &str, key: &str, number: u64, time_ns: u64, text: &str) -> Vec<u8> {
    format!("trawl question\n{host}\n{key}\n{number}\n{time_ns}\n{text}").into_bytes()
}

/// The last question of a session, and its arrival in nanoseconds since the host's start.
#[derive(Debug)]
struct Last {
    number: u64,
    boot_ns: u64,
}

/// Answers the text of a question.
type Answer = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// An answer, encrypted for the operator who asked.
#[derive(Debug)]
pub struct Reply {
    pub bytes: Vec<u8>,
    /// The operator's public key, if this is the first question of a session.
    pub began: Option<String>,
}

/// Returns the reason why a key's owner may not ask.
type Refuses = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A host's side: answers each question of an operator once.
pub struct Answers {
    refuses: Refuses,
    answer: Answer,
    key: XKey,
    /// Questions from before this time are not answered, because an earlier agent may have answered them.
    since_ns: u64,
    sessions: Mutex<HashMap<String, Last>>,
}

impl Answers {
    pub fn new(
        refuses: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self {
            refuses: Box::new(refuses),
            answer: Box::new(answer),
            key: XKey::new(),
            since_ns: clock::wall(),
            sessions: Mutex::default(),
        }
    }

    /// Returns the key by which operators know this host's answers.
    pub fn public_key(&self) -> String {
        self.key.public_key()
    }

    /// Answers a message; an error if it is not a new question of an operator.
    pub fn reply(
        &self,
        message: &[u8],
        config: &Config,
        now_ns: u64,
        boot_ns: u64,
    ) -> std::result::Result<Reply, String> {
        let asked: Asked = serde_json::from_slice(message).map_err(|_| "it is not signed")?;
        let Asked { signature, key, number, time_ns, text } = &asked;
        let bytes = signed_bytes(&config.name, key, *number, *time_ns, text);
        signature.verify(&bytes, Some(&config.operators))?;
        if let Some(why) = (self.refuses)(&signature.operator) {
            return Err(why);
        }
        let apart = now_ns.abs_diff(*time_ns);
        if apart > CLOCKS {
            let seconds = apart / 1_000_000_000;
            return Err(format!(
                "its time and this host's differ by {seconds} s, more than the 300 s that are allowed: set both clocks"
            ));
        }
        if *time_ns < self.since_ns {
            return Err("it is older than this agent".to_owned());
        }
        let is_first = self.register(key, *number, boot_ns)?;
        let operator = XKey::from_public_key(key).map_err(|e| e.to_string())?;
        let sealed = self.key.seal(&(self.answer)(text.as_bytes()), &operator);
        let bytes = sealed.map_err(|e| format!("cannot encrypt the answer: {e}"))?;
        Ok(Reply { bytes, began: is_first.then(|| signature.operator.clone()) })
    }

    /// Remembers a question, and returns true if it is its session's first; refuses one whose number is not higher than
    /// the session's last one.
    fn register(&self, session: &str, number: u64, boot_ns: u64) -> std::result::Result<bool, String> {
        let mut sessions = self.sessions.lock();
        // Questions of older sessions are refused because of their time, so the sessions need not be remembered.
        sessions.retain(|_, last| boot_ns.saturating_sub(last.boot_ns) <= 2 * CLOCKS);
        let is_full = sessions.len() >= SESSIONS;
        match sessions.entry(session.to_owned()) {
            Entry::Occupied(mut entry) if entry.get().number < number => {
                entry.insert(Last { number, boot_ns });
                Ok(false)
            }
            Entry::Occupied(_) => Err("it was asked before".to_owned()),
            Entry::Vacant(_) if is_full => Err("too many operators ask".to_owned()),
            Entry::Vacant(entry) => {
                entry.insert(Last { number, boot_ns });
                Ok(true)
            }
        }
    }
}

/// Prefix of an answer that refuses a question; the reason follows, for people.
pub const REFUSED: &[u8] = b"refused: ";
const NOT_ITS_OWN: &str = "the answer is not encrypted with the key that its state names";

/// An operator's connection for questions.
pub struct Asker {
    runtime: Runtime,
    client: Client,
    operator: KeyPair,
    key: XKey,
    /// Number of the last question.
    number: u64,
    /// The hosts' keys for answers, as their states name them.
    hosts: HashMap<String, XKey>,
}

impl Asker {
    pub fn open(config: &Config) -> Result<Self> {
        let what = format!("cannot ask hosts at {}", shown(&config.url));
        let failed = |why: String| Error::failed(what.clone(), why);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|e| Error::os(what.clone(), e))?;
        let operator = config.key().map_err(failed)?;
        let (sender, _) = std::sync::mpsc::channel();
        let reporter = Reporter::<()> { sender, wake: Wake::new()? };
        let client = runtime.block_on(config.connect(false, &reporter));
        Ok(Self {
            client: client.map_err(failed)?,
            runtime,
            operator,
            key: XKey::new(),
            number: 0,
            hosts: HashMap::new(),
        })
    }

    /// Reads the key by which a host's answers are known from its state, which that host alone may put.
    fn read_key(&self, host: &str) -> std::result::Result<XKey, String> {
        #[derive(Deserialize)]
        struct State {
            answers_key: Option<String>,
        }
        let read = async {
            let context = jetstream::new(self.client.clone());
            let stream = context.get_stream(STATE_STREAM).await.ok()?;
            let subject = format!("{STATE}{host}");
            stream.get_last_raw_message_by_subject(&subject).await.ok()
        };
        let message = self.runtime.block_on(async {
            let read = tokio::time::timeout(PATIENCE, read).await;
            read.ok().flatten().ok_or("it does not answer: no agent of this name has reported")
        })?;
        let state: Option<State> = serde_json::from_slice(&message.payload).ok();
        let key = state.and_then(|state| state.answers_key);
        let key = key.ok_or("its agent reports no key for answers: its trawl may be too old")?;
        XKey::from_public_key(&key).map_err(|e| format!("its agent reports a wrong key for answers: {e}"))
    }

    /// Asks a host a question, and returns the answer.
    pub fn ask(&mut self, host: &str, text: &str) -> std::result::Result<Vec<u8>, String> {
        // A name in the store may be any text, and a subject with '*' or '.' is another one.
        check_name(host).map_err(|_| "no agent can have its name".to_owned())?;
        let is_known = self.hosts.contains_key(host);
        match self.ask_once(host, text)? {
            Some(answer) => Ok(answer),
            // The agent may have been started again, with another key.
            None if is_known => {
                self.hosts.remove(host);
                let answer = self.ask_once(host, text)?;
                answer.ok_or_else(|| NOT_ITS_OWN.to_owned())
            }
            None => Err(NOT_ITS_OWN.to_owned()),
        }
    }

    /// Asks a question; `None` if the answer is not encrypted with the host's key.
    fn ask_once(&mut self, host: &str, text: &str) -> std::result::Result<Option<Vec<u8>>, String> {
        if !self.hosts.contains_key(host) {
            let key = self.read_key(host)?;
            self.hosts.insert(host.to_owned(), key);
        }
        self.number += 1;
        let asked = Asked::new(&self.operator, host, self.key.public_key(), self.number, text)?;
        let asked = serde_json::to_vec(&asked).map_err(|e| e.to_string())?;
        let request = self.client.request(format!("{ASK}{host}"), asked.into());
        let answered = self.runtime.block_on(async {
            let answered = tokio::time::timeout(PATIENCE, request).await;
            answered.map_err(|_| "it does not answer".to_owned())
        })?;
        let message = answered.map_err(|_| "it does not answer".to_owned())?;
        if let Some(why) = message.payload.strip_prefix(REFUSED) {
            let said: String = String::from_utf8_lossy(why).chars().take(200).collect();
            return Err(format!("its agent refuses to answer: {}", trawl_view::text::printable(&said)));
        }
        let key = self.hosts.get(host);
        Ok(key.and_then(|key| self.key.open(&message.payload, key).ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    #[test]
    fn answers_are_for_the_operator_who_asked_and_known_as_the_hosts() {
        let operator = KeyPair::new_user();
        let config = Config { name: "alpha".to_owned(), operators: vec![operator.public_key()], ..Config::default() };
        let key = XKey::new();
        let host = Answers::new(|_| None, |question: &[u8]| [question, b"!"].concat());
        let asked = |signer: &KeyPair, host: &str, number: u64| {
            let asked = Asked::new(signer, host, key.public_key(), number, "?").unwrap();
            serde_json::to_vec(&asked).unwrap()
        };
        let reply = |message: &[u8]| host.reply(message, &config, clock::wall(), MINUTE);
        let Reply { bytes: answer, began } = reply(&asked(&operator, "alpha", 1)).unwrap();
        assert_eq!(began, Some(operator.public_key()));
        assert_eq!(reply(&asked(&operator, "alpha", 2)).unwrap().began, None);
        let known = XKey::from_public_key(&host.public_key()).unwrap();
        assert_eq!(key.open(&answer, &known).unwrap(), b"?!");
        assert!(XKey::new().open(&answer, &known).is_err());
        // Another host's answer to the same question.
        let other = Answers::new(|_| None, |_: &[u8]| b"forged".to_vec());
        let forged = other.reply(&asked(&operator, "alpha", 1), &config, clock::wall(), 0);
        assert!(key.open(&forged.unwrap().bytes, &known).is_err());
        assert!(reply(&asked(&operator, "beta", 3)).is_err());
        assert!(reply(&asked(&KeyPair::new_user(), "alpha", 3)).is_err());
        assert!(reply(b"{}").is_err());
        let blind = Answers::new(|key| Some(format!("{key} may not look")), |_: &[u8]| Vec::new());
        let refused = blind.reply(&asked(&operator, "alpha", 1), &config, clock::wall(), 0).unwrap_err();
        assert!(refused.contains("may not look"), "{refused}");
    }

    #[test]
    fn repeated_and_old_questions_are_refused() {
        let operator = KeyPair::new_user();
        let config = Config { name: "alpha".to_owned(), operators: vec![operator.public_key()], ..Config::default() };
        let host = Answers::new(|_| None, |_: &[u8]| Vec::new());
        let key = XKey::new();
        let asked = |number: u64| {
            let asked = Asked::new(&operator, "alpha", key.public_key(), number, "?").unwrap();
            serde_json::to_vec(&asked).unwrap()
        };
        let (one, two) = (asked(1), asked(2));
        let now = clock::wall();
        let reply = |message: &[u8], later: u64| host.reply(message, &config, now + later, later).map(drop);
        assert_eq!(reply(&one, 0), Ok(()));
        assert_eq!(reply(&two, MINUTE), Ok(()));
        for message in [&one, &two] {
            let refused = reply(message, 2 * MINUTE).unwrap_err();
            assert!(refused.contains("asked before"), "{refused}");
            let refused = reply(message, 20 * MINUTE).unwrap_err();
            assert!(refused.contains("set both clocks"), "{refused}");
        }
        // The next agent does not know the sessions of the one before.
        let next = Answers::new(|_| None, |_: &[u8]| Vec::new());
        let refused = next.reply(&two, &config, clock::wall(), 0).unwrap_err();
        assert!(refused.contains("older than this agent"), "{refused}");
    }
}
