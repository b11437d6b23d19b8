//! A capture on other hosts: its arguments, and the messages about it.

use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use trawl_capture::event::{OutputSummary, ReaderSummary};
use trawl_capture::session::Observer;
use trawl_hosts::{Destination, HostOptions, Hosts, News, Report};
use trawl_plan::CapturePlan;
use trawl_sink::{Carried, Output as File, Outputs};
use trawl_sys::rights::privilege::User;
use trawl_sys::{Result, errno};

use super::display::Display;
use super::progress::{Notices, ReaderLogs, report_outputs, report_readers, write_summary};
use crate::helpers::FLEET;
use crate::{exit_code, json, terminal};

/// Options for other hosts and their connections.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other hosts")]
pub(super) struct HostArgs {
    /// Capture on this host, by ssh with your own configuration and keys: HOST, USER@HOST or ssh://USER@HOST:PORT; may
    /// be given several times. All other options apply on that host; -i HOST:IF names an interface of this host only
    #[arg(
        long = "on",
        value_name = "HOST",
        conflicts_with_all = ["list_interfaces", "trigger", "on_verdict", "on_signal"],
        hide_short_help = true
    )]
    pub(super) on: Vec<String>,
    /// Copy this trawl to the hosts first, below the user's ~/.cache, and run the copy
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
    display.check_outputs(plan, &[])?;
    let user = plan.user.as_deref().map(User::find).transpose()?;
    let account = plan.summary.as_deref().map(|path| File::open(path, plan.files.mode, user.as_ref())).transpose()?;
    let (quiet, json) = (display.quiet, display.json);
    let mut notices = Notices { quiet, verbose: display.verbose };
    let mut outputs = Outputs::open(plan, display.shown(plan), user, &mut notices, |event| json::event(event))?;
    let readers = ReaderLogs::new(outputs.readers());
    if outputs.addresses().next().is_some() {
        (_, outputs.for_readers) = trawl_capture::memory::with_readers(plan.options.memory)?;
    }
    let on_news = move |host: &str, news: &News<'_>| match news {
        News::Received(count) => terminal::say(&format!("{host}: {count} packets received")),
        News::Said { .. } if quiet => {}
        News::Said { notice: Some(notice), text } if json => json::notice(Some(host), (*notice).clone(), text),
        News::Said { text, .. } => terminal::say(&format!("{host}: {text}")),
    };
    let destinations = Destination::all(&hosts.ssh, &hosts.on)?;
    let options = HostOptions { push: hosts.push.then_some(FLEET.program), quiet };
    let application = format!("trawl {}", env!("CARGO_PKG_VERSION"));
    let mut running = Hosts::prepare(destinations, plan, application, options, Arc::new(on_news))?;
    let mut report_new_readers = || readers.new_events().iter().for_each(|event| notices.event(event));
    let carried = outputs.carry(&mut running, &mut report_new_readers);
    report_new_readers();
    let Carried { outcome, report: stages, outputs } = carried.unwrap_or_else(Carried::failed);
    let report = running.report(&outcome, &stages);
    let has_failed = outputs.iter().any(|output| output.failed);
    report_outputs(&outputs);
    let fates = readers.fates();
    report_readers(&fates);
    report.lines().iter().for_each(|line| terminal::say(line));
    let summary = HostsSummary { report: &report, outputs: &outputs, readers: &fates };
    account.map_or(Ok(()), |account| write_summary(account, &summary))?;
    match outcome.error {
        // The reader closed the pipe, which is not a failure.
        Some(error) if error.errno() != Some(errno::EPIPE) => Err(error),
        _ => Ok(exit_code(report.is_whole() && !has_failed)),
    }
}

/// The summary for `--summary`.
#[derive(Serialize)]
struct HostsSummary<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// Outputs after the first one.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    outputs: &'a [OutputSummary],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    readers: &'a [ReaderSummary],
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
