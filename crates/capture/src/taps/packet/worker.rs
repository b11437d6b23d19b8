//! The thread of a packet socket: reads blocks of packets from the kernel and writes records into its ring.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use trawl_io::packet_socket::{Block, PacketSocket, PacketSource, PacketType, RingFrame};
use trawl_packet::pcapng::block::{DIRECTION_INBOUND, DIRECTION_OUTBOUND};
use trawl_ring::producer::{Noted, Producer, Sighting};
use trawl_sys::{Result, clock, events, process};

use crate::event::ReadFailure;
use crate::extent::Extent;
use crate::point::PointIds;
use crate::sampling::Sampling;
use crate::taps::threads::Failure;
use trawl_plan::options::Meta;

/// Longest sleep. Records of other CPUs wait until this ring has announced that it has no earlier ones.
const NAP: Duration = Duration::from_millis(2);
/// Longest sleep while the reader of the ring sleeps, who wakes this thread then.
const REST: Duration = Duration::from_secs(60);
/// After the capture the kernel hands over its last block within a few milliseconds; this limit is for a very busy
/// machine.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// Offset of a VLAN tag, after the two MAC addresses.
const TAG_OFFSET: usize = 12;

/// The kinds of reception in a packet's pcapng flags.
const UNICAST: u32 = 1 << 2;
const MULTICAST: u32 = 2 << 2;
const BROADCAST: u32 = 3 << 2;
const PROMISCUOUS: u32 = 4 << 2;

/// Properties common to all packets of the tap.
#[derive(Clone, Copy, Debug)]
pub struct PacketPoint {
    pub ids: PointIds,
    pub extent: Extent,
    pub queue: Option<u32>,
    /// True if the bytes begin with an Ethernet header, into which a VLAN tag belongs.
    pub ethernet: bool,
    pub meta: Meta,
}

/// An interface, as seen by the threads of its sockets.
#[derive(Debug)]
pub(crate) struct Member {
    pub interface: u32,
    pub point: PacketPoint,
    /// Packets that found the kernel's ring full. The kernel does not report their interface: they count at the
    /// interface of the packet before them.
    dropped: AtomicU64,
    /// Set once the interface is gone.
    pub is_gone: AtomicBool,
}

impl Member {
    pub fn new(interface: u32, point: PacketPoint) -> Self {
        Self { interface, point, dropped: AtomicU64::new(0), is_gone: AtomicBool::new(false) }
    }

    pub fn losses(&self) -> (u32, &'static str, u64) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        (self.point.ids.point, "socket_full", dropped)
    }
}

/// Members by the interface's number. Members that left stay: the sockets may still contain packets.
pub(super) type Members = Arc<RwLock<HashMap<u32, Arc<Member>>>>;

/// The interfaces of a socket's packets.
#[derive(Debug)]
pub(super) enum PacketPoints {
    One(Arc<Member>),
    /// Many interfaces; `last` is the last packet's.
    Many {
        members: Members,
        last: Option<Arc<Member>>,
    },
}

impl PacketPoints {
    /// Returns `None` for an interface outside the capture.
    fn of(&mut self, frame: &RingFrame<'_>) -> Option<PacketPoint> {
        let (members, last) = match self {
            Self::One(member) => return Some(member.point),
            Self::Many { members, last } => (members, last),
        };
        if let Some(known) = last
            && known.interface == frame.interface
        {
            return Some(known.point);
        }
        let members = members.read();
        let member = members.get(&frame.interface)?;
        *last = Some(Arc::clone(member));
        Some(member.point)
    }

    fn last(&self) -> Option<Arc<Member>> {
        let (members, last) = match self {
            Self::One(member) => return Some(Arc::clone(member)),
            Self::Many { members, last } => (members, last),
        };
        last.clone().or_else(|| {
            let members = members.read();
            members.values().next().map(Arc::clone)
        })
    }
}

#[derive(Debug)]
pub struct Worker {
    socket: PacketSocket,
    recorder: Recorder,
    failure: Failure,
}

/// The part of a worker that records a block's packets.
#[derive(Debug)]
struct Recorder {
    producer: Producer,
    points: PacketPoints,
    sampling: Sampling,
}

impl Worker {
    pub(super) fn new(
        socket: PacketSocket,
        producer: Producer,
        points: PacketPoints,
        sampling: Sampling,
        failure: Failure,
    ) -> Self {
        Self { socket, recorder: Recorder { producer, points, sampling }, failure }
    }

    /// Records until the capture is stopped or the interface is gone, then drains the rest.
    pub fn run(mut self) {
        // The kernel's ring is small, and other work on a busy machine would keep this thread from emptying it. Each packet
        // costs the kernel more time than this thread, which therefore cannot occupy a CPU.
        process::run_first();
        let done = self.record_until_stopped().and_then(|()| self.drain()).and_then(|()| self.socket.take_drops());
        match done {
            Ok(drops) => self.recorder.count_drops(drops),
            Err(error) => self.failure.set(ReadFailure::Error { why: error.to_string() }),
        }
    }

    fn record_until_stopped(&mut self) -> Result<()> {
        while !self.recorder.producer.is_stopped() {
            if self.record_next_block()? || self.wait()? == PacketSource::There {
                continue;
            }
            if let Some(member) = self.recorder.points.last() {
                member.is_gone.store(true, Ordering::Relaxed);
            }
            break;
        }
        Ok(())
    }

    /// Reads the packets from before the end, up to the last one.
    fn drain(&mut self) -> Result<()> {
        self.socket.close()?;
        // A packet may be passing the socket at this moment.
        events::wait_for_running_programs();
        let deadline = Instant::now() + DRAIN_PATIENCE;
        while Instant::now() < deadline {
            if !self.record_next_block()? {
                if self.socket.is_empty() {
                    break;
                }
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Records a block's packets. Without a block, announces the time before which no more packets come.
    fn record_next_block(&mut self) -> Result<bool> {
        // Read before the block, so that later packets are not earlier.
        let now = clock::wall();
        let recorder = &mut self.recorder;
        if let Some(block) = self.socket.next_block() {
            recorder.count_drops(block.losses_before()?);
            recorder.record_block(&block);
            return Ok(true);
        }
        if self.socket.is_empty() {
            recorder.producer.advance(now);
        }
        Ok(false)
    }

    fn wait(&self) -> Result<PacketSource> {
        let producer = &self.recorder.producer;
        let Some(wake) = producer.wake().filter(|_| producer.may_rest()) else {
            return self.socket.wait(NAP, None);
        };
        let found = self.socket.wait(REST, Some(wake.as_fd()));
        wake.clear();
        found
    }
}

impl Recorder {
    /// Counts losses, except after the last wanted record, just like packets.
    fn count_drops(&mut self, drops: u64) {
        if drops > 0 && !self.producer.limit_reached() {
            if let Some(member) = self.points.last() {
                member.dropped.fetch_add(drops, Ordering::Relaxed);
            }
            self.producer.add_lost(drops);
        }
    }

    fn record_block(&mut self, block: &Block<'_>) {
        let mut read = 0;
        for frame in block.frames() {
            read += 1;
            if !self.record_frame(&frame) {
                return;
            }
        }
        let point = match &self.points {
            PacketPoints::One(member) => member.point.ids.slot,
            PacketPoints::Many { last, .. } => last.as_ref().map_or(0, |one| one.point.ids.slot),
        };
        (read..block.packets()).for_each(|_| self.producer.unreadable(point));
    }

    /// Records a packet, if wanted; returns true if more are.
    fn record_frame(&mut self, frame: &RingFrame<'_>) -> bool {
        let Some(point) = self.points.of(frame) else {
            return true;
        };
        if !self.producer.counts(frame.time, frame.hardware_time) {
            return true;
        }
        let time = (!frame.hardware_time).then_some(frame.time);
        if !self.sampling.admits(time, &mut self.producer, point.ids.slot) {
            return true;
        }
        self.record(point, frame) != Noted::LimitReached
    }

    fn record(&mut self, point: PacketPoint, frame: &RingFrame<'_>) -> Noted {
        let PacketPoint { ids, extent, queue, ethernet, meta } = point;
        // The tag counts towards the length even if the bytes were cut before it.
        let tag: &[u8] = match &frame.tag {
            Some(tag) if ethernet => tag,
            _ => &[],
        };
        let split = TAG_OFFSET.min(frame.bytes.len());
        let (addresses, rest) = frame.bytes.split_at(split);
        let reached = if split < TAG_OFFSET { &[] } else { tag };
        self.producer.record(&Sighting {
            point: ids.slot,
            interface: if frame.hardware_time { ids.hardware_interface } else { ids.interface },
            time: frame.time,
            hardware_stamped: frame.hardware_time,
            flags: meta.flags.then(|| flags(frame.packet_type)),
            identified: meta.id,
            queue,
            original: frame.original + tag.len() as u32,
            snaplen: extent.of(frame.bytes, tag.len()),
            bytes: [addresses, reached, rest],
        })
    }
}

fn flags(packet_type: PacketType) -> u32 {
    match packet_type {
        PacketType::ToUs => DIRECTION_INBOUND | UNICAST,
        PacketType::ToGroup => DIRECTION_INBOUND | MULTICAST,
        PacketType::ToAll => DIRECTION_INBOUND | BROADCAST,
        PacketType::ToOthers => DIRECTION_INBOUND | PROMISCUOUS,
        PacketType::Sent => DIRECTION_OUTBOUND,
    }
}
