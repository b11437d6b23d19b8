//! Watching interfaces of a network namespace: told when one goes away, goes down, comes up or changes its name.

use std::collections::HashMap;
use std::time::Duration;

use super::Netlink;
use super::link::{IFLA_NEW_NETNSID, Link};
use super::socket::{Reply, Socket};
use super::socket::{find, read_u32};
use crate::error::{Error, Result};
use crate::netns::Namespace;

const IFLA_NEW_IFINDEX: u16 = 49;

const CANNOT_WATCH: &str = "cannot watch interfaces";

/// What happened to a watched interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    Removed,
    /// It lives on in another namespace.
    MovedAway,
    Down,
    Up,
    Renamed(String),
}

/// One socket for all that are watched in a namespace: each hears of all interfaces there.
#[derive(Debug)]
pub struct LinkMonitor {
    events: Socket,
    namespace: Option<Namespace>,
    /// As they were last heard of, by number.
    links: HashMap<u32, Link>,
    /// Something was heard of others, or a message was lost.
    heard_of_others: bool,
    /// Messages were lost, and how things are now has not been looked at since.
    is_behind: bool,
}

impl LinkMonitor {
    /// Starts watching; an interface that is already gone is an error, so no removal is missed
    /// between looking it up and watching it.
    pub fn new(namespace: Option<&Namespace>, index: u32) -> Result<Self> {
        let mut monitor = Self {
            events: Socket::route_events(namespace, libc::RTMGRP_LINK as u32)?,
            namespace: namespace.cloned(),
            links: HashMap::new(),
            heard_of_others: false,
            is_behind: false,
        };
        monitor.watch(index)?;
        Ok(monitor)
    }

    /// Watches another one as well.
    pub fn watch(&mut self, index: u32) -> Result<()> {
        let link = Netlink::open(self.namespace.as_ref())?
            .find_link_by_index(index)?
            .ok_or_else(|| {
                Error::failed(
                    format!("cannot watch interface number {index}"),
                    "it is gone",
                )
            })?;
        self.links.insert(index, link);
        Ok(())
    }

    pub fn forget(&mut self, index: u32) {
        self.links.remove(&index);
    }

    /// An interface as it was last heard of.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// Waits until something may have happened, or the time is up.
    pub fn wait(&self, at_most: Duration) -> Result<()> {
        self.events.wait(at_most).map_err(|r| r.about(CANNOT_WATCH))
    }

    /// Whether there was news of interfaces that are not watched, since this was asked last.
    pub fn heard_of_others(&mut self) -> bool {
        std::mem::take(&mut self.heard_of_others)
    }

    /// What happened since the last call, without waiting.
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
                Ok(replies) => replies.iter().for_each(|r| self.take(r, &mut seen)),
                // Messages were dropped: look at how things are now instead.
                Err(refusal) if refusal.errno == libc::ENOBUFS => self.resynchronise(&mut seen)?,
                Err(refusal) => {
                    return Err(refusal.about(CANNOT_WATCH));
                }
            }
        }
    }

    fn take(&mut self, reply: &Reply, seen: &mut Vec<(u32, LinkEvent)>) {
        // Bridges speak of their ports' ends under another family; those are not removals.
        if reply.payload.first() != Some(&(libc::AF_UNSPEC as u8)) {
            return;
        }
        let watched = read_u32(&reply.payload, 4).filter(|index| self.links.contains_key(index));
        let Some(index) = watched else {
            self.heard_of_others = true;
            return;
        };
        match reply.kind {
            libc::RTM_DELLINK => {
                let attributes = reply.payload.get(16..).unwrap_or(&[]);
                let moved =
                    find(attributes, IFLA_NEW_NETNSID).or(find(attributes, IFLA_NEW_IFINDEX));
                let event = match moved {
                    Some(_) => LinkEvent::MovedAway,
                    None => LinkEvent::Removed,
                };
                seen.push((index, event));
            }
            libc::RTM_NEWLINK => {
                if let Some(link) = Link::parse(&reply.payload) {
                    self.compare(link, seen);
                }
            }
            _ => {}
        }
    }

    fn compare(&mut self, now: Link, seen: &mut Vec<(u32, LinkEvent)>) {
        let Some(last) = self.links.get_mut(&now.index) else {
            return;
        };
        if now.is_up() != last.is_up() {
            let event = match now.is_up() {
                true => LinkEvent::Up,
                false => LinkEvent::Down,
            };
            seen.push((now.index, event));
        }
        if !now.name.is_empty() && now.name != last.name {
            seen.push((now.index, LinkEvent::Renamed(now.name.clone())));
        }
        *last = now;
    }

    fn resynchronise(&mut self, seen: &mut Vec<(u32, LinkEvent)>) -> Result<()> {
        self.heard_of_others = true;
        let now = Netlink::open(self.namespace.as_ref())?.links();
        // So many come and go at this moment that no list of them is whole: the next look will do.
        self.is_behind = matches!(&now, Err(error) if error.errno() == Some(libc::EINTR));
        if self.is_behind {
            return Ok(());
        }
        let now = now?;
        let gone = |index: &&u32| now.iter().all(|link| link.index != **index);
        seen.extend(
            self.links
                .keys()
                .filter(gone)
                .map(|index| (*index, LinkEvent::Removed)),
        );
        now.into_iter().for_each(|link| self.compare(link, seen));
        Ok(())
    }
}
