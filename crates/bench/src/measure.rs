//! The measuring code of the experiments, one file for each kind of measurement.

pub mod balance;
pub mod capture;
mod contenders;
pub mod ddos;
pub mod demands;
pub mod disk;
pub mod drops;
pub mod generators;
pub mod guard;
pub mod pdump;
pub mod programs;
pub mod read;
pub mod rfc2544;
pub mod store;

use crate::model::{Agreement, Experiment, Finding, Interval};

/// Form of a comparison between two series.
#[derive(Clone, Copy, Debug)]
pub enum Comparison {
    /// Ratio of rates; the aim is at least 1.
    Faster,
    /// Share in per cent.
    Share,
    /// Difference in this unit.
    More(&'static str),
}

/// Compares series by the values of the same repetitions, at each x value.
pub fn compared(
    experiment: &Experiment,
    pairs: &[(&str, &str)],
    metric: &str,
    comparison: Comparison,
) -> Finding {
    let mut xs: Vec<f64> = experiment.points.iter().map(|point| point.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (mut shows, mut behind) = (Vec::new(), 0);
    for (ours, theirs) in pairs {
        for &x in &xs {
            let figures = experiment.pairs(ours, theirs, metric, x).into_iter();
            let figures = figures.map(|(a, b)| match comparison {
                Comparison::Faster => a / b,
                Comparison::Share => a / b * 100.0,
                Comparison::More(_) => a - b,
            });
            let Some(Interval {
                median, low, high, ..
            }) = Interval::of(figures)
            else {
                continue;
            };
            behind += usize::from(median < 1.0);
            let place = match xs.len() {
                1 => String::new(),
                _ => format!(", {x} {}", experiment.definition.x.label),
            };
            shows.push(match comparison {
                Comparison::Faster => {
                    format!("{ours}{place}: {median:.2} ({low:.2} to {high:.2}) times {theirs}")
                }
                Comparison::Share => {
                    format!("{ours}{place}: {median:.1} % ({low:.1} to {high:.1}) of {theirs}")
                }
                Comparison::More(unit) => {
                    format!("{ours}{place}: {median:.0} ({low:.0} to {high:.0}) {unit} more than {theirs}")
                }
            });
        }
    }
    let agrees = match (comparison, shows.len(), behind) {
        (Comparison::Faster, all, 0) if all > 0 => Agreement::Yes,
        (Comparison::Faster, all, behind) if all > behind => Agreement::Partly,
        (Comparison::Faster, all, _) if all > 0 => Agreement::No,
        _ => Agreement::NotMeasured,
    };
    Finding {
        agrees,
        sentence: match shows.is_empty() {
            true => String::new(),
            false => "No study publishes a figure to compare with.".to_owned(),
        },
        shows: shows.join("; "),
    }
}
