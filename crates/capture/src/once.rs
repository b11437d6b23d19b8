//! `--once`: one record of each packet. A record waits a limited time for sightings of the same packet by other points,
//! which are left out; a comment lists the points. Programs recognise packets and give them the same identifier: see
//! `link.h`.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::{EnhancedPacket, blocks};
use trawl_packet::pcapng::note::keys::SEEN;
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::write::with_comment;
use trawl_pipeline::report::StageReport;
use trawl_pipeline::{Blocks, Counts, Pressure, Stage, WriteOutcome, Writer};
use trawl_sys::Result;

/// Maximum bytes of waiting records; above it, the oldest records are written early.
const WAITING_MOST: usize = 64 << 20;
/// Time for which the identifiers of written records are remembered: programs recognise packets for a second.
const REMEMBERED: Duration = Duration::from_secs(2);
const REMEMBERED_MOST: usize = 1 << 20;

/// A record that waits for further sightings.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    block: Vec<u8>,
    /// Interface blocks of the points, the first one first.
    points: Vec<u32>,
    /// Comments of the merged records.
    comments: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Once {
    wait: Duration,
    most: Option<u64>,
    /// The points' names, by interface block.
    names: Vec<String>,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// Number of the first waiting record, and of the next one.
    first: u64,
    next: u64,
    /// Numbers of records by identifier.
    numbers: HashMap<u64, u64>,
    /// Identifiers, the oldest first.
    order: VecDeque<(Instant, u64)>,
    /// Last answer of the next writer.
    pressure: Pressure,
    merged: Counts,
    /// Packets after the limit of -c.
    beyond: Counts,
    /// Number of records handed on.
    written: u64,
}

impl Once {
    /// `most` is the limit of -c.
    pub fn new(wait: Duration, most: Option<u64>) -> Self {
        Self {
            wait,
            most,
            names: Vec::new(),
            waiting: VecDeque::new(),
            bytes: 0,
            first: 0,
            next: 0,
            numbers: HashMap::new(),
            order: VecDeque::new(),
            pressure: Pressure::Idle,
            merged: Counts::default(),
            beyond: Counts::default(),
            written: 0,
        }
    }

    fn sight(&mut self, block: &[u8], packet: &EnhancedPacket<'_>, now: Instant) {
        let options = PacketOptions::parse(packet.options());
        let id = options.packet_id;
        let interface = packet.interface_id;
        if let Some(number) = id.and_then(|id| self.numbers.get(&id)) {
            self.merged.add(interface, 1);
            let place = number.checked_sub(self.first);
            if let Some(record) = place.and_then(|at| self.waiting.get_mut(at as usize)) {
                record.points.push(interface);
                let comments = options.comments.into_iter();
                record.comments.extend(comments.map(Cow::into_owned));
            }
            return;
        }
        if self.most.is_some_and(|most| self.next >= most) {
            self.beyond.add(interface, 1);
            return;
        }
        if let Some(id) = id {
            self.numbers.insert(id, self.next);
            self.order.push_back((now, id));
        }
        self.next += 1;
        self.bytes += block.len();
        self.waiting.push_back(Waiting {
            since: now,
            block: block.to_vec(),
            points: vec![interface],
            comments: Vec::new(),
        });
    }

    /// Appends the records that have waited long enough, and forgets old identifiers.
    fn release(&mut self, now: Instant, wait: Duration, out: &mut Vec<u8>) {
        while let Some(record) = self.waiting.front()
            && (self.bytes > WAITING_MOST || now.duration_since(record.since) >= wait)
        {
            if let Some(record) = self.waiting.pop_front() {
                self.bytes -= record.block.len();
                self.first += 1;
                self.written += 1;
                self.append(out, record);
            }
        }
        while let Some((since, id)) = self.order.front()
            && (self.order.len() > REMEMBERED_MOST || now.duration_since(*since) >= self.wait + REMEMBERED)
        {
            self.numbers.remove(id);
            self.order.pop_front();
        }
    }

    fn append(&self, out: &mut Vec<u8>, record: Waiting) {
        let Waiting { since: _, mut block, points, comments } = record;
        if points.len() > 1 {
            let name = |point: &u32| self.names.get(*point as usize).map(String::as_str);
            let names: Vec<&str> = points.iter().filter_map(name).collect();
            let list = format!("{}{}", SEEN.begin, names.join(", "));
            for comment in comments.iter().rev().chain([&list]) {
                let before = take(&mut block);
                with_comment(&mut block, &before, comment, None);
            }
        }
        out.extend_from_slice(&block);
    }

    fn pass(&mut self, out: &[u8], next: &mut dyn Writer) -> Result<()> {
        if !out.is_empty() {
            self.pressure = next.write(Blocks::Bytes(out))?;
        }
        Ok(())
    }
}

/// Returns the name of a point: of its interface and its hook.
fn point_name(interface: &Interface) -> String {
    let name = interface.name.as_deref().unwrap_or_default();
    match interface.hook() {
        // In captures at both ends, names contain the hook.
        Some(hook) if !name.ends_with(')') => format!("{name} {hook}"),
        _ => name.to_owned(),
    }
}

impl Stage for Once {
    fn push(&mut self, given: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        let now = Instant::now();
        let mut out = Vec::new();
        for block in blocks(given.bytes()) {
            match block.enhanced_packet() {
                Some(packet) => self.sight(block.bytes, &packet, now),
                None => {
                    let described = Interface::from_block(&block);
                    self.names.extend(described.as_ref().map(point_name));
                    out.extend_from_slice(block.bytes);
                }
            }
        }
        self.release(now, self.wait, &mut out);
        self.pass(&out, next)?;
        Ok(self.pressure.clone())
    }

    fn flush(&mut self, next: &mut dyn Writer) -> Result<Pressure> {
        // The rings are not read while a reader blocks.
        if !matches!(self.pressure, Pressure::Blocked(_)) {
            let mut out = Vec::new();
            self.release(Instant::now(), self.wait, &mut out);
            self.pass(&out, next)?;
        }
        self.pressure = next.flush()?;
        Ok(self.pressure.clone())
    }

    fn finish(&mut self, next: &mut dyn Writer) -> Result<()> {
        let mut out = Vec::new();
        self.release(Instant::now(), Duration::ZERO, &mut out);
        self.pass(&out, next)
    }

    fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|record| record.since + self.wait)
    }

    fn account(&mut self, outcome: &mut WriteOutcome) {
        for record in self.waiting.drain(..) {
            outcome.unwritten.add_blocks(&record.block);
        }
    }

    fn report(&mut self) -> StageReport {
        StageReport {
            merged: self.merged.clone(),
            beyond: self.beyond.clone(),
            handed_on: Some(self.written),
            ..StageReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::write::{self, enhanced_packet, interface_description};
    use trawl_pipeline::account::PacketAccount;

    use super::*;

    /// A writer that keeps the blocks, or fails.
    #[derive(Default)]
    struct Kept {
        bytes: Vec<u8>,
        fails: bool,
    }

    impl Writer for Kept {
        fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
            if self.fails {
                return Err(trawl_sys::Error::failed("cannot write", "the disk is full"));
            }
            self.bytes.extend_from_slice(blocks.bytes());
            Ok(Pressure::Idle)
        }

        fn flush(&mut self) -> Result<Pressure> {
            Ok(Pressure::Idle)
        }

        fn finish(&mut self) -> WriteOutcome {
            WriteOutcome::default()
        }
    }

    /// Returns the blocks of interfaces `eth0` and `br0`, and of packets by interface and identifier.
    fn sightings(packets: &[(u32, Option<u64>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for name in ["eth0", "br0"] {
            let interface = Interface {
                name: Some(name.to_owned()),
                description: Some("tc ingress (tcx), time stamps from the system clock".to_owned()),
                ..Interface::default()
            };
            interface_description(&mut out, &interface);
        }
        for (time, (interface_id, packet_id)) in packets.iter().enumerate() {
            let comment = format!("record {time}");
            let packet = write::EnhancedPacket {
                interface_id: *interface_id,
                packet_id: *packet_id,
                timestamp_ns: time as u64,
                comment: Some(&comment),
                ..write::EnhancedPacket::default()
            };
            enhanced_packet(&mut out, &packet);
        }
        out
    }

    /// Returns time and comments of the packets.
    fn packets(bytes: &[u8]) -> Vec<(u64, Vec<String>)> {
        let packets = blocks(bytes).filter_map(|block| block.enhanced_packet());
        let read = |packet: EnhancedPacket<'_>| {
            let comments = PacketOptions::parse(packet.options()).comments.into_iter();
            (packet.timestamp, comments.map(Cow::into_owned).collect())
        };
        packets.map(read).collect()
    }

    #[test]
    fn later_sightings_are_merged_into_the_first() {
        let mut once = Once::new(Duration::from_secs(60), None);
        let mut kept = Kept::default();
        let given = sightings(&[(0, Some(1)), (0, None), (1, Some(1)), (1, None), (0, Some(2))]);
        once.push(Blocks::Bytes(&given), &mut kept).expect("room");
        assert!(packets(&kept.bytes).is_empty(), "they wait");
        once.finish(&mut kept).expect("room");
        let own = |time: u64| (time, vec![format!("record {time}")]);
        let first = ["seen at eth0 tc ingress, br0 tc ingress", "record 2", "record 0"];
        let first = (0, first.map(str::to_owned).to_vec());
        assert_eq!(packets(&kept.bytes), [first, own(1), own(3), own(4)]);

        let mut account = PacketAccount { seen: 2, recorded: 2, ..PacketAccount::default() };
        once.report().correct(&mut account, &[1]);
        assert_eq!((account.seen, account.recorded, account.merged), (2, 1, 1));
        // A sighting after the record was written is left out too.
        let late = sightings(&[(1, Some(2))]);
        once.push(Blocks::Bytes(&late), &mut kept).expect("room");
        once.finish(&mut kept).expect("room");
        assert_eq!(packets(&kept.bytes).len(), 4);
    }

    #[test]
    fn limit_counts_packets_not_sightings() {
        let mut once = Once::new(Duration::ZERO, Some(2));
        let mut kept = Kept::default();
        let given = sightings(&[(0, Some(1)), (1, Some(1)), (0, Some(2)), (0, Some(3)), (1, Some(2))]);
        once.push(Blocks::Bytes(&given), &mut kept).expect("room");
        assert_eq!(packets(&kept.bytes).len(), 2);
        assert_eq!(once.written, 2);
        let mut account = PacketAccount { seen: 3, recorded: 3, ..PacketAccount::default() };
        once.report().correct(&mut account, &[0]);
        assert_eq!((account.seen, account.recorded, account.merged), (2, 2, 0));
    }

    #[test]
    fn waiting_records_are_unwritten_after_an_error() {
        let mut once = Once::new(Duration::from_secs(60), None);
        let mut kept = Kept { fails: true, ..Kept::default() };
        let given = sightings(&[(0, Some(1)), (1, Some(1)), (0, Some(2))]);
        assert!(once.push(Blocks::Bytes(&given), &mut kept).is_err());
        let mut outcome = WriteOutcome::default();
        once.account(&mut outcome);
        assert_eq!(outcome.unwritten.sum(&[0, 1]), 2);
    }
}
