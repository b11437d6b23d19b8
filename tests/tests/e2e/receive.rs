//! `trawl gen receive`: received, missing, reordered and duplicated packets, counted exactly.

use rustix::process::Signal;
use serde_json::{Value, json};
use trawl_gen::stamp::{self, Stamp};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::Engine;
use trawl_packet::build::{Icmp, Tcp, Template, flags};
use trawl_packet::pcap;
use trawl_tests::frames::{FROM, TO};
use trawl_tests::lab::send_from;
use trawl_tests::witness::{nothing_attached, run, tshark, xdp_on};
use trawl_tests::{Capture, Lab, Running, args, frames, trawl, wait_until};

const STREAM: u16 = 0x5a21;

fn stamped(mut frame: Vec<u8>, flow: u16, sequence: u32) -> Vec<u8> {
    let stamp = Stamp { stream: STREAM, flow, sequence, time: stamp::now() };
    stamp.write(&mut frame);
    frame
}

fn udp(flow: u16, sequence: u32) -> Vec<u8> {
    stamped(frames::udp(&[0; stamp::LENGTH]), flow, sequence)
}

fn start(lab: &Lab, arguments: &[&str]) -> Running {
    let fixed = ["gen", "receive", "--json", "-i", &lab.receiver()];
    Running::start(&[&fixed[..], arguments].concat(), "receiving on")
}

fn send_each(lab: &Lab, frames: &[Vec<u8>]) {
    lab.send(frames, frames.len() as u64);
}

/// Returns these members of an object.
fn some(of: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| of[*name].clone()).collect()
}

const ORDER: [&str; 5] = ["received", "lost", "reordered", "duplicates", "before_first"];

#[test]
fn losses_duplicates_and_order_are_counted_exactly() {
    let Some(lab) = Lab::open() else { return };
    let receiver = start(&lab, &["--count", "22"]);
    let sequences = [
        // In the first flow, 4, 5 and 9 are missing, 7 is late, 2 and 8 arrive twice, and 3 arrives three times.
        (1, vec![0, 1, 2, 2, 3, 3, 3, 6, 8, 7, 8, 10]),
        // In the second flow, none is missing, because the flow began before the receiver.
        (2, vec![1000, 1001, 1002]),
        // In the third flow, all are in the wrong order.
        (3, vec![5, 4, 3, 2, 1, 0]),
        (4, vec![u32::MAX]),
    ];
    let sent: Vec<Vec<u8>> =
        sequences.iter().flat_map(|(flow, numbers)| numbers.iter().map(|number| udp(*flow, *number))).collect();
    assert_eq!(sent.len(), 22);
    send_each(&lab, &sent);
    let result = receiver.wait().json();
    assert_eq!(some(&result, &ORDER), json!([22, 3, 6, 4, 1000 + u64::from(u32::MAX)]));
    assert_eq!(some(&result, &["unstamped", "untracked", "too_old"]), json!([0, 0, 0]));
    assert_eq!(result["received_bytes"], 22 * 60);
    let flows = result["flows"].as_array().expect("flows");
    let found: Vec<Value> = flows.iter().map(|flow| some(flow, &ORDER)).collect();
    let expected =
        [json!([12, 3, 1, 4, 0]), json!([3, 0, 0, 0, 1000]), json!([6, 0, 5, 0, 0]), json!([1, 0, 0, 0, u32::MAX])];
    assert_eq!(found, expected);
    let names: Vec<&Value> = flows.iter().map(|flow| &flow["flow"]).collect();
    assert_eq!(names, ["5a21.1", "5a21.2", "5a21.3", "5a21.4"]);
    // The frames were stamped before they were sent, by this machine's clock.
    let latency = &result["latency_ns"];
    assert_eq!((latency["count"].as_u64(), latency["negative"].as_u64()), (Some(18), Some(0)));
    let at = |name: &str| latency[name].as_u64().expect("a number");
    let rising = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"].map(at);
    assert!(at("min") > 0 && rising.is_sorted(), "{rising:?}");
    nothing_attached(&lab.pair.b);
}

#[test]
fn flow_across_two_cpus_is_one_flow() {
    let Some(lab) = Lab::open() else { return };
    let receiver = start(&lab, &["--count", "600"]);
    let sent: Vec<Vec<u8>> = (0..300).map(|number| udp(7, number)).collect();
    lab.send_from_two_cpus(&sent, 300);
    let result = receiver.wait().json();
    assert_eq!(some(&result, &["received", "lost", "duplicates"]), json!([600, 0, 300]));
    assert_eq!(result["flows"].as_array().map(Vec::len), Some(1));
}

#[test]
fn packets_without_a_stamp_are_counted_separately_and_pass() {
    let Some(lab) = Lab::open() else { return };
    let receiver = start(&lab, &[]);
    let stack = Capture::start(&lab, &args!("-i {} --tap packet -Q in -c 3", lab.receiver()));
    let sent = [frames::silent(60), udp(1, 0), frames::silent(61), udp(1, 1), frames::silent(62)];
    send_each(&lab, &sent);
    // The stamped packets are dropped, so the capture behind the receiver ends after the three others.
    assert_eq!(stack.wait().summary_of_success().seen, 3);
    let result = receiver.stop().json();
    assert_eq!(some(&result, &["received", "unstamped", "unstamped_bytes"]), json!([2, 3, 183]));
}

#[test]
fn stamped_packets_pass_on_request() {
    let Some(lab) = Lab::open() else { return };
    let receiver = start(&lab, &["--pass"]);
    let stack = Capture::start(&lab, &args!("-i {} --tap packet -Q in -c 2", lab.receiver()));
    send_each(&lab, &[udp(1, 0), udp(1, 1)]);
    assert_eq!(stack.wait().summary_of_success().seen, 2);
    assert_eq!(some(&receiver.stop().json(), &["received", "lost"]), json!([2, 0]));
}

/// Returns a stamped frame of each kind; the contents and layers around the stamp do not matter.
fn kinds() -> Vec<Vec<u8>> {
    let ethernet = || Template::new().ethernet(FROM, TO);
    let ipv4 = || ethernet().ipv4([10, 77, 0, 1], [10, 77, 0, 2]);
    let room = || vec![0; stamp::LENGTH];
    let ipv6: [[u16; 8]; 2] = [[0xfd00, 0x77, 0, 0, 0, 0, 0, 1], [0xfd00, 0x77, 0, 0, 0, 0, 0, 2]];
    let syn = Tcp { src: 40_000, dst: 9, flags: flags::SYN, ..Tcp::default() };
    [
        ipv4().udp(40_000, 9).payload(room()),
        ipv4().udp(40_000, 9).payload([&[1, 2, 3][..], &room()].concat()),
        ipv4().tcp(syn).payload(room()),
        ipv4().icmp(Icmp::echo_request(7, 1)).payload(room()),
        ethernet().vlan(42).ipv4([10, 77, 0, 1], [10, 77, 0, 2]).udp(40_000, 9).payload(room()),
        ethernet().ipv6(ipv6[0], ipv6[1]).udp(40_000, 9).payload(room()),
        ethernet().ipv6(ipv6[0], ipv6[1]).udp(40_000, 9).payload([&[9][..], &room()].concat()),
    ]
    .into_iter()
    .map(|template| template.build())
    .chain([frames::silent(60), frames::silent(1514)])
    .zip(0..)
    .map(|(frame, sequence)| stamped(frame, 1, sequence))
    .collect()
}

#[test]
fn stamped_packets_of_all_kinds_have_correct_checksums() {
    let Some(lab) = Lab::open() else { return };
    let sent = kinds();
    let receiver = start(&lab, &["--count", &sent.len().to_string()]);
    send_each(&lab, &sent);
    let result = receiver.wait().json();
    assert_eq!(some(&result, &["received", "lost", "unstamped"]), json!([sent.len(), 0, 0]));
    let file = lab.file("sent.pcap");
    let mut bytes = Vec::new();
    pcap::file_header(&mut bytes, 1, 0);
    for frame in &sent {
        let length = (frame.len() as u32).to_le_bytes();
        bytes.extend([[0; 4], [0; 4], length, length].concat());
        bytes.extend(frame);
    }
    std::fs::write(&file, bytes).expect("a file");
    let fields = ["udp.checksum.status", "tcp.checksum.status", "icmp.checksum.status"];
    let on = ["udp", "tcp"].map(|protocol| format!("{protocol}.check_checksum:TRUE"));
    let said = run(
        "tshark",
        &[
            "-n", "-r", &file, "-o", &on[0], "-o", &on[1], "-T", "fields", "-e", fields[0], "-e", fields[1], "-e",
            fields[2],
        ],
    );
    // tshark shows 1 for a correct checksum.
    let verdicts: Vec<&str> = said.lines().map(str::trim).collect();
    assert_eq!(verdicts, ["1", "1", "1", "1", "1", "1", "1", "", ""]);
    assert_eq!(tshark(&file, &["frame.len"]).len(), sent.len());
}

#[test]
fn long_packets_carry_stamps_behind_their_first_page() {
    let Some(lab) = Lab::with(trawl_lab::PairOptions { mtu: 9000, ..trawl_lab::PairOptions::default() }) else {
        return;
    };
    let sent: Vec<Vec<u8>> = [3000, 4096, 9000, 9014]
        .into_iter()
        .zip(0..)
        .map(|(length, sequence)| stamped(frames::silent(length), 1, sequence))
        .collect();
    let receiver = start(&lab, &["--count", "4"]);
    lab.send_long(&sent);
    let result = receiver.wait().json();
    assert_eq!(some(&result, &["received", "lost", "received_bytes"]), json!([4, 0, 25_110]));
}

#[test]
fn receiver_falls_back_to_skb_mode() {
    let Some(lab) = Lab::open() else { return };
    // A veth with fewer receive queues than the peer's transmit queues refuses native mode.
    let namespace = format!("--net=/run/netns/{}", lab.pair.b.name);
    run("nsenter", &args!("{namespace} ethtool -L {} rx 1 tx 1", lab.pair.b.interface));
    if run("nproc", &["--all"]).trim() == "1" {
        trawl_tests::skip("one CPU makes one queue");
        return;
    }
    let receiver = start(&lab, &["--count", "10"]);
    receiver.wait_said("skb mode");
    assert_eq!(xdp_on(&lab.pair.b).map(|(_, mode)| mode).as_deref(), Some("skb"));
    let sent: Vec<Vec<u8>> = (0..10).map(|number| udp(1, number)).collect();
    send_from(&lab.pair.a, &sent, 10, Engine::Packet, None, None);
    let result = receiver.wait().json();
    assert_eq!(result["mode"], "skb");
    assert_eq!(some(&result, &["received", "lost", "reordered"]), json!([10, 0, 0]));
}

#[test]
fn killed_receiver_leaves_nothing() {
    let Some(lab) = Lab::open() else { return };
    let receiver = start(&lab, &[]);
    assert_eq!(xdp_on(&lab.pair.b).map(|(_, mode)| mode).as_deref(), Some("native"));
    receiver.kill();
    wait_until("the program is gone", || xdp_on(&lab.pair.b).is_none());
    nothing_attached(&lab.pair.b);
}

#[test]
fn attached_program_is_named() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::Drop, &lab.pair.b).expect("a program");
    let output = trawl(&["gen", "receive", "-i", &lab.receiver()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("lab_drop") && said.contains("native mode"), "{said}");
    assert!(said.contains("xdp off"), "{said}");
}

#[test]
fn vanished_interface_ends_it_with_the_counts() {
    let Some(lab) = Lab::open() else { return };
    let receiver = start(&lab, &[]);
    send_each(&lab, &[udp(1, 0), udp(1, 1)]);
    run("ip", &["-n", &lab.pair.b.name, "link", "del", &lab.pair.b.interface]);
    let done = receiver.wait();
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("the interface is gone"), "{}", done.stderr);
    let result: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(some(&result, &["received", "lost"]), json!([2, 0]));
}

#[test]
fn empty_result_explains_which_packets_count() {
    let Some(lab) = Lab::open() else { return };
    let output = trawl(&args!("gen receive -i {} --duration 50ms", lab.receiver()));
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("0 stamped packets") && printed.contains("--stamp"), "{printed}");
}

#[test]
fn figures_are_printed_on_request() {
    let Some(lab) = Lab::open() else { return };
    let receiver = start(&lab, &[]);
    send_each(&lab, &[udp(1, 0), udp(1, 3)]);
    receiver.signal(Signal::USR1);
    receiver.wait_said("2 received");
    receiver.wait_said("lost 2");
    receiver.stop().json();
}

#[test]
fn text_output_lists_counts_and_flows() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let receiver = Running::start(&["gen", "receive", "-i", &place, "--count", "5"], "receiving on");
    send_each(&lab, &[udp(1, 0), udp(2, 4), udp(1, 2), udp(1, 1), udp(1, 1)]);
    let done = receiver.wait();
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    for words in [
        "5 stamped packets, 300 bytes",
        "lost 0 of 4 (0.0000 %), reordered 1, duplicates 1",
        "4 packets were sent before the first that arrived",
        "5a21.1            4          0          1          1",
        "5a21.2            1          0          0          0",
        "latency: ",
    ] {
        assert!(done.stdout.contains(words), "{words:?} in {}", done.stdout);
    }
}
