//! The operator's side: all keys, each change of them, and changes made by comparing revisions, so that two operators do
//! not undo each other's.

use std::time::Duration;

use async_nats::jetstream::kv::{Entry, Operation, Store, UpdateErrorKind};
use async_nats::jetstream::stream::{self, DiscardPolicy, Republish};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use crate::connection::{BUCKET, COMMANDS, Config, STATES};
use crate::lines::{self, Input};

/// As the agent does: longer ones are no state of a host.
const VALUE_MOST: i32 = 1 << 20;

/// A host's desired state, if no one has changed it since this revision (0: none is there).
#[derive(Deserialize)]
struct Put {
    host: String,
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
        revision: u64,
        value: String,
    },
    /// All that was there has been told; changes follow.
    Listed,
    Stored {
        host: String,
        revision: u64,
    },
    Conflict {
        host: String,
    },
    Failed {
        host: String,
        why: String,
    },
}

async fn bucket(config: &Config) -> Result<Store, String> {
    let client = config.connect(false).await?;
    let mut jetstream = async_nats::jetstream::new(client);
    jetstream.set_timeout(Duration::from_secs(5));
    if let Ok(store) = jetstream.get_key_value(BUCKET).await {
        return Ok(store);
    }
    // As the client would make it, which asks for the account first, in a way that servers before 2.10 cannot answer.
    let made = jetstream.create_stream(stream::Config {
        name: format!("KV_{BUCKET}"),
        description: Some("trawl: what is desired of hosts, and their state".to_owned()),
        subjects: vec![format!("$KV.{BUCKET}.>")],
        max_messages_per_subject: 1,
        max_message_size: VALUE_MOST,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        allow_direct: true,
        deny_delete: true,
        num_replicas: 1,
        republish: Some(Republish {
            source: format!("$KV.{BUCKET}.>"),
            destination: format!("{BUCKET}.>"),
            headers_only: false,
        }),
        ..stream::Config::default()
    });
    let fail = |e: &dyn std::fmt::Display| format!("cannot make the bucket {BUCKET}: {e}");
    made.await.map_err(|e| fail(&e))?;
    let made = jetstream.get_key_value(BUCKET).await;
    made.map_err(|e| fail(&e))
}

fn told(entry: &Entry) -> Option<Answer> {
    let (what, host) = match entry.key.strip_prefix(COMMANDS) {
        Some(host) => (What::Desired, host),
        None => (What::State, entry.key.strip_prefix(STATES)?),
    };
    let value = match entry.operation {
        Operation::Put => String::from_utf8_lossy(&entry.value).into_owned(),
        Operation::Delete | Operation::Purge => String::new(),
    };
    Some(Answer::Entry {
        what,
        host: host.to_owned(),
        revision: entry.revision,
        value,
    })
}

async fn put(store: &Store, put: Put) -> Answer {
    let Put {
        host,
        revision,
        value,
    } = put;
    let key = format!("{COMMANDS}{host}");
    match store.update(key, value.into(), revision).await {
        Ok(revision) => Answer::Stored { host, revision },
        Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
            Answer::Conflict { host }
        }
        Err(error) => Answer::Failed {
            host,
            why: error.to_string(),
        },
    }
}

pub async fn run(input: &mut Input) -> Result<(), String> {
    let Some(config) = input.next::<Config>().await? else {
        return Ok(());
    };
    let store = bucket(&config).await?;
    let fail = |e: &dyn std::fmt::Display| format!("cannot read the bucket {BUCKET}: {e}");
    let status = store.status().await.map_err(|e| fail(&e))?;
    let mut listed = status.values() == 0;
    let watch = if listed {
        store.watch_all().await
    } else {
        store.watch_with_history(">").await
    };
    let mut watch = watch.map_err(|e| fail(&e))?;
    if listed {
        lines::write(&Answer::Listed)?;
    }
    loop {
        tokio::select! {
            entry = watch.next() => {
                let entry = entry.ok_or("the connection is closed")?.map_err(|e| fail(&e))?;
                if let Some(answer) = told(&entry) {
                    lines::write(&answer)?;
                }
                if !listed && entry.delta == 0 {
                    listed = true;
                    lines::write(&Answer::Listed)?;
                }
            }
            request = input.next::<Put>() => match request? {
                Some(request) => lines::write(&put(&store, request).await)?,
                None => return Ok(()),
            },
        }
    }
}
