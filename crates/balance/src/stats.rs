//! A balancer's counters: each packet counts under one outcome of the program. A packet for a virtual address also
//! counts under an outcome of that address, and a forwarded packet also for its backend.

use std::net::IpAddr;

use serde::Serialize;
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::balance::{
    BALANCE_BY_FLOW, BALANCE_BY_RING, BALANCE_BY_SERVER_ID, BALANCE_COUNTERS, BALANCE_FORWARDING_OFF, BALANCE_FRAGMENT,
    BALANCE_ICMP_ERROR, BALANCE_MALFORMED, BALANCE_NO_BACKEND, BALANCE_NO_NEIGHBOUR, BALANCE_NO_ROOM, BALANCE_NO_ROUTE,
    BALANCE_NOT_IP, BALANCE_NOT_VIRTUAL, BALANCE_TAGGED, BALANCE_TOO_BIG_ANSWERED, BALANCE_TOO_BIG_DROPPED,
    BALANCE_UNKNOWN_FRAGMENT, BalanceCounter, BalanceVipCounters,
};
use trawl_bpf::table::Table as Map;
use trawl_program::bundled::stats::{Layout, NamedCount, ProgramAccount};
use trawl_program::{Installed, counters};
use trawl_sys::{Error, Result};

use crate::table::{Table, Vip};

pub(crate) const VIP_COUNTERS: &str = "vip_counters";
pub(crate) const BACKEND_COUNTERS: &str = "backend_counters";

const LAYOUT: Layout = Layout {
    outcomes: counters! {
        BALANCE_BY_FLOW "forwarded_known_flow" "forwarded: known flow";
        BALANCE_BY_RING "forwarded_new_flow" "forwarded: new flow, by hash";
        BALANCE_BY_SERVER_ID "forwarded_server_id" "forwarded: QUIC server id";
        BALANCE_FRAGMENT "forwarded_fragment" "forwarded: later fragment";
        BALANCE_ICMP_ERROR "forwarded_icmp_error" "forwarded: ICMP error";
        BALANCE_TOO_BIG_ANSWERED "answered_too_big" "answered: larger than the path MTU";
        BALANCE_TOO_BIG_DROPPED "dropped_too_big" "dropped: larger than the path MTU, not to be answered";
        BALANCE_NO_BACKEND "dropped_no_backend" "dropped: no backend accepts new flows";
        BALANCE_UNKNOWN_FRAGMENT "dropped_unknown_fragment" "dropped: fragment whose first was not seen";
        BALANCE_NO_ROUTE "dropped_no_route" "dropped: no route to the backend";
        BALANCE_NO_NEIGHBOUR "dropped_no_neighbour" "dropped: the next hop's MAC address is not known";
        BALANCE_FORWARDING_OFF "dropped_forwarding_off" "dropped: forwarding is off";
        BALANCE_NO_ROOM "dropped_no_room" "dropped: no room for the tunnel's headers";
        BALANCE_NOT_IP "to_stack_not_ip" "to the stack: not IP";
        BALANCE_TAGGED "to_stack_vlan" "to the stack: with a VLAN tag";
        BALANCE_MALFORMED "to_stack_malformed" "to the stack: malformed";
        BALANCE_NOT_VIRTUAL "to_stack_not_virtual" "to the stack: for no virtual address";
    },
    again: &[],
    of_queue: 0,
};

/// Packets and bytes for a virtual address or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, other: &BalanceCounter) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendCount {
    pub address: IpAddr,
    #[serde(flatten)]
    pub forwarded: Count,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VipCount {
    pub vip: String,
    /// All packets for it.
    #[serde(flatten)]
    pub seen: Count,
    /// These packets by outcome.
    pub outcomes: Vec<NamedCount>,
    pub backends: Vec<BackendCount>,
    /// Packets forwarded to backends that have been removed since.
    pub removed_backends: Count,
}

const CANNOT_READ: &str = "cannot read the balancer's counters";

fn open(installed: &Installed, name: &str) -> Result<Map> {
    Map::new(installed.map(name)?).map_err(|e| Error::os(CANNOT_READ, e))
}

/// Sums all CPUs' values under a number.
fn read<const N: usize>(map: &Map, number: u32) -> Result<[Count; N]> {
    let bytes = map.lookup(&number.to_ne_bytes()).map_err(|e| Error::os(CANNOT_READ, e))?.unwrap_or_default();
    let mut counts = [Count::default(); N];
    for of_cpu in bytes.chunks(N * size_of::<BalanceCounter>()) {
        for (count, one) in counts.iter_mut().zip(of_cpu.chunks(size_of::<BalanceCounter>())) {
            if let Some(counter) = BalanceCounter::from_bytes(one) {
                count.add(&counter);
            }
        }
    }
    Ok(counts)
}

/// Resets the counters under these numbers, for their next owners.
pub(crate) fn reset(installed: &Installed, name: &str, numbers: &[u32]) -> Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    let map = open(installed, name)?;
    let fail = |e| Error::os("cannot clear the balancer's counters", e);
    for number in numbers {
        let key = number.to_ne_bytes();
        if let Some(value) = map.lookup(&key).map_err(fail)?
            && value.iter().any(|byte| *byte != 0)
        {
            map.update(&key, &vec![0; value.len()], trawl_bpf::table::ANY).map_err(fail)?;
        }
    }
    Ok(())
}

pub fn account(installed: &Installed) -> Result<ProgramAccount> {
    ProgramAccount::with_layout(installed, LAYOUT)
}

/// Reads the counts of all virtual addresses. A virtual address is read after its backends, so that packets that arrive
/// meanwhile never give its backends more packets than the address itself.
pub fn by_vip(installed: &Installed, table: &Table) -> Result<Vec<VipCount>> {
    let vips = open(installed, VIP_COUNTERS)?;
    let backends = open(installed, BACKEND_COUNTERS)?;
    let one = |vip: &Vip| {
        let mut forwarded = Count::default();
        let mut of_backends = Vec::new();
        for backend in &vip.backends {
            let [count] = read(&backends, backend.number)?;
            forwarded.packets += count.packets;
            forwarded.bytes += count.bytes;
            of_backends.push(BackendCount { address: backend.address, forwarded: count });
        }
        let counts: [Count; BALANCE_COUNTERS] = read(&vips, vip.number)?;
        let sum = |counts: &[Count]| Count {
            packets: counts.iter().map(|one| one.packets).sum(),
            bytes: counts.iter().map(|one| one.bytes).sum(),
        };
        let all_forwarded = sum(&counts[..=BALANCE_ICMP_ERROR]);
        let outcome = |(index, name, text): &(usize, &'static str, &'static str)| NamedCount {
            name,
            text,
            packets: counts[*index].packets,
            bytes: counts[*index].bytes,
        };
        Ok(VipCount {
            vip: vip.service.to_string(),
            seen: sum(&counts),
            outcomes: LAYOUT.outcomes.iter().map(outcome).filter(|one| one.packets != 0).collect(),
            backends: of_backends,
            removed_backends: Count {
                packets: all_forwarded.packets.saturating_sub(forwarded.packets),
                bytes: all_forwarded.bytes.saturating_sub(forwarded.bytes),
            },
        })
    };
    table.vips.iter().map(one).collect()
}

const _: () =
    assert!(size_of::<BalanceVipCounters>() == BALANCE_COUNTERS * size_of::<BalanceCounter>(), "counters are adjacent");
