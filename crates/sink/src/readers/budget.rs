//! The memory of all readers together, also of several outputs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use trawl_sys::process::heap;

/// Largest queue of a reader.
pub(super) const MOST_WAITING: usize = 32 << 20;

/// The memory of all readers' queues; clones share it. Each reader has an equal share, so that slow ones do not use up
/// the room of others.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shares>);

#[derive(Debug)]
struct Shares {
    bytes: usize,
    readers: AtomicUsize,
}

impl Budget {
    pub fn new(bytes: usize) -> Self {
        let readers = AtomicUsize::new(0);
        Self(Arc::new(Shares { bytes, readers }))
    }

    pub(super) fn join(&self) {
        self.0.readers.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a reader that has left, and returns its memory to the system.
    pub(super) fn leave(&self) {
        self.0.readers.fetch_sub(1, Ordering::AcqRel);
        heap::give_back();
    }

    /// Returns the bytes that each reader's queue may hold; a queue may always hold one batch.
    pub(super) fn share(&self) -> usize {
        let readers = self.0.readers.load(Ordering::Acquire).max(1);
        (self.0.bytes / readers).min(MOST_WAITING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_one_budget() {
        let budget = Budget::new(64 << 20);
        let shares = [1, 2, 3, 4].map(|_| {
            budget.join();
            budget.share()
        });
        assert_eq!(shares, [32 << 20, 32 << 20, (64 << 20) / 3, 16 << 20]);
        let other = budget.clone();
        (0..3).for_each(|_| other.leave());
        assert_eq!(budget.share(), 32 << 20);
    }
}
