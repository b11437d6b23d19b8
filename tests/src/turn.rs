//! Turns of tests: most run in parallel, some need the machine for themselves.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held as long as a test runs.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code, reason = "the lock is what counts")] File);

impl Turn {
    /// Waits for a turn in parallel with others.
    pub fn shared() -> Self {
        let file = Self::file();
        file.lock_shared().expect("a lock that can be shared");
        Self(file)
    }

    /// Waits for the whole machine, for tests that change it, such as its clock.
    pub fn alone() -> Self {
        let file = Self::file();
        file.lock().expect("a lock");
        Self(file)
    }

    fn file() -> File {
        let path = std::env::temp_dir().join("trawl-tests.lock");
        File::options().create(true).append(true).open(path).expect("a lock file")
    }
}

/// Waits for the turn of tests that load all CPUs: one at a time, so that two CPUs suffice.
pub fn heavy() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::new(());
    wait_for(&HEAVY)
}

/// Waits for the turn of tests whose command joins the hooks of XDP programs in all namespaces, and of tests that count
/// the programs that join their hooks.
pub fn hooks() -> MutexGuard<'static, ()> {
    static HOOKS: Mutex<()> = Mutex::new(());
    wait_for(&HOOKS)
}

/// Waits for a turn. The failure of another test, which poisons the lock, does not fail the one that waits.
fn wait_for(turn: &'static Mutex<()>) -> MutexGuard<'static, ()> {
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}
