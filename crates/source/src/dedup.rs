//! `--dedup`: leaves out sightings of a packet by further points. A point that sees the same bytes again sees another
//! packet, a retransmission, which other points see again too.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use trawl_packet::pcapng::Direction;
use trawl_packet::read::Packet;
use trawl_packet::walk::bridged;

use crate::Notice;

/// Most packets that are remembered, as in editcap.
const REMEMBERED: usize = 1_000_000;

/// Two hashes of a packet's bytes from the network header on.
type Content = (u64, u64);

/// A packet, and the points that have seen it.
#[derive(Debug)]
struct Seen {
    time_ns: u64,
    points: Vec<u64>,
}

/// The packets of the latest time window.
#[derive(Debug)]
pub struct Dedup {
    window_ns: u64,
    hashers: (RandomState, RandomState),
    /// Packets of the same content, in the order of their first sighting.
    packets: HashMap<Content, VecDeque<Seen>>,
    /// The remembered packets, the oldest first.
    order: VecDeque<(u64, Content)>,
    latest_ns: u64,
    left_out: u64,
}

impl Dedup {
    pub fn new(window: Duration) -> Self {
        Self {
            window_ns: u64::try_from(window.as_nanos()).unwrap_or(u64::MAX),
            hashers: (RandomState::new(), RandomState::new()),
            packets: HashMap::new(),
            order: VecDeque::new(),
            latest_ns: 0,
            left_out: 0,
        }
    }

    /// Returns whether another point has seen this packet of a file within the window.
    pub fn is_seen(&mut self, file: usize, packet: &Packet<'_>) -> bool {
        let parts = bridged(packet.link_type, packet.captured);
        let is_outbound = packet.options.direction() == Some(Direction::Out);
        let (one, other) = &self.hashers;
        let content = (one.hash_one(parts.same), other.hash_one(parts.same));
        // A port that mirrors others, and a capture on all interfaces, show points by the link header alone.
        let point = one.hash_one((file, packet.interface, is_outbound, parts.link));
        let is_seen = self.joins(content, point, packet.timestamp_ns);
        self.left_out += u64::from(is_seen);
        is_seen
    }

    fn joins(&mut self, content: Content, point: u64, time_ns: u64) -> bool {
        self.forget(time_ns);
        let alike = self.packets.entry(content).or_default();
        let is_other =
            |seen: &&mut Seen| seen.time_ns.abs_diff(time_ns) <= self.window_ns && !seen.points.contains(&point);
        if let Some(seen) = alike.iter_mut().find(is_other) {
            seen.points.push(point);
            return true;
        }
        alike.push_back(Seen { time_ns, points: vec![point] });
        self.order.push_back((time_ns, content));
        false
    }

    /// Forgets packets before the window.
    fn forget(&mut self, time_ns: u64) {
        self.latest_ns = self.latest_ns.max(time_ns);
        while let Some((first_ns, content)) = self.order.front() {
            let is_recent = self.latest_ns.saturating_sub(*first_ns) <= self.window_ns;
            if is_recent && self.order.len() < REMEMBERED {
                break;
            }
            if let Some(alike) = self.packets.get_mut(content) {
                alike.pop_front();
                if alike.is_empty() {
                    self.packets.remove(content);
                }
            }
            self.order.pop_front();
        }
    }

    /// Returns the number of packets left out.
    pub fn notice(&self) -> Notice {
        Notice::DuplicatesLeftOut { packets: self.left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_NS: u64 = 5_000_000;

    /// Returns the indices of the sightings that stay, of content, point and time.
    fn kept(sightings: &[(u64, u64, u64)]) -> Vec<usize> {
        let mut dedup = Dedup::new(Duration::from_nanos(WINDOW_NS));
        let stays = |(_, sighting): &(usize, &(u64, u64, u64))| {
            let (content, point, time) = **sighting;
            !dedup.joins((content, content), point, time)
        };
        let kept = sightings.iter().enumerate().filter(stays);
        kept.map(|(index, _)| index).collect()
    }

    #[test]
    fn first_sighting_of_each_packet_stays() {
        assert_eq!(kept(&[(1, 1, 0), (1, 2, 10), (2, 2, 20), (1, 3, 30)]), [0, 2]);
    }

    #[test]
    fn retransmission_stays_once() {
        let sightings = [(1, 1, 0), (1, 2, 10), (1, 1, 20), (1, 2, 30), (1, 3, 31), (1, 3, 32)];
        assert_eq!(kept(&sightings), [0, 2]);
        // Its copy may arrive after the retransmission.
        assert_eq!(kept(&[(1, 1, 0), (1, 1, 20), (1, 2, 25), (1, 2, 30)]), [0, 1]);
    }

    #[test]
    fn sighting_after_the_window_stays() {
        let [inside, outside] = [WINDOW_NS, WINDOW_NS + 1];
        assert_eq!(kept(&[(1, 1, 0), (1, 2, inside), (1, 3, outside)]), [0, 2]);
        // Records of a file need not be in order.
        assert_eq!(kept(&[(1, 1, WINDOW_NS), (1, 2, 0)]), [0]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut dedup = Dedup::new(Duration::from_secs(3600));
        for number in 0..REMEMBERED as u64 + 10 {
            assert!(!dedup.joins((number, 0), 1, number));
        }
        assert!(dedup.order.len() <= REMEMBERED && dedup.packets.len() <= REMEMBERED);
        assert!(!dedup.joins((0, 0), 2, REMEMBERED as u64), "the first was forgotten");
    }
}
