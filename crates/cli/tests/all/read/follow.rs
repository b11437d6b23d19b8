//! `trawl read -f`: files that grow, rings of files, and standard input.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Scratch, a_pcap};

/// Waits for the lines of a following reader.
fn wait_for_lines(path: &Path, count: usize) {
    let patience = std::time::Instant::now();
    loop {
        let lines = std::fs::read_to_string(path).unwrap_or_default().lines().count();
        if lines == count {
            return;
        }
        assert!(patience.elapsed().as_secs() < 30, "{lines} of {count} lines");
        std::thread::yield_now();
    }
}

#[test]
fn a_file_and_then_a_ring_of_files_are_followed() {
    let scratch = Scratch::new("follow");
    let whole = a_pcap(9000..9010);
    let first = scratch.write("ring_1.pcap", &whole[..whole.len() / 2]);
    let shown = scratch.0.join("shown");
    let child = Command::new(env!("CARGO_BIN_EXE_trawl"))
        .args(["read", "-f", &first])
        .stdout(std::fs::File::create(&shown).unwrap())
        .spawn()
        .expect("trawl runs");
    wait_for_lines(&shown, 4);
    let mut file = std::fs::OpenOptions::new().append(true).open(&first).unwrap();
    file.write_all(&whole[whole.len() / 2..]).unwrap();
    wait_for_lines(&shown, 10);
    let second = scratch.write("ring_2.pcap", &whole);
    wait_for_lines(&shown, 20);
    // A full ring removes its oldest file, which may be the one being read.
    let mut file = std::fs::OpenOptions::new().append(true).open(&second).unwrap();
    std::fs::remove_file(&first).unwrap();
    std::fs::remove_file(&second).unwrap();
    file.write_all(&whole[PCAP_HEADER..]).unwrap();
    wait_for_lines(&shown, 30);
    let third = scratch.write("ring_3.pcap", &whole);
    wait_for_lines(&shown, 40);
    // As by `copytruncate` of logrotate.
    let five = PCAP_HEADER + (whole.len() - PCAP_HEADER) / 2;
    std::fs::write(&third, &whole[..five]).unwrap();
    wait_for_lines(&shown, 45);
    interrupt(child);
}

const PCAP_HEADER: usize = 24;

fn interrupt(mut child: std::process::Child) {
    let pid = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &pid]).status();
    assert!(killed.expect("kill runs").success());
    assert!(child.wait().expect("trawl ends").success());
}

#[test]
fn a_file_on_standard_input_is_followed_and_a_pipe_read_to_its_end() {
    let scratch = Scratch::new("follow-input");
    let whole = a_pcap(9000..9010);
    let (path, shown) = (scratch.write("a.pcap", &whole), scratch.0.join("shown"));
    let start = |input: Stdio| {
        Command::new(env!("CARGO_BIN_EXE_trawl"))
            .args(["read", "-f", "-"])
            .stdin(input)
            .stdout(std::fs::File::create(&shown).unwrap())
            .spawn()
            .expect("trawl runs")
    };
    let child = start(std::fs::File::open(&path).unwrap().into());
    wait_for_lines(&shown, 10);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&whole[PCAP_HEADER..]).unwrap();
    wait_for_lines(&shown, 20);
    interrupt(child);
    let mut child = start(Stdio::piped());
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(&whole).unwrap();
    wait_for_lines(&shown, 10);
    drop(pipe);
    assert!(child.wait().expect("trawl ends").success());
}
