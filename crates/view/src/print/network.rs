//! IP and its payloads: printers by an IP header's protocol number, AH and ESP.

pub mod arp;
pub mod icmp;
pub mod icmpv6;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod tunnel;

use std::net::IpAddr;
use trawl_packet::net::protocol;

use super::line::{Data, Line, Printed, Stop, put};
use super::{digits, ethernet, names, ospf, pim, sctp, tcp, udp, vrrp};
use trawl_packet::checksum::Addresses;

/// The parts of an IP header that transport headers need.
#[derive(Debug, Clone, Copy)]
pub struct Ip {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// The home address of a mobile host, and the end of a source route: checksums use these addresses.
    pub final_src: IpAddr,
    pub final_dst: IpAddr,
    /// The IP header's own protocol number, whatever extension headers follow it.
    pub protocol: u8,
    pub ttl: u8,
    pub fragmented: bool,
}

impl Ip {
    pub fn is_v4(&self) -> bool {
        self.src.is_ipv4()
    }

    /// Returns the addresses for a transport checksum; `None` if source and destination differ in version.
    pub fn addresses(&self) -> Option<Addresses> {
        match (self.final_src, self.final_dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Addresses::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Addresses::V6(src, dst)),
            _ => None,
        }
    }

    /// Shows `10.0.0.1.1234 > 10.0.0.2.80: `, or only the ports if the addresses are already shown.
    pub fn put_ports(&self, line: &mut Line<'_>, protocol: u8, data: Data<'_>) -> Result<(u16, u16), Stop> {
        let ports = data.u16(0).and_then(|src| Ok((src, data.u16(2)?)));
        let (from, to) = (self.src, self.dst);
        match (ports, self.protocol == protocol) {
            (Ok((src, dst)), true) => {
                digits::address(line.out, from);
                line.put_number(".", src);
                line.out.push_str(" > ");
                digits::address(line.out, to);
                line.put_number(".", dst);
                line.out.push_str(": ");
            }
            (Ok((src, dst)), false) => put!(line, "{src} > {dst}: "),
            // The mark of the cut begins with a space of its own.
            (Err(_), true) if protocol == protocol::TCP => put!(line, "{from} > {to}:"),
            (Err(_), true) => put!(line, "{from} > {to}: "),
            (Err(_), false) => {}
        }
        ports
    }
}

pub fn print(line: &mut Line<'_>, ip: &Ip, number: u8, data: Data<'_>) -> Printed {
    match number {
        protocol::TCP => tcp::print(line, ip, data),
        protocol::UDP => udp::print(line, ip, data),
        protocol::SCTP => sctp::print(line, ip, data),
        protocol::ICMP if ip.is_v4() => icmp::print(line, ip, data),
        protocol::ICMPV6 if !ip.is_v4() => icmpv6::print(line, ip, data),
        protocol::IGMP if ip.is_v4() => igmp::print(line, data),
        protocol::ICMP | protocol::IGMP => wrong_version(line, number, 4),
        protocol::ICMPV6 => wrong_version(line, number, 6),
        protocol::IP_IN_IP => ipv4::print(line, data),
        protocol::IPV6_IN_IP => ipv6::print(line, data),
        protocol::GRE => tunnel::gre(line, data),
        protocol::AUTHENTICATION => authentication(line, ip, data),
        protocol::ESP => esp(line, data),
        protocol::ETHERNET_IN_IP if !ip.is_v4() => ethernet::print(line, data),
        88 => eigrp(line, data),
        89 => ospf::print(line, ip, data),
        103 => pim::print(line, ip, data),
        112 => vrrp::print(line, ip, ip.ttl, data),
        protocol::NO_NEXT_HEADER => {
            put!(line, "no next header");
            Ok(())
        }
        _ => {
            match named_only(number) {
                Some(name) => put!(line, "{name}, length {}", data.len),
                None => put!(line, " ip-proto-{number} {}", data.len),
            }
            Ok(())
        }
    }
}

pub fn esp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "esp";
    line.show(data, "ESP(spi=0x{x32 0},seq=0x{h32 4})")?;
    put!(line, ", length {}", data.len);
    Ok(())
}

fn eigrp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "eigrp";
    let (version, code) = (data.u8(0)?, data.u8(1)?);
    match version {
        2 => put!(line, "EIGRP {}, length: {}", names::text("eigrp", code), data.len),
        _ => put!(line, "EIGRP version {version} packet not supported"),
    }
    Ok(())
}

fn wrong_version(line: &mut Line<'_>, number: u8, version: u8) -> Printed {
    let name = names::protocol(number).unwrap_or("unknown");
    put!(line, "[{name} requires IPv{version}]");
    Err(Stop::Invalid)
}

/// Returns the name of a protocol that is not decoded.
fn named_only(number: u8) -> Option<&'static str> {
    matches!(number, 8 | 9 | protocol::DCCP | 46 | 55 | 108 | 113 | 135).then(|| names::protocol(number)).flatten()
}

fn authentication(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    const FIXED_LEN: usize = 12;
    line.protocol = "ah";
    let (next, words) = (data.u8(0)?, data.u8(1)?);
    let len = (usize::from(words) + 2) * 4;
    put!(line, "AH(");
    if line.verbose() {
        put!(line, "length={words}({len}-bytes),");
    }
    line.show(data, "spi=0x{x32 4},")?;
    line.show(data, "seq=0x{h32 8},icv=0x")?;
    if len > data.len {
        return Err(Stop::Invalid);
    }
    // A header of length 0 ends before its sequence number, and so does tcpdump's.
    if len > FIXED_LEN {
        line.put_hex(data.slice(FIXED_LEN, len - FIXED_LEN)?);
    }
    put!(line, "): ");
    // A chain of these headers can be as deep as a packet is long.
    line.nested(|line| print(line, ip, next, data.skip(len)))
}
