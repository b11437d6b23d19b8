//! The agent's side: it reads this host's desired state of each operator, writes the host's state, answers the operators'
//! questions for packets, and logs their commands. It needs five rights: to request its commands, to subscribe to new ones
//! and to questions, to put its state, and to add to its log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{Client, StatusCode};
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, interval_at, timeout};
use trawl_sys::events::Wake;
use trawl_sys::{Result, clock};

use super::ask::{Answers, REFUSED};
use super::connection::{ASK, COMMAND, DESIRED, DESIRED_STREAM, LOG, STATE, Signed};
use super::{Config, News, Reporter};

/// Interval of requests for commands that may have been missed.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Time for the server to store a record of the log, and until the next attempt after a failure.
const PATIENCE: Duration = Duration::from_secs(2);
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// Maximum number of records that wait for the server; the oldest are dropped.
const RECORDS: usize = 1000;
/// Time limit for sending the last state.
const LAST: Duration = Duration::from_millis(500);

/// A message of an operator.
#[derive(Debug)]
pub enum Message {
    /// A desired state that an operator signed.
    State { operator: String, revision: u64, value: String },
    /// The server has no desired state of this operator.
    Nothing { operator: String },
    /// The first question of an operator's session.
    Asked { operator: String },
    /// A desired state without a valid signature, and its sender and revision as far as they can be read.
    Ignored { operator: Option<String>, revision: Option<u64>, why: String },
    /// A question that is not an operator's, or not new.
    Unanswered { why: String },
}

#[derive(Debug)]
pub enum Request {
    /// Puts the host's state, in JSON.
    Put(String),
    /// Adds a record to the log, in JSON.
    Log(String),
}

pub type Bus = super::Bus<Request, Message>;

pub fn start(config: Config, answers: Arc<Answers>, wake: &Wake) -> Result<Bus> {
    Bus::start(wake, move |requests, news| run(config, answers, requests, news))
}

/// Passes on an operator's desired state. One without a valid signature is reported and otherwise ignored.
fn pass_on(message: &async_nats::Message, config: &Config, news: &Reporter<Message>) {
    let opened = Signed::open(&message.payload, &config.name, Some(&config.operators));
    news.send(News::Message(match opened {
        Ok(Signed { revision, signature, desired }) => {
            Message::State { operator: signature.operator, revision, value: desired }
        }
        Err(why) => {
            let signed = Signed::open(&message.payload, &config.name, None).ok();
            let revision = signed.as_ref().map(|signed| signed.revision);
            let operator = signed.map(|signed| signed.signature.operator);
            let why = format!("a desired state is ignored: {why}");
            Message::Ignored { operator, revision, why }
        }
    }));
}

/// Requests the desired state of each operator, in case one was missed. A failed request is repeated later.
async fn request_states(client: &Client, config: &Config, news: &Reporter<Message>) {
    let host = &config.name;
    let ask = async |operator: &String| {
        let question = format!("$JS.API.DIRECT.GET.{DESIRED_STREAM}.{DESIRED}{operator}.{host}");
        let Ok(message) = client.request(question, "".into()).await else { return };
        match message.status {
            None | Some(StatusCode::OK) => pass_on(&message, config, news),
            Some(StatusCode::NOT_FOUND) => {
                news.send(News::Message(Message::Nothing { operator: operator.clone() }));
            }
            Some(_) => {}
        }
    };
    join_all(config.operators.iter().map(ask)).await;
}

/// Answers a question; one that is not a new question of an operator is reported and refused.
fn answer(question: &[u8], answers: &Answers, config: &Config, news: &Reporter<Message>) -> Vec<u8> {
    match answers.reply(question, config, clock::wall(), clock::since_boot()) {
        Ok(reply) => {
            let began = reply.began.map(|operator| News::Message(Message::Asked { operator }));
            began.into_iter().for_each(|one| news.send(one));
            reply.bytes
        }
        Err(why) => {
            let bytes = [REFUSED, why.as_bytes()].concat();
            news.send(News::Message(Message::Unanswered { why: format!("a question is ignored: {why}") }));
            bytes
        }
    }
}

/// Records that the server has not stored yet.
#[derive(Default)]
struct Unlogged {
    records: VecDeque<String>,
    not_before: Option<Instant>,
}

impl Unlogged {
    fn add(&mut self, record: String) {
        if self.records.len() == RECORDS {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Stores the records in their order. After a failure, the next attempt waits: the server may lack the stream.
    async fn store(&mut self, context: &Context, subject: &str) {
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        while let Some(record) = self.records.front() {
            let sent = context.publish(subject.to_owned(), record.clone().into()).await;
            let stored = match sent {
                Ok(sent) => sent.await.is_ok(),
                Err(_) => false,
            };
            if !stored {
                self.not_before = Some(Instant::now() + LOG_AGAIN);
                return;
            }
            self.records.pop_front();
        }
    }
}

async fn run(
    config: Config,
    answers: Arc<Answers>,
    mut requests: UnboundedReceiver<Request>,
    news: Reporter<Message>,
) -> std::result::Result<(), String> {
    let host = &config.name;
    let connecting = config.connect(true, &news);
    let client = connecting.await?;
    let (state, log) = (format!("{STATE}{host}"), format!("{LOG}{host}"));
    let mut context = jetstream::new(client.clone());
    context.set_timeout(PATIENCE);
    let mut unlogged = Unlogged::default();
    let subscribed = client.subscribe(format!("{COMMAND}*.{host}"));
    let mut commands = subscribed.await.map_err(|e| e.to_string())?;
    let subscribed = client.subscribe(format!("{ASK}{host}"));
    let mut questions = subscribed.await.map_err(|e| e.to_string())?;
    let mut due = interval_at(Instant::now(), ASK_EVERY);
    loop {
        tokio::select! {
            command = commands.next() => match command {
                Some(message) => pass_on(&message, &config, &news),
                None => return Err("the connection is closed".to_owned()),
            },
            Some(question) = questions.next() => if let Some(to) = question.reply {
                let bytes = answer(&question.payload, &answers, &config, &news);
                let _ = client.publish(to, bytes.into()).await;
            },
            _ = due.tick() => {
                request_states(&client, &config, &news).await;
                unlogged.store(&context, &log).await;
            }
            request = requests.recv() => match request {
                // The client keeps it until it is connected.
                Some(Request::Put(text)) => if let Err(error) = client.publish(state.clone(), text.into()).await {
                    news.send(News::Refused(error.to_string()));
                },
                Some(Request::Log(record)) => {
                    unlogged.add(record);
                    unlogged.store(&context, &log).await;
                }
                None => {
                    let _ = timeout(LAST, client.flush()).await;
                    return Ok(());
                }
            },
        }
    }
}
