//! Sockets shared by many interfaces of one network namespace: they accept packets of the interfaces in a table, and
//! their threads distinguish the interfaces.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use trawl_bpf::table::Table;
use trawl_io::packet_socket::{self, PacketSocket, Rejected};
use trawl_ring::producer::Producer;
use trawl_sys::Result;

use super::worker::{Members, PacketPoints, Worker};
use crate::capture_site::CaptureSite;
use crate::sampling::Sampling;
use crate::taps::threads::Threads;

/// Common properties of interfaces that one filter serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupKey {
    pub namespace: u32,
    /// True for wanted received, and wanted sent packets.
    pub directions: (bool, bool),
    pub netmask: Option<Ipv4Addr>,
}

/// Sockets with their threads, for the interfaces in a table.
#[derive(Debug)]
pub(crate) struct Group {
    pub table: Rc<Table>,
    pub snaplen: u32,
    /// Sockets whose packets wait in the kernel until the threads are started.
    pub waiting: RefCell<Vec<(PacketSocket, Producer)>>,
    pub threads: RefCell<Threads>,
    pub members: Members,
    pub sampling: Sampling,
    pub rejected: Option<Rejected>,
    /// Socket that keeps the group's interfaces promiscuous.
    pub promiscuous: RefCell<Option<OwnedFd>>,
}

impl Group {
    pub fn rejected_at(&self, slot: u32) -> u64 {
        let count = |rejected: &Rejected| rejected.count_at(slot);
        self.rejected.as_ref().map_or(0, count)
    }

    pub fn set_promiscuous(&self, site: &CaptureSite) -> Result<()> {
        let mut held = self.promiscuous.borrow_mut();
        let interface = site.interface.index;
        if let Some(socket) = &*held
            && packet_socket::promiscuous_too(socket, interface, true).is_ok()
        {
            return Ok(());
        }
        *held = Some(packet_socket::promiscuous(site.namespace.as_ref(), interface)?);
        Ok(())
    }

    /// Starts the threads, with the first member.
    pub fn start(&self) -> Result<()> {
        let mut threads = self.threads.borrow_mut();
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for (number, (socket, producer)) in waiting.into_iter().enumerate() {
            let points = PacketPoints::Many { members: Arc::clone(&self.members), last: None };
            let sampling = self.sampling.clone();
            let worker = Worker::new(socket, producer, points, sampling, threads.failure());
            threads.start(&format!("packet-{number}"), || worker.run())?;
        }
        Ok(())
    }

    pub fn stop(&self) {
        self.waiting.borrow_mut().clear();
        self.threads.borrow_mut().join();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The groups of a capture; groups without members are gone.
pub(crate) type Groups = Vec<(GroupKey, Weak<Group>)>;
