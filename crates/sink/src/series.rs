//! A series of files instead of a single one: by size, by time, as a ring; each file is complete.

use std::fs::File;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::block::{self, blocks};
use trawl_packet::pcapng::write::{InterfaceStatistics, interface_statistics};
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{
    Blocks, Counts, FileWriter, Loss, PartKind, Pressure, Stored, StoredPart, UNWATCHED, WriteOutcome, Writer,
    write_patiently,
};
use trawl_sys::{Error, Result, clock};

use crate::next_files::NextFiles;
use crate::packed::is_nearly_full;
use crate::preamble::Preamble;
use crate::series_plan::SeriesPlan;

/// Opens the writer of a file of the series, with its name.
pub type Open = Box<dyn FnMut(File, String) -> Result<Box<dyn FileWriter>>>;
/// Returns the counters so far, with the interface block of each.
pub type Accounts = Box<dyn Fn() -> Vec<(u32, PacketAccount)>>;

/// Reports the number of running commands of `-z`.
pub type ReportCommands = Box<dyn Fn(usize)>;

pub struct Series {
    plan: SeriesPlan,
    files: NextFiles,
    open: Open,
    accounts: Accounts,
    report: ReportCommands,
    preamble: Preamble,
    /// Blocks before the first file, whose name depends on its first packet.
    early: Vec<u8>,
    current: Option<Current>,
    /// Pressure that the current file returned last.
    pressure: Pressure,
    written: Vec<(u32, PacketAccount)>,
    unwritten: Counts,
    /// Losses of finished files.
    lost: Vec<Loss>,
    /// Packets in the finished files.
    finished: Counts,
    /// Packets in the finished files and in a file that was cut.
    left: Option<Counts>,
}

impl std::fmt::Debug for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Series").field("plan", &self.plan).finish_non_exhaustive()
    }
}

struct Current {
    file: Box<dyn FileWriter>,
    began: Instant,
    began_wall: u64,
    packets: Counts,
    /// Time of the earliest packet: some arrived while the previous file was written.
    earliest: u64,
    /// Time of the first packet, if files end by the packets' time.
    first: Option<u64>,
}

/// Maximum length of the padding around a segment, up to disk units.
const FILLING: u64 = 2 * (4096 + 32);
/// Maximum length of an interface's statistics at the end of a file.
const TRAILER: u64 = 160;

impl Series {
    pub fn new(plan: SeriesPlan, files: NextFiles, open: Open, accounts: Accounts, report: ReportCommands) -> Self {
        Self {
            plan,
            files,
            open,
            accounts,
            report,
            preamble: Preamble::default(),
            early: Vec::new(),
            current: None,
            pressure: Pressure::Idle,
            written: Vec::new(),
            unwritten: Counts::default(),
            lost: Vec::new(),
            finished: Counts::default(),
            left: None,
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.begin_at(clock::wall())
    }

    /// Begins a file that is named by this time.
    fn begin_at(&mut self, time_ns: u64) -> Result<()> {
        let (file, name) = self.files.begin(time_ns)?;
        let mut file = (self.open)(file, name)?;
        let early = std::mem::take(&mut self.early);
        if early.is_empty() {
            for part in self.preamble.parts() {
                self.pressure = file.write(Blocks::Bytes(part))?;
            }
        } else {
            self.pressure = file.write(Blocks::Bytes(&early))?
        }
        self.pressure = file.flush()?;
        self.current = Some(Current {
            file,
            began: Instant::now(),
            began_wall: clock::wall(),
            packets: Counts::default(),
            earliest: u64::MAX,
            first: None,
        });
        Ok(())
    }

    /// Ends the current file with its statistics.
    fn end(&mut self) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        self.pressure = Pressure::Idle;
        let written = if self.plan.by_packets {
            Ok(Pressure::Idle)
        } else {
            current.file.write(Blocks::Bytes(&self.trailer(&current)))
        };
        let outcome = current.file.finish();
        let error = self.add_outcome(outcome);
        if let Some(error) = written.err().or(error) {
            return Err(error);
        }
        self.finished.add_all(&current.packets);
        drop(current.file);
        self.files.finished()
    }

    /// Adds the outcome of an ended file, and returns its error.
    fn add_outcome(&mut self, outcome: WriteOutcome) -> Option<Error> {
        self.lost.extend(outcome.lost);
        self.unwritten.add_all(&outcome.unwritten);
        if let Some(left) = outcome.left {
            let mut all = self.finished.clone();
            all.add_all(&left);
            self.left = Some(all);
        }
        outcome.error
    }

    /// Gives up a failed file.
    fn give_up(&mut self) {
        self.pressure = Pressure::Idle;
        if let Some(mut current) = self.current.take() {
            let outcome = current.file.finish();
            self.add_outcome(outcome);
        }
    }

    fn begin_next(&mut self) -> Result<()> {
        self.end()?;
        self.begin()
    }

    /// Returns the statistics of each interface for the time of this file.
    fn trailer(&mut self, current: &Current) -> Vec<u8> {
        let mut trailer = Vec::new();
        let now = clock::wall();
        let accounts = (self.accounts)();
        let before = std::mem::replace(&mut self.written, accounts);
        let interfaces = current.packets.interfaces().max(self.written.len() as u32);
        for id in 0..interfaces {
            let find = |list: &[(u32, PacketAccount)]| {
                list.iter().find(|(one, _)| *one == id).map(|(_, account)| account.clone())
            };
            let (then, so_far) = (find(&before).unwrap_or_default(), find(&self.written));
            let since = |count: fn(&PacketAccount) -> u64| {
                so_far.as_ref().map(|account| count(account).saturating_sub(count(&then)))
            };
            // The counters include packets still in memory, which belong to the next file.
            let written = current.packets.sum(&[id]);
            let lost = since(PacketAccount::lost_total);
            let accepted = lost.map(|lost| written + lost);
            let left_out = since(|account| account.filtered_out + account.not_kept + account.merged);
            interface_statistics(
                &mut trailer,
                &InterfaceStatistics {
                    interface_id: id,
                    timestamp_ns: now,
                    start_ns: Some(current.began_wall.min(current.earliest)),
                    end_ns: Some(now),
                    if_received: accepted.zip(left_out).map(|(one, other)| one + other),
                    if_dropped: lost,
                    filter_accepted: accepted,
                    user_delivered: Some(written),
                    ..Default::default()
                },
            );
        }
        trailer
    }

    fn is_due(&self) -> bool {
        match (&self.current, self.plan.rotation.time.filter(|_| !self.plan.by_packets)) {
            (Some(current), Some(time)) => current.began.elapsed() >= time,
            _ => false,
        }
    }

    /// Returns the number of bytes that still fit into the current file.
    fn room(&self) -> u64 {
        let Some(current) = &self.current else {
            return 0;
        };
        let interfaces = (self.written.len() as u64).max(u64::from(current.packets.interfaces()));
        let trailer = if self.plan.by_packets { 0 } else { TRAILER * interfaces.max(1) };
        let limit = self.plan.largest().unwrap_or(u64::MAX);
        limit.saturating_sub(current.file.length() + trailer)
    }

    /// Compresses all of the current file, and returns true if that makes space for more.
    fn try_compact(&mut self) -> Result<bool> {
        let Some(largest) = self.plan.largest().filter(|_| !self.is_due()) else {
            return Ok(false);
        };
        let Some(current) = &mut self.current else {
            return Ok(false);
        };
        let compacted = current.file.compact();
        if compacted.is_err() {
            self.give_up();
        }
        Ok(compacted? && !is_nearly_full(self.room(), largest))
    }

    /// Counts the packets that fit, and returns their number of bytes.
    fn count(&mut self, bytes: &[u8]) -> usize {
        let room = self.room();
        let Some(current) = &mut self.current else {
            return 0;
        };
        let mut taken = 0;
        for block in blocks(bytes) {
            let end = taken + block.bytes.len();
            let is_first = current.packets.interfaces() == 0;
            if end as u64 + current.file.filling(end) > room && !is_first {
                break;
            }
            if let Some(packet) = block.enhanced_packet() {
                current.packets.add(packet.interface_id, 1);
                current.earliest = current.earliest.min(packet.timestamp);
            } else {
                self.preamble.add(&block);
            }
            taken = end;
        }
        taken
    }

    /// Runs an action on the current file.
    fn pass(&mut self, act: impl FnOnce(&mut dyn FileWriter) -> Result<Pressure>) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        match act(current.file.as_mut()) {
            Ok(pressure) => {
                self.pressure = pressure;
                Ok(())
            }
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    fn write_packets(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // Compression may have shortened the counted packets in the file: more may fit.
            let done = if self.is_due() { 0 } else { self.count(rest) };
            let passed = match done {
                0 => self.try_compact().and_then(|made| if made { Ok(()) } else { self.begin_next() }),
                _ => self.pass(|file| file.write(Blocks::Bytes(&rest[..done]))),
            };
            rest = &rest[done..];
            if let Err(error) = passed {
                self.unwritten.add_blocks(rest);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Series {
    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        match blocks(bytes).next().map(|block| block.kind) {
            None => Ok(()),
            Some(block::SECTION_HEADER) => {
                blocks(bytes).for_each(|block| self.preamble.add(&block));
                self.written = (self.accounts)();
                if self.plan.by_event { Ok(()) } else { self.begin() }
            }
            // Each file has statistics of its own.
            Some(block::INTERFACE_STATISTICS) => self.end(),
            // No file is open between events, and no packets arrive.
            Some(_) if self.current.is_none() => {
                blocks(bytes).for_each(|block| self.preamble.add(&block));
                Ok(())
            }
            Some(_) => self.write_packets(bytes),
        }
    }
}

/// Files that end by the packets' time.
impl Series {
    fn write_stored(&mut self, stored: Stored<'_>) -> Result<()> {
        if self.current.is_none() && self.early.is_empty() && !self.plan.path.contains('%') {
            self.begin()?;
        }
        // Bytes before `done` are written, and the next part begins at `from`.
        let (mut done, mut from) = (0, 0);
        for part in stored.parts {
            let bytes = &stored.bytes[from..part.end];
            match part.kind {
                PartKind::Header => self.preamble.begin(bytes),
                PartKind::Description => self.preamble.describe(bytes),
                PartKind::Other => {}
                PartKind::Packet(time_ns) => {
                    if self.is_due_at(time_ns, part.end - done)? {
                        self.append(&stored.bytes[done..from])?;
                        done = from;
                        self.end()?;
                        self.begin_at(time_ns)?;
                    }
                    if let Some(current) = &mut self.current {
                        current.first.get_or_insert(time_ns);
                    }
                }
            }
            from = part.end;
        }
        self.append(&stored.bytes[done..])
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.current.is_none() {
            self.early.extend_from_slice(bytes);
            return Ok(());
        }
        self.pass(|file| write_patiently(file, Blocks::Bytes(bytes)).map(|()| Pressure::Idle))
    }

    /// Returns true if a packet of this time, with the bytes before it that are not written, belongs into another file.
    fn is_due_at(&mut self, time_ns: u64, bytes: usize) -> Result<bool> {
        let Some(first) = self.current.as_ref().map(|current| current.first) else {
            return Ok(true);
        };
        let Some(first) = first else {
            return Ok(false);
        };
        let length = self.plan.rotation.time.map(|time| time.as_nanos() as u64);
        if length.is_some_and(|length| time_ns.saturating_sub(first) >= length) {
            return Ok(true);
        }
        let fits = |series: &Self| bytes as u64 <= series.room();
        let has_room = fits(self) || (self.try_compact()? && fits(self));
        Ok(!has_room)
    }
}

/// Returns the parts of pcapng blocks in nanoseconds.
fn parts(bytes: &[u8]) -> Vec<StoredPart> {
    let mut end = 0;
    let part = |block: block::Block<'_>| {
        end += block.bytes.len();
        let kind = match (block.kind, block.enhanced_packet()) {
            (_, Some(packet)) => PartKind::Packet(packet.timestamp),
            (block::SECTION_HEADER, _) => PartKind::Header,
            (block::INTERFACE_DESCRIPTION, _) => PartKind::Description,
            _ => PartKind::Other,
        };
        StoredPart { end, kind }
    };
    blocks(bytes).map(part).collect()
}

impl Writer for Series {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        match written {
            Blocks::Stored(stored) => self.write_stored(stored),
            Blocks::Bytes(bytes) if self.plan.by_packets => self.write_stored(Stored { bytes, parts: &parts(bytes) }),
            // The process that opens files removes one that was not finished.
            Blocks::Refused => {
                self.give_up();
                Ok(())
            }
            Blocks::EventBegin if self.plan.by_event => self.begin_next(),
            Blocks::EventEnd if self.plan.by_event => self.end(),
            Blocks::EventBegin | Blocks::EventEnd => Ok(()),
            Blocks::Segment(segment) if !self.is_due() && self.room() >= segment.bytes().len() as u64 + FILLING => {
                self.count(segment.bytes());
                self.pass(|file| file.write(Blocks::Segment(segment)))
            }
            Blocks::Bytes(_) | Blocks::Segment(_) => self.write_bytes(written.bytes()),
        }?;
        Ok(self.pressure.clone())
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.pass(|file| file.flush())?;
        Ok(self.pressure.clone())
    }

    fn due(&self) -> Option<Instant> {
        self.current.as_ref().and_then(|current| current.file.due())
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    /// Finishes the file. After the trailer it waits for the commands of finished files.
    fn finish(&mut self) -> WriteOutcome {
        if self.plan.by_packets
            && let Err(error) = self.end()
        {
            return self.outcome(Vec::new(), Some(error));
        }
        let Some(current) = &mut self.current else {
            let error = self.files.wait(&self.report).err();
            return self.outcome(Vec::new(), error);
        };
        let outcome = current.file.finish();
        if outcome.error.is_none() {
            // The file is finished again after its trailer.
            return self.outcome(outcome.lost, None);
        }
        self.current = None;
        let error = self.add_outcome(outcome);
        self.outcome(Vec::new(), error)
    }
}

impl Series {
    /// Returns the outcome so far, with losses of the current file.
    fn outcome(&self, lost: Vec<Loss>, error: Option<Error>) -> WriteOutcome {
        WriteOutcome {
            lost: self.lost.iter().copied().chain(lost).collect(),
            unwritten: self.unwritten.clone(),
            left: self.left.clone(),
            error,
            ..WriteOutcome::default()
        }
    }
}
