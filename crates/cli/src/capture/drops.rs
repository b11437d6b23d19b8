//! Options of the tap at drops, and the list of the kernel's reasons.

use std::process::ExitCode;

use trawl_capture::taps::drop::reasons::Reasons;
use trawl_plan::options::Drops;
use trawl_sys::{Error, Result};

use crate::completion;

const ALL: &str = "all";
const HELP: &str = "help";

/// Options that select which packets dropped by the kernel are recorded (--tap drop).
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Drops")]
pub(super) struct DropArgs {
    /// Only drops for these reasons, by the kernel's names; all: includes non-losses; help: lists the reasons
    #[arg(long, value_name = "LIST|all", value_delimiter = ',', add = completion::reasons(), hide_short_help = true)]
    reason: Vec<String>,
    /// Include drops that are not losses: queues of closing sockets, and groups that no socket has joined
    #[arg(long, hide_short_help = true)]
    all: bool,
    /// Record the functions that led to each drop
    #[arg(long, hide_short_help = true)]
    stack: bool,
}

impl DropArgs {
    pub(super) fn asks_for_help(&self) -> bool {
        self.reason.iter().any(|one| one == HELP)
    }

    pub(super) fn chosen(&self, netns: Option<&str>) -> Drops {
        let everything = self.all || self.reason.iter().any(|one| one.eq_ignore_ascii_case(ALL));
        let chosen = !self.reason.is_empty() && !everything;
        Drops {
            reasons: chosen.then(|| self.reason.clone()),
            no_losses: everything,
            stack: self.stack,
            namespaces: netns.map(str::to_owned).into_iter().collect(),
            ..Drops::default()
        }
    }

    /// Refuses the options without the tap.
    pub(super) fn refuse(&self) -> Result<()> {
        let given = [("--reason", !self.reason.is_empty()), ("--all", self.all), ("--stack", self.stack)];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Error::usage(
                format!("cannot use {name} without the drop tap"),
                "only drops have a reason and a stack",
            )
            .fix("add --tap drop")),
            None => Ok(()),
        }
    }
}

/// Lists the reasons of the running kernel, one per line.
pub(super) fn list_reasons() -> Result<ExitCode> {
    let reasons = Reasons::of_kernel()?;
    let text: String = reasons.all().map(|name| format!("{name}\n")).collect();
    crate::terminal::write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}
