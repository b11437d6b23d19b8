//! Interrupts `trawl bench`.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the entries of a directory whose names have this prefix.
fn beginning(directory: &str, with: &str) -> Vec<PathBuf> {
    std::fs::read_dir(Path::new(directory))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(with))
        .map(|entry| entry.path())
        .collect()
}

fn left_behind(process: u32) -> Vec<PathBuf> {
    [
        beginning("/run/netns", &format!("trawl-{process}-")),
        beginning("/run/trawl/labs", &format!("{process}-")),
        beginning("/var/tmp", &format!("trawl-bench-{process}-")),
    ]
    .concat()
}

#[test]
fn killed_benchmark_leaves_nothing() {
    let root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !root {
        eprintln!("SKIPPED: not root");
        return;
    }
    let results = std::env::temp_dir().join(format!("trawl-killed-{}", std::process::id()));
    let mut child = Command::new(env!("CARGO_BIN_EXE_trawl-bench"))
        .args(["capture-filtered", "--peers", "none"])
        .args(["--taps", "hook", "--set", "rates=20"])
        .args(["--set", "seconds=600", "-o"])
        .arg(&results)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the benchmark starts");
    let process = child.id();
    let start = Instant::now();
    while left_behind(process).len() < 3 && start.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = left_behind(process);
    child.kill().expect("it is there to be killed");
    // The process that cleans up also has the other end, and closes the pipe when it is done.
    let mut errors = child.stderr.take().expect("a pipe");
    errors.read_to_string(&mut String::new()).expect("the end of the pipe");
    child.wait().expect("it was killed");
    // The results of finished measurements are kept, and are no leftovers.
    std::fs::remove_dir_all(&results).expect("its directory");
    assert!(before.len() >= 3, "{before:?}");
    assert_eq!(left_behind(process), Vec::<PathBuf>::new());
}
