//! What changed between two runs: points whose intervals do not touch.

use super::Source;
use crate::model::Interval;

#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub experiment: String,
    pub series: String,
    pub metric: String,
    pub x: f64,
    pub before: Interval,
    pub after: Interval,
    /// The intervals have nothing in common.
    pub is_marked: bool,
}

impl Change {
    pub fn percent(&self) -> f64 {
        (self.after.median / self.before.median - 1.0) * 100.0
    }
}

/// Every point that both have, in the order of the later one.
pub fn changes(before: &Source, after: &Source) -> Vec<Change> {
    let mut found = Vec::new();
    for experiment in &after.report.experiments {
        let name = &experiment.definition.name;
        let earlier = before
            .report
            .experiments
            .iter()
            .find(|one| one.definition.name == *name);
        let Some(earlier) = earlier else { continue };
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
