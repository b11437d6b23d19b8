//! Events of the kernel's XDP tracepoints on all interfaces: loads and attaches bpf/xdp/redirect_events.bpf.c, and reads
//! its counts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, ObjectBuilder};
use trawl_sys::error::{Error, Result};

use crate::layout::{Shared as _, redirect_events as layout, text_in};
use crate::table::Table;
use crate::{link, object};

pub use layout::XdpEventCount as Count;
use layout::XdpEventKey;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/redirect_events.bpf.o"));

/// Programs and their tracepoints.
const PROGRAMS: [(&str, &str); 6] = [
    ("trawl_redirect_err", "xdp_redirect_err"),
    ("trawl_map_err", "xdp_redirect_map_err"),
    ("trawl_exception", "xdp_exception"),
    ("trawl_devmap", "xdp_devmap_xmit"),
    ("trawl_enqueue", "xdp_cpumap_enqueue"),
    ("trawl_kthread", "xdp_cpumap_kthread"),
];

/// Kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RedirectEvent {
    /// A redirect failed with this error.
    RedirectError(u32),
    /// A packet was aborted, had no valid verdict, or could not be sent back: with this verdict.
    Exception(u32),
    /// Packets were handed to a device, which dropped some of them with this error.
    Devmap(u32),
    /// Packets were handed to this CPU.
    CpumapEnqueue(u32),
    /// This CPU processed packets that had been handed to it.
    CpumapKthread(u32),
}

/// Location of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventSource {
    pub kind: RedirectEvent,
    /// Identifier of the map, if one was used.
    pub map: u32,
    /// Inode number of the namespace of the device that packets came from.
    pub netns: u32,
    pub from: String,
    pub to: String,
}

/// The programs, attached for as long as this lives.
#[derive(Debug)]
pub struct RedirectEvents {
    table: Table,
    _links: Vec<OwnedFd>,
}

impl RedirectEvents {
    /// Attaches the programs, and starts counting.
    pub fn watch() -> Result<Self> {
        let fail = |why: &dyn std::fmt::Display| Error::failed("cannot watch the XDP tracepoints", why.to_string());
        object::quiet_libbpf();
        let open = ObjectBuilder::default().open_memory(OBJECT).map_err(|e| fail(&e))?;
        let object = open.load().map_err(|e| fail(&e))?;
        let map = object.maps().find(|map| map.name() == "events");
        let map = map.ok_or_else(|| fail(&"a map is missing"))?;
        let fd = map.as_fd().try_clone_to_owned().map_err(|e| fail(&e))?;
        let table = Table::new(fd).map_err(|e| fail(&e))?;
        let mut links = Vec::new();
        for (name, tracepoint) in PROGRAMS {
            let program = object.progs().find(|program| program.name() == name);
            let program = program.ok_or_else(|| fail(&"a program is missing"))?;
            match link::attach_raw_tracepoint(program.as_fd(), tracepoint) {
                Ok(link) => links.push(link),
                // A kernel without this tracepoint has the others.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fail(&error)),
            }
        }
        Ok(Self { table, _links: links })
    }

    /// Returns all counts so far, for each source by CPU.
    pub fn read(&self) -> io::Result<Vec<(EventSource, Vec<Count>)>> {
        let mut found = Vec::new();
        for bytes in self.table.keys()? {
            let key = XdpEventKey::from_bytes(&bytes);
            let (Some(key), Some(values)) = (key, self.table.lookup(&bytes)?) else {
                continue;
            };
            let counts = values.chunks_exact(size_of::<Count>()).filter_map(Count::from_bytes).collect();
            found.extend(source(&key).map(|source| (source, counts)));
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }
}

fn source(key: &XdpEventKey) -> Option<EventSource> {
    let kind = match key.kind as usize {
        layout::XDP_EVENT_REDIRECT_ERROR => RedirectEvent::RedirectError(key.detail),
        layout::XDP_EVENT_EXCEPTION => RedirectEvent::Exception(key.detail),
        layout::XDP_EVENT_DEVMAP => RedirectEvent::Devmap(key.detail),
        layout::XDP_EVENT_CPUMAP_ENQUEUE => RedirectEvent::CpumapEnqueue(key.detail),
        layout::XDP_EVENT_CPUMAP_KTHREAD => RedirectEvent::CpumapKthread(key.detail),
        _ => return None,
    };
    Some(EventSource { kind, map: key.map, netns: key.netns, from: text_in(&key.from), to: text_in(&key.to) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn tracepoints_exist() {
        if !root_or_skip() {
            return;
        }
        let events = RedirectEvents::watch().expect("raw tracepoints");
        // xdp_redirect_map_err is not in every kernel.
        assert!(events._links.len() + 1 >= PROGRAMS.len());
        events.read().expect("a table");
    }

    #[test]
    fn names_end_with_a_zero() {
        let words = [*b"eth0", *b"\0old", [0; 4], [0; 4]].map(u32::from_ne_bytes);
        assert_eq!(text_in(&words), "eth0");
    }
}
