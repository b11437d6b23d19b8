//! A balancer: the program on an interface, and its table.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::AsFd;

use trawl_attach::AttachRequest;
use trawl_bpf::layout::balance::BALANCE_FLOWS;
use trawl_bpf::object;
use trawl_program::bundled::BALANCE;
use trawl_program::hooks::HOOK;
use trawl_program::install::{self, Put};
use trawl_program::load::{Program, Source};
use trawl_program::readiness::Readiness;
use trawl_program::safety::{self, SessionCare};
use trawl_program::{Installed, Site};
use trawl_sys::netlink::{Netlink, XdpMode};
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::process::session::Session;
use trawl_sys::{Error, Result};

use crate::live::{Slot, check_memory};
use crate::stats::{self, BACKEND_COUNTERS, VIP_COUNTERS};
use crate::table::{Forward, Protocol, Table, Vip};
use trawl_sys::words::word;

pub const FUNCTION: &str = "trawl_balance";
const TABLE: &str = "balance_table";
const FLOWS: &str = "flows";
/// Maps that the next program inherits.
const KEPT: [&str; 4] = [FLOWS, "counters", VIP_COUNTERS, BACKEND_COUNTERS];
/// Priority in a chain: after the guard.
const PRIORITY: u32 = 20;
/// Maximum number of next hops that the kernel is asked to resolve; it keeps about a thousand neighbours by default.
const MOST_NEIGHBOURS: usize = 512;

#[derive(Debug)]
pub struct Balancer {
    pub site: Site,
    pub installed: Installed,
}

/// Result of loading or of a change.
#[derive(Debug)]
pub struct Done {
    pub balancer: Balancer,
    pub table: Table,
    /// Settings that were changed on other interfaces.
    pub notices: Vec<String>,
    /// Settings that keep the balancer from working as expected.
    pub warnings: Vec<String>,
}

impl Balancer {
    /// Opens the balancer of an interface.
    pub fn at(site: Site) -> Result<Self> {
        match Installed::named(&site, FUNCTION)? {
            Some(installed) => Ok(Self { site, installed }),
            None => {
                Err(Error::failed(format!("no balancer is on {}", site.label()), "the program is not attached to it")
                    .fix(format!("trawl balance load {}", word(site.label()))))
            }
        }
    }

    /// Opens all balancers of a namespace.
    pub fn all_in(namespace: Option<&Namespace>) -> Result<Vec<Self>> {
        let mut found = Vec::new();
        for site in Site::all_in(namespace)? {
            if let Some(installed) = Installed::named(&site, FUNCTION)? {
                found.push(Self { site, installed });
            }
        }
        Ok(found)
    }

    fn slot(&self) -> Result<Slot> {
        self.installed.map(TABLE).map(Slot::of)
    }

    pub fn table(&self) -> Result<Table> {
        self.slot()?.read()
    }

    /// Loads the program with this table, or exchanges the table of a loaded one.
    pub fn load(
        site: &Site,
        table: Option<Table>,
        request: &AttachRequest,
        flows: Option<u32>,
        care: SessionCare,
    ) -> Result<Done> {
        let Some(installed) = Installed::named(site, FUNCTION)? else {
            return load_new(site, table.unwrap_or_default(), request, flows, None);
        };
        let seat = installed.seat().map(|seat| seat.priority);
        let fits_request = request.mode.is_none_or(|mode| installed.mode() == Some(mode))
            && request.priority.is_none_or(|wanted| seat == Some(wanted))
            && flows.is_none()
            && !request.tappable;
        if !fits_request {
            let before = Slot::of(installed.map(TABLE)?).read()?;
            let mut table = table.unwrap_or_else(|| before.clone());
            table.number_after(&before)?;
            return load_new(site, table, request, flows, Some(installed));
        }
        let balancer = Self { site: site.clone(), installed };
        match table {
            Some(table) => balancer.change(care, |held| {
                *held = table;
                Ok(())
            }),
            None => balancer.change(care, |_| Ok(())),
        }
    }

    /// Changes the table as a whole. If any part of the new one is invalid, the old one stays.
    pub fn change(self, care: SessionCare, change: impl FnOnce(&mut Table) -> Result<()>) -> Result<Done> {
        let lock = self.site.lock()?;
        let slot = self.slot()?;
        let before = slot.read()?;
        let mut table = before.clone();
        change(&mut table)?;
        let next_hops = check(&self.site, &mut table, &before)?;
        if care == SessionCare::ForTheSession {
            check_session(&self.site, &before, &table)?;
        }
        if table != before {
            reset_counters_of_new(&self.installed, &before, &table)?;
            slot.publish(&table)?;
        }
        drop(lock);
        if self.needs_reload(&next_hops).inspect_err(|_| self.put_back(&before))? {
            let request = AttachRequest { tappable: self.installed.map(HOOK).is_ok(), ..AttachRequest::default() };
            let Self { site, installed } = self;
            return load_new(&site, table, &request, None, Some(installed))
                .inspect_err(|_| put_back(&site, &slot, &before));
        }
        ask_for_neighbours(&self.site, &next_hops)?;
        let warnings = warnings(&self.site, &table)?;
        Ok(Done { balancer: self, table, notices: Vec::new(), warnings })
    }

    fn put_back(&self, before: &Table) {
        if let Ok(slot) = self.slot() {
            put_back(&self.site, &slot, before);
        }
    }

    /// Returns true if another outgoing interface has to be prepared, which only a program that is loaded anew records.
    fn needs_reload(&self, next_hops: &NextHops) -> Result<bool> {
        if self.installed.mode() == Some(XdpMode::Skb) {
            return Ok(false);
        }
        let mut ready = Readiness::default();
        for other in outgoing_interfaces(&self.site, next_hops)? {
            ready.for_sending(&other)?;
        }
        Ok(!ready.notices().is_empty())
    }

    pub fn account(&self) -> Result<trawl_program::bundled::stats::ProgramAccount> {
        stats::account(&self.installed)
    }

    pub fn by_vip(&self) -> Result<Vec<stats::VipCount>> {
        stats::by_vip(&self.installed, &self.table()?)
    }
}

/// Restores the previous table after a change that failed half-way.
fn put_back(site: &Site, slot: &Slot, before: &Table) {
    if let Ok(_lock) = site.lock() {
        let _ = slot.publish(before);
    }
}

/// Resets the counters of new entries, whose numbers removed entries may have had.
fn reset_counters_of_new(installed: &Installed, before: &Table, after: &Table) -> Result<()> {
    let vips = |table: &Table| -> HashSet<u32> { table.vips.iter().map(|vip| vip.number).collect() };
    let backends = |table: &Table| -> HashSet<(u32, u32)> {
        let all = table.vips.iter().flat_map(|vip| &vip.backends);
        all.map(|one| (one.number, one.generation)).collect()
    };
    let new_vips: Vec<u32> = vips(after).difference(&vips(before)).copied().collect();
    let (old, new) = (backends(before), backends(after));
    let new_backends: Vec<u32> = new.difference(&old).map(|(number, _)| *number).collect();
    stats::reset(installed, VIP_COUNTERS, &new_vips)?;
    stats::reset(installed, BACKEND_COUNTERS, &new_backends)
}

fn load_new(
    site: &Site,
    mut table: Table,
    request: &AttachRequest,
    flows: Option<u32>,
    old: Option<Installed>,
) -> Result<Done> {
    if !site.has_ethernet()? {
        return Err(Error::failed(format!("cannot balance on {}", site.label()), "it is not an Ethernet interface"));
    }
    let before = match &old {
        Some(old) => Slot::of(old.map(TABLE)?).read()?,
        None => Table::default(),
    };
    let next_hops = check(site, &mut table, &before)?;
    let mut ready = Readiness::default();
    if request.mode != Some(XdpMode::Skb) {
        ready.for_sending_on(site)?;
        ready.for_sending_back(site)?;
        for other in outgoing_interfaces(site, &next_hops)? {
            ready.for_sending(&other)?;
        }
    }
    let is_new = old.is_none() || flows.is_some();
    check_memory(0, is_new.then(|| flows.unwrap_or(BALANCE_FLOWS as u32)))?;
    let slot = Slot::create()?;
    slot.publish(&table)?;
    let mut source = Source::embedded(BALANCE, object::XDP_BALANCE)?;
    source.choose(Some(FUNCTION))?;
    source.reuse(TABLE, slot.as_fd())?;
    let mut kept = Vec::new();
    if let Some(old) = &old {
        for name in KEPT {
            if name != FLOWS || flows.is_none() {
                kept.push((name, old.map(name)?));
            }
        }
        reset_counters_of_new(old, &before, &table)?;
    }
    for (name, map) in &kept {
        source.reuse(name, map.as_fd())?;
    }
    if let Some(flows) = flows {
        source.set_entries(FLOWS, flows)?;
    }
    let fill = |program: &mut Program| program.remember(&ready);
    let Put { installed, notices, .. } = match old {
        Some(old) => install::put_instead(site, source, request, old, fill)?,
        None => {
            let request = AttachRequest { priority: request.priority.or(Some(PRIORITY)), ..*request };
            install::put(site, source, &request, fill)?
        }
    };
    let notices = [notices, ready.notices()].concat();
    ready.keep();
    ask_for_neighbours(site, &next_hops)?;
    Ok(Done { balancer: Balancer { site: site.clone(), installed }, warnings: warnings(site, &table)?, table, notices })
}

/// Routes to the backends, by the backend's address: index of the interface, and next hop.
type NextHops = HashMap<IpAddr, (u32, IpAddr)>;

/// Numbers a table and returns its routes; refuses a table that the program cannot apply.
fn check(site: &Site, table: &mut Table, before: &Table) -> Result<NextHops> {
    table.check()?;
    table.number_after(before)?;
    let mut netlink = Netlink::open(site.namespace())?;
    let mut next_hops = NextHops::new();
    for vip in &table.vips {
        for one in vip.backends.iter().filter(|one| one.mac.is_none()) {
            let hop = match next_hops.get(&one.address) {
                Some(hop) => *hop,
                None => {
                    let hop = next_hop(&mut netlink, site, vip, one.address)?;
                    next_hops.insert(one.address, hop);
                    hop
                }
            };
            if vip.forward == Forward::Direct && hop.1 != one.address {
                return Err(refused(
                    vip,
                    format!(
                        "the backend {} is reached through the gateway {}; forwarding `direct` needs a common link",
                        one.address, hop.1
                    ),
                )
                .fix("forward by ipip or gue"));
            }
        }
    }
    Ok(next_hops)
}

fn refused(vip: &Vip, why: impl std::fmt::Display) -> Error {
    Error::failed("the table stays as it is", format!("{}: {why}", vip.service))
}

fn next_hop(netlink: &mut Netlink, site: &Site, vip: &Vip, address: IpAddr) -> Result<(u32, IpAddr)> {
    match netlink.next_hop(address, None)? {
        None => Err(refused(vip, format!("no route to the backend {address}"))
            .fix(format!("{}ip route add {address} via GATEWAY", site.prefix()))),
        Some(hop) if hop.local => Err(refused(vip, format!("the backend {address} is an address of this host"))),
        Some(hop) => Ok((hop.interface, hop.gateway.unwrap_or(address))),
    }
}

/// Returns the interfaces that lead to backends, except the balancer's own.
fn outgoing_interfaces(site: &Site, next_hops: &NextHops) -> Result<Vec<Site>> {
    let indices: HashSet<u32> = next_hops.values().map(|hop| hop.0).collect();
    let all = Site::all_in(site.namespace())?;
    Ok(all.into_iter().filter(|one| indices.contains(&one.index()) && one.index() != site.index()).collect())
}

/// Asks the kernel to resolve next hops: it does so for packets that it sends itself, but not for XDP's.
fn ask_for_neighbours(site: &Site, next_hops: &NextHops) -> Result<()> {
    let hops: HashSet<(u32, IpAddr)> = next_hops.values().copied().collect();
    let mut netlink = Netlink::open(site.namespace())?;
    let mut known = HashSet::new();
    for interface in hops.iter().map(|hop| hop.0).collect::<HashSet<u32>>() {
        let neighbours = netlink.neighbours(interface)?;
        known.extend(neighbours.iter().map(|one| (interface, one.address)));
    }
    // Known neighbours are left out: a request would make a permanent one temporary.
    for (interface, address) in hops.difference(&known).take(MOST_NEIGHBOURS) {
        netlink.ask_for_neighbour(*interface, *address)?;
    }
    Ok(())
}

/// Refuses a table with a new virtual address that would capture the session's packets.
fn check_session(site: &Site, before: &Table, after: &Table) -> Result<()> {
    let Some(session) = Session::of_this_command() else {
        return Ok(());
    };
    let captured_by = |table: &Table| {
        let captures_it = |vip: &&Vip| {
            vip.service.protocol == Protocol::Tcp
                && vip.service.address == session.server.ip()
                && (vip.service.port == 0 || vip.service.port == session.server.port())
        };
        table.vips.iter().find(captures_it).map(|vip| vip.service)
    };
    match captured_by(after) {
        Some(service) if captured_by(before).is_none() && safety::arrives_by(&session, site)? => Err(Error::failed(
            "the table stays as it is",
            format!(
                "{service} would capture the packets of the SSH session from {} in which this command was typed",
                session.client.ip()
            ),
        )
        .fix("--yes applies it anyway")),
        _ => Ok(()),
    }
}

/// Returns warnings about settings that hide routes from the program, and about virtual addresses without backends.
fn warnings(site: &Site, table: &Table) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let asks_kernel = |is_ipv4: bool| {
        let mut all = table.vips.iter().flat_map(|vip| &vip.backends);
        all.any(|one| one.mac.is_none() && one.address.is_ipv4() == is_ipv4)
    };
    for (family, shown, is_ipv4) in [("ipv4", "IPv4", true), ("ipv6", "IPv6", false)] {
        let path = format!("/proc/sys/net/{family}/conf/{}/forwarding", site.name());
        let read = || std::fs::read_to_string(&path).unwrap_or_default();
        if asks_kernel(is_ipv4) && run_maybe_in(site.namespace(), read)?.trim() == "0" {
            warnings.push(format!(
                "{}: forwarding of {shown} is off, so the kernel gives no routes to the backends; {}sysctl -w {}, or give each backend its MAC address",
                site.label(),
                site.prefix(),
                word(&format!("net.{family}.conf.{}.forwarding=1", site.name().replace('.', "/"))),
            ));
        }
    }
    for vip in &table.vips {
        if !vip.backends.iter().any(|one| one.accepts_new_flows()) {
            warnings.push(format!("{}: no backend accepts new flows", vip.service));
        }
    }
    const SHOWN: usize = 10;
    if warnings.len() > SHOWN {
        let more = warnings.len() - SHOWN;
        warnings.truncate(SHOWN);
        warnings.push(format!("and {more} more"));
    }
    Ok(warnings)
}
