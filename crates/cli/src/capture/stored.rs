//! A capture into a store: its arguments, and the outcome for its packets.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use trawl_capture::event::Event;
use trawl_capture::session::{Attached, Ended};
use trawl_capture::summary::Summary;
use trawl_plan::outputs::{FullSpool, PacketsAt, StorePlan};
use trawl_spool::{Config, StoreWriter, StoredCapture, Uploader, Watched};
use trawl_sys::rights::privilege::{Capabilities, User};
use trawl_sys::{Error, Result, host};

use super::progress::Terminal;
use crate::helpers::FLEET;
use crate::json;
use crate::units;

/// Options for the store of chunks, and for the spool.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Storing")]
pub(super) struct StoreArgs {
    /// Keep the packets in a store, in sealed chunks with manifests: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(long, value_name = "URL", conflicts_with_all = ["write", "print", "json", "trigger", "on_verdict", "on_signal"], hide_short_help = true)]
    store: Option<String>,
    /// The capture's name in the store
    #[arg(long, value_name = "NAME", default_value = "trawl", requires = "store", hide_short_help = true)]
    store_name: String,
    /// The host's name in the store [default: the machine's host name]
    #[arg(
        long,
        value_name = "NAME",
        requires = "store",
        conflicts_with = "on",
        value_parser = NonEmptyStringValueParser::new(),
        hide_short_help = true
    )]
    host: Option<String>,
    /// Directory in which chunks wait until they are stored [default: /var/lib/trawl/spool]
    #[arg(long, value_name = "DIR", requires = "store", hide_short_help = true)]
    spool: Option<PathBuf>,
    /// Maximum size of the spool
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "4GiB", requires = "store", hide_short_help = true)]
    spool_size: u64,
    /// Action when the spool is full: end the capture, or remove the oldest chunk, whose manifest stays
    #[arg(long, value_enum, default_value_t = FullName::Stop, requires = "store", hide_short_help = true)]
    spool_full: FullName,
    /// Seal a chunk at this size, compressed
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "64MiB", requires = "store", hide_short_help = true)]
    chunk_size: u64,
    /// Seal a chunk after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "60s", requires = "store", hide_short_help = true)]
    chunk_time: Duration,
    /// Index each chunk as it is stored, as trawl store index does; the process that stores the chunks, which has no
    /// capabilities, spends CPU time on this
    #[arg(long, requires = "store", hide_short_help = true)]
    store_index: bool,
    /// Place of the packets. With host, they stay in the spool, which drops the oldest chunks when it is full, and only
    /// their index is stored; incidents and trawl store query --hosts fetch packets from the spool
    #[arg(long, value_enum, default_value_t = PlaceName::Store, requires = "store", hide_short_help = true)]
    packets_at: PlaceName,
    /// End after this many recorded bytes, before compression
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, requires = "store", hide_short_help = true)]
    store_size: Option<u64>,
    /// Time that the end of the capture may wait for the store; chunks not stored by then stay in the spool
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "30s", requires = "store", hide_short_help = true)]
    store_wait: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FullName {
    Stop,
    Evict,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlaceName {
    Store,
    Host,
}

impl StoreArgs {
    pub(super) fn is_used(&self) -> bool {
        self.store.is_some()
    }

    pub(super) fn plan(&self) -> Result<Option<StorePlan>> {
        let Some(url) = &self.store else {
            return Ok(None);
        };
        if self.chunk_size == 0 || self.chunk_size > StorePlan::MAX_CHUNK {
            let what = format!("cannot make chunks of {} bytes", self.chunk_size);
            return Err(Error::usage(what, "the size of a chunk is from 1 byte to 256 MiB"));
        }
        Ok(Some(StorePlan {
            host: self.host.clone(),
            spool: self.spool.clone(),
            spool_bytes: self.spool_size,
            full: match self.spool_full {
                FullName::Stop => FullSpool::Stop,
                FullName::Evict => FullSpool::Evict,
            },
            chunk_bytes: self.chunk_size,
            chunk_time: self.chunk_time,
            size: self.store_size,
            patience: self.store_wait,
            index: self.store_index,
            packets: match self.packets_at {
                PlaceName::Store => PacketsAt::Store,
                PlaceName::Host => PacketsAt::Host,
            },
            ..StorePlan::new(url.clone(), self.store_name.clone())
        }))
    }
}

fn config(plan: &StorePlan) -> Config {
    let arguments = std::env::args_os().skip(1);
    Config {
        plan: plan.clone(),
        host: plan.host.clone().unwrap_or_else(host::name),
        boot: host::boot_id(),
        options: arguments.map(|argument| argument.to_string_lossy().into_owned()).collect(),
        trawl: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Captures into the store; returns the outcome even if the capture ends with an error. The process that stores the
/// chunks starts before the capture gives up its rights.
pub(super) fn record(
    attached: Attached,
    plan: &StorePlan,
    user: Option<User>,
    observer: &mut Terminal,
) -> Result<(Summary, Ended, StoredCapture)> {
    let mut interfaces: Vec<String> = Vec::new();
    for name in attached.interfaces().iter().filter_map(|one| one.name.clone()) {
        if !interfaces.contains(&name) {
            interfaces.push(name);
        }
    }
    let config = config(plan);
    let mut uploads = FLEET.command()?;
    uploads.arg("upload");
    uploads.args(["--wait-ns", &plan.patience.as_nanos().to_string()]);
    let mut spool = match &user {
        Some(user) => {
            uploads.args(["--user", &user.name()]);
            user.act_as(|| config.open(interfaces))?
        }
        None => config.open(interfaces)?,
    };
    let uploader = Uploader::start(&mut uploads, &mut spool).inspect_err(|_| {
        let _ = spool.close();
    })?;
    let translations = Watched::begin(attached.namespaces());
    let confined = attached.confine(user, Capabilities::empty())?;
    let shown = plan.url.clone();
    let complain = move |why: &str| {
        let (url, error) = (shown.clone(), why.to_owned());
        json::event(&Event::StoreDelayed { url, error });
    };
    let mut writer = StoreWriter::new(&config, spool, Some(uploader), complain)?;
    writer.translate(translations)?;
    observer.set_chunker(writer.control());
    let (summary, ended) = confined.run(&mut writer, observer)?;
    let outcome = writer.end(summary.accounts(), &ended.to_string())?;
    Ok((summary, ended, outcome))
}

/// Prints a line about the store; returns `false` if it does not have all packets.
pub(super) fn report(outcome: &StoredCapture, url: &str) -> bool {
    let StoredCapture { recorded, stored, on_host, spooled, evicted, chunks_spooled, trouble, spool } = outcome;
    json::event(&Event::Stored {
        recorded: *recorded,
        stored: *stored,
        on_host: *on_host,
        spooled: *spooled,
        evicted: *evicted,
    });
    if let Some(trouble) = trouble {
        json::event(&Event::Spooled { spool: spool.clone(), chunks: *chunks_spooled, error: trouble.clone() });
    }
    if *evicted > 0 {
        let (url, packets) = (url.to_owned(), *evicted);
        json::event(&Event::Evicted { url, packets });
    }
    *spooled == 0 && *evicted == 0 && trouble.is_none()
}
