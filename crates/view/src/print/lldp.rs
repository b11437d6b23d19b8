//! LLDP: the length, and the neighbour's name where it tells one; with `-v` all it says.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::line::{Data, Line, Mac, Printed, Stop, flag_names, put};
use super::text::put_string;
use super::{dump, names};

/// Whether a value was shown, or its bytes are to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Words,
    Bytes,
}

const CAPABILITIES: [(u32, &str); 8] = [
    (0x01, "Other"),
    (0x02, "Repeater"),
    (0x04, "Bridge"),
    (0x08, "WLAN AP"),
    (0x10, "Router"),
    (0x20, "Telephone"),
    (0x40, "Docsis"),
    (0x80, "Station Only"),
];
const SUPPORTED_ENABLED: [(u32, &str); 2] = [(1, "supported"), (2, "enabled")];

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "lldp";
    put!(line, "LLDP, length {}", data.len);
    let mut rest = data;
    while rest.len >= 2 {
        let header = rest.u16(0)?;
        let (kind, len) = (header >> 9, usize::from(header & 0x1ff));
        if line.verbose() {
            let name = match kind {
                0 => "End",
                1 => "Chassis ID",
                2 => "Port ID",
                3 => "Time to Live",
                4 => "Port Description",
                5 => "System Name",
                6 => "System Description",
                7 => "System Capabilities",
                8 => "Management Address",
                127 => "Organization specific",
                _ => "Unknown",
            };
            put!(line, "\n\t{name} TLV ({kind}), length {len}");
        }
        if kind == 0 || len == 0 {
            break;
        }
        let value = Data {
            bytes: rest.slice(2, len)?,
            len,
        };
        if rest.len < 2 + len {
            return Err(Stop::Cut);
        }
        if line.verbose() {
            let shown = value_of(line, kind, value)?;
            if shown == Shown::Bytes || line.options.verbosity > 1 {
                dump::hex(line.out, "\n\t  ", value.bytes);
            }
        } else if kind == 5 {
            put!(line, ": ");
            put_string(line, value.bytes);
        }
        rest = rest.skip(2 + len);
    }
    Ok(())
}

/// Fails as a cut packet does unless there are this many bytes, as tcpdump takes it.
fn at_least(value: Data<'_>, len: usize) -> Printed {
    match value.len < len {
        true => Err(Stop::Cut),
        false => Ok(()),
    }
}

fn value_of(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Result<Shown, Stop> {
    match kind {
        1 | 2 => return identifier(line, kind == 1, value),
        3 => {
            at_least(value, 2)?;
            put!(line, ": TTL {}s", value.u16(0)?);
        }
        4 | 5 => {
            put!(line, ": ");
            put_string(line, value.bytes);
        }
        6 => {
            put!(line, "\n\t  ");
            put_string(line, value.bytes);
        }
        7 => {
            at_least(value, 4)?;
            for (name, at) in [("System ", 0), ("Enabled", 2)] {
                let set = value.u16(at)?;
                let list = flag_names(set.into(), &CAPABILITIES, ", ");
                put!(line, "\n\t  {name} Capabilities [{list}] (0x{set:04x})");
            }
        }
        8 => management_address(line, value)?,
        127 => return organization(line, value),
        _ => return Ok(Shown::Bytes),
    }
    Ok(Shown::Words)
}

/// Who or which port it is, in one of several ways.
fn identifier(line: &mut Line<'_>, is_chassis: bool, value: Data<'_>) -> Result<Shown, Stop> {
    at_least(value, 2)?;
    let subtype = value.u8(0)?;
    let name = match (is_chassis, subtype) {
        (true, 1) => "Chassis component",
        (true, 2) | (false, 1) => "Interface alias",
        (true, 3) | (false, 2) => "Port component",
        (true, 4) | (false, 3) => "MAC address",
        (true, 5) => "Network address",
        (false, 4) => "Network Address",
        (true, 6) => "Interface name",
        (false, 5) => "Interface Name",
        (false, 6) => "Agent circuit ID",
        (_, 7) => "Local",
        _ => "Unknown",
    };
    put!(line, "\n\t  Subtype {name} ({subtype}): ");
    match name {
        "Unknown" => return Ok(Shown::Bytes),
        "MAC address" => {
            at_least(value, 7)?;
            put!(line, "{}", Mac(value.array(1)?));
        }
        "Network address" | "Network Address" => network_address(line, value.skip(1))?,
        _ => put_string(line, &value.bytes[1..]),
    }
    Ok(Shown::Words)
}

fn network_address(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    at_least(value, 1)?;
    let family = value.u8(0)?;
    let name = names::address_family(family.into());
    let mut text = String::new();
    match family {
        1 => {
            at_least(value, 5)?;
            text = Ipv4Addr::from(value.u32(1)?).to_string();
        }
        2 => {
            at_least(value, 17)?;
            text = Ipv6Addr::from(value.array::<16>(1)?).to_string();
        }
        6 => {
            at_least(value, 7)?;
            text = Mac(value.array(1)?).to_string();
        }
        _ => {}
    }
    match text.as_str() {
        "" => put!(line, "AFI {name} ({family}), no AF printer !"),
        text => put!(line, "AFI {name} ({family}): {text}"),
    }
    Ok(())
}

fn management_address(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let len = usize::from(value.u8(0)?);
    at_least(value, 1 + len)?;
    let start = line.out.len();
    put!(line, "\n\t  Management Address length {len}, ");
    let address = Data {
        bytes: value.slice(1, len)?,
        len,
    };
    if let Err(stop) = network_address(line, address) {
        line.out.truncate(start);
        return Err(stop);
    }
    let rest = value.skip(1 + len);
    at_least(rest, 5)?;
    let subtype = rest.u8(0)?;
    let name = match subtype {
        2 => "Interface Index",
        3 => "System Port Number",
        _ => "Unknown",
    };
    put!(
        line,
        "\n\t  {name} Interface Numbering ({subtype}): {}",
        rest.u32(1)?
    );
    let rest = rest.skip(5);
    if rest.len > 0 {
        let len = usize::from(rest.u8(0)?);
        at_least(rest, 1 + len)?;
        if len > 0 {
            put!(line, "\n\t  OID length {len}");
            put_string(line, rest.slice(1, len)?);
        }
    }
    Ok(())
}

fn organization(line: &mut Line<'_>, value: Data<'_>) -> Result<Shown, Stop> {
    at_least(value, 3)?;
    let oui = u32::from(value.u8(0)?) << 16 | u32::from(value.u16(1)?);
    put!(line, ": OUI {} (0x{oui:06x})", names::organization(oui));
    if !matches!(oui, 0x0080c2 | 0x00120f | 0x0012bb | 0x00005e) {
        return Ok(Shown::Bytes);
    }
    if value.len < 4 {
        return Ok(Shown::Words);
    }
    let subtype = value.u8(3)?;
    let name = subtype_name(oui, subtype);
    put!(line, "\n\t  {name} Subtype ({subtype})");
    let shown = match oui {
        0x0080c2 => ieee_8021(line, subtype, value),
        0x00120f => ieee_8023(line, subtype, value),
        0x0012bb => media(line, subtype, value),
        _ if subtype == 1 => {
            put!(line, "\n\t  MUD-URL=");
            put_string(line, &value.bytes[4..]);
            Ok(Shown::Words)
        }
        _ => Ok(Shown::Bytes),
    };
    match shown {
        // What is too short for its subtype is left at that.
        Err(Stop::Cut) => Ok(Shown::Words),
        shown => shown,
    }
}

fn subtype_name(oui: u32, subtype: u8) -> &'static str {
    match (oui, subtype) {
        (0x0080c2, 1) => "Port VLAN Id",
        (0x0080c2, 2) => "Port and Protocol VLAN ID",
        (0x0080c2, 3) => "VLAN name",
        (0x0080c2, 4) => "Protocol Identity",
        (0x0080c2, 7) | (0x00120f, 3) => "Link aggregation",
        (0x0080c2, 8) => "Congestion Notification",
        (0x0080c2, 9) => "ETS Configuration",
        (0x0080c2, 10) => "ETS Recommendation",
        (0x0080c2, 11) => "Priority Flow Control Configuration",
        (0x0080c2, 12) => "Application Priority",
        (0x0080c2, 13) => "EVB",
        (0x0080c2, 14) => "CDCP",
        (0x00120f, 1) => "MAC/PHY configuration/status",
        (0x00120f, 2) => "Power via MDI",
        (0x00120f, 4) => "Max frame size",
        (0x0012bb, 1) => "LLDP-MED Capabilities",
        (0x0012bb, 2) => "Network policy",
        (0x0012bb, 3) => "Location identification",
        (0x0012bb, 4) => "Extended power-via-MDI",
        (0x0012bb, 5) => "Inventory - hardware revision",
        (0x0012bb, 6) => "Inventory - firmware revision",
        (0x0012bb, 7) => "Inventory - software revision",
        (0x0012bb, 8) => "Inventory - serial number",
        (0x0012bb, 9) => "Inventory - manufacturer name",
        (0x0012bb, 10) => "Inventory - model name",
        (0x0012bb, 11) => "Inventory - asset ID",
        (0x00005e, 1) => "MUD-URL",
        _ => "unknown",
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

fn ieee_8021(line: &mut Line<'_>, subtype: u8, value: Data<'_>) -> Result<Shown, Stop> {
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
        _ => return Ok(Shown::Bytes),
    }
    Ok(Shown::Words)
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

fn ieee_8023(line: &mut Line<'_>, subtype: u8, value: Data<'_>) -> Result<Shown, Stop> {
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

/// LLDP-MED, by the TIA.
fn media(line: &mut Line<'_>, subtype: u8, value: Data<'_>) -> Result<Shown, Stop> {
    const CAN: [(u32, &str); 6] = [
        (0x01, "LLDP-MED capabilities"),
        (0x02, "network policy"),
        (0x04, "location identification"),
        (0x08, "extended power via MDI-PSE"),
        (0x10, "extended power via MDI-PD"),
        (0x20, "Inventory"),
    ];
    match subtype {
        1 => {
            at_least(value, 7)?;
            let (can, device) = (value.u16(4)?, value.u8(6)?);
            let list = flag_names(can.into(), &CAN, ", ");
            let device_name = match device {
                1 => "endpoint class 1",
                2 => "endpoint class 2",
                3 => "endpoint class 3",
                4 => "network connectivity",
                _ => "unknown",
            };
            put!(line, "\n\t    Media capabilities [{list}] (0x{can:04x})");
            put!(line, "\n\t    Device type [{device_name}] (0x{device:02x})");
        }
        2 => {
            at_least(value, 8)?;
            const FLAGS: [(u32, &str); 3] =
                [(0x80, "Unknown"), (0x40, "Tagged"), (0x20, "reserved")];
            let application = value.u8(4)?;
            let name = match application {
                1 => "voice",
                2 => "voice signaling",
                3 => "guest voice",
                4 => "guest voice signaling",
                5 => "softphone voice",
                6 => "video conferencing",
                7 => "streaming video",
                8 => "video signaling",
                _ => "none",
            };
            let flags = flag_names(value.u8(5)?.into(), &FLAGS, ", ");
            let last = value.u16(6)?;
            put!(
                line,
                "\n\t    Application type [{name}] (0x{application:02x}), Flags [{flags}]\n\t    Vlan id {}, L2 priority {}, DSCP value {}",
                (value.u16(5)? & 0x1ffe) >> 1,
                (last & 0x1c0) >> 6,
                last & 0x3f
            );
        }
        4 => {
            at_least(value, 7)?;
            let first = value.u8(4)?;
            let kind = if first & 3 != 0 {
                "PD device"
            } else {
                "PSE device"
            };
            let source = match first >> 4 & 3 {
                1 => "PSE - primary power source",
                2 => "local - backup power source",
                3 => "PSE+local - reserved",
                _ => "none",
            };
            let priority = match first & 0xf {
                1 => "critical",
                2 => "high",
                3 => "low",
                _ => "none",
            };
            put!(
                line,
                "\n\t    Power type [{kind}], Power source [{source}]\n\t    Power priority [{priority}] (0x{:02x})",
                first & 0xf
            );
            match value.u16(5)? {
                power @ 0..1024 => put!(line, ", Power {:.1} Watts", f32::from(power) / 10.0),
                power => put!(line, ", Power {power} (Reserved)"),
            }
        }
        5..=11 => {
            const NAMES: [&str; 7] = [
                "Hardware revision",
                "Firmware revision",
                "Software revision",
                "Serial number",
                "Manufacturer name",
                "Model name",
                "Asset ID",
            ];
            put!(line, "\n\t  {} ", NAMES[usize::from(subtype - 5)]);
            put_string(line, &value.bytes[4..]);
        }
        _ => return Ok(Shown::Bytes),
    }
    Ok(Shown::Words)
}
