//! Memory usage of a capture.

use trawl_tests::xdp::succeeds;
use trawl_tests::{Capture, Lab, frames, wait_until};

/// Returns the resident memory in MiB.
fn resident(process: u32) -> u64 {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.expect("a size").trim().split(' ').next();
    words.expect("a number").parse::<u64>().expect("a number") >> 10
}

#[test]
fn memory_is_allocated_on_demand() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let file = lab.file("all.pcapng");
    let fixed = ["-i", &receiver, "--tap", "xdp", "--memory", "256MiB"];
    let start = |more: &[&str]| Capture::start(&lab, &[&fixed[..], more].concat());
    let whole = start(&["-w", &file]);
    let whole_size = resident(whole.id());
    whole.stop_well();
    for more in [&["-c", "5"][..], &["-c", "5", "-w", &file], &[]] {
        let capture = start(more);
        let size = resident(capture.id());
        assert!(size + 200 < whole_size, "{more:?}: {size} of {whole_size}");
        lab.send(&[frames::silent(64)], 5);
        match more {
            [] => capture.stop_well(),
            _ => capture.wait().summary(),
        }
        .assert_all_recorded(5);
    }
}

/// While the capture itself is stopped, packets wait in added memory.
#[test]
fn memory_grows_while_the_capture_waits() {
    const COUNT: u64 = 20_000;
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let count = COUNT.to_string();
    let fixed = ["-i", &receiver, "--tap", "xdp", "--memory", "128MiB"];
    let capture = Capture::start(&lab, &[&fixed[..], &["-s", "0"]].concat());
    let before = resident(capture.id());
    capture.freeze();
    let sender = lab.sender();
    let send = ["gen", "udp", "-i", &sender, "--rate", "5kpps"];
    succeeds(&[&send[..], &["--size", "1400", "--count", &count]].concat());
    capture.thaw();
    capture.wait_seen(COUNT);
    wait_until("the memory that was added is read", || resident(capture.id()) >= before + 16);
    capture.stop_well().assert_all_recorded(COUNT);
}
