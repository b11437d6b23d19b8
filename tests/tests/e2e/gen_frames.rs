//! Frames of `trawl gen`, on each engine, decoded by tshark at the other end: checksums, fields, lengths.

use std::collections::BTreeSet;

use trawl_tests::generator::{dissect, generate};
use trawl_tests::{Capture, Lab, args};

const ENGINES: [&str; 3] = ["live", "xsk", "packet"];

/// All kinds of frames with checksums that tshark validates, each with varying fields.
const WITH_CHECKSUMS: [&str; 19] = [
    "udp",
    "udp --src-port 1000-1009 --dst-port random",
    "udp --src 10.0.0.0/24 --dst random:10.1.0.0/16 --dst-mac 02:00:00:00:00:07",
    "udp --src 10.0.0.1,192.168.7.9 --payload 'text:an odd number of bytes.'",
    "udp --dscp 0-63 --ttl 1-255 --payload random --size 61-90",
    "udp --size imix --flows 5 --payload number",
    "udp -6 --src-port random --dscp ef,cs6 --ttl random:1-255",
    "udp --src random:fd00::/16 --dst fd00:77::/64 --size 64,128,1500 --dst-mac 02:00:00:00:00:07",
    "udp --vlan 7 --src-port 1-7",
    "udp --vlan 100-109,200:5 --src-mac random --dst-mac 02:00:00:00:00:00/40",
    "udp --mpls 16-31,17 --src 10.0.0.0/30 --dst-mac 02:00:00:00:00:07",
    "udp --every 3:dst-port=1111;ttl=9 --src-port 1-4",
    "tcp --flags syn,ack --seq random --ack 0-99/7 --src-port 1-3",
    "tcp -6 --src-port random --payload random --size 80-99",
    "icmp --id 1-9 --seq random --payload text:odd",
    "icmp -6 --id random --size 70-75 --payload random",
    "udp --vxlan random:1-1000 --outer-dst 10.77.0.2 --src 10.0.0.0/24 --dst-mac random \
     --src-port random --flows 20",
    "tcp --vxlan 77 --outer-dst fd00:77::2 --dst 2001:db8::/96 --src-mac random --dscp 0-3 \
     --seq random",
    "icmp --vxlan 5 --outer-dst 10.77.0.2 --seq 1-5 --ttl 3-9 --size 200-210",
];
const EACH: usize = 40;

const SUMS: [&str; 5] = [
    "ip.checksum.status",
    "udp.checksum.status",
    "tcp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
];

#[test]
fn all_checksums_are_right_on_each_engine() {
    for engine in ENGINES {
        let Some(lab) = Lab::open() else { return };
        let file = lab.file("file.pcapng");
        let total = (WITH_CHECKSUMS.len() * EACH).to_string();
        let receiver = lab.receiver();
        let capture = Capture::start(&lab, &["-i", &receiver, "-Q", "in", "-c", &total, "-w", &file]);
        for frames in WITH_CHECKSUMS {
            let arguments = args!("{frames} --engine {engine} --count {EACH}");
            let summary = generate(&lab, arguments[0], &arguments[1..]);
            assert_eq!(summary["frames"], EACH, "{engine} {frames}");
        }
        capture.wait().summary_of_success();
        let rows = dissect(&file, &SUMS);
        assert_eq!(rows.len(), WITH_CHECKSUMS.len() * EACH);
        for (at, row) in rows.iter().enumerate() {
            let about = WITH_CHECKSUMS[at / EACH];
            let sums: Vec<&str> = row.iter().flat_map(|cell| cell.split(',')).collect();
            let good = sums.iter().filter(|sum| **sum == "1").count();
            assert!(
                good >= 1 && sums.iter().all(|sum| matches!(*sum, "" | "1")),
                "{engine} {about:?}, frame {at}: {row:?}"
            );
        }
    }
}

/// Sends frames with these arguments and returns the values of a field.
fn sent(engine: &str, kind: &str, count: usize, arguments: &[&str], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let lab = Lab::open()?;
    let file = lab.file("file.pcapng");
    let (receiver, count) = (lab.receiver(), count.to_string());
    let capture = Capture::start(&lab, &["-i", &receiver, "-Q", "in", "-c", &count, "-w", &file]);
    let fixed = ["--engine", engine, "--count", &count];
    generate(&lab, kind, &[&fixed[..], arguments].concat());
    capture.wait().summary_of_success();
    Some(dissect(&file, fields))
}

#[test]
fn fields_step_and_flows_have_the_requested_number() {
    for engine in ENGINES {
        let fields = ["udp.srcport", "ip.dst"];
        let arguments = args!(
            "--src-port 5000-5006/2 --dst 10.0.0.5,10.0.0.9 --dst-mac \
             02:00:00:00:00:07"
        );
        let Some(rows) = sent(engine, "udp", 6, &arguments, &fields) else {
            return;
        };
        let ports: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(ports, ["5000", "5002", "5004", "5006", "5000", "5002"], "{engine}");
        assert_eq!((rows[0][1].as_str(), rows[1][1].as_str()), ("10.0.0.5", "10.0.0.9"));
        let Some(rows) = sent(engine, "udp", 300, &["--flows", "100"], &fields) else {
            return;
        };
        let flows: BTreeSet<_> = rows.iter().collect();
        assert_eq!(flows.len(), 100, "{engine}");
    }
}

#[test]
fn every_nth_frame_differs_and_sizes_alternate() {
    for engine in ENGINES {
        let arguments = ["--every", "5:ethertype=0x1111", "--size", "64,100,1500"];
        let Some(rows) = sent(engine, "udp", 30, &arguments, &["eth.type", "frame.len"]) else {
            return;
        };
        for (at, row) in rows.iter().enumerate() {
            let expected = if at % 5 == 4 { "0x1111" } else { "0x0800" };
            assert_eq!(row[0], expected, "{engine}, frame {at}");
            assert_eq!(row[1], ["64", "100", "1500"][at % 3], "{engine}, frame {at}");
        }
    }
}

#[test]
fn same_seed_makes_the_same_frames_on_all_engines() {
    let arguments = args!(
        "--src-port random --src random:10.0.0.0/8 --size random:60-200 --seed \
         7"
    );
    let fields = ["ip.src", "udp.srcport", "frame.len", "udp.checksum"];
    let of = |engine| sent(engine, "udp", 50, &arguments, &fields);
    let Some(live) = of("live") else { return };
    assert_eq!(Some(&live), of("packet").as_ref());
    assert_eq!(Some(&live), of("xsk").as_ref());
    assert!(live.iter().collect::<BTreeSet<_>>().len() > 40);
}

#[test]
fn arp_and_raw_frames_have_the_requested_fields() {
    let fields = ["arp.opcode", "arp.src.hw_mac", "arp.src.proto_ipv4", "arp.dst.proto_ipv4", "eth.src"];
    let arguments = args!(
        "--src 10.77.0.1 --dst 10.77.0.2-10.77.0.4 --src-mac \
         02:00:00:00:00:01-02:00:00:00:00:03"
    );
    let Some(rows) = sent("packet", "arp", 3, &arguments, &fields) else {
        return;
    };
    for (at, row) in rows.iter().enumerate() {
        let mac = format!("02:00:00:00:00:0{}", at + 1);
        let target = format!("10.77.0.{}", at + 2);
        assert_eq!(row[..], ["1".to_owned(), mac.clone(), "10.77.0.1".to_owned(), target, mac]);
    }
    let hex = "ff:ff:ff:ff:ff:ff 02 00 00 00 00 09 88b5 0102030405";
    let Some(rows) = sent("live", "raw", 2, &[hex], &["eth.src", "eth.type", "frame.len"]) else {
        return;
    };
    assert_eq!(rows, vec![vec!["02:00:00:00:00:09".to_owned(), "0x88b5".to_owned(), "60".to_owned()]; 2]);
}
