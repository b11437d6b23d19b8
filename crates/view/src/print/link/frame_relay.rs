//! Frame relay: addresses of Q.922, the payload, and the type of link management messages (Q.933, ANSI T1.617).

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::{default_print, ipv4, ipv6, link, llc, names, ppp};

const CONTROL_UI: u8 = 3;
const EXTENDED: u8 = 1;

/// The head of a frame.
struct Header {
    address_len: usize,
    dlci: u32,
    flags: u32,
    /// Length of the whole frame.
    len: usize,
}

impl Header {
    fn put(&self, line: &mut Line<'_>, protocol: u16) {
        let Self { address_len, dlci, flags, len } = self;
        if line.options.quick {
            return put!(line, "Q.922, DLCI {dlci}, length {len}: ");
        }
        let flags = names::flags("q922.flags", *flags);
        put!(line, "Q.922, hdr-len {address_len}, DLCI {dlci}, Flags [{flags}], ");
        match u8::try_from(protocol) {
            Ok(nlpid) => put!(line, "NLPID {} (0x{nlpid:02x})", names::of("nlpid", nlpid)),
            Err(_) => {
                let name = names::ethertype(protocol).unwrap_or("unknown");
                put!(line, "cisco-ethertype {name} (0x{protocol:04x})");
            }
        }
        put!(line, ", length {len}: ");
    }
}

/// Returns the address, which ends with the first byte whose last bit is set: two to four bytes; `None` if it is not
/// valid.
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

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
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
        // Cisco's encapsulation: an ethertype follows.
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
        0xcf if ppp::own(line, inner.u16(0)?, inner.skip(2))? => Ok(()),
        _ => {
            if !line.options.link_header {
                header.put(line, nlpid.into());
            }
            default_print(line, inner);
            Ok(())
        }
    }
}

fn fragment(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let number = (data.u16(0)? & 0x1e00) >> 1 | data.u16(0)? & 0xff;
    let flags = names::flags("frf15.flags", data.u8(0)? & 0xe0);
    let kind = if data.u8(0)? & 1 == 0 { "End-to-End" } else { "Interface" };
    put!(line, "FRF.15, seq 0x{number:03x}, Flags [{flags}],{kind} Fragmentation, length {}", data.len);
    Ok(())
}

/// Shows the type of a link management message; its elements are left to `-x`.
fn management(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "q.933";
    if !line.options.link_header {
        put!(line, "Q.933, ");
    }
    let kind = data.u8(1 + usize::from(data.u8(0)? & 0xf))?;
    put!(line, "{}, length {}", names::text("q933", kind), data.len);
    Ok(())
}
