//! Early write-back: a thread that has a growing file's pages written to the disk as they come, so that they do not
//! pile up until the kernel makes the writer wait for the disk.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::{Error, Result};

/// This many bytes are handed to the disk at once.
const PORTION: u64 = 8 << 20;

#[derive(Debug)]
pub struct Writeback {
    /// Ends of portions; closed to end the thread.
    ends: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
    handed_over: u64,
}

impl Writeback {
    /// For a file that is written from its beginning on.
    pub fn of(file: BorrowedFd<'_>) -> Result<Self> {
        let what = "cannot start the thread that has the file written to the disk";
        let file = file.try_clone_to_owned().map_err(|e| Error::os(what, e))?;
        let (ends, portions) = channel();
        let thread = std::thread::Builder::new()
            .name("trawl-disk".to_owned())
            .spawn(move || work(&file, &portions))
            .map_err(|e| Error::os(what, e))?;
        Ok(Self {
            ends: Some(ends),
            thread: Some(thread),
            handed_over: 0,
        })
    }

    /// Tells how many bytes have been written so far.
    pub fn written(&mut self, bytes: u64) {
        if bytes - self.handed_over >= PORTION
            && let Some(ends) = &self.ends
        {
            self.handed_over = bytes;
            // The thread ends only when we are dropped.
            let _ = ends.send(bytes);
        }
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell: what it does is a hint to the kernel.
            let _ = thread.join();
        }
    }
}

fn work(file: &OwnedFd, ends: &Receiver<u64>) {
    let mut begin = 0;
    let mut before = 0;
    while let Ok(mut end) = ends.recv() {
        // What has come meanwhile goes along.
        while let Ok(later) = ends.try_recv() {
            end = later;
        }
        // SAFETY: plain numbers about an open file. It only starts the writing of pages that are dirty anyway; where
        // the file system cannot, nothing is lost.
        unsafe {
            libc::sync_file_range(
                file.as_raw_fd(),
                begin as i64,
                (end - begin) as i64,
                libc::SYNC_FILE_RANGE_WRITE,
            )
        };
        // A length of zero would mean all of the file.
        if begin > before {
            drop_pages(file, before, begin - before);
        }
        before = begin;
        begin = end;
    }
}

/// What was begun the last time is waited for, and leaves the page cache: nobody reads it soon, and others have pages
/// there that they need.
fn drop_pages(file: &OwnedFd, from: u64, length: u64) {
    let (from, length) = (from as i64, length as i64);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: plain numbers about an open file; both calls change what is cached of it, and nothing in it.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), from, length, flags);
        libc::posix_fadvise(file.as_raw_fd(), from, length, libc::POSIX_FADV_DONTNEED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_is_whole_whatever_is_handed_over() {
        let path = std::env::temp_dir().join(format!("trawl-writeback-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).expect("a file");
        let mut writeback = Writeback::of(file.as_fd()).expect("a thread");
        let piece = vec![7u8; 1 << 20];
        for count in 1..=20 {
            file.write_all(&piece).expect("room");
            writeback.written(count << 20);
        }
        drop(writeback);
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::remove_file(&path).expect("the file");
        assert_eq!(bytes.len(), 20 << 20);
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
