//! 802.2 LLC, the spanning tree it carries, and LLDP.

use super::line::{Data, Line, Mac, Printed, flag_names, put};
use super::{control, link, names};

const SAP_STP: u8 = 0x42;
const SAP_SNAP: u8 = 0xaa;
const CONTROL_UI: u8 = 0x03;
const HEADER_LEN: usize = 3;
const SNAP_LEN: usize = 8;

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "llc";
    let (dsap, ssap, control) = (data.u8(0)?, data.u8(1)?, data.u8(2)?);
    if !line.is_nested() {
        line.link_header_len += HEADER_LEN;
    }
    let saps = (dsap & !1, ssap & !1, control);
    if line.options.link_header {
        put_header(line, dsap, ssap, control);
        put!(line, ": ");
    }
    match saps {
        (SAP_STP, SAP_STP, CONTROL_UI) => spanning_tree(line, data.skip(HEADER_LEN)),
        (SAP_SNAP, SAP_SNAP, CONTROL_UI) => snap(line, data),
        _ => {
            if !line.options.link_header {
                put_header(line, dsap, ssap, control);
                put!(line, ": ");
            }
            put!(line, "length {}", data.len);
            Ok(())
        }
    }
}

fn put_header(line: &mut Line<'_>, dsap: u8, ssap: u8, control: u8) {
    let name = |sap| match sap & !1 {
        0x00 => "Null",
        SAP_STP => "STP",
        0xe0 => "IPX",
        SAP_SNAP => "SNAP",
        0xf0 => "NetBeui",
        0xfe => "ISONS",
        _ => "Unknown",
    };
    let group = if dsap & 1 == 0 { "Individual" } else { "Group" };
    let response = if ssap & 1 == 0 { "Command" } else { "Response" };
    put!(
        line,
        "LLC, dsap {} (0x{:02x}) {group}, ",
        name(dsap),
        dsap & !1
    );
    put!(
        line,
        "ssap {} (0x{:02x}) {response}, ctrl 0x{control:02x}",
        name(ssap),
        ssap & !1
    );
}

/// A SNAP header: an organization, and a type that is an ethertype where it names none.
fn snap(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "snap";
    let [_, a, b, c] = data.u32(2)?.to_be_bytes();
    let (organization, kind) = (u32::from_be_bytes([0, a, b, c]), data.u16(6)?);
    if !line.is_nested() {
        line.link_header_len += SNAP_LEN - HEADER_LEN;
    }
    let name = match organization {
        0x00_0000 => "Ethernet",
        0x00_000c => "Cisco",
        0x00_00f8 => "Cisco bridged",
        0x00_80c2 => "RFC2684 (VC-MUX bridged)",
        _ => "Unknown",
    };
    let payload = data.skip(SNAP_LEN);
    if line.options.link_header {
        put_snap(line, organization, name, kind, payload.len);
    }
    if organization == 0 && link::ethertype(line, kind, payload)? {
        return Ok(());
    }
    if (organization, kind) == (0x00_000c, 0x2000) {
        return control::cdp(line, payload);
    }
    if !line.options.link_header {
        put_snap(line, organization, name, kind, payload.len);
    }
    link::default_print(line, payload);
    Ok(())
}

fn put_snap(line: &mut Line<'_>, organization: u32, name: &str, kind: u16, len: usize) {
    put!(line, "oui {name} (0x{organization:06x}), ");
    if organization == 0 {
        put!(line, "ethertype ");
        names::put_ethertype(line, kind);
    } else {
        put!(line, "pid Unknown (0x{kind:04x})");
    }
    put!(line, ", length {len}: ");
}

const STP_FLAGS: [(u32, &str); 6] = [
    (0x01, "Topology change"),
    (0x02, "Proposal"),
    (0x10, "Learn"),
    (0x20, "Forward"),
    (0x40, "Agreement"),
    (0x80, "Topology change ACK"),
];

fn spanning_tree(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const CONFIG: u8 = 0x00;
    const RAPID: u8 = 0x02;
    const TOPOLOGY_CHANGE: u8 = 0x80;
    line.protocol = "stp";
    let (protocol_id, version, kind) = (data.u16(0)?, data.u8(2)?, data.u8(3)?);
    if protocol_id != 0 {
        put!(
            line,
            "unknown STP protocol 0x{protocol_id:04x}, length {}",
            data.len
        );
        return Ok(());
    }
    match version {
        0 => put!(line, "STP 802.1d"),
        2 => put!(line, "STP 802.1w"),
        3 => put!(line, "STP 802.1s"),
        _ => put!(line, "STP Unknown STP protocol (0x{version:02x})"),
    }
    match kind {
        CONFIG => put!(line, ", Config"),
        RAPID => put!(line, ", Rapid STP"),
        TOPOLOGY_CHANGE => {
            put!(line, ", Topology Change");
            return Ok(());
        }
        _ => {
            put!(
                line,
                ", Unknown BPDU Type (0x{kind:02x}), length {}",
                data.len
            );
            return Ok(());
        }
    }
    let flags = data.u8(4)?;
    let (priority, bridge, port) = (data.u16(17)?, Mac(data.array(19)?), data.u16(25)?);
    put!(
        line,
        ", Flags [{}]",
        flag_names(flags.into(), &STP_FLAGS, ", ")
    );
    put!(
        line,
        ", bridge-id {priority:04x}.{bridge}.{port:04x}, length {}",
        data.len
    );
    if line.verbose() {
        let seconds = |at| data.u16(at).map(|value| f32::from(value) / 256.0);
        put!(
            line,
            "\n\tmessage-age {:.2}s, max-age {:.2}s",
            seconds(27)?,
            seconds(29)?
        );
        put!(
            line,
            ", hello-time {:.2}s, forwarding-delay {:.2}s",
            seconds(31)?,
            seconds(33)?
        );
        put!(
            line,
            "\n\troot-id {:04x}.{}, root-pathcost {}",
            data.u16(5)?,
            Mac(data.array(7)?),
            data.u32(13)?
        );
        if kind == RAPID {
            let role = ["Unknown", "Alternate", "Root", "Designated"][usize::from(flags >> 2 & 3)];
            put!(line, ", port-role {role}");
        }
    }
    Ok(())
}

/// The length, and the neighbour's name where it tells one.
pub(super) fn lldp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const END: u16 = 0;
    const SYSTEM_NAME: u16 = 5;
    line.protocol = "lldp";
    put!(line, "LLDP, length {}", data.len);
    let mut rest = data;
    while rest.len >= 2 {
        let header = rest.u16(0)?;
        let len = usize::from(header & 0x1ff);
        match header >> 9 {
            END => break,
            SYSTEM_NAME => {
                let name = String::from_utf8_lossy(rest.slice(2, len)?);
                put!(line, ": {}", name.escape_debug());
                break;
            }
            _ => rest = rest.skip(2 + len),
        }
    }
    Ok(())
}
