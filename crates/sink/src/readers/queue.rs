//! The packets that wait for a reader. All readers share a batch; the thread of a reader that lost packets before it
//! makes a copy with its losses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use trawl_packet::pcapng::block::{Block, INTERFACE_STATISTICS, blocks};
use trawl_packet::pcapng::write::{with_deliveries, with_drop_count};
use trawl_pipeline::{Counts, Unit};
use trawl_sys::Result;
use trawl_sys::events::Wake;

#[cfg(test)]
use super::budget::MOST_WAITING;

/// Additional size for blocks without packets, which later packets refer to.
const MOST_DESCRIPTIONS: usize = 4 << 20;

/// Bytes in the format of the stream, and their blocks or records.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) units: Vec<Unit>,
}

impl Encoded {
    /// Appends a block of pcapng.
    pub(super) fn push(&mut self, block: &Block<'_>) {
        self.bytes.extend_from_slice(block.bytes);
        self.end_unit(block);
    }

    fn end_unit(&mut self, block: &Block<'_>) {
        self.units
            .push(Unit { end: self.bytes.len(), interface: block.enhanced_packet().map(|packet| packet.interface_id) });
    }

    /// Returns the number of packets that are not whole in the first bytes.
    fn packets_after(&self, bytes: usize) -> usize {
        let first = self.units.partition_point(|unit| unit.end <= bytes);
        let left = self.units[first..].iter();
        left.filter(|unit| unit.interface.is_some()).count()
    }

    fn has_statistics(&self) -> bool {
        // Statistics come last, after all packets.
        let is_packet = |unit: &Unit| unit.interface.is_some();
        !self.units.last().is_none_or(is_packet) && blocks(&self.bytes).any(|block| block.kind == INTERFACE_STATISTICS)
    }
}

/// Blocks for all readers. Each sends them from the front, so the reader that sent the most units decides which packets
/// reached nobody.
#[derive(Debug)]
pub(super) struct Batch {
    encoded: Encoded,
    counts: Counts,
    /// The blocks that later packets refer to, if any: for readers that have no room for the packets.
    descriptions: Option<Arc<Self>>,
    /// Largest number of units that was sent to any reader.
    reached: AtomicUsize,
    missed: Arc<Mutex<Counts>>,
}

impl Batch {
    pub(super) fn new(
        encoded: Encoded,
        counts: Counts,
        descriptions: Encoded,
        missed: &Arc<Mutex<Counts>>,
    ) -> Arc<Self> {
        let has_some = !descriptions.bytes.is_empty();
        Arc::new(Self {
            encoded,
            counts,
            descriptions: has_some.then(|| Self::of_descriptions(descriptions)),
            reached: AtomicUsize::new(0),
            missed: Arc::clone(missed),
        })
    }

    /// Returns the memory that the batch uses.
    fn size(&self) -> usize {
        let Encoded { bytes, units } = &self.encoded;
        bytes.len() + size_of_val(units.as_slice())
    }

    /// Creates a batch without packets.
    pub(super) fn of_descriptions(encoded: Encoded) -> Arc<Self> {
        let (counts, none) = (Counts::default(), Encoded::default());
        Self::new(encoded, counts, none, &Arc::default())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let reached = *self.reached.get_mut();
        let left = self.encoded.units[reached..].iter();
        let mut interfaces = left.filter_map(|unit| unit.interface).peekable();
        if interfaces.peek().is_some() {
            let mut missed = self.missed.lock();
            interfaces.for_each(|interface| missed.add(interface, 1));
        }
    }
}

/// A batch in a reader's queue.
#[derive(Debug)]
pub(super) struct Item {
    batch: Arc<Batch>,
    /// The reader's losses since the previous packets.
    lost_before: Counts,
    /// A copy of the blocks with the reader's own losses and statistics.
    own: Option<Encoded>,
}

impl Item {
    fn encoded(&self) -> &Encoded {
        self.own.as_ref().unwrap_or(&self.batch.encoded)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.encoded().bytes
    }

    /// Returns bytes from an offset on, at most this many, up to the end of a block if possible.
    pub(super) fn piece(&self, from: usize, most: usize) -> &[u8] {
        let Encoded { bytes, units } = self.encoded();
        let limit = from.saturating_add(most);
        if bytes.len() <= limit {
            return &bytes[from..];
        }
        let after = units.partition_point(|unit| unit.end <= limit);
        let whole = after.checked_sub(1).map_or(0, |last| units[last].end);
        &bytes[from..if whole > from { whole } else { limit }]
    }

    /// Returns the end of the block that contains the last of the first bytes.
    pub(super) fn block_end(&self, bytes: usize) -> usize {
        let Encoded { bytes: all, units } = self.encoded();
        let ends = units.partition_point(|unit| unit.end < bytes);
        match bytes {
            0 => 0,
            _ => units.get(ends).map_or(all.len(), |unit| unit.end),
        }
    }

    /// Records that this number of bytes was sent.
    pub(super) fn note_sent(&self, bytes: usize) {
        let units = &self.encoded().units;
        let whole = units.partition_point(|unit| unit.end <= bytes);
        self.batch.reached.fetch_max(whole, Ordering::AcqRel);
    }

    /// Copies the blocks: packets report the reader's losses before them, and statistics its own counts.
    fn make_own(&mut self, accepted: &Counts, lost: &Counts) {
        let mut own = Encoded::default();
        for block in blocks(&self.batch.encoded.bytes) {
            let packet = block.enhanced_packet();
            let before = packet.map_or(0, |packet| self.lost_before.take(packet.interface_id));
            match block.kind {
                INTERFACE_STATISTICS => {
                    let interface = block.body.first_chunk().copied();
                    let interface = [interface.map_or(0, u32::from_le_bytes)];
                    let (delivered, lost) = (accepted.sum(&interface), lost.sum(&interface));
                    with_deliveries(&mut own.bytes, &block, delivered, lost);
                }
                _ if before > 0 => with_drop_count(&mut own.bytes, block.bytes, before),
                _ => own.bytes.extend_from_slice(block.bytes),
            }
            own.end_unit(&block);
        }
        self.own = Some(own);
    }
}

/// A connected reader.
#[derive(Debug)]
pub(super) struct Reader {
    /// Wakes the reader's thread.
    pub(super) wake: Wake,
    is_pcapng: bool,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Bytes not sent yet, including the batch that is being sent.
    bytes: usize,
    accepted: Counts,
    lost: Counts,
    /// Losses that no packet of the stream reports yet.
    unreported: Counts,
    /// True if not even descriptions found room: the stream cannot continue.
    is_cut: bool,
    /// True once the reader has left.
    is_over: bool,
}

impl Reader {
    pub(super) fn new(is_pcapng: bool, begin: Vec<u8>) -> Result<Self> {
        let reader = Self { wake: Wake::new()?, is_pcapng, queue: Mutex::default() };
        reader.describe(begin);
        Ok(reader)
    }

    /// Queues a batch, or counts its packets as lost. The caller is the capture, so this takes the same short time for
    /// every batch. The queue may hold `share` bytes.
    pub(super) fn offer(&self, batch: &Arc<Batch>, share: usize) {
        let mut queue = self.queue.lock();
        if !queue.is_over {
            queue.shrink(share);
            queue.offer(batch, share);
            self.wake.ring();
        }
    }

    /// Queues blocks without packets.
    pub(super) fn describe(&self, bytes: Vec<u8>) {
        let units = Vec::new();
        let batch = Batch::of_descriptions(Encoded { bytes, units });
        self.queue.lock().push(batch, Counts::default());
    }

    /// Removes and returns the next batch; `None` if the queue is empty.
    pub(super) fn next(&self) -> Option<Item> {
        let mut queue = self.queue.lock();
        let mut item = queue.items.pop_front()?;
        let changes = item.lost_before.total() > 0 || item.batch.encoded.has_statistics();
        if self.is_pcapng && changes {
            let (accepted, lost) = (queue.accepted.clone(), queue.lost.clone());
            drop(queue);
            item.make_own(&accepted, &lost);
        }
        Some(item)
    }

    /// Releases a batch that was sent whole.
    pub(super) fn sent(&self, item: Item) {
        let length = item.batch.size();
        // Its packets must be counted before the queue is empty.
        drop(item);
        self.queue.lock().bytes -= length;
    }

    pub(super) fn is_pcapng(&self) -> bool {
        self.is_pcapng
    }

    pub(super) fn is_cut(&self) -> bool {
        self.queue.lock().is_cut
    }

    /// Returns the number of bytes that wait for the reader; 0 once it has left.
    pub(super) fn waiting(&self) -> usize {
        let queue = self.queue.lock();
        if queue.is_over { 0 } else { queue.bytes }
    }

    /// Returns true if nothing waits for the reader, or it has left.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting() == 0
    }

    /// Empties the queue for good, and returns the numbers of packets that were sent and lost. `taken` is the batch
    /// that was being sent, with the number of its bytes that were sent.
    pub(super) fn end(&self, taken: Option<(Item, usize)>) -> (u64, u64) {
        let mut queue = self.queue.lock();
        let waiting = std::mem::take(&mut queue.items);
        let at_hand = taken.iter().map(|(item, done)| item.encoded().packets_after(*done));
        let after = waiting.iter().map(|item| item.encoded().packets_after(0));
        let unsent = at_hand.chain(after).sum::<usize>() as u64;
        drop((taken, waiting));
        queue.is_over = true;
        let accepted = queue.accepted.total();
        (accepted - unsent, queue.lost.total() + unsent)
    }
}

impl Queue {
    fn push(&mut self, batch: Arc<Batch>, lost_before: Counts) {
        self.bytes += batch.size();
        self.items.push_back(Item { batch, lost_before, own: None });
    }

    /// Drops the newest batches of a queue whose share has become smaller, as another reader has joined.
    fn shrink(&mut self, share: usize) {
        let mut kept = Vec::new();
        // The oldest batch stays even if it alone exceeds the share.
        while self.bytes > share && self.items.len() > 1 {
            let Some(item) = self.items.pop_back() else {
                break;
            };
            self.bytes -= item.batch.size();
            // Only packets are dropped: a batch without any stays, and so do the descriptions in the others.
            if item.batch.counts.total() == 0 {
                kept.push((Arc::clone(&item.batch), item.lost_before));
                continue;
            }
            self.accepted.subtract(&item.batch.counts);
            self.lost.add_all(&item.batch.counts);
            self.unreported.add_all(&item.batch.counts);
            self.unreported.add_all(&item.lost_before);
            if let Some(descriptions) = &item.batch.descriptions {
                kept.push((Arc::clone(descriptions), Counts::default()));
            }
        }
        for (batch, lost_before) in kept.into_iter().rev() {
            self.push(batch, lost_before);
        }
    }

    fn offer(&mut self, batch: &Arc<Batch>, share: usize) {
        let fits = |bytes: usize| self.bytes == 0 || self.bytes + batch.size() <= bytes;
        if fits(share) {
            self.accepted.add_all(&batch.counts);
            let before = std::mem::take(&mut self.unreported);
            return self.push(Arc::clone(batch), before);
        }
        self.lost.add_all(&batch.counts);
        self.unreported.add_all(&batch.counts);
        if let Some(descriptions) = &batch.descriptions {
            let length = descriptions.size();
            self.is_cut |= self.bytes + length > share + MOST_DESCRIPTIONS;
            if !self.is_cut {
                self.push(Arc::clone(descriptions), Counts::default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::options::PacketOptions;
    use trawl_packet::pcapng::{Interface, write};

    use super::*;

    const LONG: usize = 1 << 16;

    /// Returns a batch of packets, after a number of interface descriptions.
    fn batch(interfaces: usize, packets: usize, missed: &Arc<Mutex<Counts>>) -> Arc<Batch> {
        let mut bytes = Vec::new();
        for _ in 0..interfaces {
            write::interface_description(&mut bytes, &Interface::default());
        }
        for _ in 0..packets {
            let packet = write::EnhancedPacket { interface_id: 1, captured: &[0; LONG], ..Default::default() };
            write::enhanced_packet(&mut bytes, &packet);
        }
        let (mut all, mut descriptions) = (Encoded::default(), Encoded::default());
        for block in blocks(&bytes) {
            all.push(&block);
            if block.enhanced_packet().is_none() {
                descriptions.push(&block);
            }
        }
        Batch::new(all, Counts::of(&bytes), descriptions, missed)
    }

    fn reader() -> Reader {
        Reader::new(true, Vec::new()).expect("a reader")
    }

    #[test]
    fn full_queue_loses_packets_and_keeps_descriptions() {
        let reader = reader();
        let missed = Arc::default();
        let per_batch = 64;
        let offered = 2 * MOST_WAITING / (per_batch * LONG);
        for _ in 0..offered {
            reader.offer(&batch(1, per_batch, &missed), MOST_WAITING);
        }
        let (mut descriptions, mut packets) = (0, 0);
        let mut take = |reader: &Reader| {
            let mut drops = 0;
            while let Some(item) = reader.next() {
                for block in blocks(item.bytes()) {
                    let packet = block.enhanced_packet();
                    packets += usize::from(packet.is_some());
                    descriptions += usize::from(packet.is_none());
                    let options = packet.map(|packet| PacketOptions::parse(packet.options()));
                    drops += options.and_then(|one| one.drop_count).unwrap_or(0);
                }
                item.note_sent(item.bytes().len());
                reader.sent(item);
            }
            drops
        };
        assert_eq!(take(&reader), 0);
        assert!(reader.is_settled() && !reader.is_cut());
        // The next packet reports the loss.
        reader.offer(&batch(1, 1, &missed), MOST_WAITING);
        let drops = take(&reader);
        let all = offered * per_batch + 1;
        assert_eq!((descriptions, packets + drops as usize), (offered + 1, all));
        assert!(drops > 0 && packets * LONG > MOST_WAITING / 2);
        assert_eq!(reader.end(None), (packets as u64, drops));
        assert_eq!(missed.lock().total(), drops);
    }

    #[test]
    fn smaller_share_drops_the_newest_packets_and_keeps_descriptions() {
        let (reader, missed) = (reader(), Arc::default());
        let per_batch = 16;
        for _ in 0..8 {
            reader.offer(&batch(1, per_batch, &missed), MOST_WAITING);
        }
        // Another reader has joined: 3 batches of 1 MiB fit.
        reader.offer(&batch(1, per_batch, &missed), 3 << 20);
        let (mut packets, mut descriptions) = (0, 0);
        while let Some(item) = reader.next() {
            for block in blocks(item.bytes()) {
                match block.enhanced_packet() {
                    Some(_) => packets += 1,
                    None => descriptions += 1,
                }
            }
            item.note_sent(item.bytes().len());
            reader.sent(item);
        }
        assert!((2 * per_batch..=3 * per_batch).contains(&packets), "{packets}");
        assert_eq!(descriptions, 9);
        let lost = 9 * per_batch - packets;
        assert_eq!(reader.end(None), (packets as u64, lost as u64));
        assert_eq!(missed.lock().total(), lost as u64);
    }

    #[test]
    fn packet_is_missed_if_no_reader_got_it() {
        let (near, far, missed) = (reader(), reader(), Arc::default());
        for reader in [&near, &far] {
            assert!(reader.next().is_some_and(|item| item.bytes().is_empty()));
        }
        let shared = batch(1, 4, &missed);
        near.offer(&shared, MOST_WAITING);
        far.offer(&shared, MOST_WAITING);
        drop(shared);
        for (reader, whole) in [(&near, 1), (&far, 3)] {
            let item = reader.next().expect("the batch");
            // In the middle of the packet after the whole ones.
            let sent = item.encoded().units[whole].end + 100;
            item.note_sent(sent);
            let (sent, lost) = reader.end(Some((item, sent)));
            assert_eq!((sent, lost), (whole as u64, 4 - whole as u64));
        }
        assert_eq!(missed.lock().total(), 1);
    }

    #[test]
    fn reader_without_room_for_descriptions_is_cut() {
        let reader = reader();
        let missed = Arc::default();
        for _ in 0..2 {
            reader.offer(&batch(0, MOST_WAITING / LONG - 1, &missed), MOST_WAITING);
        }
        assert!(!reader.is_cut());
        let mut one = Vec::new();
        write::interface_description(&mut one, &Interface::default());
        let most = (MOST_DESCRIPTIONS + 2 * LONG) / one.len();
        reader.offer(&batch(most, 0, &missed), MOST_WAITING);
        assert!(reader.is_cut());
    }
}
