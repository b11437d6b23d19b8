//! Compressed files: independent frames of about 1 MiB, which threads compress in parallel, with a table of their
//! positions at the end, so that a part of the file can be read without the rest.

mod frame;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use trawl_pipeline::{Blocks, Counts, FileWriter, Loss, Pressure, UNWATCHED, WriteOutcome, Writer};
use trawl_sys::process::warden::WholeBytes;
use trawl_sys::{Error, Result};

use crate::file::GrowingFile;
use crate::form::{Encoder, OutputForm};

pub use frame::{COMPRESSION_LIMIT, compression_threads};
use trawl_plan::outputs::Compression;

/// Size of a frame before compression.
const FRAME: usize = 1 << 20;
/// Maximum number of bytes that wait for compression or for earlier frames. Further packets are lost.
const WAITING_MAX: usize = 64 << 20;
/// Maximum delay of slowly arriving packets.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// Returns true if a compressed file with this much space left is full: further frames would become tiny.
pub fn is_nearly_full(left: u64, size: u64) -> bool {
    left <= size / 16
}

#[derive(Debug)]
pub struct Packed {
    raw: Vec<u8>,
    begun: Instant,
    number: u64,
    jobs: Option<Sender<(u64, Vec<u8>)>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    lost: Counts,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    progress: Condvar,
    compression: Compression,
    form: OutputForm,
}

#[derive(Debug)]
struct State {
    file: GrowingFile,
    /// Bytes not yet written.
    waiting: usize,
    /// Frames that wait for one with a lower number: their blocks, the compressed bytes, and the encoded length.
    early: BTreeMap<u64, (Vec<u8>, Vec<u8>, usize)>,
    next: u64,
    /// Length of each frame, compressed and uncompressed.
    table: Vec<(u32, u32)>,
    /// Packets in each frame, by interface block.
    packets: Vec<Counts>,
    /// Pending error of the file.
    failure: Option<Error>,
    has_failed: bool,
    unwritten: Counts,
    /// Packets that remain in an incomplete file.
    left: Option<Counts>,
}

impl Packed {
    pub fn new(
        file: File,
        name: String,
        whole: Option<WholeBytes>,
        compression: Compression,
        form: OutputForm,
    ) -> Result<Self> {
        let state = State {
            file: GrowingFile::new(file, name, whole),
            waiting: 0,
            early: BTreeMap::new(),
            next: 0,
            table: Vec::new(),
            packets: Vec::new(),
            failure: None,
            has_failed: false,
            unwritten: Counts::default(),
            left: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), progress: Condvar::new(), compression, form });
        let (jobs, to_pack) = channel();
        let to_pack = Arc::new(Mutex::new(to_pack));
        let threads = (0..frame::compression_threads())
            .map(|number| {
                let (to_pack, shared) = (Arc::clone(&to_pack), Arc::clone(&shared));
                std::thread::Builder::new()
                    .name(format!("trawl-pack-{number}"))
                    .spawn(move || compress_frames(&to_pack, &shared))
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
            lost: Counts::default(),
        })
    }

    pub fn in_series(self, in_series: bool) -> Self {
        self.shared.lock().file.in_series = in_series;
        self
    }

    /// Queues the current frame. If too much waits, the frame's packets are lost.
    fn push(&mut self) {
        if self.raw.is_empty() {
            return;
        }
        let raw = std::mem::replace(&mut self.raw, Vec::with_capacity(FRAME));
        let too_many = {
            let mut state = self.shared.lock();
            // The first frame contains the blocks that all others depend on.
            let too_many = state.waiting + raw.len() > WAITING_MAX && self.number > 0;
            if !too_many {
                state.waiting += raw.len();
            }
            too_many
        };
        if too_many {
            self.lost.add_blocks(&raw);
        } else if let Some(jobs) = &self.jobs {
            // The threads live as long as this value.
            let _ = jobs.send((self.number, raw));
            self.number += 1;
        }
    }

    /// Waits until all frames are compressed and written, or have failed. Earlier frames are waited for first, so that
    /// the current one always has room.
    fn wait_for_all(&mut self) -> MutexGuard<'_, State> {
        drop(self.shared.wait_for_queued());
        self.push();
        self.shared.wait_for_queued()
    }

    fn check(&self) -> Result<Pressure> {
        let mut state = self.shared.lock();
        if !state.has_failed {
            let checked = state.file.check_if_due();
            state.check(checked);
        }
        match state.failure.take() {
            Some(error) => Err(error),
            None if state.waiting > WAITING_MAX / 2 => Ok(Pressure::Busy { wants_segments: false }),
            None => Ok(Pressure::Idle),
        }
    }
}

impl Writer for Packed {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        let bytes = written.bytes();
        if self.raw.is_empty() {
            self.begun = Instant::now();
        }
        if self.raw.len() + bytes.len() > FRAME {
            self.push();
        }
        self.raw.extend_from_slice(bytes);
        self.check()
    }

    fn flush(&mut self) -> Result<Pressure> {
        if self.begun.elapsed() >= FLUSH_AFTER {
            self.push();
        }
        self.check()
    }

    fn due(&self) -> Option<Instant> {
        (!self.raw.is_empty()).then(|| self.begun + FLUSH_AFTER)
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    fn finish(&mut self) -> WriteOutcome {
        let lost = self.lost.clone();
        let mut state = self.wait_for_all();
        if !state.has_failed {
            let settled = state.file.settle();
            state.check(settled);
        }
        let loss = |(interface, packets)| Loss { interface, reason: frame::COMPRESSION_LIMIT, packets };
        WriteOutcome {
            lost: lost.iter().map(loss).collect(),
            unwritten: state.unwritten.clone(),
            left: state.left.clone(),
            error: state.failure.take(),
            ..WriteOutcome::default()
        }
    }
}

impl FileWriter for Packed {
    /// Uncompressed frames count with their full length.
    fn length(&self) -> u64 {
        let state = self.shared.lock();
        state.file.written + (state.waiting + self.raw.len()) as u64
    }

    fn compact(&mut self) -> Result<bool> {
        let before = self.length();
        drop(self.wait_for_all());
        self.check()?;
        Ok(self.length() < before)
    }
}

impl Drop for Packed {
    /// Ends the file with its table.
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // The frames of a crashed thread are missing from the file.
            let _ = thread.join();
        }
        let mut state = self.shared.lock();
        if !state.has_failed {
            let end = state.file.written;
            let table = frame::table(self.shared.compression, &state.table);
            state.append(&table);
            // The packets are complete without a table, and a partial one would look like a broken frame.
            if !state.has_failed && state.file.settle().is_err() {
                state.file.end_at(end);
            }
        }
    }
}

impl State {
    /// Appends a frame.
    fn append(&mut self, bytes: &[u8]) {
        let (_, result) = self.file.write(bytes, |_| 0);
        self.check(result);
    }

    /// Ends a failed file after its last whole frame, and counts the remaining packets.
    fn check(&mut self, result: Result<()>) {
        let Err(error) = result else { return };
        self.failure = Some(error);
        self.has_failed = true;
        let Some(left) = self.file.left.take() else {
            return;
        };
        let mut end = 0;
        let mut packets = Counts::default();
        for ((length, _), counts) in self.table.iter().zip(&self.packets) {
            if end + u64::from(*length) > left {
                break;
            }
            end += u64::from(*length);
            packets.add_all(counts);
        }
        self.left = Some(packets);
        self.file.end_at(end);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until all queued frames are compressed and written, or have failed.
    fn wait_for_queued(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while state.waiting > 0 {
            self.progress.wait(&mut state);
        }
        state
    }

    /// Stores a compressed frame, and writes all frames that are next.
    fn store_frame(&self, number: u64, raw: Vec<u8>, packed: Vec<u8>, length: usize) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.early.insert(number, (raw, packed, length));
        while let Some((raw, packed, length)) = state.early.remove(&state.next) {
            state.next += 1;
            state.waiting -= raw.len();
            if !state.has_failed {
                state.append(&packed);
            }
            if state.has_failed {
                state.unwritten.add_blocks(&raw);
            } else {
                state.table.push((packed.len() as u32, length as u32));
                state.packets.push(Counts::of(&raw));
            }
        }
        self.progress.notify_all();
    }
}

fn compress_frames(to_pack: &Mutex<Receiver<(u64, Vec<u8>)>>, shared: &Shared) {
    loop {
        let job = {
            let receiver = to_pack.lock();
            receiver.recv()
        };
        let Ok((number, raw)) = job else {
            return;
        };
        let mut encoder = Encoder::new(shared.form);
        if number > 0 {
            encoder.clear();
        }
        encoder.encode(&raw);
        let encoded = encoder.encoded(&raw);
        let packed = frame::pack(shared.compression, encoded);
        let length = encoded.len();
        shared.store_frame(number, raw, packed, length);
    }
}
