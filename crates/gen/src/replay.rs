//! Replay of recorded frames: from files of any size, with the recorded timing or another, and optional changes.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use parking_lot::Mutex;
use rewrite::Rewrite;
use serde::Serialize;
use trawl_packet::link_type;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::{CaptureReader, compressed};
use trawl_sys::{Error, Result};

use crate::run::Gaps;
use crate::source::{Next, Source};

pub mod rewrite;

const ETHERNET_HEADER: usize = 14;
const TAG: usize = 4;
const VLAN: [u8; 2] = [0x81, 0x00];

/// Recordings to send, and their settings.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    pub files: Vec<PathBuf>,
    /// Set to merge all files in order of time, rather than send one after the other.
    pub merge: bool,
    /// Number of rounds; `None`: endless.
    pub rounds: Option<u64>,
    pub speed: Speed,
    pub rewrite: Rewrite,
    /// The interface's MTU: longer packets do not fit.
    pub mtu: u32,
}

/// Results of a replay, in addition to the counts of its run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayAccount {
    /// Files that could not be sent, or only in part, and the reason.
    pub problems: Vec<String>,
    /// Frames that the interface cannot send: longer than its MTU allows, or without a whole Ethernet header.
    pub too_long: u64,
    pub too_short: u64,
    /// Frames that the recording kept in part; the kept part was sent.
    pub cut: u64,
    /// Frames that were recorded with an earlier time than their predecessor.
    pub backwards: u64,
    pub rounds: u64,
    /// Errors of the gaps between frames, relative to the recorded ones.
    #[serde(skip)]
    pub gaps: Option<Gaps>,
}

/// The account of a replay for the caller; the sending thread owns the replay itself.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<Mutex<ReplayAccount>>);

impl Account {
    pub fn outcome(&self) -> ReplayAccount {
        self.0.lock().clone()
    }
}

/// The time of the run at which the recorded time begins. An engine may be tried and prepared with the first frame,
/// which is slow, so the recorded time begins at the request for the second frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    NotYet,
    FirstFrame,
    At(u64),
}

/// The frames of the recordings, as they become due.
#[derive(Debug)]
pub struct Replay {
    options: ReplayOptions,
    /// Open recordings of this round that are not at their end. Without merging, they are opened one by one.
    open: Vec<Recording>,
    next_file: usize,
    timing: Option<Timing>,
    /// Time at which the next frame is due, once computed.
    due: Option<u64>,
    begin: Begin,
    sent_this_round: bool,
    outcome: ReplayAccount,
    account: Account,
}

impl Replay {
    /// Opens all files. Fails if one cannot be opened, and if none has a frame to send.
    pub fn open(options: ReplayOptions) -> Result<Self> {
        let timing = match options.speed {
            Speed::Times(speed) if !(speed.is_finite() && speed > 0.0) => {
                let what = format!("cannot replay at {speed} times the recorded speed");
                return Err(Error::usage(what, "it must be above zero"));
            }
            Speed::Times(speed) => Some(Timing::new(speed)),
            Speed::Unpaced => None,
        };
        let mut problems = Vec::new();
        let mut usable = false;
        for path in &options.files {
            let recording = Recording::open(path)?;
            usable |= recording.peek().is_some();
            problems.extend(recording.problem().map(str::to_owned));
        }
        if !usable {
            return Err(Error::failed("no frame can be sent", problems.join("; ")));
        }
        let outcome = ReplayAccount { gaps: timing.is_some().then(Gaps::new), ..ReplayAccount::default() };
        let mut replay = Self {
            options,
            open: Vec::new(),
            next_file: 0,
            timing,
            due: None,
            begin: Begin::NotYet,
            sent_this_round: false,
            outcome,
            account: Account::default(),
        };
        replay.open_next()?;
        Ok(replay)
    }

    /// Returns the account, which is complete when the replay is over and dropped.
    pub fn account(&self) -> Account {
        self.account.clone()
    }

    /// Opens the next recordings: all files, or the next one. Returns false if none are left in this round.
    fn open_next(&mut self) -> Result<bool> {
        let files = &self.options.files;
        let last = if self.options.merge { files.len() } else { files.len().min(self.next_file + 1) };
        let now = &files[self.next_file..last];
        for path in now {
            self.open.push(Recording::open(path)?);
        }
        let opened = !now.is_empty();
        self.next_file = last;
        if let Some(timing) = &mut self.timing {
            timing.next_file();
        }
        Ok(opened)
    }

    fn next_round(&mut self) -> Result<bool> {
        self.outcome.rounds += 1;
        let over = self.options.rounds.is_some_and(|rounds| self.outcome.rounds >= rounds);
        // A round that sends nothing would be followed by others like it, endlessly.
        if over || !std::mem::take(&mut self.sent_this_round) {
            return Ok(false);
        }
        self.next_file = 0;
        if let Some(timing) = &mut self.timing {
            timing.next_round();
        }
        self.open_next()
    }

    /// Returns the index of the recording with the next packet; opens more, or begins another round, as needed.
    fn select(&mut self) -> Result<Option<usize>> {
        loop {
            let times = self.open.iter().enumerate();
            let first = times.filter_map(|(at, one)| Some((one.peek()?.time, at))).min();
            if let Some((_, at)) = first {
                return Ok(Some(at));
            }
            for over in self.open.drain(..) {
                if let Some(problem) = over.problem()
                    && !self.outcome.problems.iter().any(|known| known == problem)
                {
                    self.outcome.problems.push(problem.to_owned());
                }
            }
            if !self.open_next()? && !self.next_round()? {
                return Ok(None);
            }
        }
    }

    /// Changes the frame at the beginning of `room`, and returns its new length; `None` if it cannot be sent.
    fn prepare(&mut self, length: usize, cut: bool, room: &mut [u8]) -> Option<usize> {
        if length < ETHERNET_HEADER {
            self.outcome.too_short += 1;
            return None;
        }
        let length = self.options.rewrite.apply(room, length);
        let tag = if room[12..14] == VLAN { TAG } else { 0 };
        if length > self.options.mtu as usize + ETHERNET_HEADER + tag {
            self.outcome.too_long += 1;
            return None;
        }
        self.outcome.cut += u64::from(cut);
        Some(length)
    }
}

impl Source for Replay {
    fn next(&mut self, now: u64, room: &mut [u8]) -> Result<Next> {
        while let Some(at) = self.select()? {
            let Some(packet) = self.open[at].peek() else {
                continue;
            };
            let (time, length, cut) = (packet.time, packet.bytes.len(), packet.cut);
            if self.begin == Begin::FirstFrame {
                self.begin = Begin::At(now);
            }
            if let Some(timing) = &mut self.timing {
                let begin = match self.begin {
                    Begin::At(begin) => begin,
                    Begin::NotYet | Begin::FirstFrame => now,
                };
                let due = *self.due.get_or_insert_with(|| begin + timing.due(time));
                if due > now {
                    return Ok(Next::Later(due));
                }
            }
            // A frame that does not fit even after removing all tags is skipped.
            let fits = length <= room.len();
            if fits {
                room[..length].copy_from_slice(&packet.bytes);
            }
            self.open[at].advance();
            let due = self.due.take();
            if !fits {
                self.outcome.too_long += 1;
                continue;
            }
            let Some(length) = self.prepare(length, cut, room) else {
                continue;
            };
            self.sent_this_round = true;
            if self.begin == Begin::NotYet {
                self.begin = Begin::FirstFrame;
            }
            if let (Some(gaps), Some(due)) = (&mut self.outcome.gaps, due) {
                gaps.note(now, due, 0.0, 1);
            }
            return Ok(Next::Frame(length));
        }
        Ok(Next::End)
    }

    /// Includes room for a tag that is removed, and for one that is added.
    fn longest(&self) -> usize {
        self.options.mtu as usize + ETHERNET_HEADER + 2 * TAG
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.backwards = self.timing.as_ref().map_or(0, Timing::backwards);
        *self.account.0.lock() = outcome;
    }
}

// One capture file, read packet by packet, with its reason for an early end.

/// The next packet.
#[derive(Debug, Default)]
pub struct Packet {
    pub time: u64,
    pub bytes: Vec<u8>,
    /// True if the recording kept only a part of the packet.
    pub cut: bool,
}

#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    reader: Option<CaptureReader<'static>>,
    next: Packet,
    /// Number of packets read.
    count: u64,
    /// Reason for the end, if it is not the end of the file.
    problem: Option<String>,
}

impl Recording {
    /// Opens the file and reads its first packet. A file that cannot be opened is an error; one without a packet to
    /// send is at its end, with a problem.
    pub fn open(path: &Path) -> Result<Self> {
        let what = || format!("cannot replay {}", path.display());
        let file = File::open(path).map_err(|e| Error::os(what(), e))?;
        let about = file.metadata().map_err(|e| Error::os(what(), e))?;
        if !about.is_file() {
            let why = "it is not a regular file, and a recording is opened more than once";
            return Err(Error::failed(what(), why));
        }
        let mut recording =
            Self { path: path.to_owned(), reader: None, next: Packet::default(), count: 0, problem: None };
        match CaptureReader::new(Ahead::new(file)) {
            Ok(reader) => recording.reader = Some(reader),
            Err(error) => recording.end(&error.to_string()),
        }
        recording.advance();
        if recording.count == 0 && recording.problem.is_none() {
            recording.end("there is no packet in it");
        }
        Ok(recording)
    }

    /// Returns the next packet; `None` at the end.
    pub fn peek(&self) -> Option<&Packet> {
        self.reader.is_some().then_some(&self.next)
    }

    /// Advances to the next packet.
    pub fn advance(&mut self) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        let problem = match reader.next_packet() {
            Ok(Some(packet)) if packet.link_type == LINKTYPE_ETHERNET => {
                self.count += 1;
                self.next.time = packet.timestamp_ns;
                let original_len = packet.original_len as usize;
                let stored = reader.stored().unwrap_or_default();
                self.next.cut = stored.len() < original_len;
                self.next.bytes.clear();
                self.next.bytes.extend_from_slice(stored);
                return;
            }
            Ok(Some(packet)) => format!(
                "its packets are of the link type {}, which cannot be sent: only Ethernet frames can",
                link_type::described(packet.link_type)
            ),
            Ok(None) => {
                self.reader = None;
                return;
            }
            Err(error) => error.to_string(),
        };
        self.end(&problem);
    }

    fn end(&mut self, why: &str) {
        let so_far = match self.count {
            0 => String::new(),
            1 => "after its first packet: ".to_owned(),
            count => format!("after {count} packets: "),
        };
        self.problem = Some(format!("{}: {so_far}{why}", self.path.display()));
        self.reader = None;
    }

    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

// Reads ahead on a thread of its own, and decompresses there, so that the sending thread does not wait for the disk.

/// Size of a read; together with the number of queued pieces, it bounds a file's memory.
const PIECE: usize = 256 << 10;
const PIECES: usize = 8;

type Piece = io::Result<Vec<u8>>;

#[derive(Debug)]
pub struct Ahead {
    pieces: Receiver<Piece>,
    /// Empty pieces, to be filled again.
    empty: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    position: usize,
}

impl Ahead {
    pub fn new(file: File) -> Self {
        let (full, pieces) = sync_channel(PIECES);
        let (empty, emptied) = sync_channel(PIECES + 2);
        // The thread ends when the other side is dropped, or at the end of the file.
        thread::spawn(move || fill(file, &full, &emptied));
        Self { pieces, empty, piece: Vec::new(), position: 0 }
    }
}

fn fill(file: File, full: &SyncSender<Piece>, emptied: &Receiver<Vec<u8>>) {
    let mut file = match compressed::open(file) {
        Ok((file, _)) => file,
        Err(error) => {
            // The error is reported at the first read, unless the replay is over.
            let _ = full.send(Err(error));
            return;
        }
    };
    loop {
        let mut piece = emptied.try_recv().unwrap_or_default();
        piece.resize(PIECE, 0);
        let read = match file.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other,
        };
        let is_last = !matches!(read, Ok(1..));
        let piece = read.map(|count| {
            piece.truncate(count);
            piece
        });
        if full.send(piece).is_err() || is_last {
            return;
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.position == self.piece.len() {
            let Ok(next) = self.pieces.recv() else {
                return Ok(0);
            };
            let used = std::mem::replace(&mut self.piece, next?);
            self.position = 0;
            // An error means that the thread has already reached the end.
            let _ = self.empty.try_send(used);
        }
        let rest = &self.piece[self.position..];
        let count = rest.len().min(to.len());
        to[..count].copy_from_slice(&rest[..count]);
        self.position += count;
        Ok(count)
    }
}

// Due times of recorded frames.

/// Speed of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// Multiple of the recorded speed.
    Times(f64),
    /// Full speed or the pacer's rate, without the recorded times.
    Unpaced,
}

/// Backward jump of the recorded time that begins a new timing: another recording, or a clock that was set. Smaller
/// jumps are disorder: such frames are due at once.
const JUMP_BACK: u64 = 10_000_000;

/// Converts recorded times into times since the beginning of the replay.
#[derive(Clone, Debug)]
pub struct Timing {
    speed: f64,
    /// Latest recorded time.
    latest: Option<u64>,
    /// Duration of the recording until `latest`.
    elapsed: u64,
    frames: u64,
    backwards: u64,
}

impl Timing {
    pub fn new(speed: f64) -> Self {
        Self { speed, latest: None, elapsed: 0, frames: 0, backwards: 0 }
    }

    /// Returns the time at which a frame with this recorded time is due, in nanoseconds since the beginning. Called
    /// once for each frame.
    pub fn due(&mut self, time: u64) -> u64 {
        match self.latest {
            Some(latest) if time >= latest => self.elapsed += time - latest,
            Some(latest) => {
                self.backwards += 1;
                if latest - time <= JUMP_BACK {
                    return self.replay_time();
                }
            }
            None => {}
        }
        self.latest = Some(time);
        self.frames += 1;
        self.replay_time()
    }

    /// Begins another file, which follows at once, independent of its recorded times.
    pub fn next_file(&mut self) {
        self.latest = None;
    }

    /// Begins another round. The gap in between is the mean one, which keeps the rate.
    pub fn next_round(&mut self) {
        self.latest = None;
        self.elapsed += self.elapsed.checked_div(self.frames - self.frames.min(1)).unwrap_or(0);
    }

    /// Returns the number of frames with an earlier time than their predecessor.
    pub fn backwards(&self) -> u64 {
        self.backwards
    }

    fn replay_time(&self) -> u64 {
        (self.elapsed as f64 / self.speed) as u64
    }
}

#[cfg(test)]
mod tests;
