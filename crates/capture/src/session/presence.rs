//! Sites whose interfaces exist, and the events of these interfaces: one socket for each network namespace.

use std::collections::{BTreeSet, HashMap};

use trawl_sys::Result;
use trawl_sys::netlink::{LinkEvent, LinkMonitor};
use trawl_sys::netns::Namespace;

use crate::capture_site::CaptureSite;

#[derive(Debug, Default)]
pub(super) struct Presence {
    sites: BTreeSet<usize>,
    namespaces: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    namespace: Option<Namespace>,
    monitor: LinkMonitor,
    /// Sites by the interface's number.
    sites: HashMap<u32, Vec<usize>>,
}

impl Presence {
    /// Watches a site's interface. Interfaces known only to a library are assumed to exist.
    pub fn add(&mut self, index: usize, site: &CaptureSite) -> Result<()> {
        let number = site.interface.index;
        if number != 0 {
            let known = self.namespaces.iter_mut().find(|one| one.namespace == site.namespace);
            let watched = match known {
                Some(watched) => {
                    watched.monitor.watch(number)?;
                    watched
                }
                None => {
                    self.namespaces.push(Watched {
                        namespace: site.namespace.clone(),
                        monitor: LinkMonitor::new(site.namespace.as_ref(), number)?,
                        sites: HashMap::new(),
                    });
                    let last = self.namespaces.len() - 1;
                    &mut self.namespaces[last]
                }
            };
            watched.sites.entry(number).or_default().push(index);
        }
        self.sites.insert(index);
        Ok(())
    }

    /// Forgets a site; returns false if already forgotten.
    pub fn remove(&mut self, index: usize, site: &CaptureSite) -> bool {
        let number = site.interface.index;
        for watched in &mut self.namespaces {
            if watched.namespace != site.namespace {
                continue;
            }
            if let Some(sites) = watched.sites.get_mut(&number) {
                sites.retain(|one| *one != index);
                if sites.is_empty() {
                    watched.sites.remove(&number);
                    watched.monitor.forget(number);
                }
            }
        }
        self.namespaces.retain(|one| !one.sites.is_empty());
        self.sites.remove(&index)
    }

    /// Returns the namespaces in which no interface has appeared or changed since the last call.
    pub fn unchanged(&mut self) -> Vec<Option<Namespace>> {
        let quiet = self.namespaces.iter_mut().filter_map(|one| {
            let namespace = one.namespace.clone();
            (!one.monitor.others_changed()).then_some(namespace)
        });
        quiet.collect()
    }

    /// Returns true if filters at tc have changed since the last call.
    pub fn filters_changed(&mut self) -> bool {
        self.namespaces.iter_mut().any(|one| one.monitor.filters_changed())
    }

    /// Returns the sites of namespaces that were deleted.
    pub fn without_namespace(&self) -> Vec<usize> {
        let is_lost = |one: &&Watched| {
            let namespace = one.namespace.as_ref();
            namespace.is_some_and(Namespace::has_lost_its_name)
        };
        let lost = self.namespaces.iter().filter(is_lost);
        lost.flat_map(|one| one.sites.values().flatten().copied()).collect()
    }

    pub fn sites(&self) -> impl Iterator<Item = usize> {
        self.sites.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Returns the events since the last call, by site.
    pub fn events(&mut self) -> Result<Vec<(usize, LinkEvent)>> {
        let mut seen = Vec::new();
        for watched in &mut self.namespaces {
            for (number, event) in watched.monitor.events()? {
                let sites = watched.sites.get(&number).into_iter().flatten();
                seen.extend(sites.map(|site| (*site, event.clone())));
            }
        }
        Ok(seen)
    }
}
