//! An agent's side: what is desired of this host comes from its own key, what it does goes to its own key. It needs three
//! rights: to ask for its command, to hear of a new one, and to put its state.

use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, StatusCode};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, interval_at};

use crate::connection::{BUCKET, COMMANDS, Config, News, STATES};
use crate::lines::{self, Input};

/// Between two questions for what may have been missed.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// From the agent: what to put as its state.
#[derive(Deserialize)]
struct Put {
    state: Box<RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Desired { revision: u64, value: String },
}

/// What is not text, or was deleted, desires nothing or cannot be read; the agent decides that.
fn desired(message: &Message) -> Option<Answer> {
    let header = |name: &str| message.headers.as_ref().and_then(|all| all.get(name));
    if matches!(message.status, Some(status) if status != StatusCode::OK) {
        return None;
    }
    let revision = header("Nats-Sequence")?.as_str().parse().ok()?;
    let value = match header("KV-Operation") {
        Some(_) => String::new(),
        None => String::from_utf8_lossy(&message.payload).into_owned(),
    };
    Some(Answer::Desired { revision, value })
}

async fn ask(client: &Client, subject: &str) -> Result<(), String> {
    match client.request(subject.to_owned(), "".into()).await {
        Ok(message) => desired(&message).map_or(Ok(()), |answer| lines::write(&answer)),
        // It is asked for again.
        Err(_) => Ok(()),
    }
}

pub async fn run(input: &mut Input) -> Result<(), String> {
    let Some(config) = input.next::<Config>().await? else {
        return Ok(());
    };
    let host = &config.name;
    let client = config.connect(true).await?;
    let key = format!("$KV.{BUCKET}.{COMMANDS}{host}");
    let question = format!("$JS.API.DIRECT.GET.KV_{BUCKET}.{key}");
    let state = format!("$KV.{BUCKET}.{STATES}{host}");
    let subscribed = client.subscribe(format!("{BUCKET}.{COMMANDS}{host}"));
    let mut commands = subscribed.await.map_err(|e| e.to_string())?;
    let mut due = interval_at(Instant::now(), ASK_EVERY);
    loop {
        tokio::select! {
            command = commands.next() => match command {
                Some(message) => {
                    if let Some(answer) = desired(&message) {
                        lines::write(&answer)?;
                    }
                }
                None => return Err("the connection is closed".to_owned()),
            },
            _ = due.tick() => ask(&client, &question).await?,
            put = input.next::<Put>() => match put? {
                Some(put) => {
                    let put = publish(&client, &state, put.state.get()).await;
                    if let Err(why) = put {
                        lines::write(&News::Refused { why })?;
                    }
                }
                None => return Ok(()),
            },
        }
    }
}

/// The client keeps it until there is a connection.
async fn publish(client: &Client, subject: &str, state: &str) -> Result<(), String> {
    let headers = HeaderMap::new();
    let state = state.to_owned().into();
    let sent = client.publish_with_headers(subject.to_owned(), headers, state);
    sent.await.map_err(|e| e.to_string())
}
