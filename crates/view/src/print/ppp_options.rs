//! The options that both ends of a PPP link agree on: those of LCP and of the control protocols of what is carried.

use std::net::Ipv4Addr;

use super::line::{Colons, Data, Line, Printed, Stop, put};
use super::ppp::{BACP, CCP, CHAP, IPCP, IPV6CP, LCP, PAP, name, unknown};
use super::{dump, names};

const OPTION_HEADER_LEN: usize = 2;

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

pub(super) fn config(
    line: &mut Line<'_>,
    protocol: u16,
    mut data: Data<'_>,
    mut rest: usize,
) -> Printed {
    let (lower, known): (_, fn(&mut Line<'_>, u8, Data<'_>) -> OptionResult) = match protocol {
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

type OptionResult = Result<Shown, Stop>;

const fn bogus(least: &'static str, ends: bool) -> OptionResult {
    Ok(Shown::Bogus { least, ends })
}

fn lcp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> OptionResult {
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

fn ipcp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> OptionResult {
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
fn compression(line: &mut Line<'_>, value: Data<'_>) -> OptionResult {
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

fn ipv6cp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> OptionResult {
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

fn ccp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> OptionResult {
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

fn bacp_option(line: &mut Line<'_>, kind: u8, value: Data<'_>) -> OptionResult {
    match (kind, value.len) {
        (1, 4) => {
            put!(line, ": Magic-Num 0x{:08x}", value.u32(0)?);
            Ok(Shown::Known)
        }
        (1, _) => bogus("= 6", false),
        _ => Ok(Shown::Unknown),
    }
}

pub(super) fn vendor(line: &mut Line<'_>, before: &str, data: Data<'_>) -> Printed {
    let [a, b, c] = data.array(0)?;
    let number = u32::from_be_bytes([0, a, b, c]);
    let name = names::organization(number);
    put!(line, "{before}{name} ({number})");
    Ok(())
}
