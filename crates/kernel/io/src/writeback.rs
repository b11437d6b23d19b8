//! Early write-back: a thread writes a growing file's pages to the disk, so that they do not accumulate until the
//! kernel blocks the writer. It also detects errors of the disk, which write(2) does not report: it succeeds once the
//! page cache has the bytes.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::{Mutex, MutexGuard};
use trawl_sys::{Error, Result};

/// Number of bytes handed to the disk at a time.
const PORTION: u64 = 8 << 20;
/// Number of bytes that are waited for at a time.
const STEP: u64 = 1 << 20;

#[derive(Debug)]
pub struct Writeback {
    disk: Arc<Disk>,
    /// Channel for the ends of portions; it is closed to end the thread.
    ends: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
    handed_over: u64,
}

/// Error: a part of the file that did not reach the disk.
#[derive(Debug)]
pub struct NotOnDisk {
    /// Offset up to which the file is on the disk.
    pub from: u64,
    pub error: io::Error,
}

#[derive(Debug)]
struct Disk {
    file: File,
    /// State, locked while waiting for the disk, because the kernel reports each failure to one caller only.
    state: Mutex<State>,
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Offset up to which the disk has the file.
    taken: u64,
    /// Offset up to which the disk was asked to write the file.
    asked: u64,
    failure: Option<io::Error>,
}

impl Writeback {
    /// Starts the thread for a file that is written from its beginning.
    pub fn of(file: BorrowedFd<'_>) -> Result<Self> {
        let what = "cannot start the thread that writes the file to the disk";
        let file = file.try_clone_to_owned().map_err(|e| Error::os(what, e))?;
        let disk = Arc::new(Disk { file: File::from(file), state: Mutex::default(), failed: AtomicBool::new(false) });
        let (ends, portions) = channel();
        let disk_of_thread = Arc::clone(&disk);
        let thread = std::thread::Builder::new()
            .name("trawl-disk".to_owned())
            .spawn(move || work(&disk_of_thread, &portions))
            .map_err(|e| Error::os(what, e))?;
        Ok(Self { disk, ends: Some(ends), thread: Some(thread), handed_over: 0 })
    }

    /// Announces the number of bytes written so far. An error concerns bytes that were written before.
    pub fn written(&mut self, bytes: u64) -> std::result::Result<(), NotOnDisk> {
        if bytes - self.handed_over >= PORTION
            && let Some(ends) = &self.ends
        {
            self.handed_over = bytes;
            // The thread ends only when this value is dropped.
            let _ = ends.send(bytes);
        }
        if self.disk.failed.load(Ordering::Acquire) { self.disk.lock().outcome() } else { Ok(()) }
    }

    /// Waits until the disk has all bytes that were written. With `last`, they then even survive a crash of the
    /// machine.
    pub fn settle(&self, last: bool) -> std::result::Result<(), NotOnDisk> {
        let mut state = self.disk.lock();
        if state.failure.is_none() {
            let waited = wait_for(&self.disk.file, state.taken, 0)
                .and_then(|()| if last { self.disk.file.sync_data() } else { Ok(()) });
            state.failure = waited.err();
        }
        state.outcome()
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            // Callers that need the result have called `settle` before.
            let _ = thread.join();
        }
    }
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Starts to write the file up to `end` to the disk.
    fn begin(&self, end: u64) {
        let mut state = self.lock();
        if state.failure.is_some() || end <= state.asked {
            return;
        }
        match begin(&self.file, state.asked, end - state.asked) {
            Ok(()) => state.asked = end,
            Err(error) => self.fail(&mut state, error),
        }
    }

    /// Waits for the next part of the range whose writing has begun, and evicts it from the page cache, which other
    /// processes need. Returns false if no part was left.
    fn advance(&self) -> bool {
        let mut state = self.lock();
        let (taken, length) = (state.taken, (state.asked - state.taken).min(STEP));
        if state.failure.is_some() || length == 0 {
            return false;
        }
        match wait_for(&self.file, taken, length) {
            Ok(()) => {
                forget(&self.file, taken, length);
                state.taken += length;
            }
            Err(error) => self.fail(&mut state, error),
        }
        true
    }

    fn fail(&self, state: &mut State, error: io::Error) {
        state.failure = Some(error);
        self.failed.store(true, Ordering::Release);
    }
}

impl State {
    /// Returns the first failure, on every call.
    fn outcome(&self) -> std::result::Result<(), NotOnDisk> {
        let Some(error) = &self.failure else {
            return Ok(());
        };
        let again = error.raw_os_error().map(io::Error::from_raw_os_error);
        Err(NotOnDisk { from: self.taken, error: again.unwrap_or_else(|| io::Error::other(error.to_string())) })
    }
}

fn work(disk: &Disk, ends: &Receiver<u64>) {
    while let Ok(end) = ends.recv() {
        disk.begin(end);
        // The disk is given portions that arrive meanwhile before the rest is waited for.
        while disk.advance() {
            ends.try_iter().for_each(|end| disk.begin(end));
        }
    }
}

/// Waits until a part of a file is on the disk; without a length, the rest of the file.
pub fn wait_for(file: &File, from: u64, length: u64) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, from, length, all)
}

fn begin(file: &File, from: u64, length: u64) -> io::Result<()> {
    sync_range(file, from, length, libc::SYNC_FILE_RANGE_WRITE)
}

fn sync_range(file: &File, from: u64, length: u64, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: plain numbers about an open file. The call only starts or awaits the writing of dirty pages.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), from as i64, length as i64, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Evicts a part of a file from the page cache.
pub fn forget(file: &File, from: u64, length: u64) {
    // posix_fadvise interprets a length of 0 as the rest of the file.
    if length == 0 {
        return;
    }
    let (from, length) = (from as i64, length as i64);
    // SAFETY: plain numbers about an open file; the call changes its cached pages, but not its contents.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), from, length, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn file_is_complete_whichever_parts_are_handed_over() {
        let path = std::env::temp_dir().join(format!("trawl-writeback-{}", std::process::id()));
        let mut file = File::create(&path).expect("a file");
        let mut writeback = Writeback::of(file.as_fd()).expect("a thread");
        let piece = vec![7u8; 1 << 20];
        for count in 1..=20 {
            file.write_all(&piece).expect("room");
            writeback.written(count << 20).expect("a disk");
        }
        writeback.settle(false).expect("a disk");
        drop(writeback);
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::remove_file(&path).expect("the file");
        assert_eq!(bytes.len(), 20 << 20);
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
