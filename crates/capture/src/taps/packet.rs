//! The `packet` tap: AF_PACKET sockets with TPACKET_V3 rings, one for each CPU by fanout, for all other cases.

pub(crate) mod choice;
pub(crate) mod group;
mod worker;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use trawl_filter::classic::Classic;
use trawl_filter::lower::Target;
use trawl_io::packet_socket::{
    self, Filter, Instruction, Opened, PacketSocket, Queue, Rejected, Request,
};
use trawl_packet::pcapng::block::{LINKTYPE_ETHERNET, LINKTYPE_RAW};
use trawl_ring::producer::Producer;
use trawl_ring::{Geometry, Rings};
use trawl_sys::ethtool::Ethtool;
use trawl_sys::{Error, Result, events};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason, ReadFailure};
use crate::filter::Block;
use crate::options::{Direction, Options, TimeSource};
use crate::taps::table::{self, Facts};
use crate::{AttachedTap, Tap};
use choice::Sampling;
use worker::{Job, Shared, SocketJob, Worker};

/// Link type for private use, for kinds of interface that have none.
const LINKTYPE_USER0: u16 = 147;
/// Size below which a socket's share is not split.
const UNSPLIT: usize = 512 << 10;

#[derive(Debug)]
pub struct Packet;

impl Tap for Packet {
    fn facts(&self) -> &'static Facts {
        &table::PACKET
    }

    fn attach(
        &self,
        index: usize,
        site: &CaptureSite,
        assembly: &mut Assembly,
    ) -> Result<Box<dyn AttachedTap>> {
        let options = Rc::clone(&assembly.options);
        give_notice(site, assembly);
        if let Some(member) = group::attach(index, site, assembly)? {
            return Ok(member);
        }
        let sharing = Sharing::new(assembly.geometry, events::cpu_count(), assembly.sites);
        let snaplen = assembly.snaplen().min(sharing.own.max_captured());
        let (received, sent) = wanted(options.direction, site.interface.loopback);
        // A packet socket does not report the queue. The queue is known if only one exists or is chosen.
        let queue = match site.has_one_queue() {
            true => Some(0),
            false => options.queue,
        };
        let filter = Prepared::new(&options, site, snaplen)?;
        let Opened {
            sockets,
            rejected,
            refusal,
        } = packet_socket::open(
            site.namespace.as_ref(),
            &Request {
                interface: site.interface.index,
                name: &site.label,
                network_layer: site.interface.link_type == LINKTYPE_RAW,
                sockets: sharing.sockets,
                ring_size: sharing.kernel,
                snaplen,
                received,
                sent,
                hardware_time: options.time == TimeSource::Hardware,
                filter: filter.as_ref().map(Prepared::for_socket),
                places: None,
            },
        )?;
        if let Some(why) = filter.and_then(|filter| filter.refusal).or(refusal) {
            assembly.event(Event::RejectedNotCounted {
                interface: site.label.clone(),
                why: Some(why.to_string()),
            });
        }
        let ethernet = site.interface.link_type == LINKTYPE_ETHERNET;
        let promiscuous = promiscuous_wanted(&options, site)
            .then(|| packet_socket::promiscuous(site.namespace.as_ref(), site.interface.index))
            .transpose()?;
        let (rings, producers) = assembly.thread_rings(sharing.own, sockets.len())?;
        let ids = assembly.add_point(index, site, &rings, "packet", "packet")?;
        let plan = SocketJob {
            ids,
            snaplen,
            queue: queue.filter(|_| options.recording.meta.queue),
            ethernet,
            meta: options.recording.meta,
        };
        Ok(Box::new(AttachedPacket {
            plan,
            sampling: Sampling::new(&options),
            rejected,
            waiting: sockets.into_iter().zip(producers).collect(),
            threads: Vec::new(),
            shared: Arc::default(),
            rings,
            promiscuous,
        }))
    }
}

fn promiscuous_wanted(options: &Options, site: &CaptureSite) -> bool {
    let ethernet = site.interface.link_type == LINKTYPE_ETHERNET;
    options.promiscuous && ethernet && !site.interface.loopback
}

/// Starts a thread for each worker.
fn start(workers: impl Iterator<Item = Worker>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
    for (number, worker) in workers.enumerate() {
        let thread = thread::Builder::new()
            .name(format!("trawl-packet-{number}"))
            .spawn(move || worker.run())
            .map_err(|e| Error::os("cannot start a thread that reads packets", e))?;
        threads.push(thread);
    }
    Ok(())
}

/// Reports surprises of the file: frames without a link type, and the source of time stamps.
fn give_notice(site: &CaptureSite, assembly: &mut Assembly) {
    if site.interface.link_type == LINKTYPE_USER0 {
        let interface = site.label.clone();
        assembly.event(Event::NoLinkType { interface });
    }
    if assembly.options.time == TimeSource::Hardware {
        let stamps = Ethtool::open(site.namespace.as_ref(), &site.interface.name)
            .and_then(|ethtool| ethtool.timestamping())
            .is_ok_and(|abilities| abilities.receive_hardware);
        assembly.event(if stamps {
            Event::CardStamps {
                interface: site.label.clone(),
                device: site.interface.name.clone(),
            }
        } else {
            Event::SystemStamps {
                interface: site.label.clone(),
                library: None,
            }
        });
    }
}

/// Returns whether received and sent packets are wanted. The loopback shows each packet twice, sent and received, and one is
/// enough.
fn wanted(direction: Option<Direction>, loopback: bool) -> (bool, bool) {
    let direction = direction.unwrap_or(Direction::Both);
    let received = direction.includes_in();
    (
        received,
        direction.includes_out() && !(loopback && received),
    )
}

/// Division of a capture's memory between the kernel's rings and trawl's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub sockets: usize,
    /// Size of the kernel's ring of each socket.
    pub kernel: usize,
    /// Rings of all sockets together.
    pub own: Geometry,
}

impl Sharing {
    pub fn new(asked_for: Geometry, cpus: usize, sites: usize) -> Self {
        let sockets = cpus.clamp(1, packet_socket::SOCKETS_MAX);
        let site = asked_for.pool_size / sites.max(1);
        let kernel = site / sockets / 2;
        // A smaller share is not split between the kernel and trawl: it could not hold a packet of 64 KiB.
        let own = (site / 2).max(site.min(UNSPLIT * sockets)) as u64;
        Self {
            sockets,
            kernel,
            own: Geometry::for_total(own, sockets).unwrap_or(asked_for),
        }
    }
}

#[derive(Debug)]
struct AttachedPacket {
    plan: SocketJob,
    sampling: Sampling,
    /// Counter of packets rejected by the sockets' filter, if supported.
    rejected: Option<Rejected>,
    /// Sockets whose packets wait in the kernel until the threads are started.
    waiting: Vec<(PacketSocket, Producer)>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    rings: Arc<Rings>,
    promiscuous: Option<OwnedFd>,
}

impl AttachedTap for AttachedPacket {
    fn start(&mut self) -> Result<()> {
        let workers = self.waiting.drain(..).map(|(socket, producer)| {
            let (sampling, shared) = (self.sampling.clone(), Arc::clone(&self.shared));
            Worker::new(socket, producer, Job::One(self.plan), sampling, shared)
        });
        start(workers, &mut self.threads)
    }

    fn detach(&mut self) -> Vec<Event> {
        self.rings.stop();
        self.waiting.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.fail(ReadFailure::ThreadCrashed);
            }
        }
        self.promiscuous = None;
        let failure = self.shared.failure().cloned();
        failure.map(Event::ReadFailed).into_iter().collect()
    }

    fn ended(&mut self) -> Option<GoneReason> {
        match self.shared.failure() {
            Some(failure) => Some(GoneReason::ReadFailed(failure.clone())),
            None => self.shared.is_gone().then_some(GoneReason::Removed),
        }
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        vec![(self.plan.ids.point, "socket_full", self.shared.dropped())]
    }

    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        let count = |rejected: &Rejected| (self.plan.ids.point, rejected.count());
        self.rejected.iter().map(count).collect()
    }
}

impl Drop for AttachedPacket {
    fn drop(&mut self) {
        self.detach();
    }
}

#[derive(Debug)]
pub struct Prepared {
    queue: Option<Queue>,
    cpu: Option<u32>,
    /// `None` if the filter needs facts that a socket's program does not have.
    block: Option<Block>,
    /// `None` if the filter has loops, which the kernel's classic programs cannot have.
    classic: Option<Vec<Instruction>>,
    /// Reason for which `block` is `None`.
    pub refusal: Option<Error>,
}

impl Prepared {
    /// Prepares the filter; `None` if every packet is wanted.
    pub fn new(options: &Options, site: &CaptureSite, snaplen: u32) -> Result<Option<Self>> {
        let queue = options.queue.filter(|_| !site.has_one_queue());
        let queue = queue.map(|number| Queue {
            number,
            received_offset: site.interface.received_queue_offset(),
        });
        let mut prepared = Self {
            queue,
            cpu: options.cpu,
            block: Some(Block::default()),
            // Accepts every packet; 0 would reject them.
            classic: Some(vec![Instruction {
                code: 0x06,
                jt: 0,
                jf: 0,
                k: snaplen.max(1),
            }]),
            refusal: None,
        };
        let Some(filter) = &options.filter else {
            return Ok((queue.is_some() || options.cpu.is_some()).then_some(prepared));
        };
        let compiler = site.compiler_options(snaplen.max(1))?;
        let classic = filter.classic(&compiler)?;
        prepared.classic = classic.fits_socket().then(|| instructions(&classic));
        let target = Target {
            // Only Ethernet frames can have an out-of-band tag.
            vlan_out_of_band: site.interface.link_type == LINKTYPE_ETHERNET,
            ..Target::socket()
        };
        match filter.block(&compiler, &target) {
            Ok(block) => prepared.block = Some(block),
            Err(error) if prepared.classic.is_none() => return Err(error),
            Err(error) => {
                prepared.block = None;
                prepared.refusal = Some(error);
            }
        }
        Ok(Some(prepared))
    }

    pub fn for_socket(&self) -> Filter<'_> {
        Filter {
            queue: self.queue,
            cpu: self.cpu,
            block: self.block.as_deref(),
            classic: self.classic.as_deref(),
        }
    }
}

pub(crate) fn instructions(classic: &Classic) -> Vec<Instruction> {
    let of_kernel = |one: &trawl_filter::Instruction| Instruction {
        code: one.code,
        jt: one.jt,
        jf: one.jf,
        k: one.k,
    };
    classic.instructions().iter().map(of_kernel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_ring::{MEMORY_MAX, SHARE_MIN};

    const SLACK: usize = 32 << 20;

    #[test]
    fn total_memory_is_within_the_requested_size() {
        for share in [SHARE_MIN, 1 << 20, 4 << 20, 64 << 20, MEMORY_MAX] {
            for cpus in [1, 2, 7, 16, 17, 64, 256] {
                for sites in 1..=4 {
                    let Ok(asked_for) = Geometry::for_share(share, cpus) else {
                        continue;
                    };
                    let sharing = Sharing::new(asked_for, cpus, sites);
                    let sockets = sharing.kernel.max(1 << 20) * sharing.sockets;
                    let promised = asked_for.pool_size + SLACK * sites;
                    assert!(
                        (sharing.own.pool_size + sockets) * sites <= promised,
                        "{sharing:?} for {cpus} CPUs and {sites} sites"
                    );
                }
            }
        }
    }

    #[test]
    fn a_default_ring_holds_the_largest_segments() {
        let sharing = Sharing::new(Geometry::for_total(8 << 20, 2).unwrap(), 2, 1);
        assert_eq!((sharing.sockets, sharing.kernel), (2, 2 << 20));
        assert!(sharing.own.max_captured() > 200_000);
    }

    #[test]
    fn loopback_packets_are_seen_once() {
        assert_eq!(wanted(None, true), (true, false));
        assert_eq!(wanted(Some(Direction::Both), true), (true, false));
        assert_eq!(wanted(Some(Direction::Out), true), (false, true));
        assert_eq!(wanted(None, false), (true, true));
        assert_eq!(wanted(Some(Direction::In), false), (true, false));
    }
}
