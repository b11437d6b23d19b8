//! Direct writes by a thread, where io_uring is not allowed.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::{Done, TOGETHER, Write, addresses, shared_out};

#[derive(Debug)]
pub(super) struct Worker {
    /// Closed to end the thread.
    batches: Option<Sender<Vec<Write>>>,
    results: Receiver<Vec<Done>>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
}

impl Worker {
    pub(super) fn start(file: File) -> io::Result<Self> {
        let (batches, to_write) = channel::<Vec<Write>>();
        let (written, results) = channel();
        let thread = std::thread::Builder::new()
            .name("trawl-direct".to_owned())
            .spawn(move || {
                while let Ok(batch) = to_write.recv() {
                    // Nobody is there to be told only when all is over.
                    if written.send(write_all(&file, batch)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self {
            batches: Some(batches),
            results,
            thread: Some(thread),
            busy: false,
        })
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.busy
    }

    pub(super) fn start_batch(&mut self, writes: Vec<Write>) {
        if let Some(batches) = &self.batches {
            self.busy = batches.send(writes).is_ok();
        }
    }

    pub(super) fn finished(&mut self, wait: bool) -> Option<Vec<Done>> {
        if !self.busy {
            return None;
        }
        let done = match wait {
            true => self.results.recv().ok(),
            false => self.results.try_recv().ok(),
        };
        self.busy = done.is_none();
        done
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // What it has to tell was asked for before, or does not matter any more.
            let _ = thread.join();
        }
    }
}

fn write_all(file: &File, writes: Vec<Write>) -> Vec<Done> {
    let mut results = Vec::new();
    for group in writes.chunks(TOGETHER) {
        let wanted: usize = group.iter().map(|write| write.piece.bytes().len()).sum();
        let written = write_group(file, group);
        results.push(written);
        if written < wanted {
            break;
        }
    }
    shared_out(writes, results.into_iter())
}

/// How much of a group of pieces that follow each other got into the file.
fn write_group(file: &File, group: &[Write]) -> usize {
    let addresses = addresses(group);
    loop {
        // SAFETY: the addresses are those of pieces that are borrowed for the call.
        let written = unsafe {
            libc::pwritev(
                file.as_raw_fd(),
                addresses.as_ptr(),
                addresses.len() as i32,
                group[0].offset as i64,
            )
        };
        match usize::try_from(written) {
            Ok(written) => return written,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return 0,
        }
    }
}
