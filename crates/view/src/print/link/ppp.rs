//! PPP: in HDLC frames, in Cisco's, over Ethernet; and its own protocols: LCP and the control protocols of its
//! payloads, PAP and CHAP.

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::{cdp, ipv4, ipv6, link, names, tunnel};
use trawl_packet::net::ethertype;

const LCP: u16 = 0xc021;
const IPCP: u16 = 0x8021;
const IPV6CP: u16 = 0x8057;
const CCP: u16 = 0x80fd;
const BACP: u16 = 0xc02b;
const PAP: u16 = 0xc023;
const CHAP: u16 = 0xc223;

fn name(protocol: u16) -> Option<&'static str> {
    names::find("ppp", protocol)
}

/// Shows PPP as a link type; the address and control bytes are optional.
pub fn serial(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ppp";
    data.need(4)?;
    line.link_header_len = 4;
    print(line, data)
}

/// Shows PPP in HDLC frames, or Cisco's framing if the first byte says so.
pub fn in_hdlc(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const UNICAST: u8 = 0x0f;
    const BROADCAST: u8 = 0x8f;
    line.protocol = "ppp_hdlc";
    data.need(2)?;
    let address = data.u8(0)?;
    if matches!(address, UNICAST | BROADCAST) {
        return cisco_hdlc(line, data);
    }
    let is_ppp = address == 0xff;
    if is_ppp {
        data.need(4)?;
    }
    line.link_header_len = 4;
    if line.options.link_header {
        put!(line, "{address:02x} {:02x} {} ", data.u8(1)?, data.len);
    }
    let protocol = data.u16(2)?;
    match name(protocol).filter(|_| is_ppp) {
        Some(name) => put!(line, "{name}"),
        None => put!(line, "unknown PPP protocol (0x{protocol:04x})"),
    }
    if !is_ppp {
        return Ok(());
    }
    put!(line, ": ");
    payload(line, protocol, data.skip(4))
}

/// Shows Cisco's HDLC: an address, a zero, and an ethertype.
pub fn cisco_hdlc(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 4;
    const SLARP: u16 = 0x8035;
    const CDP: u16 = 0x2000;
    line.protocol = "chdlc";
    data.need(HEADER_LEN)?;
    let kind = data.u16(2)?;
    if line.options.link_header {
        let address = names::text("chdlc", data.u8(0)?);
        put!(line, "{address}, ethertype ");
        line.put_ethertype(kind);
        put!(line, ", length {}: ", data.len);
    }
    if !line.is_nested() {
        line.link_header_len = HEADER_LEN;
    }
    let payload = data.skip(HEADER_LEN);
    match kind {
        SLARP => slarp(line, payload),
        CDP => cdp::print(line, payload),
        ethertype::IPV4 | ethertype::IPV6 | ethertype::MPLS | ethertype::MPLS_MULTICAST => {
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

/// Shows SLARP, by which both ends find out their addresses and keep the link alive.
fn slarp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const LEAST: usize = 14;
    line.protocol = "slarp";
    if data.len < LEAST {
        return Err(Stop::Cut);
    }
    put!(line, "SLARP (length: {}), ", data.len);
    match data.u32(0)? {
        0 => put!(line, "request"),
        1 => line.show(data, "reply {ip4 4}/{ip4 8}")?,
        2 => {
            line.show(data, "keepalive: mineseen=0x{x32 4}, yourseen=0x{x32 8}, reliability=0x{x16 12}")?;
            if data.len >= 18 {
                let seconds = data.u32(14)? / 1000;
                let (minutes, seconds) = (seconds / 60, seconds % 60);
                let (days, hours) = (minutes / 1440, minutes / 60 % 24);
                put!(line, ", link uptime={days}d{hours}h{}m{seconds}s", minutes % 60);
            }
        }
        code => {
            put!(line, "0x{code:02x} unknown");
            if line.verbose() {
                line.dump("\n\t", data.skip(4).bytes);
            }
        }
    }
    Ok(())
}

/// Shows PPPoE: the tags of discovery, or a frame of a session.
pub fn over_ethernet(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 6;
    const SESSION: u8 = 0;
    line.protocol = "pppoe";
    if data.len < HEADER_LEN {
        put!(line, "truncated-pppoe {}", data.len);
        return Ok(());
    }
    data.need(HEADER_LEN)?;
    let (version, code) = (data.u8(0)?, data.u8(1)?);
    let (session, len) = (data.u16(2)?, usize::from(data.u16(4)?));
    if version >> 4 != 1 {
        put!(line, " [ver {}]", version >> 4);
    }
    if version & 0xf != 1 {
        put!(line, " [type {}]", version & 0xf);
    }
    let name = if code == SESSION { "" } else { names::of("pppoe", code) };
    put!(line, "PPPoE {name}");
    if code == SESSION || session != 0 {
        put!(line, " [ses 0x{session:x}]");
    }
    let content = data.skip(HEADER_LEN);
    if content.len < len {
        put!(line, " [len {len}!]");
    }
    let content = content.claimed(len);
    if code == SESSION {
        put!(line, " ");
        print(line, content)
    } else {
        tags(line, content)
    }
}

fn tags(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 4;
    let mut list = Tlvs::new(data, Layout::WORDS);
    while list.rest.len >= HEADER_LEN {
        let tag = list.take()?;
        let value = tag.bytes()?;
        put!(line, " [{}", names::text("pppoe.tag", tag.kind));
        let is_text = value.iter().all(|byte| (b' '..=b'~').contains(byte));
        if is_text && !value.is_empty() {
            put!(line, " \"{}\"", String::from_utf8_lossy(value));
        } else if !value.is_empty() {
            put!(line, " 0x");
            for byte in value {
                put!(line, "{byte:02X}");
            }
        }
        put!(line, "]");
    }
    Ok(())
}

/// Shows a frame; the address and control bytes are optional.
pub fn print(line: &mut Line<'_>, frame: Data<'_>) -> Printed {
    const ADDRESS_AND_CONTROL: u16 = 0xff03;
    const RECEIVED: u16 = 0x0003;
    const SENT: u16 = 0x0103;
    line.protocol = "ppp";
    if frame.len < 2 {
        return Err(Stop::Cut);
    }
    let start = frame.u16(0)?;
    match start {
        RECEIVED if line.options.link_header => put!(line, "In  "),
        SENT if line.options.link_header => put!(line, "Out "),
        _ => {}
    }
    let data = match start {
        ADDRESS_AND_CONTROL | RECEIVED | SENT => frame.skip(2),
        _ => frame,
    };
    let first = data.u8(0)?;
    // An odd first byte is a protocol compressed to one byte.
    let (protocol, header_len) = match first & 1 {
        1 => (u16::from(first), 1),
        _ => (data.u16(0)?, 2),
    };
    if line.options.link_header {
        let name = name(protocol);
        let shown = name.unwrap_or("unknown");
        put!(line, "{shown} (0x{protocol:04x}), length {}", frame.len);
        if name.is_none() {
            return Ok(());
        }
        put!(line, ": ");
    }
    payload(line, protocol, data.skip(header_len))
}

fn payload(line: &mut Line<'_>, protocol: u16, data: Data<'_>) -> Printed {
    match protocol {
        0x0021 | 0x002f | ethertype::IPV4 => ipv4::print(line, data),
        0x0057 | ethertype::IPV6 => ipv6::print(line, data),
        0x0281 | 0x0283 => tunnel::mpls(line, data),
        _ => {
            if !own(line, protocol, data)? {
                match name(protocol) {
                    Some(name) => put!(line, "{name} "),
                    None => put!(line, "unknown PPP protocol (0x{protocol:04x}) "),
                }
                line.dump("\n\t", data.bytes);
            }
            Ok(())
        }
    }
}

/// Shows a protocol of PPP's own; returns false for any other.
pub fn own(line: &mut Line<'_>, protocol: u16, data: Data<'_>) -> Result<bool, Stop> {
    match protocol {
        LCP | IPCP | IPV6CP | CCP | BACP | 0x8023 | 0x8281 => control(line, protocol, data)?,
        PAP => pap(line, data)?,
        CHAP => chap(line, data)?,
        0x003d => multilink(line, data)?,
        0x00fd => put!(line, "compressed PPP data"),
        _ => return Ok(false),
    }
    Ok(true)
}

fn multilink(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    if !line.options.link_header {
        put!(line, "MLPPP, ");
    }
    let Ok(head) = data.u16(0) else {
        put!(line, "[|mlppp]");
        return Ok(());
    };
    let (number, flags) = (head & 0xfff, names::of("mlppp", head >> 14));
    put!(line, "seq 0x{number:03x}, Flags [{flags}], length {}", data.len);
    Ok(())
}

fn control(line: &mut Line<'_>, protocol: u16, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 4;
    let name = name(protocol).unwrap_or_default();
    put!(line, "{name}, ");
    if data.len < HEADER_LEN || data.bytes.len() < 2 {
        put!(line, "[|{name}]");
        return Ok(());
    }
    let code = data.u8(0)?;
    line.show(data, "{n8 0 ppp.code} (0x{x8 0}), id {u8 1}")?;
    put!(line, ", length {}", data.len + 2);
    if !line.verbose() {
        return Ok(());
    }
    let len = usize::from(data.u16(2)?);
    put!(line, "\n\tencoded length {len} ");
    if len < HEADER_LEN {
        put!(line, "(< 4))");
        return Ok(());
    }
    if len > data.len {
        put!(line, "(> packet length {}))", data.len);
        return Ok(());
    }
    let options = len - HEADER_LEN;
    put!(line, "(=Option(s) length {options})");
    if options == 0 {
        return Ok(());
    }
    // Includes the protocol's number, which precedes it.
    let with_protocol = |most: usize| {
        let bytes = [&protocol.to_be_bytes(), data.bytes].concat();
        bytes[..bytes.len().min(most)].to_vec()
    };
    if line.options.verbosity > 1 {
        line.dump("\n\t", &with_protocol(6));
    }
    let value = data.skip(HEADER_LEN);
    let magic = |line: &mut Line<'_>| line.show(value, "\n\t  Magic-Num 0x{x32 0}");
    match code {
        0 if len >= 11 => {
            magic(line)?;
            vendor(line, " Vendor: ", value.skip(4))?;
        }
        1..=4 => config(line, protocol, value.list(options))?,
        8 if len >= 6 => {
            line.show(value, "\n\t  Rejected {n16 0 ppp} Protocol (0x{x16 0})")?;
            if len > 6 {
                put!(line, "\n\t  Rejected Packet");
                line.dump("\n\t    ", value.skip(2).claimed(len - 2).bytes);
            }
        }
        9..=11 if len >= 8 => {
            magic(line)?;
            if len > 8 {
                put!(line, "\n\t  -----trailing data-----");
                value.need(len - 4)?;
                line.dump("\n\t  ", value.skip(4).claimed(len - 8).bytes);
            }
        }
        12 if len >= 8 => {
            magic(line)?;
            if len > 8 {
                put!(line, "\n\t  Message\n\t    ");
                line.put_chars(value.slice(4, len - 8)?);
            }
        }
        13 if len >= 12 => {
            magic(line)?;
            line.show(value, ", Seconds-Remaining {u32 4}s")?;
        }
        0 | 5..=13 => {}
        _ if line.options.verbosity <= 1 => line.dump("\n\t  ", &with_protocol(len + 2)),
        _ => {}
    }
    Ok(())
}

/// Shows code and identifier, the head of PAP and CHAP; `None` if they are cut.
fn head(line: &mut Line<'_>, name: &str, table: &str, data: Data<'_>) -> Result<Option<u8>, Stop> {
    if data.len < 4 {
        let lower = name.to_lowercase();
        match data.u8(0) {
            Ok(code) => put!(line, "[|{lower} 0x{code:02x}]"),
            Err(_) => put!(line, "[|{lower}]"),
        }
        return Ok(None);
    }
    let (code, id) = (data.u8(0)?, data.u8(1)?);
    put!(line, "{name}, {} (0x{code:02x}), id {id}", names::of(table, code));
    Ok(Some(code))
}

fn chap(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let Some(code) = head(line, "CHAP", "ppp.chap", data)? else {
        return Ok(());
    };
    let len = usize::from(data.u16(2)?);
    match code {
        1 | 2 if data.len > 4 => {
            let size = usize::from(data.u8(4)?);
            if data.len - 5 < size {
                return Ok(());
            }
            put!(line, ", Value ");
            line.put_hex(data.slice(5, size)?);
            put!(line, ", Name ");
            text(line, data.skip(5 + size), len.saturating_sub(5 + size))
        }
        3 | 4 => {
            put!(line, ", Msg ");
            text(line, data.skip(4), len.saturating_sub(4))
        }
        _ => Ok(()),
    }
}

fn pap(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let Some(code) = head(line, "PAP", "ppp.pap", data)? else {
        return Ok(());
    };
    let len = usize::from(data.u16(2)?);
    if len > data.len {
        put!(line, ", length {len} > packet size");
        return Ok(());
    }
    if len < 4 {
        put!(line, ", length {len} < PAP header length");
        return Ok(());
    }
    let (least, fields): (_, &[&str]) = match code {
        1 => (6, &["Peer", "Name"]),
        2 | 3 => (5, &["Msg"]),
        _ => return Ok(()),
    };
    if len < least {
        put!(line, "[|pap]");
        return Ok(());
    }
    let mut rest = data.skip(4);
    let mut left = len - 4;
    for name in fields {
        if left == 0 {
            return Ok(());
        }
        let size = usize::from(rest.u8(0)?);
        if left - 1 < size {
            return Ok(());
        }
        put!(line, ", {name} ");
        text(line, rest.skip(1), size)?;
        rest = rest.skip(1 + size);
        left -= 1 + size;
    }
    Ok(())
}

/// Shows the characters that the packet claims, as far as they were captured.
fn text(line: &mut Line<'_>, data: Data<'_>, len: usize) -> Printed {
    line.put_chars(data.claimed(len).bytes);
    data.need(len)
}

/// Outcome of showing an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Known,
    Unknown,
    /// Wrong length; `ends` stops the list after this option.
    Bogus {
        least: &'static str,
        ends: bool,
    },
}

type OptionResult = Result<Shown, Stop>;

const fn bogus(least: &'static str, ends: bool) -> OptionResult {
    Ok(Shown::Bogus { least, ends })
}

/// Shows the options that both ends of a link negotiate.
fn config(line: &mut Line<'_>, protocol: u16, data: Data<'_>) -> Printed {
    let (lower, table, known): (_, _, fn(&mut Line<'_>, u16, Data<'_>) -> OptionResult) = match protocol {
        LCP => ("lcp", "lcp.option", lcp_option),
        IPCP => ("ipcp", "ipcp.option", ipcp_option),
        IPV6CP => ("ip6cp", "ip6cp.option", ipv6cp_option),
        CCP => ("ccp", "ccp.option", ccp_option),
        BACP => ("bacp", "bacp.option", bacp_option),
        _ => return Ok(()),
    };
    let packet = data.len + 4;
    let mut list = Tlvs::new(data, Layout::BYTES);
    while list.rest.len > 0 {
        let Ok(Some(tlv)) = list.next() else {
            put!(line, "[|{lower}]");
            return Ok(());
        };
        let (kind, len) = (tlv.kind, tlv.len);
        if len > packet {
            return Ok(());
        }
        let is_known = protocol != LCP || names::find(table, kind).is_some();
        if is_known {
            let name = names::of(table, kind);
            put!(line, "\n\t  {name} Option (0x{kind:02x}), length {len}");
        } else {
            put!(line, "\n\tunknown LCP option 0x{kind:02x}")
        }
        if !tlv.is_long_enough {
            if is_known {
                put!(line, " (length bogus, should be >= 2)");
            }
            return Ok(());
        }
        if is_known {
            // A value that was not captured does not count as having a wrong length.
            let outcome = known(line, kind, tlv.value)?;
            if let Shown::Bogus { least, ends } = outcome {
                put!(line, " (length bogus, should be {least})");
                if ends {
                    return Ok(());
                }
            } else if outcome == Shown::Unknown || line.options.verbosity > 1 {
                line.dump("\n\t    ", tlv.value.bytes);
            }
        }
        if !tlv.fits {
            put!(line, " [remaining options length {} < {len}]", tlv.room);
            return Err(Stop::Invalid);
        }
    }
    Ok(())
}

fn lcp_option(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> OptionResult {
    let template = match (kind, value.len) {
        (0, 0..=3) => return bogus(">= 6", false),
        (0, _) => return vendor(line, ": Vendor: ", value).map(|()| Shown::Known),
        (1, 2) | (17, 2) => ": {u16 0}",
        (1, _) => return bogus("= 4", false),
        (2, 4) | (5, 4) => ": 0x{x32 0}",
        (2, _) => return bogus("= 6", false),
        (3, 0 | 1) => return bogus(">= 4", false),
        (3, _) => return authentication(line, value).map(|()| Shown::Known),
        (4, 0 | 1) => return bogus(">= 4", true),
        (4, _) if value.u16(0)? == 0xc025 => ": LQR",
        (4, _) => ": unknown",
        (5, _) => return bogus("= 6", true),
        (7 | 8, _) => "",
        (13, 0) | (19, 0) => return bogus(">= 3", true),
        (13, _) => ": : Callback Operation {n8 0 lcp.callback} ({u8 0})",
        (23, 2) => ": 0x{x16 0}",
        (17 | 23, _) => return bogus("= 4", true),
        (19, len) => match (value.u8(0)?, len) {
            (2, 5) => ": IPv4 {ip4 1}",
            (2, _) => return bogus("= 7", true),
            (3, 7) => ": MAC {mac 1}",
            (3, _) => return bogus("= 9", true),
            _ => ": {n8 0 lcp.class}",
        },
        _ => return Ok(Shown::Unknown),
    };
    line.show(value, template).map(|()| Shown::Known)
}

fn authentication(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 2;
    let protocol = value.u16(0)?;
    match name(protocol) {
        Some(name) => put!(line, ": {name}"),
        None => put!(line, ": Unknown Auth Proto (0x04x)"),
    }
    match protocol {
        CHAP => return line.show(value, ", {n8 2 lcp.algorithm}"),
        PAP | 0xc227 | 0xc027 | 0xc123 => {}
        _ => {
            let len = (value.len + HEADER_LEN) as u8;
            let option = [&[3, len], value.bytes].concat();
            line.dump("\n\t", &option);
        }
    }
    Ok(())
}

fn ipcp_option(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> OptionResult {
    match (kind, value.len) {
        (1, 8) => line.show(value, ": src {ip4 0}, dst {ip4 4}")?,
        (1, _) => return bogus("= 10", false),
        (2, 0 | 1) => return bogus(">= 4", true),
        (2, _) => return compression(line, value),
        (3 | 4 | 129..=132, 4) => line.show(value, ": {ip4 0}")?,
        (3 | 4 | 129..=132, _) => return bogus("= 6", true),
        _ => return Ok(Shown::Unknown),
    }
    Ok(Shown::Known)
}

/// Shows compressed headers by RFC 1332 or RFC 3544.
fn compression(line: &mut Line<'_>, value: Data<'_>) -> OptionResult {
    const HEADERS: u16 = 0x0061;
    const FIXED_LEN: usize = 12;
    line.show(value, ": {n16 0 ipcp.compression} ")?;
    put!(line, "(0x{:02x}):", value.u16(0)?);
    if value.u16(0)? != HEADERS {
        return Ok(Shown::Known);
    }
    if value.len < FIXED_LEN {
        return bogus(">= 14", true);
    }
    let sizes = "\n\t    TCP Space {u16 2}, non-TCP Space {u16 4}, maxPeriod {u16 6}, maxTime {u16 8}, maxHdr {u16 10}";
    line.show(value, sizes)?;
    let mut list = Tlvs::new(value.skip(FIXED_LEN), Layout::BYTES);
    if list.rest.len > 0 {
        put!(line, "\n\t      Suboptions, length {}", list.rest.len);
    }
    while list.rest.len >= 2 {
        let tlv = list.take()?;
        let (kind, len) = (tlv.kind, tlv.len);
        if kind == 0 || len == 0 {
            break;
        }
        let name = names::of("ipcp.suboption", kind);
        put!(line, "\n\t\t{name} Suboption #{kind}, length {len}");
        if !tlv.fits {
            put!(line, " [remaining suboptions length {} < {len}] (invalid)", tlv.room);
            break;
        }
    }
    Ok(Shown::Known)
}

fn ipv6cp_option(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> OptionResult {
    match (kind, value.len) {
        (1, 8) => line.show(value, ": {x16 0}:{x16 2}:{x16 4}:{x16 6}").map(|()| Shown::Known),
        (1, _) => bogus("= 10", false),
        _ => Ok(Shown::Unknown),
    }
}

fn ccp_option(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> OptionResult {
    let template = match (kind, value.len) {
        (21, 0) => return bogus(">= 3", false),
        (24 | 26, 0 | 1) => return bogus(">= 4", false),
        (21, _) => ": Version: {u8 0>>5}, Dictionary Bits: {u8 0&1f}",
        (24, _) => ": Features: {u8 0>>6}, PxP: {n8 0>>5&1 ccp.state}, History: {u8 0&1f}, #CTX-ID: {u8 1}",
        (26, _) => ": Window: {u8 0>>4}K, Method: {n8 0&f ccp.method} (0x{h8 0&f}), MBZ: {u8 1>>2}, CHK: {u8 1&3}",
        _ => return Ok(Shown::Unknown),
    };
    line.show(value, template).map(|()| Shown::Known)
}

fn bacp_option(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> OptionResult {
    match (kind, value.len) {
        (1, 4) => line.show(value, ": Magic-Num 0x{x32 0}").map(|()| Shown::Known),
        (1, _) => bogus("= 6", false),
        _ => Ok(Shown::Unknown),
    }
}

fn vendor(line: &mut Line<'_>, before: &str, data: Data<'_>) -> Printed {
    let number = data.number(0, 3)?;
    put!(line, "{before}{} ({number})", names::organization(number));
    Ok(())
}
