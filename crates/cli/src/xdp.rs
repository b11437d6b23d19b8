//! `trawl xdp`: shows, loads and removes XDP programs on interfaces.

mod load;
pub mod stats;
mod status;
mod test;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use trawl_guard::state as guard;
use trawl_program::Site;
use trawl_program::status::{MapStatus, maps_of};
use trawl_program::unload::{self, UnloadChoice};
use trawl_sys::{Error, Result};

use crate::args::{NetnsArg, interface_and_rest};
use crate::program_args::{self, Change, Consent, SiteArgs, TargetArgs, find_all};
use crate::terminal::folded;
use crate::{completion, json};

/// Shows, loads and removes XDP programs
#[derive(Debug, clap::Args)]
#[command(infer_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(visible_aliases = ["show", "list"])]
    Status(status::Args),
    Load(load::Args),
    Unload(Unload),
    Maps(Maps),
    Stats(stats::Args),
    Test(Box<test::Args>),
    /// Keeps the program that `trawl xdp load --confirm` loaded
    Confirm(TargetArgs),
}

/// Removes XDP programs from an interface
#[derive(Debug, clap::Args)]
struct Unload {
    /// The interface, NAME or NAMESPACE:NAME, and the program's number, as status shows it [default: the one that trawl
    /// loaded]
    #[arg(value_names = ["IF", "ID"], num_args = 0..=3, add = completion::interface_and_attached())]
    words: Vec<OsString>,
    /// The interface, in the form that trawl capture accepts
    #[arg(short = 'i', long = "interface", value_name = "IF", add = completion::interfaces())]
    interface: Option<String>,
    /// All programs, including those loaded by other tools
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    netns: NetnsArg,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consent: Consent,
}

/// Lists the maps of the XDP programs on interfaces
#[derive(Debug, clap::Args)]
struct Maps {
    #[command(flatten)]
    sites: SiteArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Status(args) => status::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Unload(args) => unload(&args),
        Command::Maps(args) => {
            let maps = maps_of(&args.sites.find()?)?;
            json::print_as(args.json, &MapsDocument { maps: &maps }, || folded(&maps_for_people(&maps)))
        }
        Command::Stats(args) => return stats::run(&args),
        Command::Test(args) => return test::run(&args),
        Command::Confirm(args) => {
            let names = args.interfaces.some("xdp confirm")?;
            let sites = find_all(&names, &args.netns)?;
            let keep = |site| program_args::keep(&Change::Programs(site), args.json);
            sites.iter().try_for_each(keep)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The JSON output of `xdp unload`.
#[derive(Debug, Serialize)]
struct Unloaded<'a> {
    interface: &'a str,
    unloaded: &'a [u32],
}

fn unload(args: &Unload) -> Result<()> {
    let (interface, rest) = interface_and_rest(args.interface.as_deref(), &args.words, "xdp unload")?;
    let refused = |why: String| Error::usage("cannot unload a program", why).fix("trawl xdp unload IF [ID | --all]");
    let which = match (rest, args.all) {
        ([], true) => UnloadChoice::All,
        ([], false) => UnloadChoice::Own,
        ([id], false) => {
            let id = id.to_string_lossy();
            let number = id.parse();
            UnloadChoice::One(number.map_err(|_| refused(format!("'{id}' is not a program's number")))?)
        }
        _ => return Err(refused("several numbers are given; give one, or --all".to_owned())),
    };
    let site = Site::find(&interface, args.netns.as_deref())?;
    args.consent.check_unload(&site, which)?;
    let sites = std::slice::from_ref(&site);
    let gone = args.consent.change(sites, || guard::around(sites, || unload::unload(&site, which)))?;
    let document = Unloaded { interface: site.label(), unloaded: &gone };
    let line = |id: &u32| format!("unloaded {id} from {}\n", site.label());
    json::print_as(args.json, &document, || gone.iter().map(line).collect())
}

/// The JSON output of `xdp maps`.
#[derive(Debug, Serialize)]
struct MapsDocument<'a> {
    maps: &'a [MapStatus],
}

fn maps_for_people(maps: &[MapStatus]) -> String {
    if maps.is_empty() {
        return "no maps\n".to_owned();
    }
    let mut text = String::new();
    for map in maps {
        let memory = map.memory.map_or_else(String::new, |bytes| format!(", {bytes} bytes of memory"));
        let _ = writeln!(
            text,
            "id {}  {}  {}  key {} B, value {} B, {} entries{memory}",
            map.id, map.name, map.kind, map.key_size, map.value_size, map.max_entries
        );
        for user in &map.used_by {
            let _ = writeln!(text, "    used by {} (id {}) on {}", user.name, user.id, user.interface);
        }
        for pin in &map.pins {
            let _ = writeln!(text, "    pinned at {}", pin.display());
        }
    }
    text
}
