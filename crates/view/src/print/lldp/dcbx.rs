//! The data centre bridging exchange in LLDP, as Intel, Cisco and others had it before IEEE 802.1Qaz.

use super::super::dump;
use super::super::line::{Data, Line, Printed, Stop, put};
use super::Shown;

const REVISION_1_01: u8 = 2;

pub(super) fn print(line: &mut Line<'_>, value: Data<'_>) -> Result<Shown, Stop> {
    if value.len < 4 {
        return Ok(Shown::Words);
    }
    let subtype = value.u8(3)?;
    let name = match subtype {
        1 => "DCB Capability Exchange Protocol Rev 1",
        REVISION_1_01 => "DCB Capability Exchange Protocol Rev 1.01",
        _ => "unknown",
    };
    put!(line, "\n\t  {name} Subtype ({subtype})");
    if subtype == 1 {
        return Ok(Shown::Bytes);
    }
    let mut shown = Shown::Words;
    let mut rest = value.skip(4);
    while rest.len >= 2 {
        let header = rest.u16(0)?;
        let (kind, len) = (header >> 9, usize::from(header & 0x1ff));
        shown = Shown::Words;
        if kind == 0 || len == 0 || rest.len < 2 + len {
            break;
        }
        let element = Data {
            bytes: rest.slice(2, len)?,
            len,
        };
        let known = match kind {
            1 => control(line, element),
            2 => groups(line, element),
            3 => flow_control(line, element),
            4 => applications(line, element),
            _ => {
                shown = Shown::Bytes;
                Ok(())
            }
        };
        // tcpdump leaves an element that is too short, and what follows it.
        if known.is_err() {
            break;
        }
        if shown == Shown::Bytes || line.options.verbosity > 1 {
            dump::hex(line.out, "\n\t    ", element.bytes);
        }
        rest = rest.skip(2 + len);
    }
    Ok(shown)
}

fn versions(line: &mut Line<'_>, element: Data<'_>) -> Printed {
    put!(
        line,
        "\n\t      Oper_Version: {}\n\t      Max_Version: {}",
        element.u8(0)?,
        element.u8(1)?
    );
    Ok(())
}

/// What each feature begins with.
fn feature(line: &mut Line<'_>, element: Data<'_>) -> Printed {
    versions(line, element)?;
    let set = element.u8(2)?;
    put!(
        line,
        "\n\t      Info block(0x{set:02X}): Enable bit: {}, Willing bit: {}, Error Bit: {}",
        set >> 7,
        set >> 6 & 1,
        set >> 5 & 1
    );
    put!(line, "\n\t      SubType: {}", element.u8(3)?);
    Ok(())
}

fn control(line: &mut Line<'_>, element: Data<'_>) -> Printed {
    element.need(10)?;
    put!(
        line,
        "\n\t    Control - Protocol Control (type 0x1, length {})",
        element.len
    );
    versions(line, element)?;
    put!(
        line,
        "\n\t      Sequence Number: {}\n\t      Acknowledgement Number: {}",
        element.u32(2)?,
        element.u32(6)?
    );
    Ok(())
}

fn groups(line: &mut Line<'_>, element: Data<'_>) -> Printed {
    element.need(17)?;
    put!(
        line,
        "\n\t    Feature - Priority Group (type 0x2, length {})",
        element.len
    );
    feature(line, element)?;
    put!(line, "\n\t      Priority Allocation");
    let allocation = element.u32(4)?;
    for priority in 0..8 {
        put!(
            line,
            "\n\t          PgId_{priority}: {}",
            allocation >> (28 - 4 * priority) & 0xf
        );
    }
    put!(line, "\n\t      Priority Group Allocation");
    for group in 0..8 {
        put!(
            line,
            "\n\t          Pg percentage[{group}]: {}",
            element.u8(8 + group)?
        );
    }
    put!(line, "\n\t      NumTCsSupported: {}", element.u8(16)?);
    Ok(())
}

fn flow_control(line: &mut Line<'_>, element: Data<'_>) -> Printed {
    element.need(6)?;
    put!(
        line,
        "\n\t    Feature - Priority Flow Control (type 0x3, length {})",
        element.len
    );
    feature(line, element)?;
    let set = element.u8(4)?;
    put!(line, "\n\t      PFC Config (0x{set:02X})");
    for bit in 0..8 {
        let state = if set >> bit & 1 == 1 {
            "Enabled"
        } else {
            "Disabled"
        };
        put!(line, "\n\t          Priority Bit {bit}: {state}");
    }
    put!(line, "\n\t      NumTCPFCSupported: {}", element.u8(5)?);
    Ok(())
}

fn applications(line: &mut Line<'_>, element: Data<'_>) -> Printed {
    element.need(4)?;
    put!(
        line,
        "\n\t    Feature - Application (type 0x4, length {})",
        element.len
    );
    feature(line, element)?;
    for entry in element.skip(4).bytes.chunks_exact(6) {
        let field = u32::from_be_bytes([0, entry[2], entry[3], entry[4]]);
        let selector = field >> 22;
        let kind = if selector == 0 {
            "L2 EtherType"
        } else {
            "Socket Number"
        };
        put!(
            line,
            "\n\t      Application Value\n\t          Application Protocol ID: 0x{:02x}{:02x}",
            entry[0],
            entry[1]
        );
        put!(
            line,
            "\n\t          SF (0x{selector:x}) Application Protocol ID is {kind}"
        );
        put!(
            line,
            "\n\t          OUI: 0x{:06x}\n\t          User Priority Map: 0x{:02x}",
            field & 0x3f_ffff,
            entry[5]
        );
    }
    Ok(())
}
