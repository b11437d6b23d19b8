//! The rows of an experiment's table: sent, recorded, lost and claimed packets of each point.

use std::fmt::Write as _;

use super::Source;
use crate::limit::limits;
use crate::model::{CpuUse, Experiment, Interval, Point, Run};
use crate::peers::Peers;
use crate::study::definition::Axis;

#[derive(Clone, Debug)]
pub struct Row {
    pub series: String,
    pub x: f64,
    /// One for each metric of the definition.
    pub values: Vec<Option<Interval>>,
    pub sent: Option<f64>,
    pub recorded: Option<f64>,
    pub lost: Option<f64>,
    /// The mechanism's own counts: recorded, lost.
    pub claimed: Option<(Option<f64>, Option<f64>)>,
    pub claim_is_wrong: bool,
    /// The active CPUs: user, system, softirq and steal in per cent.
    pub cpus: String,
    pub memory_mib: Option<f64>,
    pub runs: usize,
    pub disturbed: usize,
}

impl Row {
    /// Returns the x value, and the values of the metrics.
    pub fn figures(&self) -> Vec<String> {
        let values = self.values.iter();
        let shown = values.map(|value| value.as_ref().map_or(String::new(), interval));
        std::iter::once(figure(self.x)).chain(shown).collect()
    }
}

pub fn rows(experiment: &Experiment) -> Vec<Row> {
    let mut rows = Vec::new();
    for series in experiment.series() {
        let is_measured = |x: &f64| (experiment.runs.iter()).any(|run| run.series == series && run.x == *x);
        let xs = experiment.xs().into_iter().filter(is_measured);
        rows.extend(xs.map(|x| row(experiment, &series, x)));
    }
    rows
}

fn row(experiment: &Experiment, series: &str, x: f64) -> Row {
    let runs: Vec<&Run> = experiment.runs.iter().filter(|run| run.series == series && run.x == x).collect();
    let median = |figure: &dyn Fn(&Run) -> Option<u64>| {
        let figures = runs.iter().filter_map(|run| figure(run)).map(|one| one as f64);
        Interval::of(figures).map(|interval| interval.median)
    };
    let claims = runs.iter().any(|run| run.claim.is_some());
    Row {
        series: series.to_owned(),
        x,
        values: (experiment.definition.metrics.iter())
            .map(|metric| {
                let line = experiment.line(series, &metric.name);
                line.iter().find(|point| point.x == x).map(|point| point.value)
            })
            .collect(),
        sent: median(&|run| run.sent),
        recorded: median(&|run| run.recorded),
        lost: median(&|run| run.lost),
        claimed: claims.then(|| (median(&|run| run.claim.as_ref()?.recorded), median(&|run| run.claim.as_ref()?.lost))),
        claim_is_wrong: runs.iter().any(|run| run.claim.as_ref().is_some_and(|claim| claim.wrong)),
        cpus: cpus(&runs),
        memory_mib: median(&|run| run.memory_bytes).map(|bytes| bytes / f64::from(1 << 20)),
        runs: runs.len(),
        disturbed: runs.iter().filter(|run| run.disturbed.is_some()).count(),
    }
}

fn cpus(runs: &[&Run]) -> String {
    let count = runs.iter().map(|run| run.cpus.len()).max().unwrap_or(0);
    let of = |cpu: usize| {
        let mean = CpuUse::mean(runs, cpu);
        let parts = [mean.user, mean.system, mean.softirq, mean.steal].map(|share| share * 100.0);
        let text = parts.map(|part| format!("{part:.0}")).join("/");
        (parts.iter().sum::<f32>() >= 1.0).then(|| format!("{cpu}: {text}"))
    };
    (0..count).filter_map(of).collect::<Vec<_>>().join("  ")
}

/// Formats a value with its significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1.0 && value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

pub fn interval(value: &Interval) -> String {
    format!("{} ({} to {})", figure(value.median), figure(value.low), figure(value.high))
}

// Changes between two runs: points whose intervals do not overlap.

#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub experiment: String,
    pub series: String,
    pub metric: String,
    pub x: f64,
    pub before: Interval,
    pub after: Interval,
    /// The intervals do not overlap.
    pub is_marked: bool,
}

impl Change {
    pub fn percent(&self) -> f64 {
        (self.after.median / self.before.median - 1.0) * 100.0
    }
}

/// Returns every point that both reports have, in the order of the later one.
pub fn changes(before: &Source, after: &Source) -> Vec<Change> {
    let mut found = Vec::new();
    for experiment in &after.report.experiments {
        let name = &experiment.definition.name;
        let Some(earlier) = before.report.experiment(name) else {
            continue;
        };
        for point in &experiment.points {
            let line = earlier.line(&point.series, &point.metric);
            let Some(other) = line.iter().find(|one| one.x == point.x) else {
                continue;
            };
            let (old, new) = (other.value, point.value);
            found.push(Change {
                experiment: name.clone(),
                series: point.series.clone(),
                metric: point.metric.clone(),
                x: point.x,
                before: old,
                after: new,
                is_marked: new.low > old.high || new.high < old.low,
            });
        }
    }
    found
}

// The closing note: experiments in which a peer is ahead of trawl by more than the spread, and the reason.

/// Minimum difference that counts, as a share of the peer's value: a smaller one is within the spread of another run.
const MIN_LEAD: f64 = 0.01;
/// Suffix of series that are a baseline for the others, without a counterpart of trawl's.
const BASELINE: &str = " alone";

/// Returns one line for each experiment in which a peer is ahead in its first metric.
pub fn behind<'a>(experiments: impl IntoIterator<Item = &'a Experiment>) -> Vec<(String, String)> {
    let note = |one: &'a Experiment| Some((one.definition.name.clone(), leads(one)?));
    experiments.into_iter().filter_map(note).collect()
}

fn leads(one: &Experiment) -> Option<String> {
    let definition = &one.definition;
    let metric = definition.metrics.first()?;
    let better = |a: f64, b: f64| if metric.lower_is_better { a < b } else { a > b };
    let best = |x: f64, is_peer: bool| -> Option<&Point> {
        let own = one.points.iter().filter(|point| {
            point.metric == metric.name
                && point.x == x
                && Peers::of_series(&point.series).is_some() == is_peer
                && !point.series.contains(BASELINE)
        });
        own.reduce(|best, point| if better(point.value.median, best.value.median) { point } else { best })
    };
    let lead = |&x: &f64| {
        let (theirs, ours) = (best(x, true)?, best(x, false)?);
        let apart = if metric.lower_is_better {
            theirs.value.high < ours.value.low
        } else {
            theirs.value.low > ours.value.high
        };
        let difference = (theirs.value.median - ours.value.median).abs();
        let apart = apart && difference > MIN_LEAD * theirs.value.median.abs();
        apart.then(|| {
            format!(
                "at {} {}: {} {} {}, {} {}",
                figure(x),
                if definition.x.unit.is_empty() { &definition.x.label } else { &definition.x.unit },
                theirs.series,
                figure(theirs.value.median),
                metric.unit,
                ours.series,
                figure(ours.value.median)
            )
        })
    };
    let found: Vec<String> = one.xs().iter().filter_map(lead).collect();
    if found.is_empty() {
        return None;
    }
    let why = match definition.why_behind.as_str() {
        "" => "The reason is unknown.",
        why => why,
    };
    Some(format!("{}. {why}", found.join("; ")))
}

// The report as Markdown: the summary, and a table for each experiment.

pub fn markdown(sources: &[Source]) -> String {
    let mut text = String::from("# trawl bench\n");
    for source in sources {
        let conditions = &source.report.conditions;
        let _ = writeln!(
            text,
            "\n{}: {}, {} CPUs, {}, {} ({})\n",
            source.name,
            conditions.cpu,
            conditions.cpus,
            conditions.kernel,
            conditions.driver,
            source.report.request.profile.name()
        );
        for tuning in &source.report.configurations {
            let _ = writeln!(text, "- {}: {}", tuning.program, tuning.text());
        }
        if !source.report.configurations.is_empty() {
            text.push('\n');
        }
        text.push_str(
            "| experiment | the study found | this machine shows | shape agrees | |\n|---|---|---|---|---|\n",
        );
        for one in &source.report.experiments {
            let cells = [
                &one.definition.name,
                &one.definition.found,
                &one.finding.shows,
                &one.finding.agrees.text().to_owned(),
                &one.finding.sentence,
            ];
            let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        for one in &source.report.experiments {
            let definition = &one.definition;
            let _ = writeln!(text, "\n## {}\n\n{}\n", definition.name, definition.question);
            if let Some(limits) = limits(one) {
                let _ = writeln!(text, "{}.\n", escaped(&limits));
            }
            let unit = |axis: &Axis| format!("{} {}", axis.label, axis.unit);
            let mut head = vec!["series".to_owned(), unit(&definition.x)];
            head.extend(definition.metrics.iter().map(unit));
            head.extend(["sent", "recorded", "lost"].map(str::to_owned));
            let rule = "---|".repeat(head.len());
            let _ = writeln!(text, "| {} |\n|{rule}", head.join(" | "));
            for row in rows(one) {
                let number = |value: Option<f64>| value.map_or(String::new(), figure);
                let mut cells = vec![escaped(&row.series)];
                cells.extend(row.figures());
                cells.extend([row.sent, row.recorded, row.lost].map(number));
                let _ = writeln!(text, "| {} |", cells.join(" | "));
            }
            for failure in &one.failures {
                let _ = writeln!(text, "\n- {}: {}", failure.series, escaped(&failure.message));
            }
            let _ = writeln!(text, "\n`{}`", one.command);
        }
        text.push_str("\n## Where trawl is behind a peer\n\n");
        let found = super::behind(&source.report.experiments);
        if found.is_empty() {
            text.push_str("Nowhere by more than the spread.\n");
        }
        for (name, leads) in found {
            let _ = writeln!(text, "- {name}: {}", escaped(&leads));
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::definition::{Axis, Definition};

    fn experiment(lower_is_better: bool, runs: &[(&str, f64)]) -> Experiment {
        let definition = Definition {
            name: "one".to_owned(),
            metrics: vec![Axis { name: "mpps".to_owned(), lower_is_better, ..Axis::default() }],
            why_behind: "It does more.".to_owned(),
            ..Definition::default()
        };
        let run = |(number, (series, value)): (usize, &(&str, f64))| Run {
            series: (*series).to_owned(),
            x: 1.0,
            repetition: number as u32,
            values: [("mpps".to_owned(), *value)].into(),
            ..Run::default()
        };
        let mut one =
            Experiment { definition, runs: runs.iter().enumerate().map(run).collect(), ..Experiment::default() };
        one.summarise();
        one
    }

    #[test]
    fn only_peers_ahead_by_more_than_the_spread_are_named() {
        let ahead = [("trawl live", 7.0), ("xdp-trafficgen", 9.0)];
        let found = behind([&experiment(false, &ahead)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].1.contains("xdp-trafficgen 9") && found[0].1.ends_with("It does more."));
        assert!(behind([&experiment(true, &ahead)]).is_empty());
        let mixed = [("trawl live", 7.0), ("trawl live", 9.5), ("xdp-trafficgen", 9.0)];
        assert!(behind([&experiment(false, &mixed)]).is_empty());
        let alike = [("trawl live", 8.95), ("xdp-trafficgen", 9.0)];
        assert!(behind([&experiment(false, &alike)]).is_empty());
        let baseline = [("trawl tc beside dpdk-testpmd", 7.0), ("dpdk-testpmd alone", 9.0)];
        assert!(behind([&experiment(false, &baseline)]).is_empty());
        assert!(behind([&experiment(false, &ahead[1..])]).is_empty());
    }
}
