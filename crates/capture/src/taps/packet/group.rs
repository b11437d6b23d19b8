//! Sockets shared by many interfaces of one network namespace: they accept packets of the interfaces in a table, and their
//! threads distinguish the interfaces.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::RwLock;
use trawl_bpf::table::Table;
use trawl_io::packet_socket::{self, Opened, PacketSocket, Rejected, Request};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_ring::Rings;
use trawl_ring::producer::Producer;
use trawl_sys::{Result, events};

use super::Prepared;
use super::choice::Sampling;
use super::worker::{Job, Shared, SocketJob, Worker};
use super::{Sharing, promiscuous_wanted, start, wanted};
use crate::AttachedTap;
use crate::assembly::{Assembly, PointIds};
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason, ReadFailure};
use crate::many::{TableEntry, broadcast_netmask, new_table};

/// Number of namespaces above which each has one socket and one thread instead of one for each CPU.
const NAMESPACES_WITH_ALL_CPUS: usize = 4;

/// An interface of a group, as seen by its threads.
#[derive(Debug)]
pub(super) struct Member {
    pub interface: u32,
    pub job: SocketJob,
    /// Packets that found the kernel's ring full. The kernel does not report their interface: they count at the interface of
    /// the packet before them.
    pub dropped: AtomicU64,
}

/// Members by the interface's number. Members that left stay: the sockets may still contain packets.
pub(super) type Members = Arc<RwLock<HashMap<u32, Arc<Member>>>>;

/// Common properties of interfaces that one filter serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    namespace: u32,
    /// True for wanted received, and wanted sent packets.
    ways: (bool, bool),
    netmask: Option<Ipv4Addr>,
}

#[derive(Debug)]
pub(crate) struct Group {
    table: Rc<Table>,
    snaplen: u32,
    /// Sockets whose packets wait in the kernel until the threads are started.
    waiting: RefCell<Vec<(PacketSocket, Producer)>>,
    threads: RefCell<Vec<JoinHandle<()>>>,
    members: Members,
    sampling: Sampling,
    rejected: Option<Rejected>,
    shared: Arc<Shared>,
    rings: Arc<Rings>,
    /// Keeps its interfaces promiscuous.
    promiscuous: RefCell<Option<OwnedFd>>,
}

impl Group {
    /// Returns the group that serves a site, created if needed; `None` if the site needs sockets of its own.
    fn serving(site: &CaptureSite, assembly: &mut Assembly) -> Result<Option<Rc<Self>>> {
        let options = Rc::clone(&assembly.options);
        let is_usual = options.queue.is_none() && site.interface.link_type == LINKTYPE_ETHERNET;
        if !assembly.serves_many() || !is_usual {
            return Ok(None);
        }
        let kind = Kind {
            namespace: site.namespace_number()?,
            ways: wanted(options.direction, site.interface.loopback),
            netmask: broadcast_netmask(&options, site),
        };
        let known = assembly.many.packet.iter().filter(|(one, _)| *one == kind);
        if let Some(group) = known.filter_map(|(_, group)| group.upgrade()).next() {
            return Ok(Some(group));
        }
        let namespaces = assembly.many.namespaces;
        let cpus = match namespaces > NAMESPACES_WITH_ALL_CPUS {
            true => 1,
            false => events::cpu_count(),
        };
        let sharing = Sharing::new(assembly.geometry, cpus, namespaces);
        let snaplen = assembly.snaplen().min(sharing.own.max_captured());
        let table = new_table()?;
        let filter = Prepared::new(&options, site, snaplen)?;
        let opened = packet_socket::open(
            site.namespace.as_ref(),
            &Request {
                interface: 0,
                name: &site.label,
                network_layer: false,
                sockets: sharing.sockets,
                ring_size: sharing.kernel,
                snaplen,
                received: kind.ways.0,
                sent: kind.ways.1,
                hardware_time: false,
                filter: filter.as_ref().map(Prepared::for_socket),
                places: Some(table.as_fd()),
            },
        );
        // If the kernel refuses such a program, each interface has sockets of its own.
        let Ok(Opened {
            sockets, rejected, ..
        }) = opened
        else {
            return Ok(None);
        };
        let (rings, producers) = assembly.thread_rings(sharing.own, sockets.len())?;
        let group = Rc::new(Self {
            table,
            snaplen,
            waiting: RefCell::new(sockets.into_iter().zip(producers).collect()),
            threads: RefCell::default(),
            members: Members::default(),
            sampling: Sampling::new(&options),
            rejected,
            shared: Arc::default(),
            rings,
            promiscuous: RefCell::default(),
        });
        assembly.many.packet.push((kind, Rc::downgrade(&group)));
        Ok(Some(group))
    }

    fn rejected_at(&self, slot: u32) -> u64 {
        let count = |rejected: &Rejected| rejected.count_at(slot);
        self.rejected.as_ref().map_or(0, count)
    }

    fn be_promiscuous(&self, site: &CaptureSite) -> Result<()> {
        let mut held = self.promiscuous.borrow_mut();
        let interface = site.interface.index;
        if let Some(socket) = &*held
            && packet_socket::promiscuous_too(socket, interface, true).is_ok()
        {
            return Ok(());
        }
        *held = Some(packet_socket::promiscuous(
            site.namespace.as_ref(),
            interface,
        )?);
        Ok(())
    }

    fn start(&self) -> Result<()> {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        let workers = waiting.into_iter().map(|(socket, producer)| {
            Worker::new(
                socket,
                producer,
                Job::Many {
                    members: Arc::clone(&self.members),
                    last: None,
                },
                self.sampling.clone(),
                Arc::clone(&self.shared),
            )
        });
        start(workers, &mut self.threads.borrow_mut())
    }

    fn stop(&self) {
        self.rings.stop();
        self.waiting.borrow_mut().clear();
        for thread in self.threads.borrow_mut().drain(..) {
            if thread.join().is_err() {
                self.shared.fail(ReadFailure::ThreadCrashed);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The groups of a capture; groups without members are gone.
pub(crate) type Groups = Vec<(Kind, Weak<Group>)>;

/// One interface of a group.
#[derive(Debug)]
struct AttachedMember {
    group: Rc<Group>,
    member: Arc<Member>,
    /// Packets are accepted while this is held.
    place: Option<TableEntry>,
    /// Packets that the filter had rejected for previous owners of the slot.
    rejected_before: u64,
}

/// Captures a site with the sockets of its group; `None` if it needs its own.
pub(super) fn attach(
    index: usize,
    site: &CaptureSite,
    assembly: &mut Assembly,
) -> Result<Option<Box<dyn AttachedTap>>> {
    let Some(group) = Group::serving(site, assembly)? else {
        return Ok(None);
    };
    if promiscuous_wanted(&assembly.options, site) {
        group.be_promiscuous(site)?;
    }
    let ids = assembly.add_point(index, site, &group.rings, "packet", "packet")?;
    let meta = assembly.options.recording.meta;
    let interface = site.interface.index;
    let member = Arc::new(Member {
        interface,
        job: SocketJob {
            ids,
            snaplen: group.snaplen,
            queue: site.has_one_queue().then_some(0).filter(|_| meta.queue),
            ethernet: true,
            meta,
        },
        dropped: AtomicU64::new(0),
    });
    let rejected_before = group.rejected_at(ids.slot);
    let place = TableEntry::take(&group.table, 0, site, &ids)?;
    group.members.write().insert(interface, Arc::clone(&member));
    Ok(Some(Box::new(AttachedMember {
        group,
        member,
        place,
        rejected_before,
    })))
}

impl AttachedTap for AttachedMember {
    fn start(&mut self) -> Result<()> {
        self.group.start()
    }

    fn detach(&mut self) -> Vec<Event> {
        if self.place.take().is_none() {
            return Vec::new();
        }
        if let Some(socket) = &*self.group.promiscuous.borrow() {
            // The promiscuous mode may be gone with its interface.
            let _ = packet_socket::promiscuous_too(socket, self.member.interface, false);
        }
        // Packets in the sockets are read before the summary; at the end of a capture, the first member does this for all.
        if self.group.rings.is_stopped() {
            self.group.stop();
        }
        Vec::new()
    }

    fn ended(&mut self) -> Option<GoneReason> {
        let failure = self.group.shared.failure();
        failure.map(|failure| GoneReason::ReadFailed(failure.clone()))
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        let dropped = self.member.dropped.load(Ordering::Relaxed);
        vec![(self.member.job.ids.point, "socket_full", dropped)]
    }

    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        let PointIds { point, slot, .. } = self.member.job.ids;
        vec![(point, self.group.rejected_at(slot) - self.rejected_before)]
    }
}
