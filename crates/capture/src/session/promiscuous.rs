//! The interfaces that are promiscuous for a capture, by one socket for each network namespace: closing one takes the kernel
//! some 10 ms, in which it waits.

use std::os::fd::OwnedFd;
use std::thread;

use trawl_io::packet_socket;
use trawl_sys::Result;
use trawl_sys::netns::Namespace;

use crate::capture_site::CaptureSite;

#[derive(Debug, Default)]
pub(super) struct Promiscuous {
    sockets: Vec<(Option<Namespace>, OwnedFd)>,
}

impl Promiscuous {
    pub fn add(&mut self, site: &CaptureSite) -> Result<()> {
        let interface = site.interface.index;
        if let Some(socket) = self.socket(site)
            && packet_socket::promiscuous_too(socket, interface, true).is_ok()
        {
            return Ok(());
        }
        let socket = packet_socket::promiscuous(site.namespace.as_ref(), interface)?;
        self.sockets.push((site.namespace.clone(), socket));
        Ok(())
    }

    /// An interface that is gone is not promiscuous any more in any case.
    pub fn remove(&mut self, site: &CaptureSite) {
        if let Some(socket) = self.socket(site) {
            let _ = packet_socket::promiscuous_too(socket, site.interface.index, false);
        }
    }

    /// A namespace ends only when nobody holds a socket in it.
    pub fn leave(&mut self, namespace: Option<&Namespace>) {
        self.sockets.retain(|(one, _)| one.as_ref() != namespace);
    }

    fn socket(&self, site: &CaptureSite) -> Option<&OwnedFd> {
        let of_site = |one: &&(Option<Namespace>, OwnedFd)| one.0 == site.namespace;
        self.sockets.iter().find(of_site).map(|(_, socket)| socket)
    }
}

/// So many sockets are closed at the same time: what closing takes is waiting.
const CLOSED_AT_ONCE: usize = 32;

impl Drop for Promiscuous {
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.sockets);
        if rest.len() <= 1 {
            return;
        }
        let share = rest.len().div_ceil(CLOSED_AT_ONCE);
        thread::scope(|scope| {
            while !rest.is_empty() {
                let part = rest.split_off(rest.len().saturating_sub(share));
                scope.spawn(move || std::mem::drop(part));
            }
        });
    }
}
