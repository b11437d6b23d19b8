//! Captures of interfaces that a pattern names, which are more than a user would type.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::process::{Command, Stdio};

use serde_json::Value;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, args, frames, trawl};

const PAIRS: usize = 60;

/// Runs a line of `ip` for each of these numbers.
fn ip_batch(namespace: &str, numbers: Range<usize>, line: &dyn Fn(usize) -> String) {
    let mut ip = Command::new("ip").args(["-n", namespace, "-batch", "-"]).stdin(Stdio::piped()).spawn().expect("ip");
    let mut stdin = ip.stdin.take().expect("it is piped");
    let lines: String = numbers.map(|number| line(number) + "\n").collect();
    stdin.write_all(lines.as_bytes()).expect("ip reads");
    drop(stdin);
    assert!(ip.wait().expect("ip ends").success());
}

/// Adds interfaces between the two namespaces of the lab, removed with them.
fn add_pairs(lab: &Lab, pairs: usize) {
    add_some(lab, 0..pairs);
}

fn add_some(lab: &Lab, numbers: Range<usize>) {
    let (a, b) = (&lab.pair.a.name, &lab.pair.b.name);
    ip_batch(a, numbers.clone(), &|number| format!("link add p{number} type veth peer name p{number} netns {b}"));
    for namespace in [a, b] {
        ip_batch(namespace, numbers.clone(), &|number| format!("link set dev p{number} up"));
    }
}

#[test]
fn pattern_matches_interfaces_of_several_namespaces() {
    let Some(lab) = Lab::open() else { return };
    add_pairs(&lab, PAIRS);
    let name = &lab.pair.b.name;
    // The pattern has a wildcard for the letter in which the names of the two namespaces differ.
    let pattern = format!("{}?:[pv]*", &name[..name.len() - 1]);
    let file = lab.file("all.pcapng");
    let capture = Capture::start(&lab, &["-i", &pattern, "--tap", "xdp", "-w", &file]);
    lab.send(&[frames::silent(77)], 5);
    capture.wait_recorded(5);
    capture.stop_well();
    let rows = tshark(&file, &["frame.interface_name", "frame.len"]);
    let sent = [lab.receiver(), "77".to_owned()];
    assert_eq!(rows.iter().filter(|row| **row == sent).count(), 5, "{rows:?}");
    let about = run("capinfos", &[&file]);
    let count = format!("Number of interfaces in file: {}", 2 * PAIRS + 2);
    assert!(about.contains(&count), "{about}");
    let attached = run("ip", &["-n", name, "-details", "link", "show"]);
    assert!(!attached.contains("prog/xdp"), "{attached}");
}

#[test]
fn pattern_without_a_match_is_refused() {
    let Some(lab) = Lab::open() else { return };
    let none = format!("{}:wlan*", lab.pair.b.name);
    let output = trawl(&["capture", "-i", &none]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no interface has such a name"), "{said}");
}

fn ip(arguments: &[&str]) {
    run("ip", arguments);
}

fn generate(place: &str, count: &str) {
    let to = args!("--dst 192.0.2.1 --src 192.0.2.2 --dst-mac 02:00:00:00:00:01");
    let how = ["gen", "udp", "-i", place, "--count", count, "--rate", "1000"];
    let sent = trawl(&[&how[..], &to].concat());
    assert!(sent.status.success(), "{sent:?}");
}

#[test]
fn new_interfaces_join_and_gone_ones_keep_their_counts() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (lab.pair.a.name.clone(), lab.pair.b.name.clone());
    let add = || {
        ip(&["-n", &a, "link", "add", "new0", "type", "veth", "peer", "name", "new0", "netns", &b]);
        ip(&["-n", &a, "link", "set", "dev", "new0", "up"]);
        ip(&["-n", &b, "link", "set", "dev", "new0", "up"]);
    };
    let pattern = format!("{b}:*[a-z]0");
    // The first file of the series has room for all packets.
    let series = lab.file("joined.pcapng");
    let file = lab.file("joined_00001.pcapng");
    let capture = Capture::start(&lab, &["-i", &pattern, "--tap", "xdp", "-C", "1", "-w", &series, "udp"]);
    add();
    let joined = format!("capturing on {b}:new0 at ");
    capture.wait_said(&joined);
    let sender = format!("{a}:new0");
    generate(&sender, "7");
    capture.wait_recorded(7);
    lab.send(&[frames::ipv4_udp(0)], 4);
    capture.wait_recorded(11);
    // A new interface of the same name is a different interface, which joins.
    ip(&["-n", &a, "link", "del", "dev", "new0"]);
    capture.wait_said(&format!("the interface {b}:new0 was removed"));
    add();
    trawl_tests::wait_until("the interface joins again", || capture.said().matches(&joined).count() == 2);
    generate(&sender, "5");
    capture.wait_recorded(16);
    let summary = capture.stop_well();
    assert_eq!(summary.recorded, 16);
    let rows = tshark(&file, &["frame.interface_id", "frame.interface_name"]);
    let of = |id: &str| rows.iter().filter(|row| row[0] == id).count();
    let name = format!("{b}:new0");
    let mut ids: Vec<&str> = rows.iter().filter(|row| row[1] == name).map(|row| row[0].as_str()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 2, "{rows:?}");
    assert_eq!((of(ids[0]), of(ids[1])), (7, 5));
    const FILTER_ACCEPTED: u16 = 6;
    let statistics = Contents::read(&file).statistics;
    let accepted = |id: &str| {
        let number: usize = id.parse().expect("a number");
        statistics[number].options.u64(FILTER_ACCEPTED)
    };
    assert_eq!((accepted(ids[0]), accepted(ids[1])), (Some(7), Some(5)));
    let about = run("capinfos", &[&file]);
    assert!(about.contains("Number of interfaces in file: 3"), "{about}");
    assert!(about.contains("Number of packets = 7"), "{about}");
}

/// Returns the XDP programs on the interfaces of a namespace, and the number of interfaces with one.
fn programs_in(namespace: &str) -> (BTreeSet<u64>, usize) {
    let links = run("ip", &["-n", namespace, "-details", "-json", "link", "show"]);
    let links: Vec<Value> = serde_json::from_str(&links).expect("ip prints JSON");
    let programs: Vec<u64> = links.iter().filter_map(|link| link["xdp"]["prog"]["id"].as_u64()).collect();
    (programs.iter().copied().collect(), programs.len())
}

/// Checks that one program serves all interfaces, each with its own counts and interface block, while they come and go.
fn many_interfaces(pairs: usize, options: &[&str]) {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (lab.pair.a.name.clone(), lab.pair.b.name.clone());
    add_pairs(&lab, pairs);
    let file = lab.file("many.pcapng");
    let pattern = format!("{b}:[pv]*");
    let usual = ["-i", &pattern, "-w", &file];
    let capture = Capture::start(&lab, &[&usual[..], options, &["udp"]].concat());
    let (first, last) = ("p0".to_owned(), format!("p{}", pairs - 1));
    let uses_xdp = !options.contains(&"packet");
    if uses_xdp {
        let (programs, interfaces) = programs_in(&b);
        assert_eq!((programs.len(), interfaces), (1, pairs + 1));
    } else {
        let threads = std::fs::read_dir(format!("/proc/{}/task", capture.id()));
        let threads = threads.expect("it runs").count();
        assert!(threads <= 17, "{threads} threads");
    }
    generate(&format!("{a}:{first}"), "3");
    generate(&format!("{a}:{last}"), "4");
    capture.wait_recorded(7);
    ip(&["-n", &a, "link", "del", "dev", &first]);
    capture.wait_said(&format!("the interface {b}:{first} was removed"));
    ip(&["-n", &a, "link", "add", "pnew", "type", "veth", "peer", "name", "pnew", "netns", &b]);
    ip(&["-n", &a, "link", "set", "dev", "pnew", "up"]);
    ip(&["-n", &b, "link", "set", "dev", "pnew", "up"]);
    capture.wait_said(&format!("capturing on {b}:pnew at "));
    generate(&format!("{a}:pnew"), "5");
    lab.send(&[frames::ipv4_udp(0)], 2);
    capture.wait_recorded(14);
    if uses_xdp {
        assert_eq!(programs_in(&b).0.len(), 1);
    }
    let summary = capture.stop_well();
    let recorded = |name: &str| -> u64 {
        let label = format!("{b}:{name}");
        let points = summary.interfaces.iter();
        let of_name = points.filter(|point| point.interface == label);
        of_name.map(|point| point.recorded).sum()
    };
    assert_eq!([&first, &last, "pnew", "veth0", "p1"].map(recorded), [3, 4, 5, 2, 0]);
    assert_eq!(summary.recorded, 14);
    let rows = tshark(&file, &["frame.interface_name"]);
    for (name, count) in [(first.as_str(), 3), (&last, 4), ("pnew", 5), ("veth0", 2)] {
        let label = format!("{b}:{name}");
        assert_eq!(rows.iter().filter(|row| row[0] == label).count(), count);
    }
    let about = run("capinfos", &[&file]);
    let count = format!("Number of interfaces in file: {}", pairs + 2);
    assert!(about.contains(&count), "{about}");
    assert_eq!(programs_in(&b).1, 0);
}

#[test]
fn two_hundred_interfaces_have_one_program() {
    many_interfaces(200, &["--tap", "xdp"]);
}

/// A group of sockets serves all interfaces, with a thread for each CPU.
#[test]
fn packet_sockets_serve_two_hundred_interfaces() {
    many_interfaces(200, &["--tap", "packet"]);
}

#[test]
#[ignore = "make test-long runs it"]
fn thousand_interfaces_have_one_program() {
    many_interfaces(1000, &["--tap", "xdp"]);
}

/// The rings have 2,048 accounts, so later interfaces reuse the accounts of interfaces that left.
#[test]
#[ignore = "make test-long runs it"]
fn more_interfaces_come_and_go_than_there_are_accounts() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (lab.pair.a.name.clone(), lab.pair.b.name.clone());
    let file = lab.file("churn.pcapng");
    let pattern = format!("{b}:p*");
    let usual = ["-i", &pattern, "-w", &file, "--tap", "xdp", "--at", "both"];
    add_pairs(&lab, 1000);
    let capture = Capture::start(&lab, &[&usual[..], &["udp"]].concat());
    let joined = |number: usize| capture.wait_said(&format!("capturing on {b}:p{number} at "));
    generate(&format!("{a}:p7"), "3");
    capture.wait_recorded(6);
    ip_batch(&a, 0..400, &|number| format!("link del dev p{number}"));
    capture.wait_said(&format!("the interface {b}:p399 was removed"));
    add_some(&lab, 1000..1300);
    joined(1299);
    for (number, count) in [(1000, "2"), (1150, "4"), (1299, "5"), (500, "1")] {
        generate(&format!("{a}:p{number}"), count);
    }
    capture.wait_recorded(30);
    let summary = capture.stop_well();
    let recorded = |number: usize| -> Vec<u64> {
        let label = format!("{b}:p{number}");
        let points = summary.interfaces.iter();
        let of_name = points.filter(|point| point.interface == label);
        of_name.map(|point| point.recorded).collect()
    };
    for (number, count) in [(7, 3), (1000, 2), (1150, 4), (1299, 5), (500, 1), (1298, 0)] {
        assert_eq!(recorded(number), [count, count], "p{number}");
    }
    assert_eq!((summary.interfaces.len(), summary.recorded), (2600, 30));
    let rows = tshark(&file, &["frame.interface_name"]);
    for (number, count) in [(7, 6), (1000, 4), (1150, 8), (1299, 10), (500, 2)] {
        let label = format!("{b}:p{number} (xdp ");
        let of_interface = rows.iter().filter(|row| row[0].starts_with(&label));
        assert_eq!(of_interface.count(), count);
    }
}

/// Filters on clsact record both directions, and are gone after the end and after a kill.
#[test]
fn two_hundred_interfaces_have_filters() {
    many_filters(200);
}

#[test]
#[ignore = "make test-long runs it"]
fn thousand_interfaces_have_filters() {
    many_filters(1000);
}

fn many_filters(pairs: usize) {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (lab.pair.a.name.clone(), lab.pair.b.name.clone());
    add_pairs(&lab, pairs);
    let file = lab.file("filters.pcapng");
    let pattern = format!("{b}:[pv]*");
    let arguments = ["-i", &pattern, "--tap", "tc", "-w", &file, "udp"];
    let (first, last) = ("p0".to_owned(), format!("p{}", pairs - 1));
    let capture = Capture::start(&lab, &arguments);
    let qdiscs = || run("tc", &["-n", &b, "qdisc", "show"]).matches("clsact").count();
    assert_eq!(qdiscs(), pairs + 1);
    generate(&format!("{a}:{first}"), "3");
    // These packets go through the stack, because the generator's engines bypass tc.
    ip(&["-n", &b, "addr", "add", "192.0.2.2/24", "dev", &last]);
    let neighbour = ["192.0.2.1", "lladdr", "02:00:00:00:00:01", "dev", &last];
    ip(&[&["-n", &b, "neigh", "add"][..], &neighbour].concat());
    for _ in 0..4 {
        let says = "echo > /dev/udp/192.0.2.1/9";
        run("ip", &["netns", "exec", &b, "bash", "-c", says]);
    }
    capture.wait_recorded(7);
    ip(&["-n", &a, "link", "del", "dev", &first]);
    capture.wait_said(&format!("the interface {b}:{first} was removed"));
    let summary = capture.stop_well();
    assert_eq!(summary.recorded, 7);
    assert_eq!(qdiscs(), 0);
    let killed = Capture::start(&lab, &arguments);
    assert_eq!(qdiscs(), pairs);
    killed.kill();
    trawl_tests::wait_until("the warden has deleted them", || qdiscs() == 0);
}

/// A capture does not keep a deleted namespace, and joins a new one.
#[test]
fn interfaces_leave_with_their_namespace() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (lab.pair.a.name.clone(), lab.pair.b.name.clone());
    let other = format!("{b}x");
    let add = || {
        ip(&["netns", "add", &other]);
        ip(&["-n", &a, "link", "add", "far", "type", "veth", "peer", "name", "eth7", "netns", &other]);
        ip(&["-n", &a, "link", "set", "dev", "far", "up"]);
        ip(&["-n", &other, "link", "set", "dev", "eth7", "up"]);
    };
    let file = lab.file("namespaces.pcapng");
    let pattern = format!("{b}*:[ev][et]*");
    add();
    let capture = Capture::start(&lab, &["-i", &pattern, "--tap", "xdp", "-w", &file, "udp"]);
    let joined = format!("capturing on {other}:eth7 at ");
    capture.wait_said(&joined);
    generate(&format!("{a}:far"), "6");
    capture.wait_recorded(6);
    ip(&["netns", "del", &other]);
    capture.wait_said(&format!("the interface {other}:eth7"));
    // The near end is removed with the namespace once no process holds it.
    trawl_tests::wait_until("the other end is gone", || !run("ip", &["-n", &a, "link", "show"]).contains("far@"));
    add();
    trawl_tests::wait_until("the interface joins again", || capture.said().matches(&joined).count() == 2);
    generate(&format!("{a}:far"), "4");
    capture.wait_recorded(10);
    ip(&["netns", "del", &other]);
    trawl_tests::wait_until("the other end is gone again", || !run("ip", &["-n", &a, "link", "show"]).contains("far@"));
    let summary = capture.stop_well();
    assert_eq!(summary.recorded, 10);
}
