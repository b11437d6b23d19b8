//! `trawl xdp confirm`: keeps a change that would be taken back.

use std::process::ExitCode;

use serde::Serialize;
use trawl_program::{Site, swap};
use trawl_sys::Result;

use crate::json::{self, rounded};
use crate::netns::NetnsArg;
use crate::terminal::write_out;

/// Keeps the program that `trawl xdp load --confirm` loaded
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The interface, NAME or NAMESPACE:NAME
    #[arg(value_name = "IF")]
    interface: String,
    #[command(flatten)]
    netns: NetnsArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Confirmed {
    command: String,
    #[serde(serialize_with = "rounded")]
    seconds_left: f64,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let site = Site::find(&args.interface, args.netns.as_deref())?;
    let about = swap::confirm(&site)?;
    if args.json {
        json::print(&Confirmed {
            command: about.command,
            seconds_left: about.left.as_secs_f64(),
        })?;
    } else {
        write_out(&format!("confirmed: {}\n", about.command))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// This command as it was typed, for the record of a change.
pub fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("trawl {}", words.join(" ").escape_debug())
}
