//! The packets before an event, in memory of a bounded size: new packets replace the oldest.

use std::collections::VecDeque;

use trawl_packet::pcapng::block::blocks;

/// Size of a chunk, the unit of overwriting: at most this, and a 16th of the memory.
const CHUNK_MAX: usize = 256 << 10;
const CHUNKS_MIN: usize = 16;
/// A chunk covers at most one part in this many of the retention time.
const SPANS: u64 = 16;

#[derive(Debug)]
pub(super) struct History {
    memory: usize,
    chunk: usize,
    /// Retention time.
    keep_ns: u64,
    chunks: VecDeque<Chunk>,
    /// Capacity of all chunks.
    used: usize,
    /// An emptied chunk for reuse.
    spare: Option<Chunk>,
    /// Time of the latest packet that was overwritten within the retention time.
    overwritten_until: u64,
}

#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    packets: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Chunk {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes older packets from the beginning.
    fn forget_before(&mut self, from_ns: u64) {
        let mut old = 0;
        for block in blocks(&self.bytes) {
            let time = block.enhanced_packet().map(|packet| packet.timestamp);
            if time.is_none_or(|time| time >= from_ns) {
                self.first_ns = time.unwrap_or(from_ns);
                break;
            }
            old += block.bytes.len();
            self.packets -= 1;
        }
        self.bytes.drain(..old);
    }
}

impl History {
    pub fn new(memory: usize, keep_ns: u64) -> Self {
        Self {
            memory,
            chunk: (memory / CHUNKS_MIN).min(CHUNK_MAX),
            keep_ns,
            chunks: VecDeque::new(),
            used: 0,
            spare: None,
            overwritten_until: 0,
        }
    }

    pub fn push(&mut self, block: &[u8], time_ns: u64) {
        let span = self.keep_ns / SPANS;
        let fits = self.chunks.back().is_some_and(|chunk| {
            chunk.bytes.capacity() - chunk.bytes.len() >= block.len() && time_ns.saturating_sub(chunk.first_ns) <= span
        });
        if !fits {
            self.begin(block.len(), time_ns);
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.bytes.extend_from_slice(block);
            chunk.packets += 1;
            chunk.first_ns = chunk.first_ns.min(time_ns);
            chunk.last_ns = chunk.last_ns.max(time_ns);
        }
    }

    /// Starts another chunk, with room for at least this many bytes.
    fn begin(&mut self, least: usize, time_ns: u64) {
        self.forget_before(time_ns);
        if let Some(last) = self.chunks.back_mut() {
            // Slow traffic leaves chunks nearly empty.
            let before = last.bytes.capacity();
            last.bytes.shrink_to_fit();
            self.used -= before - last.bytes.capacity();
        }
        let size = self.chunk.max(least);
        while self.used + size > self.memory
            && let Some(chunk) = self.chunks.pop_front()
        {
            self.used -= chunk.bytes.capacity();
            self.overwritten_until = self.overwritten_until.max(chunk.last_ns);
            self.give_back(chunk);
        }
        let spare = self.spare.take().map(|chunk| chunk.bytes);
        let bytes = spare.filter(|bytes| bytes.capacity() == size).unwrap_or_else(|| Vec::with_capacity(size));
        self.used += bytes.capacity();
        self.chunks.push_back(Chunk { bytes, packets: 0, first_ns: time_ns, last_ns: time_ns });
    }

    /// Removes packets beyond the retention time.
    pub fn forget_before(&mut self, now_ns: u64) {
        self.drop_older(now_ns.saturating_sub(self.keep_ns));
    }

    /// Removes chunks in front with only older packets.
    fn drop_older(&mut self, oldest: u64) {
        while let Some(chunk) = self.chunks.front().filter(|chunk| chunk.last_ns < oldest) {
            self.used -= chunk.bytes.capacity();
            if let Some(chunk) = self.chunks.pop_front() {
                self.give_back(chunk);
            }
        }
    }

    /// Returns the time of the latest packet that was overwritten for lack of memory.
    pub fn overwritten_until(&self) -> u64 {
        self.overwritten_until
    }

    /// Removes and returns all packets since this time. The returned history accepts more packets without a limit.
    pub fn take_since(&mut self, from_ns: u64) -> Self {
        let mut taken = Self {
            chunks: std::mem::take(&mut self.chunks),
            used: std::mem::take(&mut self.used),
            ..Self::new(usize::MAX, u64::MAX)
        };
        taken.drop_older(from_ns);
        // Only the first chunk contains older packets.
        if let Some(chunk) = taken.chunks.front_mut() {
            chunk.forget_before(from_ns);
        }
        taken
    }

    /// Returns the time of the first packet.
    pub fn first(&self) -> Option<u64> {
        self.chunks.front().map(|chunk| chunk.first_ns)
    }

    pub fn count(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.packets).sum()
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Sets the size of the memory, for present and future packets.
    pub fn set_memory(&mut self, memory: usize) {
        self.memory = memory;
    }

    pub fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop_front()?;
        self.used -= chunk.bytes.capacity();
        Some(chunk)
    }

    fn give_back(&mut self, mut chunk: Chunk) {
        chunk.bytes.clear();
        self.spare = Some(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_packet::pcapng::write::{EnhancedPacket, enhanced_packet};

    fn block(time_ns: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        enhanced_packet(
            &mut bytes,
            &EnhancedPacket {
                timestamp_ns: time_ns,
                captured: &vec![0; length],
                original_len: length as u32,
                ..EnhancedPacket::default()
            },
        );
        bytes
    }

    fn all(history: &mut History) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(chunk) = history.pop() {
            let packets = blocks(chunk.bytes()).filter_map(|one| one.enhanced_packet());
            times.extend(packets.map(|packet| packet.timestamp));
        }
        times
    }

    #[test]
    fn memory_is_bounded_and_the_latest_stay() {
        for length in [60, 1500, 9000] {
            let mut history = History::new(1 << 20, u64::MAX);
            for time in 0..100_000 {
                history.push(&block(time, length), time);
                assert!(history.used <= 1 << 20);
            }
            let mut taken = history.take_since(0);
            let (first, count) = (taken.first(), taken.count());
            let times = all(&mut taken);
            assert_eq!((times.first().copied(), times.len() as u64), (first, count));
            assert_eq!(times.last(), Some(&99_999));
            assert!(times.windows(2).all(|two| two[1] == two[0] + 1));
            // At least 7/8 of the memory hold packets.
            assert!(times.len() * block(0, length).len() > 7 << 17, "{length}");
            assert_eq!(history.overwritten_until(), times[0] - 1);
            assert_eq!((history.used, taken.used), (0, 0));
        }
    }

    #[test]
    fn packets_beyond_the_retention_time_are_removed() {
        let mut history = History::new(1 << 20, 1000);
        for time in (0..10_000).step_by(10) {
            history.push(&block(time, 60), time);
        }
        history.forget_before(10_000);
        let oldest = history.first().expect("a packet");
        assert!(oldest <= 9_000 && oldest > 8_800, "{oldest}");
        assert_eq!(history.overwritten_until(), 0);
        let mut taken = history.take_since(9_505);
        assert_eq!((taken.first(), taken.count()), (Some(9_510), 49));
        assert_eq!(all(&mut taken).first(), Some(&9_510));
    }

    #[test]
    fn a_block_larger_than_a_chunk_has_room() {
        let mut history = History::new(1 << 20, u64::MAX);
        for time in 0..100 {
            history.push(&block(time, 200_000), time);
            assert!(history.used <= 1 << 20);
        }
        assert_eq!(all(&mut history), [95, 96, 97, 98, 99]);
    }
}
