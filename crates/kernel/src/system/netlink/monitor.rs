//! Watching one interface: told when it goes away, goes down, comes up or changes its name.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Netlink;
use super::link::{IFLA_NEW_NETNSID, Link};
use super::socket::{Reply, Socket};
use super::wire::{find, read_u32};
use crate::error::{Error, Result};
use crate::netns::Namespace;

const IFLA_NEW_IFINDEX: u16 = 49;

/// What happened to the watched interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    Removed,
    /// It lives on in another namespace.
    MovedAway,
    Down,
    Up,
    Renamed(String),
}

/// Readable (poll its descriptor) when something may have happened to the interface.
#[derive(Debug)]
pub struct LinkMonitor {
    events: Socket,
    namespace: Option<Namespace>,
    last: Link,
}

impl LinkMonitor {
    /// Starts watching; an interface that is already gone is an error, so no removal is missed
    /// between looking it up and watching it.
    pub fn new(namespace: Option<&Namespace>, index: u32) -> Result<Self> {
        let events = Socket::route_events(namespace, libc::RTMGRP_LINK as u32)?;
        let last = Netlink::open(namespace)?
            .find_link_by_index(index)?
            .ok_or_else(|| {
                Error::failed(
                    format!("cannot watch interface number {index}"),
                    "it is gone",
                )
            })?;
        Ok(Self {
            events,
            namespace: namespace.cloned(),
            last,
        })
    }

    /// The interface as it was last heard of.
    pub fn link(&self) -> &Link {
        &self.last
    }

    /// Waits until something may have happened, or the time is up.
    pub fn wait(&self, at_most: Duration) -> Result<()> {
        self.events
            .wait(at_most)
            .map_err(|r| r.about(format!("cannot watch interface {}", self.last.name)))
    }

    /// What happened since the last call, without waiting.
    pub fn events(&mut self) -> Result<Vec<LinkEvent>> {
        let mut seen = Vec::new();
        loop {
            match self.events.events() {
                Ok(replies) if replies.is_empty() => return Ok(seen),
                Ok(replies) => replies.iter().for_each(|r| self.take(r, &mut seen)),
                // Messages were dropped: look at how things are now instead.
                Err(refusal) if refusal.errno == libc::ENOBUFS => self.resynchronise(&mut seen)?,
                Err(refusal) => {
                    return Err(refusal.about(format!("cannot watch interface {}", self.last.name)));
                }
            }
        }
    }

    fn take(&mut self, reply: &Reply, seen: &mut Vec<LinkEvent>) {
        // Bridges speak of their ports' ends under another family; those are not removals.
        if reply.payload.first() != Some(&(libc::AF_UNSPEC as u8))
            || read_u32(&reply.payload, 4) != Some(self.last.index)
        {
            return;
        }
        match reply.kind {
            libc::RTM_DELLINK => {
                let attributes = reply.payload.get(16..).unwrap_or(&[]);
                let moved =
                    find(attributes, IFLA_NEW_NETNSID).or(find(attributes, IFLA_NEW_IFINDEX));
                seen.push(if moved.is_some() {
                    LinkEvent::MovedAway
                } else {
                    LinkEvent::Removed
                });
            }
            libc::RTM_NEWLINK => {
                if let Some(link) = Link::parse(&reply.payload) {
                    self.compare(link, seen);
                }
            }
            _ => {}
        }
    }

    fn compare(&mut self, now: Link, seen: &mut Vec<LinkEvent>) {
        if now.is_up() != self.last.is_up() {
            seen.push(if now.is_up() {
                LinkEvent::Up
            } else {
                LinkEvent::Down
            });
        }
        if !now.name.is_empty() && now.name != self.last.name {
            seen.push(LinkEvent::Renamed(now.name.clone()));
        }
        self.last = now;
    }

    fn resynchronise(&mut self, seen: &mut Vec<LinkEvent>) -> Result<()> {
        match Netlink::open(self.namespace.as_ref())?.find_link_by_index(self.last.index)? {
            Some(now) => self.compare(now, seen),
            None => seen.push(LinkEvent::Removed),
        }
        Ok(())
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
