//! The thread of a packet socket: reads blocks of packets from the kernel and writes records into its ring.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use trawl_io::packet_socket::{Block, Frame, PacketSocket, PacketType, Source};
use trawl_packet::pcapng::block::{DIRECTION_INBOUND, DIRECTION_OUTBOUND};
use trawl_ring::producer::{Noted, Producer, Sighting};
use trawl_sys::{Result, clock, events};

use super::choice::{Choice, Sampling};
use super::group::{Member, Members};
use crate::assembly::PointIds;
use crate::event::ReadFailure;
use crate::options::Meta;

/// Longest sleep. Records of other CPUs wait until this ring has announced that it has no earlier ones.
const NAP: Duration = Duration::from_millis(2);
/// After the capture the kernel hands over its last block within a few milliseconds; this limit is for a very busy machine.
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
pub struct SocketJob {
    pub ids: PointIds,
    pub snaplen: u32,
    pub queue: Option<u32>,
    /// True if the bytes begin with an Ethernet header, into which a VLAN tag belongs.
    pub ethernet: bool,
    pub meta: Meta,
}

/// The interfaces of a socket's packets.
#[derive(Debug)]
pub(super) enum Job {
    One(SocketJob),
    /// Many interfaces; `last` is the last packet's.
    Many {
        members: Members,
        last: Option<Arc<Member>>,
    },
}

impl Job {
    /// Returns `None` for an interface outside the capture.
    fn of(&mut self, frame: &Frame<'_>) -> Option<SocketJob> {
        let (members, last) = match self {
            Self::One(job) => return Some(*job),
            Self::Many { members, last } => (members, last),
        };
        if let Some(known) = last
            && known.interface == frame.interface
        {
            return Some(known.job);
        }
        let members = members.read();
        let member = members.get(&frame.interface)?;
        *last = Some(Arc::clone(member));
        Some(member.job)
    }

    fn last(&self) -> Option<Arc<Member>> {
        let Self::Many { members, last } = self else {
            return None;
        };
        last.clone().or_else(|| {
            let members = members.read();
            members.values().next().map(Arc::clone)
        })
    }
}

/// State shared between the threads of one tap and the session.
#[derive(Debug, Default)]
pub struct Shared {
    dropped: AtomicU64,
    gone: AtomicBool,
    failure: OnceLock<ReadFailure>,
}

impl Shared {
    /// Returns the packets that found the kernel's ring full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub fn failure(&self) -> Option<&ReadFailure> {
        self.failure.get()
    }

    /// Records a failure; only the first one is reported.
    pub fn fail(&self, why: ReadFailure) {
        let _ = self.failure.set(why);
    }
}

#[derive(Debug)]
pub struct Worker {
    socket: PacketSocket,
    recorder: Recorder,
}

/// The part of a worker that records a block's packets.
#[derive(Debug)]
struct Recorder {
    producer: Producer,
    plan: Job,
    sampling: Sampling,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(
        socket: PacketSocket,
        producer: Producer,
        plan: Job,
        sampling: Sampling,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            socket,
            recorder: Recorder {
                producer,
                plan,
                sampling,
                shared,
            },
        }
    }

    /// Records until the capture is stopped or the interface is gone, then drains the rest.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.recorder.shared);
        let done = self
            .record_until_stopped()
            .and_then(|()| self.drain())
            .and_then(|()| self.socket.take_drops());
        match done {
            Ok(drops) => self.recorder.count_drops(drops),
            Err(error) => shared.fail(ReadFailure::Error {
                why: error.to_string(),
            }),
        }
    }

    fn record_until_stopped(&mut self) -> Result<()> {
        while !self.recorder.producer.is_stopped() {
            if self.take_block()? || self.rest()? == Source::There {
                continue;
            }
            self.recorder.shared.gone.store(true, Ordering::Relaxed);
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
            if !self.take_block()? {
                if self.socket.is_empty() {
                    break;
                }
                self.rest()?;
            }
        }
        Ok(())
    }

    /// Records a block's packets. Without a block, announces the time before which no more packets come.
    fn take_block(&mut self) -> Result<bool> {
        // Read before the block, so that later packets are not earlier.
        let now = clock::wall();
        let recorder = &mut self.recorder;
        if let Some(block) = self.socket.next_block() {
            recorder.count_drops(block.losses_before()?);
            recorder.take(&block);
            return Ok(true);
        }
        if self.socket.is_empty() {
            recorder.producer.advance(now);
        }
        Ok(false)
    }

    fn rest(&self) -> Result<Source> {
        self.socket.wait(NAP)
    }
}

impl Recorder {
    /// Counts losses, except after the last wanted record, just like packets.
    fn count_drops(&mut self, drops: u64) {
        if drops > 0 && !self.producer.limit_reached() {
            let last = self.plan.last();
            let dropped = last
                .as_ref()
                .map_or(&self.shared.dropped, |one| &one.dropped);
            dropped.fetch_add(drops, Ordering::Relaxed);
            self.producer.tell_lost(drops);
        }
    }

    fn take(&mut self, block: &Block<'_>) {
        let mut read = 0;
        for frame in block.frames() {
            read += 1;
            if !self.take_one(&frame) {
                return;
            }
        }
        let point = match &self.plan {
            Job::One(job) => job.ids.slot,
            Job::Many { last, .. } => last.as_ref().map_or(0, |one| one.job.ids.slot),
        };
        (read..block.packets()).for_each(|_| self.producer.unreadable(point));
    }

    /// Records a packet, if wanted; returns true if more are.
    fn take_one(&mut self, frame: &Frame<'_>) -> bool {
        let Some(job) = self.plan.of(frame) else {
            return true;
        };
        if !self.producer.counts(frame.time, frame.hardware_time) {
            return true;
        }
        match self.sampling.choose(frame) {
            Choice::Wanted => {}
            Choice::NotInSample => {
                self.producer.filtered_out(job.ids.slot);
                return true;
            }
            Choice::OverRate => {
                self.producer.rate_limited(job.ids.slot);
                return true;
            }
        }
        self.record(job, frame) != Noted::LimitReached
    }

    fn record(&mut self, job: SocketJob, frame: &Frame<'_>) -> Noted {
        let SocketJob {
            ids,
            snaplen,
            queue,
            ethernet,
            meta,
        } = job;
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
            interface: if frame.hardware_time {
                ids.hardware_interface
            } else {
                ids.interface
            },
            time: frame.time,
            hardware_stamped: frame.hardware_time,
            flags: meta.flags.then(|| flags(frame.way)),
            identified: meta.id,
            queue,
            original: frame.original + tag.len() as u32,
            snaplen,
            bytes: [addresses, reached, rest],
        })
    }
}

fn flags(way: PacketType) -> u32 {
    match way {
        PacketType::ToUs => DIRECTION_INBOUND | UNICAST,
        PacketType::ToGroup => DIRECTION_INBOUND | MULTICAST,
        PacketType::ToAll => DIRECTION_INBOUND | BROADCAST,
        PacketType::ToOthers => DIRECTION_INBOUND | PROMISCUOUS,
        PacketType::Sent => DIRECTION_OUTBOUND,
    }
}
