//! What counters tell that the tap at drops does not see: counters of protocols, CPUs and devices before and after, and the
//! packets that XDP lost.

use std::collections::BTreeMap;

use trawl_bpf::xdp_events::{Event, XdpEvents};
use trawl_sys::Result;
use trawl_sys::counters::{self, Counters};
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{Look, Namespace};
use trawl_tap::capture_site::CaptureSite;

use crate::json::{self, Remark};

/// Each costs a look at the counters of all its devices.
const MOST_NAMESPACES: usize = 64;

/// Counters from before, to be compared with those after.
#[derive(Debug)]
pub struct Counted {
    namespaces: Vec<Namespace>,
    /// They are all there are: what happens in others is told too.
    everywhere: bool,
    /// Where only some interfaces are looked at: those of their namespaces.
    interfaces: Vec<(Namespace, String, u32)>,
    before: Counters,
    events: Option<XdpEvents>,
}

/// What went up since.
#[derive(Debug, Default)]
pub struct Differences {
    pub counters: Counters,
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
    /// Looks at these namespaces, at all that can be found if none is named, or at some interfaces alone.
    pub fn new(sites: &[CaptureSite], named: Vec<Namespace>) -> Result<Self> {
        let everywhere = sites.is_empty() && named.is_empty();
        let mut namespaces = Vec::new();
        let mut interfaces = Vec::new();
        if sites.is_empty() && !everywhere {
            namespaces = named;
        } else if everywhere {
            Look::default().find(|one| {
                namespaces.push(one.clone());
                false
            });
            if namespaces.len() > MOST_NAMESPACES {
                let (compared, all) = (MOST_NAMESPACES, namespaces.len());
                let text = format!(
                    "counters of {compared} of {all} network namespaces are compared: choose one by --netns"
                );
                json::say(&Remark::NamespacesLeftOut { compared, all }, &text);
                namespaces.truncate(MOST_NAMESPACES);
            }
        }
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
                let text = error.to_string();
                json::say(
                    &Remark::NotWatched {
                        error: text.clone(),
                    },
                    &text,
                );
                None
            }
        };
        let mut counted = Self {
            namespaces,
            everywhere,
            interfaces,
            before: Counters::new(),
            events,
        };
        counted.before = counted.look();
        Ok(counted)
    }

    /// What cannot be read, as in a namespace that is gone by now, is left out.
    fn look(&self) -> Counters {
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

    pub fn differences(&self) -> Result<Differences> {
        let events = self.events.as_ref().map(XdpEvents::counts).transpose()?;
        Ok(Differences {
            counters: counters::differences(&self.before, &self.look()),
            events: self.places(events.unwrap_or_default()),
        })
    }

    fn places(&self, events: Vec<(Event, u64)>) -> Vec<CountedLoss> {
        let mut names = BTreeMap::new();
        let mut places = Vec::new();
        for (event, packets) in events {
            let Some((netns, interface)) = self.find(&event, &mut names) else {
                continue;
            };
            places.push(CountedLoss {
                event,
                packets,
                netns,
                interface,
            });
        }
        places
    }

    /// The names of namespace and interface; `None` if nobody asked for what happens there.
    fn find(
        &self,
        event: &Event,
        names: &mut BTreeMap<(u32, u32), Option<String>>,
    ) -> Option<(Option<String>, Option<String>)> {
        let is_there = |namespace: &Namespace| namespace.identity().1 == u64::from(event.netns);
        if let Some((namespace, name, _)) = self
            .interfaces
            .iter()
            .find(|(namespace, _, index)| is_there(namespace) && *index == event.ifindex)
        {
            return Some((Some(counters::label(namespace)), Some(name.clone())));
        }
        if let Some(namespace) = self.namespaces.iter().find(|one| is_there(one)) {
            let interface = names
                .entry((event.netns, event.ifindex))
                .or_insert_with(|| {
                    let mut netlink = Netlink::open(Some(namespace)).ok()?;
                    let link = netlink.find_link_by_index(event.ifindex).ok()??;
                    Some(link.name)
                });
            return Some((Some(counters::label(namespace)), interface.clone()));
        }
        // A namespace made since, or none at all: cpumaps belong to no one.
        self.everywhere.then(|| {
            let number = (event.netns != 0).then(|| event.netns.to_string());
            (number, None)
        })
    }
}
