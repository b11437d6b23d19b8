//! Frame relay: addresses of Q.922, what is inside, and the management of links (Q.933, ANSI T1.617).

use super::line::{Data, Line, Printed, Stop, flag_names, put};
use super::{dump, ipv4, ipv6, link, llc, names, ppp};

const CONTROL_UI: u8 = 3;
const EXTENDED: u8 = 1;
const FLAGS: [(u32, &str); 5] = [
    (0x10, "C!"),
    (0x02, "DE"),
    (0x04, "BECN"),
    (0x08, "FECN"),
    (0x20, "sdlcore"),
];

/// The head of a frame.
struct Header {
    address_len: usize,
    dlci: u32,
    flags: u32,
    /// Of the whole frame.
    len: usize,
}

impl Header {
    fn put(&self, line: &mut Line<'_>, protocol: u16) {
        let Self {
            address_len,
            dlci,
            flags,
            len,
        } = self;
        if line.options.quick {
            return put!(line, "Q.922, DLCI {dlci}, length {len}: ");
        }
        put!(
            line,
            "Q.922, hdr-len {address_len}, DLCI {dlci}, Flags [{}], ",
            flag_names(*flags, &FLAGS, ", ")
        );
        match u8::try_from(protocol) {
            Ok(nlpid) => put!(line, "NLPID {} (0x{nlpid:02x})", nlpid_name(nlpid)),
            Err(_) => {
                let name = names::ethertype(protocol).unwrap_or("unknown");
                put!(line, "cisco-ethertype {name} (0x{protocol:04x})");
            }
        }
        put!(line, ", length {len}: ");
    }
}

fn nlpid_name(nlpid: u8) -> &'static str {
    match nlpid {
        0x00 => "NULL",
        0x08 => "Q.933",
        0x09 => "LMI",
        0x80 => "SNAP",
        0x81 => "CLNP",
        0x82 => "ES-IS",
        0x83 => "IS-IS",
        0x84 => "CONS",
        0x85 => "IDRP",
        0x8a => "X25 ES-IS",
        0x8e => "IPv6",
        0xb1 => "FRF.15",
        0xc1 => "ISIS_SPB",
        0xcc => "IPv4",
        0xcf => "PPP",
        _ => "unknown",
    }
}

/// The address, which ends with the first byte whose last bit is set: two to four bytes; none if it is not valid.
fn address(data: Data<'_>) -> Result<Option<Header>, Stop> {
    let (first, second) = (data.u8(0)?, data.u8(1)?);
    if first & EXTENDED != 0 {
        return Ok(None);
    }
    let mut header = Header {
        address_len: 2,
        dlci: u32::from(first & 0xfc) << 2 | u32::from(second >> 4),
        flags: u32::from(first & 2) << 3 | u32::from(second & 0x0e),
        len: data.len,
    };
    if second & EXTENDED != 0 {
        return Ok(Some(header));
    }
    let mut last = data.u8(2)?;
    header.address_len = 3;
    if last & EXTENDED == 0 {
        header.dlci = header.dlci << 7 | u32::from(last >> 1);
        header.address_len = 4;
        last = data.u8(3)?;
    }
    if last & EXTENDED == 0 {
        return Ok(None);
    }
    header.flags |= u32::from(last & 2) << 4;
    header.dlci = header.dlci << 6 | u32::from(last >> 2);
    Ok(Some(header))
}

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const LEAST: usize = 4;
    line.protocol = "fr";
    data.need(LEAST)?;
    let Some(header) = address(data)? else {
        put!(line, "Q.922, invalid address");
        return Ok(());
    };
    let at = header.address_len;
    let control = data.u8(at)?;
    if control != CONTROL_UI && header.dlci != 0 {
        // As Cisco has it: an ethertype follows.
        let kind = data.u16(at)?;
        line.link_header_len = at + 2;
        if line.options.link_header {
            header.put(line, kind);
        }
        if link::ethertype(line, kind, data.skip(at + 2))? {
            return Ok(());
        }
        put!(line, "UI {control:02x}! ");
    }
    let is_padded = data.u8(at + 1)? == 0;
    match (is_padded, at) {
        (true, 2 | 4) => put!(line, "Pad! "),
        (false, 3) => put!(line, "No pad! "),
        _ => {}
    }
    let header_len = at + 2 + usize::from(is_padded);
    let nlpid = data.u8(header_len - 1)?;
    line.link_header_len = header_len;
    if line.options.link_header {
        header.put(line, nlpid.into());
    }
    let inner = data.skip(header_len);
    match nlpid {
        0xcc => ipv4::print(line, inner),
        0x8e => ipv6::print(line, inner),
        0x80 => llc::snap(line, data.skip(header_len - llc::HEADER_LEN), 0),
        0x08 => management(line, inner),
        0xb1 => fragment(line, inner),
        0xcf if ppp::print(line, inner.u16(0)?, inner.skip(2))? => Ok(()),
        _ => {
            if !line.options.link_header {
                header.put(line, nlpid.into());
            }
            link::default_print(line, inner);
            Ok(())
        }
    }
}

fn fragment(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FLAGS: [(u32, &str); 3] = [(0x80, "Begin"), (0x40, "End"), (0x20, "Control")];
    let (first, second) = (data.u8(0)?, data.u8(1)?);
    put!(
        line,
        "FRF.15, seq 0x{:03x}, Flags [{}],{} Fragmentation, length {}",
        u32::from(first & 0x1e) << 7 | u32::from(second),
        flag_names((first & 0xe0).into(), &FLAGS, ", "),
        if first & 1 == 0 {
            "End-to-End"
        } else {
            "Interface"
        },
        data.len
    );
    Ok(())
}

/// Which code set the next element is of.
#[derive(Clone, Copy)]
struct CodeSet {
    lasting: u8,
    /// For one element alone.
    next: Option<u8>,
}

impl CodeSet {
    /// Takes an element that shifts; the bit of those that do not last is set.
    fn shift(&mut self, element: u8) {
        match element & 0x08 {
            0 => self.lasting = element & 7,
            _ => self.next = Some(element & 7),
        }
    }
}

fn is_shift(element: u8) -> bool {
    element & 0xf0 == 0x90
}

fn management(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "q.933";
    put!(
        line,
        "{}",
        if line.options.link_header {
            ""
        } else {
            "Q.933, "
        }
    );
    let reference = data.slice(1, usize::from(data.u8(0)? & 0xf))?;
    let kind = data.u8(1 + reference.len())?;
    let mut rest = data.skip(2 + reference.len());
    let mut set = CodeSet {
        lasting: 0,
        next: None,
    };
    let mut is_ansi = false;
    let first = rest
        .u8(0)
        .ok()
        .filter(|first| rest.len > 0 && is_shift(*first));
    if let Some(first) = first {
        set.shift(first);
        // The set of nations is ANSI's.
        is_ansi = set.lasting == 5;
        rest = rest.skip(1);
    }
    put!(
        line,
        "{}, codeset {}",
        if is_ansi { "ANSI" } else { "CCITT" },
        set.next.unwrap_or(set.lasting)
    );
    let is_reference = reference.len() > 1
        || reference.len() == 1 && rest.bytes.first().is_some_and(|byte| *byte != 0);
    if is_reference {
        put!(line, ", Call Ref: 0x");
        for byte in reference {
            put!(line, "{byte:02x}");
        }
    }
    let name = message_name(kind);
    if line.verbose() {
        let name = name.unwrap_or("unknown message");
        put!(line, ", {name} (0x{kind:02x}), length {}", data.len);
    } else {
        match name {
            Some(name) => put!(line, ", {name}"),
            None => put!(line, ", unknown message 0x{kind:02x}"),
        }
    }
    let shown = elements(line, rest, set);
    if !line.verbose() && shown != Ok(false) {
        put!(line, ", length {}", data.len);
    }
    shown.map(drop)
}

fn message_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0x00 => "ESC to National",
        0x01 => "Alert",
        0x02 => "Call proceeding",
        0x03 => "Progress",
        0x05 => "Setup",
        0x07 => "Connect",
        0x0f => "Connect ACK",
        0x45 => "Disconnect",
        0x46 => "Restart",
        0x4d => "Release",
        0x4e => "Restart ACK",
        0x5a => "Release Complete",
        0x75 => "Status Enquiry",
        0x7d => "Status Reply",
        _ => return None,
    })
}

/// Shows the elements of a message; false if one ends it.
fn elements(line: &mut Line<'_>, mut rest: Data<'_>, mut set: CodeSet) -> Result<bool, Stop> {
    while rest.len > 0 {
        let kind = rest.u8(0)?;
        rest = rest.skip(1);
        if is_shift(kind) {
            set.shift(kind);
            continue;
        }
        let known = matches!(set.next.take().unwrap_or(set.lasting), 0 | 5);
        if kind & 0x80 != 0 {
            continue;
        }
        let len = usize::from(rest.u8(0)?);
        rest = rest.skip(1);
        if line.verbose() {
            let name = match kind {
                0x01 => "ANSI Report Type",
                0x03 | 0x19 => "ANSI Link Verify",
                0x07 => "ANSI PVC Status",
                0x51 => "CCITT Report Type",
                0x53 => "CCITT Link Verify",
                0x57 => "CCITT PVC Status",
                _ => "unknown",
            };
            let name = if known { name } else { "unknown" };
            put!(line, "\n\t{name} IE (0x{kind:02x}), length {len}: ");
        }
        if kind == 0 || len == 0 {
            return Ok(false);
        }
        if len > rest.len {
            return Err(Stop::Cut);
        }
        let value = rest.slice(0, len)?;
        match (known && element(line, kind, value), line.options.verbosity) {
            (true, 2..) => dump::hex(line.out, "\n\t  ", value),
            (false, 1..) => dump::hex(line.out, "\n\t", value),
            _ => {}
        }
        rest = rest.skip(len);
    }
    Ok(true)
}

/// Shows what an element says; false if it is not known.
fn element(line: &mut Line<'_>, kind: u8, value: &[u8]) -> bool {
    let separator = if line.verbose() { "" } else { ", " };
    match (kind, value) {
        (0x01 | 0x51, [kind, ..]) if line.verbose() => {
            let name = match kind {
                0 => "Full Status",
                1 => "Link verify",
                2 => "Async PVC Status",
                _ => "unknown",
            };
            put!(line, "{name} ({kind})");
        }
        (0x01 | 0x51, _) => {}
        (0x03 | 0x19 | 0x53, [sent, received, ..]) => {
            put!(line, "{separator}TX Seq: {sent:3}, RX Seq: {received:3}");
        }
        (0x03 | 0x19 | 0x53, _) => put!(line, "{separator}Invalid LINK VERIFY IE"),
        (0x07 | 0x57, value) => match circuit(value) {
            Some((dlci, state)) => {
                let new = if state & 8 != 0 { "New, " } else { "" };
                let active = if state & 2 != 0 { "Active" } else { "Inactive" };
                put!(line, "{separator}DLCI {dlci}: status {new}{active}");
            }
            None => put!(line, "{separator}Invalid DLCI in PVC STATUS IE"),
        },
        _ => return false,
    }
    true
}

/// Number and state of a virtual circuit: the last byte of each has its first bit set.
fn circuit(value: &[u8]) -> Option<(u32, u8)> {
    let (state, address) = value.split_last()?;
    let (last, before) = address.split_last()?;
    let is_end = |byte: &u8| byte & 0x80 != 0;
    if !is_end(state) || !is_end(last) || before.iter().any(is_end) {
        return None;
    }
    let number = |byte: u8, mask: u8, shift: u8| u32::from((byte & mask) >> shift);
    let dlci = match address {
        [a, b] => number(*a, 0x3f, 0) << 4 | number(*b, 0x78, 3),
        [a, b, c] => (number(*a, 0x3f, 0) << 4 | number(*b, 0x78, 3)) << 6 | number(*c, 0x7e, 1),
        [a, b, c, d] => {
            let upper = number(*a, 0x3f, 0) << 4 | number(*b, 0x78, 3);
            upper << 13 | number(*c, 0x7f, 0) << 6 | number(*d, 0x7e, 1)
        }
        _ => return None,
    };
    Some((dlci, *state))
}
