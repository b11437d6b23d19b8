//! The kernel's counters of lost packets, and how much they increased.

use std::collections::BTreeMap;

use trawl_bpf::xdp_events::{Event, XdpEvents};
use trawl_capture::capture_site::CaptureSite;
use trawl_sys::Result;
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::counters::{self, Counters};
use trawl_sys::netns::{Namespace, NamespaceSearch};

use super::Notice;
use super::socket_drops::SocketDrops;

/// Maximum number of namespaces, since each requires reading the counters of all its devices.
const MOST_NAMESPACES: usize = 64;

/// The counters at the beginning of a search, to be compared with later ones.
#[derive(Debug)]
pub struct Counted {
    namespaces: Vec<Namespace>,
    /// Set if all namespaces are included: events in unknown ones are reported too.
    everywhere: bool,
    /// The selected interfaces with their namespaces, if only some are watched.
    interfaces: Vec<(Namespace, String, u32)>,
    before: Counters,
    sockets: SocketDrops,
    events: Option<XdpEvents>,
}

/// The increases since the counters were first read.
#[derive(Debug, Default)]
pub struct Differences {
    pub counters: Counters,
    pub sockets: SocketDrops,
    pub events: Vec<CountedLoss>,
}

/// Packets that XDP lost, with names for the kernel's numbers.
#[derive(Debug)]
pub struct CountedLoss {
    pub event: Event,
    pub packets: u64,
    pub netns: Option<String>,
    pub interface: Option<String>,
}

impl Counted {
    /// Reads the counters for the first time, in these namespaces, in all that can be found if none is
    /// named, or only for some interfaces.
    pub fn new(sites: &[CaptureSite], named: Vec<Namespace>, notify: &mut dyn FnMut(&Notice)) -> Result<Self> {
        let mut interfaces = Vec::new();
        for site in sites {
            let namespace = match &site.namespace {
                Some(namespace) => namespace.clone(),
                None => Namespace::current()?,
            };
            interfaces.push((namespace, site.interface.name.clone(), site.interface.index));
        }
        let events = match XdpEvents::watch() {
            Ok(events) => Some(events),
            Err(error) => {
                notify(&Notice::NotWatched { error: error.to_string() });
                None
            }
        };
        let mut counted = Self {
            everywhere: interfaces.is_empty() && named.is_empty(),
            namespaces: if interfaces.is_empty() { named } else { Vec::new() },
            interfaces,
            before: Counters::new(),
            sockets: SocketDrops::default(),
            events,
        };
        let left_out = counted.find_namespaces();
        if left_out > 0 {
            notify(&Notice::NamespacesLeftOut { compared: MOST_NAMESPACES, all: MOST_NAMESPACES + left_out });
        }
        counted.before = counted.read();
        counted.sockets = SocketDrops::read(&counted.namespaces, false);
        Ok(counted)
    }

    /// Returns the namespaces whose counters are read.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let of_interfaces = self.interfaces.iter().map(|(namespace, ..)| namespace);
        self.namespaces.iter().chain(of_interfaces)
    }

    /// Finds the namespaces that exist now, if all are included. Returns the number of those beyond the limit.
    pub fn find_namespaces(&mut self) -> usize {
        if !self.everywhere {
            return 0;
        }
        self.namespaces.clear();
        NamespaceSearch::default().find(|one| {
            self.namespaces.push(one.clone());
            false
        });
        let left_out = self.namespaces.len().saturating_sub(MOST_NAMESPACES);
        self.namespaces.truncate(MOST_NAMESPACES);
        left_out
    }

    /// Reads the counters, and skips any that cannot be read, as in a namespace that is gone by now.
    fn read(&self) -> Counters {
        let mut all = counters::of_cpus();
        let mut add = |found: Result<Counters>| all.extend(found.unwrap_or_default());
        for namespace in &self.namespaces {
            add(counters::of_protocols(namespace));
            add(counters::of_devices(namespace, None));
            add(counters::of_traps(namespace));
        }
        for (namespace, interface, _) in &self.interfaces {
            add(counters::of_devices(namespace, Some(interface)));
        }
        all
    }

    /// Returns the increases. Reading the increases of single sockets takes longer.
    pub fn differences(&self, with_sockets: bool) -> Result<Differences> {
        let events = self.events.as_ref().map(XdpEvents::counts).transpose()?;
        Ok(Differences {
            counters: counters::differences(&self.before, &self.read()),
            sockets: if with_sockets {
                SocketDrops::read(&self.namespaces, true).since(&self.sockets)
            } else {
                SocketDrops::default()
            },
            events: self.losses(events.unwrap_or_default()),
        })
    }

    fn losses(&self, events: Vec<(Event, u64)>) -> Vec<CountedLoss> {
        let mut names = BTreeMap::new();
        let mut losses = Vec::new();
        for (event, packets) in events {
            let Some((netns, interface)) = self.find(&event, &mut names) else {
                continue;
            };
            losses.push(CountedLoss { event, packets, netns, interface });
        }
        losses
    }

    /// Returns the names of namespace and interface; `None` if the event is outside the selection.
    fn find(
        &self,
        event: &Event,
        names: &mut BTreeMap<(u32, u32), Option<String>>,
    ) -> Option<(Option<String>, Option<String>)> {
        let is_there = |namespace: &Namespace| namespace.identity().1 == u64::from(event.netns);
        if let Some((namespace, name, _)) =
            self.interfaces.iter().find(|(namespace, _, index)| is_there(namespace) && *index == event.ifindex)
        {
            return Some((Some(counters::label(namespace)), Some(name.clone())));
        }
        if let Some(namespace) = self.namespaces.iter().find(|one| is_there(one)) {
            let interface = names.entry((event.netns, event.ifindex)).or_insert_with(|| {
                let mut netlink = Netlink::open(Some(namespace)).ok()?;
                let link = netlink.find_link_by_index(event.ifindex).ok()??;
                Some(link.name)
            });
            return Some((Some(counters::label(namespace)), interface.clone()));
        }
        // A namespace created since, or none at all: cpumaps belong to no namespace.
        self.everywhere.then(|| {
            let number = (event.netns != 0).then(|| event.netns.to_string());
            (number, None)
        })
    }
}
