//! The closing note: where a peer is ahead of trawl by more than the spread, and why.

use super::table::figure;
use crate::model::{Experiment, Point};
use crate::peers::Peers;

/// A difference that counts, of the peer's value: less is within what one more run would show.
const LEAST: f64 = 0.01;
/// A series of this name has nothing of trawl's to compare with: it is what the others are measured against.
const BASELINE: &str = " alone";

/// One line for each experiment in which a peer is ahead somewhere in its first metric; empty: in none.
pub fn behind<'a>(experiments: impl IntoIterator<Item = &'a Experiment>) -> Vec<(String, String)> {
    let note = |one: &'a Experiment| Some((one.definition.name.clone(), places(one)?));
    experiments.into_iter().filter_map(note).collect()
}

fn places(one: &Experiment) -> Option<String> {
    let definition = &one.definition;
    let metric = definition.metrics.first()?;
    let mut xs: Vec<f64> = Vec::new();
    for point in one
        .points
        .iter()
        .filter(|point| point.metric == metric.name)
    {
        if !xs.contains(&point.x) {
            xs.push(point.x);
        }
    }
    xs.sort_by(f64::total_cmp);
    let better = |a: f64, b: f64| if metric.lower_is_better { a < b } else { a > b };
    let best = |x: f64, is_peer: bool| -> Option<&Point> {
        let own = one.points.iter().filter(|point| {
            point.metric == metric.name
                && point.x == x
                && Peers::of_series(&point.series).is_some() == is_peer
                && !point.series.contains(BASELINE)
        });
        own.reduce(
            |best, point| match better(point.value.median, best.value.median) {
                true => point,
                false => best,
            },
        )
    };
    let place = |&x: &f64| {
        let (theirs, ours) = (best(x, true)?, best(x, false)?);
        let apart = match metric.lower_is_better {
            true => theirs.value.high < ours.value.low,
            false => theirs.value.low > ours.value.high,
        };
        let difference = (theirs.value.median - ours.value.median).abs();
        let apart = apart && difference > LEAST * theirs.value.median.abs();
        apart.then(|| {
            format!(
                "at {} {}: {} {} {}, {} {}",
                figure(x),
                if definition.x.unit.is_empty() {
                    &definition.x.label
                } else {
                    &definition.x.unit
                },
                theirs.series,
                figure(theirs.value.median),
                metric.unit,
                ours.series,
                figure(ours.value.median)
            )
        })
    };
    let found: Vec<String> = xs.iter().filter_map(place).collect();
    if found.is_empty() {
        return None;
    }
    let why = match definition.why_behind.as_str() {
        "" => "The reason has not been found out.",
        why => why,
    };
    Some(format!("{}. {why}", found.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Axis, Definition};
    use crate::model::{Finding, Run};

    fn experiment(lower_is_better: bool, runs: &[(&str, f64)]) -> Experiment {
        let definition = Definition {
            name: "one".to_owned(),
            metrics: vec![Axis {
                name: "mpps".to_owned(),
                lower_is_better,
                ..Axis::default()
            }],
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
        let mut one = Experiment {
            definition,
            parameters: Default::default(),
            command: String::new(),
            runs: runs.iter().enumerate().map(run).collect(),
            points: Vec::new(),
            failures: Vec::new(),
            finding: Finding::default(),
            seconds: 0.0,
            repetitions_left_out: 0,
        };
        one.summarise();
        one
    }

    #[test]
    fn only_a_peer_that_is_ahead_by_more_than_the_spread_is_named() {
        let ahead = [("trawl live", 7.0), ("xdp-trafficgen", 9.0)];
        let found = behind([&experiment(false, &ahead)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].1.contains("xdp-trafficgen 9") && found[0].1.ends_with("It does more."));
        assert!(behind([&experiment(true, &ahead)]).is_empty());
        let mixed = [
            ("trawl live", 7.0),
            ("trawl live", 9.5),
            ("xdp-trafficgen", 9.0),
        ];
        assert!(behind([&experiment(false, &mixed)]).is_empty());
        let alike = [("trawl live", 8.95), ("xdp-trafficgen", 9.0)];
        assert!(behind([&experiment(false, &alike)]).is_empty());
        let baseline = [
            ("trawl tc beside dpdk-testpmd", 7.0),
            ("dpdk-testpmd alone", 9.0),
        ];
        assert!(behind([&experiment(false, &baseline)]).is_empty());
        assert!(behind([&experiment(false, &ahead[1..])]).is_empty());
    }
}
