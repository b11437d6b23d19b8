//! What IEEE 802.1 and 802.3 add to LLDP.

use super::super::line::{Data, Line, Printed, Stop, flag_names, put};
use super::super::text::put_string;
use super::{Shown, at_least};

const SUPPORTED_ENABLED: [(u32, &str); 2] = [(1, "supported"), (2, "enabled")];

pub(super) fn bridging(line: &mut Line<'_>, subtype: u8, value: Data<'_>) -> Result<Shown, Stop> {
    match subtype {
        1 => {
            at_least(value, 6)?;
            put!(line, "\n\t    port vlan id (PVID): {}", value.u16(4)?);
        }
        2 => {
            at_least(value, 7)?;
            let set = value.u8(4)?;
            const BITS: [(u32, &str); 2] = [(2, "supported"), (4, "enabled")];
            let flags = flag_names(set.into(), &BITS, ", ");
            put!(
                line,
                "\n\t    port and protocol vlan id (PPVID): {}, flags [{flags}] (0x{set:02x})",
                value.u16(5)?
            );
        }
        3 => {
            at_least(value, 6)?;
            put!(line, "\n\t    vlan id (VID): {}", value.u16(4)?);
            counted(line, "\n\t    vlan name: ", value.skip(6))?;
        }
        4 => counted(line, "\n\t    protocol identity: ", value.skip(4))?,
        7 => aggregation(line, value)?,
        8 => {
            at_least(value, 6)?;
            for (name, at) in [("CNPV", 4), ("Ready", 5)] {
                put!(line, "\n\t    Pre-Priority {name} Indicator");
                priorities(line, value.u8(at)?);
            }
        }
        9 | 10 => {
            at_least(value, 25)?;
            let first = value.u8(4)?;
            match subtype {
                9 => put!(
                    line,
                    "\n\t    Willing:{}, CBS:{}, RES:{}, Max TCs:{}",
                    first >> 7,
                    first >> 6 & 1,
                    first >> 3 & 7,
                    first & 7
                ),
                _ => put!(line, "\n\t    RES: {first}"),
            }
            let nibbles: Vec<u8> = value
                .slice(5, 4)?
                .iter()
                .flat_map(|byte| [byte >> 4, byte & 0xf])
                .collect();
            for (title, head, name, values) in [
                (
                    "Priority Assignment",
                    "Priority :",
                    "Value    :",
                    &nibbles[..],
                ),
                ("TC Bandwidth", "TC%   :", "Value :", value.slice(9, 8)?),
                (
                    "TSA Assignment",
                    "Traffic Class:",
                    "Value        :",
                    value.slice(17, 8)?,
                ),
            ] {
                put!(
                    line,
                    "\n\t    {title} Table\n\t     {head} 0   1   2   3   4   5   6   7"
                );
                put!(line, "\n\t     {name}");
                for value in values {
                    put!(line, " {value:<3}");
                }
            }
        }
        11 => {
            at_least(value, 6)?;
            let (first, enabled) = (value.u8(4)?, value.u8(5)?);
            put!(
                line,
                "\n\t    Willing: {}, MBC: {}, RES: {}, PFC cap:{} ",
                first >> 7,
                first >> 6 & 1,
                first >> 4 & 3,
                first & 0xf
            );
            put!(line, "\n\t    PFC Enable");
            priorities(line, enabled);
        }
        12 => {
            at_least(value, 5)?;
            put!(line, "\n\t    RES: {}", value.u8(4)?);
            let table = value.skip(5);
            if table.len < 3 {
                return Ok(Shown::Words);
            }
            put!(line, "\n\t    Application Priority Table");
            for entry in table.bytes.chunks_exact(3) {
                put!(
                    line,
                    "\n\t      Priority: {}, RES: {}, Sel: {}, Protocol ID: {}",
                    entry[0] >> 5,
                    entry[0] >> 3 & 3,
                    entry[0] & 7,
                    u16::from_be_bytes([entry[1], entry[2]])
                );
            }
        }
        13 => virtual_bridging(line, value)?,
        14 => channels(line, value)?,
        _ => return Ok(Shown::Bytes),
    }
    Ok(Shown::Words)
}

/// Edge virtual bridging (802.1Qbg).
fn virtual_bridging(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    at_least(value, 9)?;
    let [bridge, station, retries, mode, keep_alive] = value.array(4)?;
    put!(
        line,
        "\n\t    EVB Bridge Status\n\t      RES: {}, BGID: {}, RRCAP: {}, RRCTR: {}",
        bridge >> 3,
        bridge >> 2 & 1,
        bridge >> 1 & 1,
        bridge & 1
    );
    put!(
        line,
        "\n\t    EVB Station Status\n\t      RES: {}, SGID: {}, RRREQ: {},RRSTAT: {}",
        station >> 4,
        station >> 3 & 1,
        station >> 2 & 1,
        station & 3
    );
    let name = match mode >> 6 {
        0 => "Not Supported",
        1 => "EVB Bridge",
        2 => "EVB Station",
        _ => "Reserved for future Standardization",
    };
    put!(
        line,
        "\n\t    R: {}, RTE: {}, EVB Mode: {name} [{}]",
        retries >> 5,
        retries & 0x1f,
        mode >> 6
    );
    put!(
        line,
        "\n\t    ROL: {}, RWD: {}, RES: {}, ROL: {}, RKA: {}",
        mode >> 5 & 1,
        mode & 0x1f,
        keep_alive >> 6,
        keep_alive >> 5 & 1,
        keep_alive & 0x1f
    );
    Ok(())
}

/// The S-channel discovery and configuration protocol (802.1Qbg).
fn channels(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    at_least(value, 8)?;
    let first = value.u8(4)?;
    put!(
        line,
        "\n\t    Role: {}, RES: {}, Scomp: {} ChnCap: {}",
        first >> 7,
        first >> 4 & 7,
        first >> 3 & 1,
        value.u16(6)? & 0xfff
    );
    let pairs = value.skip(8).bytes.chunks_exact(3);
    if pairs.remainder().is_empty() {
        for pair in pairs {
            let number = u32::from_be_bytes([0, pair[0], pair[1], pair[2]]);
            put!(
                line,
                "\n\t    SCID: {}, SVID: {}",
                number >> 12,
                number & 0xfff
            );
        }
    }
    Ok(())
}

/// A bit for each of eight priorities.
fn priorities(line: &mut Line<'_>, bits: u8) {
    put!(
        line,
        "\n\t     Priority : 0  1  2  3  4  5  6  7\n\t     Value    : "
    );
    for bit in 0..8 {
        put!(line, "{:<2} ", bits >> bit & 1);
    }
}

/// A string after its length.
fn counted(line: &mut Line<'_>, before: &str, value: Data<'_>) -> Printed {
    at_least(value, 1)?;
    let len = usize::from(value.u8(0)?);
    at_least(value, 1 + len)?;
    put!(line, "{before}");
    put_string(line, value.slice(1, len)?);
    Ok(())
}

pub(super) fn ethernet(line: &mut Line<'_>, subtype: u8, value: Data<'_>) -> Result<Shown, Stop> {
    const PMD: [(u32, &str); 15] = [
        (0x4000, "10BASE-T hdx"),
        (0x2000, "10BASE-T fdx"),
        (0x1000, "100BASE-T4"),
        (0x0800, "100BASE-TX hdx"),
        (0x0400, "100BASE-TX fdx"),
        (0x0200, "100BASE-T2 hdx"),
        (0x0100, "100BASE-T2 fdx"),
        (0x0080, "Pause for fdx links"),
        (0x0040, "Asym PAUSE for fdx"),
        (0x0020, "Sym PAUSE for fdx"),
        (0x0010, "Asym and Sym PAUSE for fdx"),
        (0x0008, "1000BASE-{X LX SX CX} hdx"),
        (0x0004, "1000BASE-{X LX SX CX} fdx"),
        (0x0002, "1000BASE-T hdx"),
        (0x0001, "1000BASE-T fdx"),
    ];
    const POWER: [(u32, &str); 4] = [
        (1, "PSE"),
        (2, "supported"),
        (4, "enabled"),
        (8, "can be controlled"),
    ];
    match subtype {
        1 => {
            at_least(value, 9)?;
            let negotiation = value.u8(4)?;
            let list = flag_names(negotiation.into(), &SUPPORTED_ENABLED, ", ");
            put!(
                line,
                "\n\t    autonegotiation [{list}] (0x{negotiation:02x})"
            );
            let can = value.u16(5)?;
            let list = flag_names(can.into(), &PMD, ", ");
            put!(
                line,
                "\n\t    PMD autoneg capability [{list}] (0x{can:04x})"
            );
            let mau = value.u16(7)?;
            put!(line, "\n\t    MAU type {} (0x{mau:04x})", mau_name(mau));
        }
        2 => {
            at_least(value, 7)?;
            let support = flag_names(value.u8(4)?.into(), &POWER, ", ");
            let pair = match value.u8(5)? {
                1 => "signal",
                2 => "spare",
                _ => "unknown",
            };
            let class = match value.u8(6)? {
                class @ 1..=5 => format!("class{}", class - 1),
                _ => "unknown".to_owned(),
            };
            put!(
                line,
                "\n\t    MDI power support [{support}], power pair {pair}, power class {class}"
            );
        }
        3 => aggregation(line, value)?,
        4 => {
            at_least(value, 6)?;
            put!(line, "\n\t    MTU size {}", value.u16(4)?);
        }
        _ => return Ok(Shown::Bytes),
    }
    Ok(Shown::Words)
}

fn mau_name(kind: u16) -> &'static str {
    const NAMES: [&str; 39] = [
        "Unknown",
        "AUI",
        "10BASE_5",
        "FOIRL",
        "10BASE2",
        "10BASET duplex mode unknown",
        "10BASEFP",
        "10BASEFB",
        "10BASEFL duplex mode unknown",
        "10BROAD36",
        "10BASET hdx",
        "10BASET fdx",
        "10BASEFL hdx",
        "10BASEFL fdx",
        "100BASET4",
        "100BASETX hdx",
        "100BASETX fdx",
        "100BASEFX hdx",
        "100BASEFX fdx",
        "100BASET2 hdx",
        "100BASET2 fdx",
        "1000BASEX hdx",
        "1000BASEX fdx",
        "1000BASELX hdx",
        "1000BASELX fdx",
        "1000BASESX hdx",
        "1000BASESX fdx",
        "1000BASECX hdx",
        "1000BASECX fdx",
        "1000BASET hdx",
        "1000BASET fdx",
        "10GBASEX",
        "10GBASELX4",
        "10GBASER",
        "10GBASEER",
        "10GBASELR",
        "10GBASESR",
        "10GBASEW",
        "10GBASEEW",
    ];
    match kind {
        39 => "10GBASELW",
        40 => "10GBASESW",
        _ => NAMES.get(usize::from(kind)).copied().unwrap_or("unknown"),
    }
}

fn aggregation(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    at_least(value, 9)?;
    let status = flag_names(value.u8(4)?.into(), &SUPPORTED_ENABLED, ", ");
    let port = value.u32(5)?;
    put!(
        line,
        "\n\t    aggregation status [{status}], aggregation port ID {port}"
    );
    Ok(())
}
