//! The requests of JetStream that operators and agents make: to read a stream, its last message of a subject, and to
//! follow it by an ordered push consumer. Other requests are refused.

use std::time::Instant;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::OrderedConfig;
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use trawl_sys::clock;

use super::hub::Hub;
use super::protocol::literal;
use super::stream::{Entry, Stream};

/// Maximum number of a client's consumers.
const CONSUMERS: usize = 16;

/// An answer to a request, or to a message for a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub headers: String,
    pub payload: Vec<u8>,
}

impl Answer {
    pub fn json(value: &Value) -> Self {
        Self { headers: String::new(), payload: value.to_string().into_bytes() }
    }

    pub fn error(code: u16, number: u32, description: &str) -> Self {
        Self::json(&json!({ "error": { "code": code, "err_code": number, "description": description } }))
    }

    /// Returns an answer that is only a status.
    pub fn status(status: &str) -> Self {
        Self { headers: format!("NATS/1.0 {status}\r\n\r\n"), payload: Vec::new() }
    }
}

fn no_stream() -> Answer {
    Answer::error(404, 10059, "stream not found")
}

fn no_message() -> Answer {
    Answer::error(404, 10037, "no message found")
}

/// A reader of a stream: messages go to the subject that its client has chosen.
#[derive(Debug)]
pub struct Consumer {
    pub client: u64,
    /// Place of the stream among the hub's streams.
    pub stream: usize,
    pub deliver: String,
    name: String,
    /// Number of the last delivered message, of delivered messages, and of those still to deliver.
    pub cursor: u64,
    delivered: u64,
    pending: u64,
    /// Time of the last message or heartbeat.
    pub sent: Instant,
}

impl Consumer {
    /// Counts a message that was stored, and replaced others.
    pub fn count(&mut self, replaced: &[u64]) {
        let no_longer_pending = replaced.iter().filter(|number| **number > self.cursor).count() as u64;
        self.pending = (self.pending + 1).saturating_sub(no_longer_pending);
    }

    /// Moves to a message, which is delivered now; returns its subject for acknowledgements, which describes it.
    pub fn advance(&mut self, stream: &str, number: u64, time_ns: u64) -> String {
        self.cursor = number;
        self.delivered += 1;
        self.pending = self.pending.saturating_sub(1);
        self.sent = Instant::now();
        let Self { name, delivered, pending, .. } = self;
        format!("$JS.ACK.{stream}.{name}.1.{number}.{delivered}.{time_ns}.{pending}")
    }

    /// Returns the headers of a heartbeat.
    pub fn beat(&mut self, now: Instant) -> String {
        self.sent = now;
        let Self { delivered, cursor, .. } = self;
        format!("NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {delivered}\r\nNats-Last-Stream: {cursor}\r\n\r\n")
    }
}

/// Formats a time by RFC 3339.
fn timestamp(ns: u64) -> String {
    let seconds = ns / 1_000_000_000 % 86_400;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}.{:09}Z", clock::date_of(ns), ns % 1_000_000_000)
}

impl Hub {
    /// Answers a request of a client; the prefix `$JS.API.` is already removed from its subject.
    pub(super) fn request(&mut self, client: u64, request: &str, payload: &[u8]) -> Answer {
        let names = |prefix: &str| request.strip_prefix(prefix).map(|rest| rest.split_once('.').unwrap_or((rest, "")));
        if let Some((name, subject)) = names("DIRECT.GET.") {
            return self.stream(name).map_or_else(no_stream, |(_, stream)| last_directly(stream, subject));
        }
        if let Some((name, "")) = names("STREAM.INFO.") {
            return self.stream(name).map_or_else(no_stream, |(at, stream)| self.describe(at, stream));
        }
        if let Some(name) = request.strip_prefix("STREAM.MSG.GET.") {
            return self.stream(name).map_or_else(no_stream, |(_, stream)| last(stream, payload));
        }
        if let Some((stream, _)) = names("CONSUMER.CREATE.") {
            return self.stream(stream).map(|(at, _)| at).map_or_else(no_stream, |at| self.follow(client, at, payload));
        }
        if let Some((_, name)) = names("CONSUMER.DELETE.") {
            self.consumers.retain(|one| one.client != client || one.name != name);
            return Answer::json(&json!({ "success": true }));
        }
        Answer::error(501, 10003, "trawl's own bus has no such request: use nats-server")
    }

    fn stream(&self, name: &str) -> Option<(usize, &Stream)> {
        self.streams.iter().enumerate().find(|(_, stream)| stream.config.name == name)
    }

    fn describe(&self, at: usize, stream: &Stream) -> Answer {
        let consumers = self.consumers.iter().filter(|consumer| consumer.stream == at).count();
        let created = timestamp(stream.created_ns);
        Answer::json(&json!({
            "config": stream.config, "created": created,
            "state": {
                "messages": stream.count(0), "bytes": stream.bytes(), "consumer_count": consumers,
                "first_seq": stream.first(), "first_ts": created, "last_seq": stream.last(), "last_ts": created,
            },
        }))
    }

    /// Creates a consumer.
    fn follow(&mut self, client: u64, at: usize, payload: &[u8]) -> Answer {
        #[derive(Deserialize)]
        struct Request {
            config: Value,
        }
        let wanted = serde_json::from_slice::<Request>(payload).ok();
        let wanted =
            wanted.and_then(|request| Some((OrderedConfig::deserialize(&request.config).ok()?, request.config)));
        let Some((config, mut echoed)) = wanted.filter(|(config, _)| literal(&config.deliver_subject).is_ok()) else {
            return Answer::error(400, 10025, "only push consumers are supported");
        };
        let stream = &self.streams[at];
        if !config.filter_subject.is_empty() && !stream.config.subjects.contains(&config.filter_subject) {
            return Answer::error(400, 10093, "a consumer reads all subjects of its stream");
        }
        if self.consumers.iter().filter(|one| one.client == client).count() >= CONSUMERS {
            return Answer::error(400, 10026, "maximum consumers limit reached");
        }
        let cursor = match config.deliver_policy {
            DeliverPolicy::ByStartSequence { start_sequence } => start_sequence.saturating_sub(1),
            DeliverPolicy::ByStartTime { start_time } => {
                stream.before(u64::try_from(start_time.unix_timestamp_nanos()).unwrap_or(0))
            }
            DeliverPolicy::New => stream.last(),
            DeliverPolicy::All | DeliverPolicy::LastPerSubject => 0,
            _ => return Answer::error(400, 10025, "this policy of delivery is not supported"),
        };
        let name = config.name.unwrap_or_else(|| nuid(&config.deliver_subject));
        if literal(&name).is_err() || name.contains('.') {
            return Answer::error(400, 10025, "a consumer's name is one token of a subject");
        }
        let pending = stream.count(cursor);
        echoed["name"] = name.clone().into();
        let answer = Answer::json(&json!({
            "stream_name": stream.config.name, "name": name, "created": timestamp(clock::wall()), "config": echoed,
            "delivered": { "consumer_seq": 0, "stream_seq": cursor },
            "ack_floor": { "consumer_seq": 0, "stream_seq": 0 },
            "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": pending,
        }));
        self.consumers.push(Consumer {
            client,
            stream: at,
            deliver: config.deliver_subject,
            name,
            cursor,
            delivered: 0,
            pending,
            sent: Instant::now(),
        });
        answer
    }
}

/// Returns a name for a consumer: the last token of its subject, which its client has chosen at random.
fn nuid(deliver: &str) -> String {
    deliver.rsplit('.').next().unwrap_or_default().to_owned()
}

/// Returns a subject's last message as a message.
fn last_directly(stream: &Stream, subject: &str) -> Answer {
    let Some((number, Entry { time_ns, payload, .. })) = stream.last_of(subject) else {
        return Answer::status("404 Message Not Found");
    };
    let (name, time) = (&stream.config.name, timestamp(*time_ns));
    let headers = format!(
        "NATS/1.0\r\nNats-Stream: {name}\r\nNats-Subject: {subject}\r\nNats-Sequence: {number}\r\nNats-Time-Stamp: {time}\r\n\r\n"
    );
    Answer { headers, payload: payload.clone() }
}

/// Returns a subject's last message in JSON.
fn last(stream: &Stream, payload: &[u8]) -> Answer {
    #[derive(Deserialize)]
    struct Request {
        last_by_subj: String,
    }
    let Ok(Request { last_by_subj: subject }) = serde_json::from_slice(payload) else {
        return Answer::error(400, 10025, "only the last message of a subject can be read");
    };
    stream.last_of(&subject).map_or_else(no_message, |(number, entry)| {
        let (data, time) = (BASE64.encode(&entry.payload), timestamp(entry.time_ns));
        Answer::json(&json!({ "message": { "subject": subject, "seq": number, "data": data, "time": time } }))
    })
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn times_are_in_utc() {
        assert_eq!(timestamp(1_764_498_030_000_000_007), "2025-11-30T10:20:30.000000007Z");
    }
}
