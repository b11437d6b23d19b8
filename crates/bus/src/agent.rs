//! The agent's side: it reads this host's desired state from one key and writes the host's state to another. It needs three
//! rights: to request its command, to subscribe to new ones, and to put its state.

use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, StatusCode};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, interval_at};

use crate::connection::{
    self, COMMAND, Config, DESIRED, DESIRED_STREAM, Input, News, STATE, Signed,
};

/// Interval of requests for commands that may have been missed.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// A request of the agent: the state to put.
#[derive(Deserialize)]
struct Put {
    state: Box<RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Desired { revision: u64, value: String },
}

/// Passes on an operator's desired state. One without a valid signature is reported and otherwise ignored.
fn tell(message: &Message, config: &Config) -> Result<(), String> {
    if matches!(message.status, Some(status) if status != StatusCode::OK) {
        return Ok(());
    }
    match Signed::open(&message.payload, &config.name, Some(&config.operators)) {
        Ok(signed) => connection::write(&Answer::Desired {
            revision: signed.revision,
            value: signed.desired,
        }),
        Err(why) => connection::write(&News::Refused {
            why: format!("a desired state is ignored: {why}"),
        }),
    }
}

pub async fn run(input: &mut Input) -> Result<(), String> {
    let Some(config) = input.next::<Config>().await? else {
        return Ok(());
    };
    let host = &config.name;
    let client = config.connect(true).await?;
    let question = format!("$JS.API.DIRECT.GET.{DESIRED_STREAM}.{DESIRED}{host}");
    let state = format!("{STATE}{host}");
    let subscribed = client.subscribe(format!("{COMMAND}{host}"));
    let mut commands = subscribed.await.map_err(|e| e.to_string())?;
    let mut due = interval_at(Instant::now(), ASK_EVERY);
    loop {
        tokio::select! {
            command = commands.next() => match command {
                Some(message) => tell(&message, &config)?,
                None => return Err("the connection is closed".to_owned()),
            },
            // A failed request is repeated.
            _ = due.tick() => if let Ok(message) = client.request(question.clone(), "".into()).await {
                tell(&message, &config)?;
            },
            put = input.next::<Put>() => match put? {
                Some(put) => {
                    let put = publish(&client, &state, put.state.get()).await;
                    if let Err(why) = put {
                        connection::write(&News::Refused { why })?;
                    }
                }
                None => return Ok(()),
            },
        }
    }
}

/// Publishes the state; the client keeps it until it is connected.
async fn publish(client: &Client, subject: &str, state: &str) -> Result<(), String> {
    let headers = HeaderMap::new();
    let state = state.to_owned().into();
    let sent = client.publish_with_headers(subject.to_owned(), headers, state);
    sent.await.map_err(|e| e.to_string())
}
