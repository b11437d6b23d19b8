//! PPP's own protocols: LCP and the control protocols of what is carried, PAP and CHAP.

use std::net::Ipv4Addr;

use super::line::{Colons, Data, Line, Printed, Stop, put};
use super::text::put_chars;
use super::{dump, names};

const LCP: u16 = 0xc021;
const IPCP: u16 = 0x8021;
const IPV6CP: u16 = 0x8057;
const CCP: u16 = 0x80fd;
const BACP: u16 = 0xc02b;
const PAP: u16 = 0xc023;
const CHAP: u16 = 0xc223;
const OPTION_HEADER_LEN: usize = 2;

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

const LCP_OPTIONS: [&str; 31] = [
    "Vend-Ext",
    "MRU",
    "ACCM",
    "Auth-Prot",
    "Qual-Prot",
    "Magic-Num",
    "deprecated(6)",
    "PFC",
    "ACFC",
    "FCS-Alt",
    "SDP",
    "Num-Mode",
    "deprecated(12)",
    "Call-Back",
    "deprecated(14)",
    "deprecated(15)",
    "deprecated(16)",
    "MRRU",
    "12-Bit seq #",
    "End-Disc",
    "Proprietary",
    "DCE-Id",
    "MP+",
    "Link-Disc",
    "LCP-Auth-Opt",
    "COBS",
    "Prefix-elision",
    "Multilink-header-Form",
    "I18N",
    "SDL-over-SONET/SDH",
    "PPP-Muxing",
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
fn unknown(line: &mut Line<'_>, before: &str, data: Data<'_>, len: usize) {
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

fn vendor(line: &mut Line<'_>, before: &str, data: Data<'_>) -> Printed {
    let [a, b, c] = data.array(0)?;
    let number = u32::from_be_bytes([0, a, b, c]);
    let name = names::organization(number);
    put!(line, "{before}{name} ({number})");
    Ok(())
}

fn config(line: &mut Line<'_>, protocol: u16, mut data: Data<'_>, mut rest: usize) -> Printed {
    let (lower, known): (_, fn(&mut Line<'_>, u8, Data<'_>) -> Outcome) = match protocol {
        LCP => ("lcp", lcp_option),
        IPCP => ("ipcp", ipcp_option),
        IPV6CP => ("ip6cp", ipv6cp_option),
        CCP => ("ccp", ccp_option),
        BACP => ("bacp", bacp_option),
        _ => return Ok(()),
    };
    let packet = rest + 4;
    while rest > 0 {
        let (Ok(kind), Ok(len)) = (data.u8(0), data.u8(1)) else {
            put!(line, "[|{lower}]");
            return Ok(());
        };
        let len = usize::from(len);
        if len > packet {
            return Ok(());
        }
        let is_known = protocol != LCP || usize::from(kind) < LCP_OPTIONS.len();
        if !is_known {
            put!(line, "\n\tunknown LCP option 0x{kind:02x}");
        } else {
            let name = option_name(protocol, kind);
            put!(line, "\n\t  {name} Option (0x{kind:02x}), length {len}");
        }
        if len < OPTION_HEADER_LEN {
            if is_known {
                put!(line, " (length bogus, should be >= 2)");
            }
            return Ok(());
        }
        let value = data.skip(OPTION_HEADER_LEN);
        let shown = value.claimed(len - OPTION_HEADER_LEN);
        if is_known {
            // A value that was not captured is none of the wrong length.
            let outcome = known(line, kind, shown)?;
            match outcome {
                Shown::Known => {}
                Shown::Unknown if line.options.verbosity < 2 => {
                    unknown(line, "\n\t    ", shown, shown.len);
                }
                Shown::Unknown => {}
                Shown::Bogus { least, ends } => {
                    put!(line, " (length bogus, should be {least})");
                    if ends {
                        return Ok(());
                    }
                }
            }
            if line.options.verbosity > 1 && !matches!(outcome, Shown::Bogus { .. }) {
                unknown(line, "\n\t    ", shown, shown.len);
            }
        }
        if rest < len {
            put!(line, " [remaining options length {rest} < {len}]");
            return Err(Stop::Invalid);
        }
        rest -= len;
        data = data.skip(len);
    }
    Ok(())
}

fn option_name(protocol: u16, kind: u8) -> &'static str {
    match (protocol, kind) {
        (LCP, kind) => LCP_OPTIONS
            .get(usize::from(kind))
            .copied()
            .unwrap_or_default(),
        (IPCP, 1) => "IP-Addrs",
        (IPCP, 2) => "IP-Comp",
        (IPCP, 3) => "IP-Addr",
        (IPCP, 4) => "Home-Addr",
        (IPCP, 129) => "Pri-DNS",
        (IPCP, 130) => "Pri-NBNS",
        (IPCP, 131) => "Sec-DNS",
        (IPCP, 132) => "Sec-NBNS",
        (IPV6CP, 1) => "Interface-ID",
        (CCP, 0) => "OUI",
        (CCP, 1) => "Pred-1",
        (CCP, 2) => "Pred-2",
        (CCP, 3) => "Puddle",
        (CCP, 16) => "HP-PPC",
        (CCP, 17) => "Stac-LZS",
        (CCP, 18) => "MPPC",
        (CCP, 19) => "Gand-FZA",
        (CCP, 20) => "V.42bis",
        (CCP, 21) => "BSD-Comp",
        (CCP, 23) => "LZS-DCP",
        (CCP, 24) => "MVRCA",
        (CCP, 25) => "DEC",
        (CCP, 26) => "Deflate",
        (CCP, 255) => "Reserved",
        (BACP, 1) => "Favored-Peer",
        (CCP | BACP, _) => "Unknown",
        _ => "unknown",
    }
}

/// What became of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Known,
    Unknown,
    /// Of a wrong length; whether the options after it are not looked at.
    Bogus {
        least: &'static str,
        ends: bool,
    },
}

type Outcome = Result<Shown, Stop>;

const fn bogus(least: &'static str, ends: bool) -> Outcome {
    Ok(Shown::Bogus { least, ends })
}

fn lcp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Outcome {
    match (kind, value.len) {
        (0, 0..=3) => return bogus(">= 6", false),
        (0, _) => vendor(line, ": Vendor: ", value)?,
        (1, 2) => put!(line, ": {}", value.u16(0)?),
        (1, _) => return bogus("= 4", false),
        (2, 4) => put!(line, ": 0x{:08x}", value.u32(0)?),
        (2, _) => return bogus("= 6", false),
        (3, 0 | 1) => return bogus(">= 4", false),
        (3, _) => authentication(line, value)?,
        (4, 0 | 1) => return bogus(">= 4", true),
        (4, _) if value.u16(0)? == 0xc025 => put!(line, ": LQR"),
        (4, _) => put!(line, ": unknown"),
        (5, 4) => put!(line, ": 0x{:08x}", value.u32(0)?),
        (5, _) => return bogus("= 6", true),
        (7 | 8, _) => {}
        (13, 0) | (19, 0) => return bogus(">= 3", true),
        (13, _) => {
            let operation = value.u8(0)?;
            let name = match operation {
                0 => "UserAuth",
                1 => "DialString",
                2 => "LocalID",
                3 => "E.164",
                4 => "X.500",
                6 => "CBCP",
                _ => "Unknown",
            };
            put!(line, ": : Callback Operation {name} ({operation})");
        }
        (17, 2) => put!(line, ": {}", value.u16(0)?),
        (23, 2) => put!(line, ": 0x{:04x}", value.u16(0)?),
        (17 | 23, _) => return bogus("= 4", true),
        (19, len) => match (value.u8(0)?, len) {
            (0, _) => put!(line, ": Null"),
            (1, _) => put!(line, ": Local"),
            (2, 5) => put!(line, ": IPv4 {}", Ipv4Addr::from(value.array(1)?)),
            (2, _) => return bogus("= 7", true),
            (3, 7) => put!(line, ": MAC {}", Colons(value.slice(1, 6)?)),
            (3, _) => return bogus("= 9", true),
            (4, _) => put!(line, ": Magic-Num-Block"),
            (5, _) => put!(line, ": PSNDN"),
            (class, _) => put!(line, ": Unknown class {class}"),
        },
        _ => return Ok(Shown::Unknown),
    }
    Ok(Shown::Known)
}

fn authentication(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let protocol = value.u16(0)?;
    match name(protocol) {
        Some(name) => put!(line, ": {name}"),
        None => put!(line, ": Unknown Auth Proto (0x04x)"),
    }
    match protocol {
        CHAP => match value.u8(2)? {
            5 => put!(line, ", MD5"),
            128 => put!(line, ", MS-CHAPv1"),
            129 => put!(line, ", MS-CHAPv2"),
            algorithm => put!(line, ", Unknown Auth Alg {algorithm}"),
        },
        PAP | 0xc227 | 0xc027 | 0xc123 => {}
        _ => {
            let len = (value.len + OPTION_HEADER_LEN) as u8;
            let option = [&[3, len], value.bytes].concat();
            dump::hex(line.out, "\n\t", &option);
        }
    }
    Ok(())
}

fn ipcp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Outcome {
    let address = |at| value.array(at).map(Ipv4Addr::from);
    match (kind, value.len) {
        (1, 8) => put!(line, ": src {}, dst {}", address(0)?, address(4)?),
        (1, _) => return bogus("= 10", false),
        (2, 0 | 1) => return bogus(">= 4", true),
        (2, _) => return compression(line, value),
        (3 | 4 | 129..=132, 4) => put!(line, ": {}", address(0)?),
        (3 | 4 | 129..=132, _) => return bogus("= 6", true),
        _ => return Ok(Shown::Unknown),
    }
    Ok(Shown::Known)
}

/// Compressed headers by RFC 1332 or RFC 3544.
fn compression(line: &mut Line<'_>, value: Data<'_>) -> Outcome {
    const VAN_JACOBSON: u16 = 0x002d;
    const HEADERS: u16 = 0x0061;
    const FIXED_LEN: usize = 12;
    let protocol = value.u16(0)?;
    let name = match protocol {
        VAN_JACOBSON => "VJ-Comp",
        HEADERS => "IP Header Compression",
        _ => "Unknown",
    };
    put!(line, ": {name} (0x{protocol:02x}):");
    if protocol != HEADERS {
        return Ok(Shown::Known);
    }
    if value.len < FIXED_LEN {
        return bogus(">= 14", true);
    }
    put!(
        line,
        "\n\t    TCP Space {}, non-TCP Space {}, maxPeriod {}, maxTime {}, maxHdr {}",
        value.u16(2)?,
        value.u16(4)?,
        value.u16(6)?,
        value.u16(8)?,
        value.u16(10)?
    );
    let mut more = value.skip(FIXED_LEN);
    if more.len > 0 {
        put!(line, "\n\t      Suboptions, length {}", more.len);
    }
    while more.len >= 2 {
        let (kind, len) = (more.u8(0)?, usize::from(more.u8(1)?));
        if kind == 0 || len == 0 {
            break;
        }
        let name = match kind {
            1 => "RTP-Compression",
            2 => "Enhanced RTP-Compression",
            _ => "Unknown",
        };
        put!(line, "\n\t\t{name} Suboption #{kind}, length {len}");
        if more.len < len {
            let rest = more.len;
            put!(
                line,
                " [remaining suboptions length {rest} < {len}] (invalid)"
            );
            break;
        }
        more = more.skip(len);
    }
    Ok(Shown::Known)
}

fn ipv6cp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Outcome {
    match (kind, value.len) {
        (1, 8) => {
            let half = |at| value.u16(at);
            put!(
                line,
                ": {:04x}:{:04x}:{:04x}:{:04x}",
                half(0)?,
                half(2)?,
                half(4)?,
                half(6)?
            );
            Ok(Shown::Known)
        }
        (1, _) => bogus("= 10", false),
        _ => Ok(Shown::Unknown),
    }
}

fn ccp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Outcome {
    match (kind, value.len) {
        (21, 0) => return bogus(">= 3", false),
        (24 | 26, 0 | 1) => return bogus(">= 4", false),
        (21, _) => {
            let byte = value.u8(0)?;
            put!(
                line,
                ": Version: {}, Dictionary Bits: {}",
                byte >> 5,
                byte & 0x1f
            );
        }
        (24, _) => {
            let (first, contexts) = (value.u8(0)?, value.u8(1)?);
            let state = if first & 0x20 != 0 {
                "Enabled"
            } else {
                "Disabled"
            };
            put!(
                line,
                ": Features: {}, PxP: {state}, History: {}, #CTX-ID: {contexts}",
                first >> 6,
                first & 0x1f
            );
        }
        (26, _) => {
            let (first, second) = (value.u8(0)?, value.u8(1)?);
            let method = first & 0xf;
            let name = if method == 8 { "zlib" } else { "unknown" };
            put!(
                line,
                ": Window: {}K, Method: {name} (0x{method:x}), MBZ: {}, CHK: {}",
                first >> 4,
                second >> 2,
                second & 3
            );
        }
        _ => return Ok(Shown::Unknown),
    }
    Ok(Shown::Known)
}

fn bacp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> Outcome {
    match (kind, value.len) {
        (1, 4) => {
            put!(line, ": Magic-Num 0x{:08x}", value.u32(0)?);
            Ok(Shown::Known)
        }
        (1, _) => bogus("= 6", false),
        _ => Ok(Shown::Unknown),
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
