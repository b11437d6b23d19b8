//! Numbers of packets by labels, as a metric or as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

/// Maximum number of series of a metric, including the one for all others.
pub const MOST: usize = 1000;
pub const OTHER: &str = "other";

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// A number of packets with its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Labelled {
    #[serde(serialize_with = "as_map")]
    pub labels: Labels,
    pub packets: u64,
}

fn as_map<S: serde::Serializer>(labels: &Labels, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(labels.iter().map(|(name, value)| (name, value)))
}

/// Counts by labels. The first label sets have series of their own, further ones share one.
#[derive(Debug, Default)]
pub struct Series(BTreeMap<Labels, u64>);

impl Series {
    pub fn add(&mut self, labels: Labels, packets: u64) {
        let labels = if self.0.len() + 1 < MOST || self.0.contains_key(&labels) {
            labels
        } else {
            let all = labels.into_iter();
            all.map(|(name, _)| (name, OTHER.to_owned())).collect()
        };
        *self.0.entry(labels).or_default() += packets;
    }

    pub fn all(&self) -> Vec<Labelled> {
        let all = self.0.iter().map(|(labels, packets)| Labelled { labels: labels.clone(), packets: *packets });
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beyond_the_limit_are_counted_together() {
        let mut series = Series::default();
        for number in 0..2 * MOST {
            series.add(vec![("where", format!("f{number}"))], 2);
            series.add(vec![("where", "f0".to_owned())], 1);
        }
        let all = series.all();
        assert_eq!(all.len(), MOST);
        let count = |value: &str| {
            let of = |one: &&Labelled| one.labels == [("where", value.to_owned())];
            all.iter().find(of).expect("it has a series").packets
        };
        assert_eq!(count("f0"), 2 + 2 * MOST as u64);
        assert_eq!(count(OTHER), 2 * (MOST as u64 + 1));
        assert_eq!(all.iter().map(|one| one.packets).sum::<u64>(), 6 * MOST as u64);
    }
}
