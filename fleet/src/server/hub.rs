//! The embedded bus without its connections: users' operations go in, bytes for each client come out. Users have the
//! rights that docs/internals/agents.md gives them with nats-server.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nkeys::KeyPair;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;
use trawl_sys::Result;

use super::api::{Answer, Consumer};
use super::protocol::{self, Fault, LINE_MOST, Operation, PAYLOAD_MOST, Publish, covers};
use super::stream::{Stored, Stream};
use super::users::{User, Users};
use crate::bus::{COMMAND, DESIRED, fleet::streams, log};

/// Maximum number of bytes that wait for a client; one that reads too slowly is disconnected.
const QUEUE_MOST: usize = 8 << 20;
/// Number of waiting bytes from which a consumer pauses.
const AHEAD: usize = 1 << 20;
/// Maximum number of a client's subscriptions, and of questions to it that await an answer.
const SUBSCRIPTIONS: usize = 1024;
const REPLIES: usize = 64;
/// Places of the streams, and the names of their files.
const DESIRED_STATES: usize = 0;
const STATES: usize = 1;
const LOG: usize = 2;
const FILES: [&str; 3] = ["desired.json", "states.json", "log.json"];
const DENIED: &str = "Authorization Violation";
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

#[derive(Debug)]
pub struct Client {
    user: Option<User>,
    nonce: String,
    queue: Vec<u8>,
    wake: Arc<Notify>,
    /// Patterns by the client's numbers.
    subscriptions: HashMap<u64, String>,
    /// Subjects to which a host may answer once.
    replies: VecDeque<String>,
    is_too_slow: bool,
}

impl Client {
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.queue);
        if self.queue.len() > QUEUE_MOST {
            self.is_too_slow = true;
        }
        if self.is_too_slow {
            self.queue = b"-ERR 'Slow Consumer'\r\n".to_vec();
        }
        self.wake.notify_one();
    }

    fn refuse(&mut self, action: &str, subject: &str) {
        self.push(|out| {
            out.extend_from_slice(format!("-ERR 'Permissions Violation for {action} \"{subject}\"'\r\n").as_bytes());
        });
    }

    /// Returns true for an answer to a question that the client has received, which it may give once.
    fn answers(&mut self, subject: &str) -> bool {
        let at = self.replies.iter().position(|reply| reply == subject);
        at.and_then(|at| self.replies.remove(at)).is_some()
    }
}

#[derive(Debug)]
struct Subscription {
    client: u64,
    sid: u64,
    pattern: String,
    delivered: u64,
    /// Number of messages after which it ends.
    most: u64,
}

/// The options of CONNECT that matter here.
#[derive(Deserialize)]
struct Credentials {
    #[serde(default)]
    nkey: String,
    #[serde(default)]
    sig: String,
}

#[derive(Debug)]
pub struct Hub {
    users: Users,
    clients: HashMap<u64, Client>,
    /// Subscriptions by the literal part of their subject.
    subscriptions: HashMap<String, Vec<Subscription>>,
    pub(super) streams: [Stream; 3],
    pub(super) consumers: Vec<Consumer>,
    /// Directory of the streams' files, and whether each stream has changed since its file was written.
    directory: Option<PathBuf>,
    is_changed: [bool; 3],
    last_client: u64,
}

/// Returns the part of a pattern before its first wildcard.
fn literal_part(pattern: &str) -> &str {
    pattern.find(['*', '>']).map_or(pattern, |at| &pattern[..at])
}

impl Hub {
    /// Opens the bus, with the states in the files of its directory.
    pub fn open(users: Users, directory: Option<PathBuf>) -> Result<Self> {
        let [desired, states] = streams(1);
        let open = |at: usize, config| match &directory {
            Some(directory) => Stream::load(config, &directory.join(FILES[at])),
            None => Ok(Stream::new(config)),
        };
        Ok(Self {
            users,
            clients: HashMap::new(),
            subscriptions: HashMap::new(),
            streams: [open(DESIRED_STATES, desired)?, open(STATES, states)?, open(LOG, log::stream(1))?],
            consumers: Vec::new(),
            directory,
            is_changed: [false; 3],
            last_client: 0,
        })
    }

    /// Returns true if desired states have changed since their file was written. Nobody may hear of a change that a
    /// restart would undo.
    pub fn is_unsaved(&self) -> bool {
        self.directory.is_some() && self.is_changed[DESIRED_STATES]
    }

    /// Writes the desired states, if any has changed since they were written; clients then receive their bytes.
    pub fn save_desired(&mut self) -> Result<()> {
        if let Err(error) = self.save(DESIRED_STATES) {
            self.clients.clear();
            return Err(error);
        }
        let waiting = self.clients.values().filter(|client| !client.queue.is_empty());
        waiting.for_each(|client| client.wake.notify_one());
        Ok(())
    }

    /// Writes the hosts' states and logs, if any has changed since they were written.
    pub fn save_of_hosts(&mut self) -> Result<()> {
        self.save(STATES)?;
        self.save(LOG)
    }

    fn save(&mut self, at: usize) -> Result<()> {
        match &self.directory {
            Some(directory) if std::mem::take(&mut self.is_changed[at]) => {
                self.streams[at].save(&directory.join(FILES[at]))
            }
            _ => Ok(()),
        }
    }

    /// Adds a client; returns its number, and the server's greeting.
    pub fn join(&mut self, wake: Arc<Notify>, tls_required: bool) -> (u64, String) {
        self.last_client += 1;
        // A new public key is as good as other random text.
        let nonce = KeyPair::new_user().public_key();
        let info = json!({
            "server_id": "trawl", "server_name": "trawl", "version": "2.9.0", "proto": 1, "headers": true,
            "jetstream": true, "auth_required": true, "tls_required": tls_required, "max_payload": PAYLOAD_MOST,
            "client_id": self.last_client, "nonce": nonce,
        });
        let client = Client {
            user: None,
            nonce,
            queue: Vec::new(),
            wake,
            subscriptions: HashMap::new(),
            replies: VecDeque::new(),
            is_too_slow: false,
        };
        self.clients.insert(self.last_client, client);
        (self.last_client, format!("INFO {info}\r\n"))
    }

    pub fn leave(&mut self, id: u64) {
        let client = self.clients.remove(&id);
        for pattern in client.into_iter().flat_map(|client| client.subscriptions.into_values()) {
            self.forget(&pattern, |one| one.client == id);
        }
        self.consumers.retain(|consumer| consumer.client != id);
    }

    /// Returns true if the client has authenticated.
    pub fn knows(&self, id: u64) -> bool {
        self.clients.get(&id).is_some_and(|client| client.user.is_some())
    }

    /// Takes the bytes for a client, and true if it is to be disconnected afterwards.
    pub fn take(&mut self, id: u64) -> (Vec<u8>, bool) {
        let is_unsaved = self.is_unsaved();
        let Some(client) = self.clients.get_mut(&id) else {
            return (Vec::new(), true);
        };
        if is_unsaved {
            return (Vec::new(), false);
        }
        let taken = (std::mem::take(&mut client.queue), client.is_too_slow);
        self.deliver(|consumer| consumer.client == id);
        taken
    }

    /// Carries out a client's operations; returns the length of those that are complete.
    pub fn receive(&mut self, id: u64, bytes: &[u8]) -> std::result::Result<usize, Fault> {
        let mut length = 0;
        loop {
            match protocol::read(&bytes[length..]) {
                Ok(Some((operation, more))) => {
                    if let Err(fault) = self.carry_out(id, operation) {
                        break Err(fault);
                    }
                    length += more;
                }
                Ok(None) if bytes.len() - length > LINE_MOST && !self.knows(id) => break Err(DENIED),
                Ok(None) => break Ok(length),
                Err(fault) => break Err(fault),
            }
        }
    }

    fn carry_out(&mut self, id: u64, operation: Operation<'_>) -> std::result::Result<(), Fault> {
        let client = self.clients.get_mut(&id).ok_or(DENIED)?;
        match operation {
            Operation::Connect(text) => {
                let credentials: Credentials = serde_json::from_str(text).map_err(|_| DENIED)?;
                let user = self.users.authenticate(&credentials.nkey, &client.nonce, &credentials.sig);
                client.user = Some(user.ok_or(DENIED)?);
                Ok(())
            }
            Operation::Ping => {
                client.push(|out| out.extend_from_slice(b"PONG\r\n"));
                Ok(())
            }
            Operation::Pong => Ok(()),
            other => {
                let user = client.user.clone().ok_or(DENIED)?;
                self.act(id, &user, other)
            }
        }
    }

    fn act(&mut self, id: u64, user: &User, operation: Operation<'_>) -> std::result::Result<(), Fault> {
        match operation {
            Operation::Publish(message) => self.publish(id, user, &message),
            Operation::Subscribe { subject, sid } => return self.subscribe(id, user, subject, sid),
            Operation::Unsubscribe { sid, after } => self.unsubscribe(id, sid, after.unwrap_or(0)),
            Operation::Connect(_) | Operation::Ping | Operation::Pong => {}
        }
        Ok(())
    }

    fn subscribe(&mut self, id: u64, user: &User, subject: &str, sid: u64) -> std::result::Result<(), Fault> {
        self.unsubscribe(id, sid, 0);
        let client = self.clients.get_mut(&id).ok_or(DENIED)?;
        if !user.may_subscribe(subject) {
            client.refuse("Subscription to", subject);
            return Ok(());
        }
        if client.subscriptions.len() >= SUBSCRIPTIONS {
            return Err("maximum subscriptions exceeded");
        }
        client.subscriptions.insert(sid, subject.to_owned());
        let one = Subscription { client: id, sid, pattern: subject.to_owned(), delivered: 0, most: u64::MAX };
        self.subscriptions.entry(literal_part(subject).to_owned()).or_default().push(one);
        self.deliver(|consumer| consumer.client == id);
        Ok(())
    }

    /// Ends a subscription once it has delivered this many messages.
    fn unsubscribe(&mut self, id: u64, sid: u64, most: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(pattern) = client.subscriptions.get(&sid).cloned() else {
            return;
        };
        let all = self.subscriptions.get_mut(literal_part(&pattern)).into_iter().flatten();
        let mut own = all.filter(|one| one.client == id && one.sid == sid);
        match own.next() {
            Some(one) if one.delivered < most => one.most = most,
            _ => {
                client.subscriptions.remove(&sid);
                self.forget(&pattern, |one| one.client == id && one.sid == sid);
            }
        }
    }

    fn forget(&mut self, pattern: &str, is_meant: impl Fn(&Subscription) -> bool) {
        let key = literal_part(pattern);
        if let Some(all) = self.subscriptions.get_mut(key) {
            all.retain(|one| !is_meant(one));
            if all.is_empty() {
                self.subscriptions.remove(key);
            }
        }
    }

    fn publish(&mut self, id: u64, user: &User, message: &Publish<'_>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !user.may_publish(message.subject) && !client.answers(message.subject) {
            return client.refuse("Publish to", message.subject);
        }
        // A host could otherwise have an answer sent to another's subject.
        if let Some(reply) = message.reply.filter(|reply| !user.may_subscribe(reply)) {
            return client.refuse("Publish with Reply of", reply);
        }
        let answer = if let Some(request) = message.subject.strip_prefix("$JS.API.") {
            Some(self.request(id, request, message.payload))
        } else if let Some(at) = self.streams.iter().position(|stream| stream.has(message.subject)) {
            Some(self.store(at, message))
        } else if self.route(message.subject, message.reply, "", message.payload) {
            None
        } else {
            Some(Answer::status("503"))
        };
        if let (Some(reply), Some(Answer { headers, payload })) = (message.reply, answer) {
            self.route(reply, None, &headers, &payload);
        }
        self.deliver(|_| true);
    }

    fn store(&mut self, at: usize, message: &Publish<'_>) -> Answer {
        let stream = &mut self.streams[at];
        let name = stream.config.name.clone();
        if message.payload.len() > stream.config.max_message_size.unsigned_abs() as usize {
            return Answer::error(400, 10054, "message size exceeds maximum allowed");
        }
        let expected = protocol::header(message.headers, EXPECTED);
        let Ok(expected) = expected.map(str::parse::<u64>).transpose() else {
            return Answer::error(400, 10003, "the expected sequence is not a number");
        };
        match stream.store(message.subject, expected, message.payload) {
            Ok(Stored { number, replaced }) => {
                let consumers = self.consumers.iter_mut().filter(|consumer| consumer.stream == at);
                consumers.for_each(|consumer| consumer.count(&replaced));
                self.is_changed[at] = true;
                if let Some(host) = message.subject.strip_prefix(DESIRED) {
                    self.route(&format!("{COMMAND}{host}"), None, "", message.payload);
                }
                Answer::json(&json!({ "stream": name, "seq": number }))
            }
            Err(latest) => Answer::error(400, 10071, &format!("wrong last sequence: {latest}")),
        }
    }

    /// Sends a message to all subscribers; returns false if nobody has subscribed.
    fn route(&mut self, subject: &str, reply: Option<&str>, headers: &str, payload: &[u8]) -> bool {
        let mut is_heard = false;
        let mut ended = Vec::new();
        let prefixes = subject.match_indices('.').map(|(at, _)| &subject[..=at]);
        for key in prefixes.chain(["", subject]) {
            let all = self.subscriptions.get_mut(key).into_iter().flatten();
            for one in all.filter(|one| covers(&one.pattern, subject)) {
                let Some(client) = self.clients.get_mut(&one.client) else {
                    continue;
                };
                is_heard = true;
                if let Some(reply) = reply {
                    client.replies.truncate(REPLIES - 1);
                    client.replies.push_front(reply.to_owned());
                }
                client.push(|out| protocol::write(out, subject, one.sid, reply, headers, payload));
                one.delivered += 1;
                if one.delivered >= one.most {
                    ended.push((one.client, one.sid));
                }
            }
        }
        for (client, sid) in ended {
            self.unsubscribe(client, sid, 0);
        }
        is_heard
    }

    /// Delivers the next messages of streams to consumers whose clients keep up.
    fn deliver(&mut self, is_meant: impl Fn(&Consumer) -> bool) {
        for consumer in self.consumers.iter_mut().filter(|consumer| is_meant(consumer)) {
            let Some((client, sid)) = reader(&mut self.clients, consumer) else {
                continue;
            };
            let stream = &self.streams[consumer.stream];
            while client.queue.len() < AHEAD && !client.is_too_slow {
                let Some((number, entry)) = stream.next(consumer.cursor) else {
                    break;
                };
                let reply = consumer.advance(&stream.config.name, number, entry.time_ns);
                client.push(|out| protocol::write(out, &entry.subject, sid, Some(&reply), "", &entry.payload));
            }
        }
    }

    /// Sends heartbeats to consumers that have had no message for this time.
    pub fn beat(&mut self, now: Instant, every: Duration) {
        for consumer in self.consumers.iter_mut().filter(|consumer| now.duration_since(consumer.sent) >= every) {
            let Some((client, sid)) = reader(&mut self.clients, consumer) else {
                continue;
            };
            let headers = consumer.beat(now);
            client.push(|out| protocol::write(out, &consumer.deliver, sid, None, &headers, b""));
        }
    }
}

/// Returns a consumer's client with the number of its subscription, if it has subscribed.
fn reader<'a>(clients: &'a mut HashMap<u64, Client>, consumer: &Consumer) -> Option<(&'a mut Client, u64)> {
    let client = clients.get_mut(&consumer.client)?;
    let mut subscriptions = client.subscriptions.iter();
    let (sid, _) = subscriptions.find(|(_, pattern)| covers(pattern, &consumer.deliver))?;
    let sid = *sid;
    Some((client, sid))
}

#[cfg(test)]
mod tests;
