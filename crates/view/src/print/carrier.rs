//! What carriers and switches put around packets: MPLS, PPPoE, EAPOL, loopback.

use super::line::{Data, Line, Mac, Printed, Stop, flag_names, put};
use super::{dump, ipv4, ipv6, link, names, ppp};

/// The tag of an encrypted frame; of one that is only signed the packet, with the tag before it if link headers are shown.
pub(super) fn macsec(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    const CHANGED: u8 = 0x04;
    const ENCRYPTED: u8 = 0x08;
    const SCI: u8 = 0x20;
    const SIGNATURE_LEN: usize = 16;
    const FLAGS: [(u32, &str); 5] = [
        (0x08, "E"),
        (0x04, "C"),
        (0x40, "S"),
        (0x10, "B"),
        (0x20, "I"),
    ];
    line.protocol = "macsec";
    let (flags, short, number) = (data.u8(0)?, data.u8(1)? & 0x3f, data.u32(2)?);
    let header_len = if flags & SCI != 0 { 14 } else { 6 };
    data.need(header_len)?;
    let is_readable = flags & (ENCRYPTED | CHANGED) == 0;
    if line.options.link_header || !is_readable {
        let names = flag_names((flags & 0xfc).into(), &FLAGS, "");
        let is_named = !is_readable && !line.options.link_header;
        let name = if is_named { "802.1AE MACsec, " } else { "" };
        put!(line, "{name}an {}, pn {number}, flags {names}", flags & 3);
        if short != 0 {
            put!(line, ", sl {short}");
        }
        if flags & SCI != 0 {
            put!(line, ", sci {:016x}", u64::from_be_bytes(data.array(6)?));
        }
    }
    let rest = data.skip(header_len);
    if !is_readable {
        put!(line, ", length {}", rest.len);
        return Ok(true);
    }
    let kind = rest.u16(0)?;
    if line.options.link_header {
        put!(line, ", ethertype ");
        names::put_ethertype(line, kind);
        put!(line, ", ");
    }
    let payload = rest.skip(2);
    link::ethertype(
        line,
        kind,
        payload.claimed(payload.len.saturating_sub(SIGNATURE_LEN)),
    )
}

/// A stack of labels, and the IP packet under it where its first half byte looks like one.
pub(super) fn mpls(line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
    const BOTTOM: u32 = 0x100;
    const EXPLICIT_NULL_V4: u32 = 0;
    const EXPLICIT_NULL_V6: u32 = 2;
    const IMPLICIT_NULL: u32 = 3;
    line.protocol = "mpls";
    put!(line, "MPLS");
    let mut separator = " ";
    let label = loop {
        let entry = data.u32(0)?;
        data = data.skip(4);
        let label = entry >> 12;
        put!(line, "{separator}(label {label}");
        separator = if line.verbose() { "\n\t" } else { " " };
        let name = match label {
            EXPLICIT_NULL_V4 => "IPv4 explicit NULL",
            1 => "router alert",
            EXPLICIT_NULL_V6 => "IPv6 explicit NULL",
            IMPLICIT_NULL => "implicit NULL",
            4..=15 => "rsvd",
            _ => "",
        };
        if line.verbose() && !name.is_empty() {
            put!(line, " ({name})");
        }
        let end = if entry & BOTTOM != 0 { ", [S]" } else { "" };
        put!(line, ", tc {}{end}, ttl {})", entry >> 9 & 7, entry & 0xff);
        if entry & BOTTOM != 0 {
            break label;
        }
    };
    if data.len == 0 {
        return Ok(());
    }
    let version = match label {
        EXPLICIT_NULL_V4 | IMPLICIT_NULL => 4,
        EXPLICIT_NULL_V6 => 6,
        _ => data.u8(0)? >> 4,
    };
    match version {
        4 => {
            put!(line, "{separator}");
            ipv4::print(line, data)
        }
        6 => {
            put!(line, "{separator}");
            ipv6::print(line, data)
        }
        _ => {
            link::default_print(line, data);
            data.need(data.len)
        }
    }
}

pub(super) fn pppoe(line: &mut Line<'_>, data: Data<'_>) -> Printed {
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
    let name = match code {
        SESSION => "",
        0x09 => "PADI",
        0x07 => "PADO",
        0x19 => "PADR",
        0x65 => "PADS",
        0xa7 => "PADT",
        _ => "PAD-?",
    };
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
        ppp(line, content)
    } else {
        pppoe_tags(line, content)
    }
}

fn pppoe_tags(line: &mut Line<'_>, mut tags: Data<'_>) -> Printed {
    const TAG_HEADER_LEN: usize = 4;
    while tags.len >= TAG_HEADER_LEN {
        let (kind, len) = (tags.u16(0)?, usize::from(tags.u16(2)?));
        let value = tags.slice(TAG_HEADER_LEN, len)?;
        let name = match kind {
            0x0000 => "EOL",
            0x0101 => "Service-Name",
            0x0102 => "AC-Name",
            0x0103 => "Host-Uniq",
            0x0104 => "AC-Cookie",
            0x0105 => "Vendor-Specific",
            0x0110 => "Relay-Session-ID",
            0x0120 => "PPP-Max-Payload",
            0x0201 => "Service-Name-Error",
            0x0202 => "AC-System-Error",
            0x0203 => "Generic-Error",
            _ => "TAG-0x",
        };
        put!(line, " [{name}");
        if name == "TAG-0x" {
            put!(line, "{kind:04x}");
        }
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
        tags = tags.skip(TAG_HEADER_LEN + len);
    }
    Ok(())
}

/// A PPP frame, whose address and control bytes may be left out.
pub(super) fn ppp(line: &mut Line<'_>, frame: Data<'_>) -> Printed {
    const ADDRESS_AND_CONTROL: u16 = 0xff03;
    const RECEIVED: u16 = 0x0003;
    const SENT: u16 = 0x0103;
    line.protocol = "ppp";
    if frame.len < 2 {
        return Err(super::line::Stop::Cut);
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
    let (protocol, header_len) = if first & 1 == 1 {
        (u16::from(first), 1)
    } else {
        (data.u16(0)?, 2)
    };
    if line.options.link_header {
        let name = ppp::name(protocol);
        let shown = name.unwrap_or("unknown");
        put!(line, "{shown} (0x{protocol:04x}), length {}", frame.len);
        if name.is_none() {
            return Ok(());
        }
        put!(line, ": ");
    }
    ppp_payload(line, protocol, data.skip(header_len))
}

/// What follows PPP's protocol number.
pub(super) fn ppp_payload(line: &mut Line<'_>, protocol: u16, data: Data<'_>) -> Printed {
    match protocol {
        0x0021 | 0x002f | names::IPV4 => ipv4::print(line, data),
        0x0057 | names::IPV6 => ipv6::print(line, data),
        0x0281 | 0x0283 => mpls(line, data),
        _ => {
            if !ppp::print(line, protocol, data)? {
                match ppp::name(protocol) {
                    Some(name) => put!(line, "{name} "),
                    None => put!(line, "unknown PPP protocol (0x{protocol:04x}) "),
                }
                dump::hex(line.out, "\n\t", data.bytes);
            }
            Ok(())
        }
    }
}

pub(super) fn eapol(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "eap";
    let (version, kind, len) = (data.u8(0)?, data.u8(1)?, data.u16(2)?);
    let name = match kind {
        0 => "EAP packet",
        1 => "EAPOL start",
        2 => "EAPOL logoff",
        3 => "EAPOL key",
        4 => "Encap ASF alert",
        _ => "Unknown",
    };
    put!(line, "{name} ({kind}) v{version}, len {len}");
    Ok(())
}

/// Ethernet configuration testing; its numbers are little-endian.
pub(super) fn loopback(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "loopback";
    let skip_count = u16::from_le_bytes(data.array(0)?);
    put!(line, "Loopback, skipCount {skip_count}");
    if skip_count % 8 != 0 {
        put!(line, " (bogus)");
    }
    let message = data.skip(2 + usize::from(skip_count));
    match message.array(0).map(u16::from_le_bytes)? {
        1 => {
            let receipt = u16::from_le_bytes(message.array(2)?);
            put!(line, ", Reply, receipt number {receipt}");
            put!(line, ", data ({} octets)", message.len.saturating_sub(4));
        }
        2 => {
            put!(
                line,
                ", Forward Data, forwarding address {}",
                Mac(message.array(2)?)
            );
            put!(line, ", data ({} octets)", message.len.saturating_sub(8));
        }
        function => {
            put!(line, ", (unknown function {function})");
            dump::hex_ascii(line.out, message.bytes);
        }
    }
    Ok(())
}
