//! Whose turn it is: tests run side by side, but for those that need the machine for themselves.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held for as long as a test runs.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code, reason = "the lock is what counts")] File);

impl Turn {
    /// Beside others.
    pub fn shared() -> Self {
        let file = Self::file();
        file.lock_shared().expect("a lock that can be shared");
        Self(file)
    }

    /// Alone: for what changes the whole machine, such as its clock.
    pub fn alone() -> Self {
        let file = Self::file();
        file.lock().expect("a lock");
        Self(file)
    }

    fn file() -> File {
        let path = std::env::temp_dir().join("trawl-tests.lock");
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("a lock file")
    }
}

/// For tests that load all CPUs: one at a time, so that two CPUs suffice.
pub fn heavy() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::new(());
    // Another heavy test that failed is no reason for this one to.
    HEAVY.lock().unwrap_or_else(PoisonError::into_inner)
}
