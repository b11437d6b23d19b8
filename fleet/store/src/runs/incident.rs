//! Incidents: the packets that several hosts stored of one window of time, with an account of each host.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use trawl_spool::key;
use trawl_spool::manifest::{self, Sealed, Unreadable};
use trawl_sys::{Error, Result};

use super::coverage::Scope;
use crate::object::remote::Store;

#[derive(Debug)]
pub struct Incident {
    records: Vec<manifest::Incident>,
    /// Keys of the records that cannot be read, each with the reason.
    pub unreadable: Vec<(String, Unreadable)>,
}

/// A host's part of an incident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    pub host: String,
    /// False if the host was asked, and nothing of it is in the store.
    pub stored: bool,
    pub chunks: u64,
    pub bytes: u64,
    /// Packets in the chunks, which may begin before the window and end after it.
    pub recorded: u64,
    /// Packets lost before they were recorded, while these chunks were made.
    pub lost: u64,
    /// Time since which the host has all packets of a capture, which began later or removed older ones; absent if that
    /// is before the window.
    pub since_ns: Option<u64>,
    /// Time until which the host has all packets of a capture, which ended then, or did not seal its chunk; absent if
    /// that is not before the end of the window.
    pub until_ns: Option<u64>,
    pub frozen_ns: Option<u64>,
    /// Largest error of the host's clock; absent: unknown.
    pub clock_error_bound_ns: Option<u64>,
}

impl Part {
    fn add(&mut self, record: &manifest::Incident) {
        let error = record.clock.error_bound_ns;
        self.clock_error_bound_ns =
            if self.stored { self.clock_error_bound_ns.zip(error).map(|(a, b)| a.max(b)) } else { error };
        self.stored = true;
        self.chunks += record.chunks;
        self.bytes += record.bytes;
        self.recorded += record.recorded;
        self.lost += record.lost.values().sum::<u64>();
        let late = Some(record.since_ns).filter(|since| *since > record.from_ns);
        self.since_ns = self.since_ns.max(late);
        self.frozen_ns = self.frozen_ns.max(Some(record.frozen_ns));
    }

    pub fn is_whole(&self) -> bool {
        self.stored && self.lost == 0 && self.since_ns.is_none() && self.until_ns.is_none()
    }
}

/// Returns the names of a store's incidents, and the hosts with packets of each.
pub fn incidents(store: &Store) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for object in store.list(Some(key::all_incidents()))? {
        if let Some((id, host)) = key::incident_of(&object.key) {
            found.entry(id).or_default().insert(host);
        }
    }
    Ok(found)
}

impl Incident {
    pub fn read(store: &Store, id: &str) -> Result<Self> {
        let listed = store.list(Some(&key::incidents(id)))?;
        let keys: Vec<String> = listed.into_iter().map(|object| object.key).collect();
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for (key, bytes) in keys.iter().zip(store.read_all(&keys)?) {
            match bytes.map(|bytes| manifest::Incident::from_bytes(&bytes)) {
                Some(Ok(record)) => records.push(record),
                Some(Err(why)) => unreadable.push((key.clone(), why)),
                None => {}
            }
        }
        if records.is_empty() {
            let what = format!("cannot find the incident {id}");
            return Err(Error::failed(what, format!("{} has none of its packets", store.url())));
        }
        Ok(Self { records, unreadable })
    }

    pub fn why(&self) -> &str {
        self.records.first().map_or("", |record| &record.why)
    }

    /// Returns the window of time.
    pub fn window(&self) -> (u64, u64) {
        let first = self.records.first();
        first.map_or((0, 0), |record| (record.from_ns, record.to_ns))
    }

    /// Returns the scope of queries about the incident.
    pub fn scope(&self) -> Scope {
        let (from, to) = self.window();
        Scope { hosts: self.distinct(|record| &record.epoch.host), from: Some(from), to: Some(to.saturating_add(1)) }
    }

    /// Returns the names of its captures.
    pub fn captures(&self) -> Vec<String> {
        self.distinct(|record| &record.epoch.capture)
    }

    fn distinct(&self, name: impl Fn(&manifest::Incident) -> &String) -> Vec<String> {
        let names: BTreeSet<&String> = self.records.iter().map(name).collect();
        names.into_iter().cloned().collect()
    }

    /// Returns the account: a part for each host that was asked.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: BTreeMap<&str, Part> = BTreeMap::new();
        for record in &self.records {
            for host in &record.hosts {
                parts.entry(host).or_default();
            }
            parts.entry(&record.epoch.host).or_default().add(record);
        }
        let named = parts.into_iter().map(|(host, part)| {
            let until_ns = self.until(host);
            Part { host: host.to_owned(), until_ns, ..part }
        });
        named.collect()
    }

    /// Returns the time until which a host has all packets of its captures; `None` if that is the end of the window. A
    /// later run of a capture continues an earlier one.
    fn until(&self, host: &str) -> Option<u64> {
        let mut captures: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for record in self.records.iter().filter(|record| record.epoch.host == host) {
            let until = record.until_ns;
            let latest = captures.entry(&record.epoch.capture).or_insert(until);
            *latest = latest.zip(until).map(|(one, other)| one.max(other));
        }
        captures.into_values().flatten().min()
    }
}
