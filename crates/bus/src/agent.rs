//! An agent's side: what is desired of this host comes from its own key, what it does goes to its own key. It needs three
//! rights: to ask for its command, to hear of a new one, and to put its state.

use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, StatusCode};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, interval_at};

use crate::connection::{self, Input, Signed, COMMAND, Config, DESIRED, DESIRED_STREAM, News, STATE};

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

/// Tells what an operator desires; what nobody signed is told of and changes nothing.
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
            // What fails is asked for again.
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

/// The client keeps it until there is a connection.
async fn publish(client: &Client, subject: &str, state: &str) -> Result<(), String> {
    let headers = HeaderMap::new();
    let state = state.to_owned().into();
    let sent = client.publish_with_headers(subject.to_owned(), headers, state);
    sent.await.map_err(|e| e.to_string())
}
