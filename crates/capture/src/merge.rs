//! The merge: records of several CPUs leave in the order of their time stamps. What moves is runs of records; while
//! only one CPU has any, whole chunks go out as they are and nothing is looked at.
//!
//! What is known of a CPU that has nothing to show? Records it will still make are stamped later than now, unless one
//! is being written at this moment, or it is in the middle of a poll and stamps without a reading of the clock, both of which
//! its ring says. So a round looks at all rings twice: what was there at the
//! first look may go out up to the time between the looks, or up to the last record of a ring in the middle of one.

use trawl_pipeline::{Blocks, Feed};
use trawl_ring::{Consumer, Observation};
use trawl_sys::Result;
use trawl_sys::clock::{self, StepDetector};

/// A mark set by another CPU is seen by ours after this time at the latest.
const STORE_VISIBLE_NS: u64 = 2_000;
/// How long records may wait for a ring that does not move: its CPU may have been taken away in the middle of one.
const PATIENCE_NS: u64 = 100_000_000;
/// A stamp that continues an earlier one is not older than a tick of the kernel's, and two at the slowest.
const TICK_NS: u64 = 20_000_000;
/// How long a segment that is being filled may wait for a writer that wants whole ones.
const HOLD_NS: u64 = 4_000_000;
/// Runs shorter than this are gathered before they are written.
const SHORT_RUN: usize = 16 << 10;
const GATHER: usize = 256 << 10;

#[derive(Debug)]
pub struct Merge {
    streams: Vec<Stream>,
    gathered: Vec<u8>,
    steps: StepDetector,
    /// The time that records are waiting for to pass, and since when, on the steady clock, it has not.
    waiting: Option<(u64, u64)>,
    /// Since when the segment that is being filled has been held back.
    held_since: Option<u64>,
    /// Records carry times of different clocks: the order can only be that in which they were seen.
    in_order_seen: bool,
}

#[derive(Debug)]
struct Stream {
    consumer: Consumer,
    /// What was there at the first look, and at the second.
    until: Observation,
    later: Observation,
    /// The time of the record at the front, once it was looked at.
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

    /// Takes in rings of taps that were attached later.
    pub fn add(&mut self, consumers: Vec<Consumer>) {
        let stream = |consumer| Stream {
            consumer,
            until: Observation::default(),
            later: Observation::default(),
            front: None,
        };
        self.streams.extend(consumers.into_iter().map(stream));
    }

    /// Moves records that can go out now, and returns their bytes.
    pub fn round(&mut self, feed: &mut Feed<'_>) -> Result<usize> {
        if feed.is_blocked() {
            return Ok(0);
        }
        for stream in &mut self.streams {
            stream.until = stream.consumer.observe();
        }
        let with_records = self
            .streams
            .iter()
            .filter(|stream| !stream.consumer.is_drained(&stream.until))
            .count();
        if with_records == 0 {
            return Ok(0);
        }
        if self.streams.len() == 1 {
            return self.move_whole(feed);
        }
        let horizon = self.look_again();
        if with_records == 1 && self.others_idle() {
            return self.move_whole(feed);
        }
        for stream in &mut self.streams {
            stream.until = stream.later;
        }
        self.move_merged(horizon, feed)
    }

    /// Moves all records until the writer is blocked. Called when nothing is recorded any more.
    pub fn finish(&mut self, feed: &mut Feed<'_>) -> Result<usize> {
        if feed.is_blocked() {
            return Ok(0);
        }
        for stream in &mut self.streams {
            stream.until = stream.consumer.observe();
        }
        self.move_merged(u64::MAX, feed)
    }

    /// Takes the second look, and returns the time up to which all records are known.
    fn look_again(&mut self) -> u64 {
        let between = clock::wall();
        let steady = clock::monotonic();
        while clock::monotonic() - steady < STORE_VISIBLE_NS {
            std::hint::spin_loop();
        }
        let mut horizon = between;
        for stream in &mut self.streams {
            stream.later = stream.consumer.observe();
            let Observation {
                in_flight,
                counts_on,
                last_time,
                ..
            } = stream.later;
            if in_flight {
                horizon = horizon.min(last_time);
            } else if counts_on {
                horizon = horizon.min(last_time.max(between.saturating_sub(TICK_NS)));
            }
        }
        // After a step of the wall clock the times before it say nothing about those after it.
        if self.steps.stepped() || self.in_order_seen {
            u64::MAX
        } else {
            horizon
        }
    }

    /// Whether the one stream that had records at the first look was the only one to make any until the second.
    fn others_idle(&self) -> bool {
        self.streams
            .iter()
            .filter(|stream| {
                let Observation {
                    in_flight,
                    counts_on,
                    ..
                } = stream.later;
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
                        feed.write(Blocks::Segment(segment))?;
                        continue;
                    }
                    if stream.consumer.is_at_open_segment(&stream.until)
                        && holds_back(&mut self.held_since)
                    {
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

    /// Under steady load there is always something to hold back: what tells a ring that is stuck is that the horizon
    /// stays where it is.
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

    /// The stream whose front is the earliest, and the front of the next one after it.
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

    /// Moves the records at a stream's front that are not later than the limit, at least one.
    fn move_run(&mut self, index: usize, limit: u64, feed: &mut Feed<'_>) -> Result<usize> {
        let Self {
            streams, gathered, ..
        } = self;
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
                    // Kept, so that it can be accounted for.
                    gathered.extend_from_slice(run);
                    Err(error)
                }
            }
        } else {
            let room = gathered.len() + length <= GATHER;
            let written = if room {
                Ok(())
            } else {
                write_gathered(gathered, feed)
            };
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

/// Whether the open segment is still to wait, in case that it is full soon.
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
    bytes
        .get(at..at + 4)
        .and_then(|four| four.first_chunk())
        .map_or(0, |four| u32::from_le_bytes(*four))
}

/// The total length of the block at the front. A length that cannot be stands for all that is there, so that a
/// damaged ring cannot hold the merge in one place.
fn record_length(bytes: &[u8]) -> usize {
    match word(bytes, 4) as usize {
        length if length >= 32 && length <= bytes.len() => length,
        _ => bytes.len(),
    }
}

fn record_time(bytes: &[u8]) -> u64 {
    u64::from(word(bytes, 12)) << 32 | u64::from(word(bytes, 16))
}
