//! The agent's side: it reads this host's desired state from one key, writes the host's state to another, and answers
//! the operators' questions for packets. It needs four rights: to request its command, to subscribe to new ones and to
//! questions, and to put its state.

use std::sync::Arc;

use std::time::Duration;

use async_nats::{Message, StatusCode};
use futures_util::StreamExt;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, interval_at, timeout};
use trawl_sys::events::Wake;
use trawl_sys::{Result, clock};

use super::ask::{Answers, REFUSED};
use super::connection::{ASK, COMMAND, DESIRED, DESIRED_STREAM, STATE, Signed};
use super::{Config, News, Reporter};

/// Interval of requests for commands that may have been missed.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Time limit for sending the last state.
const LAST: Duration = Duration::from_millis(500);

/// A desired state that an operator signed.
#[derive(Debug)]
pub struct Command {
    pub revision: u64,
    pub value: String,
}

/// Requests are the states to put, in JSON.
pub type Bus = super::Bus<String, Command>;

pub fn start(config: Config, answers: Arc<Answers>, wake: &Wake) -> Result<Bus> {
    Bus::start(wake, move |states, news| run(config, answers, states, news))
}

/// Passes on an operator's desired state. One without a valid signature is reported and otherwise ignored.
fn pass_on(message: &Message, config: &Config, news: &Reporter<Command>) {
    if matches!(message.status, Some(status) if status != StatusCode::OK) {
        return;
    }
    let opened = Signed::open(&message.payload, &config.name, Some(&config.operators));
    news.send(match opened {
        Ok(signed) => News::Message(Command { revision: signed.revision, value: signed.desired }),
        Err(why) => News::Refused(format!("a desired state is ignored: {why}")),
    });
}

async fn run(
    config: Config,
    answers: Arc<Answers>,
    mut states: UnboundedReceiver<String>,
    news: Reporter<Command>,
) -> std::result::Result<(), String> {
    let host = &config.name;
    let connecting = config.connect(true, &news);
    let client = connecting.await?;
    let question = format!("$JS.API.DIRECT.GET.{DESIRED_STREAM}.{DESIRED}{host}");
    let state = format!("{STATE}{host}");
    let subscribed = client.subscribe(format!("{COMMAND}{host}"));
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
                let replied = answers.reply(&question.payload, &config, clock::wall(), clock::since_boot());
                let bytes = replied.unwrap_or_else(|why| {
                    news.send(News::Refused(format!("a question is ignored: {why}")));
                    [REFUSED, why.as_bytes()].concat()
                });
                let _ = client.publish(to, bytes.into()).await;
            },
            // A failed request is repeated.
            _ = due.tick() => if let Ok(message) = client.request(question.clone(), "".into()).await {
                pass_on(&message, &config, &news);
            },
            put = states.recv() => match put {
                // The client keeps it until it is connected.
                Some(text) => if let Err(error) = client.publish(state.clone(), text.into()).await {
                    news.send(News::Refused(error.to_string()));
                },
                None => {
                    let _ = timeout(LAST, client.flush()).await;
                    return Ok(());
                }
            },
        }
    }
}
