//! The page of processes: the traffic of each process and of each container at its sockets.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::process::Traffic;
use trawl_capture::traffic::Counted;
use trawl_view::stat::bits;

/// The rates of processes and of their containers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TrafficRates {
    /// A row without a number and without ended processes has the traffic of sockets whose process is unknown.
    pub processes: Vec<Rates>,
    pub containers: Vec<Rates>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Rates {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Number of processes that have ended, if the row is theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub rx_packets_per_second: f64,
    pub rx_bits_per_second: f64,
    pub tx_packets_per_second: f64,
    pub tx_bits_per_second: f64,
}

impl Rates {
    fn new(counted: Counted, traffic: &Traffic, seconds: f64) -> Self {
        let rate = |counts: [u64; 2], direction: usize| counts[direction] as f64 / seconds;
        Self {
            pid: counted.process,
            ended: (counted.ended > 0).then_some(counted.ended),
            name: counted.name,
            container: counted.container,
            rx_packets_per_second: rate(traffic.packets, 0),
            rx_bits_per_second: rate(traffic.bytes, 0) * 8.0,
            tx_packets_per_second: rate(traffic.packets, 1),
            tx_bits_per_second: rate(traffic.bytes, 1) * 8.0,
        }
    }

    /// Returns the process, the ended processes, the container of a row of all its processes, or `unknown`.
    pub fn label(&self) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        match (self.pid, self.ended) {
            (Some(pid), _) => format!("{name}[{pid}]"),
            (None, Some(1)) => format!("{name} (ended)"),
            (None, Some(ended)) => format!("{name} ({ended} ended)"),
            (None, None) => self.container.clone().unwrap_or("unknown".to_owned()),
        }
    }

    fn wanted(&self, filter: &str) -> bool {
        let container = self.container.as_deref().unwrap_or_default();
        self.label().contains(filter) || container.contains(filter)
    }
}

impl TrafficRates {
    pub fn new(counted: Vec<(Counted, Traffic)>, seconds: f64) -> Self {
        let mut containers: BTreeMap<String, Traffic> = BTreeMap::new();
        for (process, traffic) in &counted {
            if let Some(container) = &process.container {
                let sum = containers.entry(container.clone());
                sum.or_insert_with(Traffic::zeroed).add(traffic);
            }
        }
        let of_container = |(container, traffic): (String, Traffic)| {
            let counted = Counted { container: Some(container), ..Counted::default() };
            Rates::new(counted, &traffic, seconds)
        };
        let of_process = |(counted, traffic)| Rates::new(counted, &traffic, seconds);
        Self {
            processes: counted.into_iter().map(of_process).collect(),
            containers: containers.into_iter().map(of_container).collect(),
        }
    }

    /// Returns the page: a line for each process, and one for each container below.
    pub fn text(&self, filter: &str) -> String {
        let mut out = String::new();
        for (title, of, rows) in [("process", "container", &self.processes), ("container", "", &self.containers)] {
            let _ =
                writeln!(out, "{title:<24} {of:<36} {:>10} {:>14} {:>10} {:>14}", "in pkt/s", "in", "out pkt/s", "out");
            for row in rows.iter().filter(|row| row.wanted(filter)) {
                let label = row.label();
                let of = row.container.as_deref().filter(|of| *of != label);
                let name = format!("{label:<24} {}", of.unwrap_or_default());
                let _ = writeln!(
                    out,
                    "{name:<61} {:>10.0} {:>14} {:>10.0} {:>14}",
                    row.rx_packets_per_second,
                    bits(row.rx_bits_per_second),
                    row.tx_packets_per_second,
                    bits(row.tx_bits_per_second),
                );
            }
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_sum_up_their_processes() {
        let counted = |process, container: Option<&str>| Counted {
            process,
            ended: 0,
            name: process.map(|_| "curl".to_owned()),
            container: container.map(str::to_owned),
        };
        let traffic = Traffic { packets: [10, 20], bytes: [1000, 2000] };
        let rows = vec![
            (counted(None, None), traffic),
            (counted(Some(7), Some("web")), traffic),
            (counted(Some(8), Some("web")), traffic),
        ];
        let rates = TrafficRates::new(rows, 2.0);
        let web = &rates.containers[0];
        assert_eq!((web.rx_packets_per_second, web.tx_bits_per_second), (10.0, 16_000.0));
        let text = rates.text("");
        assert!(text.contains("\nunknown ") && text.contains("\ncurl[7] "), "{text}");
        assert!(!rates.text("curl").contains("unknown"));
    }
}
