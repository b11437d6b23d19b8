//! The `drop` tap: every socket buffer that the kernel frees because its packet was dropped, on all interfaces or some,
//! by a program at the tracepoint skb:kfree_skb. It belongs to no single interface, so it is attached once for a
//! capture.

mod counts;
mod follow;
mod names;
mod programs;
pub mod reasons;
mod text;

use std::os::fd::{AsFd, OwnedFd};

use trawl_bpf::droppers::Droppers;
use trawl_bpf::kallsyms::Symbols;
use trawl_bpf::kallsyms::kernel_addresses;
use trawl_bpf::kernel_types::{self, Tracepoint};
use trawl_bpf::layout::drop::{
    DROP_FUNCTIONS, DROP_REASON_WORDS, DROP_SCRATCH_SIZE, DROP_SITES, DropFunction, DropSettings, DropSite, DropState,
    LINKS_FOLLOWED,
};
use trawl_bpf::layout::{Shared, TRACE_COPY, WRITE_UNCERTAIN};
use trawl_bpf::{info, map, object};
use trawl_packet::pcapng::Interface;
use trawl_pipeline::Stage;
use trawl_sys::netns::Namespace;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result, events};

use crate::assembly::{Assembly, program_maps};
use crate::capture_site::{CaptureSite, number_of};
use crate::event::Event;
use crate::filter::Compile;
use crate::point::Carries;
use crate::taps::facts::{Facts, Gives, MOST};
use crate::{AttachedTap, Tap};
pub use counts::{CountedDrop, DropWatch};
pub use follow::{FollowPoints, has_programs_at_hooks};
use programs::{TRACEPOINT, load_at_drops};
use reasons::{
    DONE, DONE_IF_EMPTY, DONE_IF_END, DONE_IF_GOODBYE, FILTERED, MAY_BE_COPIED, Reasons, UNWANTED, UNWANTED_IN_GROUP,
};
pub use text::as_frame;
use text::{DropConverter, HOOK};
use trawl_bpf::probe::KernelFeature;
use trawl_plan::TapChoice;
use trawl_plan::options::Drops;

pub const FACTS: Facts = Facts {
    choice: TapChoice::Drop,
    sees: "packets that the kernel drops, with their reason, function, namespace and socket",
    gives: Gives { received: true, sent: true, drop_reason: true, process: true, ..Gives::NOTHING },
    needs: "Linux 5.17 with BTF",
    features: &[
        KernelFeature::RawTracepoint,
        KernelFeature::KernelMemory,
        KernelFeature::Btf,
        KernelFeature::DropReasons,
        KernelFeature::MmapableArray,
    ],
    no_queue: "freed buffers do not contain it",
    no_hardware_time: "a drop is stamped when the kernel frees the packet",
    ..MOST
};

/// Number of arguments: buffer, location and reason, since 5.17; the receiving socket is the fourth, since 6.11.
const ARGUMENTS_WITH_REASON: usize = 3;
const ARGUMENTS_WITH_RECEIVER: usize = 4;
/// Kernel functions that run XDP programs on socket buffers, and free dropped ones.
const RUN_XDP: [&str; 2] = ["veth_xdp_rcv_skb", "do_xdp_generic"];
/// Kernel functions that free packets without a reason although nothing is lost: they empty the queues of a closing
/// socket (before 6.5), or belong to a driver that frees sent packets as if it dropped them.
const HARMLESS: [&str; 6] = [
    "sk_stream_kill_queues",
    "skb_rbtree_purge",
    "skb_queue_purge",
    "skb_queue_purge_reason",
    "inet_sock_destruct",
    "vmxnet3_tq_tx_complete",
];
/// Kernel functions that hand copies of packets to raw sockets, and free copies that a socket's filter rejects.
const RAW: [&str; 6] =
    ["raw_rcv", "raw_rcv_skb", "rawv6_rcv", "rawv6_rcv_skb", "raw_local_deliver", "raw6_local_deliver"];
/// Kernel functions that free TCP segments without a reason.
const TCP: [&str; 7] = [
    "tcp_v4_rcv",
    "tcp_v6_rcv",
    "tcp_v4_do_rcv",
    "tcp_v6_do_rcv",
    "tcp_rcv_established",
    "tcp_rcv_state_process",
    "tcp_validate_incoming",
];
/// Kernel function that frees messages of ICMPv6 after having acted on them.
const ICMPV6: [&str; 1] = ["icmpv6_rcv"];
/// A reason of kernels that distinguish these messages from dropped ones.
const OF_NEIGHBOUR_DISCOVERY: &str = "IPV6_NDISC_BAD_OPTIONS";
const EVERYWHERE: &str = "all interfaces";

/// The tap at drops. With sites it records only drops there; at sites where another tap sees verdicts, that tap records
/// the drops of XDP programs.
#[derive(Debug)]
pub struct AtDrops(pub Drops);

impl Tap for AtDrops {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, _: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let at_xdp: Vec<&CaptureSite> = assembly.at_xdp.iter().map(|index| &sites[*index]).collect();
        let attached = attach(sites, &at_xdp, &self.0, assembly)?;
        Ok(Box::new(attached))
    }
}

fn attach(
    sites: &[CaptureSite],
    at_xdp: &[&CaptureSite],
    asked: &Drops,
    assembly: &mut Assembly,
) -> Result<AttachedDrop> {
    let follow_points = asked.follow.then(|| FollowPoints::find(asked)).transpose()?;
    let sites = follow_points.as_ref().map_or(sites, |follow_points| &follow_points.entries);
    match assembly.options.tap {
        _ if asked.follow => {}
        TapChoice::Drop => FACTS.check(&assembly.options)?,
        // The other tap checks the other options.
        _ => FACTS.check_queue(&assembly.options)?,
    }
    let namespaces = asked.namespaces.iter().map(|name| Namespace::open(name)).collect::<Result<Vec<_>>>()?;
    let reasons = Reasons::of_kernel()?;
    let tracepoint = tracepoint(&reasons)?;
    let symbols = Symbols::read();
    let mut settings = settings(sites, at_xdp, asked, &namespaces, &reasons)?;
    find_functions(&mut settings, &reasons, &symbols).into_iter().for_each(|event| assembly.event(event));
    let cpus = events::cpu_count();
    // A softirq may interrupt a process between two steps, and needs slots of its own.
    let (rings, slots) =
        if asked.follow { (assembly.rings_apart(cpus * 2)?, cpus * 2) } else { (assembly.rings_apart(cpus)?, cpus) };
    let label = match (sites, &namespaces[..]) {
        ([], []) => EVERYWHERE.to_owned(),
        ([], namespaces) => {
            let labels: Vec<&str> = namespaces.iter().map(Namespace::label).collect();
            format!("{EVERYWHERE} of {}", labels.join(", "))
        }
        (sites, _) => {
            let labels: Vec<&str> = sites.iter().map(|site| site.label.as_str()).collect();
            labels.join(", ")
        }
    };
    let ids = assembly.add_point_apart(label, format!("unknown ({HOOK})"), &rings, &FACTS, HOOK)?;
    let mut config = assembly.config(&rings);
    config.first = ids.record(0, Carries::Nothing);
    config.write_queue = 0;
    // The note contains the direction.
    config.write_flags = 0;
    // The comment of a drop is its own.
    if config.write_socket == WRITE_UNCERTAIN as u32 {
        config.write_socket = 0;
    }
    config.names_receiver = u32::from(tracepoint.arguments >= ARGUMENTS_WITH_RECEIVER);
    config.with_stack = u32::from(asked.stack);
    config.first_buffer_only = u32::from(trawl_bpf::probe::lockdown_of_reads().is_some());
    if asked.follow {
        config.nested_from = cpus as u32;
        config.links = LINKS_FOLLOWED as u32;
    }
    if let Some(found) = kernel_addresses() {
        let halves = |address: u64| (address as u32, (address >> 32) as u32);
        (config.first_address_low, config.first_address_high) = halves(found.first_address);
        (config.first_page_low, config.first_page_high) = halves(found.first_page);
    }
    let droppers = asked.droppers.then(|| Droppers::watch(&symbols)).flatten();
    assembly.notes_rules = droppers.is_some();
    config.names_dropper = u32::from(droppers.is_some());
    // The functions that lead to a drop include the code that calls these programs, so the symbols are read again.
    let symbols = match droppers {
        Some(_) => Symbols::read(),
        None => symbols,
    };
    let scratch = map::create_mmapable_array("trawl_scratch", DROP_SCRATCH_SIZE as u32, slots as u32)?;
    let settings_map = settings_map(&settings)?;
    let block = match &assembly.options.filter {
        Some(filter) => Some(filter.copy_block(config.snaplen, TRACE_COPY as u16)?),
        None => None,
    };
    let mut maps = program_maps(&rings, None);
    maps.push(("drop_scratch", scratch.as_fd()));
    maps.push(("drop_settings", settings_map.as_fd()));
    maps.extend(droppers.iter().map(|one| (object::DROPPERS_MAP, one.latest.as_fd())));
    let mut later = None;
    let (mode, attached) = match &follow_points {
        Some(follow_points) => {
            let (attached, hooks) = follow::attach(follow_points, &config, &maps, block.as_deref(), assembly)?;
            later = Some(hooks);
            ("tp_btf", attached)
        }
        None => {
            let program = (object::TAP_DROP, "trawl_drop");
            let (mode, _, loaded) = load_at_drops(program, &config, &maps, block.as_deref())?;
            let mut all = vec![loaded];
            if config.only_processes != 0 {
                all.push(programs::watch_senders(&config, &maps)?);
            }
            (mode, all)
        }
    };
    let mut programs = Vec::new();
    let mut links = Vec::new();
    for (program, link) in attached {
        programs.push(program);
        links.extend(link);
    }
    assembly.points.set_mode(ids.point, mode);
    let rules = droppers.map(|one| {
        links.extend(one.links);
        one.rules
    });
    let lists_sockets = asked.follow || assembly.processes.is_none();
    let converter = DropConverter::new(ids.interface, reasons, symbols, rules, asked.follow, lists_sockets);
    Ok(AttachedDrop {
        point: ids.point,
        converter: Some(converter),
        programs,
        links,
        later,
        scratch,
        slots: slots as u32,
    })
}

fn tracepoint(reasons: &Reasons) -> Result<Tracepoint> {
    let what = "cannot observe the packets that the kernel drops";
    let found =
        kernel_types::tracepoint(TRACEPOINT).map_err(|e| Error::os("cannot read the kernel's type information", e))?;
    found.filter(|found| found.arguments >= ARGUMENTS_WITH_REASON && !reasons.is_empty()).ok_or_else(|| {
        Error::failed(what, "it gives no reasons for drops").fix(format!("use Linux {} or newer", "5.17"))
    })
}

fn settings_map(settings: &DropSettings) -> Result<OwnedFd> {
    let map = map::create_mmapable_array("trawl_drop", size_of::<DropSettings>() as u32, 1)?;
    map::write(map.as_fd(), 0, settings).map_err(|e| Error::os("cannot configure the program", e))?;
    Ok(map)
}

fn settings(
    sites: &[CaptureSite],
    at_xdp: &[&CaptureSite],
    asked: &Drops,
    namespaces: &[Namespace],
    reasons: &Reasons,
) -> Result<DropSettings> {
    let mut settings = DropSettings {
        wanted: [u64::MAX; DROP_REASON_WORDS],
        unwanted: reasons.bits(&UNWANTED),
        unwanted_in_group: reasons.bits(&UNWANTED_IN_GROUP),
        may_be_copied: reasons.bits(&MAY_BE_COPIED),
        done: reasons.bits(&DONE),
        done_if_empty: reasons.bits(&DONE_IF_EMPTY),
        done_if_goodbye: reasons.bits(&DONE_IF_GOODBYE),
        done_if_end: reasons.bits(&DONE_IF_END),
        filtered: reasons.bits(&FILTERED),
        wanted_of_subsystems: 1,
        no_losses_too: u32::from(asked.no_losses || asked.reasons.is_some()),
        reason_xdp: reasons.xdp(),
        reason_netfilter: reasons.netfilter(),
        sites: 0,
        xdp_sites: 0,
        functions: 0,
        harmless_functions: 0,
        raws: 0,
        tcps: 0,
        icmpv6s: 0,
        reason_none: reasons.none(),
        harmless: [DropFunction { from: 0, to: 0 }; DROP_FUNCTIONS],
        raw: [DropFunction { from: 0, to: 0 }; DROP_FUNCTIONS],
        tcp: [DropFunction { from: 0, to: 0 }; DROP_FUNCTIONS],
        icmpv6: [DropFunction { from: 0, to: 0 }; DROP_FUNCTIONS],
        only: [DropSite { netns: 0, ifindex: 0 }; DROP_SITES],
        xdp: [DropSite { netns: 0, ifindex: 0 }; DROP_SITES],
        runs_xdp: [DropFunction { from: 0, to: 0 }; DROP_FUNCTIONS],
    };
    if let Some(list) = &asked.reasons {
        let wanted = reasons.parse(list)?;
        settings.wanted = reasons::bits(&wanted);
        settings.wanted_of_subsystems = u32::from(wanted.iter().any(|one| reasons::is_of_subsystem(*one)));
    }
    let mut only = sites
        .iter()
        .map(|site| drop_site(site.namespace.as_ref(), site.interface.index))
        .collect::<Result<Vec<_>>>()?;
    if only.is_empty() {
        let sites = namespaces.iter().map(|one| drop_site(Some(one), 0));
        only = sites.collect::<Result<_>>()?;
    }
    let at_xdp = at_xdp
        .iter()
        .map(|site| drop_site(site.namespace.as_ref(), site.interface.index))
        .collect::<Result<Vec<_>>>()?;
    settings.sites = fill(&mut settings.only, &only)?;
    settings.xdp_sites = fill(&mut settings.xdp, &at_xdp)?;
    Ok(settings)
}

/// Finds the kernel's functions that distinguish losses from other ends of packets. Returns an event for each list that
/// does not fit.
fn find_functions(settings: &mut DropSettings, reasons: &Reasons, symbols: &Symbols) -> Vec<Event> {
    let mut lists: Vec<(&mut [DropFunction], &mut u32, &[&str])> = vec![
        (&mut settings.runs_xdp, &mut settings.functions, &RUN_XDP),
        (&mut settings.harmless, &mut settings.harmless_functions, &HARMLESS),
        (&mut settings.raw, &mut settings.raws, &RAW),
        (&mut settings.tcp, &mut settings.tcps, &TCP),
    ];
    if reasons.number(OF_NEIGHBOUR_DISCOVERY).is_none() {
        lists.push((&mut settings.icmpv6, &mut settings.icmpv6s, &ICMPV6));
    }
    let fit = |(room, count, names): (&mut [DropFunction], &mut u32, &[&str])| {
        let left = fit(room, count, symbols.ranges(names));
        (left > 0).then(|| Event::DropFunctionsLeft { like: names[0].to_owned(), left })
    };
    lists.into_iter().filter_map(fit).collect()
}

/// Writes and counts these address ranges, after merging neighbours. Returns the number of ranges that do not fit.
fn fit(room: &mut [DropFunction], count: &mut u32, mut found: Vec<(u64, u64)>) -> usize {
    found.sort_unstable();
    found.dedup_by(|next, last| {
        let is_neighbour = next.0 <= last.1;
        if is_neighbour {
            last.1 = last.1.max(next.1);
        }
        is_neighbour
    });
    for (to, (from, end)) in room.iter_mut().zip(&found) {
        *to = DropFunction { from: *from, to: *end };
        *count += 1;
    }
    found.len().saturating_sub(room.len())
}

fn fill(slots: &mut [DropSite], found: &[DropSite]) -> Result<u32> {
    let Some(room) = slots.get_mut(..found.len()) else {
        let why = format!("{DROP_SITES} is the limit");
        return Err(Error::failed("cannot watch drops at this many interfaces", why).fix("leave out -i to watch all"));
    };
    room.copy_from_slice(found);
    Ok(found.len() as u32)
}

fn drop_site(namespace: Option<&Namespace>, ifindex: u32) -> Result<DropSite> {
    Ok(DropSite { netns: number_of(namespace)?, ifindex })
}

#[derive(Debug)]
struct AttachedDrop {
    point: u32,
    /// The stage that converts the records, until `stage` returns it.
    converter: Option<DropConverter>,
    programs: Vec<OwnedFd>,
    links: Vec<OwnedFd>,
    /// The hooks of single namespaces, if packets are followed.
    later: Option<follow::Hooks>,
    scratch: OwnedFd,
    /// Number of entries of `scratch`.
    slots: u32,
}

impl AttachedTap for AttachedDrop {
    fn stage(&mut self, interfaces: &[Interface]) -> Option<Box<dyn Stage>> {
        let mut converter = self.converter.take()?;
        converter.begin(interfaces);
        Some(Box::new(converter))
    }

    fn enter(&mut self, namespace: &Namespace) -> Result<()> {
        if let Some(hooks) = &mut self.later {
            hooks.enter(namespace, &mut self.links)?;
        }
        Ok(())
    }

    fn detach(&mut self) -> Vec<Event> {
        self.links.clear();
        Vec::new()
    }

    /// Interface names in other namespaces and socket owners are looked up at each drop.
    fn needed_capabilities(&self) -> Capabilities {
        crate::TO_FOLLOW_PROGRAMS | Capabilities::SYS_PTRACE | Capabilities::SYSLOG
    }

    /// Counts buffers that were freed while the program ran on that CPU: the kernel does not run it again, or it ends
    /// at once. Where two programs follow packets, the second one handles a step that the first one missed; a step
    /// that the second one missed is lost if the first one was not called either.
    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        let missed = |program: &OwnedFd| info::program(program.as_fd()).map_or(0, |about| about.recursion_misses);
        let missed: u64 = self.programs.iter().map(missed).sum();
        let states: Vec<DropState> = (0..self.slots)
            .filter_map(|cpu| DropState::from_bytes(&map::read(self.scratch.as_fd(), cpu).ok()?))
            .collect();
        let interrupted: u64 = states.iter().map(|state| state.interrupted).sum();
        let not_followed = states.iter().map(|state| state.not_followed).sum();
        let turns = states.iter().flat_map(|state| &state.turns);
        let handled: u64 = turns.map(|turns| turns.calls.saturating_sub(turns.confirmed)).sum();
        [("interrupted", missed.saturating_sub(handled) + interrupted), ("not_followed", not_followed)]
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(why, count)| (self.point, why, count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_do_not_fit_are_counted() {
        let mut room = [DropFunction { from: 0, to: 0 }; 2];
        let mut count = 0;
        assert_eq!(fit(&mut room, &mut count, vec![(30, 40), (10, 20), (20, 25)]), 0);
        assert_eq!((count, room[0].from, room[0].to, room[1].from, room[1].to), (2, 10, 25, 30, 40));
        let mut count = 0;
        assert_eq!(fit(&mut room, &mut count, vec![(10, 20), (30, 40), (50, 60), (70, 80)]), 2);
        assert_eq!(count, 2);
    }
}
