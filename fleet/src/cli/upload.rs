//! `trawl-fleet upload`: the process that stores the chunks of a running capture.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use trawl_front::{exit_code, json};
use trawl_spool::Report;
use trawl_sys::Result;
use trawl_sys::events::Signals;
use trawl_sys::rights::privilege::{Capabilities, KeptPrivileges, User};

use trawl_store::{self as store, Run, Store};

/// Stores the chunks of a running capture, which starts this process
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of the run in the spool
    run: PathBuf,
    /// Nanoseconds that the upload may continue after the capture has ended
    #[arg(long)]
    wait_ns: u64,
    /// User whose rights the process keeps
    #[arg(long)]
    user: Option<String>,
}

/// Follows the capture on standard input, and reports to it on standard output.
pub fn run(args: &Args) -> Result<ExitCode> {
    // Signals are meant for the capture, whose end this process awaits.
    let _signals = Signals::watch()?;
    let open = || {
        let user = args.user.as_deref().map(User::find).transpose()?;
        let capabilities = Capabilities::empty();
        KeptPrivileges { user, capabilities }.give_up_others()?;
        let run = Run::open(&args.run)?;
        Ok((Store::open(&run.target.url, true)?, run))
    };
    let (store, run) = match open() {
        Ok(opened) => opened,
        Err(error) => {
            json::print(&Report::refused(&error))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    json::print(&Report::Opened)?;
    let (sender, news) = mpsc::channel();
    thread::spawn(move || {
        let bytes = io::stdin().lock().bytes().map_while(io::Result::ok);
        bytes.for_each(|_| {
            let _ = sender.send(());
        });
    });
    let patience = Duration::from_nanos(args.wait_ns);
    // After a capture was killed, its chunks are still stored, although no process reads the reports.
    let report = |report: Report| {
        let _ = json::print(&report);
    };
    let trouble = store::upload(&store, &run, &news, patience, &report);
    let is_done = trouble.is_none();
    report(Report::Ended { trouble });
    Ok(exit_code(is_done))
}
