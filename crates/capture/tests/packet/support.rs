//! A capture with the packet tap in one call: traffic is sent once everything is attached, and parsed records are
//! returned.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;
use trawl_capture::assembly::HostFeatures;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::point::Point;
use trawl_capture::session::{self, Ended, Observer};
use trawl_capture::summary::Summary;
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, Station};
use trawl_packet::pcapng::Direction as Way;
use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::options::PacketOptions;
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_plan::TapChoice;
use trawl_plan::options::{CaptureOptions, Memory};

/// Time after which a stuck capture is ended.
pub const STUCK: Duration = Duration::from_secs(20);

pub fn root_or_skip() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        eprintln!("SKIPPED: not root");
    }
    root
}

pub fn pair(mtu: u32) -> Pair {
    Pair::new(&PairOptions { mtu, ..PairOptions::default() }).expect("a lab for the test")
}

/// Returns options with a large ring: the session moves no records while the traffic is sent.
pub fn options() -> CaptureOptions {
    CaptureOptions {
        duration: Some(STUCK),
        promiscuous: true,
        ..CaptureOptions::new(TapChoice::Packet, Memory::ForEachCpu(16 << 20))
    }
}

/// Returns options for a capture that ends after this many records.
pub fn until(count: u64) -> CaptureOptions {
    CaptureOptions { count: Some(count), ..options() }
}

/// Returns options for a capture that ends as soon as the traffic was sent.
pub fn at_once() -> CaptureOptions {
    CaptureOptions { duration: Some(Duration::ZERO), ..options() }
}

pub fn site(station: &Station) -> CaptureSite {
    site_named(station, &station.interface)
}

pub fn site_named(station: &Station, interface: &str) -> CaptureSite {
    CaptureSite::find(interface, Some(&station.name)).expect("the lab's interface")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub time: u64,
    pub bytes: Vec<u8>,
    pub original: u32,
    pub way: Option<Way>,
    pub flags: u32,
    pub packet_id: u64,
    pub drop_count: u64,
    pub queue: Option<u32>,
}

#[derive(Debug)]
pub struct Captured {
    pub records: Vec<Record>,
    pub summary: Summary,
    pub ended: Ended,
    pub notices: Vec<String>,
}

impl Captured {
    pub fn assert_adds_up(&self) {
        let total = &self.summary.total;
        assert_eq!(total.seen, total.filtered_out + total.recorded + total.lost_total());
        assert_eq!(total.recorded, self.records.len() as u64);
    }

    pub fn bytes(&self) -> Vec<&[u8]> {
        self.records.iter().map(|r| r.bytes.as_slice()).collect()
    }
}

#[derive(Default)]
struct Collector(Vec<u8>);

impl Writer for Collector {
    fn write(&mut self, written: Blocks<'_>) -> trawl_sys::Result<Pressure> {
        let blocks = written.bytes();
        self.0.extend_from_slice(blocks);
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> trawl_sys::Result<Pressure> {
        Ok(Pressure::Idle)
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}

struct Traffic<F> {
    make: Option<F>,
    notices: Vec<String>,
}

impl<F: FnOnce()> Observer for Traffic<F> {
    fn event(&mut self, text: &trawl_capture::event::Event) {
        self.notices.push(format!("{text:?}"));
    }

    fn started(&mut self, _points: &[Point]) {
        if let Some(make) = self.make.take() {
            make();
        }
    }

    fn figures(&mut self, _summary: &Summary) {}
}

pub fn host() -> HostFeatures {
    HostFeatures { os: "Linux".to_owned(), hardware: "test".to_owned(), application: "trawl".to_owned() }
}

/// An observer that ignores all events.
pub struct Silent;

impl Observer for Silent {
    fn event(&mut self, _: &trawl_capture::event::Event) {}
    fn started(&mut self, _: &[Point]) {}
    fn figures(&mut self, _: &Summary) {}
}

pub fn capture(sites: &[CaptureSite], options: &CaptureOptions, traffic: impl FnOnce()) -> Captured {
    let mut observer = Traffic { make: Some(traffic), notices: Vec::new() };
    let attached = session::attach(sites, options, host(), &mut observer).expect("attached");
    let mut collector = Collector::default();
    let (summary, ended) = attached.keep_rights().run(&mut collector, &mut observer).expect("ran");
    let records = blocks(&collector.0)
        .filter_map(|block| block.enhanced_packet())
        .map(|packet| {
            let options = PacketOptions::parse(packet.options());
            Record {
                time: packet.timestamp,
                bytes: packet.captured.to_vec(),
                original: packet.original_len,
                way: options.direction(),
                flags: options.flags.expect("flags"),
                packet_id: options.packet_id.expect("a packet id"),
                queue: options.queue,
                drop_count: options.drop_count.unwrap_or(0),
            }
        })
        .collect();
    let captured = Captured { records, summary, ended, notices: observer.notices };
    captured.assert_adds_up();
    captured
}

/// Returns a frame between the lab's stations that carries a number.
pub fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0x55; length];
    frame[..6].copy_from_slice(&[2, b't', b'r', b'a', b'w', 2]);
    frame[6..12].copy_from_slice(&[2, b't', b'r', b'a', b'w', 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

pub fn send_from(station: &Station, frames: &[Vec<u8>], count: u64, cpu: usize) {
    let job = Job {
        namespace: Some(&station.namespace),
        interface: &station.interface,
        frames,
        count,
        engine: Engine::Packet,
        rate: None,
        cpu: Some(cpu),
    };
    assert_eq!(send(&job).expect("sent").packets, count);
}

/// Captures a number of packets of the same traffic with tcpdump on the second station, and returns the matching ones
/// too. (Matching comes second: tcpdump's filter in the kernel sees frames without out-of-band tags, and so accepts
/// tagged ones for `udp`.)
pub fn beside_tcpdump(
    pair: &Pair,
    count: u64,
    expression: &str,
    options: &CaptureOptions,
    traffic: impl FnOnce(),
) -> (Captured, Vec<Vec<u8>>) {
    let file = std::env::temp_dir().join(format!("{}-{}.pcap", pair.b.name, std::process::id()));
    // With a lost packet, tcpdump would wait for ever.
    let mut tcpdump = Command::new("timeout")
        .args(["20", "ip", "netns", "exec", &pair.b.name])
        .args(["tcpdump", "-i", &pair.b.interface, "-Z", "root"])
        .args(["-B", "65536", "-s", "10000", "-w"])
        .arg(&file)
        .args(["-c", &count.to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("tcpdump");
    let mut words = BufReader::new(tcpdump.stderr.take().expect("its words")).lines();
    assert!(words.any(|line| line.expect("text").contains("listening on")));
    let captured = capture(&[site(&pair.b)], options, traffic);
    assert!(tcpdump.wait().expect("its end").success());
    let matching = Command::new("tcpdump")
        .args(["-Z", "root", "-w", "-", "-r"])
        .arg(&file)
        .arg(expression)
        .output()
        .expect("tcpdump");
    assert!(matching.status.success());
    std::fs::remove_file(&file).expect("its file");
    (captured, packets_of_pcap(&matching.stdout))
}

/// Returns the packets of a pcap file in this machine's byte order.
fn packets_of_pcap(file: &[u8]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut rest = &file[24..];
    while let Some(length) = rest.get(8..12) {
        let length = u32::from_ne_bytes(length.try_into().expect("four bytes")) as usize;
        packets.push(rest[16..16 + length].to_vec());
        rest = &rest[16 + length..];
    }
    packets
}
