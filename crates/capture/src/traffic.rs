//! The traffic of each process, which the kernel counts where packets reach and leave sockets.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsFd;
use std::rc::Rc;

use trawl_bpf::layout::Shared;
use trawl_bpf::layout::process::Traffic;
use trawl_bpf::process_traffic::ProcessTraffic;
use trawl_bpf::process_watch::{FrequentPrograms, ProcessWatch};
use trawl_sys::Result;
use trawl_sys::process::cgroup::Root;

use crate::event::Event;
pub use crate::process::cgroups;
use crate::process::{self, ProcessStage};
use trawl_plan::options::{ProcessDetail, ProcessPlan};

/// The attached programs, and descriptions of the processes that they find.
#[derive(Debug)]
pub struct TrafficWatch {
    traffic: ProcessTraffic,
    descriptions: ProcessStage,
    /// Reported if the programs do not see all uses of sockets.
    pub unseen: Option<Event>,
}

/// A process with traffic, or all ended processes of one name and container; empty if no process is known to own the
/// sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficOwner {
    pub process: Option<u32>,
    /// Number of ended processes.
    pub ended: u32,
    pub name: Option<String>,
    pub container: Option<String>,
}

impl TrafficWatch {
    /// Attaches the programs at the root of the cgroups, and starts counting.
    pub fn attach(cgroups: Root) -> Result<Self> {
        let processes =
            process::attach(&ProcessPlan::default(), cgroups, FrequentPrograms { soft_interrupts: false, uses: true })?;
        let traffic = ProcessTraffic::attach(processes.cgroups.as_fd(), &processes.watch)?;
        Ok(Self {
            traffic,
            unseen: processes.unseen(),
            descriptions: ProcessStage::new(Rc::new(processes), ProcessDetail::Plain),
        })
    }

    /// Returns the traffic of each process since the last call: on the whole machine, or at these interfaces, given by
    /// the number of the namespace and the interface's index.
    pub fn take(&mut self, sites: Option<&HashSet<(u32, u32)>>) -> Result<Vec<(TrafficOwner, Traffic)>> {
        let mut sums: BTreeMap<u32, Traffic> = BTreeMap::new();
        for (key, traffic) in self.traffic.take()? {
            if sites.is_none_or(|sites| sites.contains(&(key.netns, key.interface))) {
                let sum = sums.entry(key.process).or_insert_with(Traffic::zeroed);
                sum.add(&traffic);
            }
        }
        self.refresh();
        let mut counted = Vec::new();
        let mut ended = BTreeMap::new();
        for (id, traffic) in sums {
            let known = (id != 0).then(|| self.descriptions.find(id)).flatten();
            let name = known.and_then(|known| known.name.clone());
            let container = known.and_then(|known| known.container().map(str::to_owned));
            if id != 0 && self.descriptions.has_ended(id) {
                let none = (0, Traffic::zeroed());
                let (count, sum) = ended.entry((name, container)).or_insert(none);
                *count += 1;
                sum.add(&traffic);
                continue;
            }
            let row = TrafficOwner { process: (id != 0).then_some(id), ended: 0, name, container };
            counted.push((row, traffic));
        }
        counted.extend(ended.into_iter().map(|((name, container), (ended, traffic))| {
            let row = TrafficOwner { process: None, ended, name, container };
            (row, traffic)
        }));
        Ok(counted)
    }

    pub fn names(&mut self) -> &mut ProcessStage {
        &mut self.descriptions
    }

    /// Returns the programs that find the owners of sockets, so that other programs can use their maps.
    pub fn owners(&self) -> &ProcessWatch {
        &self.descriptions.processes().watch
    }

    /// Reads the programs' events about processes, before their buffer is full.
    pub fn refresh(&mut self) {
        self.descriptions.refresh();
    }
}
