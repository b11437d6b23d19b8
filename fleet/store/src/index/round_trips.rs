//! Round trips at acknowledgements, from the segments of a chunk that wait for them.

use std::collections::HashMap;
use std::net::SocketAddr;

use trawl_packet::build::flags::{ACK, SYN};
use trawl_packet::walk::Tcp;
use trawl_slow::unacknowledged::Unacknowledged;

use super::stream;

/// Maximum number of segments that wait, and of streams with such segments, in about 70 MiB.
const SEGMENTS: usize = 1 << 20;
const STREAMS: usize = 1 << 18;
/// Maximum number of segments of a stream.
const OF_STREAM: usize = 4096;

/// The segments of each stream that wait for an acknowledgement. Both directions of a connection are seen at one place.
#[derive(Default)]
pub struct RoundTrips {
    waiting: HashMap<u64, Unacknowledged<()>>,
    /// Number of all of them.
    segments: usize,
}

/// A TCP segment at a place.
pub struct Segment {
    pub place: u32,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub tcp: Tcp,
    /// Number of bytes, with SYN and FIN.
    pub length: u32,
    /// Set if its bytes were seen before.
    pub is_again: bool,
    pub time_ns: u64,
}

impl RoundTrips {
    /// Adds a segment. Returns the round trip from its place to its sender, if it acknowledges exactly the end of a segment
    /// that was not repeated.
    pub fn add(&mut self, segment: &Segment) -> Option<u64> {
        let Segment { place, from, to, tcp, length, is_again, time_ns } = *segment;
        let own = stream(place, from, to);
        if tcp.flags & SYN != 0 && !is_again {
            // Earlier segments are of another connection of the same ports.
            self.forget(own);
        }
        let round_trip = (tcp.flags & ACK != 0).then(|| self.acknowledge(stream(place, to, from), tcp.ack, time_ns));
        if length > 0 {
            self.sent(own, tcp.seq, tcp.seq.wrapping_add(length), is_again, time_ns);
        }
        round_trip.flatten()
    }

    fn forget(&mut self, stream: u64) {
        let forgotten = self.waiting.remove(&stream);
        self.segments -= forgotten.map_or(0, |all| all.len());
    }

    fn acknowledge(&mut self, stream: u64, ack: u32, now: u64) -> Option<u64> {
        let waiting = self.waiting.get_mut(&stream)?;
        let mut last = None;
        while let Some(sent) = waiting.acknowledged(ack) {
            self.segments -= 1;
            last = Some(sent);
        }
        if waiting.is_empty() {
            self.waiting.remove(&stream);
        }
        last.filter(|sent| sent.end == ack)?.round_trip(now)
    }

    fn sent(&mut self, stream: u64, seq: u32, end: u32, is_again: bool, now: u64) {
        if is_again {
            if let Some(waiting) = self.waiting.get_mut(&stream) {
                waiting.repeat(seq, end);
            }
            return;
        }
        let is_full = self.waiting.len() >= STREAMS && !self.waiting.contains_key(&stream);
        if is_full || self.segments >= SEGMENTS {
            // Acknowledgements of these segments have no round trip.
            *self = Self::default();
        }
        let waiting = self.waiting.entry(stream).or_default();
        let before = waiting.len();
        waiting.push(end, now, (), OF_STREAM);
        self.segments += waiting.len() - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Segments of a client and a server, of which each direction has a number.
    #[derive(Default)]
    struct Chunk(RoundTrips);

    impl Chunk {
        fn add(&mut self, port: u16, is_back: bool, (seq, ack): (u32, u32), length: u32, at_ms: u64) -> Option<u64> {
            let (client, server) = (SocketAddr::from(([10, 0, 0, 1], port)), SocketAddr::from(([10, 0, 0, 2], 80)));
            let (from, to) = if is_back { (server, client) } else { (client, server) };
            let tcp = Tcp { seq, ack, flags: ACK, window: 9 };
            let segment = Segment { place: 1, from, to, tcp, length, is_again: false, time_ns: at_ms * MS };
            self.0.add(&segment)
        }
    }

    #[test]
    fn exact_acknowledgements_have_a_round_trip() {
        let mut chunk = Chunk::default();
        assert_eq!(chunk.add(1, false, (100, 7), 50, 0), None);
        assert_eq!(chunk.add(1, false, (150, 7), 50, 1), None);
        assert_eq!(chunk.add(1, true, (7, 150), 10, 5), Some(5 * MS));
        assert_eq!(chunk.add(1, true, (17, 190), 0, 6), None, "a part of a segment");
        assert_eq!(chunk.add(1, false, (200, 17), 0, 7), Some(2 * MS), "the way to the client");
        assert_eq!(chunk.add(1, true, (17, 200), 0, 8), Some(7 * MS));
        assert_eq!(chunk.add(1, true, (17, 200), 0, 9), None, "the same once more");
        assert_eq!((chunk.0.waiting.len(), chunk.0.segments), (0, 0));
    }

    #[test]
    fn memory_of_one_direction_is_bounded() {
        let mut chunk = Chunk::default();
        for number in 0..2 * OF_STREAM as u32 {
            chunk.add(1, false, (number, 0), 1, 0);
        }
        assert_eq!((chunk.0.waiting.len(), chunk.0.segments), (1, OF_STREAM));
        for (port, seq) in (0..=u16::MAX).flat_map(|port| (0..17).map(move |seq| (port, seq))) {
            chunk.add(port, false, (seq, 0), 1, 0);
            assert!(chunk.0.segments <= SEGMENTS);
        }
        let sum: usize = chunk.0.waiting.values().map(Unacknowledged::len).sum();
        assert_eq!(sum, chunk.0.segments);
    }
}
