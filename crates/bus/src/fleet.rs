//! The operator's side: reads all hosts' desired states and reports, follows their changes, and changes them by compare-and-swap
//! on the server's numbers, so that two operators do not undo each other's changes.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::stream::{self, DiscardPolicy, Republish};
use async_nats::jetstream::{Context, Message};
use futures_util::StreamExt;
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};

use crate::connection::{
    self, COMMAND, Config, DESIRED, DESIRED_STREAM, Input, STATE, STATE_STREAM, Signed,
};

/// Longest state, as in the agent: longer ones are ignored.
const VALUE_MOST: i32 = 1 << 20;

/// A host's desired state, written only if this is still its latest number (0: none exists).
#[derive(Deserialize)]
struct Put {
    host: String,
    number: u64,
    revision: u64,
    value: String,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Desired,
    State,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Entry {
        what: What,
        host: String,
        /// Numbers given by the server and by the operator.
        number: u64,
        revision: u64,
        value: String,
        /// Reason why the state is ignored.
        refused: Option<String>,
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
    Key {
        public: String,
    },
}

fn streams() -> [stream::Config; 2] {
    let common = stream::Config {
        max_messages_per_subject: 1,
        max_message_size: VALUE_MOST,
        discard: DiscardPolicy::New,
        // A host's message could otherwise remove all other hosts' messages.
        allow_rollup: false,
        deny_delete: true,
        num_replicas: 1,
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

/// Watches a stream; returns its messages and their current number.
async fn watch(context: &Context, config: stream::Config) -> Result<(Ordered, u64), String> {
    let (name, subject) = (config.name.clone(), config.subjects.concat());
    let fail = |e: &dyn std::fmt::Display| format!("cannot read the stream {name}: {e}");
    let stream = match context.get_stream(&name).await {
        Ok(stream) => stream,
        Err(_) => {
            let made = context.create_stream(config).await;
            made.map_err(|e| format!("cannot make the stream {name}: {e}"))?
        }
    };
    let wanted = OrderedConfig {
        deliver_subject: context.client().new_inbox(),
        deliver_policy: DeliverPolicy::LastPerSubject,
        filter_subject: subject,
        ..OrderedConfig::default()
    };
    let consumer = stream.create_consumer(wanted).await.map_err(|e| fail(&e))?;
    let waiting = consumer.cached_info().num_pending;
    Ok((consumer.messages().await.map_err(|e| fail(&e))?, waiting))
}

fn told(message: &Message, operators: Option<&[String]>) -> Option<Answer> {
    let number = message.info().ok()?.stream_sequence;
    let (what, host) = match message.subject.strip_prefix(DESIRED) {
        Some(host) => (What::Desired, host.to_owned()),
        None => (What::State, message.subject.strip_prefix(STATE)?.to_owned()),
    };
    let opened = match what {
        What::Desired => Signed::open(&message.payload, &host, operators)
            .map(|signed| (signed.revision, signed.desired)),
        What::State => Ok((0, String::from_utf8_lossy(&message.payload).into_owned())),
    };
    let (refused, (revision, value)) = match opened {
        Ok(opened) => (None, opened),
        Err(why) => (Some(why), Default::default()),
    };
    Some(Answer::Entry {
        what,
        host,
        number,
        revision,
        value,
        refused,
    })
}

async fn put(context: &Context, key: &Result<KeyPair, String>, put: Put) -> Answer {
    let Put {
        host,
        number,
        revision,
        value,
    } = put;
    let stored = async {
        let fail = |e: &dyn std::fmt::Display| Err(e.to_string());
        let signed = Signed::new(key.as_ref().map_err(Clone::clone)?, &host, revision, value)?;
        let text = match serde_json::to_vec(&signed) {
            Ok(text) => text,
            Err(error) => return fail(&error),
        };
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, number.to_string());
        let subject = format!("{DESIRED}{host}");
        let sent = context
            .publish_with_headers(subject, headers, text.into())
            .await;
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

pub async fn run(input: &mut Input) -> Result<(), String> {
    let Some(mut config) = input.next::<Config>().await? else {
        return Ok(());
    };
    // A reader needs no key, and then accepts every signer.
    let key = config.key();
    config.operators.extend(key.iter().map(KeyPair::public_key));
    let operators = Some(config.operators.as_slice()).filter(|all| !all.is_empty());
    let mut context = async_nats::jetstream::new(config.connect(false).await?);
    context.set_timeout(Duration::from_secs(5));
    let [desired, states] = streams();
    let (desired, waiting) = watch(&context, desired).await?;
    let (states, more) = watch(&context, states).await?;
    let mut all = futures_util::stream::select(desired, states);
    let mut waiting = waiting + more;
    if waiting == 0 {
        connection::write(&Answer::Listed)?;
    }
    loop {
        tokio::select! {
            message = all.next() => {
                let message = message.ok_or("the connection is closed")?.map_err(|e| e.to_string())?;
                if let Some(answer) = told(&message, operators) {
                    connection::write(&answer)?;
                }
                if waiting == 1 {
                    connection::write(&Answer::Listed)?;
                }
                waiting = waiting.saturating_sub(1);
            }
            request = input.next::<Put>() => match request? {
                Some(request) => connection::write(&put(&context, &key, request).await)?,
                None => return Ok(()),
            },
        }
    }
}

/// Prints the public key of a key file, for the agents' configuration.
pub async fn key(input: &mut Input) -> Result<(), String> {
    match input.next::<Config>().await? {
        Some(config) => connection::write(&Answer::Key {
            public: config.key()?.public_key(),
        }),
        None => Ok(()),
    }
}
