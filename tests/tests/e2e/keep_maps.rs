//! A program that replaces another one inherits its maps, or the command names the contents that would be lost.

use std::net::UdpSocket;
use std::time::Duration;

use trawl_sys::netns::run_in;
use trawl_tests::programs::object_file;
use trawl_tests::witness::{run, xdp_on};
use trawl_tests::xdp::{CleanUp, fails, only_program, succeeds};
use trawl_tests::{Capture, Lab, args, trawl, wait_until};

const BLOCKED: u16 = 53;
const OPEN: u16 = 54;

/// A firewall on the receiving end that another tool has loaded, and that drops UDP to port 53.
struct Firewall<'l> {
    lab: &'l Lab,
    file: String,
    blocked: UdpSocket,
    open: UdpSocket,
}

impl<'l> Firewall<'l> {
    fn new(lab: &'l Lab, mode: &str) -> Self {
        let file = object_file(lab, "drop_ports");
        let station = &lab.pair.b;
        let link = args!("-n {} link set dev {}", station.name, station.interface);
        run("ip", &[&link[..], &[mode, "obj", &file, "sec", "xdp"]].concat());
        let bind = |port: u16| {
            let socket = run_in(&station.namespace, || UdpSocket::bind((station.ipv4, port)));
            socket.expect("the namespace").expect("a free port")
        };
        let firewall = Self { lab, file, blocked: bind(BLOCKED), open: bind(OPEN) };
        let map = firewall.map("ports").to_string();
        let entry = ["key", "53", "0", "value", "1", "0", "0", "0"];
        run("bpftool", &[&["map", "update", "id", &map][..], &entry].concat());
        firewall.assert_blocked();
        firewall
    }

    fn id(&self) -> u64 {
        xdp_on(&self.lab.pair.b).expect("a program").0
    }

    /// Returns the id of the running program's map of that name, by bpftool.
    #[track_caller]
    fn map(&self, name: &str) -> u64 {
        map_of(self.id(), name).unwrap_or_else(|| panic!("it has no map {name}"))
    }

    /// Checks that port 53 is dropped and 54 is not. Frames arrive in the order in which they were sent.
    #[track_caller]
    fn assert_blocked(&self) {
        let sender = &self.lab.pair.a;
        let to = self.lab.pair.b.ipv4;
        let socket = run_in(&sender.namespace, || UdpSocket::bind((sender.ipv4, 0)));
        let socket = socket.expect("the namespace").expect("a free port");
        socket.send_to(b"blocked", (to, BLOCKED)).expect("sent");
        socket.send_to(b"open", (to, OPEN)).expect("sent");
        let mut bytes = [0; 16];
        self.open.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        let length = self.open.recv(&mut bytes).expect("port 54 is open");
        assert_eq!(&bytes[..length], b"open");
        self.blocked.set_nonblocking(true).expect("a socket");
        let got = self.blocked.recv(&mut bytes);
        assert!(got.is_err(), "port 53 is open: {got:?}");
    }
}

fn map_of(program: u64, name: &str) -> Option<u64> {
    let json = |kind: &str, id: u64| -> serde_json::Value {
        let text = run("bpftool", &["-j", kind, "show", "id", &id.to_string()]);
        serde_json::from_str(&text).expect("JSON")
    };
    let maps = json("prog", program)["map_ids"].as_array()?.clone();
    let mut ids = maps.iter().filter_map(serde_json::Value::as_u64);
    ids.find(|id| json("map", *id)["name"].as_str().is_some_and(|one| one.ends_with(name)))
}

#[test]
fn advice_keeps_a_firewall_closed() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let firewall = Firewall::new(&lab, "xdpdrv");
    let (place, before) = (lab.receiver(), firewall.id());
    let maps = ["ports", ".bss", ".rodata"].map(|name| firewall.map(name));

    // A capture gives this advice.
    let refused = trawl(&["capture", "-i", &place, "--tap", "tailcall"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let advice = format!("trawl xdp load {place} FILE.o --replace --keep-maps --tappable");
    assert!(said.contains(&advice), "{said}");
    // Without --keep-maps, no contents are lost without consent.
    let load = ["xdp", "load", &place, &firewall.file, "--replace"];
    for more in [&[][..], &["--tappable"]] {
        let words = args!("drop_ports 'would be lost: ' 'ports (hash' --keep-maps --yes");
        fails(&[&load[..], more].concat(), 1, &words);
        assert_eq!(firewall.id(), before);
        firewall.assert_blocked();
    }

    let loaded = trawl(&[&load[..], &["--keep-maps", "--tappable"]].concat());
    let said = String::from_utf8_lossy(&loaded.stderr).into_owned();
    assert!(loaded.status.success(), "{said}");
    assert!(said.contains("is the program that was running"), "{said}");
    assert!(said.contains("maps kept: ") && !said.contains("without a match"), "{said}");
    assert_ne!(firewall.id(), before);
    assert_eq!(["ports", ".bss", ".rodata"].map(|name| firewall.map(name)), maps);
    firewall.assert_blocked();

    // The next program has other variables, and one more map.
    let other = object_file(&lab, "drop_ports_otherwise");
    let load = args!("xdp load {place} {other} --replace --keep-maps --json");
    let report: serde_json::Value = serde_json::from_str(&succeeds(&load)).expect("JSON");
    let inherited = &report["maps"];
    assert_eq!(inherited["kept"], serde_json::json!(["ports"]), "{report}");
    assert_ne!(inherited["same_program"], true, "{report}");
    let new = inherited["new"].to_string();
    assert!(new.contains("counters") && new.contains(".bss"), "{report}");
    let without = inherited["without_match"].to_string();
    assert!(without.contains(".bss") && without.contains(".rodata"), "{report}");
    assert_eq!(firewall.map("ports"), maps[0]);
    firewall.assert_blocked();

    // With consent, the contents are lost.
    succeeds(&["xdp", "load", &place, &firewall.file, "--replace", "--yes"]);
    assert_ne!(firewall.map("ports"), maps[0]);
}

#[test]
fn programs_without_contents_are_replaced_without_a_question() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "drop_ports"));
    succeeds(&["xdp", "load", &place, &file]);
    let first = only_program(&place);
    succeeds(&["xdp", "load", &place, &file, "--replace"]);
    assert_ne!(only_program(&place), first);
}

/// `capture --tappable` replaces the program by one with hooks and restores it at the end, also when trawl is killed.
#[test]
fn hooks_exist_for_the_duration_of_a_capture() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    for mode in ["xdpdrv", "xdpgeneric"] {
        let firewall = Firewall::new(&lab, mode);
        let (before, ports) = (firewall.id(), firewall.map("ports"));
        capture_with_hooks(&firewall, before, ports);
        run("ip", &args!("-n {} link set dev {} {mode} off", lab.pair.b.name, lab.pair.b.interface));
    }
    // A program that trawl loaded by a link is replaced in the same way, and remains trawl's own.
    let file = object_file(&lab, "drop_ports");
    succeeds(&["xdp", "load", &place, &file]);
    let before = only_program(&place);
    let capture = Capture::start(&lab, &["-i", &place, "--tappable", &file]);
    let during = xdp_on(&lab.pair.b).expect("a program").0;
    assert_ne!(during, before);
    succeeds(&["xdp", "status", "-i", &place]);
    capture.stop_well();
    assert_eq!(only_program(&place), before);
    // A program that differs from the running one does not replace it.
    let other = object_file(&lab, "drop_ports_otherwise");
    let refused = ["capture", "-i", &place, "--tappable", &other];
    fails(&refused, 1, &["drop_ports", "another program"]);
    assert_eq!(only_program(&place), before);
    succeeds(&["xdp", "unload", &place]);
    fails(&["capture", "-i", &place, "--tappable", &file], 1, &["no XDP program"]);
}

#[track_caller]
fn capture_with_hooks(firewall: &Firewall<'_>, before: u64, ports: u64) {
    let (lab, place) = (firewall.lab, firewall.lab.receiver());
    for kill in [false, true] {
        let file = lab.file("seen.pcapng");
        let arguments = ["-i", &place, "--tappable", &firewall.file, "-w", &file];
        let capture = Capture::start(lab, &[&arguments[..], &["--verdict", "drop"]].concat());
        assert_ne!(firewall.id(), before);
        assert_eq!(firewall.map("ports"), ports);
        firewall.assert_blocked();
        capture.wait_recorded(1);
        if kill {
            drop(capture.kill());
        } else {
            assert_eq!(capture.stop_well().recorded, 1);
        }
        assert_eq!(firewall.id(), before);
        firewall.assert_blocked();
    }
}

/// Every command that replaces a program asks first, and restores it if the change is not confirmed.
#[test]
fn each_command_asks_before_contents_are_lost() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let firewall = Firewall::new(&lab, "xdpdrv");
    let (before, ports) = (firewall.id(), firewall.map("ports"));
    for command in [
        &["guard", "load", &place][..],
        &["route", "load", &place],
        &["balance", "load", &place],
        &["xdp", "load", &place, "pass"],
    ] {
        let replace = [command, &["--replace"]].concat();
        fails(&replace, 1, &["would be lost: ports (hash", "--yes"]);
        assert_eq!(firewall.id(), before);
        succeeds(&[&replace[..], &["--confirm", "1s"]].concat());
        assert_ne!(firewall.id(), before);
        wait_until("the firewall is restored", || xdp_on(&lab.pair.b).is_some_and(|program| program.0 == before));
        assert_eq!(firewall.map("ports"), ports);
        firewall.assert_blocked();
    }
    succeeds(&["guard", "load", &place, "--replace", "--yes"]);
    assert_ne!(firewall.id(), before);
}
