//! Ethernet with VLAN tags, MACsec, EAPOL, and the loopback test.

use crate::print::line::{Data, Line, Mac, Printed, Stop, put};
use crate::print::{default_print, link, llc, names};
use trawl_packet::net::ethertype;

const HEADER_LEN: usize = 14;
pub const VLAN_LEN: usize = 4;

/// Shows a frame, outermost or inside a tunnel.
pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.nested(|line| frame(line, data))
}

fn frame(line: &mut Line<'_>, frame: Data<'_>) -> Printed {
    line.protocol = "ether";
    frame.at_least(HEADER_LEN)?;
    if line.options.link_header {
        header(line, frame, frame.u16(12)?)?;
    }
    let mut kind = frame.u16(12)?;
    let mut header_len = HEADER_LEN;
    while is_vlan(kind) {
        let tag = frame.skip(header_len);
        if tag.at_least(VLAN_LEN).is_err() {
            line.protocol = "vlan";
            return Err(Stop::Cut);
        }
        kind = tag.u16(2)?;
        header_len += VLAN_LEN;
        put_tag(line, tag.u16(0)?, kind);
    }
    if !line.is_nested() {
        line.link_header_len = header_len;
    }
    let payload = frame.skip(header_len);
    if kind <= names::MAX_LENGTH {
        return llc::print(line, payload.claimed(payload.len.min(kind.into())));
    }
    if !link::ethertype(line, kind, payload)? {
        if !line.options.link_header {
            header(line, frame, kind)?;
        }
        default_print(line, payload);
    }
    Ok(())
}

pub fn is_vlan(kind: u16) -> bool {
    matches!(kind, ethertype::VLAN | ethertype::VLAN_9100 | ethertype::VLAN_9200 | ethertype::SERVICE_VLAN)
}

/// Shows a VLAN tag, and the ethertype after it, with the link header.
pub fn put_tag(line: &mut Line<'_>, tci: u16, kind: u16) {
    if !line.options.link_header {
        return;
    }
    let drop_eligible = if tci & 0x1000 != 0 { ", DEI" } else { "" };
    put!(line, "vlan {}, p {}{drop_eligible}, ", tci & 0xfff, tci >> 13);
    if kind > names::MAX_LENGTH {
        put_type(line, kind);
        put!(line, ", ");
    } else {
        put!(line, "802.3");
    }
}

/// Shows the ethertype; with `-q` the name alone.
fn put_type(line: &mut Line<'_>, kind: u16) {
    if !line.options.quick {
        put!(line, "ethertype ");
        line.put_ethertype(kind);
        return;
    }
    match names::ethertype(kind) {
        Some(name) => put!(line, "{name}"),
        None => put!(line, "Unknown Ethertype (0x{kind:04x})"),
    }
}

/// Shows the header; `kind` is the frame's ethertype, or the one inside its VLAN tags.
fn header(line: &mut Line<'_>, frame: Data<'_>, kind: u16) -> Printed {
    line.show(frame, "{mac 6} > {mac 0}, ")?;
    if kind <= names::MAX_LENGTH {
        put!(line, "802.3, length {kind}: ");
    } else {
        put_type(line, kind);
        put!(line, ", length {}: ", frame.len);
    }
    Ok(())
}

/// Shows the tag of an encrypted frame. Of a signed frame shows the packet, with the tag before it if link headers are
/// shown.
pub fn macsec(line: &mut Line<'_>, data: Data<'_>) -> Result<bool, Stop> {
    const CHANGED: u8 = 0x04;
    const ENCRYPTED: u8 = 0x08;
    const SCI: u8 = 0x20;
    const SIGNATURE_LEN: usize = 16;
    line.protocol = "macsec";
    let (flags, short, number) = (data.u8(0)?, data.u8(1)? & 0x3f, data.u32(2)?);
    let header_len = if flags & SCI != 0 { 14 } else { 6 };
    data.need(header_len)?;
    let is_readable = flags & (ENCRYPTED | CHANGED) == 0;
    if line.options.link_header || !is_readable {
        if !line.options.link_header {
            put!(line, "802.1AE MACsec, ");
        }
        let letters = match names::joined("macsec", flags & 0xfc, "") {
            letters if letters.is_empty() => "none".to_owned(),
            letters => letters,
        };
        put!(line, "an {}, pn {number}, flags {letters}", flags & 3);
        if short != 0 {
            put!(line, ", sl {short}");
        }
        if flags & SCI != 0 {
            line.show(data, ", sci {x64 6}")?;
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
        line.put_ethertype(kind);
        put!(line, ", ");
    }
    let payload = rest.skip(2);
    let len = payload.len.saturating_sub(SIGNATURE_LEN);
    link::ethertype(line, kind, payload.claimed(len))
}

pub fn eapol(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "eap";
    line.show(data, "{n8 1 eapol} ({u8 1}) v{u8 0}, len {u16 2}")
}

/// Shows Ethernet configuration testing, whose numbers are little-endian.
pub fn loopback(line: &mut Line<'_>, data: Data<'_>) -> Printed {
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
            let address = Mac(message.array(2)?);
            put!(line, ", Forward Data, forwarding address {address}");
            put!(line, ", data ({} octets)", message.len.saturating_sub(8));
        }
        function => {
            put!(line, ", (unknown function {function})");
            line.dump_ascii(message.bytes);
        }
    }
    Ok(())
}
