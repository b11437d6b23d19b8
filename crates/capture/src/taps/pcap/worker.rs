//! The thread that reads a library's device: never waits in the library, writes records into its ring, and keeps the
//! library's statistics.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trawl_packet::pcapng::block::{LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2};

use parking_lot::Mutex;
use trawl_filter::Classic;
use trawl_io::libpcap::{Handle, Packet, PcapFigures, Rest};
use trawl_packet::pcapng::block::{DIRECTION_INBOUND, DIRECTION_OUTBOUND};
use trawl_ring::producer::{Noted, Producer, Sighting};
use trawl_sys::events::{self, Wake};
use trawl_sys::{Result, clock};

use crate::event::{Event, ReadFailure};
use crate::extent::Extent;
use crate::point::PointIds;
use crate::sampling::Sampling;
use crate::taps::threads::Failure;
use trawl_plan::options::Meta;

/// Longest sleep. Records of other rings wait until this ring has announced that it has no earlier ones.
const NAP: Duration = Duration::from_millis(5);
/// Longest sleep without a descriptor that signals packets.
const NAP_BLIND: Duration = Duration::from_millis(1);
/// Maximum delay between a packet's arrival and its reading: the library hands over several at once.
const LAG_NS: u64 = 20_000_000;
/// Time within which packets from before the end are handed over; the longer limit is for a busy device.
const LAST_WAIT: Duration = Duration::from_millis(40);
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which the library's counters are read: they have 32 bits, and wrap.
const FIGURES_EVERY: Duration = Duration::from_millis(200);

/// Packet type in the header of a cooked capture: sent by this host.
const SENT: u8 = 4;

/// Properties common to all packets of the tap.
#[derive(Clone, Debug)]
pub struct PcapPoint {
    pub ids: PointIds,
    pub extent: Extent,
    pub directions: Directions,
    pub stamped_by_card: bool,
    /// True if the library waits for packets despite non-blocking mode: it is called only when packets are ready.
    pub asks_first: bool,
    pub meta: Meta,
    /// The filter, if trawl runs it: the library would check each packet in user space too, and not count rejected ones.
    pub filter: Option<Classic>,
}

/// Source of a packet's direction.
#[derive(Clone, Copy, Debug)]
pub enum Directions {
    Unknown,
    All(u32),
    /// The byte at this offset contains it.
    At(usize),
}

impl Directions {
    pub fn by_link_type(link_type: u16) -> Self {
        match link_type {
            LINKTYPE_LINUX_SLL => Self::At(1),
            LINKTYPE_LINUX_SLL2 => Self::At(10),
            _ => Self::Unknown,
        }
    }

    fn flags(self, bytes: &[u8]) -> Option<u32> {
        match self {
            Self::Unknown => None,
            Self::All(direction) => Some(direction),
            Self::At(offset) => bytes.get(offset).map(|kind| match *kind {
                SENT => DIRECTION_OUTBOUND,
                _ => DIRECTION_INBOUND,
            }),
        }
    }
}

/// Counts of the library, which the thread keeps for the session.
#[derive(Debug, Default)]
pub struct LibraryCounts {
    dropped: AtomicU64,
    untimely: AtomicU64,
    figures: Mutex<Option<PcapFigures>>,
}

impl LibraryCounts {
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub fn figures(&self) -> Option<PcapFigures> {
        *self.figures.lock()
    }

    /// Returns an event about packets with impossible times.
    pub fn remark(&self, library: &str) -> Option<Event> {
        let packets = self.untimely.load(Ordering::Relaxed);
        (packets > 0).then(|| Event::ImpossibleTimes { library: library.to_owned(), packets })
    }
}

#[derive(Debug)]
pub struct Worker {
    handle: Handle,
    wake: Wake,
    recorder: Recorder,
    figures_read: Instant,
    failure: Failure,
}

#[derive(Debug)]
struct Recorder {
    producer: Producer,
    point: PcapPoint,
    sampling: Sampling,
    counts: Arc<LibraryCounts>,
    /// End of the capture: later packets do not count.
    end: Option<u64>,
    shown: u64,
}

impl Worker {
    pub fn new(
        handle: Handle,
        producer: Producer,
        point: PcapPoint,
        sampling: Sampling,
        (counts, failure): (Arc<LibraryCounts>, Failure),
        wake: Wake,
    ) -> Self {
        Self {
            handle,
            wake,
            recorder: Recorder { producer, point, sampling, counts, end: None, shown: 0 },
            figures_read: Instant::now(),
            failure,
        }
    }

    /// Records until the capture is stopped or the device fails, then drains the rest.
    pub fn run(mut self) {
        let done = self.record_until_stopped().and_then(|()| self.drain());
        self.read_figures();
        if let Err(error) = done {
            self.failure.set(ReadFailure::Error { why: error.to_string() });
        }
    }

    fn record_until_stopped(&mut self) -> Result<()> {
        while !self.recorder.producer.is_stopped() {
            // The clock is read before the packets, so that no later packet has an earlier time.
            let now = clock::wall();
            if self.read()? == Rest::Nothing {
                self.recorder.producer.advance(now.saturating_sub(LAG_NS));
                self.wait(NAP)?;
            }
            if self.figures_read.elapsed() >= FIGURES_EVERY {
                self.read_figures();
            }
        }
        Ok(())
    }

    /// Reads the packets from before the end, up to the last one.
    fn drain(&mut self) -> Result<()> {
        let end = clock::wall();
        self.recorder.end = (!self.recorder.point.stamped_by_card).then_some(end);
        let began = Instant::now();
        let mut waited = Duration::ZERO;
        while began.elapsed() < DRAIN_PATIENCE && waited < LAST_WAIT {
            match self.read()? {
                Rest::Stopped => break,
                Rest::MoreMayCome => waited = Duration::ZERO,
                Rest::Nothing => {
                    events::wait(self.handle.descriptor().as_slice(), NAP)?;
                    waited += NAP;
                }
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Rest> {
        if self.recorder.point.asks_first
            && self.handle.descriptor().is_some_and(|packets| !events::is_readable(packets))
        {
            return Ok(Rest::Nothing);
        }
        let before = self.recorder.shown;
        let recorder = &mut self.recorder;
        let rest = self.handle.dispatch(&mut |packet| recorder.record(&packet))?;
        match rest {
            // A library that reports more without showing any is not called again at once.
            Rest::MoreMayCome if self.recorder.shown == before => Ok(Rest::Nothing),
            rest => Ok(rest),
        }
    }

    fn wait(&self, at_most: Duration) -> Result<()> {
        let producer = &self.recorder.producer;
        match (self.handle.descriptor(), producer.wake().filter(|_| producer.may_rest())) {
            (Some(packets), Some(wake)) => {
                let waited = events::wait(&[packets, self.wake.as_fd(), wake.as_fd()], FIGURES_EVERY);
                wake.clear();
                waited
            }
            (Some(packets), None) => events::wait(&[packets, self.wake.as_fd()], at_most),
            (None, _) => events::wait(&[self.wake.as_fd()], at_most.min(NAP_BLIND)),
        }
    }

    fn read_figures(&mut self) {
        self.figures_read = Instant::now();
        let figures = self.handle.figures();
        let mut known = self.recorder.counts.figures.lock();
        let before = known.map_or(0, |known| known.dropped);
        if figures.is_some() {
            *known = figures;
        }
        drop(known);
        let more = figures.map_or(0, |now| now.dropped.saturating_sub(before));
        // Losses after the last wanted record do not count, just like packets.
        if more > 0 && !self.recorder.producer.limit_reached() {
            self.recorder.counts.dropped.fetch_add(more, Ordering::Relaxed);
            self.recorder.producer.add_lost(more);
        }
    }
}

impl Recorder {
    /// Records a packet; returns true if more are wanted.
    fn record(&mut self, packet: &Packet<'_>) -> bool {
        self.shown += 1;
        let time = packet.time.unwrap_or_else(|| {
            self.counts.untimely.fetch_add(1, Ordering::Relaxed);
            clock::wall()
        });
        if self.end.is_some_and(|end| time > end) {
            return false;
        }
        if !self.producer.counts(time, self.point.stamped_by_card) {
            return true;
        }
        let PcapPoint { ids, extent, directions, stamped_by_card, asks_first: _, meta, ref filter } = self.point;
        let Some(bytes) = packet.bytes else {
            self.producer.unreadable(ids.slot);
            return true;
        };
        if filter.as_ref().is_some_and(|filter| filter.run(bytes, packet.original) == 0) {
            self.producer.filtered_out(ids.slot);
            return true;
        }
        let sampled_at = (!stamped_by_card).then_some(time);
        if !self.sampling.admits(sampled_at, &mut self.producer, ids.slot) {
            return true;
        }
        let outcome = self.producer.record(&Sighting {
            point: ids.slot,
            interface: if stamped_by_card { ids.hardware_interface } else { ids.interface },
            time,
            hardware_stamped: stamped_by_card,
            flags: directions.flags(bytes).filter(|_| meta.flags),
            identified: meta.id,
            queue: None,
            original: packet.original,
            snaplen: extent.of(bytes, 0),
            bytes: [bytes, &[], &[]],
        });
        outcome != Noted::LimitReached
    }
}
