//! State before the first interface and after the last.

use std::process::Child;

use trawl_bpf::probe::kernel_is_at_least;
use trawl_lab::Station;
use trawl_tests::witness::tshark;
use trawl_tests::xdp::{fails, status_of, succeeds};
use trawl_tests::{Capture, args, root_or_skip, skip};

use super::*;

#[test]
fn rules_precede_the_first_interface_and_end_with_the_last() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    assert!(!guarded.directory().exists());
    assert_eq!(guarded.list()["rules"].as_array().map(Vec::len), Some(0));
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.well(&["remove", "1"]);
    assert!(!guarded.directory().exists(), "without rules and interfaces there is nothing to keep");
    // A file's default applies to existing interfaces; the output explains how to apply it to the next one.
    let applied = guarded.apply("default = \"deny\"\n");
    let said = String::from_utf8_lossy(&applied.stderr).into_owned();
    assert!(said.contains("guard load IF --default deny"), "{said}");
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.well(&["deny", "--icmp", "echo-request", "--on", "lo"]);
    guarded.well(&["load", "veth0"]);
    guarded.well(&["load", "lo"]);
    guarded.send(&[udp_from(STRANGER, 9), ping_from(A4)], 200);
    assert_eq!((guarded.hits(1), guarded.hits(2)), (100, 0));
    let (program, _) = xdp_on(&lab.pair.b).expect("it is guarded");
    assert!(guarded.directory().exists());
    let about = run("bpftool", &["-j", "prog", "show", "id", &program.to_string()]);
    let about: Value = serde_json::from_str(&about).expect("JSON");
    let maps = about["map_ids"].as_array().cloned().unwrap_or_default();
    guarded.well(&["unload", "lo"]);
    assert_eq!(guarded.hits(1), 100);
    guarded.well(&["unload", "veth0"]);
    assert_eq!(xdp_on(&lab.pair.b), None);
    assert!(!guarded.directory().exists());
    wait_until("the program is unloaded", || !is_loaded(program));
    guarded.refused(1, &["unload", "veth0"]);
    for map in maps {
        wait_until("its maps are gone", || {
            !output("bpftool", &["map", "show", "id", &map.to_string()]).status.success()
        });
    }
}

#[test]
fn kernel_without_loops_is_named_by_the_guard_and_by_doctor() {
    if kernel_is_at_least(5, 17) {
        skip("this kernel has bpf_loop");
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let load = args!("guard load {}", lab.receiver());
    fails(&load, 1, &["cannot load the guard", "older than Linux 5.17"]);
    assert_eq!(xdp_on(&lab.pair.b), None);
    let doctor = trawl(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("unavailable: the guard"), "{said}");
}

#[test]
fn default_goes_with_its_interface() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    run("ip", &["-n", &lab.pair.b.name, "link", "del", "veth0"]);
    guarded.well(&["remove", "--all"]);
    assert!(!guarded.directory().exists());
}

/// A vanished namespace has no process left that could remove the guard.
#[test]
fn guard_goes_with_its_namespace() {
    let Some(lab) = Lab::open() else { return };
    let here = lab.pair.b.name.as_str();
    for command in [
        &["guard", "preset", "ping-flood", "--netns", here][..],
        &["guard", "deny", "--icmp", "echo-request", "--netns", here],
    ] {
        let other = format!("{here}-other");
        run("ip", &["netns", "add", &other]);
        let lo = format!("{other}:lo");
        let namespace = netns::Namespace::by_name(&other).expect("it was made");
        let mark = netns::Mark::of(Some(&namespace)).expect("a mark");
        drop(namespace);
        let rules = PathBuf::from(format!("/sys/fs/bpf/trawl/guard-{mark}"));
        for load in [&["guard", "deny", "--src", "192.0.2.1", "--netns", &other][..], &["guard", "load", &lo]] {
            assert!(trawl(load).status.success(), "{load:?}");
        }
        assert!(rules.exists());
        // The command leaves the rules of an existing namespace unchanged.
        assert!(trawl(command).status.success(), "{command:?}");
        assert!(rules.exists(), "{command:?}");
        run("ip", &["netns", "del", &other]);
        // The kernel removes the namespace asynchronously, so the command is repeated.
        wait_until(&format!("nothing is left after {command:?}"), || {
            assert!(trawl(command).status.success(), "{command:?}");
            !rules.exists()
        });
    }
}

/// A process, and a namespace that only this process keeps.
struct Alone(Child);

impl Alone {
    fn start() -> Self {
        let child = Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().expect("unshare");
        let alone = Self(child);
        let here = netns::Namespace::current().expect("a namespace");
        wait_until("the process has left the namespace", || alone.namespace() != here);
        alone
    }

    fn namespace(&self) -> netns::Namespace {
        netns::Namespace::of_pid(self.0.id()).expect("it runs")
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that runs out of descriptors removes no rules, because they may belong to namespaces that it could not
/// open.
#[test]
fn lack_of_descriptors_is_not_taken_for_a_gone_namespace() {
    if !root_or_skip() {
        return;
    }
    let many: Vec<Alone> = (0..24).map(|_| Alone::start()).collect();
    let last = many.last().expect("some");
    let mark = netns::Mark::of(Some(&last.namespace())).expect("a mark");
    let rules = PathBuf::from(format!("/sys/fs/bpf/trawl/guard-{mark}"));
    let id = last.0.id().to_string();
    succeeds(&["guard", "deny", "--src", "192.0.2.1", "--netns", &id]);
    let script = "ulimit -n 24; exec \"$0\" guard remove --all";
    let mut few = Command::new("bash");
    few.args(["-c", script]).arg(binary::path());
    few.output().expect("bash");
    assert!(rules.exists(), "the namespace of the rules exists");
    drop(many);
    wait_until("the rules are gone with their namespace", || {
        trawl(&["guard", "remove", "--all"]);
        !rules.exists()
    });
}

#[test]
fn guard_that_cannot_be_reloaded_stays_unchanged() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    guarded.well(&["load", "lo", "--default", "deny"]);
    let before = guarded.list();
    let lo = Station { interface: "lo".to_owned(), index: 1, ..lab.pair.b.clone() };
    let (program, _) = xdp_on(&lo).expect("it is guarded");
    for more in [&[][..], &["--tappable"]] {
        let change = ["load", "lo", "--mode", "native", "--default", "allow"];
        let said = guarded.refused(1, &[&change[..], more].concat());
        assert!(said.contains("native"), "{said}");
        assert_eq!(xdp_on(&lo).map(|(id, _)| id), Some(program));
        assert_eq!(guarded.list(), before);
    }
    guarded.well(&["load", "lo", "--tappable"]);
    assert_ne!(xdp_on(&lo).map(|(id, _)| id), Some(program));
    assert_eq!(guarded.list(), before);
    guarded.well(&["unload", "lo"]);
    assert!(!guarded.directory().exists());
}

#[test]
fn interfaces_have_defaults_and_rules_of_their_own() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    let (a, b) = (&lab.pair.a.name, &lab.pair.b.name);
    let pair = ["link", "add", "other", "type", "veth", "peer", "name", "other"];
    run("ip", &[&["-n", a][..], &pair, &["netns", b]].concat());
    for name in [a, b] {
        run("ip", &["-n", name, "link", "set", "other", "up"]);
    }
    guarded.well(&["load", "other"]);
    guarded.well(&["deny", "--src", &STRANGER.to_string(), "--on", "other"]);
    guarded.well(&args!("allow --src {STRANGER} --proto udp --on veth0"));
    lab.send(&[udp_from(STRANGER, 9), udp_from(A4, 9)], 200);
    let other = || {
        let all: Value = serde_json::from_str(&guarded.well(&["stats", "other", "--json"])).expect("JSON");
        all["interfaces"][0].clone()
    };
    let figures = guarded.figures(&["rule_allowed", "default_denied", "rule_denied"]);
    assert_eq!(figures, [100, 100, 0]);
    let from = Station { interface: "other".to_owned(), ..lab.pair.a.clone() };
    let frames = [udp_from(STRANGER, 9), udp_from(A4, 9)];
    send_from(&from, &frames, 200, Engine::Live, None, None);
    wait_until("all packets are counted", || {
        other()["rule_denied"] == 100 && other()["default_allowed"].as_u64() >= Some(100)
    });
    assert_eq!((guarded.hits(1), guarded.hits(2)), (100, 100));
    // Rules apply to the interface even if it is renamed. Older kernels rename only interfaces that are down.
    run("ip", &["-n", b, "link", "set", "other", "down"]);
    run("ip", &["-n", b, "link", "set", "other", "name", "another"]);
    assert_eq!(guarded.rule(1).expect("it stays")["on"], "another");
    assert_eq!(guarded.list()["defaults"][1]["interface"], "another");
    let replaced = guarded.well(&["deny", "--src", &STRANGER.to_string(), "--on", "another"]);
    assert!(replaced.starts_with("rule 1:"), "{replaced}");
    guarded.well(&["unload", "another", "veth0"]);
    assert!(!guarded.directory().exists());
}

#[test]
fn captures_see_packets_at_a_tappable_guard() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.well(&["load", "veth0", "--tappable"]);
    let file = lab.file("file.pcapng");
    let place = lab.receiver();
    let capture =
        Capture::start(&lab, &["-i", &place, "--tap", "tailcall", "-Q", "in", "--at", "both", "-c", "8", "-w", &file]);
    guarded.send(&[udp_from(STRANGER, 9), udp_from(A4, 9)], 4);
    capture.wait().summary_of_success().assert_all_recorded(8);
    let verdicts = tshark(&file, &["frame.verdict.ebpf_xdp"]).concat();
    assert_eq!(verdicts, ["", "1", "", "2", "", "1", "", "2"]);
    assert_eq!(guarded.figures(&["rule_denied", "default_allowed"]), [2, 2]);
    assert_eq!(guarded.hits(1), 2);
}

#[test]
fn totals_continue_when_the_guard_is_reloaded() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.send(&[udp_from(STRANGER, 9), udp_from(A4, 9)], 10);
    let (program, _) = xdp_on(&lab.pair.b).expect("it is guarded");
    for options in [&["--tappable"][..], &["--replace"], &["--mode", "skb"]] {
        guarded.well(&[&["load", "veth0"], options].concat());
        let (another, _) = xdp_on(&lab.pair.b).expect("it is guarded");
        assert_ne!(another, program, "{options:?}");
        assert_eq!(guarded.figures(&["rule_denied", "default_allowed"]), [5, 5]);
    }
    guarded.send(&[udp_from(STRANGER, 9)], 3);
    assert_eq!(guarded.figures(&["rule_denied", "default_allowed"]), [8, 5]);
    assert_eq!(guarded.hits(1), 8);
}

/// An earlier default never returns, however the program was removed.
#[test]
fn guard_removed_by_others_leaves_no_default() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    detach_without_trawl(&lab);
    assert_eq!(guarded.list()["defaults"], Value::Array(Vec::new()));
    let said = guarded.well(&["load", "veth0", "--default", "deny"]);
    assert!(said.contains("1 rule, default deny"), "{said}");
    assert_eq!(guarded.list()["defaults"][0]["action"], "deny");
    guarded.send(&[udp_from(A4, 9)], 100);
    assert_eq!(guarded.figures(&["default_denied"]), [100]);
    guarded.well(&["unload", "veth0"]);
    assert!(!guarded.directory().exists());
}

/// Removes the program on the interface, the guard or its dispatcher, without trawl.
fn detach_without_trawl(lab: &Lab) {
    let status = status_of(&lab.receiver());
    match status["programs"][0]["link"].as_u64() {
        Some(link) => run("bpftool", &["link", "detach", "id", &link.to_string()]),
        None => run("ip", &["-n", &lab.pair.b.name, "link", "set", "veth0", "xdp", "off"]),
    };
    assert_eq!(xdp_on(&lab.pair.b), None);
}

#[test]
fn guard_is_removed_like_any_program() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    let place = lab.receiver();
    for way in [
        &["xdp", "unload", &place, "--yes"][..],
        &["xdp", "unload", &place, "--all", "--yes"],
        &["xdp", "load", &place, "pass", "--replace", "--yes"],
        &args!("xdp load {place} pass --replace --yes --prio 7"),
    ] {
        guarded.well(&["load", "veth0", "lo"]);
        guarded.well(&["deny", "--src", &STRANGER.to_string()]);
        succeeds(way);
        assert!(guarded.rule(1).is_some(), "{way:?}: the other interface is guarded");
        guarded.well(&["load", "veth0", "--replace"]);
        guarded.well(&["unload", "lo"]);
        assert!(guarded.rule(1).is_some(), "{way:?}");
        succeeds(way);
        assert!(!guarded.directory().exists(), "{way:?}");
        let _ = trawl(&["xdp", "unload", &place]);
    }
}

/// The guard's program on a moved interface uses the rules of the namespace in which it was loaded.
#[test]
fn moved_interface_is_guarded_by_the_rules_of_its_namespace() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let (from, to) = (&lab.pair.b, &lab.pair.a);
    let words = ["-n", &from.name, "link", "set", &from.interface];
    run("ip", &[&words[..], &["netns", &to.name, "name", "moved"]].concat());
    run("ip", &["-n", &to.name, "link", "set", "moved", "up"]);
    let there = |arguments: &[&str]| {
        let output = trawl(&[&["guard"], arguments, &["--netns", &to.name]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    there(&["load", "moved", "--default", "deny"]);
    lab.send(&[udp_from(STRANGER, 9)], 100);
    wait_until("all are denied", || {
        let stats: Value = serde_json::from_str(&there(&["stats", "--json"])).expect("JSON");
        stats["interfaces"][0]["default_denied"] == 100
    });
    there(&["unload", "moved"]);
    assert_eq!(guarded.list()["defaults"].as_array().map(Vec::len), Some(0));
}
