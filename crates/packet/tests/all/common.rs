//! Runs the reference tools: in a private directory for files, with a visible message if one is missing.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns true if `tool` can be run; otherwise reports on stderr why the test is skipped.
pub fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed");
    }
    found
}

/// A directory that is removed with its contents at the end of the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Self {
        // Tests run in parallel.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("trawl-packet-{}-{number}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("make a scratch directory");
        Self(path)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("write a scratch file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the standard output of `tool`, which has to succeed.
pub fn run(tool: &str, args: &[&str], file: &Path) -> String {
    let output = Command::new(tool)
        .args(args)
        .arg(file)
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}
