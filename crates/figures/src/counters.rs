//! Statistics of this machine for live views and metrics: counters of interfaces, softnet, XDP programs and guards.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsFd;

use serde::Serialize;
use trawl_bpf::{info, program};
use trawl_guard::Guard;
use trawl_program::bundled::route;
use trawl_program::bundled::stats::ProgramAccount;
use trawl_program::{Installed, Site};
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Result, names};

/// The kernel's counters since it started, or since each object was created.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counters {
    pub interfaces: Vec<InterfaceCounters>,
    pub softnet: Softnet,
    pub xdp_programs: Vec<ProgramCounters>,
    pub xdp_verdicts: Vec<VerdictCounters>,
    pub guard_rules: Vec<RuleCounters>,
    pub router: Vec<RouterCounters>,
}

/// Packets of a router's port, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouterCounters {
    pub interface: String,
    pub outcome: String,
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InterfaceCounters {
    pub interface: String,
    /// The namespace's name, if one was given.
    pub netns: String,
    pub up: bool,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_dropped: u64,
    pub rx_errors: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_dropped: u64,
    pub tx_errors: u64,
}

impl InterfaceCounters {
    /// Returns `NAMESPACE:NAME`, as for `-i`.
    pub fn label(&self) -> String {
        label(&self.netns, &self.interface)
    }

    /// Returns packets, bytes, drops and errors of the received side, and of the sent side.
    pub fn sides(&self) -> [[u64; 4]; 2] {
        [
            [self.rx_packets, self.rx_bytes, self.rx_dropped, self.rx_errors],
            [self.tx_packets, self.tx_bytes, self.tx_dropped, self.tx_errors],
        ]
    }
}

pub fn label(netns: &str, interface: &str) -> String {
    match netns {
        "" => interface.to_owned(),
        netns => format!("{netns}:{interface}"),
    }
}

/// Sums over all CPUs of the network stack's receive queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    pub processed: u64,
    pub dropped: u64,
    /// Number of times that work was left because its budget was used up.
    pub time_squeezed: u64,
}

impl Softnet {
    /// Returns the increase since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            processed: self.processed.saturating_sub(before.processed),
            dropped: self.dropped.saturating_sub(before.dropped),
            time_squeezed: self.time_squeezed.saturating_sub(before.time_squeezed),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgramCounters {
    pub interface: String,
    pub netns: String,
    pub id: u32,
    pub name: String,
    /// Both stay zero unless the kernel's statistics of programs are on.
    pub runs: u64,
    pub run_time_ns: u64,
}

/// Packets of a bundled XDP program, by verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerdictCounters {
    pub interface: String,
    pub netns: String,
    pub id: u32,
    pub program: String,
    pub verdict: &'static str,
    pub packets: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleCounters {
    pub id: u32,
    pub rule: String,
    pub packets: u64,
    /// Packets over the rate of a rule that allows packets.
    pub limited: u64,
}

/// Capabilities to read the counters: programs, guards and routers are found by their numbers and pins, in other
/// namespaces too, and namespaces by their processes.
pub const NEEDED_CAPABILITIES: Capabilities = Capabilities::BPF
    .union(Capabilities::NET_ADMIN)
    .union(Capabilities::PERFMON)
    .union(Capabilities::SYS_ADMIN)
    .union(Capabilities::SYS_PTRACE)
    .union(Capabilities::DAC_READ_SEARCH);

/// A namespace, and its selected interfaces: names and patterns, or all.
#[derive(Debug)]
pub struct NamespaceInterfaces {
    pub netns: String,
    pub namespace: Option<Namespace>,
    pub only: Vec<String>,
}

impl NamespaceInterfaces {
    /// Finds the namespaces of interfaces given as for `-i`; without interfaces, the given namespace.
    pub fn of(interfaces: &[String], netns: Option<&str>) -> Result<Vec<Self>> {
        let own = netns.unwrap_or_default();
        let mut only: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for interface in interfaces {
            let (netns, name) = interface.split_once(':').unwrap_or((own, interface));
            only.entry(netns).or_default().push(name.to_owned());
        }
        if only.is_empty() {
            only.insert(own, Vec::new());
        }
        let mut selected = Vec::new();
        for (netns, mut only) in only {
            if only.iter().any(|name| name == "any") {
                only.clear();
            }
            let mut named = vec![netns.to_owned()];
            if netns.contains(['*', '?', '[']) {
                named = netns::list();
                named.retain(|one| names::matches(netns, one));
            }
            for netns in named {
                let is_own = netns.is_empty();
                selected.push(Self {
                    namespace: (!is_own).then(|| Namespace::open(&netns)).transpose()?,
                    netns,
                    only: only.clone(),
                });
            }
        }
        Ok(selected)
    }

    pub fn includes(&self, interface: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|one| names::matches(one, interface))
    }

    /// Returns the inode number of the namespace.
    pub fn number(&self) -> Result<u32> {
        let identity = match &self.namespace {
            Some(namespace) => namespace.identity(),
            None => Namespace::current()?.identity(),
        };
        Ok(identity.1 as u32)
    }

    /// Returns the inode number of the namespace and the index of each selected interface.
    pub fn sites(selected: &[Self]) -> Result<HashSet<(u32, u32)>> {
        let mut sites = HashSet::new();
        for one in selected {
            let namespace = one.number()?;
            let mut links = Netlink::open(one.namespace.as_ref())?.links()?;
            links.retain(|link| one.includes(&link.name));
            sites.extend(links.iter().map(|link| (namespace, link.index)));
        }
        Ok(sites)
    }
}

impl Counters {
    /// Reads the counters of several namespaces.
    pub fn read_all(selected: &[NamespaceInterfaces]) -> Result<Self> {
        let mut all = Self::default();
        for interfaces in selected {
            let here = Self::read(interfaces)?;
            all.softnet = here.softnet;
            all.interfaces.extend(here.interfaces);
            all.xdp_programs.extend(here.xdp_programs);
            all.xdp_verdicts.extend(here.xdp_verdicts);
            all.guard_rules.extend(here.guard_rules);
            all.router.extend(here.router);
        }
        Ok(all)
    }

    fn read(interfaces: &NamespaceInterfaces) -> Result<Self> {
        let NamespaceInterfaces { netns, namespace, .. } = interfaces;
        let namespace = namespace.as_ref();
        let mut counters = Self { softnet: softnet(), ..Self::default() };
        for link in Netlink::open(namespace)?.links()? {
            if !interfaces.includes(&link.name) {
                continue;
            }
            // A user who may not inspect programs still sees their interfaces.
            let programs = link.xdp.iter().filter_map(|attached| {
                let program = program::open_by_id(attached.program_id).ok()?;
                info::program(program.as_fd()).ok()
            });
            counters.xdp_programs.extend(programs.map(|about| ProgramCounters {
                interface: link.name.clone(),
                netns: netns.clone(),
                id: about.id,
                name: about.name,
                runs: about.run_count,
                run_time_ns: about.run_time_ns,
            }));
            if !link.xdp.is_empty() {
                let verdicts = verdicts(netns, &link.name);
                counters.xdp_verdicts.extend(verdicts.unwrap_or_default());
            }
            let counted = link.statistics;
            counters.interfaces.push(InterfaceCounters {
                up: link.is_up(),
                interface: link.name,
                netns: netns.clone(),
                rx_packets: counted.rx_packets,
                rx_bytes: counted.rx_bytes,
                rx_dropped: counted.rx_dropped,
                rx_errors: counted.rx_errors,
                tx_packets: counted.tx_packets,
                tx_bytes: counted.tx_bytes,
                tx_dropped: counted.tx_dropped,
                tx_errors: counted.tx_errors,
            });
        }
        let guard = Guard::find_to_read(namespace).ok().flatten();
        if let Some(set) = guard.and_then(|guard| guard.rules().ok()) {
            counters.guard_rules.extend(set.rules.iter().map(|rule| {
                let hits = set.hits_of(rule.id);
                RuleCounters { id: rule.id, rule: rule.to_string(), packets: hits.decided, limited: hits.limited }
            }));
        }
        for port in route::ports(namespace).unwrap_or_default() {
            let account = port.account().ok();
            let outcomes = account.into_iter().flat_map(|account| account.outcomes);
            counters.router.extend(outcomes.map(|one| RouterCounters {
                interface: label(netns, port.site.label()),
                outcome: one.name.to_owned(),
                packets: one.packets,
                bytes: one.bytes,
            }));
        }
        Ok(counters)
    }
}

/// Returns the verdicts of the bundled programs on an interface.
fn verdicts(netns: &str, interface: &str) -> Result<Vec<VerdictCounters>> {
    let site = Site::find(&label(netns, interface), None)?;
    let mut all = Vec::new();
    for installed in Installed::all(&site)? {
        let Some(account) = ProgramAccount::read(&installed)? else {
            continue;
        };
        all.extend(account.verdicts().map(|(verdict, packets)| VerdictCounters {
            interface: interface.to_owned(),
            netns: netns.to_owned(),
            id: account.id,
            program: account.program.clone(),
            verdict,
            packets,
        }));
    }
    Ok(all)
}

fn softnet() -> Softnet {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let mut sum = Softnet::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace().map(|field| u64::from_str_radix(field, 16).unwrap_or(0));
        sum.processed += fields.next().unwrap_or(0);
        sum.dropped += fields.next().unwrap_or(0);
        sum.time_squeezed += fields.next().unwrap_or(0);
    }
    sum
}
