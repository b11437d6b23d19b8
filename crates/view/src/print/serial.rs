//! Serial links: PPP and Cisco's HDLC.

use std::net::Ipv4Addr;

use super::line::{Data, Line, Printed, put};
use super::{carrier, link, names, ppp};

/// PPP, whose address and control bytes may be left out.
pub(super) fn ppp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ppp";
    data.need(4)?;
    line.link_header_len = 4;
    carrier::ppp(line, data)
}

/// PPP in HDLC frames: as such, or Cisco's framing where the first byte says so.
pub(super) fn ppp_in_hdlc(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const UNICAST: u8 = 0x0f;
    const BROADCAST: u8 = 0x8f;
    line.protocol = "ppp_hdlc";
    data.need(2)?;
    match data.u8(0)? {
        0xff => {
            data.need(4)?;
            line.link_header_len = 4;
            if line.options.link_header {
                put!(line, "ff {:02x} {} ", data.u8(1)?, data.len);
            }
            let protocol = data.u16(2)?;
            match ppp::name(protocol) {
                Some(name) => put!(line, "{name}: "),
                None => put!(line, "unknown PPP protocol (0x{protocol:04x}): "),
            }
            carrier::ppp_payload(line, protocol, data.skip(4))
        }
        UNICAST | BROADCAST => cisco_hdlc(line, data),
        address => {
            if line.options.link_header {
                put!(line, "{address:02x} {:02x} {} ", data.u8(1)?, data.len);
            }
            line.link_header_len = 4;
            let protocol = data.u16(2)?;
            put!(line, "unknown PPP protocol (0x{protocol:04x})");
            Ok(())
        }
    }
}

/// Cisco's HDLC: an address, a zero, and an ethertype.
pub(super) fn cisco_hdlc(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 4;
    const SLARP: u16 = 0x8035;
    const CDP: u16 = 0x2000;
    line.protocol = "chdlc";
    data.need(HEADER_LEN)?;
    let kind = data.u16(2)?;
    if line.options.link_header {
        match data.u8(0)? {
            0x0f => put!(line, "unicast, ethertype "),
            0x8f => put!(line, "bcast, ethertype "),
            address => put!(line, "0x{address:02x}, ethertype "),
        }
        names::put_ethertype(line, kind);
        put!(line, ", length {}: ", data.len);
    }
    if !line.is_nested() {
        line.link_header_len = HEADER_LEN;
    }
    let payload = data.skip(HEADER_LEN);
    match kind {
        SLARP => slarp(line, payload),
        CDP => super::cdp::print(line, payload),
        names::IPV4 | names::IPV6 | names::MPLS | names::MPLS_MULTICAST => {
            link::ethertype(line, kind, payload).map(drop)
        }
        _ => {
            if !line.options.link_header {
                put!(line, "unknown CHDLC protocol (0x{kind:04x})");
            }
            Ok(())
        }
    }
}

/// How both ends find out their addresses, and that the other one is there.
fn slarp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const LEAST: usize = 14;
    line.protocol = "slarp";
    if data.len < LEAST {
        return Err(super::line::Stop::Cut);
    }
    put!(line, "SLARP (length: {}), ", data.len);
    match data.u32(0)? {
        0 => put!(line, "request"),
        1 => {
            put!(
                line,
                "reply {}/{}",
                Ipv4Addr::from(data.u32(4)?),
                Ipv4Addr::from(data.u32(8)?)
            );
        }
        2 => {
            put!(
                line,
                "keepalive: mineseen=0x{:08x}, yourseen=0x{:08x}, reliability=0x{:04x}",
                data.u32(4)?,
                data.u32(8)?,
                data.u16(12)?
            );
            if data.len >= 18 {
                let seconds = data.u32(14)? / 1000;
                put!(
                    line,
                    ", link uptime={}d{}h{}m{}s",
                    seconds / 86_400,
                    seconds % 86_400 / 3_600,
                    seconds % 3_600 / 60,
                    seconds % 60
                );
            }
        }
        code => {
            put!(line, "0x{code:02x} unknown");
            if line.verbose() {
                super::dump::hex(line.out, "\n\t", data.skip(4).bytes);
            }
        }
    }
    Ok(())
}
