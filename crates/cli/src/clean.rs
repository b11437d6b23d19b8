//! `trawl doctor --clean`: removes the leftovers of killed commands and vanished interfaces.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use trawl_program::{pins, unload};
use trawl_sys::Result;

use crate::json;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    pub all: bool,
    #[arg(long)]
    pub json: bool,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    removed_labs: &'a [String],
    kept_labs: &'a [String],
    removed_pins: &'a [PathBuf],
    /// Pinned objects before and after.
    pins_before: usize,
    pins_after: usize,
}

/// Removes unused pins, settings, rules and labs, and labs in use too if `all` is set.
pub fn run(all: bool, as_json: bool) -> Result<ExitCode> {
    let before = pins::all_paths();
    unload::clear_all_leftovers();
    trawl_guard::state::sweep();
    let labs = trawl_lab::clean(all)?;
    let after = pins::all_paths();
    let removed: Vec<PathBuf> = before.difference(&after).cloned().collect();
    let mut text: String = labs.removed.iter().map(|name| format!("removed the lab {name}\n")).collect();
    for name in &labs.kept {
        text += &format!("kept the lab {name}: it is in use (--all removes it too)\n");
    }
    for pin in &removed {
        text += &format!("removed the pin {}\n", pin.display());
    }
    if text.is_empty() {
        text += "nothing to remove\n";
    }
    let document = Document {
        removed_labs: &labs.removed,
        kept_labs: &labs.kept,
        removed_pins: &removed,
        pins_before: before.len(),
        pins_after: after.len(),
    };
    json::print_as(as_json, &document, || text)?;
    Ok(ExitCode::SUCCESS)
}
