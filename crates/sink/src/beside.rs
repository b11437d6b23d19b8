//! Further outputs beside the first: each has a thread and a queue of its own, so that a slow one takes nothing from the
//! others. What finds its queue full is lost to that output alone.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::block::{EPB_FIXED_LEN, HEADER_LEN, blocks, padded};
use trawl_ring::Lease;
use trawl_sys::{Error, Result, errno};
use trawl_tap::sink::{Counting, Sink};

/// What may wait for one output.
const WAITING_MAX: usize = 32 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How often an output sees to what has come slowly.
const REST_EVERY: Duration = Duration::from_millis(20);
/// How long a reader may take nothing when the capture is over.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Beside {
    name: String,
    jobs: Option<Sender<Arc<[u8]>>>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    end: Arc<End>,
    lost: Counting,
}

/// What an output and its thread tell each other about its end.
#[derive(Debug, Default)]
struct End {
    /// The capture is over: a reader that takes nothing is waited for no longer.
    is_near: AtomicBool,
    /// Its reader stopped reading.
    is_not_read: AtomicBool,
    error: Mutex<Option<Error>>,
    /// Packets that were handed to the thread and are not in the file.
    unwritten: AtomicU64,
    /// The output lost packets by itself, for it compresses.
    compresses_too_slowly: AtomicBool,
}

/// What became of an output.
#[derive(Debug)]
pub struct Fate {
    pub name: String,
    pub recorded: u64,
    pub lost: u64,
    pub error: Option<Error>,
    /// It takes no more, for another reason than that its reader has seen enough.
    pub failed: bool,
    /// What it lost it could not compress in time.
    pub compresses_too_slowly: bool,
}

impl Beside {
    /// Starts an output; packets are cut to `snaplen` bytes, if there is one.
    pub fn start(
        name: String,
        mut sink: Box<dyn Sink + Send>,
        snaplen: Option<u32>,
    ) -> Result<Self> {
        let (jobs, to_write) = channel::<Arc<[u8]>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let end = Arc::new(End::default());
        let (left, its_end) = (Arc::clone(&waiting), Arc::clone(&end));
        let thread = std::thread::Builder::new()
            .name("trawl-output".to_owned())
            .spawn(move || {
                let sink = sink.as_mut();
                let mut handed = 0;
                match move_all(sink, snaplen, &to_write, &left, &its_end, &mut handed) {
                    Ok(()) => {
                        let lost = lost_by(sink);
                        its_end.lose(lost);
                        its_end
                            .compresses_too_slowly
                            .store(lost > 0, Ordering::Release);
                    }
                    Err(error) => {
                        *its_end.error.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
                        its_end.lose(left_out(sink, handed));
                        drain(&to_write, &left, &its_end);
                    }
                }
            })
            .map_err(|e| Error::os("cannot start the thread of an output", e))?;
        Ok(Self {
            name,
            jobs: Some(jobs),
            waiting,
            thread: Some(thread),
            end,
            lost: Counting::default(),
        })
    }

    fn hand(&mut self, bytes: &Arc<[u8]>) -> Result<()> {
        if self.waiting.load(Ordering::Acquire) + bytes.len() > WAITING_MAX {
            return self.lost.write(bytes);
        }
        self.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        match &self.jobs {
            Some(jobs) if jobs.send(Arc::clone(bytes)).is_ok() => Ok(()),
            _ => {
                self.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
                self.lost.write(bytes)
            }
        }
    }

    fn is_busy(&self) -> bool {
        let alive = self
            .thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished());
        alive && self.waiting.load(Ordering::Acquire) > 0
    }

    /// Ends it when all is written. `handed` is the number of packets that it was given.
    fn end(mut self, handed: u64) -> Fate {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Whether it crashed shows in what is left.
            let _ = thread.join();
        }
        let error = self
            .end
            .error
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .take();
        let unwritten = self.end.unwritten.load(Ordering::Acquire);
        let lost = self.lost.packets.iter().sum::<u64>() + unwritten;
        Fate {
            name: self.name,
            recorded: handed.saturating_sub(lost),
            failed: !self.end.is_not_read.load(Ordering::Acquire)
                && error
                    .as_ref()
                    .is_some_and(|error| error.errno() != Some(errno::EPIPE)),
            lost,
            error,
            compresses_too_slowly: self.end.compresses_too_slowly.load(Ordering::Acquire),
        }
    }
}

impl End {
    fn lose(&self, packets: u64) {
        self.unwritten.fetch_add(packets, Ordering::AcqRel);
    }
}

fn packets_in(blocks: &[u8]) -> u64 {
    let mut counting = Counting::default();
    // It counts, and cannot fail.
    let _ = counting.write(blocks);
    counting.packets.iter().sum()
}

/// Writes what comes, as far as it is wanted.
fn write_cut(sink: &mut dyn Sink, bytes: &[u8], snaplen: Option<u32>) -> Result<()> {
    match snaplen {
        Some(snaplen) => sink.write(&cut(bytes, snaplen)),
        None => sink.write(bytes),
    }
}

/// Moves what comes to an output, until the capture is over, and counts it.
fn move_all(
    sink: &mut dyn Sink,
    snaplen: Option<u32>,
    to_write: &Receiver<Arc<[u8]>>,
    left: &AtomicUsize,
    end: &End,
    handed: &mut u64,
) -> Result<()> {
    loop {
        match to_write.recv_timeout(REST_EVERY) {
            Ok(bytes) => {
                *handed += packets_in(&bytes);
                let written = write_cut(sink, &bytes, snaplen);
                let written = written.and_then(|()| push_out(sink, end));
                left.fetch_sub(bytes.len(), Ordering::AcqRel);
                written?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                sink.settle()?;
                return push_out(sink, end);
            }
        }
        sink.rest()?;
    }
}

/// How many packets of those that were handed over an output that failed has not in its file.
fn left_out(sink: &mut dyn Sink, handed: u64) -> u64 {
    match sink.found() {
        Some(found) => handed - found.iter().sum::<u64>().min(handed),
        None => packets_in(&sink.take_unwritten()) + lost_by(sink),
    }
}

/// What it lost while it went on.
fn lost_by(sink: &dyn Sink) -> u64 {
    sink.lost().iter().map(|(_, _, count)| count).sum()
}

/// After an error: what still comes is lost.
fn drain(to_write: &Receiver<Arc<[u8]>>, left: &AtomicUsize, end: &End) {
    while let Ok(bytes) = to_write.recv() {
        end.lose(packets_in(&bytes));
        left.fetch_sub(bytes.len(), Ordering::AcqRel);
    }
}

/// A pipe or terminal takes what it takes, and as long as it likes until the capture is over.
fn push_out(sink: &mut dyn Sink, end: &End) -> Result<()> {
    let mut taken = (0, Instant::now());
    while let Some(stream) = sink.stream().filter(|stream| stream.is_behind()) {
        stream.push()?;
        if stream.taken() > taken.0 || !end.is_near.load(Ordering::Acquire) {
            taken = (stream.taken(), Instant::now());
        }
        if taken.1.elapsed() > PATIENCE {
            end.is_not_read.store(true, Ordering::Release);
            let what = format!("cannot write to {}", stream.name());
            return Err(Error::failed(what, "its reader does not read"));
        }
        if stream.is_behind() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(())
}

/// The blocks with at most this many bytes of each packet.
fn cut(bytes: &[u8], snaplen: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for block in blocks(bytes) {
        let Some(packet) = block.enhanced_packet() else {
            out.extend_from_slice(block.bytes);
            continue;
        };
        let captured = packet.captured.len();
        let keep = captured.min(snaplen as usize);
        let start = out.len();
        let head = HEADER_LEN + EPB_FIXED_LEN;
        out.extend_from_slice(&block.bytes[..head]);
        out.extend_from_slice(&packet.captured[..keep]);
        out.resize(start + head + padded(keep), 0);
        out.extend_from_slice(&block.bytes[head + padded(captured)..]);
        let length = ((out.len() - start) as u32).to_le_bytes();
        let end = out.len() - 4;
        out[start + 4..start + 8].copy_from_slice(&length);
        out[start + 20..start + 24].copy_from_slice(&(keep as u32).to_le_bytes());
        out[end..].copy_from_slice(&length);
    }
    out
}

/// The first output, and those beside it. Where there are any, its failure ends none of them.
pub struct Several {
    name: String,
    first: Box<dyn Sink>,
    /// The first one's packets are cut to this many bytes.
    snaplen: Option<u32>,
    beside: Vec<Beside>,
    /// The packets that the first has been given, and how it failed: it is given no more then.
    handed: u64,
    failure: Option<Fate>,
}

impl std::fmt::Debug for Several {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Several")
            .field("beside", &self.beside)
            .finish_non_exhaustive()
    }
}

impl Several {
    pub fn new(
        name: String,
        first: Box<dyn Sink>,
        snaplen: Option<u32>,
        beside: Vec<Beside>,
    ) -> Self {
        Self {
            name,
            first,
            snaplen,
            beside,
            handed: 0,
            failure: None,
        }
    }

    /// Ends the others, and tells what became of them, and of the first if it failed.
    pub fn end(self) -> Vec<Fate> {
        let handed = self.handed;
        let others = self.beside.into_iter().map(|one| one.end(handed));
        self.failure.into_iter().chain(others).collect()
    }

    fn hand(&mut self, bytes: &[u8]) -> Result<()> {
        if self.beside.is_empty() {
            return Ok(());
        }
        let packets = packets_in(bytes);
        self.handed += packets;
        if let Some(failure) = &mut self.failure {
            failure.lost += packets;
        }
        let shared: Arc<[u8]> = Arc::from(bytes);
        self.beside.iter_mut().try_for_each(|one| one.hand(&shared))
    }

    /// Does something with the first as long as it can take anything.
    fn with_first(&mut self, act: impl FnOnce(&mut dyn Sink) -> Result<()>) -> Result<()> {
        if self.failure.is_some() {
            return Ok(());
        }
        match act(self.first.as_mut()) {
            Err(error) if !self.beside.is_empty() => {
                let lost = left_out(self.first.as_mut(), self.handed);
                self.failure = Some(Fate {
                    name: self.name.clone(),
                    recorded: self.handed.saturating_sub(lost),
                    lost,
                    failed: true,
                    error: Some(error),
                    compresses_too_slowly: false,
                });
                Ok(())
            }
            done => done,
        }
    }
}

impl Sink for Several {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hand(bytes)?;
        let snaplen = self.snaplen;
        self.with_first(|first| write_cut(first, bytes, snaplen))
    }

    fn is_busy(&self) -> bool {
        let is_full = |one: &Beside| one.waiting.load(Ordering::Acquire) > WAITING_MAX / 2;
        self.first.is_busy() || self.beside.iter().any(is_full)
    }

    fn takes_segments(&self) -> bool {
        self.snaplen.is_none() && self.failure.is_none() && self.first.takes_segments()
    }

    fn take(&mut self, segment: Lease) -> Result<()> {
        self.hand(segment.bytes())?;
        self.with_first(|first| first.take(segment))
    }

    fn rest(&mut self) -> Result<()> {
        self.with_first(|first| first.rest())
    }

    fn found(&self) -> Option<Vec<u64>> {
        match self.failure {
            Some(_) => None,
            None => self.first.found(),
        }
    }

    fn settle(&mut self) -> Result<()> {
        for one in &self.beside {
            one.end.is_near.store(true, Ordering::Release);
        }
        while self.beside.iter().any(Beside::is_busy) {
            std::thread::sleep(LOOK_EVERY);
        }
        self.with_first(|first| first.settle())
    }

    fn event_begins(&mut self) -> Result<()> {
        self.with_first(|first| first.event_begins())
    }

    fn event_over(&mut self) -> Result<()> {
        self.with_first(|first| first.event_over())
    }

    fn added_interfaces(&self) -> Vec<(u32, u64)> {
        self.first.added_interfaces()
    }

    fn lost(&self) -> Vec<(u32, &'static str, u64)> {
        match self.failure {
            Some(_) => Vec::new(),
            None => self.first.lost(),
        }
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        match self.failure {
            Some(_) => Vec::new(),
            None => self.first.take_unwritten(),
        }
    }

    fn stream(&mut self) -> Option<&mut trawl_tap::stream::Stream> {
        self.first.stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_packet::pcapng::write::{EnhancedPacket, enhanced_packet};

    #[test]
    fn packets_are_cut_and_keep_what_is_known_of_them() {
        let mut bytes = Vec::new();
        for length in [10, 64, 65] {
            enhanced_packet(
                &mut bytes,
                &EnhancedPacket {
                    captured: &vec![length as u8; length],
                    original_len: 100,
                    packet_id: Some(7),
                    ..EnhancedPacket::default()
                },
            );
        }
        let short = cut(&bytes, 62);
        let packets: Vec<_> = blocks(&short)
            .filter_map(|block| block.enhanced_packet())
            .collect();
        let lengths: Vec<usize> = packets.iter().map(|packet| packet.captured.len()).collect();
        assert_eq!(lengths, [10, 62, 62]);
        assert!(packets.iter().all(|packet| packet.original_len == 100));
        assert_eq!(cut(&bytes, 1000), bytes);
    }
}
