//! Figures of this machine that live views and metrics show: counters of interfaces, softnet, XDP programs and guards.

use std::os::fd::AsFd;

use serde::Serialize;
use trawl_bpf::{info, program};
use trawl_guard::Guard;
use trawl_program::bundled::route;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::Namespace;
use trawl_sys::privilege::Capabilities;
use trawl_sys::{Result, names};

/// What the kernel counted since it started, or since each thing was made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counters {
    pub interfaces: Vec<InterfaceCounters>,
    pub softnet: Softnet,
    pub xdp_programs: Vec<ProgramCounters>,
    pub guard_rules: Vec<RuleCounters>,
    pub router: Vec<RouterCounters>,
}

/// What a port of the router did with its packets, by outcome.
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
    /// The namespace's name, where one was asked for.
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
    /// `NAMESPACE:NAME`, as `-i` takes it.
    pub fn label(&self) -> String {
        label(&self.netns, &self.interface)
    }
}

pub fn label(netns: &str, interface: &str) -> String {
    match netns {
        "" => interface.to_owned(),
        netns => format!("{netns}:{interface}"),
    }
}

/// Sums over all CPUs of what the network stack's receive queues did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    pub processed: u64,
    pub dropped: u64,
    /// Times that work was left because its budget was used up.
    pub time_squeezed: u64,
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleCounters {
    pub id: u32,
    pub rule: String,
    pub packets: u64,
    /// Packets over the rate of a rule that allows.
    pub limited: u64,
}

/// What reading them takes: programs, guards and routers are found by their numbers and pins, in other namespaces too.
pub const TAKES: Capabilities = Capabilities::BPF
    .union(Capabilities::NET_ADMIN)
    .union(Capabilities::PERFMON)
    .union(Capabilities::SYS_ADMIN)
    .union(Capabilities::DAC_READ_SEARCH);

/// A namespace, and the interfaces of it that are looked at: names and patterns, or all.
#[derive(Debug)]
pub struct Place {
    pub netns: String,
    pub namespace: Option<Namespace>,
    pub only: Vec<String>,
}

impl Counters {
    /// The same of interfaces in several namespaces, which are named in what is counted.
    pub fn read_all(places: &[Place]) -> Result<Self> {
        let mut all = Self::default();
        for Place {
            netns,
            namespace,
            only,
        } in places
        {
            let mut here = Self::read(namespace.as_ref(), only)?;
            for one in &mut here.interfaces {
                one.netns.clone_from(netns);
            }
            for one in &mut here.xdp_programs {
                one.netns.clone_from(netns);
            }
            for one in &mut here.router {
                one.interface = label(netns, &one.interface);
            }
            all.softnet = here.softnet;
            all.interfaces.append(&mut here.interfaces);
            all.xdp_programs.append(&mut here.xdp_programs);
            all.guard_rules.append(&mut here.guard_rules);
            all.router.append(&mut here.router);
        }
        Ok(all)
    }

    /// Of all interfaces of the namespace, or of those that a name or pattern of these fits.
    pub fn read(namespace: Option<&Namespace>, only: &[String]) -> Result<Self> {
        let mut counters = Self {
            softnet: softnet(),
            ..Self::default()
        };
        for link in Netlink::open(namespace)?.links()? {
            if !only.is_empty() && !only.iter().any(|one| names::matches(one, &link.name)) {
                continue;
            }
            let counted = link.statistics;
            for attached in &link.xdp {
                let about = program::open_by_id(attached.program_id)
                    .and_then(|fd| info::program(fd.as_fd()));
                // A user who may not look at programs still sees their interfaces.
                if let Ok(about) = about {
                    counters.xdp_programs.push(ProgramCounters {
                        interface: link.name.clone(),
                        netns: String::new(),
                        id: about.id,
                        name: about.name,
                        runs: about.run_count,
                        run_time_ns: about.run_time_ns,
                    });
                }
            }
            counters.interfaces.push(InterfaceCounters {
                up: link.is_up(),
                interface: link.name,
                netns: String::new(),
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
        let rules = Guard::look(namespace)
            .ok()
            .flatten()
            .and_then(|guard| guard.rules().ok());
        for rule in rules.iter().flat_map(|set| &set.rules) {
            let hits = rules
                .as_ref()
                .map(|set| set.hits_of(rule.id))
                .unwrap_or_default();
            counters.guard_rules.push(RuleCounters {
                id: rule.id,
                rule: rule.to_string(),
                packets: hits.decided,
                limited: hits.limited,
            });
        }
        for port in route::ports(namespace).unwrap_or_default() {
            let outcomes = port.account().map(|account| account.outcomes);
            counters
                .router
                .extend(
                    outcomes
                        .unwrap_or_default()
                        .into_iter()
                        .map(|one| RouterCounters {
                            interface: port.site.label().to_owned(),
                            outcome: one.name.to_owned(),
                            packets: one.packets,
                            bytes: one.bytes,
                        }),
                );
        }
        Ok(counters)
    }
}

fn softnet() -> Softnet {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let mut sum = Softnet::default();
    for line in text.lines() {
        let mut fields = line
            .split_whitespace()
            .map(|field| u64::from_str_radix(field, 16).unwrap_or(0));
        sum.processed += fields.next().unwrap_or(0);
        sum.dropped += fields.next().unwrap_or(0);
        sum.time_squeezed += fields.next().unwrap_or(0);
    }
    sum
}
