//! A packet keeps its identifier at all points of a capture that see it, and two packets never share one.

use std::collections::HashMap;

use trawl_bpf::probe;
use trawl_packet::build::Template;
use trawl_tests::bundled::done;
use trawl_tests::lab::{Files, place, send_from};
use trawl_tests::pcapng::Contents;
use trawl_tests::{Capture, Lab, LineLab, args, skip};

use trawl_lab::LineOptions;
use trawl_lab::sender::Engine;

/// Returns true if programs can read the kernel's packet structures, which needs Linux 6.2.
fn can_link() -> bool {
    let can = probe::kernel_is_at_least(6, 2);
    if !can {
        skip("programs cannot look at the kernel's structures before Linux 6.2");
    }
    can
}

fn numbered(number: u16) -> Vec<u8> {
    Template::new()
        .ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 77, 0, 1], [10, 77, 0, 2])
        .udp(1024 + number, 9)
        .payload([number as u8; 18])
        .build()
}

/// Returns the number of identifiers that several records share, after checking that they belong to the same packet.
#[track_caller]
fn sharing(contents: &Contents) -> usize {
    let mut seen: HashMap<u64, Vec<&[u8]>> = HashMap::new();
    for packet in &contents.packets {
        let id = packet.packet_id().expect("an identifier");
        seen.entry(id).or_default().push(&packet.bytes[34..]);
    }
    for (id, packets) in &seen {
        assert!(packets.windows(2).all(|two| two[0] == two[1]), "{id}");
    }
    seen.values().filter(|packets| packets.len() > 1).count()
}

/// Redirects packets from a by XDP at one of the router's interfaces to b; returns the two points that see them.
fn redirecting(lab: &LineLab) -> (String, String) {
    let (from, to) = (place(&lab.line.left), place(&lab.line.b));
    done(&args!("xdp load {from} redirect --to right --tappable"));
    (from, to)
}

#[test]
fn a_redirected_packet_keeps_its_identifier() {
    if !can_link() {
        return;
    }
    let Some(lab) = LineLab::with(&LineOptions::default()) else {
        return;
    };
    let (from, to) = redirecting(&lab);
    let file = lab.file("both.pcapng");
    let capture = Capture::start(&lab, &["-i", &from, "-i", &to, "-w", &file, "udp"]);
    let sent: Vec<Vec<u8>> = (0..500).map(numbered).collect();
    for engine in [Engine::Live, Engine::Packet] {
        send_from(&lab.line.a, &sent, 500, engine, None, None);
    }
    capture.wait_recorded(2000);
    capture.stop_well();
    let contents = Contents::read(&file);
    assert_eq!(sharing(&contents), 1000, "each was seen at both");
    done(&["xdp", "unload", &from]);
}

#[test]
fn a_packet_that_is_dropped_after_xdp_keeps_its_identifier() {
    keeps_its_identifier(&["--tap", "xdp,drop"]);
}

#[test]
fn a_packet_keeps_its_identifier_from_xdp_to_tc() {
    keeps_its_identifier(&["--tap", "xdp,tc", "-Q", "in"]);
}

/// Checks that each packet of 500 is recorded at two points under one identifier.
fn keeps_its_identifier(taps: &[&str]) {
    if !can_link() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("both.pcapng");
    let receiver = lab.receiver();
    let arguments = [taps, &["-i", &receiver, "-w", &file, "udp"]].concat();
    let capture = Capture::start(&lab, &arguments);
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let frames: Vec<Vec<u8>> = (0..500u16)
        .map(|number| {
            Template::new()
                .ethernet(a.mac, b.mac)
                .ipv4(a.ipv4.octets(), b.ipv4.octets())
                .udp(1024 + number, 9)
                .payload([number as u8; 18])
                .build()
        })
        .collect();
    lab.send_long(&frames);
    capture.wait_recorded(1000);
    capture.stop_well();
    assert_eq!(sharing(&Contents::read(&file)), 500);
}

/// Packets with the same bytes, in memory that is reused at once, have different identifiers.
#[test]
fn equal_bytes_are_different_packets() {
    if !can_link() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("same.pcapng");
    let (sender, receiver) = (lab.sender(), lab.receiver());
    let capture = Capture::start(&lab, &["-i", &receiver, "-i", &sender, "-w", &file, "udp"]);
    lab.send(&[numbered(1)], 2000);
    capture.wait_recorded(2000);
    capture.stop_well();
    assert_eq!(sharing(&Contents::read(&file)), 0);
}

/// `--id` shows the identifier as CPU and number, in lines of each kind of tap.
#[test]
fn lines_show_the_identifier_in_its_short_form() {
    if !can_link() {
        return;
    }
    let Some(lab) = LineLab::with(&LineOptions::default()) else {
        return;
    };
    let (from, to) = redirecting(&lab);
    for arguments in [
        &["-i", &from, "-i", &to, "--id"][..],
        &["--id", "-i", &to, "--tap", "xdp,tc", "-Q", "in"],
        &["-i", &to, "--tap", "xdp,drop", "--id"],
    ] {
        let capture = Capture::start(&lab, &[arguments, &["udp"]].concat());
        let sent: Vec<Vec<u8>> = (0..50).map(numbered).collect();
        send_from(&lab.line.a, &sent, 50, Engine::Packet, None, None);
        let printed = capture.wait_printed(|text| text.lines().count() >= 100);
        capture.stop();
        let mut sightings: HashMap<&str, Vec<&str>> = HashMap::new();
        for line in printed.lines() {
            let is_short = |word: &&str| {
                let parts = word.split_once('.');
                parts.is_some_and(|(cpu, number)| cpu.parse::<u16>().is_ok() && number.parse::<u64>().is_ok())
            };
            let id = line.split_whitespace().find(is_short).expect(line);
            let port = line.split_whitespace().find(|word| word.contains("10.77.0.1.10"));
            sightings.entry(id).or_default().push(port.expect(line));
        }
        assert_eq!(sightings.len(), 50, "{arguments:?}: {printed}");
        for (id, ports) in sightings {
            assert!(ports.len() == 2 && ports[0] == ports[1], "{arguments:?}: {id}: {ports:?}");
        }
    }
    done(&["xdp", "unload", &from]);
}
