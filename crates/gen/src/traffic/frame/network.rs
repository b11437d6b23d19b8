//! The headers from IP on, and ARP.

use std::net::{Ipv4Addr, Ipv6Addr};

use trawl_packet::build::{self, Icmp, Ipv4, Ipv6, Layer, Tcp, Udp};

use super::{ETHERNET, Maker, SumAt, mac_bytes};
use crate::pattern::Edit;
use crate::traffic::field::{Choice, Kind};
use crate::traffic::{Misfit, Protocol, Spec, family};

const DISCARD_PORT: u128 = 9;
const SOURCE_PORT: u128 = 40_000;
const PROTOCOL_UDP: u64 = 17;
const PROTOCOL_TCP: u64 = 6;
const PROTOCOL_ICMPV6: u64 = 58;

impl Maker {
    pub(super) fn network(&mut self, spec: &Spec) -> Result<(), Misfit> {
        let dscp = spec.choice_or("dscp", Kind::Dscp, 0)?;
        let ttl = spec.choice_or("ttl", Kind::Number(8), 64)?;
        let is_v6 = self.ip(spec, ["src", "dst"], &dscp, &ttl)?;
        match spec.protocol {
            Protocol::Udp => {
                let port = |key, default| spec.choice_or(key, Kind::Number(16), default);
                self.udp(
                    &port("src-port", SOURCE_PORT)?,
                    &port("dst-port", DISCARD_PORT)?,
                );
                Ok(())
            }
            Protocol::Tcp => self.tcp(spec),
            _ => self.icmp(spec, is_v6),
        }
    }

    /// An IP header; says whether it is IPv6.
    pub(super) fn ip(
        &mut self,
        spec: &Spec,
        keys: [&str; 2],
        dscp: &Choice,
        ttl: &Choice,
    ) -> Result<bool, Misfit> {
        let text = |key: &str| {
            spec.get(key)
                .ok_or_else(|| Misfit::new(key, "the address is not known: give it"))
        };
        let (src, dst) = (text(keys[0])?, text(keys[1])?);
        let kind = family(dst);
        if family(src) != kind {
            let why = "source and destination are of different families";
            return Err(Misfit::new(keys[0], why));
        }
        let choice = |key, text| kind.choice(text).map_err(|why| Misfit::new(key, why));
        let (src, dst) = (choice(keys[0], src)?, choice(keys[1], dst)?);
        let at = self.length;
        if kind == Kind::V6 {
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
        self.sums.push(SumAt {
            offset: at + 10,
            from: at,
            to: Some(at + 20),
            pseudo: None,
            never_zero: false,
        });
        let v4 = |choice: &Choice| Ipv4Addr::from(choice.first() as u32);
        let ip = Ipv4 {
            tos: (dscp.first() as u8) << 2,
            ttl: ttl.first() as u8,
            ..Ipv4::new(v4(&src), v4(&dst))
        };
        self.addresses = Some((at + 12..at + 20, false));
        self.push(Layer::Ipv4(ip), 20);
        Ok(false)
    }

    /// A checksum from here to the end, with the pseudo-header of that protocol.
    fn sum(&mut self, offset: usize, protocol: Option<u64>, never_zero: bool) {
        let pseudo = self
            .addresses
            .clone()
            .zip(protocol)
            .map(|((range, _), protocol)| (range, protocol));
        self.sums.push(SumAt {
            offset: self.length + offset,
            from: self.length,
            to: None,
            pseudo,
            never_zero,
        });
    }

    pub(super) fn udp(&mut self, src: &Choice, dst: &Choice) {
        self.field(self.length, 2, 0, 16, src);
        self.field(self.length + 2, 2, 0, 16, dst);
        self.sum(6, Some(PROTOCOL_UDP), true);
        let udp = Udp {
            src: src.first() as u16,
            dst: dst.first() as u16,
            checksum: true,
        };
        self.push(Layer::Udp(udp), 8);
    }

    fn tcp(&mut self, spec: &Spec) -> Result<(), Misfit> {
        let at = self.length;
        let src = spec.choice_or("src-port", Kind::Number(16), SOURCE_PORT)?;
        let dst = spec.choice_or("dst-port", Kind::Number(16), DISCARD_PORT)?;
        let seq = spec.choice_or("seq", Kind::Number(32), 0)?;
        let ack = spec.choice_or("ack", Kind::Number(32), 0)?;
        self.field(at, 2, 0, 16, &src);
        self.field(at + 2, 2, 0, 16, &dst);
        self.field(at + 4, 4, 0, 32, &seq);
        self.field(at + 8, 4, 0, 32, &ack);
        self.sum(16, Some(PROTOCOL_TCP), false);
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
        let id = spec.choice_or("id", Kind::Number(16), 1)?;
        let seq = spec.choice_or("seq", Kind::Number(16), 1)?;
        self.field(at + 4, 2, 0, 16, &id);
        self.field(at + 6, 2, 0, 16, &seq);
        self.sum(2, is_v6.then_some(PROTOCOL_ICMPV6), false);
        let ([a, b], [c, d]) = (
            (id.first() as u16).to_be_bytes(),
            (seq.first() as u16).to_be_bytes(),
        );
        let echo_request = if is_v6 { 128 } else { 8 };
        let icmp = Icmp {
            kind: spec.number_or("type", 8, echo_request)? as u8,
            code: spec.number_or("code", 8, 0)? as u8,
            rest: [a, b, c, d],
        };
        self.push(
            if is_v6 {
                Layer::Icmpv6(icmp)
            } else {
                Layer::Icmp(icmp)
            },
            8,
        );
        Ok(())
    }

    pub(super) fn arp(&mut self, spec: &Spec) -> Result<(), Misfit> {
        let address = |key: &str| {
            let missing = || Misfit::new(key, "the address is not known: give it");
            spec.choice(key, Kind::V4)?.ok_or_else(missing)
        };
        let (src, dst) = (address("src")?, address("dst")?);
        let is_reply = match spec.get("op").unwrap_or("request") {
            "request" | "1" => false,
            "reply" | "2" => true,
            other => {
                return Err(Misfit::new(
                    "op",
                    format!("'{other}' is neither request nor reply"),
                ));
            }
        };
        let src_mac = spec.choice_or("src-mac", Kind::Mac, 0)?;
        let dst_mac = spec.choice_or("dst-mac", Kind::Mac, 0)?;
        let at = self.length;
        // The same values in the same order as in the Ethernet header: random ones from the same chances.
        self.repeat(at + 8, at - ETHERNET + 6);
        self.field(at + 14, 4, 0, 32, &src);
        if is_reply {
            self.repeat(at + 18, at - ETHERNET);
        }
        self.field(at + 24, 4, 0, 32, &dst);
        let v4 = |choice: &Choice| Ipv4Addr::from(choice.first() as u32);
        let arp = build::Arp {
            operation: if is_reply { 2 } else { 1 },
            sender_mac: mac_bytes(&src_mac),
            sender_ip: v4(&src),
            target_mac: if is_reply {
                mac_bytes(&dst_mac)
            } else {
                [0; 6]
            },
            target_ip: v4(&dst),
        };
        self.push(Layer::Arp(arp), 28);
        Ok(())
    }

    /// The MAC address of the Ethernet header once more.
    fn repeat(&mut self, offset: usize, original: usize) {
        let header = self
            .edits
            .iter()
            .find(|edit| edit.offset == original && edit.width == 8);
        let again = header.map(|edit| Edit {
            offset,
            ..edit.clone()
        });
        self.edits.extend(again);
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
                let why =
                    format!("'{other}' is not one of fin, syn, rst, psh, ack, urg, ece, cwr, none");
                return Err(Misfit::new("flags", why));
            }
        };
    }
    Ok(all)
}
