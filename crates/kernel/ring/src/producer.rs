//! The writing side of a ring for packets that come through user space: a thread's equivalent of bpf/lib/ring.h and
//! record.h.
//!
//! One thing differs. A program's record is stamped at the time of writing; a packet from a socket was stamped a little
//! earlier. So a producer keeps its ring marked as being in the middle of a record all the time, and announces by
//! [`Producer::advance`] the time from which on records may still come.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use trawl_bpf::layout::PointCounters;
use trawl_sys::events::Wake;

use crate::{Bell, Control, IN_FLIGHT, Rings, store32};

const BLOCK_ENHANCED_PACKET: u32 = 6;
const OPTION_FLAGS: u32 = option(2, 4);
const OPTION_DROPCOUNT: u32 = option(4, 8);
const OPTION_PACKETID: u32 = option(5, 8);
const OPTION_QUEUE: u32 = option(6, 4);
const END_OF_OPTIONS: u32 = 0;

/// Bytes of a block before the packet's and after them.
const HEADER: usize = 28;
const FLAGS: usize = 8;
const COUNT: usize = 12;
const QUEUE: usize = 8;
/// Length of the end of the options, if any, and the trailing block length.
const OPTIONS_END: usize = 4;
const END: usize = 4;

const fn option(code: u32, length: u32) -> u32 {
    code | length << 16
}

/// A packet to record, with its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    pub point: u32,
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// True if the time is the network card's own.
    pub hardware_stamped: bool,
    /// The pcapng flags, if wanted: direction and kind of reception.
    pub flags: Option<u32>,
    pub queue: Option<u32>,
    /// Set if the packet's identifier is wanted.
    pub identified: bool,
    /// Length of the original packet.
    pub original: u32,
    /// Most bytes to record.
    pub snaplen: u32,
    /// Bytes at hand, in consecutive pieces.
    pub bytes: [&'a [u8]; 3],
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    Recorded,
    /// The ring is full; the loss is counted.
    Lost,
    /// The limit of records is reached: the packet does not count at all.
    LimitReached,
}

/// The tickets of a capture with a limited number of records (`-c`), shared by all producers.
#[derive(Debug)]
pub struct Tickets {
    limit: Option<u64>,
    own: AtomicU64,
    programs: OnceLock<Arc<Rings>>,
}

impl Tickets {
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, own: AtomicU64::new(0), programs: OnceLock::new() }
    }

    /// Shares the tap programs' ticket counter. Called before a ticket is taken.
    pub fn share_with(&self, rings: &Arc<Rings>) {
        // A second call could only name the same rings: a capture has one set of them.
        let _ = self.programs.set(Arc::clone(rings));
    }

    fn counter(&self) -> &AtomicU64 {
        self.programs.get().and_then(|rings| rings.tickets()).unwrap_or(&self.own)
    }

    fn take(&self) -> bool {
        self.limit.is_none_or(|limit| self.counter().fetch_add(1, Ordering::Relaxed) < limit)
    }

    /// Returns whether all tickets have been taken.
    pub fn exhausted(&self) -> bool {
        self.limit.is_some_and(|limit| self.counter().load(Ordering::Relaxed) >= limit)
    }
}

/// The writing side of one ring.
#[derive(Debug)]
pub struct Producer {
    rings: Arc<Rings>,
    ring: usize,
    tickets: Arc<Tickets>,
    /// Ordinal of the open segment in the upper half, its number of finished bytes in the lower half.
    position: u64,
    /// `None` before the first record.
    segment: Option<u32>,
    /// Lower bound of the times of later records.
    horizon: u64,
    /// Losses outside the ring that the next record's drop count has to report.
    unreported: u64,
}

impl Producer {
    /// Creates a producer for each ring of [`Rings::in_memory`]. Called once for a set of rings.
    pub fn all(rings: &Arc<Rings>, tickets: &Arc<Tickets>, now: u64) -> Vec<Self> {
        let of = |ring| {
            let control = rings.control(ring);
            let producer = Self {
                rings: Arc::clone(rings),
                ring,
                tickets: Arc::clone(tickets),
                position: rings.geometry().segment_room() as u64,
                segment: None,
                horizon: now,
                unreported: 0,
            };
            control.last_packet_id().store(next_identity(), Ordering::Relaxed);
            control.last_time().store(now, Ordering::Release);
            producer.publish(control);
            producer
        };
        (0..rings.count()).map(of).collect()
    }

    /// Returns whether the capture is over: only packets seen so far are still recorded.
    pub fn is_stopped(&self) -> bool {
        self.rings.is_stopped()
    }

    /// Returns true for a packet from after the beginning of the capture. A card's clock does not decide this.
    pub fn counts(&self, time: u64, by_card: bool) -> bool {
        let begun = self.rings.begun();
        begun == 0 || begun != u64::MAX && (by_card || time >= begun)
    }

    /// Returns true while the reader sleeps: no other records wait for this ring's times.
    pub fn may_rest(&self) -> bool {
        self.rings.control(self.ring).bell().load(Ordering::Relaxed) != Bell::Silent as u64
    }

    /// Returns what wakes this ring's thread when its reader wakes up.
    pub fn wake(&self) -> Option<&Wake> {
        self.rings.threads.as_ref().and_then(|threads| threads.writers.get(self.ring))
    }

    pub fn limit_reached(&self) -> bool {
        self.tickets.exhausted()
    }

    /// Announces that no record will have an earlier time.
    pub fn advance(&mut self, time: u64) {
        if time > self.horizon {
            self.horizon = time;
            let control = self.rings.control(self.ring);
            control.last_time().store(time, Ordering::Release);
        }
    }

    /// Adds packets lost outside the ring to the next record's drop count.
    pub fn add_lost(&mut self, packets: u64) {
        self.unreported += packets;
    }

    /// Counts a packet that was seen but whose bytes could not be read.
    pub fn unreadable(&mut self, point: u32) {
        let account = Counters::of(self.rings.control(self.ring), point);
        account.lost_copy_failed.add(1);
        account.losses_unreported.add(1);
    }

    /// Counts a packet that was seen and is not wanted.
    pub fn filtered_out(&mut self, point: u32) {
        if !self.tickets.exhausted() {
            Counters::of(self.rings.control(self.ring), point).filtered_out.add(1);
        }
    }

    /// Counts a packet that exceeds the rate limit.
    pub fn rate_limited(&mut self, point: u32) {
        if !self.tickets.exhausted() {
            Counters::of(self.rings.control(self.ring), point).lost_rate_limit.add(1);
        }
    }

    /// Writes one record, or counts the loss.
    pub fn record(&mut self, sight: &Sighting<'_>) -> Noted {
        let at_hand: usize = sight.bytes.iter().map(|piece| piece.len()).sum();
        let captured = at_hand.min(sight.snaplen as usize).min(self.rings.geometry().max_captured() as usize);
        let account = Counters::of(self.rings.control(self.ring), sight.point);
        let drop_count = account.losses_unreported.get() + self.unreported;
        let options = options_length(sight, drop_count);
        let size = HEADER + captured.next_multiple_of(4) + options + END;
        if !self.make_room(size) {
            if self.tickets.exhausted() {
                return Noted::LimitReached;
            }
            account.lost_ring_full.add(1);
            account.losses_unreported.add(1);
            return Noted::Lost;
        }
        if !self.tickets.take() {
            return Noted::LimitReached;
        }
        account.mark_losses_reported();
        self.unreported = 0;
        let words = Words { drop_count, packet_id: self.next_packet_id(), captured, size: size as u32 };
        fill(self.free_bytes(size), sight, &words);
        if sight.hardware_stamped {
            account.hardware_stamped.add(1);
        }
        if captured < sight.original as usize {
            account.truncated.add(1);
        }
        account.recorded.add(1);
        self.advance(sight.time);
        self.position += size as u64;
        let control = self.rings.control(self.ring);
        self.publish(control);
        self.ring_for(control, Bell::ForRecord);
        Noted::Recorded
    }

    fn next_packet_id(&self) -> u64 {
        let counter = Counter(self.rings.control(self.ring).last_packet_id());
        counter.add(1);
        counter.get()
    }

    /// Makes room for a block in the open segment, by opening another if needed.
    fn make_room(&mut self, size: usize) -> bool {
        if self.used() + size <= self.rings.geometry().segment_room() {
            return true;
        }
        let Some(next) = self.rings.take_segment() else {
            return false;
        };
        let control = self.rings.control(self.ring);
        match self.segment {
            Some(segment) => {
                let state = self.rings.state();
                store32(state.used(segment), self.used() as u32);
                store32(state.next(segment), next);
            }
            None => store32(control.first_segment(), next),
        }
        self.segment = Some(next);
        let ordinal = (self.position >> 32) as u32;
        self.position = u64::from(ordinal.wrapping_add(1)) << 32;
        self.publish(control);
        self.ring_for(control, Bell::ForSegment);
        true
    }

    fn used(&self) -> usize {
        self.position as u32 as usize
    }

    fn publish(&self, control: Control) {
        control.position().store(self.position | IN_FLIGHT, Ordering::Release);
    }

    /// Wakes the reader, if it waits for this.
    fn ring_for(&self, control: Control, what: Bell) {
        if control.bell().load(Ordering::Relaxed) == what as u64
            && let Some(threads) = &self.rings.threads
        {
            control.bell().store(Bell::Silent as u64, Ordering::Relaxed);
            threads.reader.ring();
        }
    }

    /// Returns the next `size` bytes of the open segment, which `make_room` has found.
    fn free_bytes(&mut self, size: usize) -> &mut [u8] {
        let used = self.used();
        assert!(used + size <= self.rings.geometry().segment_room());
        let segment = self.segment.expect("make_room opened one");
        let start = self.rings.bytes(segment, used);
        // SAFETY: the range lies within the open segment (just checked), which the consumer does not read beyond the
        // published position, and which no other producer writes to. The memory is mapped, and zero or written.
        unsafe { std::slice::from_raw_parts_mut(start, size) }
    }
}

impl Drop for Producer {
    /// Ends the ring: the merge does not wait for it any more.
    fn drop(&mut self) {
        let control = self.rings.control(self.ring);
        control.position().store(self.position, Ordering::Release);
    }
}

/// Returns the next identifier. Programs number packets from their CPU number in the upper 16 bits; producers use the
/// other end of that range, so that no two packets of a capture share an identifier.
fn next_identity() -> u64 {
    static PRODUCERS: AtomicU32 = AtomicU32::new(0);
    let number = PRODUCERS.fetch_add(1, Ordering::Relaxed);
    (0xffff - u64::from(number & 0x7fff)) << 48
}

/// The fields of a block that the ring supplies.
struct Words {
    drop_count: u64,
    packet_id: u64,
    captured: usize,
    size: u32,
}

/// Writes a whole block; `block` has exactly its length.
fn fill(block: &mut [u8], sight: &Sighting<'_>, words: &Words) {
    let padded = words.captured.next_multiple_of(4);
    let (header, rest) = block.split_at_mut(HEADER);
    let (bytes, options) = rest.split_at_mut(padded);
    put(
        header,
        [
            BLOCK_ENHANCED_PACKET,
            words.size,
            sight.interface,
            (sight.time >> 32) as u32,
            sight.time as u32,
            words.captured as u32,
            sight.original,
        ],
    );
    let (mut to, padding) = bytes.split_at_mut(words.captured);
    for piece in sight.bytes {
        let (now, later) = to.split_at_mut(piece.len().min(to.len()));
        now.copy_from_slice(&piece[..now.len()]);
        to = later;
    }
    padding.fill(0);
    let mut rest = options;
    if let Some(flags) = sight.flags {
        rest = put(rest, [OPTION_FLAGS, flags]);
    }
    if sight.identified {
        rest = put_count(rest, OPTION_PACKETID, words.packet_id);
    }
    if let Some(queue) = sight.queue {
        rest = put(rest, [OPTION_QUEUE, queue]);
    }
    if words.drop_count > 0 {
        rest = put_count(rest, OPTION_DROPCOUNT, words.drop_count);
    }
    if rest.len() > END {
        rest = put(rest, [END_OF_OPTIONS]);
    }
    put(rest, [words.size]);
}

/// Returns the length of a record's options.
fn options_length(sight: &Sighting<'_>, drop_count: u64) -> usize {
    let length: usize = [
        (sight.flags.is_some(), FLAGS),
        (sight.identified, COUNT),
        (sight.queue.is_some(), QUEUE),
        (drop_count > 0, COUNT),
    ]
    .iter()
    .map(|(there, length)| if *there { *length } else { 0 })
    .sum();
    if length > 0 { length + OPTIONS_END } else { 0 }
}

fn put_count(to: &mut [u8], option: u32, count: u64) -> &mut [u8] {
    put(to, [option, count as u32, (count >> 32) as u32])
}

/// Writes u32 values in the file's byte order, and returns the rest.
fn put<const N: usize>(to: &mut [u8], words: [u32; N]) -> &mut [u8] {
    let (now, later) = to.split_at_mut(4 * N);
    for (bytes, word) in now.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    later
}

/// A count with one writing thread and several readers.
#[derive(Clone, Copy)]
struct Counter<'a>(&'a AtomicU64);

impl Counter<'_> {
    fn get(self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The single writer needs no locked addition.
    fn add(self, more: u64) {
        self.0.store(self.get() + more, Ordering::Relaxed);
    }
}

struct Counters<'a> {
    filtered_out: Counter<'a>,
    lost_rate_limit: Counter<'a>,
    recorded: Counter<'a>,
    lost_ring_full: Counter<'a>,
    lost_copy_failed: Counter<'a>,
    losses_unreported: Counter<'a>,
    hardware_stamped: Counter<'a>,
    truncated: Counter<'a>,
}

impl Counters<'_> {
    fn of(control: Control, point: u32) -> Self {
        let account = control.point(point as usize);
        let counter = |offset| {
            let at = account.cast::<u8>().wrapping_add(offset).cast();
            // SAFETY: the offset belongs to an aligned u64 member of the account, which lies within the control block;
            // the calling Producer keeps the mapping alive.
            Counter(unsafe { AtomicU64::from_ptr(at) })
        };
        Self {
            filtered_out: counter(offset_of!(PointCounters, filtered_out)),
            lost_rate_limit: counter(offset_of!(PointCounters, lost_rate_limit)),
            recorded: counter(offset_of!(PointCounters, recorded)),
            lost_ring_full: counter(offset_of!(PointCounters, lost_ring_full)),
            lost_copy_failed: counter(offset_of!(PointCounters, lost_copy_failed)),
            losses_unreported: counter(offset_of!(PointCounters, losses_unreported)),
            hardware_stamped: counter(offset_of!(PointCounters, hardware_stamped)),
            truncated: counter(offset_of!(PointCounters, truncated)),
        }
    }

    /// Marks the unreported losses as reported.
    fn mark_losses_reported(&self) {
        if self.losses_unreported.get() > 0 {
            self.losses_unreported.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
