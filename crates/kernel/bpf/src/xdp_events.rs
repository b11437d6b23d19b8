//! Packets that XDP lost without a socket buffer: exceptions, failed redirects, and drops by devmaps and cpumaps, from
//! the kernel's tracepoints.

use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, ObjectBuilder};
use trawl_sys::{Error, Result};

use super::object::explained;
use super::{kernel_types, probe};
use crate::kallsyms::Symbols;
use crate::layout::Shared;
use crate::layout::xdp_events::{
    XDP_EVENT_CPUMAP, XDP_EVENT_DEVMAP, XDP_EVENT_EXCEPTION, XDP_EVENT_REDIRECT, XdpEvent,
};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/watch_xdp.bpf.o"));
const MAP: &str = "xdp_events";
/// The functions that run programs of veth on socket buffers, and programs in skb mode.
const VETH_ON_BUFFERS: &str = "veth_xdp_rcv_skb";
const IN_SKB_MODE: [&str; 3] = ["do_xdp_generic", "netif_receive_generic_xdp", "bpf_prog_run_generic_xdp"];
/// Map fields of a redirect without a map.
const NO_MAP: [u32; 2] = [0, i32::MAX as u32];
/// Functions of the tracepoint itself.
const OF_TRACEPOINT: [&str; 5] = ["bpf_prog_", "bpf_trace_run", "__bpf_trace_", "__traceiter_", "trace_"];

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum XdpOutcome {
    /// The verdict was XDP_ABORTED, or unknown to the kernel.
    Exception { verdict: u32 },
    /// The redirect that the program requested failed.
    Redirect { errno: u32, map: Option<u32> },
    /// The target interface refused the packet.
    Devmap { errno: u32 },
    /// The target CPU's queue was full.
    Cpumap { map: u32, cpu: u32 },
}

impl XdpOutcome {
    /// Returns the error that the kernel gave, if it was one.
    pub fn errno(&self) -> Option<u32> {
        match *self {
            Self::Redirect { errno, .. } | Self::Devmap { errno } => (errno != 0).then_some(errno),
            Self::Exception { .. } | Self::Cpumap { .. } => None,
        }
    }
}

/// Packets with the same outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event {
    pub what: XdpOutcome,
    /// The inode number of the network namespace, and the interface; 0 if none is involved.
    pub netns: u32,
    pub ifindex: u32,
    /// The program's number; 0 if unknown.
    pub program: u32,
    /// The function in which it happened; empty if unknown.
    pub function: String,
    /// True if the program ran in skb mode.
    pub skb_mode: bool,
    /// True if the kernel freed a socket buffer as dropped.
    pub freed_buffer: bool,
}

/// Programs at the tracepoints; they count until this is dropped.
#[derive(Debug)]
pub struct XdpEvents {
    object: libbpf_rs::Object,
    _links: Vec<Link>,
    symbols: Symbols,
}

impl XdpEvents {
    pub fn watch() -> Result<Self> {
        let fail = |why: libbpf_rs::Error| {
            let what = "cannot count the packets that XDP loses";
            // libbpf loads these programs as they are.
            match probe::lockdown_of_reads() {
                Some(lockdown) if why.kind() == ErrorKind::InvalidInput => Error::failed(what, lockdown),
                _ => explained(what.to_owned(), why).fix("this requires root (CAP_BPF and CAP_PERFMON)"),
            }
        };
        super::object::quiet_libbpf();
        let types =
            kernel_types::for_programs().map_err(|e| Error::os("cannot read the kernel's type information", e))?;
        let mut builder = ObjectBuilder::default();
        builder.btf_custom_path(&types.path).map_err(fail)?;
        let open = builder.open_memory(OBJECT).map_err(fail)?;
        let object = open.load().map_err(fail)?;
        let mut links = Vec::new();
        for program in object.progs_mut() {
            links.push(program.attach().map_err(fail)?);
        }
        Ok(Self { object, _links: links, symbols: Symbols::read() })
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Result<Vec<(Event, u64)>> {
        let Some(map) = self.object.maps().find(|map| map.name() == MAP) else {
            return Ok(Vec::new());
        };
        let mut counts: Vec<(Event, u64)> = Vec::new();
        for key in map.keys() {
            let value = map
                .lookup(&key, MapFlags::ANY)
                .map_err(|e| Error::failed("cannot read the counts of packets that XDP lost", e))?;
            let packets = value.and_then(|value| Some(u64::from_ne_bytes(*value.first_chunk()?)));
            let Some((event, packets)) = self.event(&key).zip(packets) else {
                continue;
            };
            // Several paths in the kernel may lead to the same event.
            match counts.iter_mut().find(|(known, _)| *known == event) {
                Some((_, sum)) => *sum += packets,
                None => counts.push((event, packets)),
            }
        }
        counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Ok(counts)
    }

    fn event(&self, key: &[u8]) -> Option<Event> {
        let event = XdpEvent::from_bytes(key)?;
        let what = match event.what as usize {
            XDP_EVENT_EXCEPTION => XdpOutcome::Exception { verdict: event.code },
            XDP_EVENT_REDIRECT => {
                XdpOutcome::Redirect { errno: event.code, map: (!NO_MAP.contains(&event.map)).then_some(event.map) }
            }
            XDP_EVENT_DEVMAP => XdpOutcome::Devmap { errno: event.code },
            XDP_EVENT_CPUMAP => XdpOutcome::Cpumap { map: event.map, cpu: event.code },
            _ => return None,
        };
        let callers = event.stack.iter().take_while(|address| **address != 0);
        let callers: Vec<&str> = callers
            .filter_map(|address| Some(self.symbols.find(*address)?.function))
            .map(|name| name.split('.').next().unwrap_or(name))
            .filter(|name| !OF_TRACEPOINT.iter().any(|part| name.starts_with(part)))
            .collect();
        let skb_mode = callers.iter().any(|name| IN_SKB_MODE.contains(name));
        // For a failed redirect, veth frees only the memory.
        let is_exception = matches!(what, XdpOutcome::Exception { .. });
        let by_veth = is_exception && callers.contains(&VETH_ON_BUFFERS);
        Some(Event {
            what,
            netns: event.netns,
            ifindex: event.ifindex,
            program: event.program,
            function: callers.first().copied().unwrap_or_default().to_owned(),
            skb_mode,
            freed_buffer: skb_mode || by_veth,
        })
    }
}
