//! Settings of other interfaces on which trawl's programs depend. Status and stats report if the interfaces have
//! changed, and an unload restores the settings in whichever namespace the interface is at that time.

use std::os::unix::fs::MetadataExt;

use trawl_lab::Station;
use trawl_tests::programs::object_file;
use trawl_tests::witness::{nothing_attached, output, run, xdp_on};
use trawl_tests::xdp::{CleanUp, all_gone, fails, programs_on, status_of, succeeds};
use trawl_tests::{Lab, args, trawl, wait_until};

/// An additional namespace, removed with its contents when dropped.
struct Elsewhere(String);

impl Elsewhere {
    fn new(lab: &Lab) -> Self {
        Self::called(format!("{}-far", lab.pair.a.name))
    }

    fn called(name: String) -> Self {
        run("ip", &["netns", "add", &name]);
        Self(name)
    }

    fn number(&self) -> u64 {
        let path = format!("/run/netns/{}", self.0);
        std::fs::metadata(path).expect("it is there").ino()
    }

    /// Moves the other end of an interface in one of the lab's namespaces into this namespace.
    fn joined_to(&self, near: &Station) {
        let (name, there) = (near.name.as_str(), self.0.as_str());
        let numbered = ["index", "77"];
        let link = ["-n", name, "link", "add", "near"];
        let end = ["type", "veth", "peer", "name", "far"];
        let words = [&link[..], &numbered, &end, &numbered, &["netns", there]];
        run("ip", &words.concat());
        run("ip", &["-n", name, "link", "set", "near", "up"]);
        run("ip", &["-n", there, "link", "set", "far", "up"]);
    }

    fn switch(&self, feature: &str, to: &str) {
        let ethtool = ["netns", "exec", &self.0, "ethtool", "-K", "far"];
        run("ip", &[&ethtool[..], &[feature, to]].concat());
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        output("ip", &["netns", "del", &self.0]);
    }
}

/// Returns true if ethtool shows that a feature is on.
fn is_on(namespace: &str, interface: &str, feature: &str) -> bool {
    let shown = run("ip", &["netns", "exec", namespace, "ethtool", "-k", interface]);
    let line = shown.lines().find(|line| line.trim().starts_with(feature));
    line.unwrap_or_else(|| panic!("{feature} in: {shown}")).contains(": on")
}

#[test]
fn settings_of_a_program_and_their_loss_are_reported() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (near, far) = (lab.receiver(), lab.sender());
    succeeds(&["xdp", "load", &near, "tx"]);
    let id = programs_on(&near)[0]["id"].to_string();
    let shown = status_of(&far)["programs"][0].clone();
    assert_eq!(shown["kind"], "trawl");
    assert_eq!(shown["helps"], format!("trawl_tx (id {id}) on {near}"));
    let text = succeeds(&["xdp", "status", "-i", &far]);
    assert!(text.contains("put there by trawl for trawl_tx"), "{text}");
    fails(&["xdp", "unload", &far], 1, &["trawl_tx", &format!("trawl xdp unload {near} {id}")]);

    run("bpftool", &["link", "detach", "id", &shown["link"].to_string()]);
    assert_eq!(xdp_on(&lab.pair.a), None);
    let text = succeeds(&["xdp", "status", "-i", &near]);
    assert!(text.contains("is gone") && text.contains("--replace"), "{text}");
    let lost = programs_on(&near)[0]["lost"].clone();
    assert_eq!(lost.as_array().map(Vec::len), Some(1), "{lost}");
    let stats = trawl(&["xdp", "stats", &near]);
    let said = String::from_utf8_lossy(&stats.stderr);
    assert!(stats.status.success() && said.contains("is gone"), "{said}");
    // A feature that was changed back is reported.
    let name = lab.pair.a.interface.as_str();
    run("ip", &args!("netns exec {} ethtool -K {name} tx-checksum-ip-generic on", lab.pair.a.name));
    let text = succeeds(&["xdp", "status", "-i", &near]);
    assert!(text.contains("tx-checksum-ip-generic is on again on"), "{text}");

    succeeds(&["xdp", "load", &near, "tx", "--replace"]);
    assert!(xdp_on(&lab.pair.a).is_some());
    assert!(programs_on(&near)[0]["lost"].is_null());
    succeeds(&["xdp", "unload", &near]);
    nothing_attached(&lab.pair.a);
    all_gone(&lab, &[], &[]);
}

#[test]
fn changed_setting_is_found_in_another_namespace() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let elsewhere = Elsewhere::new(&lab);
    let (near, far) = (lab.receiver(), &lab.pair.a);
    assert!(is_on(&far.name, &far.interface, "tx-checksum-ip-generic"));
    succeeds(&["xdp", "load", &near, "tx"]);
    assert!(!is_on(&far.name, &far.interface, "tx-checksum-ip-generic"));
    run("ip", &args!("-n {} link set {} netns {}", far.name, far.interface, elsewhere.0));
    let shown = status_of(&format!("{}:{}", elsewhere.0, far.interface));
    assert_eq!(shown["programs"][0]["name"], "trawl_pass");
    succeeds(&["xdp", "unload", &near]);
    assert!(is_on(&elsewhere.0, &far.interface, "tx-checksum-ip-generic"));
    let text = succeeds(&["xdp", "status", "--netns", &elsewhere.0]);
    assert_eq!(text, "no XDP programs\n");
    all_gone(&lab, &[], &[]);
}

#[test]
fn program_moves_with_its_interface() {
    let Some(lab) = Lab::open() else { return };
    let elsewhere = Elsewhere::new(&lab);
    let (near, station) = (lab.receiver(), &lab.pair.b);
    succeeds(&["xdp", "load", &near, "drop"]);
    let id = programs_on(&near)[0]["id"].as_u64().expect("a number");
    run("ip", &args!("-n {} link set {} netns {}", station.name, station.interface, elsewhere.0));
    let moved = format!("{}:{}", elsewhere.0, station.interface);
    let _clean = CleanUp(moved.clone());
    let program = programs_on(&moved)[0].clone();
    assert_eq!((&program["source"], program["id"].as_u64()), (&"drop".into(), Some(id)));
    // A read-only command in the namespace that the interface left removes nothing.
    succeeds(&["xdp", "status", "--netns", &station.name, &elsewhere.0]);
    let stats = succeeds(&["xdp", "stats", &moved]);
    assert!(stats.contains("drop"), "{stats}");
    succeeds(&["xdp", "unload", &moved]);
    trawl_tests::witness::wait_unloaded(id);
    let left = trawl_tests::xdp::pins_of(station);
    assert!(!std::path::Path::new(&left).exists(), "{left}");
}

#[test]
fn moved_chain_leaves_nothing() {
    let Some(lab) = Lab::open() else { return };
    let elsewhere = Elsewhere::new(&lab);
    let _clean = CleanUp::of(&lab);
    let (near, station, members) = (lab.receiver(), &lab.pair.b, object_file(&lab, "members"));
    let load = |place: &str, name: &str, priority: &str| {
        let program = ["xdp", "load", place, &members, "--prog", name];
        succeeds(&[&program[..], &["--tappable", "--prio", priority]].concat());
    };
    load(&near, "passes", "40");
    load(&near, "drops", "60");
    let interface = station.interface.as_str();
    let moving = ["-n", &station.name, "link", "set", interface, "netns"];
    run("ip", &[&moving[..], &[&elsewhere.0]].concat());
    let moved = format!("{}:{interface}", elsewhere.0);
    load(&moved, "passes", "20");
    let ids: Vec<u64> = programs_on(&moved).iter().map(|one| one["id"].as_u64().expect("a number")).collect();
    assert_eq!(ids.len(), 3);
    run("ip", &["-n", &elsewhere.0, "link", "del", interface]);
    succeeds(&["doctor", "--clean"]);
    ids.into_iter().for_each(trawl_tests::witness::wait_unloaded);
    let left = trawl_tests::xdp::pins_of(station);
    assert!(!std::path::Path::new(&left).exists(), "{left}");
}

/// The kernel reuses numbers of namespaces. A record of a deleted namespace does not apply to a later one with its
/// number.
#[test]
fn namespace_with_a_reused_number_is_left_alone() {
    const FEATURE: &str = "tx-checksum-ip-generic";
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    // Several attempts are needed, because another process may get the number, or remove the record.
    for attempt in 0..10 {
        let old = Elsewhere::new(&lab);
        let number = old.number();
        // The kernel removes a deleted namespace's interfaces with a delay.
        wait_until("the interface of the attempt before is gone", || {
            !output("ip", &["-n", &b.name, "link", "show", "near"]).status.success()
        });
        old.joined_to(b);
        succeeds(&["xdp", "load", &format!("{}:near", b.name), "tx"]);
        assert!(!is_on(&old.0, "far", FEATURE));
        drop(old);
        let made = (0..20).map(|count| Elsewhere::called(format!("{}-{attempt}-{count}", a.name)));
        let made: Vec<Elsewhere> = made.collect();
        let Some(same) = made.iter().find(|one| one.number() == number) else {
            continue;
        };
        same.joined_to(a);
        same.switch(FEATURE, "off");
        succeeds(&["doctor", "--clean"]);
        assert!(!is_on(&same.0, "far", FEATURE), "trawl must not switch this feature");
        return;
    }
    eprintln!("SKIPPED: the kernel did not reuse the number of a deleted namespace");
}
