//! `trawl xdp unload`: programs taken off an interface.

use std::process::ExitCode;

use serde::Serialize;
use trawl_guard::state as guard;
use trawl_program::Site;
use trawl_program::unload::{self, Which};
use trawl_sys::Result;

use super::consent::Consent;
use crate::json;
use crate::netns::NetnsArg;
use crate::terminal::write_out;

/// Takes XDP programs off an interface
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The interface, NAME or NAMESPACE:NAME
    #[arg(value_name = "IF")]
    interface: String,
    /// The program's number, as status shows it [default: the one that trawl loaded]
    #[arg(value_name = "ID")]
    id: Option<u32>,
    /// All programs, those loaded by other tools too
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    netns: NetnsArg,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consent: Consent,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Unloaded<'a> {
    interface: &'a str,
    unloaded: &'a [u32],
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let site = Site::find(&args.interface, args.netns.as_deref())?;
    let which = match args.id {
        Some(id) => Which::One(id),
        None if args.all => Which::All,
        None => Which::Own,
    };
    args.consent.check_unload(&site, which)?;
    let sites = std::slice::from_ref(&site);
    let gone = args.consent.change(sites, || {
        guard::around(sites, || unload::unload(&site, which))
    })?;
    if args.json {
        json::print(&Unloaded {
            interface: site.label(),
            unloaded: &gone,
        })?;
    } else {
        let lines = gone
            .iter()
            .map(|id| format!("unloaded {id} from {}\n", site.label()));
        write_out(&lines.collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}
