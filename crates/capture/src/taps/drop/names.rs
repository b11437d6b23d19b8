//! Names for the kernel's numbers: namespaces, devices, and the processes of sockets.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{self, Namespace, NamespaceSearch};
use trawl_sys::process::socket_owners::{self, Process};

/// Minimum time between searches for an unknown name.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub struct Names {
    namespaces: HashMap<u32, String>,
    namespaces_read: Option<Instant>,
    devices: HashMap<(u32, u32), (Option<String>, Option<Instant>)>,
    processes: HashMap<u64, Process>,
    processes_read: Option<Instant>,
}

impl Names {
    /// Returns the name of a namespace, or else its number.
    pub fn namespace(&mut self, number: u32) -> &str {
        if !self.namespaces.contains_key(&number) && is_due(&mut self.namespaces_read) {
            for name in netns::list() {
                // Words of a comment have no spaces; the number stands for other names.
                let is_word = !name.contains(|one: char| one.is_whitespace() || one.is_control());
                if let (true, Ok(namespace)) = (is_word, Namespace::by_name(&name)) {
                    self.namespaces.insert(namespace.identity().1 as u32, name);
                }
            }
        }
        self.namespaces.entry(number).or_insert_with(|| number.to_string())
    }

    /// Returns the name of a device for which the kernel's record has only the number.
    pub fn device(&mut self, namespace: u32, index: u32) -> Option<&str> {
        let (name, read) = self.devices.entry((namespace, index)).or_default();
        if name.is_none() && is_due(read) {
            *name = find_device(namespace, index);
        }
        name.as_deref()
    }

    /// Returns the process that has a socket open.
    pub fn process(&mut self, socket: u64) -> Option<&Process> {
        if !self.processes.contains_key(&socket) && is_due(&mut self.processes_read) {
            self.processes.extend(socket_owners::read_all());
        }
        self.processes.get(&socket)
    }
}

fn is_due(read: &mut Option<Instant>) -> bool {
    let is_due = read.is_none_or(|read| read.elapsed() >= PATIENCE);
    if is_due {
        *read = Some(Instant::now());
    }
    is_due
}

fn find_device(namespace: u32, index: u32) -> Option<String> {
    let mut search = NamespaceSearch::default();
    let namespace = search.numbered(u64::from(namespace))?;
    let link = Netlink::open(Some(namespace)).ok()?.find_link_by_index(index).ok()??;
    Some(link.name)
}
