//! The traffic of processes since the command began, summed up by their names and containers.

use serde::Serialize;
use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::process::Traffic;
use trawl_bpf::process_watch::ProcessWatch;
use trawl_capture::event::Event;
use trawl_capture::process::ProcessStage;
use trawl_capture::traffic::{TrafficWatch, cgroups};
use trawl_sys::Result;

use crate::counters::NamespaceInterfaces;
use crate::totals::{Totals, UNKNOWN};

/// The traffic of all processes with a name in a container.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessTotals {
    pub process: String,
    /// Empty outside of containers.
    pub container: String,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

#[derive(Debug)]
pub struct Processes {
    watch: TrafficWatch,
    /// `None`: the whole machine.
    selected: Option<Vec<NamespaceInterfaces>>,
    totals: Totals<2, Traffic>,
}

impl Processes {
    pub fn attach(selected: Option<Vec<NamespaceInterfaces>>) -> Result<Self> {
        let watch = TrafficWatch::attach(cgroups()?)?;
        Ok(Self { watch, selected, totals: Totals::default() })
    }

    /// Returns the event about traffic that the counts lack, if any.
    pub fn unseen(&self) -> Option<&Event> {
        self.watch.unseen.as_ref()
    }

    pub fn owners(&self) -> &ProcessWatch {
        self.watch.owners()
    }

    /// Reads which processes have started.
    pub fn refresh(&mut self) {
        self.watch.refresh();
    }

    pub fn names(&mut self) -> &mut ProcessStage {
        self.watch.names()
    }

    /// Adds the traffic since the last call, and returns all totals.
    pub fn update(&mut self) -> Result<Vec<ProcessTotals>> {
        let selected = self.selected.as_deref();
        let sites = selected.map(NamespaceInterfaces::sites).transpose()?;
        for (counted, traffic) in self.watch.take(sites.as_ref())? {
            let name = counted.name.unwrap_or(UNKNOWN.to_owned());
            let container = counted.container.unwrap_or_default();
            self.totals.of([name, container], Traffic::zeroed).add(&traffic);
        }
        let one = |([process, container], traffic): (&[String; 2], &Traffic)| ProcessTotals {
            process: process.clone(),
            container: container.clone(),
            rx_packets: traffic.packets[0],
            rx_bytes: traffic.bytes[0],
            tx_packets: traffic.packets[1],
            tx_bytes: traffic.bytes[1],
        };
        Ok(self.totals.all().map(one).collect())
    }
}
