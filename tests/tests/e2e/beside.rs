//! Captures next to an XDP program in each mode: every tap records each packet once, with the bytes on the wire.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use rustix::process::Signal;
use trawl_lab::sender::Engine;
use trawl_lab::{PairOptions, Station};
use trawl_sys::netns::run_in;
use trawl_tests::lab::send_from;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{output, run};
use trawl_tests::xdp::{CleanUp, succeeds};
use trawl_tests::{Capture, Lab, args, frames};

/// The id of the VLAN whose tags are metadata, outside the packets' bytes.
const VLAN: u16 = 5;

/// Filter for packets to the port with up to two tags.
const FILTER: &str = "udp port 9 or (vlan and (udp port 9 or (vlan and udp port 9)))";

/// Opens a lab, and loads a tappable program on the receiving interface if a mode is given.
fn open_lab(mode: Option<&str>, gro: bool) -> Option<(Lab, CleanUp)> {
    let lab = Lab::with(PairOptions { gro, ..PairOptions::default() })?;
    let place = lab.receiver();
    if let Some(mode) = mode {
        succeeds(&args!("xdp load {place} pass --mode {mode} --tappable"));
    }
    let clean = CleanUp::of(&lab);
    Some((lab, clean))
}

/// Adds an interface for a VLAN to the sending end. Returns false if the kernel has none.
fn add_vlan(lab: &Lab) -> bool {
    let name = &lab.pair.a.name;
    let link = &lab.pair.a.interface;
    let add = args!("-n {name} link add v5 link {link} type vlan id {VLAN}");
    let is_added = output("ip", &add).status.success();
    if is_added {
        run("ip", &["-n", name, "link", "set", "v5", "up"]);
    }
    is_added
}

/// Sends frames without tags, with tags among their bytes, and, from a VLAN's interface, with tags outside their bytes.
/// Returns the frames as the wire has them, and as XDP sees them.
fn frames_sent(lab: &Lab, has_vlan: bool) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let plain: Vec<Vec<u8>> = [4, 100, 1400].map(|length| frames::udp(&vec![7; length])).into();
    let inside: Vec<Vec<u8>> = [frames::ipv4_udp(1), frames::ipv6_udp(1), frames::ipv4_udp(2)].into();
    lab.send_long(&plain);
    lab.send_long(&inside);
    let mut wire = [plain.clone(), inside.clone()].concat();
    let mut xdp = wire.clone();
    if has_vlan {
        let vlan = Station { interface: "v5".to_owned(), ..lab.pair.a.clone() };
        send_from(&vlan, &plain, plain.len() as u64, Engine::Packet, None, None);
        let tag = [&[0x81, 0][..], &VLAN.to_be_bytes()].concat();
        let tagged = |frame: &Vec<u8>| [&frame[..12], &tag, &frame[12..]].concat();
        wire.extend(plain.iter().map(tagged));
        xdp.extend(plain);
    }
    (wire, xdp)
}

/// Checks all taps next to a program of this mode, with all packets that pass at the same time.
fn every_tap_records_the_wire(mode: Option<&str>) {
    for gro in [false, true] {
        let Some((lab, _clean)) = open_lab(mode, gro) else {
            return;
        };
        let place = lab.receiver();
        let has_vlan = add_vlan(&lab);
        let count = if has_vlan { 9 } else { 6 };
        let own = if mode.is_some() { "tailcall" } else { "xdp" };
        let taps = [own, "tc", "packet"].map(|tap| {
            let file = lab.file(&format!("{tap}.pcapng"));
            let side = if tap == own { "" } else { " -Q in" };
            let capture = Capture::start(&lab, &args!("-i {place} --tap {tap}{side} -c {count} -w {file} '{FILTER}'"));
            (file, capture)
        });
        // Two more programs at tc cut packets: one after the headers, and one within a header.
        let cut = ["--headers", "-s 15"].map(|cut| {
            let file = lab.file(&format!("cut{}.pcapng", cut.len()));
            let capture =
                Capture::start(&lab, &args!("-i {place} --tap tc -Q in {cut} -c {count} -w {file} '{FILTER}'"));
            (file, capture)
        });
        let (wire, xdp) = frames_sent(&lab, has_vlan);
        for (file, capture) in taps {
            let is_own = file.contains(own);
            let summary = capture.wait().summary_of_success();
            assert_eq!((summary.recorded, summary.lost.values().sum::<u64>()), (count, 0), "{mode:?} {gro} {file}");
            frames::assert_same(&Contents::read(&file).frames(), if is_own { &xdp } else { &wire });
        }
        let [headers, within] = cut.map(|(file, capture)| {
            capture.wait().summary_of_success();
            Contents::read(&file)
        });
        let begin = |length: usize| wire.iter().map(move |frame| frame[..length].to_vec());
        frames::assert_same(&within.frames(), &begin(15).collect::<Vec<_>>());
        let ends = |frame: &Vec<u8>| {
            let tags = frame[12..].chunks(4).take_while(|tag| tag[..2] == [0x81, 0]).count();
            let ip = 14 + 4 * tags;
            frame[..ip + if frame[ip] >> 4 == 6 { 40 } else { 20 } + 8].to_vec()
        };
        frames::assert_same(&headers.frames(), &wire.iter().map(ends).collect::<Vec<_>>());
    }
}

#[test]
fn every_tap_records_the_wire_without_a_program() {
    every_tap_records_the_wire(None);
}

#[test]
fn every_tap_records_the_wire_beside_a_native_program() {
    every_tap_records_the_wire(Some("native"));
}

#[test]
fn every_tap_records_the_wire_beside_a_program_in_skb_mode() {
    every_tap_records_the_wire(Some("skb"));
}

/// Number of bytes in the stream below.
const STREAM: usize = 300_000;

#[test]
fn joined_segments_are_the_same_at_tc_and_at_packet_sockets() {
    for mode in [None, Some("native"), Some("skb")] {
        let Some((lab, _clean)) = open_lab(mode, true) else {
            return;
        };
        let (a, b) = (&lab.pair.a, &lab.pair.b);
        let bind = || TcpListener::bind((b.ipv4, 0)).expect("a socket");
        let listener = run_in(&b.namespace, bind).expect("the namespace can be entered");
        let address = listener.local_addr().expect("an address");
        let (place, port) = (lab.receiver(), address.port());
        let taps = ["tc", "packet"].map(|tap| {
            let file = lab.file(&format!("{tap}.pcapng"));
            let what = args!("-i {place} --tap {tap} -Q in -w {file} 'tcp dst port {port}'");
            (Capture::start(&lab, &what), file)
        });
        let connect = || TcpStream::connect(address).expect("a connection");
        let mut here = run_in(&a.namespace, connect).expect("the namespace can be entered");
        let (mut there, _) = listener.accept().expect("a connection");
        let sender = std::thread::spawn(move || {
            here.write_all(&[7; STREAM]).expect("the way is open");
            here.shutdown(Shutdown::Write).expect("the way is open");
            here
        });
        let mut received = Vec::new();
        there.read_to_end(&mut received).expect("a stream");
        drop(sender.join().expect("no panic"));
        assert_eq!(received.len(), STREAM);
        let [tc, packet] = taps.map(|(capture, file)| {
            // All segments have passed both taps.
            capture.signal(Signal::INT);
            let summary = capture.wait().summary_of_success();
            assert_eq!(summary.lost.values().sum::<u64>(), 0, "{mode:?} {file}");
            Contents::read(&file)
        });
        let data: usize = tc.frames().iter().map(|frame| frame.len() - 54).sum();
        assert!(data >= STREAM, "{mode:?}: {data} bytes");
        let wanted: Vec<Vec<u8>> = packet.frames().iter().map(|one| one.to_vec()).collect();
        frames::assert_same(&tc.frames(), &wanted);
    }
}
