//! The outputs of a capture, opened before anything is attached, and the writers of all but the first.

use trawl_capture::event::Event;
use trawl_capture::plan::CapturePlan;
use trawl_capture::session::{Observer, Session};
use trawl_pipeline::plan::OutputPlan;
use trawl_sink::Beside;
use trawl_sys::{Error, Result};
use trawl_view::print::Printer;

use super::display::{Display, Form};
use super::how::{self, How};
use super::output::{self, Output};
use super::progress::Terminal;
use super::shown::{Shown, packets};

/// The outputs of a capture, opened before anything is attached: a named pipe makes trawl wait for its reader.
#[derive(Default)]
pub(super) struct Outputs {
    pub(super) account: Option<Output>,
    /// `None` if packets are written to a series of files.
    pub(super) first: Option<Output>,
    pub(super) others: Vec<(OutputPlan, Output)>,
}

impl Outputs {
    pub(super) fn open(
        plan: &CapturePlan,
        is_series: bool,
        prints: bool,
        observer: &mut Terminal,
    ) -> Result<Self> {
        let mut all = Self::default();
        let opened = all.open_all(plan, is_series, observer);
        match opened.and_then(|()| all.check_apart(prints)) {
            Ok(()) => Ok(all),
            Err(error) => {
                all.discard();
                Err(error)
            }
        }
    }

    fn open_all(
        &mut self,
        plan: &CapturePlan,
        is_series: bool,
        observer: &mut Terminal,
    ) -> Result<()> {
        let mut open = |one: &OutputPlan| {
            if output::is_named_pipe(&one.path) {
                let output = one.path.display().to_string();
                observer.event(&Event::WaitsForReader { output });
            }
            let output = Output::open(&one.path, plan)?;
            match output.check_compression(one.compression) {
                Ok(()) => Ok(output),
                Err(error) => {
                    output.discard();
                    Err(error)
                }
            }
        };
        let account = plan.summary.as_deref();
        self.account = account.map(|path| Output::open(path, plan)).transpose()?;
        let Some((first, others)) = plan.outputs.split_first() else {
            return Ok(());
        };
        if !is_series {
            self.first = Some(open(first)?);
        }
        for other in others {
            self.others.push((other.clone(), open(other)?));
        }
        Ok(())
    }

    /// Refuses two outputs to one file, which would destroy each other's data.
    fn check_apart(&self, prints: bool) -> Result<()> {
        let others = self.others.iter().map(|(_, output)| output);
        let mut known: Vec<(u64, u64)> = Vec::new();
        if prints {
            known.extend(output::place_of_stdout());
        }
        for output in self.first.iter().chain(others) {
            let Some(place) = output.place() else {
                continue;
            };
            if known.contains(&place) {
                let what = format!("cannot write to {} as well", output.name);
                let why = "another output writes to it";
                return Err(Error::usage(what, why).fix("name another file"));
            }
            known.push(place);
        }
        Ok(())
    }

    /// Reports how files are written, and fails if the requested mode is impossible.
    pub(super) fn check_io(
        &self,
        plan: &CapturePlan,
        is_series: bool,
        observer: &mut Terminal,
    ) -> Result<()> {
        let Some(first) = plan.outputs.first() else {
            return Ok(());
        };
        if is_series {
            how::check_io(first, None, plan, observer)?;
        }
        let opened = self.first.iter().map(|output| (first, output));
        let others = self.others.iter().map(|(one, output)| (one, output));
        for (one, output) in opened.chain(others).filter(|(_, output)| output.regular) {
            how::check_io(one, Some(&output.file), plan, observer)?;
        }
        Ok(())
    }

    /// Removes the files made for a capture that recorded nothing.
    pub(super) fn discard(&self) {
        let others = self.others.iter().map(|(_, output)| output);
        let all = self.account.iter().chain(&self.first).chain(others);
        all.for_each(Output::discard);
    }
}

/// Starts the writers of the outputs, and the display of packets in addition to them.
pub(super) fn start(
    opened: Vec<(OutputPlan, Output)>,
    session: &Session,
    plan: &CapturePlan,
    display: &Display,
) -> Result<Vec<Beside>> {
    let mut all = Vec::new();
    for (one, output) in opened {
        let whole = output.start()?;
        let how = How::of(&one, plan.files.io, session);
        let name = output.name.clone();
        let sink = how.open_any(output.file, output.name, whole)?;
        all.push(Beside::start(name, sink, one.snaplen)?);
    }
    if let Some(Form::Lines(options)) = &display.form
        && !plan.outputs.is_empty()
    {
        let printer = Printer::new(*options);
        let shown = Shown::new(printer, packets(session))?;
        all.push(Beside::start(
            "standard output".to_owned(),
            Box::new(shown),
            None,
        )?);
    }
    Ok(all)
}
