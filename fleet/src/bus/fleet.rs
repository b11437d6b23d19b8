//! The operator's side: reads all hosts' desired states and reports, follows their changes, and changes its own states by
//! compare-and-swap on the server's numbers, so that two commands of one operator do not undo each other's changes.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::stream::{self, DiscardPolicy, Republish, Stream};
use async_nats::jetstream::{Context, Message};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nkeys::KeyPair;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use trawl_sys::events::Wake;
use trawl_sys::{Result, clock};

use super::connection::{COMMAND, DESIRED, DESIRED_STREAM, STATE, STATE_STREAM, Signed, is_key};
use super::{Config, News, Reporter, log};

/// Time without a message after which the existing states have been listed, and time for all of them. The server may count
/// a message that a newer one has replaced as still to come.
const QUIET: Duration = Duration::from_secs(2);
const LISTING: Duration = Duration::from_secs(10);

type Done<T> = std::result::Result<T, String>;

/// Maximum length of a state, as in the agent, which ignores longer ones.
const VALUE_MOST: i32 = 1 << 20;

/// This operator's desired state of a host, written only if this is still its latest number (0: none exists).
#[derive(Clone, Debug)]
pub struct Put {
    pub host: String,
    pub number: u64,
    pub revision: u64,
    pub value: String,
}

/// An operator's desired state of a host: its numbers given by the server and by the operator, and the reason if it is
/// ignored.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The server's count of changes, by which commands notice each other's.
    pub number: u64,
    pub revision: u64,
    pub value: Done<String>,
}

impl Entry {
    /// Reads a state, which its operator must have signed.
    fn read(number: u64, bytes: &[u8], host: &str, operator: &str) -> Self {
        match Signed::open(bytes, host, Some(&[operator.to_owned()])) {
            Ok(signed) => Self { number, revision: signed.revision, value: Ok(signed.desired) },
            Err(why) => Self { number, revision: 0, value: Err(why) },
        }
    }
}

#[derive(Debug)]
pub enum Answer {
    Desired {
        host: String,
        operator: String,
        entry: Entry,
    },
    /// The state that a host reports.
    State {
        host: String,
        value: String,
        /// Time at which the server received it, counted from this host's start, so that no step of a clock changes its
        /// age.
        heard_ns: i64,
    },
    /// The existing states have been listed; changes follow.
    Listed,
    Stored {
        host: String,
        number: u64,
    },
    Conflict {
        host: String,
    },
    Failed {
        host: String,
        why: String,
    },
}

pub type Bus = super::Bus<Put, Answer>;

pub fn start(config: Config, wake: &Wake) -> Result<Bus> {
    Bus::start(wake, move |puts, news| run(config, puts, news))
}

/// Returns the streams of the desired states and of the hosts' states, with this many copies.
pub fn streams(replicas: usize) -> [stream::Config; 2] {
    let common = stream::Config {
        max_messages_per_subject: 1,
        max_message_size: VALUE_MOST,
        discard: DiscardPolicy::New,
        // A host's message could otherwise remove all other hosts' messages.
        allow_rollup: false,
        deny_delete: true,
        num_replicas: replicas,
        ..stream::Config::default()
    };
    [
        stream::Config {
            name: DESIRED_STREAM.to_owned(),
            description: Some("trawl: desired states of hosts".to_owned()),
            subjects: vec![format!("{DESIRED}>")],
            allow_direct: true,
            republish: Some(Republish {
                source: format!("{DESIRED}>"),
                destination: format!("{COMMAND}>"),
                headers_only: false,
            }),
            ..common.clone()
        },
        stream::Config {
            name: STATE_STREAM.to_owned(),
            description: Some("trawl: the states of hosts".to_owned()),
            subjects: vec![format!("{STATE}>")],
            ..common
        },
    ]
}

/// A stream's messages, their number at the start, and the lead of the server's clock over this host's time since its
/// start.
struct Watched {
    messages: Ordered,
    waiting: u64,
    lead_ns: i128,
}

/// Returns a stream, which is made if it is missing.
pub async fn open_stream(context: &Context, config: stream::Config) -> Done<Stream> {
    if let Ok(stream) = context.get_stream(&config.name).await {
        return Ok(stream);
    }
    let name = config.name.clone();
    context.create_stream(config).await.map_err(|e| format!("cannot make the stream {name}: {e}"))
}

async fn watch(context: &Context, config: stream::Config) -> Done<Watched> {
    let (name, subject) = (config.name.clone(), config.subjects.concat());
    let fail = |e: &dyn std::fmt::Display| format!("cannot read the stream {name}: {e}");
    let stream = open_stream(context, config).await?;
    let wanted = OrderedConfig {
        deliver_subject: context.client().new_inbox(),
        deliver_policy: DeliverPolicy::LastPerSubject,
        filter_subject: subject,
        ..OrderedConfig::default()
    };
    let consumer = stream.create_consumer(wanted).await.map_err(|e| fail(&e))?;
    let info = consumer.cached_info();
    let lead_ns = info.created.unix_timestamp_nanos() - i128::from(clock::since_boot());
    let waiting = info.num_pending;
    Ok(Watched { messages: consumer.messages().await.map_err(|e| fail(&e))?, waiting, lead_ns })
}

fn answer(message: &Message, lead_ns: i128) -> Option<Answer> {
    let info = message.info().ok()?;
    let number = info.stream_sequence;
    if let Some(host) = message.subject.strip_prefix(STATE) {
        return Some(Answer::State {
            host: host.to_owned(),
            value: String::from_utf8_lossy(&message.payload).into_owned(),
            heard_ns: i64::try_from(info.published.unix_timestamp_nanos() - lead_ns).unwrap_or(0),
        });
    }
    let (operator, host) = message.subject.strip_prefix(DESIRED)?.split_once('.').filter(|(key, _)| is_key(key))?;
    let entry = Entry::read(number, &message.payload, host, operator);
    Some(Answer::Desired { host: host.to_owned(), operator: operator.to_owned(), entry })
}

async fn put(context: &Context, key: &Done<KeyPair>, put: Put) -> Answer {
    let Put { host, number, revision, value } = put;
    let stored = async {
        let fail = |e: &dyn std::fmt::Display| Err(e.to_string());
        let key = key.as_ref().map_err(Clone::clone)?;
        let signed = Signed::new(key, &host, revision, value)?;
        let text = match serde_json::to_vec(&signed) {
            Ok(text) => text,
            Err(error) => return fail(&error),
        };
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, number.to_string());
        let subject = format!("{DESIRED}{}.{host}", key.public_key());
        let sent = context.publish_with_headers(subject, headers, text.into()).await;
        let acknowledged = match sent {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        match acknowledged {
            Ok(stored) => Ok(Some(stored.sequence)),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(None),
            Err(error) => fail(&error),
        }
    };
    match stored.await {
        Ok(Some(number)) => Answer::Stored { host, number },
        Ok(None) => Answer::Conflict { host },
        Err(why) => Answer::Failed { host, why },
    }
}

async fn run(config: Config, mut puts: UnboundedReceiver<Put>, news: Reporter<Answer>) -> Done<()> {
    // A command that only reads needs no key.
    let key = config.key();
    let mut context = async_nats::jetstream::new(config.connect(false, &news).await?);
    context.set_timeout(Duration::from_secs(5));
    let [desired, states] = streams(config.replicas);
    let desired = watch(&context, desired).await?;
    let states = watch(&context, states).await?;
    if let Err(why) = open_stream(&context, log::stream(config.replicas)).await {
        news.send(News::Refused(why));
    }
    let lead_ns = states.lead_ns;
    // Subjects of the streams whose present messages have not all arrived.
    let mut unlisted = vec![];
    unlisted.extend((desired.waiting > 0).then_some(DESIRED));
    unlisted.extend((states.waiting > 0).then_some(STATE));
    let mut is_listed = false;
    let mut all = futures_util::stream::select(desired.messages, states.messages);
    let listed_by = Instant::now() + LISTING;
    let mut sent = FuturesUnordered::new();
    loop {
        if !is_listed && unlisted.is_empty() {
            is_listed = true;
            news.send(News::Message(Answer::Listed));
        }
        let quiet_at = (Instant::now() + QUIET).min(listed_by);
        tokio::select! {
            () = tokio::time::sleep_until(quiet_at), if !is_listed => unlisted.clear(),
            message = all.next() => {
                let message = message.ok_or("the connection is closed")?.map_err(|e| e.to_string())?;
                if let Some(answer) = answer(&message, lead_ns) {
                    news.send(News::Message(answer));
                }
                // The first messages cannot be counted: a newer report replaces one that has not been delivered.
                if message.info().is_ok_and(|info| info.pending == 0) {
                    unlisted.retain(|subject| !message.subject.starts_with(*subject));
                }
            }
            request = puts.recv() => match request {
                Some(request) => sent.push(put(&context, &key, request)),
                None => return Ok(()),
            },
            Some(answer) = sent.next() => news.send(News::Message(answer)),
        }
    }
}
