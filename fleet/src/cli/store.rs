//! `trawl store`: the contents of a store of captures, their integrity, and their removal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use trawl_front::{exit_code, json, terminal};
use trawl_spool::default_spool;
use trawl_sys::{Error, Result, memory, units};
use trawl_view::text::count;

use super::{hosts, keep, query, serve, trace};
use trawl_store::{
    self as store, Account, Contents, EpochAccount, Evidence, Finding, Limits, Pause, Problem, Pruned, Scope, Source,
    Store, coverage,
};

/// Manages a store of captures, which trawl capture --store fills
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists the captures of a store, each run with its summary
    Ls(StoreArgs),
    /// Reads all of a store and reports every missing, changed or unknown object; exit status 1 if one is found
    Verify(StoreArgs),
    Prune(Prune),
    Push(Push),
    Index(Index),
    Keep(keep::Args),
    Query(Box<query::Args>),
    Trace(trace::Args),
    Serve(serve::Args),
    #[command(hide = true)]
    Answer(hosts::Answer),
}

#[derive(Debug, clap::Args)]
struct StoreArgs {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(value_name = "URL")]
    url: String,
    /// Also count the chunks for this store that wait in this spool
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Removes old chunks and their index; their manifests stay, with a record of when and why the packets were removed
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("limits").args(["keep", "max"]).required(true).multiple(true))]
struct Prune {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Limits of a store.
#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    /// Remove chunks whose last packet is older than this, for example 7d
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    keep: Option<Duration>,
    /// Remove the oldest chunks until the remaining ones have this size together
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    max: Option<u64>,
}

impl LimitArgs {
    /// Returns the limits; `None` if there are none.
    pub fn limits(&self) -> Option<Limits> {
        let any = self.keep.is_some() || self.max.is_some();
        any.then_some(Limits { keep: self.keep, max_bytes: self.max })
    }
}

/// Stores the chunks in this host's spool that captures left because they were killed, or could not reach their store
#[derive(Debug, clap::Args)]
struct Push {
    /// Only chunks for this store
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Directory in which the chunks wait
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Ls(args) => list(&args),
        Command::Verify(args) => verify(&args),
        Command::Prune(args) => prune(&args),
        Command::Push(args) => push(&args),
        Command::Index(args) => index(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Query(args) => query::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Answer(args) => hosts::answer(&args),
    }
}

#[derive(Serialize)]
struct Listing {
    captures: Vec<EpochAccount>,
    not_recording: Vec<Pause>,
    /// Hosts of each incident.
    incidents: BTreeMap<String, BTreeSet<String>>,
    /// Stored packets that queries do not find, because their chunks have no index, and these chunks.
    not_indexed: u64,
    not_indexed_chunks: u64,
    total: Account,
}

fn list(args: &StoreArgs) -> Result<ExitCode> {
    let store = Store::open(&args.url, false)?;
    let contents = Contents::read(&store, &args.spool, &Scope::default(), Source::Records)?;
    query::say_newer(contents.newer);
    let runs = contents.runs;
    let covered = coverage(&runs, &Scope::default());
    let listing = Listing {
        captures: runs.epochs(),
        not_recording: runs.pauses(),
        incidents: store::incidents(&store)?,
        not_indexed: covered.iter().map(|row| row.not_indexed).sum(),
        not_indexed_chunks: covered.iter().map(|row| row.not_indexed_chunks).sum(),
        total: runs.account(),
    };
    let mut out = String::new();
    for capture in &listing.captures {
        describe(&mut out, capture);
    }
    for pause in &listing.not_recording {
        let _ = writeln!(out, "host {}: {}", pause.host, query::pause_text(pause));
    }
    for (id, hosts) in &listing.incidents {
        let hosts = count(hosts.len() as u64, "host");
        let _ = writeln!(out, "incident {id}: {hosts}");
    }
    if listing.not_indexed_chunks > 0 {
        let which = query::chunks_text(listing.not_indexed, listing.not_indexed_chunks);
        let _ = writeln!(out, "not indexed: {which} (trawl store index {})", args.url);
    }
    let _ = writeln!(out, "total: {}", account(&listing.total));
    json::print_as(args.json, &listing, || out)?;
    Ok(ExitCode::SUCCESS)
}

fn account(account: &Account) -> String {
    let Account { recorded, stored, on_host, spooled, evicted, pruned, unknown } = account;
    let on_host = match on_host {
        0 => String::new(),
        count => format!(" + {count} on hosts"),
    };
    let pruned = match pruned {
        0 => String::new(),
        count => format!(" ({count} pruned)"),
    };
    format!(
        "{recorded} recorded = {stored} stored{on_host} + {spooled} spooled + {evicted} evicted{pruned} + {unknown} unknown"
    )
}

fn describe(out: &mut String, capture: &EpochAccount) {
    let _ = writeln!(
        out,
        "{} on {}, boot {}, epoch {}",
        capture.epoch.capture, capture.epoch.host, capture.epoch.boot, capture.epoch.epoch
    );
    let _ = writeln!(out, "  interfaces: {}", capture.interfaces.join(", "));
    if let (Some(first), Some(last)) = (capture.first_ns, capture.last_ns) {
        let _ = writeln!(out, "  packets from {} to {}", terminal::date_and_time(first), terminal::date_and_time(last));
    }
    let chunks = count(capture.chunks, "chunk");
    let _ = writeln!(out, "  {chunks}, {}", count(capture.bytes, "byte"));
    let _ = writeln!(out, "  {}", account(&capture.account));
    for (reason, count) in capture.lost.iter().filter(|(_, count)| **count > 0) {
        let _ = writeln!(out, "  lost before recording: {count} ({})", reason.replace('_', " "));
    }
    for gap in &capture.gaps {
        let packets = match gap.packets {
            Some(packets) => count(packets, "packet"),
            None => "an unknown number of packets".to_owned(),
        };
        let _ = writeln!(out, "  unknown: chunks {} to {} ({packets})", gap.from, gap.to);
    }
    match &capture.ended {
        Some(reason) => {
            let _ = writeln!(out, "  ended: {reason}");
        }
        None => out.push_str(
            "  no end record: the capture is running, or was killed and its packets after the last chunk are unknown\n",
        ),
    }
    let clock = match capture.clock_error_bound_ns {
        Some(bound) => format!("at most {} ms wrong", bound.div_ceil(1_000_000)),
        None => "error unknown".to_owned(),
    };
    let _ = writeln!(out, "  clock: {clock}");
}

/// Runs an operation on chunks and shows its progress on a terminal.
fn with_progress<T>(work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<T>) -> Result<T> {
    let live = terminal::stderr_is_terminal();
    let done = work(&mut |done, all| {
        if live {
            terminal::show_over(&format!("{done} of {all} chunks"));
        }
    });
    if live {
        terminal::end_line();
    }
    done
}

fn verify(args: &StoreArgs) -> Result<ExitCode> {
    let objects = Store::open(&args.url, false)?;
    let evidence = Evidence::read(&objects)?;
    let verified = with_progress(|progress| store::verify(&objects, &evidence, progress))?;
    let mut out: String = verified.findings.iter().map(|one| sentence(one) + "\n").collect();
    let _ = writeln!(
        out,
        "{} read, {}, {}; {}\n{}",
        count(verified.chunks, "chunk"),
        count(verified.bytes, "byte"),
        count(verified.packets, "packet"),
        count(verified.findings.len() as u64, "finding"),
        account(&verified.account)
    );
    json::print_as(args.json, &verified, || out)?;
    Ok(exit_code(verified.findings.is_empty()))
}

fn sentence(finding: &Finding) -> String {
    let packets = match finding.packets {
        Some(packets) => format!(" ({})", count(packets, "packet")),
        None => String::new(),
    };
    let object = &finding.object;
    let what = match finding.problem {
        Problem::ChunkMissing => "the chunk is missing",
        Problem::ChunkChanged => "the chunk was changed: its SHA-256 differs from the manifest's",
        Problem::ChunkMismatch => "its number of packets or bytes differs from the manifest's",
        Problem::ChunkWithoutManifest => "the chunk has no manifest",
        Problem::RecordChanged => "the record was changed",
        Problem::RecordNewer => "a newer trawl wrote this record: update this trawl",
        Problem::IndexDamaged => "the index is damaged: rebuild it with trawl store index --rebuild",
        Problem::BeginMissing => "the record of the start of the run is missing",
        Problem::EndMissing => "the record of the end of the run is missing: its last packets are unknown",
        Problem::PrunedButThere => "the chunk is recorded as pruned, but is still stored: run trawl store prune again",
        Problem::ForeignObject => "trawl did not write this object",
        Problem::SequenceGap => {
            let (from, to) = (finding.from.unwrap_or(0), finding.to.unwrap_or(0));
            return format!("{object}: chunks {from} to {to} have no manifest{packets}");
        }
    };
    format!("{object}: {what}{packets}")
}

fn prune(args: &Prune) -> Result<ExitCode> {
    let url = &args.store.url;
    let objects = if args.dry_run { Store::open(url, false)? } else { Store::open_to_change(url)? };
    let limits = args.limits.limits().unwrap_or_default();
    let pruned = store::prune(&objects, limits, args.dry_run)?;
    let verb = if args.dry_run { "would remove" } else { "removed" };
    json::print_as(args.store.json, &pruned, || format!("{verb} {}\n", pruned_text(&pruned)))?;
    Ok(ExitCode::SUCCESS)
}

/// Describes what was removed, and what was kept.
pub fn pruned_text(pruned: &Pruned) -> String {
    format!(
        "{}, {}, {}; kept {}, {}",
        count(pruned.chunks, "chunk"),
        count(pruned.bytes, "byte"),
        count(pruned.packets, "packet"),
        count(pruned.kept_chunks, "chunk"),
        count(pruned.kept_bytes, "byte")
    )
}

fn push(args: &Push) -> Result<ExitCode> {
    let url = match &args.url {
        Some(url) => Some(Store::open(url, true)?.url().to_owned()),
        None => None,
    };
    if !args.spool.is_dir() {
        let what = format!("cannot store the chunks in {}", args.spool.display());
        return Err(Error::failed(what, "no such directory").fix("name the spool of the capture with --spool"));
    }
    let pushed = store::push(&args.spool, url.as_deref())?;
    let text = format!(
        "stored {} of {}; captures that still run and store their own chunks: {}\n",
        count(pushed.chunks, "chunk"),
        count(pushed.runs, "capture"),
        pushed.running
    );
    json::print_as(args.json, &pushed, || text)?;
    Ok(ExitCode::SUCCESS)
}

/// Adds new chunks to the catalogue of a store: Parquet files with a row for each packet, in an Iceberg table below
/// index/
///
/// Queries read the catalogue, and what hosts say about the chunks that it does not have yet. Run this from time to time,
/// for example once an hour, or leave it to trawl store keep; several hosts may do so. Chunks that hosts did not index (trawl capture --store-index) are
/// indexed here.
#[derive(Debug, clap::Args)]
struct Index {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(value_name = "URL")]
    url: String,
    /// Rebuild the catalogue from all manifests and chunks
    #[arg(long)]
    rebuild: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reports a chunk or a record that cannot be indexed.
pub fn say_unreadable(chunk: &str, url: &str) {
    let text = format!("cannot index {chunk}: it is missing or was changed; run trawl store verify {url} for details");
    json::say("not_indexed", json!({ "chunk": chunk }), &text);
}

fn index(args: &Index) -> Result<ExitCode> {
    memory::share_heap();
    let objects = Store::open_to_change(&args.url)?;
    let indexed = with_progress(|progress| store::index(&objects, args.rebuild, progress))?;
    indexed.unreadable.iter().for_each(|chunk| say_unreadable(chunk, &args.url));
    query::say_newer(indexed.newer.len());
    let text = format!(
        "indexed {}: {}; already indexed: {}; wrote {}, {}\n",
        count(indexed.chunks, "chunk"),
        count(indexed.packets, "packet"),
        indexed.there,
        count(indexed.files, "file"),
        count(indexed.bytes, "byte")
    );
    json::print_as(args.json, &indexed, || text)?;
    let is_whole = indexed.unreadable.is_empty() && indexed.newer.is_empty();
    Ok(exit_code(is_whole))
}
