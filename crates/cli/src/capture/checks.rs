//! Checks before a capture: link types, the summary's file, a terminal.

use std::path::{Path, PathBuf};

use trawl_capture::capture_site::CaptureSite;
use trawl_capture::plan::CapturePlan;
use trawl_capture::session::Session;
use trawl_pipeline::plan::{Format, OutputPlan};
use trawl_sys::{Error, Result};

use super::display::{Display, Form};
use super::output;
use crate::terminal;

/// Checks the link types, which a library reports only once the devices are open.
pub(super) fn check_link_types(plan: &CapturePlan, session: &Session) -> Result<()> {
    one_link_type(plan, session.interfaces().iter().map(|one| one.link_type))
}

fn one_link_type(plan: &CapturePlan, mut all: impl Iterator<Item = u16>) -> Result<()> {
    let first = all.next();
    if plan.format() == Format::Pcap && all.any(|other| Some(other) != first) {
        let why = "it holds one link type, and the interfaces have different ones";
        return Err(Error::usage("cannot write the pcap format", why).fix("use --format pcapng"));
    }
    Ok(())
}

/// Refuses a summary in the same file as packets.
fn check_account(plan: &CapturePlan, display: &Display, account: &Path) -> Result<()> {
    let mut others: Vec<PathBuf> = plan.outputs.iter().map(|one| one.path.clone()).collect();
    let shows_json = matches!(display.form, Some(Form::Json)) && plan.outputs.is_empty();
    others.extend(shows_json.then(|| Path::new("-").to_owned()));
    match others.iter().find(|other| output::are_same(other, account)) {
        Some(other) => {
            let what = format!(
                "cannot write packets and the summary to {}",
                other.display()
            );
            Err(Error::usage(what, "each would overwrite the other")
                .fix("name another file for --summary"))
        }
        None => Ok(()),
    }
}

pub(super) fn check_format(
    plan: &CapturePlan,
    display: &Display,
    sites: &[CaptureSite],
) -> Result<()> {
    one_link_type(plan, sites.iter().map(|site| site.interface.link_type))?;
    if let Some(account) = &plan.summary {
        check_account(plan, display, account)?;
    }
    let to_terminal =
        plan.outputs.iter().any(OutputPlan::is_stdout) && terminal::stdout_is_terminal();
    if to_terminal {
        return Err(Error::usage(
            "cannot write packets to standard output",
            "it is a terminal",
        )
        .fix("name a file, pipe it on, or leave out -w to see lines"));
    }
    Ok(())
}
