//! Direct writes to a file, past the page cache: whole units of memory that the kernel hands to the disk. Writes are
//! done in order, several in flight at a time, by io_uring if it is allowed and otherwise by a thread.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::{AtFlags, FallocateFlags, Statx, StatxFlags, fallocate, statx};
use trawl_bpf::probe;
use trawl_pipeline::Leased;
use trawl_sys::Result;
use trawl_sys::memory::Mapping;

/// Unit of the lengths and offsets of direct writes: the largest alignment that disks require.
pub const UNIT: usize = 4096;

/// An aligned buffer for direct writes.
#[derive(Debug)]
pub struct Aligned {
    memory: Mapping,
    length: usize,
}

impl Aligned {
    pub fn new(size: usize) -> Result<Self> {
        Ok(Self { memory: Mapping::anonymous(size.next_multiple_of(UNIT))?, length: 0 })
    }

    /// Returns the number of bytes that still fit.
    pub fn room(&self) -> usize {
        self.memory.length() - self.length
    }

    /// Appends as many bytes as fit, and returns their number.
    pub fn extend(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        self.memory.write(self.length, &bytes[..count]);
        self.length += count;
        count
    }

    pub fn clear(&mut self) {
        self.length = 0;
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies within the mapping, which this value owns: it is not written to while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.at(0), self.length) }
    }
}

/// A piece of memory that is written without a copy.
#[derive(Debug)]
pub enum Piece {
    Segment(Box<dyn Leased>),
    Buffer(Aligned),
}

impl Piece {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Segment(lease) => lease.bytes(),
            Self::Buffer(buffer) => buffer.bytes(),
        }
    }
}

/// A piece and its offset in the file; the offset and the length are multiples of [`UNIT`].
#[derive(Debug)]
pub struct Write {
    pub offset: u64,
    pub piece: Piece,
}

/// The result of a write.
#[derive(Debug)]
pub struct Done {
    pub write: Write,
    /// Number of its bytes that are in the file.
    pub written: usize,
}

/// Maximum number of consecutive pieces that are written by one call.
const PIECES_PER_CALL: usize = 8;

/// The writing side of one file.
#[derive(Debug)]
pub struct Disk {
    file: File,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    Uring(Box<Uring>),
    Worker(Worker),
}

impl Disk {
    /// Reopens a file for direct writes. An error means that its file system does not support them.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        let file = open_directly(file)?;
        let uring = if probe::is_unwanted("io_uring") { None } else { Uring::new().ok() };
        let engine = match uring {
            Some(uring) => Engine::Uring(Box::new(uring)),
            None => Engine::Worker(Worker::start(file.try_clone()?)?),
        };
        Ok(Self { file, engine })
    }

    pub fn is_idle(&self) -> bool {
        match &self.engine {
            Engine::Uring(uring) => uring.is_idle(),
            Engine::Worker(worker) => worker.is_idle(),
        }
    }

    /// Begins to write consecutive pieces. Requires that no batch is in flight.
    pub fn start(&mut self, writes: Vec<Write>) {
        assert!(self.is_idle(), "one batch at a time");
        match &mut self.engine {
            Engine::Uring(uring) => uring.start(&self.file, writes),
            Engine::Worker(worker) => worker.start_batch(writes),
        }
    }

    /// Returns the results of the batch; `None` if it is still in flight and `wait` is false.
    pub fn finished(&mut self, wait: bool) -> Option<Vec<Done>> {
        match &mut self.engine {
            Engine::Uring(uring) => uring.finished(wait),
            Engine::Worker(worker) => worker.finished(wait),
        }
    }

    /// Reserves space beyond the file's end, without changing its length.
    pub fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, length)?)
    }
}

/// Reopens a file for direct writes. An error means that its file system does not support them, or accepts the flag and
/// still uses the page cache.
pub fn open_directly(file: BorrowedFd<'_>) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let about = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let is_refused = |about: Statx| {
        let is_known = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::DIOALIGN);
        is_known && about.stx_dio_offset_align == 0
    };
    if about.is_ok_and(is_refused) { Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)) } else { Ok(file) }
}

/// Returns the offset of the file's first hole from an offset on, or of its end. The kernel may look at each page up to it.
pub fn first_hole(file: &File, from: u64) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(from))?)
}

/// Returns the addresses of pieces that are written by one call.
fn addresses(writes: &[Write]) -> Vec<libc::iovec> {
    writes
        .iter()
        .map(|write| {
            let bytes = write.piece.bytes();
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
        })
        .collect()
}

/// Divides the number of bytes written by each call among its pieces.
fn divide(writes: Vec<Write>, mut results: impl Iterator<Item = usize>) -> Vec<Done> {
    let mut left = 0;
    writes
        .into_iter()
        .enumerate()
        .map(|(index, write)| {
            if index.is_multiple_of(PIECES_PER_CALL) {
                left = results.next().unwrap_or(0);
            }
            let written = left.min(write.piece.bytes().len());
            left -= written;
            Done { write, written }
        })
        .collect()
}

// Direct writes by io_uring: a batch is a chain of vectored writes. Each begins when the previous one is done, so that
// the file never has a hole.

/// Maximum number of writes in a batch.
const DEPTH: u32 = 32;

struct Uring {
    ring: IoUring,
    batch: Option<Batch>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("batch", &self.batch).finish()
    }
}

#[derive(Debug)]
struct Batch {
    writes: Vec<Write>,
    /// Read by the kernel while the writes are in flight.
    addresses: Vec<libc::iovec>,
    results: Vec<i32>,
    pending: usize,
}

// SAFETY: the addresses point to the pieces that the batch owns, which may move between threads with it.
unsafe impl Send for Batch {}

impl Uring {
    fn new() -> io::Result<Self> {
        Ok(Self { ring: IoUring::new(DEPTH)?, batch: None })
    }

    fn is_idle(&self) -> bool {
        self.batch.is_none()
    }

    fn start(&mut self, file: &File, writes: Vec<Write>) {
        let addresses = addresses(&writes);
        let groups = addresses.chunks(PIECES_PER_CALL).count();
        assert!(groups <= DEPTH as usize, "a batch fits into the ring");
        let batch = self.batch.insert(Batch { writes, addresses, results: vec![0; groups], pending: groups });
        for (index, group) in batch.addresses.chunks(PIECES_PER_CALL).enumerate() {
            let offset = batch.writes[index * PIECES_PER_CALL].offset;
            let mut entry = opcode::Writev::new(types::Fd(file.as_raw_fd()), group.as_ptr(), group.len() as u32)
                .offset(offset)
                .build()
                .user_data(index as u64);
            if index + 1 < groups {
                entry = entry.flags(squeue::Flags::IO_LINK);
            }
            // SAFETY: the addresses and the pieces that they point to stay in `self.batch`, unmoved, until all results
            // have arrived; dropping waits for that.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            pushed.expect("as many entries as the ring has");
        }
        // `finished` repeats a submission that failed.
        let _ = self.ring.submit();
    }

    fn finished(&mut self, wait: bool) -> Option<Vec<Done>> {
        loop {
            let batch = self.batch.as_mut()?;
            for entry in self.ring.completion() {
                if let Some(result) = batch.results.get_mut(entry.user_data() as usize) {
                    *result = entry.result();
                    batch.pending -= 1;
                }
            }
            if batch.pending == 0 {
                let batch = self.batch.take()?;
                let results = batch.results.iter().map(|result| (*result).max(0) as usize);
                return Some(divide(batch.writes, results));
            }
            // Submits the writes that an interruption or a busy ring left over.
            if wait || !self.ring.submission().is_empty() {
                let _ = self.ring.submit_and_wait(usize::from(wait));
            }
            if !wait && self.ring.completion().is_empty() {
                return None;
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel reads from the pieces until all results have arrived.
        self.finished(true);
    }
}

// Direct writes by a thread, where io_uring is not allowed.

#[derive(Debug)]
struct Worker {
    /// Channel that is closed to end the thread.
    batches: Option<Sender<Vec<Write>>>,
    results: Receiver<Vec<Done>>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
}

impl Worker {
    fn start(file: File) -> io::Result<Self> {
        let (batches, to_write) = channel::<Vec<Write>>();
        let (written, results) = channel();
        let thread = std::thread::Builder::new().name("trawl-direct".to_owned()).spawn(move || {
            while let Ok(batch) = to_write.recv() {
                // The receiver is dropped only with the worker.
                if written.send(write_all(&file, batch)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { batches: Some(batches), results, thread: Some(thread), busy: false })
    }

    fn is_idle(&self) -> bool {
        !self.busy
    }

    fn start_batch(&mut self, writes: Vec<Write>) {
        if let Some(batches) = &self.batches {
            self.busy = batches.send(writes).is_ok();
        }
    }

    fn finished(&mut self, wait: bool) -> Option<Vec<Done>> {
        if !self.busy {
            return None;
        }
        let done = if wait { self.results.recv().ok() } else { self.results.try_recv().ok() };
        self.busy = done.is_none();
        done
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // The thread's results were collected before, or are no longer needed.
            let _ = thread.join();
        }
    }
}

fn write_all(file: &File, writes: Vec<Write>) -> Vec<Done> {
    let mut results = Vec::new();
    for group in writes.chunks(PIECES_PER_CALL) {
        let wanted: usize = group.iter().map(|write| write.piece.bytes().len()).sum();
        let written = write_group(file, group);
        results.push(written);
        if written < wanted {
            break;
        }
    }
    divide(writes, results.into_iter())
}

/// Writes a group of consecutive pieces, and returns the number of bytes that are in the file.
fn write_group(file: &File, group: &[Write]) -> usize {
    let addresses = addresses(group);
    loop {
        // SAFETY: the addresses point to pieces that are borrowed for the call.
        let written = unsafe {
            libc::pwritev(file.as_raw_fd(), addresses.as_ptr(), addresses.len() as i32, group[0].offset as i64)
        };
        match usize::try_from(written) {
            Ok(written) => return written,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Returns pieces that are filled with their own index.
    fn pieces(count: usize) -> Vec<Write> {
        (0..count)
            .map(|number| {
                let mut buffer = Aligned::new(2 * UNIT).expect("memory");
                buffer.extend(&vec![number as u8; 2 * UNIT]);
                Write { offset: (number * 2 * UNIT) as u64, piece: Piece::Buffer(buffer) }
            })
            .collect()
    }

    fn writes_in_order(engine: impl FnOnce(&File) -> Engine, name: &str) {
        let path = std::env::temp_dir().join(format!("trawl-disk-{name}-{}", std::process::id()));
        let plain = File::create(&path).expect("a file");
        let Ok(mut disk) = Disk::open(plain.as_fd()) else {
            eprintln!("SKIPPED: the file system of {} does not support direct writes", path.display());
            return;
        };
        disk.engine = engine(&disk.file);
        disk.start(pieces(3 * PIECES_PER_CALL + 1));
        let done = disk.finished(true).expect("waited for");
        assert!(done.iter().all(|one| one.written == 2 * UNIT));
        assert!(disk.is_idle());
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::remove_file(&path).expect("the file");
        let expected = (0..3 * PIECES_PER_CALL + 1).flat_map(|number| vec![number as u8; 2 * UNIT]);
        assert!(bytes.into_iter().eq(expected));
    }

    #[test]
    fn pieces_are_written_in_order_by_a_thread() {
        let engine = |file: &File| {
            let file = file.try_clone().expect("a descriptor");
            Engine::Worker(Worker::start(file).expect("a thread"))
        };
        writes_in_order(engine, "thread");
    }

    #[test]
    fn pieces_are_written_in_order_by_io_uring() {
        match Uring::new() {
            Ok(uring) => writes_in_order(|_| Engine::Uring(Box::new(uring)), "uring"),
            Err(error) => eprintln!("SKIPPED: io_uring: {error}"),
        }
    }

    #[test]
    fn unwritten_bytes_are_reported_for_each_piece() {
        let results = [2 * UNIT * PIECES_PER_CALL, UNIT, 0];
        let done = divide(pieces(2 * PIECES_PER_CALL + 1), results.into_iter());
        let written: Vec<usize> = done.iter().map(|one| one.written).collect();
        assert!(written[..PIECES_PER_CALL].iter().all(|count| *count == 2 * UNIT));
        assert_eq!(written[PIECES_PER_CALL], UNIT);
        assert!(written[PIECES_PER_CALL + 1..].iter().all(|count| *count == 0));
    }
}
