//! LLDP-MED, which the TIA adds for telephones and other endpoints.

use super::super::line::{Data, Line, Stop, flag_names, put};
use super::super::text::put_string;
use super::{Shown, at_least};

pub(super) fn media(line: &mut Line<'_>, subtype: u8, value: Data<'_>) -> Result<Shown, Stop> {
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
