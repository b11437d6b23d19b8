//! The operators' side of the log: the server keeps what hosts add to it, and lets them neither change nor remove a
//! record.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::OrderedConfig;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt;
use tokio::runtime::Builder;
use trawl_sys::events::Wake;
use trawl_sys::{Error, Result};

use super::connection::{LOG, LOG_STREAM};
use super::fleet::open_stream;
use super::{Config, Reporter, shown};

/// Time for which the server keeps a record.
const KEPT: Duration = Duration::from_hours(24 * 400);
/// Maximum length of a record.
const RECORD_MOST: i32 = 64 << 10;
/// Time limit for each message.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the stream of the log, with this many copies.
pub fn stream(replicas: usize) -> stream::Config {
    stream::Config {
        name: LOG_STREAM.to_owned(),
        description: Some("trawl: the operators' commands to hosts".to_owned()),
        subjects: vec![format!("{LOG}>")],
        max_age: KEPT,
        max_message_size: RECORD_MOST,
        allow_rollup: false,
        deny_delete: true,
        deny_purge: true,
        num_replicas: replicas,
        ..stream::Config::default()
    }
}

/// Returns the records since a time, oldest first: the host that added each, and its text.
pub fn read(config: &Config, since: SystemTime) -> Result<Vec<(String, Vec<u8>)>> {
    let what = || format!("cannot read the log at {}", shown(&config.url));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| Error::os(what(), e))?;
    runtime.block_on(records(config, since)).map_err(|why| Error::failed(what(), why))
}

async fn records(config: &Config, since: SystemTime) -> std::result::Result<Vec<(String, Vec<u8>)>, String> {
    let failed = |e: &dyn std::fmt::Display| e.to_string();
    let (sender, _) = std::sync::mpsc::channel();
    let reporter = Reporter::<()> { sender, wake: Wake::new().map_err(|e| failed(&e))? };
    let mut context = jetstream::new(config.connect(false, &reporter).await?);
    context.set_timeout(PATIENCE);
    let log = open_stream(&context, stream(config.replicas)).await?;
    let wanted = OrderedConfig {
        deliver_subject: context.client().new_inbox(),
        deliver_policy: DeliverPolicy::ByStartTime { start_time: since.into() },
        filter_subject: format!("{LOG}>"),
        ..OrderedConfig::default()
    };
    let consumer = log.create_consumer(wanted).await.map_err(|e| failed(&e))?;
    let mut waiting = consumer.cached_info().num_pending;
    let mut messages = consumer.messages().await.map_err(|e| failed(&e))?;
    let mut found = Vec::new();
    while waiting > 0 {
        let next = tokio::time::timeout(PATIENCE, messages.next()).await;
        let message = next.map_err(|_| "it does not answer")?.ok_or("the connection is closed")?;
        let message = message.map_err(|e| failed(&e))?;
        waiting = message.info().map_err(|e| failed(&e))?.pending;
        let host = message.subject.strip_prefix(LOG).unwrap_or_default().to_owned();
        found.push((host, message.payload.to_vec()));
    }
    Ok(found)
}
