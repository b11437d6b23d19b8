//! The ways to read packet sockets: each records exactly what was sent, whichever way sockets share the packets.

use trawl_lab::PairOptions;
use trawl_tests::pcapng::Contents;
use trawl_tests::{Capture, Lab, frames, trawl};

const RINGS: [&str; 4] = ["recvmsg", "recvmmsg", "v2", "v3"];

/// Frames around a slot of TPACKET_V2, tagged ones and the longest.
const LENGTHS: [usize; 9] = [60, 61, 1514, 1900, 1990, 2048, 4096, 9014, 60_000];

/// Byte for byte, with a filter that counts what it rejects.
#[test]
fn each_way_to_read_records_what_was_sent() {
    let Some(lab) = Lab::with(PairOptions {
        mtu: 65_535,
        ..PairOptions::default()
    }) else {
        return;
    };
    let sent: Vec<Vec<u8>> = LENGTHS.into_iter().map(frames::patterned).collect();
    for ring in RINGS {
        let file = lab.file("file.pcapng");
        let place = lab.receiver();
        let what = [
            "--tap",
            "packet",
            "--packet-ring",
            ring,
            "-i",
            &place,
            "-Q",
            "in",
            "-w",
            &file,
        ];
        let capture = Capture::start(&lab, &what);
        lab.send_long(&sent);
        let summary = capture.stop_well();
        summary.assert_all_recorded(sent.len() as u64);
        assert!(
            summary.interfaces.iter().all(|one| one.truncated == 0),
            "{ring}: {summary:?}"
        );
        frames::assert_same(&Contents::read(&file).frames(), &sent);
        let none = [&what[..], &["ether proto 0x1234"]].concat();
        let capture = Capture::start(&lab, &none);
        lab.send_long(&sent);
        let summary = capture.stop_well();
        assert_eq!(
            (summary.seen, summary.filtered_out),
            (sent.len() as u64, sent.len() as u64),
            "{ring}"
        );
    }
}

/// The kinds of fanout, with every way to read; VLAN tags stand where they stood.
#[test]
fn each_kind_of_fanout_records_each_packet_once() {
    let Some(lab) = Lab::open() else { return };
    let sent: Vec<Vec<u8>> = vec![
        frames::ipv4_udp(0),
        frames::ipv4_udp(1),
        frames::ipv6_udp(2),
        frames::silent(60),
    ];
    for ring in RINGS {
        for fanout in ["hash", "cpu", "ebpf"] {
            let file = lab.file("file.pcapng");
            let place = lab.receiver();
            let what = [
                "--tap",
                "packet",
                "--packet-ring",
                ring,
                "--fanout",
                fanout,
                "-i",
                &place,
                "-Q",
                "in",
                "-w",
                &file,
            ];
            let capture = Capture::start(&lab, &what);
            lab.send(&sent, 4000);
            let summary = capture.stop_well();
            summary.assert_all_recorded(4000);
            let contents = Contents::read(&file);
            for frame in &sent {
                let count = contents
                    .packets
                    .iter()
                    .filter(|one| one.bytes == *frame)
                    .count();
                assert_eq!(count, 1000, "{ring} {fanout}");
            }
        }
    }
}

#[test]
fn ways_of_packet_sockets_are_refused_elsewhere() {
    for (arguments, why) in [
        (
            &["--tap", "xdp", "--packet-ring", "v2"][..],
            "only the packet tap",
        ),
        (&["--tap", "tc", "--fanout", "hash"], "only the packet tap"),
        (&["--tap", "packet", "--packet-ring", "v9"], "invalid value"),
        (
            &[
                "--tap",
                "packet",
                "--packet-ring",
                "recvmsg",
                "--time",
                "hw",
            ],
            "system's time only",
        ),
    ] {
        let done = trawl(&[&["capture", "-i", "lo"], arguments].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
}
