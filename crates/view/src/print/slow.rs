//! Slow protocols: link aggregation, its marker protocol, and the head of Ethernet OAM.

use super::dump;
use super::line::{Data, Line, Mac, Printed, Stop, flag_names, put};

const LACP: u8 = 1;
const MARKER: u8 = 2;
const OAM: u8 = 3;
const TLV_HEADER_LEN: usize = 2;

const STATE: [(u32, &str); 8] = [
    (0x01, "Activity"),
    (0x02, "Timeout"),
    (0x04, "Aggregation"),
    (0x08, "Synchronization"),
    (0x10, "Collecting"),
    (0x20, "Distributing"),
    (0x40, "Default"),
    (0x80, "Expired"),
];

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "slow";
    let subtype = data.u8(0)?;
    let name = match subtype {
        LACP => "LACP",
        MARKER => "MARKER",
        OAM => {
            put!(line, "OAM, length {}", data.len);
            return match line.verbose() {
                true => oam(line, data.skip(1)),
                false => Ok(()),
            };
        }
        _ => {
            put!(line, "unknown ({subtype}), length {}", data.len);
            dump::hex(line.out, "\n\t", data.bytes);
            return Ok(());
        }
    };
    match data.u8(1)? {
        1 => put!(line, "{name}v1, length {}", data.len),
        version => {
            put!(line, "{name} version {version} packet not supported");
            return Ok(());
        }
    }
    match line.verbose() {
        true => parts(line, subtype, data.skip(2)),
        false => Ok(()),
    }
}

fn parts(line: &mut Line<'_>, subtype: u8, mut rest: Data<'_>) -> Printed {
    while rest.len > 0 {
        if rest.len < TLV_HEADER_LEN {
            put!(line, "\n\t\t packet is too short");
            break;
        }
        let (kind, len) = (rest.u8(0)?, usize::from(rest.u8(1)?));
        let name = match (subtype, kind) {
            (_, 0) => "Terminator",
            (LACP, 1) => "Actor Information",
            (LACP, 2) => "Partner Information",
            (LACP, 3) => "Collector Information",
            (MARKER, 1) => "Marker Information",
            _ => "Unknown",
        };
        put!(line, "\n\t{name} TLV (0x{kind:02x}), length {len}");
        if kind == 0 {
            break;
        }
        if len < TLV_HEADER_LEN {
            put!(line, "\n\t    ERROR: illegal length - should be >= 2");
            break;
        }
        if rest.len < len {
            put!(line, "\n\t\t packet is too short");
            break;
        }
        let value = Data {
            bytes: rest.slice(TLV_HEADER_LEN, len - TLV_HEADER_LEN)?,
            len: len - TLV_HEADER_LEN,
        };
        let is_known = part(line, subtype, kind, value)?;
        if line.options.verbosity > 1 || !is_known {
            dump::hex(line.out, "\n\t  ", value.bytes);
        }
        rest = rest.skip(len);
    }
    Ok(())
}

fn part(line: &mut Line<'_>, subtype: u8, kind: u8, value: Data<'_>) -> Result<bool, Stop> {
    let should = match (subtype, kind) {
        (LACP, 1 | 2) => 18,
        (LACP, 3) | (MARKER, 1) => 14,
        _ => return Ok(false),
    };
    if value.len != should {
        put!(
            line,
            "\n\t    ERROR: illegal length - should be {}",
            should + TLV_HEADER_LEN
        );
        return Ok(true);
    }
    match (subtype, kind) {
        (LACP, 3) => put!(line, "\n\t  Max Delay {}", value.u16(0)?),
        (LACP, _) => put!(
            line,
            "\n\t  System {}, System Priority {}, Key {}, Port {}, Port Priority {}\n\t  State Flags [{}]",
            Mac(value.array(2)?),
            value.u16(0)?,
            value.u16(8)?,
            value.u16(12)?,
            value.u16(10)?,
            flag_names(value.u8(14)?.into(), &STATE, ", ")
        ),
        _ => put!(
            line,
            "\n\t  Request System {}, Request Port {}, Request Transaction ID 0x{:08x}",
            Mac(value.array(2)?),
            value.u16(0)?,
            value.u32(8)?
        ),
    }
    Ok(true)
}

fn oam(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FLAGS: [(u32, &str); 7] = [
        (0x01, "Link Fault"),
        (0x02, "Dying Gasp"),
        (0x04, "Critical Event"),
        (0x08, "Local Evaluating"),
        (0x10, "Local Stable"),
        (0x20, "Remote Evaluating"),
        (0x40, "Remote Stable"),
    ];
    let (flags, code) = (data.u16(0)?, data.u8(2)?);
    let flags = flag_names(flags.into(), &FLAGS, ", ");
    let unknown = format!("Unknown ({code})");
    let name = match code {
        0x00 => "Information",
        0x01 => "Event Notification",
        0x02 => "Variable Request",
        0x03 => "Variable Response",
        0x04 => "Loopback Control",
        0xfe => "Vendor Private",
        _ => &unknown,
    };
    put!(line, "\n\tCode {name} OAM PDU, Flags [{flags}]");
    Ok(())
}
