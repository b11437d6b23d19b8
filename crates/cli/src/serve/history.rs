//! The last 15 minutes of what the page plots.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use trawl_sys::clock;

use super::Figures;

pub(super) const STEP: Duration = Duration::from_secs(5);
const STEPS: usize = 15 * 60 / 5;
/// Lines of a plot; the rest is one line, so that hosts that make up names fill no memory.
const LINES: usize = 12;

/// Counts at one moment, by plot and line.
type Sample = BTreeMap<(&'static str, String), u64>;

const PACKETS: &str = "Packets a second";
const BITS: &str = "Bits a second";
const VERDICTS: &str = "Verdicts a second";
const DROPS: &str = "Drops a second, by reason";
/// Plots in the order of the page, and what a count is multiplied by.
const PLOTS: [(&str, u64); 4] = [(PACKETS, 1), (BITS, 8), (VERDICTS, 1), (DROPS, 1)];

#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<(u64, Sample)>,
}

/// What the page draws: for each line the rates between two samples, `null` where there was none.
#[derive(Debug, Serialize)]
pub(super) struct Plots {
    /// The end of each step, in milliseconds since 1970.
    times_ms: Vec<u64>,
    plots: Vec<Plot>,
}

#[derive(Debug, Serialize)]
struct Plot {
    title: &'static str,
    lines: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    name: String,
    per_second: Vec<Option<f64>>,
}

fn sample(figures: &Figures) -> Sample {
    let mut sample = Sample::new();
    let mut add = |plot, line: String, count: u64| {
        *sample.entry((plot, line)).or_default() += count;
    };
    for one in &figures.counters.interfaces {
        let name = one.label();
        add(PACKETS, format!("{name} in"), one.rx_packets);
        add(PACKETS, format!("{name} out"), one.tx_packets);
        add(BITS, format!("{name} in"), one.rx_bytes);
        add(BITS, format!("{name} out"), one.tx_bytes);
        add(DROPS, format!("{name} in: device"), one.rx_dropped);
        add(DROPS, format!("{name} out: device"), one.tx_dropped);
    }
    for verdict in figures.capture.iter().flat_map(|capture| &capture.verdicts) {
        match &verdict.reason {
            Some(reason) => add(DROPS, reason.clone(), verdict.packets),
            None => {
                let line = format!("{} {} {}", verdict.label(), verdict.hook, verdict.verdict);
                add(VERDICTS, line, verdict.packets);
            }
        }
    }
    sample
}

impl History {
    pub fn add(&mut self, figures: &Figures) {
        if self.samples.len() > STEPS {
            self.samples.pop_front();
        }
        self.samples.push_back((clock::wall(), sample(figures)));
    }

    /// Without lines that stayed at zero, and without plots that have no other.
    pub fn plots(&self) -> Plots {
        let times = self.samples.iter().skip(1);
        let plot = |(title, factor): (&'static str, u64)| Plot {
            title,
            lines: self.lines(title, factor),
        };
        let plots = PLOTS.into_iter().map(plot);
        Plots {
            times_ms: times.map(|(time, _)| time / 1_000_000).collect(),
            plots: plots.filter(|plot| !plot.lines.is_empty()).collect(),
        }
    }

    fn lines(&self, title: &'static str, factor: u64) -> Vec<Line> {
        let Some((_, last)) = self.samples.back() else {
            return Vec::new();
        };
        let names = last.keys().filter(|(plot, _)| *plot == title);
        let mut lines: Vec<(f64, Line)> = names
            .map(|key| {
                let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
                let rate = |((from, old), (to, new)): (&(u64, Sample), &(u64, Sample))| {
                    let seconds = to.saturating_sub(*from) as f64 / 1e9;
                    // A line that is not in a sample was zero: verdicts begin with their first packet.
                    let was = old.get(key).copied().unwrap_or(0);
                    let grown = new.get(key)?.checked_sub(was)?;
                    (seconds > 0.0).then(|| (grown * factor) as f64 / seconds)
                };
                let per_second: Vec<Option<f64>> = pairs.map(rate).collect();
                let total = per_second.iter().flatten().sum();
                let name = key.1.clone();
                (total, Line { name, per_second })
            })
            .filter(|(total, _)| *total > 0.0)
            .collect();
        lines.sort_by(|one, other| other.0.total_cmp(&one.0));
        lines.truncate(LINES);
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Counters, InterfaceCounters};

    fn figures(rx_packets: u64) -> Figures {
        Figures {
            counters: Counters {
                interfaces: vec![InterfaceCounters {
                    interface: "veth0".to_owned(),
                    netns: "blue".to_owned(),
                    rx_packets,
                    ..InterfaceCounters::default()
                }],
                ..Counters::default()
            },
            ..Figures::default()
        }
    }

    #[test]
    fn plots_have_rates_and_no_idle_lines() {
        let mut history = History::default();
        for count in [100, 100, 600] {
            history.add(&figures(count));
        }
        history.samples[0].0 = 1_000_000_000;
        history.samples[1].0 = 6_000_000_000;
        history.samples[2].0 = 11_000_000_000;
        let plots = history.plots();
        assert_eq!(plots.times_ms, [6_000, 11_000]);
        let [plot] = &plots.plots[..] else {
            panic!("{plots:?}");
        };
        let [line] = &plot.lines[..] else {
            panic!("{plots:?}");
        };
        assert_eq!((plot.title, line.name.as_str()), (PACKETS, "blue:veth0 in"));
        assert_eq!(line.per_second, [Some(0.0), Some(100.0)]);
        for _ in 0..2 * STEPS {
            history.add(&figures(600));
        }
        assert_eq!(history.plots().times_ms.len(), STEPS);
    }
}
