//! Watching interfaces of a network namespace: removal, going down, coming up, a new name.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Netlink;
use super::link::{IFLA_NEW_NETNSID, LinkRecord};
use super::socket::{Reply, Socket};
use super::socket::{find, read_u32};
use crate::error::{Error, Result};
use crate::netns::Namespace;

const IFLA_NEW_IFINDEX: u16 = 49;

const CANNOT_WATCH: &str = "cannot watch interfaces";

/// A change of a watched interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    Removed,
    /// Moved to another namespace.
    MovedAway,
    Down,
    Up,
    Renamed(String),
}

/// A socket that receives the changes of all interfaces of a namespace, of the watched ones among them, and of filters at
/// tc.
#[derive(Debug)]
pub struct LinkMonitor {
    events: Socket,
    namespace: Option<Namespace>,
    /// Last known state of the interfaces, by number.
    links: HashMap<u32, LinkRecord>,
    /// Set by a change of another interface, or by a lost message.
    others_changed: bool,
    /// Set by a change of a queueing discipline or a filter of any interface, or by a lost message.
    filters_changed: bool,
    /// Set after lost messages, until the current state has been read again.
    is_behind: bool,
}

impl LinkMonitor {
    /// Starts watching; an interface that is already gone is an error, so no removal is missed between looking it up
    /// and watching it.
    pub fn new(namespace: Option<&Namespace>, index: u32) -> Result<Self> {
        let mut monitor = Self {
            events: Socket::route_events(namespace, (libc::RTMGRP_LINK | libc::RTMGRP_TC) as u32)?,
            namespace: namespace.cloned(),
            links: HashMap::new(),
            others_changed: false,
            filters_changed: false,
            is_behind: false,
        };
        monitor.watch(index)?;
        Ok(monitor)
    }

    /// Watches another interface as well.
    pub fn watch(&mut self, index: u32) -> Result<()> {
        let link = Netlink::open(self.namespace.as_ref())?.find_link_by_index(index)?.ok_or_else(|| {
            Error::failed(format!("cannot watch interface number {index}"), "the interface was removed")
        })?;
        self.links.insert(index, link);
        Ok(())
    }

    pub fn forget(&mut self, index: u32) {
        self.links.remove(&index);
    }

    /// Returns the last known state of an interface.
    pub fn link(&self, index: u32) -> Option<&LinkRecord> {
        self.links.get(&index)
    }

    /// Waits until a change may have arrived, or the time is up.
    pub fn wait(&self, at_most: Duration) -> Result<()> {
        self.events.wait(at_most).map_err(|r| r.about(CANNOT_WATCH))
    }

    /// Returns true if interfaces that are not watched changed since the last call.
    pub fn others_changed(&mut self) -> bool {
        std::mem::take(&mut self.others_changed)
    }

    /// Returns true if filters or queueing disciplines changed since the last call.
    pub fn filters_changed(&mut self) -> bool {
        std::mem::take(&mut self.filters_changed)
    }

    /// Returns the changes since the last call, without waiting.
    pub fn events(&mut self) -> Result<Vec<(u32, LinkEvent)>> {
        let mut seen = Vec::new();
        loop {
            match self.events.events() {
                Ok(replies) if replies.is_empty() => {
                    if self.is_behind {
                        self.resynchronise(&mut seen)?;
                    }
                    return Ok(seen);
                }
                Ok(replies) => replies.iter().for_each(|r| self.note_change(r, &mut seen)),
                // Messages were dropped: read the current state instead.
                Err(refusal) if refusal.errno == libc::ENOBUFS => self.resynchronise(&mut seen)?,
                Err(refusal) => {
                    return Err(refusal.about(CANNOT_WATCH));
                }
            }
        }
    }

    fn note_change(&mut self, reply: &Reply, seen: &mut Vec<(u32, LinkEvent)>) {
        match reply.kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => {}
            // The kernel sends this to all even if somebody has only read a queueing discipline.
            libc::RTM_NEWQDISC => return,
            _ => {
                self.filters_changed = true;
                return;
            }
        }
        // Bridges report their ports' removal under another family; those ports still exist.
        if reply.payload.first() != Some(&(libc::AF_UNSPEC as u8)) {
            return;
        }
        let watched = read_u32(&reply.payload, 4).filter(|index| self.links.contains_key(index));
        let Some(index) = watched else {
            self.others_changed = true;
            return;
        };
        match reply.kind {
            libc::RTM_DELLINK => {
                let attributes = reply.payload.get(16..).unwrap_or(&[]);
                let moved = find(attributes, IFLA_NEW_NETNSID).or(find(attributes, IFLA_NEW_IFINDEX));
                let event = match moved {
                    Some(_) => LinkEvent::MovedAway,
                    None => LinkEvent::Removed,
                };
                seen.push((index, event));
            }
            libc::RTM_NEWLINK => {
                if let Some(link) = LinkRecord::parse(&reply.payload) {
                    self.compare(link, seen);
                }
            }
            _ => {}
        }
    }

    fn compare(&mut self, now: LinkRecord, seen: &mut Vec<(u32, LinkEvent)>) {
        let Some(last) = self.links.get_mut(&now.index) else {
            return;
        };
        if now.is_up() != last.is_up() {
            let event = if now.is_up() { LinkEvent::Up } else { LinkEvent::Down };
            seen.push((now.index, event));
        }
        if !now.name.is_empty() && now.name != last.name {
            seen.push((now.index, LinkEvent::Renamed(now.name.clone())));
        }
        *last = now;
    }

    fn resynchronise(&mut self, seen: &mut Vec<(u32, LinkEvent)>) -> Result<()> {
        self.others_changed = true;
        self.filters_changed = true;
        let now = Netlink::open(self.namespace.as_ref())?.links();
        // Interfaces change too fast for a consistent list: the next call reads it again.
        self.is_behind = matches!(&now, Err(error) if error.errno() == Some(libc::EINTR));
        if self.is_behind {
            return Ok(());
        }
        let now = now?;
        let gone = |index: &&u32| now.iter().all(|link| link.index != **index);
        seen.extend(self.links.keys().filter(gone).map(|index| (*index, LinkEvent::Removed)));
        now.into_iter().for_each(|link| self.compare(link, seen));
        Ok(())
    }
}

impl Netlink {
    /// Waits until the interface sends. If it went up before its peer did, it drops packets until the kernel has
    /// noticed the peer, at an unknown time.
    pub fn wait_until_operational(&self, index: u32, patience: Duration) -> Result<()> {
        let mut monitor = LinkMonitor::new(self.namespace.as_ref(), index)?;
        let deadline = Instant::now() + patience;
        while monitor.link(index).is_some_and(|link| !link.operational) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::failed(
                    format!(
                        "interface {}{} is not ready",
                        monitor.link(index).map_or("", |link| &link.name),
                        self.scope
                    ),
                    format!("it does not send {} s after it went up", patience.as_secs()),
                )
                .fix("is the other end up?"));
            }
            monitor.wait(left)?;
            monitor.events()?;
        }
        Ok(())
    }
}
