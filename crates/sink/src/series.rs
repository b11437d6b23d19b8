//! A series of files instead of a single one: by size, by time, as a ring; each file is complete.

use std::fs::File;
use std::time::Instant;

use trawl_packet::pcapng::block::{self, blocks};
use trawl_packet::pcapng::write::{InterfaceStatistics, interface_statistics};
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Counts, FileWriter, Loss, Pressure, WriteOutcome, Writer};
use trawl_sys::{Error, Result, clock};

use crate::next_files::NextFiles;
use crate::packed::is_nearly_full;
use crate::preamble::Preamble;
use crate::series_plan::SeriesPlan;

/// Opens the writer of a file of the series, with its name.
pub type Open = Box<dyn FnMut(File, String) -> Result<Box<dyn FileWriter>>>;
/// Returns the counters so far, with the interface block of each.
pub type Accounts = Box<dyn Fn() -> Vec<(u32, PacketAccount)>>;

/// Reports the number of commands of `-z` that are waited for.
pub type Tell = Box<dyn Fn(usize)>;

pub struct Series {
    plan: SeriesPlan,
    files: NextFiles,
    open: Open,
    accounts: Accounts,
    tell: Tell,
    preamble: Preamble,
    current: Option<Current>,
    /// Last answer of its file.
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
}

/// Maximum length of the padding around a segment, up to disk units.
const FILLING: u64 = 2 * (4096 + 32);
/// Maximum length of an interface's statistics at the end of a file.
const TRAILER: u64 = 160;

impl Series {
    pub fn new(plan: SeriesPlan, files: NextFiles, open: Open, accounts: Accounts, tell: Tell) -> Self {
        Self {
            plan,
            files,
            open,
            accounts,
            tell,
            preamble: Preamble::default(),
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
        let (file, name) = self.files.begin()?;
        let mut file = (self.open)(file, name)?;
        for part in self.preamble.parts() {
            self.pressure = file.write(Blocks::Bytes(part))?;
        }
        self.pressure = file.flush()?;
        self.current = Some(Current {
            file,
            began: Instant::now(),
            began_wall: clock::wall(),
            packets: Counts::default(),
            earliest: u64::MAX,
        });
        Ok(())
    }

    /// Ends the current file with its statistics.
    fn end(&mut self) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        self.pressure = Pressure::Idle;
        let trailer = self.trailer(&current);
        let written = current.file.write(Blocks::Bytes(&trailer));
        let outcome = current.file.finish();
        let error = self.take_in(outcome);
        if let Some(error) = written.err().or(error) {
            return Err(error);
        }
        self.finished.add_all(&current.packets);
        drop(current.file);
        self.files.finished()
    }

    /// Adds the outcome of an ended file, and returns its error.
    fn take_in(&mut self, outcome: WriteOutcome) -> Option<Error> {
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
            self.take_in(outcome);
        }
    }

    fn seam(&mut self) -> Result<()> {
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
        match (&self.current, self.plan.rotation.time) {
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
        let trailer = TRAILER * interfaces.max(1);
        let limit = self.plan.largest().unwrap_or(u64::MAX);
        limit.saturating_sub(current.file.length() + trailer)
    }

    /// Returns true if compressing the whole current file makes space for more.
    fn makes_room(&mut self) -> Result<bool> {
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
                0 => self.makes_room().and_then(|made| match made {
                    true => Ok(()),
                    false => self.seam(),
                }),
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
                match self.plan.by_event {
                    true => Ok(()),
                    false => self.begin(),
                }
            }
            // Each file has statistics of its own.
            Some(block::INTERFACE_STATISTICS) => self.end(),
            // Between events, when no packets come.
            Some(_) if self.current.is_none() => {
                blocks(bytes).for_each(|block| self.preamble.add(&block));
                Ok(())
            }
            Some(_) => self.write_packets(bytes),
        }
    }
}

impl Writer for Series {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        match written {
            Blocks::EventBegin if self.plan.by_event => self.seam(),
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

    /// Finishes the file. After the trailer it waits for the commands of finished files.
    fn finish(&mut self) -> WriteOutcome {
        let Some(current) = &mut self.current else {
            let error = self.files.wait(&self.tell).err();
            return self.outcome(Vec::new(), error);
        };
        let outcome = current.file.finish();
        match outcome.error.is_some() {
            true => {
                self.current = None;
                let error = self.take_in(outcome);
                self.outcome(Vec::new(), error)
            }
            // The file is finished again after its trailer.
            false => self.outcome(outcome.lost, None),
        }
    }
}

impl Series {
    /// Returns the outcome so far, with losses of the file at hand.
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
