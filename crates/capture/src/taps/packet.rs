//! The `packet` tap: AF_PACKET sockets with TPACKET_V3 rings, one for each CPU by fanout. It works where no
//! other tap does.

pub(crate) mod group;
mod worker;

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use trawl_filter::lower::Target;
use trawl_io::packet_socket::{self, Filter, Instruction, Opened, PacketQueue, PacketRequest, PacketSocket, Rejected};
use trawl_packet::pcapng::block::{LINKTYPE_ETHERNET, LINKTYPE_RAW};
use trawl_ring::producer::Producer;
use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::interface::LINKTYPE_USER0;
use trawl_sys::{Error, Result, events};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason};
use crate::filter::Block;
use crate::filter::Compile;
use crate::many::{TableEntry, broadcast_netmask, new_table};
use crate::point::PointIds;
use crate::sampling::Sampling;
use crate::taps::facts::{Facts, Gives, MOST, ReadsBy};
use crate::taps::threads::{KERNEL_MAX, Sharing, Threads};
use crate::{AttachedTap, Tap};
use group::{Group, GroupKey};
use trawl_bpf::probe::KernelFeature;
use trawl_plan::TapChoice;
use trawl_plan::options::{CaptureOptions, Direction, TimeSource};
use worker::{Member, Members, PacketPoint, PacketPoints, Worker};

pub const FACTS: Facts = Facts {
    choice: TapChoice::Packet,
    sees: "received and sent packets, as tcpdump sees them",
    gives: Gives { received: true, sent: true, queue: true, hardware_time: true, ..Gives::NOTHING },
    needs: "nothing",
    features: &[KernelFeature::PacketV3],
    reads_by: ReadsBy::Thread,
    ..MOST
};

#[derive(Debug)]
pub struct Packet;

impl Tap for Packet {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let site = &sites[index];
        let options = Rc::clone(&assembly.options);
        report_surprises(site, assembly);
        assembly.may_run_first.get_or_insert_default();
        if let Some(member) = attach_member(index, site, assembly)? {
            return Ok(member);
        }
        let sharing = Sharing::new(assembly.rings.geometry, events::cpu_count(), assembly.sites, KERNEL_MAX);
        let snaplen = assembly.snaplen().min(sharing.own.max_captured());
        let (received, sent) = wanted(options.direction, site.interface.loopback);
        // A packet socket does not report the queue. The queue is known if only one exists or is chosen.
        let queue = if site.has_one_queue() { Some(0) } else { options.queue };
        let filter = Prepared::new(&options, site, snaplen)?;
        let Opened { sockets, rejected, refusal } = packet_socket::open(
            site.namespace.as_ref(),
            &PacketRequest {
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
                prompt: options.is_prompt(),
                interfaces: None,
            },
        )?;
        if let Some(why) = filter.and_then(|filter| filter.refusal).or(refusal) {
            assembly.event(Event::RejectedNotCounted { interface: site.label.clone(), why: Some(why.to_string()) });
        }
        let ethernet = site.interface.link_type == LINKTYPE_ETHERNET;
        let promiscuous = promiscuous_wanted(&options, site)
            .then(|| packet_socket::promiscuous(site.namespace.as_ref(), site.interface.index))
            .transpose()?;
        let (rings, producers) = assembly.rings.of_threads(sharing.own, sockets.len())?;
        let ids = assembly.add_point(index, site, &rings, &FACTS, "packet")?;
        let point = PacketPoint {
            ids,
            extent: assembly.extent(snaplen, site.interface.link_type),
            queue: queue.filter(|_| options.recording.meta.queue),
            ethernet,
            meta: options.recording.meta,
        };
        Ok(Box::new(AttachedPacket {
            member: Arc::new(Member::new(site.interface.index, point)),
            sampling: Sampling::new(&options),
            rejected,
            waiting: sockets.into_iter().zip(producers).collect(),
            threads: Threads::new(rings),
            promiscuous,
        }))
    }
}

fn promiscuous_wanted(options: &CaptureOptions, site: &CaptureSite) -> bool {
    let ethernet = site.interface.link_type == LINKTYPE_ETHERNET;
    options.promiscuous && ethernet && !site.interface.loopback
}

/// Reports facts that a reader of the file may not expect: frames without a link type, and the source of time stamps.
fn report_surprises(site: &CaptureSite, assembly: &mut Assembly) {
    if site.interface.link_type == LINKTYPE_USER0 {
        let interface = site.label.clone();
        assembly.event(Event::NoLinkType { interface });
    }
    if assembly.options.time == TimeSource::Hardware {
        let stamps = Ethtool::open(site.namespace.as_ref(), &site.interface.name)
            .and_then(|ethtool| ethtool.timestamping())
            .unwrap_or_default();
        assembly.event(if stamps.receive_hardware {
            Event::CardStamps {
                interface: site.label.clone(),
                device: site.interface.name.clone(),
                every_packet: stamps.receive_all,
            }
        } else {
            Event::SystemStamps { interface: site.label.clone(), library: None }
        });
    }
}

/// Returns whether received and sent packets are wanted. The loopback shows each packet twice, sent and received, and
/// one is enough.
fn wanted(direction: Option<Direction>, loopback: bool) -> (bool, bool) {
    let direction = direction.unwrap_or(Direction::Both);
    let received = direction.includes_in();
    (received, direction.includes_out() && !(loopback && received))
}

#[derive(Debug)]
struct AttachedPacket {
    member: Arc<Member>,
    sampling: Sampling,
    /// Counter of packets rejected by the sockets' filter, if supported.
    rejected: Option<Rejected>,
    /// Sockets whose packets wait in the kernel until the threads are started.
    waiting: Vec<(PacketSocket, Producer)>,
    threads: Threads,
    promiscuous: Option<OwnedFd>,
}

impl AttachedTap for AttachedPacket {
    fn start(&mut self) -> Result<()> {
        for (number, (socket, producer)) in self.waiting.drain(..).enumerate() {
            let points = PacketPoints::One(Arc::clone(&self.member));
            let (sampling, failure) = (self.sampling.clone(), self.threads.failure());
            let worker = Worker::new(socket, producer, points, sampling, failure);
            self.threads.start(&format!("packet-{number}"), || worker.run())?;
        }
        Ok(())
    }

    fn detach(&mut self) -> Vec<Event> {
        self.threads.stop();
        self.waiting.clear();
        let failure = self.threads.join();
        self.promiscuous = None;
        failure.into_iter().collect()
    }

    fn ended(&mut self) -> Option<GoneReason> {
        let is_gone = self.member.is_gone.load(Ordering::Relaxed);
        let removed = is_gone.then_some(GoneReason::Removed);
        self.threads.ended().or(removed)
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        vec![self.member.losses()]
    }

    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        let count = |rejected: &Rejected| (self.member.point.ids.point, rejected.count());
        self.rejected.iter().map(count).collect()
    }
}

impl Drop for AttachedPacket {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Number of namespaces above which each has one socket and one thread instead of one for each CPU.
const NAMESPACES_WITH_ALL_CPUS: usize = 4;

/// Returns the group that serves a site, created if needed; `None` if the site needs sockets of its own.
fn serving_group(site: &CaptureSite, assembly: &mut Assembly) -> Result<Option<Rc<Group>>> {
    let options = Rc::clone(&assembly.options);
    let is_usual = options.queue.is_none() && site.interface.link_type == LINKTYPE_ETHERNET;
    if !assembly.serves_many() || !is_usual {
        return Ok(None);
    }
    let kind = GroupKey {
        namespace: site.namespace_number()?,
        directions: wanted(options.direction, site.interface.loopback),
        netmask: broadcast_netmask(&options, site),
    };
    let known = assembly.many.packet.iter().filter(|(one, _)| *one == kind);
    if let Some(group) = known.filter_map(|(_, group)| group.upgrade()).next() {
        return Ok(Some(group));
    }
    let namespaces = assembly.many.namespaces;
    let cpus = if namespaces > NAMESPACES_WITH_ALL_CPUS { 1 } else { events::cpu_count() };
    let sharing = Sharing::new(assembly.rings.geometry, cpus, namespaces, KERNEL_MAX);
    let snaplen = assembly.snaplen().min(sharing.own.max_captured());
    let table = new_table()?;
    let filter = Prepared::new(&options, site, snaplen)?;
    let opened = packet_socket::open(
        site.namespace.as_ref(),
        &PacketRequest {
            interface: 0,
            name: &site.label,
            network_layer: false,
            sockets: sharing.sockets,
            ring_size: sharing.kernel,
            snaplen,
            received: kind.directions.0,
            sent: kind.directions.1,
            hardware_time: false,
            filter: filter.as_ref().map(Prepared::for_socket),
            prompt: options.is_prompt(),
            interfaces: Some(table.as_fd()),
        },
    );
    // If the kernel refuses such a program, each interface has sockets of its own.
    let Ok(Opened { sockets, rejected, .. }) = opened else {
        return Ok(None);
    };
    let (rings, producers) = assembly.rings.of_threads(sharing.own, sockets.len())?;
    let group = Rc::new(Group {
        table,
        snaplen,
        waiting: RefCell::new(sockets.into_iter().zip(producers).collect()),
        threads: RefCell::new(Threads::new(rings)),
        members: Members::default(),
        sampling: Sampling::new(&options),
        rejected,
        promiscuous: RefCell::default(),
    });
    assembly.many.packet.push((kind, Rc::downgrade(&group)));
    Ok(Some(group))
}

/// One interface of a group.
#[derive(Debug)]
struct AttachedMember {
    group: Rc<Group>,
    member: Arc<Member>,
    /// Packets are accepted while this is held.
    entry: Option<TableEntry>,
    /// Packets that the filter had rejected for previous owners of the slot.
    rejected_before: u64,
}

/// Captures a site with the sockets of its group; `None` if it needs its own.
fn attach_member(index: usize, site: &CaptureSite, assembly: &mut Assembly) -> Result<Option<Box<dyn AttachedTap>>> {
    let Some(group) = serving_group(site, assembly)? else {
        return Ok(None);
    };
    if promiscuous_wanted(&assembly.options, site) {
        group.set_promiscuous(site)?;
    }
    let rings = Arc::clone(group.threads.borrow().rings());
    let ids = assembly.add_point(index, site, &rings, &FACTS, "packet")?;
    let meta = assembly.options.recording.meta;
    let interface = site.interface.index;
    let point = PacketPoint {
        ids,
        extent: assembly.extent(group.snaplen, LINKTYPE_ETHERNET),
        queue: site.has_one_queue().then_some(0).filter(|_| meta.queue),
        ethernet: true,
        meta,
    };
    let member = Arc::new(Member::new(interface, point));
    let rejected_before = group.rejected_at(ids.slot);
    let entry = TableEntry::add(&group.table, 0, site, &ids)?;
    group.members.write().insert(interface, Arc::clone(&member));
    Ok(Some(Box::new(AttachedMember { group, member, entry, rejected_before })))
}

impl AttachedTap for AttachedMember {
    fn start(&mut self) -> Result<()> {
        self.group.start()
    }

    fn detach(&mut self) -> Vec<Event> {
        if self.entry.take().is_none() {
            return Vec::new();
        }
        if let Some(socket) = &*self.group.promiscuous.borrow() {
            // The promiscuous mode may have ended with its interface.
            let _ = packet_socket::promiscuous_too(socket, self.member.interface, false);
        }
        // Packets in the sockets are read before the summary; at the end of a capture, the first member does this for
        // all.
        let is_stopped = self.group.threads.borrow().rings().is_stopped();
        if is_stopped {
            self.group.stop();
        }
        Vec::new()
    }

    fn ended(&mut self) -> Option<GoneReason> {
        self.group.threads.borrow().ended()
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        vec![self.member.losses()]
    }

    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        let PointIds { point, slot, .. } = self.member.point.ids;
        vec![(point, self.group.rejected_at(slot) - self.rejected_before)]
    }
}

/// The filter of a socket, prepared for the kernel.
#[derive(Debug)]
pub struct Prepared {
    queue: Option<PacketQueue>,
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
    pub fn new(options: &CaptureOptions, site: &CaptureSite, snaplen: u32) -> Result<Option<Self>> {
        let queue = options.queue.filter(|_| !site.has_one_queue());
        let queue = queue.map(|number| PacketQueue { number, received_offset: site.interface.received_queue_offset() });
        let mut prepared = Self {
            queue,
            cpu: options.cpu,
            block: Some(Block::default()),
            // Accepts every packet; 0 would reject them.
            classic: Some(vec![Instruction { code: 0x06, jt: 0, jf: 0, k: snaplen.max(1) }]),
            refusal: None,
        };
        let Some(filter) = &options.filter else {
            return Ok((queue.is_some() || options.cpu.is_some()).then_some(prepared));
        };
        let compiler = site.compiler_options(snaplen.max(1))?;
        let classic = filter.classic(&compiler)?;
        prepared.classic = classic.fits_socket().then(|| classic.instructions().to_vec());
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
        Filter { queue: self.queue, cpu: self.cpu, block: self.block.as_deref(), classic: self.classic.as_deref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_packets_are_seen_once() {
        assert_eq!(wanted(None, true), (true, false));
        assert_eq!(wanted(Some(Direction::Both), true), (true, false));
        assert_eq!(wanted(Some(Direction::Out), true), (false, true));
        assert_eq!(wanted(None, false), (true, true));
        assert_eq!(wanted(Some(Direction::In), false), (true, false));
    }
}
