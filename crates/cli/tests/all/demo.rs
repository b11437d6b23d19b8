//! Runs `trawl demo`, and kills it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root_or_skip() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !root {
        eprintln!("SKIPPED: not root");
    }
    root
}

/// A capture file that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let name = format!("trawl-demo-test-{}-{test}.pcapng", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn demo(file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trawl"));
    command.arg("demo").arg("-w").arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the leftovers of the lab of a demo with this process id.
fn left_behind(process: u32) -> Vec<PathBuf> {
    [
        format!("/run/netns/trawl-demo-{process}-a"),
        format!("/run/netns/trawl-demo-{process}-b"),
        format!("/run/trawl/labs/demo-{process}.json"),
    ]
    .map(PathBuf::from)
    .into_iter()
    .filter(|path| path.exists())
    .collect()
}

#[test]
fn demo_shows_packets_that_tcpdump_misses_and_leaves_only_the_file() {
    if !root_or_skip() {
        return;
    }
    let file = Scratch::new("whole");
    let child = demo(&file.0).spawn().expect("the demo starts");
    let process = child.id();
    let output = child.wait_with_output().expect("the demo ends");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    for words in [
        "100000 seen, 0 filtered out, 100000 recorded, 0 lost",
        "100000 packets, 100000 of them with the verdict DROP",
        "[xdp exit: DROP]",
        &file.0.display().to_string(),
    ] {
        assert!(text.contains(words), "'{words}' is missing: {text}");
    }
    assert_eq!(errors, "");
    assert!(file.0.exists());
    assert_eq!(left_behind(process), Vec::<PathBuf>::new());
}

#[test]
fn killed_demo_leaves_no_lab() {
    if !root_or_skip() {
        return;
    }
    let file = Scratch::new("killed");
    let mut child = demo(&file.0).spawn().expect("the demo starts");
    let process = child.id();
    let mut text = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    text.read_line(&mut line).expect("its first line");
    assert!(line.starts_with("A lab:"), "{line}");
    assert_ne!(left_behind(process), Vec::<PathBuf>::new());
    child.kill().expect("it is there to be killed");
    // The process that cleans up has the other end too: it closes the pipe when it is done.
    let mut rest = String::new();
    text.read_to_string(&mut rest).expect("the end of the pipe");
    child.wait().expect("it was killed");
    assert_eq!(left_behind(process), Vec::<PathBuf>::new());
}
