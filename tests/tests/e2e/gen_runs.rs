//! Runs of `trawl gen`: engines, counts, ends, refusals.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use trawl_lab::PairOptions;
use trawl_sys::netns::{Namespace, run_in};
use trawl_tests::generator::{generate, received, refused, wait_received};
use trawl_tests::witness::{nothing_attached, run, xdp_on};
use trawl_tests::{Lab, args, binary, skip, trawl, wait_until};

const ENGINES: [&str; 3] = ["live", "xsk", "packet"];

#[test]
fn counts_match_the_receiving_side() {
    let Some(lab) = Lab::open() else { return };
    for engine in ENGINES {
        for extra in [&[][..], &["--threads", "2"], &["--rate", "20k"], &["--burst", "50", "--rate", "50k"]] {
            let before = received(&lab);
            let fixed = ["--engine", engine, "--count", "5000", "--flows", "7"];
            let summary = generate(&lab, "udp", &[&fixed[..], extra].concat());
            assert_eq!(summary["frames"], 5000, "{engine} {extra:?}");
            assert_eq!(summary["engine"], engine);
            assert_eq!(summary["bytes"], 5000 * 60);
            wait_received(&lab, before, 5000);
        }
    }
}

#[test]
fn rate_and_duration_make_an_exact_count() {
    let Some(lab) = Lab::open() else { return };
    for engine in ENGINES {
        let before = received(&lab);
        let arguments = ["--engine", engine, "--rate", "3kpps", "--duration", "1s"];
        let summary = generate(&lab, "udp", &arguments);
        assert_eq!(summary["frames"], 3000, "{engine}");
        assert!(summary["seconds"].as_f64().expect("a time") >= 1.0);
        assert!(summary["gap_error_ns"]["p99"].is_u64(), "{summary}");
        wait_received(&lab, before, 3000);
    }
}

/// A duration ends a run whose rate no engine reaches, and the summary reports the missed rate.
#[test]
fn a_rate_beyond_reach_does_not_prolong_a_run() {
    let Some(lab) = Lab::open() else { return };
    for engine in ENGINES {
        let before = received(&lab);
        let fixed = ["--engine", engine, "--rate", "500Mpps"];
        let summary = generate(&lab, "udp", &[&fixed[..], &["--duration", "300ms"]].concat());
        assert_eq!(summary["frames_asked"], 150_000_000, "{engine}: {summary}");
        let sent = summary["frames"].as_u64().expect("a count");
        assert!(sent > 0 && sent < 150_000_000, "{engine}: {summary}");
        wait_received(&lab, before, sent);
        let sender = lab.sender();
        let done = trawl(&[&["gen", "udp", "-i", &sender, "--duration", "100ms"], &fixed[..]].concat());
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success() && said.contains("rate not reached"), "{engine}: {said}");
    }
}

/// `ip netns exec lab trawl gen …` sends at full speed, as `-i lab:IF` does.
#[test]
fn rate_is_unlimited_inside_a_lab() {
    let Some(lab) = Lab::open() else { return };
    if Namespace::first().is_none() {
        return skip("neither process 1 nor the kernel's threads may be asked for their namespace");
    }
    let station = &lab.pair.a;
    let arguments = ["gen", "udp", "-i", &station.interface, "--count", "2000"];
    let output = run_in(&station.namespace, || trawl(&arguments)).expect("enter the namespace");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("1000 frames a second"), "{said}");
}

#[test]
fn auto_prepares_a_veth_for_xdp_frames_and_restores_it() {
    let options = PairOptions { gro: false, ..PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    let before = received(&lab);
    let sender = lab.sender();
    let output = trawl(&["gen", "udp", "-i", &sender, "--count", "1000", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("passes every packet"), "{said}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!((&summary["engine"], &summary["frames"]), (&"live".into(), &1000.into()));
    wait_received(&lab, before, 1000);
    nothing_attached(&lab.pair.b);
}

/// A bridge sends no XDP frames, and the kernel does not report that, so the frames must be sent by another engine.
#[test]
fn frames_out_of_a_bridge_arrive_by_an_engine_that_it_has() {
    let Some(lab) = Lab::open() else { return };
    let (name, port) = (&lab.pair.a.name, &lab.pair.a.interface);
    for arguments in
        [args!("link add bridge0 type bridge"), args!("link set {port} master bridge0"), args!("link set bridge0 up")]
    {
        run("ip", &[&args!("-n {name}")[..], &arguments].concat());
    }
    let bridge = args!("-i {name}:bridge0 --src 10.1.0.1 --dst 10.1.0.2 --dst-mac 02:00:00:00:00:09 --count 1000");
    for engine in ["auto", "xsk", "packet"] {
        let before = received(&lab);
        let fixed = ["gen", "udp", "--json", "--engine", engine];
        let output = trawl(&[&fixed[..], &bridge].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{engine}: {said}");
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
        assert_eq!(summary["frames"], 1000, "{engine}");
        assert!(summary["unverified"].is_null(), "{engine}: {summary}");
        // Neighbour discovery of the bridge may add packets.
        wait_until("the frames are received", || received(&lab) - before >= 1000);
        if engine == "auto" {
            assert_ne!(summary["engine"], "live");
            assert!(said.contains("not the live engine"), "{said}");
        }
    }
    let (code, said) = refused(&[&["udp", "--engine", "live"], &bridge[..]].concat());
    assert_eq!(code, 1);
    assert!(said.contains("its driver (bridge) sends none"), "{said}");
}

#[test]
fn auto_gives_the_reason_against_the_live_engine() {
    let Some(lab) = Lab::open() else { return };
    let sender = lab.sender();
    let payload = format!("text:{}|text:{}", "a".repeat(900), "b".repeat(900));
    let output = trawl(&args!("gen udp -i {sender} --count 10 --payload {payload}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("not the live engine"), "{said}");
}

#[test]
fn impossible_frames_are_refused_with_a_reason() {
    let Some(lab) = Lab::open() else { return };
    let sender = lab.sender();
    let usage = |arguments: &[&str], words: &str| {
        let (code, said) = refused(&[&arguments[..1], &["-i", &sender], &arguments[1..]].concat());
        assert_eq!(code, 2, "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    usage(&["udp", "--size", "41"], "42");
    usage(&["udp", "-6", "--size", "61"], "62");
    usage(&["tcp", "--size", "20"], "54");
    usage(&["udp", "--size", "1515"], "MTU");
    usage(&["udp", "--size", "60-2000"], "MTU");
    usage(&["udp", "--rate", "0"], "above zero");
    usage(&["udp", "--rate", "-5"], "above zero");
    usage(&["udp", "--bandwidth", "0Mbit"], "above zero");
    usage(&["udp", "--count", "0"], "0");
    usage(&["udp", "--duration", "0s"], "above zero");
    usage(&["udp", "--src-port", "70000"], "65535");
    usage(&["udp", "--dst", "fd00:77::2", "--src", "10.0.0.1"], "families");
    usage(&["udp", "--every", "0:ttl=1"], "every");
    usage(&["udp", "--flows", "5", "--src-port", "1-3"], "3 different");
    usage(&["raw", "00ff"], "14");
    usage(&["raw", "zz"], "hexadecimal");
    usage(&["eth", "--vlan", "4096"], "4095");
    let (code, said) = refused(&["udp", "-i", "no-such-if", "--dst", "10.0.0.1"]);
    assert_eq!(code, 1);
    assert!(said.contains("does not exist"), "{said}");
}

#[test]
fn template_is_sent_and_its_mistakes_are_located() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("mix.toml");
    let good = "[[frame]]\nkind = \"udp\"\nweight = 3\nsize = [64, 128]\n[[frame]]\nkind = \"icmp\"\n\
                [[phase]]\nduration = \"300ms\"\nrate = 1000\nto = 3000\n[[phase]]\npause = \"100ms\"\n";
    std::fs::write(&file, good).expect("a template");
    let before = received(&lab);
    let sender = lab.sender();
    let output = trawl(&["gen", "template", &file, "-i", &sender, "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    // A busy machine does not keep the rate. The generator leaves out frames that are too late, and reports the number
    // of frames that it sent.
    let frames = summary["frames"].as_u64().expect("a number");
    assert!((1..=600).contains(&frames), "{said}");
    wait_received(&lab, before, frames);
    std::fs::write(&file, good.replace("weight", "wieght")).expect("a template");
    let (code, said) = refused(&["template", &file, "-i", &sender]);
    assert_eq!(code, 2);
    assert!(said.contains("mix.toml:3:1") && said.contains("wieght"), "{said}");
}

#[test]
fn interface_with_a_default_route_is_flooded_only_with_consent() {
    let Some(lab) = Lab::open() else { return };
    let (name, sender) = (&lab.pair.a.name, lab.sender());
    run("ip", &["-n", name, "route", "add", "default", "via", "10.77.0.2"]);
    let (code, said) = refused(&["udp", "-i", &sender, "--count", "5"]);
    assert_eq!(code, 1);
    assert!(said.contains("default route") && said.contains("--yes"), "{said}");
    generate(&lab, "udp", &["--count", "5", "--yes"]);
}

/// Consent is required for default routes by next hops and by halves of all addresses, bridge ports and macvlan
/// parents.
#[test]
fn interfaces_below_a_default_route_are_not_flooded() {
    let Some(lab) = Lab::open() else { return };
    let (name, sender) = (&lab.pair.a.name, lab.sender());
    let interface = lab.pair.a.interface.as_str();
    let ip = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        run("ip", &[&["-n", name.as_str()][..], &words].concat());
    };
    let is_refused = || {
        let (code, said) = refused(&["udp", "-i", &sender, "--count", "5"]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("default route"), "{said}");
    };
    ip("link add spare type veth peer name other");
    ip("link set other up");
    ip("link set spare up");
    ip("address add 10.78.0.1/24 dev spare");
    let hops = format!("nexthop via 10.78.0.2 nexthop via 10.77.0.2 dev {interface}");
    ip(&format!("route add default {hops}"));
    is_refused();
    ip("route del default");
    ip("route add 128.0.0.0/1 via 10.77.0.2");
    is_refused();
    ip("route del 128.0.0.0/1");
    for network in ["64.0.0.0/2", "2000::/3", "8000::/1"] {
        ip(&format!("route add {network} dev {interface}"));
        is_refused();
        ip(&format!("route del {network} dev {interface}"));
    }
    ip(&format!("link add over link {interface} type macvlan"));
    ip("link set over up");
    ip("route add default dev over");
    is_refused();
    ip("link del over");
    generate(&lab, "udp", &["--count", "5"]);
    ip("link add bridge0 type bridge");
    ip("link set bridge0 up");
    ip(&format!("link set {interface} master bridge0"));
    ip("route add default dev bridge0");
    is_refused();
}

/// Starts an endless generator; returns once it has sent.
fn endless(lab: &Lab, engine: &str) -> Child {
    let before = received(lab);
    let child = Command::new(binary::path())
        .args(args!("gen udp -i {} --engine {engine} --rate 2k", lab.sender()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("trawl runs");
    wait_until("frames arrive", || received(lab) > before + 100);
    child
}

/// A killed run can restore nothing, so its programs are attached only as long as the process lives.
#[test]
fn killed_run_leaves_no_program() {
    let options = PairOptions { gro: false, ..PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    let mut child = endless(&lab, "auto");
    assert!(xdp_on(&lab.pair.b).is_some(), "the other end has a program during the run");
    child.kill().expect("it runs");
    child.wait().expect("a child of ours");
    wait_until("the program is gone", || xdp_on(&lab.pair.b).is_none());
}

fn said_by(mut child: Child) -> (Option<i32>, String) {
    wait_until("the generator ends", || child.try_wait().expect("a child of ours").is_some());
    let mut said = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    (child.wait().expect("a child of ours").code(), said)
}

#[test]
fn vanished_interface_ends_the_run_with_an_error() {
    for engine in ENGINES {
        let Some(lab) = Lab::open() else { return };
        let child = endless(&lab, engine);
        run("ip", &["-n", &lab.pair.a.name, "link", "del", &lab.pair.a.interface]);
        let (code, said) = said_by(child);
        assert_eq!(code, Some(1), "{engine}: {said}");
        assert!(said.contains("frames") && said.contains("gone"), "{engine}: {said}");
    }
}

#[test]
fn interrupt_ends_a_run_with_its_summary() {
    for engine in ENGINES {
        let Some(lab) = Lab::open() else { return };
        let child = endless(&lab, engine);
        let id = Pid::from_child(&child);
        kill_process(id, Signal::INT).expect("trawl runs");
        let (code, said) = said_by(child);
        assert_eq!(code, Some(0), "{engine}: {said}");
        assert!(said.contains("frames") && said.contains("stopped"), "{engine}: {said}");
    }
}

#[test]
fn real_connections_are_made_and_counted() {
    let Some(lab) = Lab::open() else { return };
    let listener = run_in(&lab.pair.b.namespace, || TcpListener::bind("10.77.0.2:0"));
    let listener = listener.expect("the namespace").expect("a listener");
    let to = listener.local_addr().expect("an address").to_string();
    let server = std::thread::spawn(move || {
        let each = (0..30).map(|_| {
            let (mut stream, _) = listener.accept().expect("a connection");
            std::io::copy(&mut stream, &mut std::io::sink()).expect("data")
        });
        each.sum::<u64>()
    });
    let arguments = args!(
        "gen tcp-conn {to} --netns {} --connections 5 --count 30 --bytes 4000 \
         --json",
        lab.pair.a.name
    );
    let output = trawl(&arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!((&summary["connected"], &summary["failed"]), (&30.into(), &0.into()), "{summary}");
    assert_eq!(server.join().expect("a server"), 120_000);
}

#[test]
fn default_pacing_is_ten_frames_a_second_for_ten_seconds() {
    let Some(lab) = Lab::open() else { return };
    let before = received(&lab);
    let output = trawl(&["gen", "udp", "-i", &lab.sender(), "--json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!(summary["frames"], 100, "{summary}");
    assert!(said.contains("--flood"), "{said}");
    wait_received(&lab, before, 100);
}

#[test]
fn flood_is_full_speed_and_ends_at_its_limit() {
    let Some(lab) = Lab::open() else { return };
    let before = received(&lab);
    let summary = generate(&lab, "udp", &["--flood", "--count", "20000"]);
    assert_eq!(summary["frames"], 20_000, "{summary}");
    wait_received(&lab, before, 20_000);
    let sender = lab.sender();
    let (code, said) = refused(&["udp", "-i", &sender, "--flood", "--rate", "5"]);
    assert_eq!(code, 2, "{said}");
}
