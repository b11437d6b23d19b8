//! `trawl store query`: queries a store's index in SQL, or by a filter, and fetches the matching packets.

use std::io::{self, BufReader, ErrorKind};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use serde_json::json;
use trawl_front::bound::{Bound, parse_bound};
use trawl_front::lines::LineArgs;
use trawl_front::saving::SavingArgs;
use trawl_front::{exit_code, json, terminal};
use trawl_spool::default_spool;
use trawl_sys::{Error, Result, clock, process, units};

use trawl_view::text;

use super::hosts::HostsArgs;
use super::incident;
use crate::query::Answer;
use trawl_store::search::condition::Conditions;
use trawl_store::search::limits::{self, Ending};
use trawl_store::search::locations::Locations;
use trawl_store::search::question::{Form, Question};
use trawl_store::{
    Absent, Contents, Coverage, File, Incident, PacketLocation, Packets, Pause, Scope, Source, Store, coverage,
};

/// Queries a store's index in SQL, or fetches the packets that match a filter
///
/// The table `packets` has a row for each packet at each place that saw it, `flows` a row for each conversation, and
/// `sightings` a row for each conversation at each place. docs/internals/store.md describes the columns. The number of
/// packets that the answer does not cover is printed first, on standard error.
///
/// With SQL, --filter and the other options select the rows that the tables have.
///
/// For --packets, the SQL must select chunk, frame, "offset" and time_ns, as SELECT * does. If packets are missing in the
/// store, the others are shown or written, and the exit status is 1. It is also 1 if the answer lacks packets whose
/// chunks are stored and not indexed (trawl store index). Packets that were never stored do not change it.
#[derive(Debug, clap::Args)]
#[command(mut_arg("write", |arg| arg.long("packets").visible_alias("write")))]
pub struct Args {
    /// The query, in SQL: "SELECT host, src, count(*) FROM packets GROUP BY ALL"
    #[arg(value_name = "SQL", required_unless_present_any = ["filter", "flows", "incident"], conflicts_with_all = ["flows", "count"])]
    sql: Option<String>,
    /// Show the packets that match this expression, in tcpdump's syntax
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Show the conversations of the packets, as the table `flows` has them
    #[arg(long, conflicts_with_all = ["write", "count"])]
    flows: bool,
    /// Only the packets of this incident (trawl fleet trigger). Alone, it shows the packets that each host stored, and
    /// a timeline
    #[arg(long, value_name = "NAME", conflicts_with_all = ["from", "to", "host"])]
    incident: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    part: PartArgs,
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), requires = "filter")]
    count: Option<u64>,
    /// Print CSV
    #[arg(long, conflicts_with_all = ["json", "write"])]
    csv: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
    #[command(flatten)]
    saving: SavingArgs,
    #[command(flatten)]
    lines: LineArgs,
}

/// Arguments that select a store.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az:// [default: $TRAWL_STORE, or
    /// file:///var/lib/trawl/store]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Also count the chunks that wait in this spool
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: PathBuf,
    /// Maximum memory of this command, which ends if it needs more [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
}

impl StoreArgs {
    fn named(&self) -> Option<String> {
        let variable = || std::env::var("TRAWL_STORE").ok();
        self.store.clone().or_else(variable)
    }

    pub fn url(&self) -> String {
        let default = || "file:///var/lib/trawl/store".to_owned();
        self.named().unwrap_or_else(default)
    }

    /// Opens the store.
    fn store(&self) -> Result<Store> {
        Store::open(&self.url(), false).map_err(|error| match self.named() {
            Some(_) => error,
            None => error.fix("name the store: --store URL, or TRAWL_STORE in the environment"),
        })
    }

    fn memory(&self) -> u64 {
        self.memory.unwrap_or(limits::MEMORY)
    }

    /// Limits the memory of this command, and lets signals end it.
    pub fn limit(&self) -> Result<()> {
        let memory = self.memory();
        limits::watch(memory, move |ending| match ending {
            Ending::Signal(status) => status,
            Ending::Memory => {
                let _ = trawl_front::end(Err(limits::exceeded(memory)));
                1
            }
        })
    }

    /// Returns a question about the rows of these files that meet the conditions.
    pub fn question(&self, mut files: Vec<File>, conditions: &Conditions, sql: &str, form: Form) -> Question {
        let condition = conditions.joined();
        if let Some(condition) = &condition {
            files.retain(|file| condition.may_hold(file));
        }
        Question { store: self.url(), files, condition, sql: sql.to_owned(), form, memory: self.memory() }
    }

    pub fn open(&self, scope: &Scope) -> Result<(Store, Contents)> {
        let store = self.store()?;
        let contents = Contents::read(&store, &self.spool, scope, Source::Summaries)?;
        say_newer(contents.newer);
        Ok((store, contents))
    }
}

/// Arguments that select a part of a store.
#[derive(Debug, clap::Args)]
pub struct PartArgs {
    /// Only packets from this time on: 14:30 (today), '2026-01-31 14:30:00', seconds since 1970, -1h (before now)
    #[arg(long, value_name = "TIME", value_parser = parse_bound, allow_hyphen_values = true)]
    from: Option<Bound>,
    /// Only packets before this time
    #[arg(long, value_name = "TIME", value_parser = parse_bound, allow_hyphen_values = true)]
    to: Option<Bound>,
    /// Only packets of this host; may be given several times
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Only packets of this interface; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interface: Vec<String>,
}

impl PartArgs {
    pub fn scope(&self) -> Result<Scope> {
        let now = clock::wall();
        let ns = |bound: Option<Bound>| match bound {
            Some(Bound::AfterFirst(_)) => {
                Err(Error::usage("cannot understand --from and --to", "a store has no first packet")
                    .fix("write a time, or -1h for an hour before now"))
            }
            bound => Ok(bound.map(|bound| bound.absolute(now, now, clock::local_offset()))),
        };
        Ok(Scope { hosts: self.host.clone(), from: ns(self.from)?, to: ns(self.to)? })
    }

    pub fn conditions(&self, scope: &Scope) -> Conditions {
        Conditions::of(scope, &self.interface)
    }
}

/// Subject of a question.
struct Subject {
    scope: Scope,
    conditions: Conditions,
    incident: Option<Incident>,
}

impl Args {
    fn subject(&self) -> Result<Subject> {
        let Some(id) = &self.incident else {
            let scope = self.part.scope()?;
            return Ok(Subject { conditions: self.part.conditions(&scope), scope, incident: None });
        };
        let incident = Incident::read(&self.store.store()?, id)?;
        let scope = incident.scope();
        let mut conditions = self.part.conditions(&scope);
        conditions.captures(&incident.captures());
        Ok(Subject { scope, conditions, incident: Some(incident) })
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    args.saving.refuse_once()?;
    let is_table = (args.sql.is_some() || args.filter.is_none()) && args.saving.write.is_empty();
    if let Some(option) = args.saving.for_packets().filter(|_| is_table || args.flows) {
        return Err(Error::usage(format!("cannot use {option}"), "the answer is a table, and has no packets")
            .fix("write packets with --packets FILE, or show them with --filter EXPRESSION"));
    }
    args.store.limit()?;
    match (&args.sql, &args.filter) {
        _ if args.flows => table(args, "SELECT * FROM flows ORDER BY first"),
        (Some(sql), _) if args.saving.write.is_empty() => table(args, sql),
        (None, None) if args.saving.write.is_empty() => {
            let subject = args.subject()?;
            let (Some(id), Some(incident)) = (&args.incident, &subject.incident) else {
                return Err(Error::usage("cannot answer the query", "it is missing")
                    .fix("write SQL, or use --filter, --flows or --incident"));
            };
            let (_, contents) = args.store.open(&subject.scope)?;
            incident::show(id, incident, &args.store, contents.files, &subject.conditions, args.json)?;
            Ok(ExitCode::SUCCESS)
        }
        (None, _) if args.csv => {
            Err(Error::usage("cannot print packets as CSV", "only the answers to SQL and --flows have columns"))
        }
        (sql, filter) => packets(args, sql.as_deref(), filter.as_deref()),
    }
}

fn table(args: &Args, sql: &str) -> Result<ExitCode> {
    let Subject { scope, mut conditions, incident } = args.subject()?;
    incident.iter().for_each(incident::say_missing);
    conditions.ask_index(args.filter.as_deref().unwrap_or_default())?;
    let (_, contents) = args.store.open(&scope)?;
    let covered = coverage(&contents.runs, &scope);
    let form = match args {
        Args { json: true, .. } => Form::Json,
        Args { csv: true, .. } => Form::Csv,
        _ => Form::Table,
    };
    let answer = Answer::to(&args.store.question(contents.files, &conditions, sql, form))?;
    if !args.json {
        say_coverage(&covered, &args.store.url());
        // Names in packets may have characters that control a terminal.
        let is_for_terminal = terminal::stdout_is_terminal();
        answer.write(|text| match is_for_terminal {
            true => terminal::write_to_reader(&text::printable(text)),
            false => terminal::write_to_reader(text),
        })?;
        return Ok(exit_code(has_index(&covered)));
    }
    let status = exit_code(has_index(&covered));
    // The rows are written as they are found: there may be millions.
    let covered = serde_json::to_string(&covered).map_err(|e| Error::failed("cannot print the answer as JSON", e))?;
    let write = |text: &str| terminal::write_to_reader(&text::in_json(text));
    write(&format!("{{\"coverage\":{covered},\"rows\":"))?;
    answer.write(write)?;
    write("}\n")?;
    Ok(status)
}

fn packets(args: &Args, sql: Option<&str>, filter: Option<&str>) -> Result<ExitCode> {
    let Subject { scope, mut conditions, incident } = args.subject()?;
    let (store, contents) = args.store.open(&scope)?;
    conditions.narrow(filter.unwrap_or_default());
    let covered = coverage(&contents.runs, &scope);
    let locations: Box<dyn Iterator<Item = io::Result<PacketLocation>>> = match sql {
        Some(sql) => {
            let question = args.store.question(contents.files, &conditions, sql, Form::Locations);
            Box::new(Answer::to(&question)?.rows())
        }
        None => Box::new(Locations::find(&args.store.url(), contents.files, conditions.joined())?),
    };
    say_coverage(&covered, &args.store.url());
    incident.iter().for_each(incident::say_missing);
    let hosts = args.hosts.open()?;
    let packets = Packets::new(store, hosts, locations);
    let counts = packets.counts();
    let ended = read(args, filter, packets)?;
    // Only the bytes of a packet, which are elsewhere, show whether a filter matches it.
    let which = match sql {
        Some(_) => "of the answer",
        None => "that may match",
    };
    let absent = &counts.borrow().absent;
    absent.iter().for_each(|(why, packets)| say_absent(why, *packets, which));
    Ok(if absent.is_empty() && has_index(&covered) { ended } else { ExitCode::FAILURE })
}

fn say_absent(absent: &Absent, packets: u64, which: &str) {
    // A name in the store may be any text.
    let shown = text::printable;
    let (host, kind, why) = match absent {
        Absent::Gone => (None, "gone", "are no longer in the store".to_owned()),
        Absent::OnHost(host) => (Some(host), "on_host", format!("stay on host {}: --hosts fetches them", shown(host))),
        Absent::Removed(host) => {
            (Some(host), "removed", format!("were removed by host {} for newer ones", shown(host)))
        }
        Absent::Silent(host, why) => (Some(host), "no_answer", format!("stay on host {}: {why}", shown(host))),
    };
    let text = format!("{} {which} {why}", text::count(packets, "packet"));
    let remark = json!({ "packets": packets, "reason": kind, "host": host });
    json::say("packets_missing", remark, &text);
}

/// Number of bytes handed to `trawl read` at a time.
const PIECE: usize = 256 << 10;

/// Filters, shows or writes packets by `trawl read`, which gets them as a pcapng stream.
fn read(args: &Args, filter: Option<&str>, packets: impl io::Read) -> Result<ExitCode> {
    let trawl = process::trawl_binary()?;
    let what = format!("cannot run {}", trawl.display());
    let mut command = Command::new(trawl);
    command.args(["read", "-r", "-"]).args(args.lines.typed()).args(args.saving.typed());
    if let Some(count) = args.count {
        command.args(["-c", &count.to_string()]);
    }
    if args.json {
        command.arg("--json");
    }
    // This process has blocked the signals that end it.
    process::with_signals(&mut command);
    let started = command.args(["--"]).args(filter).stdin(Stdio::piped()).spawn();
    let mut reader = started.map_err(|e| Error::os(what.clone(), e))?;
    let mut copied = Ok(0);
    if let Some(mut input) = reader.stdin.take() {
        copied = io::copy(&mut BufReader::with_capacity(PIECE, packets), &mut input);
    }
    let status = reader.wait().map_err(|e| Error::os(what, e))?;
    match copied {
        // A broken pipe means that the reader needs no more packets.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let remark = json!({ "file": "the store", "error": error.to_string() });
            json::say("cannot_read", remark, &format!("cannot read the store: {error}"));
            Ok(ExitCode::FAILURE)
        }
        _ => Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)),
    }
}

/// Reports records that this trawl cannot read.
pub fn say_newer(records: usize) {
    if records > 0 {
        let text =
            format!("{} of a newer trawl cannot be read: update this trawl", text::count(records as u64, "record"));
        json::say("newer_records", json!({ "records": records }), &text);
    }
}

/// Returns true if all stored packets that a question is about are indexed.
pub fn has_index(rows: &[Coverage]) -> bool {
    rows.iter().all(|row| row.not_indexed_chunks == 0)
}

pub fn say_coverage(rows: &[Coverage], url: &str) {
    for row in rows.iter().filter(|row| !row.is_whole()) {
        let text = format!("not covered: {}", sentence(row, url));
        json::say("not_covered", json!(row), &text);
    }
    if rows.is_empty() {
        let text = "nothing is stored for these hosts and times";
        json::say("nothing_stored", json!({}), text);
    }
}

/// Maximum number of a host's pauses that are named one by one.
const PAUSES_SHOWN: usize = 3;

/// Describes a time in which a capture should have run and did not.
pub fn pause_text(pause: &Pause) -> String {
    let Pause { capture, from_ns, to_ns, .. } = pause;
    let from = terminal::date_and_time(*from_ns);
    match to_ns {
        Some(to) => {
            let seconds = to.saturating_sub(*from_ns) as f64 / 1e9;
            let to = terminal::date_and_time(*to);
            format!("'{capture}' recorded nothing from {from} to {to} ({seconds:.3} s)")
        }
        None => format!("'{capture}' has recorded nothing since {from}"),
    }
}

/// Names packets and their chunks by their numbers.
pub fn chunks_text(packets: u64, chunks: u64) -> String {
    format!("{} in {}", text::count(packets, "packet"), text::count(chunks, "chunk"))
}

fn sentence(row: &Coverage, url: &str) -> String {
    let mut parts = Vec::new();
    let mut count = |number: u64, text: &str| {
        if number > 0 {
            parts.push(format!("{number} {text}"));
        }
    };
    count(row.unknown, "packets unknown");
    count(row.gaps_of_unknown_size, "gaps of unknown size");
    count(row.evicted, "packets evicted");
    count(row.spooled, "packets in the spool, not stored yet");
    count(row.runs_without_end, "runs without an end, whose last packets are unknown");
    parts.extend(row.not_recording.iter().take(PAUSES_SHOWN).map(pause_text));
    if row.not_recording.len() > PAUSES_SHOWN {
        let more = row.not_recording.len() - PAUSES_SHOWN;
        parts.push(format!("{more} more such intervals"));
    }
    if row.not_indexed_chunks > 0 {
        let which = chunks_text(row.not_indexed, row.not_indexed_chunks);
        parts.push(format!("{which} not indexed (trawl store index {url})"));
    }
    format!("host {}: {}", row.host, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_named() {
        let row = Coverage {
            host: "a".to_owned(),
            indexed: 10,
            unknown: 3,
            not_indexed: 7,
            not_indexed_chunks: 2,
            not_recording: vec![Pause {
                host: "a".to_owned(),
                capture: "c".to_owned(),
                from_ns: 1_500_000_000,
                to_ns: Some(4_000_000_000),
            }],
            ..Coverage::default()
        };
        assert!(!row.is_whole());
        let text = sentence(&row, "file:///s");
        for part in [
            "host a: 3 packets unknown, 'c' recorded nothing from ",
            " (2.500 s), 7 packets in 2 chunks not indexed (trawl store index file:///s)",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
