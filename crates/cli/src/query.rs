//! `trawl query`: asks a store's index in SQL, or for the packets that a filter takes, and fetches these packets.

mod condition;
mod coverage;
pub mod helper;
pub mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use trawl_store::{Inventory, PacketLocation, Packets, Scope, Store, default_spool};
use trawl_sys::{Error, Result, clock};
use trawl_tap::filter::Filter;

use crate::json::{self, Remark};
use crate::lines::LineArgs;
use crate::read::{self, Bound};
use condition::Conditions;
use helper::{Answer, Form};

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

/// Which store.
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

/// Which part of a store.
#[derive(Debug, clap::Args)]
pub struct PartArgs {
    /// Only packets from this time on: 14:30 (today), '2026-01-31 14:30:00', seconds since 1970, -1h (before now)
    #[arg(long, value_name = "TIME", value_parser = read::time, allow_hyphen_values = true)]
    from: Option<Bound>,
    /// Only packets before this time
    #[arg(long, value_name = "TIME", value_parser = read::time, allow_hyphen_values = true)]
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
        coverage::say(&covered, &args.place.url());
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
    coverage::say(&covered, &url);
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
        // A filter is judged on the bytes, which are gone.
        let which = match sql {
            Some(_) => "of the answer",
            None => "that may match",
        };
        let text = format!("{missing} packets {which} were pruned from the store");
        json::say(&Remark::PacketsMissing { packets: missing }, &text);
    }
    Ok(ended)
}
