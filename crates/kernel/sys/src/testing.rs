//! Helpers for the tests of the kernel crates: a namespace for one test, deleted with its guard.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::netns::{self, Namespace};

/// Returns true for root; otherwise prints a notice and returns false, so that the test is skipped.
pub fn root_or_skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: not root");
    }
    root
}

#[derive(Debug)]
pub struct ScratchNamespace {
    pub name: String,
    pub namespace: Namespace,
}

impl ScratchNamespace {
    pub fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trawl-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = netns::create(&name).expect("a namespace for the test");
        Self { name, namespace }
    }
}

impl Drop for ScratchNamespace {
    fn drop(&mut self) {
        let _ = netns::delete(&self.name);
    }
}
