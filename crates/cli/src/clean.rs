//! `trawl clean`: removes the leftovers of killed commands and vanished interfaces.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use serde::Serialize;
use trawl_program::unload;
use trawl_sys::process::{self, own_binary};
use trawl_sys::{Error, Result};

use crate::json;

/// Removes the leftovers of killed commands and vanished interfaces: unused pins, settings, rules and labs
///
/// Commands that only look (status, stats, maps, list, doctor) change nothing. Objects in use stay.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Remove labs that are in use too
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
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

pub fn run(args: &Args) -> Result<ExitCode> {
    let pins = || -> BTreeSet<PathBuf> {
        let pinned = trawl_bpf::bpffs::pinned();
        pinned.into_iter().map(|pin| pin.path).collect()
    };
    let before = pins();
    unload::clear_away_all();
    trawl_guard::state::sweep();
    let labs = trawl_lab::clean(args.all)?;
    let after = pins();
    let removed: Vec<PathBuf> = before.difference(&after).cloned().collect();
    let mut text: String = labs
        .removed
        .iter()
        .map(|name| format!("removed the lab {name}\n"))
        .collect();
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
    json::print_as(args.json, &document, || text)?;
    Ok(ExitCode::SUCCESS)
}

const ALL_IS_WELL: &str = "done";

/// Waits for the end of standard input, and cleans up after the process at its other end
#[derive(Debug, clap::Args)]
pub struct StandBy {
    /// The lab of a demo
    #[arg(
        long,
        value_name = "LAB",
        required_unless_present = "bench",
        conflicts_with = "bench"
    )]
    lab: Option<String>,
    /// Directory of a benchmark's captures
    #[arg(long, value_name = "DIR", requires = "process")]
    bench: Option<PathBuf>,
    /// The benchmark's process. An argument, since the process may be gone before this one begins
    #[arg(long, value_name = "PID", requires = "bench")]
    process: Option<u32>,
}

#[derive(Debug)]
pub struct Cleaner {
    child: Child,
}

impl Cleaner {
    /// Cleans up one lab.
    pub fn of_lab(lab: &str) -> Result<Self> {
        Self::start(&["--lab".as_ref(), lab.as_ref()])
    }

    /// Cleans up everything that a benchmark in this process creates.
    pub fn of_bench(directory: &Path) -> Result<Self> {
        let process = std::process::id().to_string();
        Self::start(&[
            "--bench".as_ref(),
            directory.as_os_str(),
            "--process".as_ref(),
            process.as_ref(),
        ])
    }

    fn start(what: &[&OsStr]) -> Result<Self> {
        let fail = |e| Error::os("cannot start the process that cleans up", e);
        let trawl = own_binary()?;
        let child = Command::new(trawl)
            .arg("stand-by")
            .args(what)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        Ok(Self { child })
    }

    /// Adds a process to end that would otherwise keep the lab's namespaces alive.
    pub fn also_end(&mut self, process: u32) -> Result<()> {
        self.tell(&process.to_string())
            .map_err(|e| Error::os("cannot reach the process that cleans up", e))
    }

    /// Ends the cleaner, as nothing is left to clean up.
    pub fn dismiss(mut self) {
        // It ends in any case once the pipe is closed.
        let _ = self.tell(ALL_IS_WELL);
    }

    fn tell(&mut self, word: &str) -> io::Result<()> {
        let pipe = self.child.stdin.as_mut();
        pipe.map_or(Ok(()), |pipe| writeln!(pipe, "{word}"))
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the second process's whole life.
pub fn stand_by(args: &StandBy) {
    let mut processes = Vec::new();
    for line in io::stdin().lines().map_while(io::Result::ok) {
        if line == ALL_IS_WELL {
            return;
        }
        processes.extend(line.parse::<u32>().ok());
    }
    // No one is left to read a failure, and the objects may be gone already.
    for process in processes {
        let _ = process::interrupt(process);
    }
    if let Some(lab) = &args.lab {
        let _ = trawl_lab::remove(lab);
    }
    if let (Some(directory), Some(process)) = (&args.bench, args.process) {
        trawl_bench::clean_up(process, directory);
    }
}
