//! The merge: records of several CPUs leave in the order of their time stamps, in runs. While only one CPU has records,
//! whole chunks go out unread.
//!
//! Future records of a CPU are stamped later than now, unless its ring says that a record is being written at this
//! moment, or that the CPU is within a poll and stamps without reading the clock. So a round observes all rings twice:
//! records present at the first look may go out up to the time between the looks, or up to the last record of a ring
//! within one.

use trawl_pipeline::{Blocks, Feed, Leased};
use trawl_ring::{Consumer, Observation};
use trawl_sys::Result;
use trawl_sys::clock::{self, StepDetector};

/// Time after which a mark set by another CPU is visible to ours.
const STORE_VISIBLE_NS: u64 = 2_000;
/// Time that records may wait for a ring that does not move: its CPU may have been descheduled within a record.
const PATIENCE_NS: u64 = 100_000_000;
/// Maximum age of a stamp that continues an earlier one: a tick of the kernel, or two of the slowest.
const TICK_NS: u64 = 20_000_000;
/// Time that a partly filled segment may wait for a writer that wants whole ones.
const HOLD_NS: u64 = 4_000_000;
/// Length below which runs are gathered before they are written.
const SHORT_RUN: usize = 16 << 10;
const GATHER: usize = 256 << 10;

#[derive(Debug)]
pub struct Merge {
    streams: Vec<Stream>,
    gathered: Vec<u8>,
    steps: StepDetector,
    /// The time for which records wait, and the start of the wait on the monotonic clock.
    waiting: Option<(u64, u64)>,
    /// Start of the time for which the partly filled segment has been held back.
    held_since: Option<u64>,
    /// Records carry times of different clocks, so they leave in the order in which they were seen.
    in_order_seen: bool,
}

#[derive(Debug)]
struct Stream {
    consumer: Consumer,
    /// Records present at the first look, and at the second.
    until: Observation,
    later: Observation,
    /// Time of the record at the front, once read.
    front: Option<u64>,
}

impl Merge {
    pub fn new(consumers: Vec<Consumer>, in_order_seen: bool) -> Self {
        let mut merge = Self {
            streams: Vec::new(),
            gathered: Vec::with_capacity(GATHER),
            steps: StepDetector::new(),
            waiting: None,
            held_since: None,
            in_order_seen,
        };
        merge.add(consumers);
        merge
    }

    /// Adds the rings of taps that were attached later.
    pub fn add(&mut self, consumers: Vec<Consumer>) {
        let stream =
            |consumer| Stream { consumer, until: Observation::default(), later: Observation::default(), front: None };
        self.streams.extend(consumers.into_iter().map(stream));
    }

    /// Moves records that can go out now, and returns their number of bytes.
    pub fn round(&mut self, feed: &mut Feed<'_>) -> Result<usize> {
        if feed.is_blocked() {
            return Ok(0);
        }
        for stream in &mut self.streams {
            stream.until = stream.consumer.observe();
        }
        let with_records = self.streams.iter().filter(|stream| !stream.consumer.is_drained(&stream.until)).count();
        if with_records == 0 {
            return Ok(0);
        }
        if self.streams.len() == 1 {
            return self.move_whole(feed);
        }
        let horizon = self.observe_again();
        if with_records == 1 && self.others_idle() {
            return self.move_whole(feed);
        }
        for stream in &mut self.streams {
            stream.until = stream.later;
        }
        self.move_merged(horizon, feed)
    }

    /// Returns true if the last round left no records, in rings or on their way.
    pub fn is_at_rest(&self) -> bool {
        self.gathered.is_empty() && self.streams.iter().all(|stream| stream.consumer.is_drained(&stream.until))
    }

    /// Moves all records until the writer is blocked. Called after recording has stopped.
    pub fn finish(&mut self, feed: &mut Feed<'_>) -> Result<usize> {
        if feed.is_blocked() {
            return Ok(0);
        }
        for stream in &mut self.streams {
            stream.until = stream.consumer.observe();
        }
        self.move_merged(u64::MAX, feed)
    }

    /// Observes the rings a second time, and returns the time up to which all records are known.
    fn observe_again(&mut self) -> u64 {
        let between = clock::wall();
        let steady = clock::monotonic();
        while clock::monotonic() - steady < STORE_VISIBLE_NS {
            std::hint::spin_loop();
        }
        let mut horizon = between;
        for stream in &mut self.streams {
            stream.later = stream.consumer.observe();
            let Observation { in_flight, counts_on, last_time, .. } = stream.later;
            if in_flight {
                horizon = horizon.min(last_time);
            } else if counts_on {
                horizon = horizon.min(last_time.max(between.saturating_sub(TICK_NS)));
            }
        }
        // After a step of the wall clock, earlier times say nothing about later ones.
        if self.steps.stepped() || self.in_order_seen { u64::MAX } else { horizon }
    }

    /// Returns true if the stream with records at the first look is still the only one at the second.
    fn others_idle(&self) -> bool {
        self.streams
            .iter()
            .filter(|stream| {
                let Observation { in_flight, counts_on, .. } = stream.later;
                in_flight || counts_on || !stream.consumer.is_drained(&stream.later)
            })
            .count()
            == 1
    }

    fn move_whole(&mut self, feed: &mut Feed<'_>) -> Result<usize> {
        let mut moved = 0;
        for stream in &mut self.streams {
            while !feed.is_blocked() {
                if feed.wants_segments() {
                    if let Some(segment) = stream.consumer.lease(&stream.until) {
                        stream.front = None;
                        self.held_since = None;
                        moved += segment.bytes().len();
                        feed.write(Blocks::Segment(Box::new(segment)))?;
                        continue;
                    }
                    if stream.consumer.is_at_open_segment(&stream.until) && holds_back(&mut self.held_since) {
                        break;
                    }
                }
                let chunk = stream.consumer.chunk(&stream.until);
                if chunk.is_empty() {
                    break;
                }
                self.held_since = None;
                let length = chunk.len();
                let written = feed.write(Blocks::Bytes(chunk));
                stream.pass(length);
                moved += length;
                written?;
            }
        }
        self.waiting = None;
        Ok(moved)
    }

    fn move_merged(&mut self, horizon: u64, feed: &mut Feed<'_>) -> Result<usize> {
        let patient = self.has_patience(horizon);
        let horizon = if patient { horizon } else { u64::MAX };
        let mut moved = 0;
        let mut held_back = false;
        while let Some((first, limit)) = self.next_run() {
            if self.streams[first].front.is_some_and(|time| time > horizon) {
                held_back = true;
                break;
            }
            moved += self.move_run(first, limit.min(horizon), feed)?;
            if feed.is_blocked() {
                break;
            }
        }
        self.flush(feed)?;
        if patient && !held_back {
            self.waiting = None;
        }
        Ok(moved)
    }

    /// Returns false once the horizon has stayed in one position for too long: a ring is stuck. Under steady load some
    /// records are always held back.
    fn has_patience(&mut self, horizon: u64) -> bool {
        let now = clock::monotonic();
        match self.waiting {
            Some((waiting_for, since)) if waiting_for == horizon => now - since <= PATIENCE_NS,
            _ => {
                self.waiting = Some((horizon, now));
                true
            }
        }
    }

    /// Returns the stream with the earliest front, and the front of the next stream.
    fn next_run(&mut self) -> Option<(usize, u64)> {
        let mut first: Option<(usize, u64)> = None;
        let mut limit = u64::MAX;
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let Some(time) = stream.front_time() else {
                continue;
            };
            match first {
                Some((_, earliest)) if time >= earliest => limit = limit.min(time),
                _ => {
                    limit = first.map_or(limit, |(_, earliest)| limit.min(earliest));
                    first = Some((index, time));
                }
            }
        }
        first.map(|(index, _)| (index, limit))
    }

    /// Moves records at a stream's front up to the time limit, at least one.
    fn move_run(&mut self, index: usize, limit: u64, feed: &mut Feed<'_>) -> Result<usize> {
        let Self { streams, gathered, .. } = self;
        let stream = &mut streams[index];
        let chunk = stream.consumer.chunk(&stream.until);
        let mut length = record_length(chunk);
        while length < chunk.len() && record_time(&chunk[length..]) <= limit {
            length += record_length(&chunk[length..]);
        }
        let run = &chunk[..length];
        // A writer that wants whole segments gathers shorter runs itself.
        let written = if length >= SHORT_RUN || feed.wants_segments() {
            match write_gathered(gathered, feed) {
                Ok(()) => feed.write(Blocks::Bytes(run)),
                Err(error) => {
                    // Kept, so that the summary counts it.
                    gathered.extend_from_slice(run);
                    Err(error)
                }
            }
        } else {
            let room = gathered.len() + length <= GATHER;
            let written = if room { Ok(()) } else { write_gathered(gathered, feed) };
            gathered.extend_from_slice(run);
            written
        };
        stream.pass(length);
        written.map(|()| length)
    }

    fn flush(&mut self, feed: &mut Feed<'_>) -> Result<()> {
        write_gathered(&mut self.gathered, feed)
    }
}

/// Returns true while the open segment should wait to be filled.
fn holds_back(since: &mut Option<u64>) -> bool {
    let now = clock::monotonic();
    now - *since.get_or_insert(now) < HOLD_NS
}

fn write_gathered(gathered: &mut Vec<u8>, feed: &mut Feed<'_>) -> Result<()> {
    if gathered.is_empty() {
        return Ok(());
    }
    let written = feed.write(Blocks::Bytes(gathered));
    gathered.clear();
    written
}

impl Stream {
    fn pass(&mut self, bytes: usize) {
        self.consumer.consume(bytes);
        self.front = None;
    }

    fn front_time(&mut self) -> Option<u64> {
        if self.front.is_none() {
            let chunk = self.consumer.chunk(&self.until);
            self.front = (!chunk.is_empty()).then(|| record_time(chunk));
        }
        self.front
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

/// Returns the total length of the block at the front. An impossible length stands for all bytes, so that a damaged
/// ring cannot stop the merge.
fn record_length(bytes: &[u8]) -> usize {
    match word(bytes, 4) as usize {
        length if length >= 32 && length <= bytes.len() => length,
        _ => bytes.len(),
    }
}

fn record_time(bytes: &[u8]) -> u64 {
    u64::from(word(bytes, 12)) << 32 | u64::from(word(bytes, 16))
}
