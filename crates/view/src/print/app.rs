//! What applications send, by their well-known ports, in tcpdump's words where tcpdump has them. TLS, QUIC, WireGuard
//! and GTP-U, which tcpdump does not decode, come after its own text.

use super::line::{Data, Line, Printed, put};
use super::protocol::Ip;
use super::{
    Datagrams, bgp, carrier, control, dhcp, dhcp6, dns, ipv4, ipv6, nfs, radius, secure, snmp,
    text, tunnel,
};

/// After the header of a datagram; false if nothing is known of its ports.
pub(super) fn udp(
    line: &mut Line<'_>,
    ip: &Ip,
    ports: (u16, u16),
    data: Data<'_>,
) -> Result<bool, super::line::Stop> {
    let (src, dst) = ports;
    let either = |port| src == port || dst == port;
    if nfs::print(line, ip, ports, data)? {
        return Ok(true);
    }
    if either(53) {
        dns::print(line, data, false)?;
    } else if either(5353) {
        dns::print(line, data, true)?;
    } else if either(69) {
        text::tftp(line, data)?;
    } else if either(67) || either(68) {
        dhcp::print(line, data)?;
    } else if either(161) || either(162) {
        snmp::print(line, data)?;
    } else if either(123) {
        control::ntp(line, data)?;
    } else if either(546) || either(547) {
        dhcp6::print(line, data)?;
    } else if [1812, 1813, 1645, 1646, 1700, 3799].into_iter().any(either) {
        radius::print(line, data)?;
    } else if matches!(dst, 3784 | 3785 | 4784 | 6784) {
        control::bfd(line, dst, data)?;
    } else if either(500) {
        secure::isakmp(line, data)?;
    } else if either(319) || either(320) {
        control::ptp(line, data)?;
    } else if either(1985) {
        control::hsrp(line, data)?;
    } else if either(4500) {
        encapsulated_esp(line, data)?;
    } else if either(514) {
        text::syslog(line, data)?;
    } else if either(5060) {
        text::sip(line, data)?;
    } else if either(2152) {
        gtp_u(line, data)?;
    } else if either(51820) {
        put!(line, "UDP, length {}", data.len);
        secure::wireguard(line, data);
    } else if either(6635) {
        carrier::mpls(line, data)?;
    } else if either(443) && !ip.fragmented {
        put!(line, "UDP, length {}", data.len);
        secure::quic(line, data);
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// After the ports of a datagram, of which it was said what it holds.
pub(super) fn as_told(line: &mut Line<'_>, datagrams: Datagrams, data: Data<'_>) -> Printed {
    match datagrams {
        Datagrams::Domain => dns::print(line, data, false),
        Datagrams::Quic => {
            put!(line, "UDP, length {}", data.len);
            secure::quic(line, data);
            Ok(())
        }
        Datagrams::Radius => radius::print(line, data),
        Datagrams::Snmp => snmp::print(line, data),
        Datagrams::Tftp => text::tftp(line, data),
        Datagrams::Vxlan => tunnel::vxlan(line, data),
    }
}

/// After the length of a segment with a payload.
pub(super) fn tcp(line: &mut Line<'_>, ip: &Ip, ports: (u16, u16), data: Data<'_>) -> Printed {
    let (src, dst) = ports;
    let either = |port| src == port || dst == port;
    if either(25) {
        text::lines(line, "smtp", ": SMTP", data)
    } else if either(43) {
        text::lines(line, "whois", ": WHOIS", data)
    } else if either(179) {
        bgp::print(line, data)
    } else if either(22) {
        text::ssh(line, data)
    } else if either(21) {
        text::lines(line, "ftp", ": FTP", data)
    } else if either(80) || either(8080) {
        text::http(line, data)
    } else if either(554) || either(8554) {
        text::rtsp(line, data)
    } else if either(53) {
        dns::print_over_tcp(line, data)
    } else if either(2049) && data.len >= 4 && data.bytes.len() >= 4 {
        put!(line, ": ");
        let fragment = (data.u32(0)? & 0x7fff_ffff) as usize;
        let message = data.skip(4);
        let known = nfs::print(line, ip, ports, message.claimed(fragment.min(message.len)))?;
        if !known {
            // As if nothing had been known of the port.
            line.out.truncate(line.out.len() - 2);
        }
        Ok(())
    } else {
        secure::tls(line, data);
        Ok(())
    }
}

/// ESP behind a translator of addresses, its signs of life, and key exchange.
fn encapsulated_esp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "isakmp_rfc3948";
    if data.len == 1 && data.u8(0)? == 0xff {
        put!(line, "isakmp-nat-keep-alive");
        return Ok(());
    }
    if data.len < 4 {
        return Err(super::line::Stop::Cut);
    }
    if data.u32(0)? == 0 {
        put!(line, "NONESP-encap: ");
        return secure::isakmp(line, data.skip(4));
    }
    put!(line, "UDP-encap: ");
    super::protocol::esp(line, data)
}

/// The user's part of GTP: the header of the tunnel, and the packet inside.
fn gtp_u(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const G_PDU: u8 = 255;
    line.protocol = "gtp-u";
    let flags = data.u8(0)?;
    let (version, is_gtp) = (flags >> 5, flags & 0x10 != 0);
    put!(line, "UDP, length {}", data.len);
    if version != 1 || !is_gtp {
        return Ok(());
    }
    let (kind, teid) = (data.u8(1)?, data.u32(4)?);
    let name = match kind {
        1 => "echo request",
        2 => "echo response",
        26 => "error indication",
        31 => "extension headers",
        254 => "end marker",
        G_PDU => "G-PDU",
        _ => "unknown message",
    };
    put!(line, ": GTP-U, {name} ({kind}), TEID 0x{teid:08x}");
    let mut at = 8;
    // Sequence number, N-PDU number and the next extension's type stand there if any of them is used.
    if flags & 7 != 0 {
        let mut next = if flags & 4 != 0 { data.u8(11)? } else { 0 };
        at = 12;
        while next != 0 {
            let len = usize::from(data.u8(at)?) * 4;
            if len == 0 {
                return Err(super::line::Stop::Invalid);
            }
            next = data.u8(at + len - 1)?;
            at += len;
        }
    }
    if kind != G_PDU {
        return Ok(());
    }
    let inner = data.skip(at);
    put!(line, ": ");
    line.nested(|line| match inner.u8(0)? >> 4 {
        4 => ipv4::print(line, inner),
        6 => ipv6::print(line, inner),
        version => {
            put!(line, "unknown version {version}");
            Ok(())
        }
    })
}
