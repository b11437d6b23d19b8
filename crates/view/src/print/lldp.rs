//! LLDP: the length, and the neighbour's name where it tells one; with `-v` all it says.

mod media;

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
    if !matches!(oui, 0x0080c2 | 0x00120f | 0x0012bb | 0x001b21 | 0x00005e) {
        return Ok(Shown::Bytes);
    }
    if value.len < 4 {
        return Ok(Shown::Words);
    }
    let subtype = value.u8(3)?;
    let name = subtype_name(oui, subtype);
    put!(line, "\n\t  {name} Subtype ({subtype})");
    let shown = match oui {
        // What IEEE 802.1 and 802.3 and the exchange before them add is named, and left to -vv.
        0x0080c2 | 0x00120f | 0x001b21 => Ok(Shown::Words),
        0x0012bb => media::media(line, subtype, value),
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
        (0x001b21, 1) => "DCB Capability Exchange Protocol Rev 1",
        (0x001b21, 2) => "DCB Capability Exchange Protocol Rev 1.01",
        (0x00005e, 1) => "MUD-URL",
        _ => "unknown",
    }
}
