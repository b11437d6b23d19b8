//! The rows of an experiment's table: for each point what was sent, recorded, lost and claimed.

use crate::model::{Experiment, Interval, Run};

#[derive(Clone, Debug)]
pub struct Row {
    pub series: String,
    pub x: f64,
    /// One for each metric of the definition.
    pub values: Vec<Option<Interval>>,
    pub sent: Option<f64>,
    pub recorded: Option<f64>,
    pub lost: Option<f64>,
    /// What the mechanism says of itself: recorded, lost.
    pub claimed: Option<(Option<f64>, Option<f64>)>,
    pub claim_is_wrong: bool,
    /// The CPUs that did something: user, system, softirq and steal in per cent.
    pub cpus: String,
    pub memory_mib: Option<f64>,
    pub runs: usize,
    pub disturbed: usize,
}

pub fn rows(experiment: &Experiment) -> Vec<Row> {
    let mut rows = Vec::new();
    for series in experiment.series() {
        let mut xs: Vec<f64> = Vec::new();
        let own = experiment.runs.iter().filter(|run| run.series == series);
        own.for_each(|run| {
            if !xs.contains(&run.x) {
                xs.push(run.x);
            }
        });
        xs.sort_by(f64::total_cmp);
        rows.extend(xs.into_iter().map(|x| row(experiment, &series, x)));
    }
    rows
}

fn row(experiment: &Experiment, series: &str, x: f64) -> Row {
    let runs: Vec<&Run> = experiment
        .runs
        .iter()
        .filter(|run| run.series == series && run.x == x)
        .collect();
    let median = |figure: &dyn Fn(&Run) -> Option<u64>| {
        let figures = runs
            .iter()
            .filter_map(|run| figure(run))
            .map(|one| one as f64);
        Interval::of(figures).map(|interval| interval.median)
    };
    let claims = runs.iter().any(|run| run.claim.is_some());
    Row {
        series: series.to_owned(),
        x,
        values: experiment
            .definition
            .metrics
            .iter()
            .map(|metric| {
                let line = experiment.line(series, &metric.name);
                line.iter()
                    .find(|point| point.x == x)
                    .map(|point| point.value)
            })
            .collect(),
        sent: median(&|run| run.sent),
        recorded: median(&|run| run.recorded),
        lost: median(&|run| run.lost),
        claimed: claims.then(|| {
            (
                median(&|run| run.claim.as_ref()?.recorded),
                median(&|run| run.claim.as_ref()?.lost),
            )
        }),
        claim_is_wrong: runs
            .iter()
            .any(|run| run.claim.as_ref().is_some_and(|claim| claim.wrong)),
        cpus: cpus(&runs),
        memory_mib: median(&|run| run.memory_bytes).map(|bytes| bytes / f64::from(1 << 20)),
        runs: runs.len(),
        disturbed: runs.iter().filter(|run| run.disturbed.is_some()).count(),
    }
}

fn cpus(runs: &[&Run]) -> String {
    let count = runs.iter().map(|run| run.cpus.len()).max().unwrap_or(0);
    let of = |cpu: usize| {
        let mean = |share: &dyn Fn(&crate::model::CpuUse) -> f32| {
            let all: Vec<f32> = runs
                .iter()
                .filter_map(|run| run.cpus.get(cpu))
                .map(share)
                .collect();
            all.iter().sum::<f32>() / all.len().max(1) as f32 * 100.0
        };
        let parts = [
            mean(&|c| c.user),
            mean(&|c| c.system),
            mean(&|c| c.softirq),
            mean(&|c| c.steal),
        ];
        (parts.iter().sum::<f32>() >= 1.0).then(|| {
            format!(
                "{cpu}: {:.0}/{:.0}/{:.0}/{:.0}",
                parts[0], parts[1], parts[2], parts[3]
            )
        })
    };
    (0..count).filter_map(of).collect::<Vec<_>>().join("  ")
}

/// A figure with as many digits as tell something.
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
    format!(
        "{} ({} to {})",
        figure(value.median),
        figure(value.low),
        figure(value.high)
    )
}
