//! Ten thousand processes that live for about a millisecond.

use std::collections::{HashMap, HashSet};
use std::process::Command;

use trawl_lab::Station;
use trawl_tests::pcapng::{Contents, OptionList};
use trawl_tests::turn::heavy;
use trawl_tests::witness::run;
use trawl_tests::{Capture, Lab, amount, args, skip};

use super::{PORT, Server, Truth, compare, shows_each_use};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/process/short.c");
const NAME: u16 = 2;
const PATH: u16 = 3;
const COMMAND: u16 = 4;

fn inside(station: &Station, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &station.name, program]);
    command.args(arguments);
    command
}

#[test]
#[ignore = "make test-long runs it"]
fn processes_of_a_millisecond_are_named() {
    let Some(lab) = Lab::open() else { return };
    if !shows_each_use() {
        skip("before Linux 6.3, a process that was given a socket is not seen to use it");
        return;
    }
    let _heavy = heavy();
    let program = lab.file("short");
    run("cc", &["-O2", "-static", "-o", &program, SOURCE]);
    let (address, port) = (lab.pair.b.ipv4.to_string(), PORT.to_string());
    let count = amount(10_000) as usize;
    let (tc, xdp) = (lab.file("tc.pcapng"), lab.file("xdp.pcapng"));
    let what = args!("-i {} -i {} --tap tc --process=full -w {tc} port {PORT}", lab.sender(), lab.receiver());
    let at_tc = Capture::start(&lab, &what);
    let what = args!("-i {} --tap xdp --process -w {xdp} port {PORT}", lab.receiver());
    let at_xdp = Capture::start(&lab, &what);

    let server = Server::run(inside(&lab.pair.b, &program, &["serve", &address, &port]));
    let clients = inside(&lab.pair.a, &program, &["ask", &address, &port, &count.to_string(), "4"]);
    let output = { clients }.output().expect("ip");
    let text = String::from_utf8(output.stdout).expect("text");
    let truths: Vec<Truth> = text.lines().map(Truth::parse).collect();
    assert_eq!(truths.len(), count, "{}", String::from_utf8_lossy(&output.stderr));
    let listeners = server.processes();
    for (capture, file, at_client) in [(at_tc, &tc, true), (at_xdp, &xdp, false)] {
        let finished = capture.stop();
        let summary = finished.summary_of_success();
        assert_eq!(summary.lost_total(), 0, "{}", finished.stderr);
        let contents = Contents::read(file);
        let tally = compare(&contents, PORT, &truths, &listeners);
        println!(
            "{} packets: {} right, {} of the listening process, {} unknown, {} wrong",
            contents.packets.len(),
            tally.right,
            tally.listener,
            tally.unknown.len(),
            tally.wrong.len()
        );
        let first = |all: &[String]| all.iter().take(5).cloned().collect::<Vec<_>>();
        assert!(tally.wrong.is_empty(), "{:#?}", first(&tally.wrong));
        assert!(tally.unknown.is_empty(), "{:#?}", first(&tally.unknown));
        assert_eq!(contents.undescribed, 0);
        if at_client {
            check_descriptions(&contents, &truths, &[&program, "one", &address, &port]);
        }
    }
}

/// All processes are described, although the ring of events is full while trawl is stopped.
#[test]
#[ignore = "make test-long runs it"]
fn processes_are_described_after_a_full_ring() {
    const COUNT: usize = 7000;
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let file = lab.file("full.pcapng");
    let capture = Capture::start(&lab, &args!("-i {} --tap tc -Q out --process -w {file} udp", lab.sender()));
    capture.freeze();
    let send = format!("for i in $(seq {COUNT}); do (echo x >/dev/udp/{}/{PORT}); done", lab.pair.b.ipv4);
    run("ip", &["netns", "exec", &lab.pair.a.name, "bash", "-c", &send]);
    capture.thaw();
    capture.wait_recorded(COUNT as u64);
    capture.stop_well();
    let contents = Contents::read(&file);
    let named: HashSet<_> = contents.packets.iter().map(|packet| packet.process().map(|(id, _)| id)).collect();
    assert_eq!((named.len(), contents.undescribed), (COUNT, 0));
    assert!(contents.processes.iter().all(|(_, options)| options.text(NAME).as_deref() == Some("bash")));
}

/// Checks that each client is described by its program and its command line.
fn check_descriptions(contents: &Contents, truths: &[Truth], command: &[&str]) {
    let mut descriptions: HashMap<u32, Vec<&OptionList>> = HashMap::new();
    for (id, options) in &contents.processes {
        descriptions.entry(*id).or_default().push(options);
    }
    let line = command.join("\0");
    for truth in truths {
        let all = descriptions.get(&truth.client).map_or(&[][..], Vec::as_slice);
        let is_exact = |one: &&&OptionList| {
            one.text(NAME).as_deref() == Some("short")
                && one.text(PATH).as_deref() == Some(command[0])
                && one.text(COMMAND).as_deref() == Some(&line)
        };
        assert!(all.iter().any(|one| is_exact(&one)), "{truth:?}: {all:?}");
    }
}
