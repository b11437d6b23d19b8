//! Synthetic traffic and stores that hold it: the same packets in every run, similar to the traffic at a network's
//! edge.

use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use trawl_packet::build::{Ipv4, Ipv6, Layer, Tcp, Template, Udp, flags};
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::write::{self, EnhancedPacket, SectionHeader, enhanced_packet, interface_description};
use trawl_packet::read::compressed;
use trawl_packet::seekable;
use trawl_pipeline::{Blocks, Writer};
use trawl_plan::outputs::StorePlan;
use trawl_spool::key::HOUR_NS;
use trawl_spool::{Config, StoreWriter};
use trawl_sys::{Error, Result};

use crate::harness::Bench;
use crate::process;
use crate::scratch::Directory;

/// Address of the packet to search for. No other packet has it, and it is in the range of the others' addresses.
pub const NEEDLE: Ipv4Addr = Ipv4Addr::new(10, 128, 77, 7);

/// 2026-01-01 00:00 UTC.
const BEGIN_NS: u64 = 1_767_225_600_000_000_000;
/// Mean gap between two packets.
const GAP_NS: u64 = 1_000;
/// Captured bytes of a packet.
const KEPT: usize = 96;
/// Shortest TCP header.
const HEADER: usize = 20;
/// Lengths of packets, and the share of packets with at most that length, in per cent.
const LENGTHS: [(usize, u64); 4] = [(66, 45), (120, 60), (590, 70), (1514, 100)];
/// Maximum number of consecutive packets of a flow.
const BURST: u64 = 16;
const SERVERS: u64 = 200;
/// Shares of flows, in per cent.
const IPV6: u64 = 15;
const UDP: u64 = 20;
/// Size of a write, in bytes of blocks.
const PIECE: usize = 256 << 10;
const HOST: &str = "host";
const CAPTURE: &str = "made-up";
/// Chunks of a store with 1,000 hosts in six weeks, and of a host in a day: one per minute.
const CHUNKS: u64 = 60_000_000;
const CHUNKS_A_DAY: u64 = 1_440;

/// An endless sequence of packets.
#[derive(Debug)]
struct Traffic {
    random: u64,
    flows: Vec<Flow>,
    now_ns: u64,
    flow: usize,
    left: u64,
}

#[derive(Debug)]
struct Flow {
    frame: Vec<u8>,
    /// Offset of the IP length; the next field is the part of the frame that it does not count.
    length_at: usize,
    outside: usize,
    /// Offset of TCP's sequence number.
    sequence_at: Option<usize>,
    sequence: u32,
}

impl Traffic {
    fn new(flows: usize) -> Self {
        let mut new = Self { random: 0x9e37_79b9_7f4a_7c15, flows: Vec::new(), now_ns: BEGIN_NS, flow: 0, left: 0 };
        new.flows = (0..flows.max(1)).map(|_| new.new_flow()).collect();
        new
    }

    /// Returns the next number of an xorshift generator.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn new_flow(&mut self) -> Flow {
        let server = self.next() % SERVERS;
        let client = self.next();
        let is_v6 = self.next() % 100 < IPV6;
        let is_udp = self.next() % 100 < UDP;
        let from_client = self.next() & 1 == 0;
        let mut ends: [(IpAddr, u16); 2] = if is_v6 {
            let [a, b, c, d, ..] = (client as u32).to_be_bytes().map(u16::from);
            let client = Ipv6Addr::new(0x2001, 0xdb8, a, b, c, d, 0, 1);
            let server = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, server as u16);
            [(client.into(), 0), (server.into(), 443)]
        } else {
            let [_, b, c, d] = (client as u32).to_be_bytes();
            // The needle's address belongs to no other host.
            let d = if [10, b, c, d] == NEEDLE.octets() { d + 1 } else { d };
            let server = Ipv4Addr::new(192, 0, 2, server as u8);
            [(Ipv4Addr::new(10, b, c, d).into(), 0), (server.into(), 443)]
        };
        ends[0].1 = 32_768 + (self.next() % 28_232) as u16;
        if !from_client {
            ends.swap(0, 1);
        }
        let sequence = self.next() as u32;
        let payload: Vec<u8> = (0..KEPT).map(|_| self.next() as u8).collect();
        flow(ends, is_udp, sequence, payload)
    }

    /// Appends the block of the next packet.
    fn packet(&mut self, out: &mut Vec<u8>) {
        if self.left == 0 {
            // Few flows have most of the packets.
            let (one, other) = (self.next(), self.next());
            let count = self.flows.len() as u64;
            self.flow = (one % count).min(other % count) as usize;
            self.left = 1 + self.next() % BURST;
        }
        self.left -= 1;
        let share = self.next() % 100;
        let length = LENGTHS.iter().find(|(_, up_to)| share < *up_to);
        let length = length.map_or(KEPT, |(length, _)| *length);
        self.now_ns += 1 + self.next() % (2 * GAP_NS);
        let fresh = self.next().to_be_bytes();
        let flow = &mut self.flows[self.flow];
        flow.advance(length, fresh);
        block(out, self.now_ns, &flow.frame, length);
    }

    fn needle(&mut self, out: &mut Vec<u8>) {
        self.now_ns += 1;
        let ends = [(NEEDLE.into(), 40_000), (Ipv4Addr::new(192, 0, 2, 1).into(), 443)];
        let needle = flow(ends, false, 1, vec![0; KEPT]);
        block(out, self.now_ns, &needle.frame, needle.frame.len());
    }
}

fn flow(ends: [(IpAddr, u16); 2], is_udp: bool, sequence: u32, payload: Vec<u8>) -> Flow {
    let [(src, src_port), (dst, dst_port)] = ends;
    let link = Template::new().ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (network, ip_len, length_at, outside) = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => (Layer::Ipv4(Ipv4::new(src, dst)), 20, 16, 14),
        (src, dst) => {
            let v6 = |address| match address {
                IpAddr::V6(address) => address,
                IpAddr::V4(address) => address.to_ipv6_mapped(),
            };
            (Layer::Ipv6(Ipv6::new(v6(src), v6(dst))), 40, 18, 54)
        }
    };
    let transport = if is_udp {
        Layer::Udp(Udp { src: src_port, dst: dst_port, checksum: true })
    } else {
        Layer::Tcp(Tcp { src: src_port, dst: dst_port, seq: sequence, flags: flags::ACK, ..Tcp::default() })
    };
    Flow {
        frame: link.layer(network).layer(transport).payload(payload).build(),
        length_at,
        outside,
        sequence_at: (!is_udp).then_some(14 + ip_len + 4),
        sequence,
    }
}

impl Flow {
    /// Changes the frame into the flow's next packet.
    fn advance(&mut self, length: usize, fresh: [u8; 8]) {
        let counted = (length.max(self.outside + HEADER) - self.outside) as u16;
        self.frame[self.length_at..][..2].copy_from_slice(&counted.to_be_bytes());
        if let Some(at) = self.sequence_at {
            self.sequence = self.sequence.wrapping_add(length.saturating_sub(66) as u32);
            self.frame[at..][..4].copy_from_slice(&self.sequence.to_be_bytes());
        }
        // Each packet has new bytes in the captured part of the payload.
        let from = KEPT.min(self.frame.len()) - fresh.len();
        self.frame[from..][..fresh.len()].copy_from_slice(&fresh);
    }
}

fn block(out: &mut Vec<u8>, timestamp_ns: u64, frame: &[u8], length: usize) {
    let packet = EnhancedPacket {
        timestamp_ns,
        captured: &frame[..KEPT.min(length).min(frame.len())],
        original_len: length as u32,
        flags: Some(1),
        ..EnhancedPacket::default()
    };
    enhanced_packet(out, &packet);
}

/// A store of synthetic packets in a directory of its own.
#[derive(Debug)]
pub struct Made {
    directory: Directory,
    trawl: PathBuf,
    pub packets: u64,
}

impl Made {
    /// Makes a store of one host's packets, with this many flows.
    pub fn new(bench: &Bench, packets: u64, flows: usize) -> Result<Self> {
        let made = Self { directory: Directory::new(&bench.scratch, "store")?, trawl: bench.trawl.clone(), packets };
        made.fill(HOST, packets, flows, false)?;
        Ok(made)
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Returns the directory that holds the store, and the store's name there.
    pub fn bucket(&self) -> (PathBuf, &'static str) {
        (self.directory.path().to_owned(), "store")
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.root().display())
    }

    /// Adds one more host with few packets, the last of which is the needle. They are not in the catalogue.
    pub fn add_needle(&mut self, packets: u64, flows: usize) -> Result<()> {
        self.packets += packets + 1;
        self.fill("needle", packets, flows, true)
    }

    fn fill(&self, host: &str, packets: u64, flows: usize, needle: bool) -> Result<()> {
        let spool = self.directory.path().join("spool");
        let config = Config {
            plan: StorePlan {
                spool: Some(spool.clone()),
                spool_bytes: u64::MAX,
                chunk_time: Duration::from_secs(3600),
                index: needle,
                ..StorePlan::new(self.url(), CAPTURE.to_owned())
            },
            host: host.to_owned(),
            boot: "boot".to_owned(),
            options: Vec::new(),
            trawl: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let interface = "eth0".to_owned();
        let run = config.open(vec![interface.clone()])?;
        let mut writer = StoreWriter::new(&config, run, None, |_| ())?;
        let mut blocks = Vec::new();
        write::section_header(&mut blocks, &SectionHeader::default());
        let described = Interface { name: Some(interface), snaplen: KEPT as u32, ..Interface::default() };
        interface_description(&mut blocks, &described);
        let mut traffic = Traffic::new(flows);
        for _ in 0..packets {
            traffic.packet(&mut blocks);
            if blocks.len() >= PIECE {
                writer.write(Blocks::Bytes(&blocks))?;
                blocks.clear();
            }
        }
        if needle {
            traffic.needle(&mut blocks);
        }
        writer.write(Blocks::Bytes(&blocks))?;
        let spooled = writer.end(std::iter::empty(), "count")?;
        if let Some(why) = spooled.trouble {
            return Err(Error::failed("cannot create a synthetic store", why));
        }
        let mut push = process::command(&self.trawl);
        process::run(push.args(["store", "push", "--spool"]).arg(spool))?;
        Ok(())
    }

    /// Extends the catalogue to `hosts` hosts: the first one's index under other names (hard links), and the facts of
    /// its run for each host, as old as if the store had 60 million chunks. The chunks are not copied.
    pub fn multiply(&mut self, hosts: u64) -> Result<()> {
        let root = self.root();
        let multiply = || -> io::Result<()> {
            let (metadata, version) = newest(&root.join("index/metadata"))?;
            let mut table: Value = serde_json::from_slice(&fs::read(&metadata)?)?;
            let mut state = unpacked(&root, &table["properties"]["trawl.state"])?;
            let mut runs = unpacked(&root, &state["runs"])?;
            for run in runs.as_array_mut().into_iter().flatten() {
                age(&mut run["run"], CHUNKS / hosts.max(1));
            }
            let (files, first) = (state["files"].clone(), runs.clone());
            for number in 2..=hosts {
                for file in files.as_array().into_iter().flatten() {
                    let key = file["key"].as_str().unwrap_or_default();
                    let name = key.replace(".parquet", &format!("-{number}.parquet"));
                    fs::hard_link(root.join(key), root.join(&name))?;
                    let mut file = file.clone();
                    file["key"] = name.into();
                    add(&mut state["files"], file);
                }
                for run in first.as_array().into_iter().flatten() {
                    let mut run = run.clone();
                    run["host"] = format!("{HOST}-{number}").into();
                    add(&mut runs, run);
                }
            }
            state["runs"] = pack(&root, "index/runs/many.json.zst", &runs)?;
            table["properties"]["trawl.state"] = pack(&root, "index/state/many.json.zst", &state)?;
            let next = metadata.with_file_name(format!("v{}.metadata.json", version + 1));
            fs::write(next, table.to_string())
        };
        multiply().map_err(|e| Error::os(format!("cannot make files in {}", root.display()), e))?;
        self.packets *= hosts.max(1);
        Ok(())
    }
}

/// Adds facts of earlier days to a run, until it has this many chunks. The index has no rows of them.
fn age(run: &mut Value, chunks: u64) {
    let Some(packets) = run["packets"].as_object_mut() else {
        return;
    };
    let first = packets.keys().filter_map(|hour| hour.parse::<u64>().ok()).min();
    let mut hour = first.unwrap_or(0);
    for _ in 0..chunks / CHUNKS_A_DAY {
        hour = hour.saturating_sub(24);
        let facts = json!({
            "chunks": CHUNKS_A_DAY,
            "bytes": CHUNKS_A_DAY << 20,
            "stored": CHUNKS_A_DAY * 1000,
            "first_ns": hour * HOUR_NS,
            "last_ns": (hour + 24) * HOUR_NS - 1,
        });
        packets.insert(hour.to_string(), facts);
    }
    let last = run["ranges"][0]["after"].clone();
    run["ranges"] = json!([{ "from": 0, "to": chunks, "before": 0, "after": last }]);
    run["end"]["chunks"] = chunks.into();
}

fn add(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// Returns the newest version of a table, and its number.
fn newest(metadata: &Path) -> io::Result<(PathBuf, u64)> {
    let version = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_prefix('v')?;
        name.strip_suffix(".metadata.json")?.parse().ok()
    };
    let paths = fs::read_dir(metadata)?.map_while(std::result::Result::ok);
    let versions = paths.filter_map(|entry| Some((entry.path(), version(&entry.path())?)));
    let newest = versions.max_by_key(|(_, version)| *version);
    newest.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Reads a part of the catalogue, by its key.
fn unpacked(root: &Path, key: &Value) -> io::Result<Value> {
    let file = fs::File::open(root.join(key.as_str().unwrap_or_default()))?;
    let (mut contents, _) = compressed::open(file)?;
    let mut text = Vec::new();
    contents.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Writes a part of the catalogue, and returns its key.
fn pack(root: &Path, key: &str, contents: &Value) -> io::Result<Value> {
    let mut writer = seekable::Writer::new(fs::File::create(root.join(key))?, 3);
    let text = contents.to_string();
    let pieces = text.as_bytes().chunks(seekable::FRAME_LEN);
    pieces.into_iter().try_for_each(|piece| writer.push(piece))?;
    writer.finish()?;
    Ok(key.into())
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::block::blocks;
    use trawl_packet::walk::walk;

    use super::*;

    #[test]
    fn synthetic_packets_are_complete_and_reproducible() {
        let made = || {
            let mut traffic = Traffic::new(50);
            let mut out = Vec::new();
            (0..1000).for_each(|_| traffic.packet(&mut out));
            traffic.needle(&mut out);
            out
        };
        let bytes = made();
        assert_eq!(bytes, made());
        let (mut count, mut tcp, mut last, mut found) = (0, 0, 0, 0);
        for block in blocks(&bytes) {
            let packet = block.enhanced_packet().expect("a packet");
            let headers = walk(1, packet.captured);
            let ip = headers.ip.expect("an IP packet");
            assert!(headers.ports.is_some(), "{ip:?}");
            assert!(packet.timestamp > last);
            last = packet.timestamp;
            count += 1;
            tcp += u64::from(headers.tcp.is_some());
            found += u64::from(ip.src == IpAddr::from(NEEDLE));
        }
        assert_eq!((count, found), (1001, 1));
        assert!((500..1000).contains(&tcp), "{tcp}");
    }
}
