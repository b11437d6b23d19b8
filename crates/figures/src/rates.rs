//! The page of processes: the traffic of each process and of each container at its sockets.

use std::collections::BTreeMap;

use serde::Serialize;
use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::process::Traffic;
use trawl_capture::traffic::TrafficOwner;
use trawl_view::rows;
use trawl_view::stat::{bits, whole};
use trawl_view::table::{self, Column};

/// The rates of processes and of their containers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TrafficRates {
    /// A row without a number and without ended processes has the traffic of sockets whose process is unknown.
    pub processes: Vec<Rates>,
    pub containers: Vec<Rates>,
}

rows! {
    row: Rates((TrafficOwner, &Traffic, f64) as (counted, traffic, seconds)) {
        #[serde(skip_serializing_if = "Option::is_none")]
        pid: Option<u32> = counted.process;
        /// Number of processes that have ended, if the row is theirs.
        #[serde(skip_serializing_if = "Option::is_none")]
        ended: Option<u32> = (counted.ended > 0).then_some(counted.ended);
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String> = counted.name;
        #[serde(skip_serializing_if = "Option::is_none")]
        container: Option<String> = counted.container;
        rx_packets_per_second: f64 = traffic.packets[0] as f64 / seconds,
            "in pkt/s" 10 whole(row.rx_packets_per_second);
        rx_bits_per_second: f64 = traffic.bytes[0] as f64 / seconds * 8.0,
            "in" 14 bits(row.rx_bits_per_second);
        tx_packets_per_second: f64 = traffic.packets[1] as f64 / seconds,
            "out pkt/s" 10 whole(row.tx_packets_per_second);
        tx_bits_per_second: f64 = traffic.bytes[1] as f64 / seconds * 8.0,
            "out" 14 bits(row.tx_bits_per_second);
    }
}

impl Rates {
    /// Returns the name of the row: a process, ended processes, a container, or `unknown`.
    pub fn label(&self) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        match (self.pid, self.ended) {
            (Some(pid), _) => format!("{name}[{pid}]"),
            (None, Some(1)) => format!("{name} (ended)"),
            (None, Some(ended)) => format!("{name} ({ended} ended)"),
            (None, None) => self.container.clone().unwrap_or("unknown".to_owned()),
        }
    }

    fn matches(&self, filter: &str) -> bool {
        let container = self.container.as_deref().unwrap_or_default();
        self.label().contains(filter) || container.contains(filter)
    }
}

impl TrafficRates {
    pub fn new(counted: Vec<(TrafficOwner, Traffic)>, seconds: f64) -> Self {
        let mut containers: BTreeMap<String, Traffic> = BTreeMap::new();
        for (process, traffic) in &counted {
            if let Some(container) = &process.container {
                let sum = containers.entry(container.clone());
                sum.or_insert_with(Traffic::zeroed).add(traffic);
            }
        }
        let of_container = |(container, traffic): (String, Traffic)| {
            let counted = TrafficOwner { container: Some(container), ..TrafficOwner::default() };
            Rates::new((counted, &traffic, seconds))
        };
        let of_process = |(counted, traffic)| Rates::new((counted, &traffic, seconds));
        Self {
            processes: counted.into_iter().map(of_process).collect(),
            containers: containers.into_iter().map(of_container).collect(),
        }
    }

    /// Returns the page: a line for each process, and one for each container below.
    pub fn text(&self, filter: &str) -> String {
        let page = |title, of, rows: &[Rates]| {
            let container = |row: &Rates| row.container.clone().filter(|of| *of != row.label()).unwrap_or_default();
            let names = [Column(title, -23, &Rates::label), Column(of, -36, &container)];
            let columns = [&names, Rates::COLUMNS].concat();
            table::text(&columns, rows.iter().filter(|row| row.matches(filter))) + "\n"
        };
        page("process", "container", &self.processes) + &page("container", "", &self.containers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_sum_up_their_processes() {
        let counted = |process, container: Option<&str>| TrafficOwner {
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
