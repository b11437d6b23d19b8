//! The summary as written by `--summary`.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Summary {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    /// Packets recorded into memory only.
    #[serde(default)]
    pub not_kept: u64,
    /// Further sightings of recorded packets.
    #[serde(default)]
    pub merged: u64,
    pub lost: BTreeMap<String, u64>,
    pub seconds: f64,
    pub ended: String,
    pub interfaces: Vec<Interface>,
    /// Outputs after the first.
    #[serde(default)]
    pub outputs: Vec<serde_json::Value>,
    /// Readers of outputs on a socket.
    #[serde(default)]
    pub readers: Vec<serde_json::Value>,
    /// Events that a capture waited for.
    #[serde(default)]
    pub triggers: Option<serde_json::Value>,
    /// Times at which packets went unseen.
    #[serde(default)]
    pub unseen: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Interface {
    pub interface: String,
    pub tap: String,
    pub hook: String,
    #[serde(default)]
    pub mode: String,
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    /// Packets recorded into memory only.
    #[serde(default)]
    pub not_kept: u64,
    /// Further sightings of recorded packets.
    #[serde(default)]
    pub merged: u64,
    pub lost: BTreeMap<String, u64>,
    /// Figures of a library that reads the packets.
    #[serde(default)]
    pub library: Option<serde_json::Value>,
    #[serde(default)]
    pub truncated: u64,
    #[serde(default)]
    pub hardware_stamped: u64,
    #[serde(default)]
    pub time: String,
    #[serde(default)]
    pub time_error_max_ns: Option<u64>,
}

impl Summary {
    pub fn parse(text: &str) -> Self {
        let summary: Self = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in the summary {text}"));
        summary.assert_adds_up();
        summary
    }

    pub fn lost_total(&self) -> u64 {
        self.lost.values().sum()
    }

    pub fn lost_by(&self, reason: &str) -> u64 {
        self.lost.get(reason).copied().unwrap_or_default()
    }

    /// Checks that the totals, each interface, and their sums add up: done for each summary that a test reads.
    fn assert_adds_up(&self) {
        let adds_up = |seen: u64, others: [u64; 4], lost: &BTreeMap<String, u64>| {
            let others = others.iter().sum::<u64>();
            assert_eq!(seen, others + lost.values().sum::<u64>(), "{self:#?}");
        };
        let others = [self.filtered_out, self.recorded, self.not_kept, self.merged];
        adds_up(self.seen, others, &self.lost);
        for one in &self.interfaces {
            let others = [one.filtered_out, one.recorded, one.not_kept, one.merged];
            adds_up(one.seen, others, &one.lost);
        }
        let sum = |figure: fn(&Interface) -> u64| self.interfaces.iter().map(figure).sum::<u64>();
        assert_eq!(self.seen, sum(|one| one.seen), "{self:#?}");
        assert_eq!(self.filtered_out, sum(|one| one.filtered_out), "{self:#?}");
        assert_eq!(self.recorded, sum(|one| one.recorded), "{self:#?}");
        let mut lost: BTreeMap<String, u64> = BTreeMap::new();
        for (reason, count) in self.interfaces.iter().flat_map(|one| &one.lost) {
            *lost.entry(reason.clone()).or_default() += count;
        }
        assert_eq!(self.lost, lost, "{self:#?}");
    }

    /// Checks that all packets were recorded, and nothing else.
    #[track_caller]
    pub fn assert_all_recorded(&self, count: u64) {
        let figures = (self.seen, self.recorded, self.filtered_out, self.lost_total());
        assert_eq!(figures, (count, count, 0, 0), "{self:#?}");
    }
}
