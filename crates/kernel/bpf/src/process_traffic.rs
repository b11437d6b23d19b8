//! Counts the traffic of each process: bpf/process/process_traffic.bpf.c, attached at the root cgroup next to the
//! programs that find the owners of sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_sys::{Error, Result};

use crate::layout::process::{Traffic, TrafficKey};
use crate::layout::{Shared, TapConfig};
use crate::link;
use crate::object::{PROCESS_TRAFFIC, TapProgram, Taps};
use crate::process_watch::ProcessWatch;
use crate::program::{CGROUP_SKB, LoadOptions};
use crate::table::Table;

const MAP: &str = "process_traffic";
const PROGRAMS: [(&str, u32); 2] =
    [("trawl_arrived", libbpf_sys::BPF_CGROUP_INET_INGRESS), ("trawl_left", libbpf_sys::BPF_CGROUP_INET_EGRESS)];

/// The attached programs.
#[derive(Debug)]
pub struct ProcessTraffic {
    table: Table,
    _links: Vec<OwnedFd>,
}

fn fail(error: impl std::fmt::Display) -> Error {
    Error::failed("cannot count the packets of processes", error)
}

impl ProcessTraffic {
    /// Attaches the programs, which count the packets of the processes below a cgroup.
    pub fn attach(cgroup: BorrowedFd<'_>, watch: &ProcessWatch) -> Result<Self> {
        let mut counts: Option<OwnedFd> = None;
        let mut links = Vec::new();
        for (name, attach_type) in PROGRAMS {
            let mut maps = watch.maps();
            maps.extend(counts.as_ref().map(|map| (MAP, map.as_fd())));
            let ready = TapProgram::prepare(Taps::reading_kernel(PROCESS_TRAFFIC), name, &TapConfig::zeroed(), &maps)?;
            let loaded =
                ready.load(&LoadOptions { expected_attach_type: attach_type, ..LoadOptions::new(name, CGROUP_SKB) })?;
            let link = link::attach_cgroup(loaded.as_fd(), cgroup, attach_type);
            links.push(link.map_err(|e| Error::os("cannot count the packets of processes", e))?);
            if counts.is_none() {
                let map = ready.map(MAP).ok_or_else(|| fail("a map is missing"))?;
                counts = Some(map.try_clone_to_owned().map_err(fail)?);
            }
        }
        let table = counts.ok_or_else(|| fail("a map is missing"))?;
        Ok(Self { table: Table::new(table).map_err(fail)?, _links: links })
    }

    /// Returns the counts since the last call, of all CPUs together.
    pub fn take(&self) -> Result<Vec<(TrafficKey, Traffic)>> {
        let mut taken = Vec::new();
        for bytes in self.table.keys().map_err(fail)? {
            let values = self.table.take(&bytes).map_err(fail)?;
            let (Some(key), Some(values)) = (TrafficKey::from_bytes(&bytes), values) else {
                continue;
            };
            let mut sum = Traffic::zeroed();
            let of_cpus = values.chunks_exact(size_of::<Traffic>());
            for one in of_cpus.filter_map(Traffic::from_bytes) {
                sum.add(&one);
            }
            taken.push((key, sum));
        }
        Ok(taken)
    }
}

impl Traffic {
    pub fn add(&mut self, other: &Self) {
        for direction in 0..2 {
            self.packets[direction] += other.packets[direction];
            self.bytes[direction] += other.bytes[direction];
        }
    }
}
