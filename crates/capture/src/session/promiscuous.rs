//! The interfaces set promiscuous for a capture, by one socket for each network namespace: the kernel takes 10 ms to
//! close a socket.

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

    /// Ends promiscuous mode of an interface. An error means that the interface is gone.
    pub fn remove(&mut self, site: &CaptureSite) {
        if let Some(socket) = self.socket(site) {
            let _ = packet_socket::promiscuous_too(socket, site.interface.index, false);
        }
    }

    /// Closes the socket of a namespace, which would keep the namespace alive.
    pub fn leave(&mut self, namespace: Option<&Namespace>) {
        self.sockets.retain(|(one, _)| one.as_ref() != namespace);
    }

    fn socket(&self, site: &CaptureSite) -> Option<&OwnedFd> {
        let of_site = |one: &&(Option<Namespace>, OwnedFd)| one.0 == site.namespace;
        self.sockets.iter().find(of_site).map(|(_, socket)| socket)
    }
}

/// Number of sockets closed in parallel: closing mostly waits.
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
