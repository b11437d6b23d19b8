//! The thread that reads the helper's blocks and writes them into the rings of the merge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trawl_io::dpdk::{Blocks, Broken, Counts, DIRECTION_RECEIVED, DIRECTION_SENT, Helper, PORTS};
use trawl_packet::pcapng::block::DIRECTION_OUTBOUND;
use trawl_ring::producer::{Noted, Producer, Sighting};

use crate::event::ReadFailure;
use crate::extent::Extent;
use crate::point::PointIds;
use crate::sampling::Sampling;
use crate::taps::threads::Failure;
use trawl_plan::options::Meta;

/// Sleep while no packets arrive: at first, and after `CHECK_INTERVAL` without packets.
const NAP: Duration = Duration::from_micros(200);
const LONG_NAP: Duration = Duration::from_millis(1);
/// Interval at which the helper's messages are read.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// A better calibration of the clock moves times back by less than this; a larger difference is a step of the clock.
const CALIBRATION_NS: u64 = 20_000_000;

/// Maximum number of rings; more queues share them.
const RINGS_MOST: usize = 64;

const OPTION_FLAGS: u16 = 2;
const OPTION_QUEUE: u16 = 6;
const HEADER: usize = 28;
const END: usize = 4;

/// A port with its hook point.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub ids: PointIds,
    pub number: u16,
}

#[derive(Clone, Debug)]
pub struct DpdkPlan {
    /// Ports in the order of the helper.
    pub ports: Vec<Port>,
    pub queue_rings: QueueRings,
    pub extent: Extent,
    pub meta: Meta,
    pub sampling: Sampling,
}

/// The rings of an application's queues.
#[derive(Clone, Debug)]
pub struct QueueRings {
    /// First ring for received and for sent packets of each port, in the order of the points, with the number of
    /// queues.
    ports: Vec<[(usize, u32); 2]>,
    count: usize,
}

impl QueueRings {
    pub fn new(queues: &[[u32; 2]], directions: u32, queue: Option<u32>) -> Self {
        let mut count = 0;
        let mut of = |direction: usize, queues: u32| {
            let wanted = directions & direction as u32 != 0;
            let number = match (wanted, queue) {
                (false, _) => 0,
                (true, Some(_)) => 1,
                (true, None) => queues.max(1),
            };
            let first = count;
            count += number as usize;
            (first, number)
        };
        let ports = queues
            .iter()
            .map(|[received, sent]| [of(DIRECTION_RECEIVED, *received), of(DIRECTION_SENT, *sent)])
            .collect();
        Self { ports, count: count.clamp(1, RINGS_MOST) }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the ring of a block.
    pub fn ring(&self, port: usize, is_sent: bool, queue: u32) -> usize {
        let (first, queues) = self.ports[port][usize::from(is_sent)];
        (first + (queue % queues.max(1)) as usize) % self.count
    }
}

/// State of the helper, shared between the thread and the session.
#[derive(Debug, Default)]
pub struct HelperState {
    counts: Mutex<[Counts; PORTS]>,
    killed: AtomicBool,
}

impl HelperState {
    pub fn counts(&self, port: u16) -> Counts {
        let counts = self.counts.lock();
        counts[port as usize % PORTS]
    }

    fn put_counts(&self, blocks: &Blocks) {
        let mut counts = self.counts.lock();
        *counts = std::array::from_fn(|port| blocks.counts(port));
    }

    /// Stores the helper's latest counts, which precede the last wanted packet: later packets do not count.
    fn freeze_counts(&self, blocks: &Blocks) {
        self.put_counts(blocks);
        let mut counts = self.counts.lock();
        for port in counts.iter_mut() {
            port.handed_over = port.accepted;
        }
    }

    /// Returns true, once, if the helper was killed and left its callbacks in the application.
    pub fn take_killed(&self) -> bool {
        self.killed.swap(false, Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub struct Worker {
    helper: Helper,
    blocks: Blocks,
    recorder: Recorder,
    state: Arc<HelperState>,
    failure: Failure,
    checked: Instant,
    /// Set once the limit is reached: later packets and losses do not count.
    limit_noted: bool,
}

#[derive(Debug)]
struct Recorder {
    producers: Vec<Producer>,
    /// Latest time of each ring.
    latest: Vec<u64>,
    plan: DpdkPlan,
    /// Index of each port in the plan.
    of_port: [Option<usize>; PORTS],
    broken: bool,
    limit_reached: bool,
}

impl Worker {
    pub fn new(
        helper: Helper,
        producers: Vec<Producer>,
        plan: DpdkPlan,
        state: Arc<HelperState>,
        failure: Failure,
    ) -> Self {
        let mut of_port = [None; PORTS];
        for (index, port) in plan.ports.iter().enumerate() {
            of_port[port.number as usize % PORTS] = Some(index);
        }
        Self {
            blocks: helper.blocks(),
            helper,
            recorder: Recorder {
                latest: vec![0; producers.len()],
                producers,
                plan,
                of_port,
                broken: false,
                limit_reached: false,
            },
            state,
            failure,
            checked: Instant::now(),
            limit_noted: false,
        }
    }

    /// Records until the capture is stopped or the application has ended, then drains the rest.
    pub fn run(mut self, patience: Duration) {
        if self.record_until_done(patience).is_err() || self.recorder.broken {
            self.failure.set(ReadFailure::HelperBroken);
        }
        if !self.limit_noted {
            self.state.put_counts(&self.blocks);
        }
        self.helper.stop();
        self.helper.wait(patience);
    }

    fn record_until_done(&mut self, patience: Duration) -> Result<(), Broken> {
        let mut stopping_since = None;
        let mut idle_since = Instant::now();
        loop {
            // Both are read before the blocks, which then include everything handed over before.
            let horizon = self.blocks.horizon();
            let is_last = self.blocks.is_done() || self.helper.is_gone();
            let recorder = &mut self.recorder;
            let shown = self.blocks.drain(&mut |block| recorder.record(block))?;
            recorder.advance(horizon);
            if recorder.limit_reached && !self.limit_noted {
                self.limit_noted = true;
                self.state.freeze_counts(&self.blocks);
            }
            if self.checked.elapsed() >= CHECK_INTERVAL || is_last {
                self.read_messages();
            }
            if is_last {
                return Ok(());
            }
            if stopping_since.is_none() && self.recorder.is_stopped() {
                self.blocks.request_stop();
                stopping_since = Some(Instant::now());
            }
            if stopping_since.is_some_and(|since: Instant| since.elapsed() > patience) {
                self.failure.set(ReadFailure::HelperStuck { seconds: patience.as_secs() });
                self.state.killed.store(true, Ordering::Relaxed);
                self.helper.wait(Duration::ZERO);
                return Ok(());
            }
            if shown > 0 {
                idle_since = Instant::now();
            } else if idle_since.elapsed() < CHECK_INTERVAL {
                thread::sleep(NAP);
            } else {
                thread::sleep(LONG_NAP);
            }
        }
    }

    /// Reads the helper's messages and the counts.
    fn read_messages(&mut self) {
        self.checked = Instant::now();
        if !self.limit_noted {
            self.state.put_counts(&self.blocks);
        }
        while let Some(line) = self.helper.line_at_hand() {
            match (line.word.as_str(), line.field(0)) {
                ("ended", "primary") => self.failure.set(ReadFailure::ApplicationEnded),
                ("ended", _) => self.failure.set(ReadFailure::HelperStopped),
                _ => {}
            }
        }
        if self.helper.is_gone() && !self.blocks.is_done() {
            self.state.killed.store(true, Ordering::Relaxed);
            let said = self.helper.last_message();
            self.failure.set(ReadFailure::HelperKilled { said });
        }
    }
}

impl Recorder {
    fn is_stopped(&self) -> bool {
        self.producers.first().is_none_or(Producer::is_stopped)
    }

    fn advance(&mut self, horizon: u64) {
        self.producers.iter_mut().for_each(|producer| producer.advance(horizon));
    }

    fn record(&mut self, block: &[u8]) {
        let Some(seen) = Seen::read(block) else {
            self.broken = true;
            return;
        };
        let Some(index) = self.of_port.get(seen.port as usize).copied().flatten() else {
            self.broken = true;
            return;
        };
        let DpdkPlan { ports, queue_rings, extent, meta, sampling } = &mut self.plan;
        let ids = ports[index].ids;
        let is_sent = seen.flags & 3 == DIRECTION_OUTBOUND;
        let ring = queue_rings.ring(index, is_sent, seen.queue.unwrap_or(0));
        let latest = &mut self.latest[ring];
        let time = if *latest > seen.time && *latest - seen.time < CALIBRATION_NS { *latest } else { seen.time };
        *latest = time;
        let producer = &mut self.producers[ring];
        if !producer.counts(time, false) {
            return;
        }
        if !sampling.admits(Some(time), producer, ids.slot) {
            return;
        }
        let outcome = producer.record(&Sighting {
            point: ids.slot,
            interface: ids.interface,
            time,
            hardware_stamped: false,
            flags: meta.flags.then_some(seen.flags),
            identified: meta.id,
            queue: seen.queue.filter(|_| meta.queue),
            original: seen.original,
            snaplen: extent.of(seen.bytes, 0),
            bytes: [seen.bytes, &[], &[]],
        });
        self.limit_reached |= outcome == Noted::LimitReached;
    }
}

/// An Enhanced Packet Block of DPDK's framework.
#[derive(Debug, PartialEq, Eq)]
struct Seen<'a> {
    port: u32,
    time: u64,
    original: u32,
    flags: u32,
    queue: Option<u32>,
    bytes: &'a [u8],
}

impl<'a> Seen<'a> {
    fn read(block: &'a [u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
        let captured = word(20)? as usize;
        let options = HEADER.checked_add(captured.checked_next_multiple_of(4)?)?;
        let mut seen = Self {
            port: word(8)?,
            time: u64::from(word(12)?) << 32 | u64::from(word(16)?),
            original: word(24)?,
            flags: 0,
            queue: None,
            bytes: block.get(HEADER..HEADER + captured)?,
        };
        let mut rest = block.get(options..block.len().checked_sub(END)?)?;
        // The framework writes no end-of-options option.
        while let Some((head, after)) = rest.split_first_chunk::<4>() {
            let code = u16::from_le_bytes([head[0], head[1]]);
            let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let number = after.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
            match code {
                0 => break,
                OPTION_FLAGS => seen.flags = number?,
                OPTION_QUEUE => seen.queue = number,
                _ => {}
            }
            rest = after.get(length.next_multiple_of(4)..)?;
        }
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_queue_has_a_ring_of_its_own() {
        let rings_of_queues = QueueRings::new(&[[2, 3], [1, 1]], 3, None);
        let mut rings = BTreeSet::new();
        for (port, is_sent, queues) in [(0, false, 2), (0, true, 3), (1, false, 1), (1, true, 1)] {
            (0..queues).for_each(|queue| _ = rings.insert(rings_of_queues.ring(port, is_sent, queue)));
        }
        assert_eq!((rings_of_queues.count(), rings.len()), (7, 7));
    }

    #[test]
    fn only_chosen_queues_have_rings() {
        assert_eq!(QueueRings::new(&[[4, 4]], 1, None).count(), 4);
        assert_eq!(QueueRings::new(&[[4, 4]], 3, Some(2)).count(), 2);
        assert_eq!(QueueRings::new(&[], 3, None).count(), 1);
        let many = QueueRings::new(&[[60, 60]], 3, None);
        assert_eq!(many.count(), RINGS_MOST);
        assert!(many.ring(0, true, 59) < RINGS_MOST);
    }

    fn block(port: u32, queue: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
        let padded = bytes.len().next_multiple_of(4);
        let length = (HEADER + padded + 16 + END) as u32;
        let mut block = Vec::new();
        let mut put = |words: &[u32]| words.iter().for_each(|word| block.extend(word.to_le_bytes()));
        put(&[6, length, port, 1, 2, bytes.len() as u32, 1500]);
        block.extend(bytes);
        block.resize(HEADER + padded, 0);
        let mut put = |words: &[u32]| words.iter().for_each(|word| block.extend(word.to_le_bytes()));
        put(&[2 | 4 << 16, flags, 6 | 4 << 16, queue, length]);
        block
    }

    #[test]
    fn blocks_are_parsed_with_all_fields() {
        let bytes = block(3, 5, 2, b"hello");
        let seen = Seen::read(&bytes).expect("a block");
        let expected = Seen { port: 3, time: 1 << 32 | 2, original: 1500, flags: 2, queue: Some(5), bytes: b"hello" };
        assert_eq!(seen, expected);
    }

    #[test]
    fn invalid_blocks_are_rejected() {
        let whole = block(0, 0, 1, b"hello");
        for cut in 0..whole.len() {
            if let Some(seen) = Seen::read(&whole[..cut]) {
                assert_eq!(seen.bytes, b"hello", "cut at {cut}");
            }
        }
        let mut too_long = whole.clone();
        too_long[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Seen::read(&too_long), None);
        let mut long_option = whole;
        long_option[38..40].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(Seen::read(&long_option), None);
    }
}
