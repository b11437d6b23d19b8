//! What a person sees of experiments: the progress, and the results.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use trawl_bench::model::Report;
use trawl_bench::run::Progress;

use crate::terminal;

/// A line of progress: on a terminal it is overwritten, elsewhere there is one for each experiment.
#[derive(Default)]
pub(super) struct Screen {
    experiment: String,
    shown: bool,
}

impl Screen {
    pub(super) fn look(&mut self, progress: &Progress) {
        let left = progress
            .left
            .map_or(String::new(), |left| format!(", {} left", minutes(left)));
        if terminal::stderr_is_terminal() {
            self.shown = true;
            terminal::show_over(&format!(
                "[{}/{}{left}] {}: {} at {}, repetition {}",
                progress.done + 1,
                progress.total,
                progress.experiment,
                progress.series,
                progress.x,
                progress.repetition
            ));
        } else if self.experiment != progress.experiment {
            self.experiment.clone_from(&progress.experiment);
            terminal::say(&format!(
                "[{}/{}{left}] {}",
                progress.done + 1,
                progress.total,
                progress.experiment
            ));
        }
    }

    pub(super) fn end(&self) {
        if self.shown {
            terminal::end_line();
        }
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

pub(super) fn show(report: &Report, directory: &Path) -> String {
    let mut lines = Vec::new();
    for experiment in &report.experiments {
        let definition = &experiment.definition;
        lines.push(format!("{}: {}", definition.name, definition.title));
        for metric in &definition.metrics {
            let points = experiment
                .points
                .iter()
                .filter(|point| point.metric == metric.name)
                .collect::<Vec<_>>();
            if !points.is_empty() {
                lines.push(format!("  {}:", metric.label));
            }
            for point in points {
                let value = &point.value;
                let times = match value.repetitions {
                    1 => "1 repetition".to_owned(),
                    count => format!("{count} repetitions"),
                };
                let mark = if point.disturbed > 0 {
                    "  (disturbed)"
                } else {
                    ""
                };
                lines.push(format!(
                    "    {:<34} {:>10} {:<7} {:>10.3} {} ({:.3} to {:.3}, {times}){mark}",
                    point.series,
                    point.x,
                    definition.x.unit,
                    value.median,
                    metric.unit,
                    value.low,
                    value.high
                ));
            }
        }
        for claim in wrong_claims(experiment) {
            lines.push(format!("  wrong claim: {claim}"));
        }
        for failure in &experiment.failures {
            lines.push(format!("  {}: {}", failure.series, failure.message));
        }
        lines.push(format!(
            "  shape agrees: {}",
            experiment.finding.agrees.text()
        ));
        let finding = &experiment.finding;
        for text in [&finding.shows, &finding.sentence] {
            if !text.is_empty() {
                lines.push(format!("  {text}"));
            }
        }
    }
    lines.push(format!(
        "results: {0}; trawl report {0} makes a page of them\n",
        directory.display()
    ));
    lines.join("\n")
}

fn wrong_claims(experiment: &trawl_bench::model::Experiment) -> Vec<String> {
    let mut said: BTreeMap<&str, usize> = BTreeMap::new();
    for run in &experiment.runs {
        if run.claim.as_ref().is_some_and(|claim| claim.wrong) {
            *said.entry(&run.series).or_default() += 1;
        }
    }
    said.into_iter()
        .map(|(series, runs)| {
            format!("{series} in {runs} runs says other than its file and the device")
        })
        .collect()
}
