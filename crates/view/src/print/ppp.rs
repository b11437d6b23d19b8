//! PPP's own protocols: LCP and the control protocols of what is carried, PAP and CHAP.

use super::dump;
use super::line::{Data, Line, Printed, Stop, put};
use super::ppp_options::{config, vendor};
use super::text::put_chars;

pub(super) const LCP: u16 = 0xc021;
pub(super) const IPCP: u16 = 0x8021;
pub(super) const IPV6CP: u16 = 0x8057;
pub(super) const CCP: u16 = 0x80fd;
pub(super) const BACP: u16 = 0xc02b;
pub(super) const PAP: u16 = 0xc023;
pub(super) const CHAP: u16 = 0xc223;

const NAMES: [(u16, &str); 40] = [
    (0x0021, "IP"),
    (0x0023, "OSI"),
    (0x0025, "NS"),
    (0x0027, "DECNET"),
    (0x0029, "APPLE"),
    (0x002b, "IPX"),
    (0x002d, "VJC IP"),
    (0x002f, "VJNC IP"),
    (0x0031, "BRPDU"),
    (0x0033, "STII"),
    (0x0035, "VINES"),
    (0x003d, "MLPPP"),
    (0x0057, "IP6"),
    (0x00fd, "Compressed"),
    (0x0201, "HELLO"),
    (0x0231, "LUXCOM"),
    (0x0233, "SNS"),
    (0x0281, "MPLS"),
    (0x0283, "MPLS"),
    (IPCP, "IPCP"),
    (0x8023, "OSICP"),
    (0x8025, "NSCP"),
    (0x8027, "DECNETCP"),
    (0x8029, "APPLECP"),
    (0x802b, "IPXCP"),
    (0x8033, "STIICP"),
    (0x8035, "VINESCP"),
    (0x803d, "MLPPP-CP"),
    (IPV6CP, "IP6CP"),
    (CCP, "CCP"),
    (0x8281, "MPLSCP"),
    (LCP, "LCP"),
    (PAP, "PAP"),
    (0xc025, "LQM"),
    (0xc027, "SPAP"),
    (BACP, "BACP"),
    (0xc02d, "BAP"),
    (0xc123, "Old-SPAP"),
    (CHAP, "CHAP"),
    (0xc227, "EAP"),
];

const CODES: [&str; 16] = [
    "Vendor-Extension",
    "Conf-Request",
    "Conf-Ack",
    "Conf-Nack",
    "Conf-Reject",
    "Term-Request",
    "Term-Ack",
    "Code-Reject",
    "Prot-Reject",
    "Echo-Request",
    "Echo-Reply",
    "Disc-Req",
    "Ident",
    "Time-Rem",
    "Reset-Req",
    "Reset-Ack",
];

pub(super) fn name(protocol: u16) -> Option<&'static str> {
    let found = NAMES.iter().find(|(number, _)| *number == protocol);
    found.map(|(_, name)| *name)
}

/// Shows a protocol of PPP's own; false if it is none of them.
pub(super) fn print(line: &mut Line<'_>, protocol: u16, data: Data<'_>) -> Result<bool, Stop> {
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

/// A value of a kind that nobody knows, or everything of a packet with -vv.
pub(super) fn unknown(line: &mut Line<'_>, before: &str, data: Data<'_>, len: usize) {
    dump::hex(line.out, before, &data.bytes[..len.min(data.bytes.len())]);
}

fn multilink(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    if !line.options.link_header {
        put!(line, "MLPPP, ");
    }
    let Ok(head) = data.u16(0) else {
        put!(line, "[|mlppp]");
        return Ok(());
    };
    let flags = match head >> 14 {
        0 => "none",
        1 => "end",
        2 => "begin",
        _ => "begin, end",
    };
    put!(
        line,
        "seq 0x{:03x}, Flags [{flags}], length {}",
        head & 0xfff,
        data.len
    );
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
    put!(
        line,
        "{} (0x{code:02x}), id {}, length {}",
        CODES.get(usize::from(code)).unwrap_or(&"Unknown Opcode"),
        data.u8(1)?,
        data.len + 2
    );
    if !line.verbose() {
        return Ok(());
    }
    let len = usize::from(data.u16(2)?);
    if len < HEADER_LEN {
        put!(line, "\n\tencoded length {len} (< 4))");
        return Ok(());
    }
    if len > data.len {
        let packet = data.len;
        put!(line, "\n\tencoded length {len} (> packet length {packet}))");
        return Ok(());
    }
    let options = len - HEADER_LEN;
    put!(
        line,
        "\n\tencoded length {len} (=Option(s) length {options})"
    );
    if options == 0 {
        return Ok(());
    }
    // With the protocol's number, which stands before it.
    let with_protocol = |most: usize| {
        let bytes = [&protocol.to_be_bytes(), data.bytes].concat();
        bytes[..bytes.len().min(most)].to_vec()
    };
    if line.options.verbosity > 1 {
        dump::hex(line.out, "\n\t", &with_protocol(6));
    }
    let value = data.skip(HEADER_LEN);
    let magic = |line: &mut Line<'_>| -> Printed {
        put!(line, "\n\t  Magic-Num 0x{:08x}", value.u32(0)?);
        Ok(())
    };
    match code {
        0 if len >= 11 => {
            magic(line)?;
            vendor(line, " Vendor: ", value.skip(4))
        }
        1..=4 => config(line, protocol, value, options),
        8 if len >= 6 => {
            let rejected = value.u16(0)?;
            let name = self::name(rejected).unwrap_or("unknown");
            put!(line, "\n\t  Rejected {name} Protocol (0x{rejected:04x})");
            if len > 6 {
                put!(line, "\n\t  Rejected Packet");
                unknown(line, "\n\t    ", value.skip(2), len - 2);
            }
            Ok(())
        }
        9..=11 if len >= 8 => {
            magic(line)?;
            if len > 8 {
                put!(line, "\n\t  -----trailing data-----");
                value.need(len - 4)?;
                unknown(line, "\n\t  ", value.skip(4), len - 8);
            }
            Ok(())
        }
        12 if len >= 8 => {
            magic(line)?;
            if len > 8 {
                put!(line, "\n\t  Message\n\t    ");
                put_chars(line, value.slice(4, len - 8)?);
            }
            Ok(())
        }
        13 if len >= 12 => {
            magic(line)?;
            put!(line, ", Seconds-Remaining {}s", value.u32(4)?);
            Ok(())
        }
        0 | 5..=13 => Ok(()),
        _ => {
            if line.options.verbosity <= 1 {
                dump::hex(line.out, "\n\t  ", &with_protocol(len + 2));
            }
            Ok(())
        }
    }
}

/// The first two words of PAP and CHAP: code and identifier; nothing if they are cut.
fn head(
    line: &mut Line<'_>,
    name: &str,
    codes: &[&str],
    data: Data<'_>,
) -> Result<Option<u8>, Stop> {
    if data.len < 4 {
        let lower = name.to_lowercase();
        match data.u8(0) {
            Ok(code) => put!(line, "[|{lower} 0x{code:02x}]"),
            Err(_) => put!(line, "[|{lower}]"),
        }
        return Ok(None);
    }
    let code = data.u8(0)?;
    let index = usize::from(code).checked_sub(1);
    let word = index.and_then(|index| codes.get(index));
    let word = word.copied().unwrap_or("unknown");
    put!(line, "{name}, {word} (0x{code:02x}), id {}", data.u8(1)?);
    Ok(Some(code))
}

fn chap(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let codes = ["Challenge", "Response", "Success", "Fail"];
    let Some(code) = head(line, "CHAP", &codes, data)? else {
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
            for byte in data.slice(5, size)? {
                put!(line, "{byte:02x}");
            }
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
    let codes = ["Auth-Req", "Auth-ACK", "Auth-NACK"];
    let Some(code) = head(line, "PAP", &codes, data)? else {
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
    let least = match code {
        1 => 6,
        2 | 3 => 5,
        _ => return Ok(()),
    };
    if len < least {
        put!(line, "[|pap]");
        return Ok(());
    }
    let mut rest = data.skip(4);
    let mut left = len - 4;
    let fields: &[&str] = if code == 1 {
        &["Peer", "Name"]
    } else {
        &["Msg"]
    };
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

/// As many characters as the packet claims; what was captured of them is shown.
fn text(line: &mut Line<'_>, data: Data<'_>, len: usize) -> Printed {
    put_chars(line, &data.bytes[..len.min(data.bytes.len())]);
    data.need(len)
}
