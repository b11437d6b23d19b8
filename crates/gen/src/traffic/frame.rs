//! Makes the frames of one spec: headers, the offsets of their fields, and the ranges of their checksums. The first
//! part has the link layer, tags, labels and tunnels.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use trawl_packet::build::{self, Icmp, Ipv4, Ipv6, Layer, Tcp, Template, Udp, Vlan};
use trawl_packet::net::{ethertype, protocol};

use super::field::{FieldKind, FieldValues};
use super::{Misfit, Payload, Protocol, Spec, family, hex};
use crate::pattern::{Cover, Edit, Variant};

const ETHERNET: usize = 14;
const TAG: usize = 4;
const VXLAN_PORT: u16 = 4789;
/// Base of the source port by which a tunnel distinguishes flows (RFC 7348 recommends the dynamic ports).
const TUNNEL_PORT: u128 = 49_152;
const TUNNEL_PORTS: u64 = 16_384;

/// The headers of one spec, and their varying fields.
pub(super) struct Maker {
    layers: Vec<Layer>,
    length: usize,
    edits: Vec<Edit>,
    sums: Vec<SumAt>,
    /// Range of the enclosing addresses for the next layer.
    addresses: Option<(Range<usize>, bool)>,
    seed: u64,
    fields: u64,
    tagged: bool,
    /// Offset of the Ethernet type that `ethertype` sets, and its value.
    ethertype: Option<(usize, u16)>,
    raw: Option<Vec<u8>>,
}

/// A checksum whose range may extend to the end of the frame.
struct SumAt {
    offset: usize,
    from: usize,
    /// `None`: to the end.
    to: Option<usize>,
    pseudo: Option<(Range<usize>, u64)>,
    never_zero: bool,
}

impl Maker {
    pub fn new(spec: &Spec, flows: Option<u64>, seed: u64) -> Result<Self, Misfit> {
        let mut maker = Self {
            layers: Vec::new(),
            length: 0,
            edits: Vec::new(),
            sums: Vec::new(),
            addresses: None,
            seed,
            fields: 0,
            tagged: false,
            ethertype: None,
            raw: None,
        };
        if spec.protocol == Protocol::Raw {
            return maker.raw(spec);
        }
        let varied = spec.with_flows(flows)?;
        maker.link(&varied, flows)?;
        if let Some(text) = spec.get("mpls") {
            maker.mpls(text)?;
        }
        match spec.protocol {
            Protocol::Udp | Protocol::Tcp | Protocol::Icmp => maker.network(&varied)?,
            Protocol::Arp => maker.arp(&varied)?,
            Protocol::Eth | Protocol::Raw => {}
        }
        Ok(maker)
    }

    /// Returns the length of all headers.
    pub fn headers(&self) -> usize {
        self.length
    }

    /// Returns the length of the shortest frame that a device accepts.
    pub fn least(&self) -> usize {
        self.length.max(ETHERNET)
    }

    /// Returns the length of the part that the MTU does not count.
    pub fn link_header(&self) -> usize {
        ETHERNET + if self.tagged { TAG } else { 0 }
    }

    /// Makes a frame of this length, with this many zeroes at its end.
    pub fn make(&self, length: usize, payload: &Payload, zeroes: usize) -> Result<Variant, Misfit> {
        let room = length.saturating_sub(self.length + zeroes);
        let mut bytes = match &self.raw {
            Some(raw) => {
                let mut bytes = raw.clone();
                bytes.resize(length, 0);
                bytes
            }
            None => {
                let mut carried = payload.bytes(room);
                carried.resize(room + zeroes, 0);
                let mut template = Template::new().payload(carried);
                for layer in &self.layers {
                    template = template.layer(layer.clone());
                }
                template.build()
            }
        };
        if let Some((at, ethertype)) = self.ethertype {
            bytes[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
        }
        let mut edits = self.edits.clone();
        if let Some(edit) = payload.varying(self.length, room)
            && self.raw.is_none()
        {
            edits.push(edit);
        }
        if edits.iter().any(|edit| edit.end() > bytes.len()) {
            return Err(Misfit::new("size", "the frame is too short for its varying fields"));
        }
        // Inner checksums first.
        let covers: Vec<Cover> = self.sums.iter().rev().map(|sum| sum.cover(bytes.len())).collect();
        Ok(Variant::new(bytes, edits, &covers))
    }

    fn raw(mut self, spec: &Spec) -> Result<Self, Misfit> {
        let text = spec
            .get("hex")
            .ok_or_else(|| Misfit::new("hex", "a raw frame requires its bytes in hexadecimal digits"))?;
        let bytes = hex(text).map_err(|why| Misfit::new("hex", why))?;
        if bytes.len() < ETHERNET {
            let why = format!("{} bytes are too few for a frame: an Ethernet header has {ETHERNET}", bytes.len());
            return Err(Misfit::new("hex", why));
        }
        self.tagged = matches!(bytes[12..14], [0x81, 0x00] | [0x88, 0xa8]);
        self.length = bytes.len();
        if spec.get("ethertype").is_some() {
            self.ethertype = Some((12, spec.number_or("ethertype", 16, 0)? as u16));
        }
        self.raw = Some(bytes);
        Ok(self)
    }

    fn push(&mut self, layer: Layer, length: usize) {
        self.layers.push(layer);
        self.length += length;
    }

    /// Records the offset of a field of up to 64 bits, and its edit if it varies.
    fn field(&mut self, offset: usize, width: usize, shift: u32, bits: u32, choice: &FieldValues) {
        let edit = choice.edit(self.next_seed());
        self.edits.extend(edit.map(|edit| edit.at(offset, width, shift, bits)));
    }

    /// Returns another seed for each field.
    fn next_seed(&mut self) -> u64 {
        self.fields += 1;
        self.seed ^ self.fields.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    /// Adds Ethernet, tags, and a tunnel with its contents up to the next Ethernet header.
    fn link(&mut self, spec: &Spec, flows: Option<u64>) -> Result<(), Misfit> {
        let tunnel = spec.get("vxlan");
        if tunnel.is_none()
            && let Some(key) = ["outer-src", "outer-dst", "outer-src-mac", "outer-dst-mac"]
                .into_iter()
                .find(|key| spec.get(key).is_some())
        {
            return Err(Misfit::new(key, "it requires a tunnel: set its VNI (vxlan)"));
        }
        let Some(vni) = tunnel else {
            self.ethernet(spec, "src-mac", "dst-mac")?;
            self.tags(spec)?;
            return self.ethertype(spec);
        };
        self.ethernet(spec, "outer-src-mac", "outer-dst-mac")?;
        self.tags(spec)?;
        let port = match flows {
            Some(flows) => FieldValues::Step { first: TUNNEL_PORT, step: 1, count: flows.min(TUNNEL_PORTS) },
            None => FieldValues::Fixed(TUNNEL_PORT),
        };
        self.ip(spec, ["outer-src", "outer-dst"], &FieldValues::Fixed(0), &FieldValues::Fixed(64))?;
        self.udp(&port, &FieldValues::Fixed(u128::from(VXLAN_PORT)));
        let vni = FieldKind::Number(24).values(vni).map_err(|why| Misfit::new("vxlan", why))?;
        self.field(self.length + 4, 4, 8, 24, &vni);
        self.push(Layer::Vxlan { vni: vni.first() as u32 }, 8);
        self.ethernet(spec, "src-mac", "dst-mac")?;
        self.ethertype(spec)
    }

    fn ethernet(&mut self, spec: &Spec, src: &str, dst: &str) -> Result<(), Misfit> {
        let mac = |key: &str| {
            spec.values(key, FieldKind::Mac)?
                .ok_or_else(|| Misfit::new(key, "the MAC address is unknown, so it must be given"))
        };
        let (dst, src) = (mac(dst)?, mac(src)?);
        let at = self.length;
        // Whole groups of eight bytes: the bytes after a MAC address are part of it and stay.
        self.field(at, 8, 16, 48, &dst);
        self.field(at + 6, 8, 16, 48, &src);
        self.push(Layer::Ethernet { src: mac_bytes(&src), dst: mac_bytes(&dst), ethertype: None }, ETHERNET);
        Ok(())
    }

    fn tags(&mut self, spec: &Spec) -> Result<(), Misfit> {
        let Some(text) = spec.get("vlan") else {
            return Ok(());
        };
        let tags: Vec<&str> = text.split(',').collect();
        for (at, tag) in tags.iter().enumerate() {
            let (id, priority) = tag.split_once(':').unwrap_or((tag, "0"));
            let wrong = |why| Misfit::new("vlan", why);
            let id = FieldKind::Number(12).values(id).map_err(wrong)?;
            let priority = FieldKind::Number(3).value(priority).map_err(wrong)?;
            self.field(self.length, 2, 0, 12, &id);
            let vlan = Vlan {
                id: id.first() as u16,
                priority: priority as u8,
                service: at + 1 < tags.len(),
                ..Vlan::default()
            };
            self.push(Layer::Vlan(vlan), TAG);
        }
        self.tagged = true;
        Ok(())
    }

    fn ethertype(&mut self, spec: &Spec) -> Result<(), Misfit> {
        if spec.get("ethertype").is_some() {
            let ethertype = spec.number_or("ethertype", 16, 0)? as u16;
            self.ethertype = Some((self.length - 2, ethertype));
        }
        Ok(())
    }

    fn mpls(&mut self, text: &str) -> Result<(), Misfit> {
        let labels: Vec<&str> = text.split(',').collect();
        let mut bytes = Vec::new();
        for (at, label) in labels.iter().enumerate() {
            let wrong = |why| Misfit::new("mpls", why);
            let label = FieldKind::Number(20).values(label).map_err(wrong)?;
            self.field(self.length + at * 4, 4, 12, 20, &label);
            let bottom = u32::from(at + 1 == labels.len());
            let entry = (label.first() as u32) << 12 | bottom << 8 | 64;
            bytes.extend(entry.to_be_bytes());
        }
        let length = bytes.len();
        self.push(Layer::Raw { bytes, ethertype: Some(ethertype::MPLS), protocol: None }, length);
        Ok(())
    }
}

impl SumAt {
    fn cover(&self, length: usize) -> Cover {
        let to = self.to.unwrap_or(length);
        let mut ranges = Vec::new();
        let mut constant = 0;
        if let Some((addresses, protocol)) = &self.pseudo {
            ranges.push(addresses.clone());
            constant = protocol + (to - self.from) as u64;
        }
        ranges.push(self.from..to);
        Cover { offset: self.offset, ranges, constant, never_zero: self.never_zero }
    }
}

pub(super) fn mac_bytes(choice: &FieldValues) -> [u8; 6] {
    let [_, _, mac @ ..] = (choice.first() as u64).to_be_bytes();
    mac
}

// The headers from IP on, and ARP.

const DISCARD_PORT: u128 = 9;
const SOURCE_PORT: u128 = 40_000;

impl Maker {
    fn network(&mut self, spec: &Spec) -> Result<(), Misfit> {
        let dscp = spec.values_or("dscp", FieldKind::Dscp, 0)?;
        let ttl = spec.values_or("ttl", FieldKind::Number(8), 64)?;
        let is_v6 = self.ip(spec, ["src", "dst"], &dscp, &ttl)?;
        match spec.protocol {
            Protocol::Udp => {
                let port = |key, default| spec.values_or(key, FieldKind::Number(16), default);
                self.udp(&port("src-port", SOURCE_PORT)?, &port("dst-port", DISCARD_PORT)?);
                Ok(())
            }
            Protocol::Tcp => self.tcp(spec),
            _ => self.icmp(spec, is_v6),
        }
    }

    /// Adds an IP header; returns true if it is IPv6.
    fn ip(&mut self, spec: &Spec, keys: [&str; 2], dscp: &FieldValues, ttl: &FieldValues) -> Result<bool, Misfit> {
        let text =
            |key: &str| spec.get(key).ok_or_else(|| Misfit::new(key, "the address is unknown, so it must be given"));
        let (src, dst) = (text(keys[0])?, text(keys[1])?);
        let kind = family(dst);
        if family(src) != kind {
            let why = "source and destination are of different families";
            return Err(Misfit::new(keys[0], why));
        }
        let choice = |key, text| kind.values(text).map_err(|why| Misfit::new(key, why));
        let (src, dst) = (choice(keys[0], src)?, choice(keys[1], dst)?);
        let at = self.length;
        if kind == FieldKind::V6 {
            self.field(at, 2, 6, 6, dscp);
            self.field(at + 6, 2, 0, 8, ttl);
            for (offset, address) in [(at + 8, &src), (at + 24, &dst)] {
                let seed = self.next_seed();
                self.edits.extend(address.edits_v6(offset, seed));
            }
            let ip = Ipv6 {
                traffic_class: (dscp.first() as u8) << 2,
                hop_limit: ttl.first() as u8,
                ..Ipv6::new(Ipv6Addr::from(src.first()), Ipv6Addr::from(dst.first()))
            };
            self.addresses = Some((at + 8..at + 40, true));
            self.push(Layer::Ipv6(ip), 40);
            return Ok(true);
        }
        self.field(at, 2, 2, 6, dscp);
        self.field(at + 8, 2, 8, 8, ttl);
        self.field(at + 12, 4, 0, 32, &src);
        self.field(at + 16, 4, 0, 32, &dst);
        self.sums.push(SumAt { offset: at + 10, from: at, to: Some(at + 20), pseudo: None, never_zero: false });
        let v4 = |choice: &FieldValues| Ipv4Addr::from(choice.first() as u32);
        let ip = Ipv4 { tos: (dscp.first() as u8) << 2, ttl: ttl.first() as u8, ..Ipv4::new(v4(&src), v4(&dst)) };
        self.addresses = Some((at + 12..at + 20, false));
        self.push(Layer::Ipv4(ip), 20);
        Ok(false)
    }

    /// Adds a checksum from here to the end, with the pseudo-header of that protocol.
    fn sum(&mut self, offset: usize, protocol: Option<u8>, never_zero: bool) {
        let pseudo = self.addresses.clone().zip(protocol).map(|((range, _), protocol)| (range, u64::from(protocol)));
        self.sums.push(SumAt { offset: self.length + offset, from: self.length, to: None, pseudo, never_zero });
    }

    fn udp(&mut self, src: &FieldValues, dst: &FieldValues) {
        self.field(self.length, 2, 0, 16, src);
        self.field(self.length + 2, 2, 0, 16, dst);
        self.sum(6, Some(protocol::UDP), true);
        let udp = Udp { src: src.first() as u16, dst: dst.first() as u16, checksum: true };
        self.push(Layer::Udp(udp), 8);
    }

    fn tcp(&mut self, spec: &Spec) -> Result<(), Misfit> {
        let at = self.length;
        let src = spec.values_or("src-port", FieldKind::Number(16), SOURCE_PORT)?;
        let dst = spec.values_or("dst-port", FieldKind::Number(16), DISCARD_PORT)?;
        let seq = spec.values_or("seq", FieldKind::Number(32), 0)?;
        let ack = spec.values_or("ack", FieldKind::Number(32), 0)?;
        self.field(at, 2, 0, 16, &src);
        self.field(at + 2, 2, 0, 16, &dst);
        self.field(at + 4, 4, 0, 32, &seq);
        self.field(at + 8, 4, 0, 32, &ack);
        self.sum(16, Some(protocol::TCP), false);
        let tcp = Tcp {
            src: src.first() as u16,
            dst: dst.first() as u16,
            seq: seq.first() as u32,
            ack: ack.first() as u32,
            flags: tcp_flags(spec.get("flags").unwrap_or("syn"))?,
            window: spec.number_or("window", 16, 65_535)? as u16,
            ..Tcp::default()
        };
        self.push(Layer::Tcp(tcp), 20);
        Ok(())
    }

    fn icmp(&mut self, spec: &Spec, is_v6: bool) -> Result<(), Misfit> {
        let at = self.length;
        let id = spec.values_or("id", FieldKind::Number(16), 1)?;
        let seq = spec.values_or("seq", FieldKind::Number(16), 1)?;
        self.field(at + 4, 2, 0, 16, &id);
        self.field(at + 6, 2, 0, 16, &seq);
        self.sum(2, is_v6.then_some(protocol::ICMPV6), false);
        let ([a, b], [c, d]) = ((id.first() as u16).to_be_bytes(), (seq.first() as u16).to_be_bytes());
        let echo_request = if is_v6 { 128 } else { 8 };
        let icmp = Icmp {
            kind: spec.number_or("type", 8, echo_request)? as u8,
            code: spec.number_or("code", 8, 0)? as u8,
            rest: [a, b, c, d],
        };
        self.push(if is_v6 { Layer::Icmpv6(icmp) } else { Layer::Icmp(icmp) }, 8);
        Ok(())
    }

    fn arp(&mut self, spec: &Spec) -> Result<(), Misfit> {
        let address = |key: &str| {
            let missing = || Misfit::new(key, "the address is unknown, so it must be given");
            spec.values(key, FieldKind::V4)?.ok_or_else(missing)
        };
        let (src, dst) = (address("src")?, address("dst")?);
        let is_reply = match spec.get("op").unwrap_or("request") {
            "request" | "1" => false,
            "reply" | "2" => true,
            other => {
                return Err(Misfit::new("op", format!("'{other}' is neither request nor reply")));
            }
        };
        let src_mac = spec.values_or("src-mac", FieldKind::Mac, 0)?;
        let dst_mac = spec.values_or("dst-mac", FieldKind::Mac, 0)?;
        let at = self.length;
        // The same values in the same order as in the Ethernet header: random ones have the same seed.
        self.repeat(at + 8, at - ETHERNET + 6);
        self.field(at + 14, 4, 0, 32, &src);
        if is_reply {
            self.repeat(at + 18, at - ETHERNET);
        }
        self.field(at + 24, 4, 0, 32, &dst);
        let v4 = |choice: &FieldValues| Ipv4Addr::from(choice.first() as u32);
        let arp = build::Arp {
            operation: if is_reply { 2 } else { 1 },
            sender_mac: mac_bytes(&src_mac),
            sender_ip: v4(&src),
            target_mac: if is_reply { mac_bytes(&dst_mac) } else { [0; 6] },
            target_ip: v4(&dst),
        };
        self.push(Layer::Arp(arp), 28);
        Ok(())
    }

    /// Repeats the MAC address of the Ethernet header.
    fn repeat(&mut self, offset: usize, original: usize) {
        let header = self.edits.iter().find(|edit| edit.offset() == original && edit.width() == 8);
        let edit_of_copy = header.map(|edit| edit.clone().moved(offset));
        self.edits.extend(edit_of_copy);
    }
}

fn tcp_flags(text: &str) -> Result<u8, Misfit> {
    use build::flags::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};
    let mut all = 0;
    for flag in text.split(',') {
        all |= match flag.trim().to_ascii_lowercase().as_str() {
            "fin" => FIN,
            "syn" => SYN,
            "rst" => RST,
            "psh" => PSH,
            "ack" => ACK,
            "urg" => URG,
            "ece" => ECE,
            "cwr" => CWR,
            "none" => 0,
            other => {
                let why = format!("'{other}' is not one of fin, syn, rst, psh, ack, urg, ece, cwr, none");
                return Err(Misfit::new("flags", why));
            }
        };
    }
    Ok(all)
}
