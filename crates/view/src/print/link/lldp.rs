//! LLDP: the length, and the neighbour's name if it is sent; with `-v` all of it, and the additions of LLDP-MED.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;

/// The form in which a value was shown, or is to be shown by the caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Words,
    Bytes,
}

const IEEE_802_1: u64 = 0x00_80c2;
const IEEE_802_3: u64 = 0x00_120f;
const MEDIA: u64 = 0x00_12bb;
const DCBX: u64 = 0x00_1b21;
const IANA: u64 = 0x00_005e;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "lldp";
    put!(line, "LLDP, length {}", data.len);
    let mut rest = data;
    while rest.len >= 2 {
        // The kind has seven bits, the length nine.
        let header = rest.u16(0)?;
        let (kind, len) = (header >> 9, usize::from(header & 0x1ff));
        if line.verbose() {
            let name = names::of("lldp", kind);
            put!(line, "\n\t{name} TLV ({kind}), length {len}");
        }
        if kind == 0 || len == 0 {
            break;
        }
        let value = Data::from(rest.slice(2, len)?);
        rest.at_least(2 + len)?;
        if line.verbose() {
            let shown = value_of(line, kind, value)?;
            if shown == Shown::Bytes || line.options.verbosity > 1 {
                line.dump("\n\t  ", value.bytes);
            }
        } else if kind == 5 {
            put!(line, ": ");
            line.put_string(value.bytes);
        }
        rest = rest.skip(2 + len);
    }
    Ok(())
}

fn value_of(line: &mut Line<'_>, kind: u16, value: Data<'_>) -> Result<Shown, Stop> {
    match kind {
        1 => return identifier(line, "lldp.chassis", value),
        2 => return identifier(line, "lldp.port", value),
        3 => line.show(value, ": TTL {u16 0}s")?,
        4 | 5 => {
            put!(line, ": ");
            line.put_string(value.bytes);
        }
        6 => {
            put!(line, "\n\t  ");
            line.put_string(value.bytes);
        }
        7 => {
            value.at_least(4)?;
            line.show(value, "\n\t  System  Capabilities [{f16 0 lldp.capabilities}] (0x{x16 0})")?;
            line.show(value, "\n\t  Enabled Capabilities [{f16 2 lldp.capabilities}] (0x{x16 2})")?;
        }
        8 => management_address(line, value)?,
        127 => return organization(line, value),
        _ => return Ok(Shown::Bytes),
    }
    Ok(Shown::Words)
}

/// Shows the chassis or the port, in one of several forms.
fn identifier(line: &mut Line<'_>, table: &str, value: Data<'_>) -> Result<Shown, Stop> {
    value.at_least(2)?;
    let subtype = value.u8(0)?;
    let name = names::of(table, subtype);
    put!(line, "\n\t  Subtype {name} ({subtype}): ");
    match name {
        "Unknown" => return Ok(Shown::Bytes),
        "MAC address" => line.show(value, "{mac 1}")?,
        "Network address" | "Network Address" => network_address(line, value.skip(1))?,
        _ => line.put_string(&value.bytes[1..]),
    }
    Ok(Shown::Words)
}

fn network_address(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let family = value.u8(0)?;
    let name = names::address_family(family.into());
    let address = match family {
        1 => "{ip4 1}",
        2 => "{ip6 1}",
        6 => "{mac 1}",
        _ => {
            put!(line, "AFI {name} ({family}), no AF printer !");
            return Ok(());
        }
    };
    line.show(value, &format!("AFI {name} ({family}): {address}"))
}

fn management_address(line: &mut Line<'_>, value: Data<'_>) -> Printed {
    let len = usize::from(value.u8(0)?);
    let address = Data::from(value.slice(1, len)?);
    let start = line.out.len();
    put!(line, "\n\t  Management Address length {len}, ");
    if let Err(stop) = network_address(line, address) {
        line.out.truncate(start);
        return Err(stop);
    }
    let rest = value.skip(1 + len);
    line.show(rest, "\n\t  {n8 0 lldp.numbering} Interface Numbering ({u8 0}): {u32 1}")?;
    let rest = rest.skip(5);
    if rest.len > 0 {
        let oid = rest.slice(1, rest.u8(0)?.into())?;
        if !oid.is_empty() {
            put!(line, "\n\t  OID length {}", oid.len());
            line.put_string(oid);
        }
    }
    Ok(())
}

fn organization(line: &mut Line<'_>, value: Data<'_>) -> Result<Shown, Stop> {
    let oui = value.number(0, 3)?;
    let name = names::organization(oui);
    put!(line, ": OUI {name} (0x{oui:06x})");
    let table = match oui {
        IEEE_802_1 => "lldp.802.1",
        IEEE_802_3 => "lldp.802.3",
        MEDIA => "lldp.media",
        DCBX => "lldp.dcbx",
        IANA => "lldp.iana",
        _ => return Ok(Shown::Bytes),
    };
    let Ok(subtype) = value.u8(3) else {
        return Ok(Shown::Words);
    };
    let name = names::of(table, subtype);
    put!(line, "\n\t  {name} Subtype ({subtype})");
    match (oui, subtype) {
        // A value too short for its subtype is shown as far as it goes.
        (MEDIA, _) => media(line, subtype, value).or(Ok(Shown::Words)),
        (IANA, 1) => {
            put!(line, "\n\t  MUD-URL=");
            line.put_string(&value.bytes[4..]);
            Ok(Shown::Words)
        }
        (IANA, _) => Ok(Shown::Bytes),
        // Additions of IEEE 802.1, 802.3 and their predecessor are named; their contents are left to -vv.
        _ => Ok(Shown::Words),
    }
}

/// Shows LLDP-MED, the TIA's extension for telephones and other endpoints.
fn media(line: &mut Line<'_>, subtype: u8, value: Data<'_>) -> Result<Shown, Stop> {
    match subtype {
        1 => {
            value.at_least(7)?;
            line.show(value, "\n\t    Media capabilities [{f16 4 lldp.media.can}] (0x{x16 4})")?;
            line.show(value, "\n\t    Device type [{n8 6 lldp.media.device}] (0x{x8 6})")?;
        }
        2 => {
            value.at_least(8)?;
            let application = "\n\t    Application type [{n8 4 lldp.media.application}] (0x{x8 4})";
            line.show(value, application)?;
            line.show(value, ", Flags [{f8 5 lldp.media.flags}]\n\t    Vlan id {u16 5>>1&fff}")?;
            line.show(value, ", L2 priority {u16 6>>6&7}, DSCP value {u8 7&3f}")?;
        }
        4 => {
            value.at_least(7)?;
            let kind = if value.u8(4)? & 3 != 0 { "PD" } else { "PSE" };
            put!(line, "\n\t    Power type [{kind} device]");
            line.show(value, ", Power source [{n8 4>>4&3 lldp.media.source}]")?;
            line.show(value, "\n\t    Power priority [{n8 4&f lldp.media.priority}] (0x{x8 4&f})")?;
            match value.u16(5)? {
                power @ 0..1024 => put!(line, ", Power {:.1} Watts", f32::from(power) / 10.0),
                power => put!(line, ", Power {power} (Reserved)"),
            }
        }
        5..=11 => {
            put!(line, "\n\t  {} ", names::of("lldp.media.inventory", subtype));
            line.put_string(&value.bytes[4..]);
        }
        _ => return Ok(Shown::Bytes),
    }
    Ok(Shown::Words)
}
