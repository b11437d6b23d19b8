//! `--dedup`: leaves out sightings of a packet by further points. A point that sees the same bytes again sees another
//! packet, a retransmission, which other points see again too.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use trawl_packet::pcapng::block::{EnhancedPacket, blocks};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::{Direction, Interface};
use trawl_packet::walk::bridged;
use trawl_pipeline::report::StageReport;
use trawl_pipeline::{Blocks, Counts, Pressure, Stage, Writer};
use trawl_sys::Result;

/// Most packets that are remembered, as in editcap.
const REMEMBERED: usize = 1_000_000;

/// Two hashes of a packet's bytes from the network header on.
type Content = (u64, u64);

/// A packet as a point sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// Number of the file, if there are several, and of the interface in it.
    pub interface: (usize, usize),
    pub direction: Option<Direction>,
    pub link_type: u16,
    pub captured: &'a [u8],
    pub time_ns: u64,
}

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
}

impl Dedup {
    pub fn new(window: Duration) -> Self {
        Self {
            window_ns: u64::try_from(window.as_nanos()).unwrap_or(u64::MAX),
            hashers: (RandomState::new(), RandomState::new()),
            packets: HashMap::new(),
            order: VecDeque::new(),
            latest_ns: 0,
        }
    }

    /// Records a sighting. Returns true if another point has seen the packet within the window.
    pub fn is_seen(&mut self, sighting: &Sighting<'_>) -> bool {
        let Sighting { interface, direction, link_type, captured, time_ns } = *sighting;
        let parts = bridged(link_type, captured);
        let (one, other) = &self.hashers;
        let content = (one.hash_one(parts.same), other.hash_one(parts.same));
        // On a mirror port, and in a capture on all interfaces, only the link header distinguishes the points.
        let point = one.hash_one((interface, direction == Some(Direction::Out), parts.link));
        self.is_further(content, point, time_ns)
    }

    /// Records a sighting. Returns true if it belongs to a packet that another point has seen.
    fn is_further(&mut self, content: Content, point: u64, time_ns: u64) -> bool {
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
}

/// The stage that leaves out further sightings of the packets of a capture.
#[derive(Debug)]
pub struct DedupStage {
    dedup: Dedup,
    /// Limit of -c.
    most: Option<u64>,
    /// Link types of the interface blocks.
    link_types: Vec<u16>,
    out: Vec<u8>,
    /// Last answer of the next writer.
    pressure: Pressure,
    merged: Counts,
    beyond: Counts,
    handed_on: u64,
}

impl DedupStage {
    /// `most` is the limit of -c: packets count, not sightings.
    pub fn new(window: Duration, most: Option<u64>) -> Self {
        Self {
            dedup: Dedup::new(window),
            most,
            link_types: Vec::new(),
            out: Vec::new(),
            pressure: Pressure::Idle,
            merged: Counts::default(),
            beyond: Counts::default(),
            handed_on: 0,
        }
    }

    fn wants(&mut self, packet: &EnhancedPacket<'_>) -> bool {
        let id = packet.interface_id;
        if self.most.is_some_and(|most| self.handed_on >= most) {
            self.beyond.add(id, 1);
            return false;
        }
        let is_seen = self.dedup.is_seen(&Sighting {
            interface: (0, id as usize),
            direction: PacketOptions::parse(packet.options()).direction(),
            link_type: self.link_types.get(id as usize).copied().unwrap_or_default(),
            captured: packet.captured,
            time_ns: packet.timestamp,
        });
        if is_seen {
            self.merged.add(id, 1)
        } else {
            self.handed_on += 1
        }
        !is_seen
    }
}

impl Stage for DedupStage {
    fn push(&mut self, given: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        if given.bytes().is_empty() {
            self.pressure = next.write(given)?;
            return Ok(self.pressure.clone());
        }
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        for block in blocks(given.bytes()) {
            self.link_types.extend(Interface::from_block(&block).map(|interface| interface.link_type));
            if block.enhanced_packet().is_none_or(|packet| self.wants(&packet)) {
                out.extend_from_slice(block.bytes);
            }
        }
        if !out.is_empty() {
            self.pressure = next.write(Blocks::Bytes(&out))?;
        }
        self.out = out;
        Ok(self.pressure.clone())
    }

    fn flush(&mut self, next: &mut dyn Writer) -> Result<Pressure> {
        self.pressure = next.flush()?;
        Ok(self.pressure.clone())
    }

    fn report(&mut self) -> StageReport {
        StageReport {
            merged: self.merged.clone(),
            beyond: self.beyond.clone(),
            handed_on: Some(self.handed_on),
            ..StageReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::write::{self, enhanced_packet, interface_description};
    use trawl_pipeline::Feed;
    use trawl_pipeline::account::PacketAccount;

    use super::*;

    const WINDOW_NS: u64 = 5_000_000;

    /// Returns the indices of the sightings that stay, of content, point and time.
    fn kept(sightings: &[(u64, u64, u64)]) -> Vec<usize> {
        let mut dedup = Dedup::new(Duration::from_nanos(WINDOW_NS));
        let stays = |(_, sighting): &(usize, &(u64, u64, u64))| {
            let (content, point, time) = **sighting;
            !dedup.is_further((content, content), point, time)
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
            assert!(!dedup.is_further((number, 0), 1, number));
        }
        assert!(dedup.order.len() <= REMEMBERED && dedup.packets.len() <= REMEMBERED);
        assert!(!dedup.is_further((0, 0), 2, REMEMBERED as u64), "the first was forgotten");
    }

    /// Returns the blocks of three interfaces, and of a packet for each interface, milliseconds and content.
    fn sightings(packets: &[(u32, u64, u8)]) -> Vec<u8> {
        let mut out = Vec::new();
        (0..3).for_each(|_| interface_description(&mut out, &Interface::default()));
        for (interface_id, ms, content) in packets {
            let captured = &[*content; 60][..];
            let packet = write::EnhancedPacket {
                interface_id: *interface_id,
                timestamp_ns: ms * 1_000_000,
                captured,
                original_len: 60,
                ..write::EnhancedPacket::default()
            };
            enhanced_packet(&mut out, &packet);
        }
        out
    }

    /// Runs the stage; returns the packets that it hands on, and the account of all.
    fn staged(most: Option<u64>, parts: &[Vec<u8>]) -> (Counts, PacketAccount) {
        let mut kept = Counts::default();
        let stage = DedupStage::new(Duration::from_nanos(WINDOW_NS), most);
        let mut feed = Feed::new(vec![Box::new(stage)], &mut kept);
        parts.iter().for_each(|part| feed.write(Blocks::Bytes(part)).expect("room"));
        let report = feed.report();
        drop(feed);
        assert_eq!(report.handed_on, Some(kept.total()));
        let seen = parts.iter().map(|part| Counts::of(part).total()).sum();
        let mut account = PacketAccount::new(seen, 0, seen, &[]);
        report.correct(&mut account, &[0, 1, 2]);
        (kept, account)
    }

    #[test]
    fn stage_counts_each_packet_once() {
        let (kept, account) =
            staged(None, &[sightings(&[(0, 0, 7), (1, 1, 7), (2, 2, 7), (0, 3, 7), (1, 3, 8), (2, 9, 8)])]);
        assert_eq!(kept.iter().collect::<Vec<_>>(), [(0, 2), (1, 1), (2, 1)]);
        assert_eq!(account.to_string(), "6 seen, 0 filtered out, 4 recorded, 2 merged, 0 lost");
    }

    #[test]
    fn limit_counts_packets_not_sightings() {
        let packets = sightings(&[(0, 0, 7), (1, 0, 7), (0, 1, 8), (1, 1, 8), (0, 2, 9), (1, 2, 7)]);
        let (kept, account) = staged(Some(2), &[packets]);
        assert_eq!(kept.total(), 2);
        assert_eq!(account.to_string(), "3 seen, 0 filtered out, 2 recorded, 1 merged, 0 lost");
    }

    /// A writer whose queue is filling.
    struct Slow;

    impl Writer for Slow {
        fn write(&mut self, _: Blocks<'_>) -> Result<Pressure> {
            Ok(Pressure::Busy { wants_segments: false })
        }

        fn flush(&mut self) -> Result<Pressure> {
            Ok(Pressure::Idle)
        }

        fn finish(&mut self) -> trawl_pipeline::WriteOutcome {
            trawl_pipeline::WriteOutcome::default()
        }
    }

    #[test]
    fn slow_writer_slows_the_source_while_all_packets_are_left_out() {
        let mut stage = DedupStage::new(Duration::from_nanos(WINDOW_NS), None);
        let mut push = |part: &[u8]| stage.push(Blocks::Bytes(part), &mut Slow).expect("room");
        push(&sightings(&[(0, 0, 7)]));
        let packets = sightings(&[(1, 0, 7)]);
        let described = packets.len() - blocks(&packets).last().expect("a packet").bytes.len();
        assert!(matches!(push(&packets[described..]), Pressure::Busy { .. }));
        assert!(matches!(stage.flush(&mut Slow).expect("room"), Pressure::Idle));
    }
}
