//! A series of files in the place of one: by size, by time, as a ring; each whole by itself.

use std::fs::File;
use std::time::Instant;

use trawl_packet::pcapng::block::{self, blocks};
use trawl_packet::pcapng::write::{InterfaceStatistics, interface_statistics};
use trawl_ring::Lease;
use trawl_sys::{Result, clock};
use trawl_tap::account::Account;
use trawl_tap::sink::Sink;

use crate::next_files::NextFiles;
use crate::packed::is_nearly_full;
use crate::series_plan::SeriesPlan;

/// What is written to a file of the series, by its name.
pub type Open = Box<dyn FnMut(File, String) -> Result<Box<dyn Sink>>>;
/// The accounts so far, with the interface block that each stands for.
pub type Accounts = Box<dyn Fn() -> Vec<(u32, Account)>>;

/// Tells somebody who waits for commands of `-z` how many run.
pub type Tell = Box<dyn Fn(usize)>;

pub struct Series {
    plan: SeriesPlan,
    files: NextFiles,
    open: Open,
    accounts: Accounts,
    tell: Tell,
    /// What each file begins with.
    header: Vec<u8>,
    current: Option<Current>,
    told: Vec<(u32, Account)>,
    unwritten: Vec<u8>,
    /// What the finished files lost.
    lost: Vec<(u32, &'static str, u64)>,
    /// The packets in the finished files, by interface block.
    finished: Vec<u64>,
    /// Those and the ones that are left of a file that was cut.
    found: Option<Vec<u64>>,
}

impl std::fmt::Debug for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Series")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

struct Current {
    sink: Box<dyn Sink>,
    began: Instant,
    began_wall: u64,
    packets: Vec<u64>,
    /// The time of the earliest packet, by interface block: some came in while the file before was written.
    earliest: Vec<u64>,
}

/// What fills a segment up to what a disk takes, and what is before it, is no longer than this.
const FILLING: u64 = 2 * (4096 + 32);
/// The statistics of an interface at the end of a file are no longer than this.
const TRAILER: u64 = 160;

impl Series {
    pub fn new(
        plan: SeriesPlan,
        files: NextFiles,
        open: Open,
        accounts: Accounts,
        tell: Tell,
    ) -> Self {
        Self {
            plan,
            files,
            open,
            accounts,
            tell,
            header: Vec::new(),
            current: None,
            told: Vec::new(),
            unwritten: Vec::new(),
            lost: Vec::new(),
            finished: Vec::new(),
            found: None,
        }
    }

    fn begin(&mut self) -> Result<()> {
        let (file, name) = self.files.begin()?;
        let mut sink = (self.open)(file, name)?;
        sink.write(&self.header)?;
        sink.rest()?;
        self.current = Some(Current {
            sink,
            began: Instant::now(),
            began_wall: clock::wall(),
            packets: Vec::new(),
            earliest: Vec::new(),
        });
        Ok(())
    }

    /// Ends the file at hand with its statistics.
    fn end(&mut self) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        let trailer = self.trailer(&current);
        let ended = current
            .sink
            .write(&trailer)
            .and_then(|()| current.sink.settle());
        if let Err(error) = ended {
            self.give_up(current.sink.as_mut());
            return Err(error);
        }
        add(&mut self.finished, &current.packets);
        self.lost.extend(current.sink.lost());
        drop(current.sink);
        self.files.finished()
    }

    /// The file at hand takes no more: what is not in it.
    fn give_up(&mut self, sink: &mut dyn Sink) {
        self.unwritten.extend(sink.take_unwritten());
        if let Some(left) = sink.found() {
            let mut found = self.finished.clone();
            add(&mut found, &left);
            self.found = Some(found);
        }
    }

    fn give_up_current(&mut self) {
        if let Some(mut current) = self.current.take() {
            self.give_up(current.sink.as_mut());
            self.lost.extend(current.sink.lost());
        }
    }

    fn seam(&mut self) -> Result<()> {
        self.end()?;
        self.begin()
    }

    /// What came in while this file was written, for each interface.
    fn trailer(&mut self, current: &Current) -> Vec<u8> {
        let mut trailer = Vec::new();
        let now = clock::wall();
        let accounts = (self.accounts)();
        let before = std::mem::replace(&mut self.told, accounts);
        let interfaces = current.packets.len().max(self.told.len());
        for id in 0..interfaces as u32 {
            let find = |list: &[(u32, Account)]| {
                list.iter()
                    .find(|(one, _)| *one == id)
                    .map(|(_, account)| account.clone())
            };
            let (then, so_far) = (find(&before).unwrap_or_default(), find(&self.told));
            let since = |count: fn(&Account) -> u64| {
                so_far
                    .as_ref()
                    .map(|account| count(account).saturating_sub(count(&then)))
            };
            // The accounts run ahead of the file by what is still in memory: those packets belong to the next one.
            let written = current.packets.get(id as usize).copied().unwrap_or(0);
            let lost = since(Account::lost_total);
            let accepted = lost.map(|lost| written + lost);
            let earliest = current.earliest.get(id as usize);
            let start = earliest.map_or(current.began_wall, |one| current.began_wall.min(*one));
            let left_out = since(|account| account.filtered_out + account.not_kept);
            interface_statistics(
                &mut trailer,
                &InterfaceStatistics {
                    interface_id: id,
                    timestamp_ns: now,
                    start_ns: Some(start),
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

    /// How many bytes still fit into the file at hand.
    fn room(&self) -> u64 {
        let Some(current) = &self.current else {
            return 0;
        };
        let trailer = TRAILER * self.told.len().max(current.packets.len()).max(1) as u64;
        let limit = self.plan.largest().unwrap_or(u64::MAX);
        limit.saturating_sub(current.sink.length() + trailer)
    }

    /// Whether there is room for some more once all of the file at hand is packed.
    fn makes_room(&mut self) -> Result<bool> {
        let Some(largest) = self.plan.largest().filter(|_| !self.is_due()) else {
            return Ok(false);
        };
        let Some(current) = &mut self.current else {
            return Ok(false);
        };
        let compacted = current.sink.compact();
        if compacted.is_err() {
            self.give_up_current();
        }
        Ok(compacted? && !is_nearly_full(self.room(), largest))
    }

    /// Counts packets as far as there is room, and says how many bytes that are.
    fn count(&mut self, bytes: &[u8]) -> usize {
        let room = self.room();
        let Some(current) = &mut self.current else {
            return 0;
        };
        let mut taken = 0;
        for block in blocks(bytes) {
            let end = taken + block.bytes.len();
            let is_first = current.packets.is_empty();
            if end as u64 + current.sink.filling(end) > room && !is_first {
                break;
            }
            if let Some(packet) = block.enhanced_packet() {
                let index = packet.interface_id as usize;
                if current.packets.len() <= index {
                    current.packets.resize(index + 1, 0);
                    current.earliest.resize(index + 1, u64::MAX);
                }
                current.packets[index] += 1;
                current.earliest[index] = current.earliest[index].min(packet.timestamp);
            } else if block.kind == block::INTERFACE_DESCRIPTION {
                self.header.extend_from_slice(block.bytes);
            }
            taken = end;
        }
        taken
    }

    fn pass(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let written = current.sink.write(bytes);
        if written.is_err() {
            self.give_up_current();
        }
        written
    }

    fn write_packets(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // What was counted may have become shorter in the file: there may be room for more.
            let done = if self.is_due() { 0 } else { self.count(rest) };
            let passed = match done {
                0 => self.makes_room().and_then(|made| match made {
                    true => Ok(()),
                    false => self.seam(),
                }),
                _ => self.pass(&rest[..done]),
            };
            rest = &rest[done..];
            if let Err(error) = passed {
                self.unwritten.extend_from_slice(rest);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Sink for Series {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match blocks(bytes).next().map(|block| block.kind) {
            None => Ok(()),
            Some(block::SECTION_HEADER) => {
                self.header = bytes.to_vec();
                self.told = (self.accounts)();
                match self.plan.by_event {
                    true => Ok(()),
                    false => self.begin(),
                }
            }
            // Each file has its own.
            Some(block::INTERFACE_STATISTICS) => self.end(),
            // Between events, when no packets come.
            Some(_) if self.current.is_none() => {
                let interfaces =
                    blocks(bytes).filter(|block| block.kind == block::INTERFACE_DESCRIPTION);
                interfaces.for_each(|block| self.header.extend_from_slice(block.bytes));
                Ok(())
            }
            Some(_) => self.write_packets(bytes),
        }
    }

    fn event_begins(&mut self) -> Result<()> {
        match self.plan.by_event {
            true => self.seam(),
            false => Ok(()),
        }
    }

    fn event_over(&mut self) -> Result<()> {
        match self.plan.by_event {
            true => self.end(),
            false => self.rest(),
        }
    }

    fn is_busy(&self) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|current| current.sink.is_busy())
    }

    fn takes_segments(&self) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| current.sink.takes_segments())
    }

    fn take(&mut self, segment: Lease) -> Result<()> {
        let length = segment.bytes().len() as u64;
        if self.is_due() || self.room() < length + FILLING {
            return self.write_packets(segment.bytes());
        }
        self.count(segment.bytes());
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let taken = current.sink.take(segment);
        if taken.is_err() {
            self.give_up_current();
        }
        taken
    }

    fn rest(&mut self) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let rested = current.sink.rest();
        if rested.is_err() {
            self.give_up_current();
        }
        rested
    }

    fn settle(&mut self) -> Result<()> {
        match &mut self.current {
            Some(current) => {
                let settled = current.sink.settle();
                if settled.is_err() {
                    self.give_up_current();
                }
                settled
            }
            None => self.files.wait(&self.tell),
        }
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unwritten)
    }

    fn found(&self) -> Option<Vec<u64>> {
        self.found.clone()
    }

    fn lost(&self) -> Vec<(u32, &'static str, u64)> {
        let now = self.current.iter().flat_map(|current| current.sink.lost());
        self.lost.iter().copied().chain(now).collect()
    }
}

/// Adds counts by interface block.
fn add(sums: &mut Vec<u64>, counts: &[u64]) {
    sums.resize(counts.len().max(sums.len()), 0);
    sums.iter_mut()
        .zip(counts)
        .for_each(|(sum, count)| *sum += count);
}
