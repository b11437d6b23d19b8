//! Verdicts of users' own XDP programs as metrics, counted in the kernel.

use trawl_bpf::probe::KernelFeature;
use trawl_lab::Station;
use trawl_lab::sender::Engine;
use trawl_tests::lab::{place, send_from};
use trawl_tests::programs::{Attached, object_file};
use trawl_tests::xdp::{CleanUp, programs_on, succeeds, xdp_loader};
use trawl_tests::{Lab, frames, tools_or_skip, tracing_or_skip, wait_until};

use super::{lint, metrics, serve, value};

const VERDICTS: &str = "trawl_xdp_verdicts_total";
const NOT_COUNTED: &str = "trawl_xdp_programs_not_counted";
const FIRST: &str = "traced_passes_to_the_next";
const SECOND: &str = "traced_drops_the_packet_one";

/// Returns the number of a program's packets with a verdict.
fn packets(address: &str, at: &Station, program: &str, id: u64, verdict: &str) -> u64 {
    let labels = [
        format!("interface=\"{}\"", at.interface),
        format!("netns=\"{}\"", at.name),
        format!("program=\"{program}\""),
        format!("id=\"{id}\""),
        format!("verdict=\"{verdict}\""),
    ];
    let labels = labels.each_ref().map(String::as_str);
    value(&metrics(address), VERDICTS, &labels)
}

fn send(from: &Station, frame: Vec<u8>, count: u64) {
    send_from(from, &[frame], count, Engine::Packet, None, None);
}

/// Each interface has its own counts, each program its ID, and a new program is counted as soon as it is found.
#[test]
fn own_programs_are_counted_by_interface() {
    if !tracing_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let mut at_b = Attached::native("chosen", "chosen", b);
    let at_a = Attached::skb("chosen", "chosen", a);
    let (running, address) = serve(&["-i", &place(a), "-i", &place(b)]);
    running.wait_said("capturing on");
    for (from, action, count) in [(a, 1, 70), (a, 2, 30), (a, 0, 5), (b, 1, 11), (b, 2, 40)] {
        send(from, frames::choosing(action), count);
    }
    let (twin, first) = (u64::from(at_a.id()), u64::from(at_b.id()));
    for (at, id, verdict, count) in [
        (b, first, "DROP", 70),
        (b, first, "PASS", 30),
        (b, first, "ABORTED", 5),
        (a, twin, "DROP", 11),
        (a, twin, "PASS", 40),
    ] {
        wait_until(verdict, || packets(&address, at, "chosen", id, verdict) == count);
    }
    at_b.replace("traced", SECOND);
    let second = u64::from(at_b.id());
    wait_until("the new program is counted", || {
        send(a, frames::silent(64), 1);
        packets(&address, b, SECOND, second, "DROP") > 0
    });
    assert_eq!(packets(&address, b, "chosen", first, "DROP"), 70);
    let text = metrics(&address);
    let all = value(&text, VERDICTS, &["program=\"chosen\""]);
    assert_eq!(all, 70 + 30 + 5 + 11 + 40, "{text}");
    assert_eq!(value(&text, NOT_COUNTED, &[]), 0, "{text}");
    lint(&text);
    running.stop();
}

/// Behind libxdp's dispatcher, each program has its own verdict, and the dispatcher the packet's last one.
#[test]
fn programs_behind_a_dispatcher_are_counted() {
    if !tracing_or_skip() || !tools_or_skip(&["xdp-loader", "nsenter"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let (object, b) = (object_file(&lab, "traced"), &lab.pair.b);
    for (name, priority) in [(FIRST, "10"), (SECOND, "20")] {
        let load = ["load", &b.interface, &object, "-n", name, "-P", priority];
        xdp_loader(&b.name, &load);
    }
    let (running, address) = serve(&["--verdicts", "--netns", &b.name]);
    send(&lab.pair.a, frames::silent(64), 100);
    for (program, verdict) in [(FIRST, "PASS"), (SECOND, "DROP"), ("xdp_dispatcher", "DROP")] {
        let labels = [format!("program=\"{program}\""), format!("verdict=\"{verdict}\"")];
        let labels = labels.each_ref().map(String::as_str);
        wait_until(program, || value(&metrics(&address), VERDICTS, &labels) == 100);
    }
    let text = metrics(&address);
    assert_eq!(value(&text, VERDICTS, &[]), 300, "{text}");
    running.stop();
    xdp_loader(&b.name, &["unload", &b.interface, "--all"]);
}

/// Tracing does not see programs that other programs jump to, so metrics and messages name them.
#[test]
fn programs_that_cannot_be_counted_are_named() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (at, members) = (lab.receiver(), object_file(&lab, "members"));
    for (name, priority) in [("passes", "10"), ("drops", "20")] {
        let load = ["xdp", "load", &at, &members, "--prog", name];
        let more = ["--tappable", "--prio", priority];
        succeeds(&[&load[..], &more].concat());
    }
    let id = |at_chain: usize| programs_on(&at)[at_chain]["id"].as_u64().expect("an ID");
    let (running, address) = serve(&["--verdicts", "--netns", &lab.pair.b.name]);
    send(&lab.pair.a, frames::silent(64), 100);
    let first = ["program=\"passes\"", "interface=\"veth0\""];
    let second = format!("id=\"{}\"", id(1));
    let second = ["program=\"drops\"", &second];
    wait_until("the metric names it", || value(&metrics(&address), NOT_COUNTED, &second) == 1);
    if KernelFeature::Fexit.probe().is_supported() {
        wait_until("the verdicts of the chain", || packets(&address, &lab.pair.b, "passes", id(0), "DROP") == 100);
        assert_eq!(value(&metrics(&address), NOT_COUNTED, &first), 0);
        let message = format!("the verdicts of drops (id {})", id(1));
        assert!(running.said().contains(&message), "{}", running.said());
    } else {
        assert_eq!(value(&metrics(&address), NOT_COUNTED, &first), 1);
        assert!(running.said().contains("are not counted: not permitted"), "{}", running.said());
    }
    lint(&metrics(&address));
    running.stop();
}
