//! Compressed files: independent frames of about 1 MiB, packed by threads that are not the capture's, with a table of
//! where they are at the end, so that a part can be read without the rest.

mod frame;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trawl_io::writeback::{NotOnDisk, Writeback};
use trawl_packet::pcap;
use trawl_packet::pcapng::block::blocks;
use trawl_sys::warden::WholeBytes;
use trawl_sys::{Error, Result};
use trawl_tap::sink::{Counting, Sink};

use crate::intact::{Watch, lost_by_disk, refused};

pub use frame::{COMPRESSION_LIMIT, compression_limits, compression_threads};
use trawl_tap::plan::Compression;

/// This many bytes make a frame.
const FRAME: usize = 1 << 20;
/// What may wait to be packed, or be written out of order. What comes on top of it is lost.
const WAITING_MAX: usize = 64 << 20;
/// What comes slowly is packed this late at most.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// Whether a compressed file of a size ends where this much is left of it: further frames would become tiny.
pub fn is_nearly_full(left: u64, size: u64) -> bool {
    left <= size / 16
}

/// What the frames hold.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Pcapng,
    Pcap { link_type: u16, snaplen: u32 },
}

#[derive(Debug)]
pub struct Packed {
    raw: Vec<u8>,
    begun: Instant,
    number: u64,
    jobs: Option<Sender<(u64, Vec<u8>)>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    lost: Counting,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    less: Condvar,
    name: String,
    file: File,
    whole: Option<WholeBytes>,
    compression: Compression,
    form: Form,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that are not written yet.
    waiting: usize,
    /// Frames that are packed before one in front of them is.
    early: BTreeMap<u64, (Vec<u8>, Vec<u8>, usize)>,
    next: u64,
    length: u64,
    /// Length of each frame, packed and not.
    table: Vec<(u32, u32)>,
    /// The packets in each frame, by interface block.
    packets: Vec<Vec<u64>>,
    failure: Option<Error>,
    failed: bool,
    unwritten: Vec<u8>,
    /// Looks after a regular file.
    watch: Option<Watch>,
    /// It has its pages written to the disk as they come.
    writeback: Option<Writeback>,
    /// One of many files, which may come faster than a disk tells that it keeps them.
    in_series: bool,
    /// The packets that are left of a file that lacks something, by interface block.
    found: Option<Vec<u64>>,
}

impl Packed {
    pub fn new(
        file: File,
        name: String,
        whole: Option<WholeBytes>,
        compression: Compression,
        form: Form,
    ) -> Result<Self> {
        let state = State {
            watch: whole.as_ref().map(|_| Watch::of(&file)),
            writeback: whole
                .as_ref()
                .and_then(|_| Writeback::of(file.as_fd()).ok()),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            name: name.clone(),
            less: Condvar::new(),
            file,
            whole,
            compression,
            form,
        });
        let (jobs, to_pack) = channel();
        let to_pack = Arc::new(Mutex::new(to_pack));
        let threads = (0..frame::compression_threads())
            .map(|number| {
                let (to_pack, shared) = (Arc::clone(&to_pack), Arc::clone(&shared));
                std::thread::Builder::new()
                    .name(format!("trawl-pack-{number}"))
                    .spawn(move || work(&to_pack, &shared))
                    .map_err(|e| Error::os("cannot start a thread that compresses", e))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            raw: Vec::with_capacity(FRAME),
            begun: Instant::now(),
            number: 0,
            jobs: Some(jobs),
            threads,
            shared,
            lost: Counting::default(),
        })
    }

    pub fn in_series(self, in_series: bool) -> Self {
        self.shared.lock().in_series = in_series;
        self
    }

    /// Hands the frame at hand over, or loses it.
    fn push(&mut self) -> Result<()> {
        if self.raw.is_empty() {
            return self.check();
        }
        let raw = std::mem::replace(&mut self.raw, Vec::with_capacity(FRAME));
        let too_many = {
            let mut state = self.shared.lock();
            // The first frame holds what all others depend on.
            let too_many = state.waiting + raw.len() > WAITING_MAX && self.number > 0;
            if !too_many {
                state.waiting += raw.len();
            }
            too_many
        };
        if too_many {
            return self.lost.write(&raw);
        }
        if let Some(jobs) = &self.jobs {
            // Its threads end when we do.
            let _ = jobs.send((self.number, raw));
            self.number += 1;
        }
        self.check()
    }

    /// Waits until all that was handed over is packed and written.
    fn packed(&mut self) -> Result<MutexGuard<'_, State>> {
        self.push()?;
        let mut state = self.shared.lock();
        while state.waiting > 0 {
            let woken = self.shared.less.wait(state);
            state = woken.unwrap_or_else(|e| e.into_inner());
        }
        Ok(state)
    }

    fn check(&self) -> Result<()> {
        let mut state = self.shared.lock();
        if state.watch.as_ref().is_some_and(Watch::is_due) {
            self.shared.look(&mut state);
        }
        match state.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Sink for Packed {
    /// What is not packed yet counts as it is.
    fn length(&self) -> u64 {
        let state = self.shared.lock();
        state.length + (state.waiting + self.raw.len()) as u64
    }

    fn is_busy(&self) -> bool {
        self.shared.lock().waiting > WAITING_MAX / 2
    }

    fn compact(&mut self) -> Result<bool> {
        let before = self.length();
        drop(self.packed()?);
        self.check()?;
        Ok(self.length() < before)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.raw.is_empty() {
            self.begun = Instant::now();
        }
        let full = self.raw.len() + bytes.len() > FRAME;
        let pushed = if full { self.push() } else { Ok(()) };
        self.raw.extend_from_slice(bytes);
        pushed
    }

    fn rest(&mut self) -> Result<()> {
        match self.begun.elapsed() >= FLUSH_AFTER {
            true => self.push(),
            false => self.check(),
        }
    }

    fn settle(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.settle(&mut *self.packed()?);
        self.check()
    }

    fn found(&self) -> Option<Vec<u64>> {
        self.shared.lock().found.clone()
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        let mut unwritten = std::mem::take(&mut self.shared.lock().unwritten);
        unwritten.append(&mut self.raw);
        unwritten
    }

    fn lost(&self) -> Vec<(u32, &'static str, u64)> {
        let packets = self.lost.packets.iter().enumerate();
        packets
            .filter(|(_, count)| **count > 0)
            .map(|(id, count)| (id as u32, frame::COMPRESSION_LIMIT, *count))
            .collect()
    }
}

impl Drop for Packed {
    /// Ends the file with its table.
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread that crashed has left its frames out.
            let _ = thread.join();
        }
        let mut state = self.shared.lock();
        if !state.failed {
            let end = state.length;
            let table = frame::table(self.shared.compression, &state.table);
            self.shared.append(&mut state, &table);
            // All packets are there without a table, and half of one would be taken for a broken frame.
            if self.shared.on_disk(&state).is_err() {
                self.shared.end_at(&mut state, end);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Puts a frame after the others, or cuts the file after those.
    fn append(&self, state: &mut State, bytes: &[u8]) {
        self.look(state);
        if state.failed {
            return;
        }
        if let Err(error) = self.file.write_all_at(bytes, state.length) {
            state.failure = Some(refused(&self.name, state.length, error));
            self.end_at(state, state.length);
            return;
        }
        state.length += bytes.len() as u64;
        if let Some(whole) = &self.whole {
            whole.set(state.length);
        }
        let length = state.length;
        if let Some(Err(failure)) = state
            .writeback
            .as_mut()
            .map(|writeback| writeback.written(length))
        {
            self.lose(state, failure);
        }
    }

    /// Waits until the disk has all frames, and counts those that it has not taken.
    fn settle(&self, state: &mut State) {
        self.look(state);
        if let (false, Err(failure)) = (state.failed, self.on_disk(state)) {
            self.lose(state, failure);
        }
    }

    fn on_disk(&self, state: &State) -> std::result::Result<(), NotOnDisk> {
        let writeback = state.writeback.as_ref();
        writeback.map_or(Ok(()), |writeback| writeback.settle(!state.in_series))
    }

    fn lose(&self, state: &mut State, failure: NotOnDisk) {
        self.keep(state, failure.from);
        state.failure = Some(lost_by_disk(&self.name, failure));
    }

    /// The file takes no more, and ends here.
    fn end_at(&self, state: &mut State, end: u64) {
        state.failed = true;
        // A failure here would be about the same disk.
        let _ = self.file.set_len(end);
        if let Some(whole) = &self.whole {
            whole.set(end);
        }
    }

    /// Ends a file that another process has cut.
    fn look(&self, state: &mut State) {
        let written = state.length;
        let Some(watch) = state.watch.as_mut().filter(|_| !state.failed) else {
            return;
        };
        let Some(harm) = watch.look(&self.file, written) else {
            return;
        };
        self.keep(state, harm.left());
        state.failure = Some(harm.explain(&self.name, written));
    }

    /// Ends the file after the last whole frame of its first `left` bytes, and counts what is in it.
    fn keep(&self, state: &mut State, left: u64) {
        let mut end = 0;
        let mut found = Vec::new();
        for ((length, _), packets) in state.table.iter().zip(&state.packets) {
            if end + u64::from(*length) > left {
                break;
            }
            end += u64::from(*length);
            found.resize(packets.len().max(found.len()), 0);
            found
                .iter_mut()
                .zip(packets)
                .for_each(|(sum, count)| *sum += count);
        }
        state.found = Some(found);
        self.end_at(state, end);
    }

    /// Takes a packed frame, and writes those whose turn it is.
    fn take_in(&self, number: u64, raw: Vec<u8>, packed: Vec<u8>, length: usize) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.early.insert(number, (raw, packed, length));
        while let Some((raw, packed, length)) = state.early.remove(&state.next) {
            state.next += 1;
            state.waiting -= raw.len();
            if !state.failed {
                self.append(state, &packed);
            }
            if state.failed {
                state.unwritten.extend_from_slice(&raw);
                continue;
            }
            let mut packets = Counting::default();
            // It counts, and cannot fail.
            let _ = packets.write(&raw);
            state.table.push((packed.len() as u32, length as u32));
            state.packets.push(packets.packets);
        }
        self.less.notify_all();
    }
}

fn work(to_pack: &Mutex<Receiver<(u64, Vec<u8>)>>, shared: &Shared) {
    loop {
        let job = {
            let receiver = to_pack.lock().unwrap_or_else(|e| e.into_inner());
            receiver.recv()
        };
        let Ok((number, raw)) = job else {
            return;
        };
        let (packed, length) = match shared.form {
            Form::Pcapng => (frame::pack(shared.compression, &raw), raw.len()),
            Form::Pcap { link_type, snaplen } => {
                let mut records = Vec::with_capacity(raw.len());
                if number == 0 {
                    pcap::file_header(&mut records, link_type, snaplen);
                }
                for block in blocks(&raw) {
                    pcap::record_from_block(&mut records, &block);
                }
                (frame::pack(shared.compression, &records), records.len())
            }
        };
        shared.take_in(number, raw, packed, length);
    }
}
