//! Files, spools and stores that an earlier version wrote: `upgrade/record` recorded them with its binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_tests::{fleet_or_skip, trawl_in};

/// Versions with recordings.
const VERSIONS: [&str; 1] = ["0.9.0"];

fn recorded(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/upgrade").join(version)
}

/// A copy of the recordings, which commands may change.
struct Copy(PathBuf);

impl Copy {
    fn of(version: &str, name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trawl-upgrade-{name}-{}", std::process::id()));
        let copied = Command::new("cp").arg("-r").arg(recorded(version)).arg(&path).status().expect("cp runs");
        assert!(copied.success());
        // Directories of stores and spools are private.
        let private = Command::new("chmod").args(["-R", "go="]).arg(&path).status().expect("chmod runs");
        assert!(private.success());
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn run(arguments: &[&str]) -> String {
    let output = trawl_in(&[("TZ", "UTC")], arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn files_below(directory: &Path, end: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    found
}

#[test]
fn files_of_earlier_versions_have_the_same_lines() {
    for version in VERSIONS {
        let copy = Copy::of(version, "files");
        for (file, lines) in [
            ("verdicts.pcapng", "verdicts.pcapng.lines"),
            ("verdicts.pcap", "verdicts.pcap.lines"),
            ("drops.pcapng", "drops.pcapng.lines"),
        ] {
            let recorded = fs::read_to_string(copy.file(lines)).expect("lines");
            assert!(recorded.lines().count() >= 3, "{recorded}");
            assert_eq!(run(&["read", "-q", "-n", "-r", &copy.file(file)]), recorded, "{version}: {file}");
        }
        let lines = run(&["read", "-q", "-n", "-r", &copy.file("verdicts.pcapng.zst")]);
        assert_eq!(lines.lines().count(), 6, "{version}: {lines}");
    }
}

#[test]
fn rules_of_earlier_versions_are_accepted() {
    for version in VERSIONS {
        let copy = Copy::of(version, "rules");
        run(&["guard", "apply", "--check", &copy.file("guard.toml")]);
    }
}

/// The store of 0.9.0 has other keys and records. Its chunks, also those that wait in a spool, are capture files.
#[test]
fn chunks_of_earlier_versions_are_capture_files() {
    for version in VERSIONS {
        let copy = Copy::of(version, "chunks");
        for place in ["store", "left"] {
            let chunks = files_below(&copy.0.join(place), ".pcapng.zst");
            assert_eq!(chunks.len(), 1, "{version}: {chunks:?}");
            let lines = run(&["read", "-q", "-n", "-r", &chunks[0]]);
            assert_eq!(lines.lines().count(), 3, "{version}: {lines}");
        }
    }
}

/// The records of 0.9.0 are refused, and its spool is left unchanged.
#[test]
fn records_of_earlier_versions_are_refused_and_kept() {
    if !fleet_or_skip() {
        return;
    }
    for version in VERSIONS {
        let copy = Copy::of(version, "records");
        let store = format!("file://{}", copy.file("store"));
        let verified = trawl_in(&[], &["store", "verify", &store]);
        assert_eq!(verified.status.code(), Some(1), "{version}: {verified:?}");
        let (other, spool) = (format!("file://{}", copy.file("other")), copy.file("left"));
        let before = files_below(&copy.0.join("left"), "");
        let pushed = trawl_in(&[], &["store", "push", &other, "--spool", &spool]);
        assert_eq!(pushed.status.code(), Some(1), "{version}: {pushed:?}");
        assert_eq!(files_below(&copy.0.join("left"), ""), before, "{version}");
    }
}
