//! Direct writes by io_uring: a batch is a chain of vectored writes, of which each begins when the one before is done, so
//! that the file never has a hole.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};

use super::{Done, TOGETHER, Write, addresses, shared_out};

/// The most writes of a batch.
const DEPTH: u32 = 32;

pub(super) struct Uring {
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
    /// Read by the kernel while the writes are under way.
    addresses: Vec<libc::iovec>,
    results: Vec<i32>,
    pending: usize,
}

// SAFETY: the addresses are those of the pieces that the batch owns, which may move between threads with it.
unsafe impl Send for Batch {}

impl Uring {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(DEPTH)?,
            batch: None,
        })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.batch.is_none()
    }

    pub(super) fn start(&mut self, file: &File, writes: Vec<Write>) {
        let addresses = addresses(&writes);
        let groups = addresses.chunks(TOGETHER).count();
        assert!(groups <= DEPTH as usize, "a batch fits into the ring");
        let batch = self.batch.insert(Batch {
            writes,
            addresses,
            results: vec![0; groups],
            pending: groups,
        });
        for (index, group) in batch.addresses.chunks(TOGETHER).enumerate() {
            let offset = batch.writes[index * TOGETHER].offset;
            let mut entry = opcode::Writev::new(
                types::Fd(file.as_raw_fd()),
                group.as_ptr(),
                group.len() as u32,
            )
            .offset(offset)
            .build()
            .user_data(index as u64);
            if index + 1 < groups {
                entry = entry.flags(squeue::Flags::IO_LINK);
            }
            // SAFETY: the addresses and what they point to are kept in `self.batch`, unmoved, until all results are in;
            // dropping waits for that.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            pushed.expect("as many entries as the ring has");
        }
        if self.ring.submit().is_err() {
            // Tried again when results are asked for.
        }
    }

    pub(super) fn finished(&mut self, wait: bool) -> Option<Vec<Done>> {
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
                return Some(shared_out(batch.writes, results));
            }
            // Interrupted, or the ring is busy: asked for again.
            let _ = self.ring.submit_and_wait(usize::from(wait));
            if !wait && self.ring.completion().is_empty() {
                return None;
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel reads from the pieces until then.
        self.finished(true);
    }
}
