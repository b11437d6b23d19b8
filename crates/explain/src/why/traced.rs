//! Rules and policies of nftables that dropped traced packets, for kernels that refuse programs at their functions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use trawl_packet::pcapng::note::Rule;
use trawl_sys::Result;
use trawl_sys::netlink::{MarkedPlaces, Netlink, RuleTrace, TracedDrop};
use trawl_sys::netns::Namespace;

/// Time limit of a trace: meanwhile, nftables is slower for the traced packets.
pub const AT_MOST: Duration = Duration::from_secs(5);
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// A rule or policy that dropped traced packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    pub name: String,
    /// The packets' interfaces, as far as known.
    pub interfaces: Vec<String>,
    pub packets: u64,
}

impl Traced {
    /// Returns true if these may be packets of a row of this interface.
    pub fn is_at(&self, interface: Option<&str>) -> bool {
        let is_known = !self.interfaces.is_empty();
        interface.is_none_or(|name| !is_known || self.interfaces.iter().any(|one| one == name))
    }
}

/// A trace of the packets in a namespace.
#[derive(Debug)]
pub struct Tracing {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Traced>>>,
    found: Vec<Traced>,
}

impl Tracing {
    /// Begins a trace; `None` if the kernel refuses it.
    pub fn begin(namespace: Option<Namespace>, places: &MarkedPlaces) -> Option<Self> {
        let trace = RuleTrace::begin(namespace.as_ref(), places).ok()?;
        let links = Netlink::open(namespace.as_ref()).ok()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&is_over);
        // A thread of its own ends the trace in time, whatever the capture is waiting for.
        let thread = thread::Builder::new()
            .name("trawl-trace".to_owned())
            .spawn(move || Counts::new(links).count_until(trace, &is_stopped))
            .ok()?;
        Some(Self { is_over, thread: Some(thread), found: Vec::new() })
    }

    /// Ends the trace, and returns the rules and policies that dropped traced packets.
    pub fn end(&mut self) -> &[Traced] {
        if let Some(thread) = self.thread.take() {
            self.is_over.store(true, Ordering::Relaxed);
            self.found = thread.join().unwrap_or_default();
        }
        &self.found
    }
}

/// Traced packets by the rule and the interfaces.
struct Counts {
    links: Netlink,
    names: HashMap<u32, Option<String>>,
    packets: BTreeMap<(String, Vec<String>), u64>,
}

impl Counts {
    fn new(links: Netlink) -> Self {
        Self { links, names: HashMap::new(), packets: BTreeMap::new() }
    }

    /// Counts drops until the time limit, or until `is_stopped` is true.
    fn count_until(mut self, mut trace: RuleTrace, is_stopped: &AtomicBool) -> Vec<Traced> {
        let deadline = Instant::now() + AT_MOST;
        loop {
            let is_last = is_stopped.load(Ordering::Relaxed) || Instant::now() >= deadline;
            let wait = if is_last { Duration::ZERO } else { CHECK_EVERY };
            if self.count(&mut trace, wait).is_err() || is_last {
                break;
            }
        }
        let found = self.packets.into_iter();
        let found = found.map(|((name, interfaces), packets)| Traced { name, interfaces, packets });
        found.collect()
    }

    fn count(&mut self, trace: &mut RuleTrace, at_most: Duration) -> Result<()> {
        for drop in trace.drops(at_most)? {
            let TracedDrop { family, table, chain, handle, interfaces } = drop;
            let rule = Rule { family: family.into(), table: table.into(), chain: chain.into(), handle };
            let interfaces = interfaces.iter().filter(|index| **index != 0);
            let interfaces = interfaces.filter_map(|index| self.interface(*index));
            let kind = (rule.to_string(), interfaces.collect());
            *self.packets.entry(kind).or_default() += 1;
        }
        Ok(())
    }

    fn interface(&mut self, index: u32) -> Option<String> {
        let links = &mut self.links;
        let find = || Some(links.find_link_by_index(index).ok()??.name);
        let name = self.names.entry(index).or_insert_with(find);
        name.clone()
    }
}
