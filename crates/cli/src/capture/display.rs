//! The display of a capture on the terminal. No other part of the capture depends on it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use trawl_capture::capture_site::CaptureSite;
use trawl_plan::CapturePlan;
use trawl_plan::outputs::OutputPlan;
use trawl_sink::{are_same, one_link_type};
use trawl_sys::{Error, Result};
use trawl_view::Show;
use trawl_view::json::{JsonArray, JsonLines};
use trawl_view::print::{PrintOptions, Printer};

use crate::args::JsonForm;
use crate::terminal;

#[derive(Clone, Debug)]
pub(super) struct Display {
    /// Form in which packets are shown on standard output.
    pub form: Option<Form>,
    /// Notices are written as JSON.
    pub json: bool,
    pub quiet: bool,
    pub verbose: bool,
    /// Interval of statistics on standard error, if requested.
    pub stats: Option<Duration>,
}

impl Display {
    /// Returns the form in which packets are shown on standard output: JSON if they go nowhere else.
    pub fn shown(&self, plan: &CapturePlan) -> Option<Box<dyn Show + Send>> {
        let form = self.form.as_ref().or(plan.outputs.is_empty().then_some(&Form::Json(JsonForm::Lines)));
        form.filter(|_| plan.store.is_none()).map(Form::writer)
    }

    /// Checks the outputs of a plan: their link types, the summary's file, a terminal.
    pub fn check_outputs(&self, plan: &CapturePlan, sites: &[CaptureSite]) -> Result<()> {
        one_link_type(plan.format(), sites.iter().map(|site| site.interface.link_type))?;
        if plan.anonymize.is_some() && plan.store.is_some() {
            let why = "a store keeps packets as they were";
            return Err(
                Error::usage("cannot anonymize", why).fix("anonymize what is read from the store: --packets FILE")
            );
        }
        if let Some(account) = &plan.summary {
            self.check_account(plan, account)?;
        }
        check_terminal(plan)
    }

    /// Refuses a summary in the same file as packets.
    fn check_account(&self, plan: &CapturePlan, account: &Path) -> Result<()> {
        let mut others: Vec<PathBuf> = plan.outputs.iter().map(|one| one.path.clone()).collect();
        let shows_json = matches!(self.form, Some(Form::Json(_)));
        others.extend(shows_json.then(|| Path::new("-").to_owned()));
        match others.iter().find(|other| are_same(other, account)) {
            Some(other) => {
                let what = format!("cannot write packets and the summary to {}", other.display());
                Err(Error::usage(what, "each would overwrite the other").fix("name another file for --summary"))
            }
            None => Ok(()),
        }
    }
}

/// Refuses to write packets to a terminal.
pub(crate) fn check_terminal(plan: &CapturePlan) -> Result<()> {
    let to_terminal = plan.outputs.iter().any(OutputPlan::is_stdout) && terminal::stdout_is_terminal();
    if to_terminal {
        return Err(Error::usage("cannot write packets to standard output", "it is a terminal")
            .fix("name a file, pipe it on, or leave out -w to see lines"));
    }
    Ok(())
}

#[derive(Clone, Debug)]
pub(super) enum Form {
    Json(JsonForm),
    Lines(PrintOptions),
}

impl Form {
    pub fn writer(&self) -> Box<dyn Show + Send> {
        match self {
            Self::Lines(options) => Box::new(Printer::new(*options)),
            Self::Json(JsonForm::Lines) => Box::new(JsonLines),
            Self::Json(JsonForm::Array) => Box::new(JsonArray::default()),
        }
    }
}
