//! Captures with a filter, at every tap: the recorded packets are those that libpcap's rules select, with out-of-band
//! tags of the stack, truncated headers, and filters on the length.

use std::time::Duration;

use trawl_capture::assembly::HostFeatures;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::point::Point;
use trawl_capture::session::{self, Observer};
use trawl_capture::summary::Summary;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, Station};
use trawl_packet::pcapng::block::blocks;
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, Direction};

use crate::kernel::root_or_skip;
use crate::long::options;
use crate::support::classic;
use crate::support::packets::frames;

/// Type of the unique frame at the end of every capture.
const LAST: u16 = 0x88b6;

#[derive(Default)]
struct Collector(Vec<Vec<u8>>);

impl Writer for Collector {
    fn write(&mut self, written: Blocks<'_>) -> trawl_sys::Result<Pressure> {
        let bytes = written.bytes();
        let packets = blocks(bytes).filter_map(|block| block.enhanced_packet());
        self.0.extend(packets.map(|packet| packet.captured.to_vec()));
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> trawl_sys::Result<Pressure> {
        Ok(Pressure::Idle)
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}

/// Sends once the capture has begun.
struct Traffic<'a>(&'a Station, &'a [Vec<u8>]);

impl Observer for Traffic<'_> {
    fn event(&mut self, _text: &trawl_capture::event::Event) {}

    fn started(&mut self, _points: &[Point]) {
        let Self(station, frames) = self;
        let job = Job {
            namespace: Some(&station.namespace),
            interface: &station.interface,
            frames,
            count: frames.len() as u64,
            engine: Engine::Packet,
            rate: None,
            cpu: Some(0),
        };
        send(&job).expect("sent");
    }

    fn figures(&mut self, _summary: &Summary) {}
}

/// Returns the recorded frames, the last of which must match.
fn capture(station: &Station, from: &Station, frames: &[Vec<u8>], options: &CaptureOptions) -> (Vec<Vec<u8>>, Summary) {
    let site = CaptureSite::find(&station.interface, Some(&station.name)).expect("the lab's interface");
    let mut traffic = Traffic(from, frames);
    let host = HostFeatures { os: "Linux".to_owned(), hardware: "test".to_owned(), application: "trawl".to_owned() };
    let attached = session::attach(std::slice::from_ref(&site), options, host, &mut traffic);
    let mut collector = Collector::default();
    let ended = attached.expect("attached").keep_rights().run(&mut collector, &mut traffic);
    (collector.0, ended.expect("ran").0)
}

/// Returns frames that the stack passes on: it drops frames with a truncated tag.
fn sendable() -> Vec<Vec<u8>> {
    let mut frames = frames(21, 300);
    frames.retain(|frame| (20..1500).contains(&frame.len()) && frame[12..14] != LAST.to_be_bytes());
    frames.push([&[0; 12][..], &LAST.to_be_bytes(), &[0; 46]].concat());
    frames
}

const EXPRESSIONS: [&str; 14] = [
    "tcp or udp",
    "vlan",
    "vlan 100 and ip",
    "vlan and vlan",
    "not vlan and ip",
    "ether[12:2] = 0x8100",
    "ether[14:2] & 0xfff = 100",
    "ether[12:4] = 0x81000064",
    "ether[16:2] = 0x0800",
    "len < 60 and ip",
    "len & 1 = 1",
    "ip6 and not icmp6",
    "ip[6:2] & 0x1fff != 0",
    "ether[100] < 128",
];

fn filters_agree(tap: TapChoice, direction: Direction, station: &Station, from: &Station) {
    let sent = sendable();
    for expression in EXPRESSIONS {
        let expression = format!("({expression}) or ether proto {LAST}");
        let program = classic(&expression);
        let wanted: Vec<&Vec<u8>> = sent.iter().filter(|frame| program.run(frame, frame.len() as u32) != 0).collect();
        assert!((2..sent.len()).contains(&wanted.len()), "{expression} matches all or none");
        let options = CaptureOptions {
            direction: Some(direction),
            count: Some(wanted.len() as u64),
            // With a frame missing, the capture would not end.
            duration: Some(Duration::from_secs(20)),
            ..options(tap, Filter::Expression(expression.clone()))
        };
        let (recorded, summary) = capture(station, from, &sent, &options);
        assert!(recorded.iter().eq(wanted), "{tap:?}: {expression}: {} recorded", recorded.len());
        let total = &summary.total;
        assert_eq!(total.lost_total(), 0, "{tap:?}: {expression}");
        assert_eq!(total.seen, total.filtered_out + total.recorded, "{tap:?}: {expression}");
    }
}

fn pair() -> Pair {
    Pair::new(&PairOptions::default()).expect("a lab for the test")
}

#[test]
fn xdp_records_matching_packets() {
    if root_or_skip() {
        let pair = pair();
        filters_agree(TapChoice::Xdp, Direction::In, &pair.b, &pair.a);
    }
}

#[test]
fn hook_records_matching_packets() {
    if root_or_skip() {
        let pair = pair();
        let _program = Loaded::native(Does::PassWithHook, &pair.b).expect("a program with a hook");
        filters_agree(TapChoice::Tailcall, Direction::In, &pair.b, &pair.a);
    }
}

/// On ingress, where the stack has moved tags out of the packets. The sender bypasses tc on egress.
#[test]
fn tc_records_matching_packets() {
    if root_or_skip() {
        let pair = pair();
        filters_agree(TapChoice::Tc, Direction::In, &pair.b, &pair.a);
    }
}

#[test]
fn socket_records_matching_packets() {
    if root_or_skip() {
        let pair = pair();
        filters_agree(TapChoice::Packet, Direction::In, &pair.b, &pair.a);
    }
}
