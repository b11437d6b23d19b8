//! `trawl index`: Parquet files with a row for each packet of a store, for DuckDB, ClickHouse, Spark and others.

use std::process::ExitCode;

use trawl_store::{Inventory, Store};
use trawl_sys::Result;

use trawl_view::text::count;

use crate::json::Remark;
use crate::{json, terminal};

/// Makes an index of a store: one Parquet file for each chunk, with a row for each packet
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(value_name = "URL")]
    url: String,
    /// Make those that are there again, too
    #[arg(long)]
    rebuild: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let store = Store::open(&args.url, false)?;
    let inventory = Inventory::read(&store, None)?;
    let live = terminal::stderr_is_terminal();
    let mut progress = |done: u64, all: u64| {
        if live {
            terminal::show_over(&format!("{done} of {all} chunks"));
        }
    };
    let indexed = trawl_store::index(&store, &inventory, args.rebuild, &mut progress)?;
    if live {
        terminal::end_line();
    }
    for chunk in &indexed.unreadable {
        let text = format!(
            "cannot index {chunk}: it is missing or was changed; trawl store verify {} tells more",
            args.url
        );
        json::say(&Remark::NotIndexed { chunk }, &text);
    }
    if args.json {
        json::print(&indexed)?;
    } else {
        terminal::write_out(&format!(
            "indexed {}: {} in {}; indexed before: {}\n",
            count(indexed.files, "chunk"),
            count(indexed.packets, "packet"),
            count(indexed.bytes, "byte"),
            indexed.there
        ))?;
    }
    Ok(match indexed.unreadable.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
