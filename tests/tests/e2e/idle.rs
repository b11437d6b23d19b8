//! Commands without traffic: their wake-ups, the first packet after a silence, and memory that is given back.

use std::net::{Shutdown, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use trawl_sys::process::{cpu_seconds, wake_ups};
use trawl_tests::witness::run;
use trawl_tests::{Capture, Lab, Running, args, fleet_or_skip, frames, wait_until};

use crate::agent::{agent, children, phases, report, state};
use crate::readers::{address, wait_connected};

/// Limit of wake-ups in a second, over all processes of a command: twice what any needs, for a busy machine.
const LIMIT: f64 = 8.0;
/// The same for a command that runs another one: each program that begins on this machine wakes it up, too.
const LIMIT_OF_RUNNERS: f64 = 300.0;

/// Returns a process and all that descend from it.
fn family(process: u32) -> Vec<u32> {
    let descendants = children(process).into_iter().flat_map(family);
    [process].into_iter().chain(descendants).collect()
}

/// Waits until a command and its processes are at rest.
#[track_caller]
fn wait_for_rest(command: &str, process: u32, limit: f64) {
    let count = || family(process).into_iter().map(wake_ups).sum::<u64>();
    wait_until(&format!("{command} rests"), || {
        let (before, began) = (count(), Instant::now());
        sleep(Duration::from_secs(2));
        let rate = count().abs_diff(before) as f64 / began.elapsed().as_secs_f64();
        rate < limit
    });
}

/// Commands that wait for packets, for another command's end or for other hosts sleep meanwhile.
#[test]
fn waiting_commands_rest() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let grows = lab.file("grows.pcapng");
    Capture::start(&lab, &args!("-i {receiver} --tap tc -w {grows} udp")).stop_well();
    for (command, ready) in [
        (format!("gen receive -i {receiver}"), "receiving on"),
        (format!("gen receive -i {receiver} --count 5"), "receiving on"),
        (format!("read -f {grows}"), ""),
        (format!("follow -i {receiver} udp port 9"), "following packets"),
        ("follow -- sleep 1000".to_owned(), "following packets"),
        ("why -- sleep 1000".to_owned(), "drops"),
        (format!("capture -i {receiver} -w {} -- sleep 1000", lab.file("file")), "capturing"),
    ] {
        let running = Running::start(&args!("{command}"), ready);
        let limit = if command.contains(" -- ") { LIMIT_OF_RUNNERS } else { LIMIT };
        wait_for_rest(&command, running.id(), limit);
        running.stop();
    }
}

/// A reader that has closed its side may still read.
#[test]
fn capture_with_readers_rests() {
    let Some(lab) = Lab::open() else { return };
    let capture = Capture::start(&lab, &args!("-i {} --tap tc -w tcp-listen:0 udp", lab.receiver()));
    let address = address(&capture.said());
    let connect = || TcpStream::connect(address).expect("a connection");
    let readers = [connect(), connect()];
    readers[0].shutdown(Shutdown::Write).expect("it is open");
    wait_connected(&capture, 2);
    wait_for_rest("a capture with readers", capture.id(), LIMIT);
    drop(readers);
    capture.stop_well();
}

#[test]
fn agent_with_a_capture_rests() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("agent.toml");
    std::fs::write(&file, state(&lab, &["one"], "")).expect("a file");
    let agent = agent(&lab, &["--state", &file]);
    let path = lab.file("report");
    wait_until("it runs", || phases(&report(&path)) == ["running"]);
    wait_for_rest("the agent", agent.id(), LIMIT);
    // Its capture still counts, and its file is still read.
    lab.send(&[frames::silent(64)], 10);
    wait_until("it counts", || report(&path)["captures"][0]["account"]["recorded"] == 10);
    std::fs::write(&file, "").expect("a file");
    wait_until("the capture is gone", || phases(&report(&path)).is_empty());
    assert_eq!(agent.stop().status.code(), Some(0));
}

#[test]
fn sleeping_captures_wake_up_twice_a_second() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let file = lab.file("file.pcapng");
    let written = |tap: &str| format!("-i {receiver} --tap {tap} -w {file} udp");
    for arguments in [written("tc"), written("xdp"), written("packet"), format!("-i {receiver} --tap tc udp")] {
        let capture = Capture::start(&lab, &args!("{arguments}"));
        lab.send(&[frames::silent(64)], 10);
        sleep(Duration::from_secs(1));
        let before = wake_ups(capture.id());
        let measured = Instant::now();
        sleep(Duration::from_secs(3));
        let rate = (wake_ups(capture.id()) - before) as f64 / measured.elapsed().as_secs_f64();
        // Each thread that reads packets may wake up now and then, too.
        assert!(rate < 10.0, "{arguments}: {rate} wake-ups per second");
        capture.stop_well();
    }
}

/// A capture on many interfaces has a filter of tc on each, and looks at them again only after one was changed.
#[test]
fn many_interfaces_cost_nothing_while_idle() {
    let Some(lab) = Lab::open() else { return };
    let station = &lab.pair.b;
    let batch = lab.file("batch");
    let commands = (0..64).map(|number| {
        format!("link add many{number} up type veth peer name other{number}\nlink set other{number} up\n")
    });
    std::fs::write(&batch, commands.collect::<String>()).expect("a file");
    run("ip", &args!("-n {} -batch {batch}", station.name));
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &format!("{}:many*", station.name), "--tap", "tc", "-w", &file]);
    assert!(capture.said().contains("clsact"), "{}", capture.said());
    let used = || cpu_seconds(capture.id());
    // The interfaces' own messages of the first seconds are packets too.
    wait_until("it costs less than a third of what reading the filters costs", || {
        let before = used();
        sleep(Duration::from_secs(3));
        used() - before < 0.015
    });
    run("tc", &args!("-n {} qdisc del dev many33 clsact", station.name));
    capture.wait_said("many33: tap tc attached again");
    capture.stop_well();
}

/// A sleeping capture is woken by a packet: it does not only look twice a second.
#[test]
fn first_packet_after_a_silence_is_shown_at_once() {
    const TIMES: usize = 9;
    let Some(lab) = Lab::open() else { return };
    for tap in ["tc", "xdp", "packet"] {
        let capture = Capture::start(&lab, &args!("-i {} --tap {tap} -Q in ether proto 0x88b5", lab.receiver()));
        let delay = |count: usize| {
            sleep(Duration::from_millis(600));
            let sent = Instant::now();
            lab.send(&[frames::silent(64)], 1);
            capture.wait_printed(|text| text.lines().count() >= count);
            sent.elapsed()
        };
        let mut delays: Vec<Duration> = (1..=TIMES).map(delay).collect();
        delays.sort_unstable();
        // On a busy machine, the sender, the capture and this test wait for a CPU. Without a bell, half of the packets would
        // wait for 250 ms or more, and hardly ever all three taps would be faster.
        assert!(delays[TIMES / 2] < Duration::from_millis(200), "{tap}: {delays:?}");
        capture.stop_well().assert_all_recorded(TIMES as u64);
    }
}

/// A pool that has grown for a burst gives its memory back after quiet minutes.
#[test]
#[ignore = "make test-long runs it"]
fn memory_of_a_burst_is_given_back() {
    const COUNT: u64 = 60_000;
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-v -i {} --tap xdp -w {file}", lab.receiver()));
    capture.freeze();
    lab.send(&[frames::patterned(1400)], COUNT);
    capture.thaw();
    capture.wait_recorded(COUNT);
    capture.wait_said("records have 256 MiB of memory now, and can have 256 MiB");
    let began = Instant::now();
    // A segment that a program will continue with may keep a bank.
    let is_back = |said: &str| {
        ["16", "20", "24"].iter().any(|mib| said.contains(&format!("records have {mib} MiB of memory now")))
    };
    while !is_back(&capture.said()) {
        assert!(began.elapsed() < Duration::from_secs(400), "{}", capture.said());
        sleep(Duration::from_secs(1));
    }
    lab.send(&[frames::patterned(1400)], COUNT / 10);
    capture.wait_recorded(COUNT + COUNT / 10);
    capture.stop_well().assert_all_recorded(COUNT + COUNT / 10);
}
