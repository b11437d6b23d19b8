//! `trawl xdp maps`: the maps of the programs on interfaces.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use trawl_program::status::{self, Map};
use trawl_sys::Result;

use super::sites::SiteArgs;
use crate::json;
use crate::terminal::{folded, write_out};

/// Lists the maps of the XDP programs on interfaces
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sites: SiteArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    maps: &'a [Map],
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let maps = status::maps_of(&args.sites.find()?)?;
    if args.json {
        json::print(&Document { maps: &maps })?;
    } else {
        write_out(&folded(&for_people(&maps)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn for_people(maps: &[Map]) -> String {
    if maps.is_empty() {
        return "no maps\n".to_owned();
    }
    let mut text = String::new();
    for map in maps {
        let memory = map
            .memory
            .map_or_else(String::new, |bytes| format!(", {bytes} bytes of memory"));
        let _ = writeln!(
            text,
            "id {}  {}  {}  key {} B, value {} B, {} entries{memory}",
            map.id, map.name, map.kind, map.key_size, map.value_size, map.max_entries
        );
        for user in &map.used_by {
            let _ = writeln!(
                text,
                "    used by {} (id {}) on {}",
                user.name, user.id, user.interface
            );
        }
        for pin in &map.pins {
            let _ = writeln!(text, "    pinned at {}", pin.display());
        }
    }
    text
}
