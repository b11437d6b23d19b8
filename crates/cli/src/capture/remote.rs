//! A capture on other hosts: its arguments, and what is said of it.

mod output;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use trawl_hosts::{Destination, HostOptions, Hosts, News, Report};
use trawl_plan::CapturePlan;
use trawl_sys::rights::privilege::User;
use trawl_sys::{Error, Result};

use super::display::Display;
use output::Output;
use trawl_sink::Output as File;

use crate::helpers::FLEET;
use crate::{exit_code, json, terminal};

/// Options for other hosts and their connections.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other hosts")]
pub(super) struct HostArgs {
    /// Capture on this host, by ssh with your own configuration and keys: HOST, USER@HOST or ssh://USER@HOST:PORT; may
    /// be given several times. All other options apply on that host; -i HOST:IF on this one alone
    #[arg(
        long = "on",
        value_name = "HOST",
        conflicts_with_all = [
            "list_interfaces", "compress", "file_size", "file_seconds", "files", "max_disk", "command", "sealed", "io",
            "trigger", "on_verdict", "on_signal",
        ],
        hide_short_help = true
    )]
    pub(super) on: Vec<String>,
    /// Copy this trawl to the hosts first, below the user's ~/.cache, and run that
    #[arg(long, requires = "on", hide_short_help = true)]
    push: bool,
    /// Write notices as JSON, for the trawl that started this one
    #[arg(long, hide = true)]
    collected: bool,
    /// The program that reaches hosts, with its options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "on", hide_short_help = true)]
    ssh: String,
}

/// Captures on other hosts.
pub(super) fn capture(hosts: &HostArgs, plan: &CapturePlan, display: &Display) -> Result<ExitCode> {
    let user = plan.user.as_deref().map(User::find).transpose()?;
    let open = |path: &Path| File::open(path, plan.files.mode, user.as_ref());
    let account = plan.summary.as_deref().map(open).transpose()?;
    let mut output = match plan.store {
        Some(_) => None,
        None => Some(Output::open(&plan.outputs, display, open)?),
    };
    let (quiet, json) = (display.quiet, display.json);
    let tell = move |host: &str, news: &News<'_>| match news {
        News::Received(count) => terminal::say(&format!("{host}: {count} packets received")),
        News::Said { .. } if quiet => {}
        News::Said { notice: Some(notice), text } if json => json::notice(Some(host), (*notice).clone(), text),
        News::Said { text, .. } => terminal::say(&format!("{host}: {text}")),
    };
    let destinations = Destination::all(&hosts.ssh, &hosts.on)?;
    let options = HostOptions { push: hosts.push.then_some(FLEET.program), quiet };
    let mut running = Hosts::start(&destinations, plan, options, &(Arc::new(tell) as _))?;
    let ran = match &mut output {
        Some(output) => running.run(output),
        None => running.run(&mut ()),
    };
    let report = running.report();
    let written = output.map_or(Ok(()), Output::finish);
    report.lines().iter().for_each(|line| terminal::say(line));
    account.map_or(Ok(()), |account| write_summary(account, &report))?;
    ran.and(written)?;
    Ok(exit_code(report.is_whole()))
}

fn write_summary(mut account: File, report: &Report) -> Result<()> {
    let text = json::line(report)?;
    let name = account.name.clone();
    account.empty()?;
    account.keep();
    let written = account.file.write_all(text.as_bytes());
    written.map_err(|e| Error::os(format!("cannot write the summary to {name}"), e))
}

impl HostArgs {
    /// Returns true if another trawl started this one, and reads its output.
    pub(super) fn is_collected(&self) -> bool {
        self.collected
    }

    pub(super) fn are_named(&self) -> bool {
        !self.on.is_empty()
    }
}
