//! `trawl query`: queries a store's index in SQL, or by a filter, and fetches the matching packets.

mod condition;
pub mod trace;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use condition::Conditions;
use serde::de::DeserializeOwned;
use serde_json::json;
use trawl_capture::filter::Filter;
use trawl_spool::default_spool;
use trawl_store::{Coverage, Inventory, PacketLocation, Packets, Scope, Store};
use trawl_sys::process::companion;
use trawl_sys::{Error, Result, clock};
use trawl_view::text;

use crate::args::LineArgs;
use crate::json;
use crate::read::{self, Bound};

/// Queries a store's index in SQL, or fetches the packets that match a filter
///
/// The table `packets` has a row for each packet of the index (`trawl index`). docs/internals/store.md describes its columns.
/// Packets that the answer does not cover are counted first, on standard error.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The query, in SQL: "SELECT host, src, count(*) FROM packets GROUP BY ALL"
    #[arg(value_name = "SQL", required_unless_present = "filter", conflicts_with_all = ["filter", "from", "to", "host", "interface"])]
    sql: Option<String>,
    /// Show the packets that match this expression, in tcpdump's syntax
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    part: PartArgs,
    /// Write the packets to this file, or to standard output with '-'; the SQL must select chunk, frame, "offset" and
    /// time, as SELECT * does
    #[arg(long, value_name = "FILE")]
    packets: Option<PathBuf>,
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), requires = "filter")]
    count: Option<u64>,
    /// Print CSV
    #[arg(long, conflicts_with_all = ["json", "filter", "packets"])]
    csv: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "packets")]
    json: bool,
    #[command(flatten)]
    lines: LineArgs,
}

/// Arguments that select a store.
#[derive(Debug, clap::Args)]
pub struct PlaceArgs {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az:// [default: $TRAWL_STORE, or file:///var/lib/trawl/store]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Also count the chunks that wait in this spool
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: PathBuf,
}

impl PlaceArgs {
    fn url(&self) -> String {
        let named = self
            .store
            .clone()
            .or_else(|| std::env::var("TRAWL_STORE").ok());
        named.unwrap_or_else(|| "file:///var/lib/trawl/store".to_owned())
    }

    fn open(&self) -> Result<(Store, Inventory)> {
        let store = Store::open(&self.url(), false)?;
        let inventory = Inventory::read(&store, Some(&self.spool))?;
        Ok((store, inventory))
    }
}

/// Arguments that select a part of a store.
#[derive(Debug, clap::Args)]
pub struct PartArgs {
    /// Only packets from this time on: 14:30 (today), '2026-01-31 14:30:00', seconds since 1970, -1h (before now)
    #[arg(long, value_name = "TIME", value_parser = read::parse_bound, allow_hyphen_values = true)]
    from: Option<Bound>,
    /// Only packets before this time
    #[arg(long, value_name = "TIME", value_parser = read::parse_bound, allow_hyphen_values = true)]
    to: Option<Bound>,
    /// Only packets of this host; may be given several times
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Only packets of this interface; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interface: Vec<String>,
}

impl PartArgs {
    fn scope(&self) -> Result<Scope> {
        let now = clock::wall();
        let ns = |bound: Option<Bound>| match bound {
            Some(Bound::AfterFirst(_)) => Err(Error::usage(
                "cannot understand --from and --to",
                "a store has no first packet",
            )
            .fix("write a time, or -1h for an hour before now")),
            bound => Ok(bound.map(|bound| bound.absolute(now, now, clock::local_offset()))),
        };
        Ok(Scope {
            hosts: self.host.clone(),
            from: ns(self.from)?,
            to: ns(self.to)?,
        })
    }

    fn conditions(&self, scope: &Scope) -> Conditions {
        Conditions::of(scope, &self.interface)
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let (store, inventory) = args.place.open()?;
    match (&args.sql, &args.filter) {
        (Some(sql), _) if args.packets.is_none() => {
            table(&args, &inventory, sql)?;
            Ok(ExitCode::SUCCESS)
        }
        (sql, filter) => packets(&args, store, &inventory, sql.as_deref(), filter.as_deref()),
    }
}

fn table(args: &Args, inventory: &Inventory, sql: &str) -> Result<()> {
    let covered = trawl_store::coverage(inventory, &Scope::default());
    let form = match (args.json, args.csv) {
        (true, _) => Form::Json,
        (_, true) => Form::Csv,
        _ => Form::Table,
    };
    let mut answer = Answer::to(&args.place.url(), form, sql)?;
    if !args.json {
        say_coverage(&covered, &args.place.url());
        return answer.copy_out();
    }
    let rows = answer.whole()?;
    let rows: &serde_json::value::RawValue = serde_json::from_slice(&rows)
        .map_err(|e| Error::failed("cannot read the answer of trawl-query", e))?;
    #[derive(serde::Serialize)]
    struct Document<'a> {
        coverage: &'a [trawl_store::Coverage],
        rows: &'a serde_json::value::RawValue,
    }
    json::print(&Document {
        coverage: &covered,
        rows,
    })
}

fn packets(
    args: &Args,
    store: Store,
    inventory: &Inventory,
    sql: Option<&str>,
    filter: Option<&str>,
) -> Result<ExitCode> {
    let scope = args.part.scope()?;
    let filter = filter.map(|words| Filter::Expression(words.to_owned()));
    let query = match sql {
        Some(sql) => format!(
            "SELECT chunk, frame, \"offset\" FROM ({}) ORDER BY time, chunk, frame, \"offset\"",
            sql.trim().trim_end_matches(';')
        ),
        None => {
            let mut conditions = args.part.conditions(&scope);
            if let Some(Filter::Expression(words)) = &filter {
                conditions.narrow(words);
            }
            format!(
                "SELECT chunk, frame, \"offset\" FROM packets{} ORDER BY time, chunk, frame, \"offset\"",
                conditions.to_sql()
            )
        }
    };
    let covered = trawl_store::coverage(inventory, &scope);
    let url = args.place.url();
    let answer = Answer::to(&url, Form::JsonLines, &query).map_err(|error| {
        match sql.is_some() && error.to_string().contains("No field named") {
            true => {
                error.fix("let the SQL select chunk, frame, \"offset\" and time, as SELECT * does")
            }
            false => error,
        }
    })?;
    say_coverage(&covered, &url);
    let places = answer.lines::<PacketLocation>();
    let packets = Packets::new(store, inventory, places);
    let counts = packets.counts();
    let mut request =
        read::Request::of_stream(filter, args.packets.clone(), args.lines.options(false));
    request.count = args.count;
    if args.json {
        request.form = Some(read::Form::Json);
    }
    let ended = read::show_stream(&request, "the store", Box::new(packets))?;
    let missing = counts.borrow().missing;
    if missing > 0 {
        // A filter needs the packets' bytes, which are gone.
        let which = match sql {
            Some(_) => "of the answer",
            None => "that may match",
        };
        let text = format!("{missing} packets {which} were pruned from the store");
        json::say("packets_missing", json!({ "packets": missing }), &text);
    }
    Ok(ended)
}

fn say_coverage(rows: &[Coverage], url: &str) {
    for row in rows.iter().filter(|row| !row.is_whole()) {
        let text = format!("not covered: {}", words(row, url));
        json::say("not_covered", json!(row), &text);
    }
    if rows.is_empty() {
        let text = "nothing is stored for these hosts and times";
        json::say("nothing_stored", json!({}), text);
    }
}

fn words(row: &Coverage, url: &str) -> String {
    let mut parts = Vec::new();
    let mut count = |number: u64, words: &str| {
        if number > 0 {
            parts.push(format!("{number} {words}"));
        }
    };
    count(row.unknown, "packets unknown");
    count(row.gaps_of_unknown_size, "gaps of unknown size");
    count(row.evicted, "packets evicted");
    count(row.spooled, "packets in the spool, not stored yet");
    count(
        row.runs_without_end,
        "runs without an end, whose last packets are unknown",
    );
    if row.not_indexed_chunks > 0 {
        parts.push(format!(
            "{} in {} not indexed (trawl index {url})",
            text::count(row.not_indexed, "packet"),
            text::count(row.not_indexed_chunks, "chunk")
        ));
    }
    format!("host {}: {}", row.host, parts.join(", "))
}

const PROGRAM: &str = "trawl-query";
const WRONG_USAGE: i32 = 2;

/// Form of the output rows.
#[derive(Clone, Copy, Debug)]
enum Form {
    Table,
    Csv,
    Json,
    JsonLines,
}

/// A running query. Its process ends with it.
struct Answer {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Answer {
    /// Starts a query. Returns once the first row has arrived, or the query has failed.
    pub fn to(store: &str, form: Form, query: &str) -> Result<Self> {
        let program = companion(PROGRAM)?.unwrap_or_else(|| PROGRAM.into());
        let form = match form {
            Form::Table => "table",
            Form::Csv => "csv",
            Form::Json => "json",
            Form::JsonLines => "jsonl",
        };
        let child = Command::new(&program)
            .args([store, form, query])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|e| {
            let missing = e.kind() == io::ErrorKind::NotFound;
            let error = Error::os(format!("cannot run {}", program.display()), e);
            match missing {
                true => error.fix("build it with make build-query"),
                false => error,
            }
        })?;
        let out = child.stdout.take();
        let out = out.ok_or_else(|| Error::failed("cannot read from trawl-query", "no pipe"))?;
        let mut answer = Self {
            child,
            out: BufReader::new(out),
        };
        if answer.out.fill_buf().is_ok_and(<[u8]>::is_empty) {
            answer.end()?;
        }
        Ok(answer)
    }

    /// Waits for the query's end, and returns its error if it failed.
    fn end(&mut self) -> Result<()> {
        let what = "cannot answer the query";
        let mut words = String::new();
        if let Some(said) = &mut self.child.stderr {
            let _ = said.read_to_string(&mut words);
        }
        let status = self.child.wait().map_err(|e| Error::os(what, e))?;
        let words = words.trim().to_owned();
        match status.code() {
            Some(0) => Ok(()),
            Some(WRONG_USAGE) => Err(Error::usage(what, words)),
            _ if words.is_empty() => Err(Error::failed(what, format!("{PROGRAM} ended: {status}"))),
            _ => Err(Error::failed(what, words)),
        }
    }

    pub fn copy_out(&mut self) -> Result<()> {
        match io::copy(&mut self.out, &mut io::stdout().lock()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            copied => copied.map_err(|e| Error::os("cannot write to standard output", e))?,
        };
        let _ = io::stdout().flush();
        self.end()
    }

    pub fn whole(&mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let read = self.out.read_to_end(&mut all);
        read.map_err(|e| Error::os("cannot read from trawl-query", e))?;
        self.end()?;
        Ok(all)
    }

    /// Returns each row as a value, followed by the error if the query failed.
    pub fn lines<T: DeserializeOwned>(mut self) -> impl Iterator<Item = io::Result<T>> {
        let mut line = String::new();
        let mut ended = false;
        std::iter::from_fn(move || {
            line.clear();
            match self.out.read_line(&mut line) {
                _ if ended => None,
                Ok(0) => {
                    ended = true;
                    self.end()
                        .err()
                        .map(|e| Err(io::Error::other(e.to_string())))
                }
                Ok(_) => Some(serde_json::from_str(&line).map_err(io::Error::from)),
                Err(error) => Some(Err(error)),
            }
        })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
            ..Coverage::default()
        };
        assert!(!row.is_whole());
        assert_eq!(
            words(&row, "file:///s"),
            "host a: 3 packets unknown, 7 packets in 2 chunks not indexed (trawl index file:///s)"
        );
    }
}
