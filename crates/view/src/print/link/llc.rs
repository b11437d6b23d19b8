//! 802.2 LLC and SNAP.

use crate::print::line::{Data, Line, Printed, put};
use crate::print::{cdp, default_print, ethernet, link, names, stp};

const CISCO: u32 = 0x00_000c;
const SAP_STP: u8 = 0x42;
const SAP_SNAP: u8 = 0xaa;
const CONTROL_UI: u8 = 0x03;
pub const HEADER_LEN: usize = 3;
const SNAP_LEN: usize = 8;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
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
        (SAP_STP, SAP_STP, CONTROL_UI) => stp::print(line, data.skip(HEADER_LEN)),
        (SAP_SNAP, SAP_SNAP, CONTROL_UI) => snap(line, data, BRIDGE_PAD),
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
    let group = if dsap & 1 == 0 { "Individual" } else { "Group" };
    let response = if ssap & 1 == 0 { "Command" } else { "Response" };
    let [(dsap, to), (ssap, from)] = [dsap & !1, ssap & !1].map(|sap| (sap, names::of("llc.sap", sap)));
    put!(line, "LLC, dsap {to} (0x{dsap:02x}) {group}, ");
    put!(line, "ssap {from} (0x{ssap:02x}) {response}, ctrl 0x{control:02x}");
}

/// RFC 2684: bridged frames of another kind.
const BRIDGED: u32 = 0x00_80c2;

/// Padding between SNAP and a bridged frame, on links that align it.
const BRIDGE_PAD: usize = 2;

/// Shows a SNAP header: an organization, and a type that is an ethertype if the organization is zero. The first bytes
/// belong to the header before it.
pub fn snap(line: &mut Line<'_>, data: Data<'_>, bridge_pad: usize) -> Printed {
    line.protocol = "snap";
    let [_, a, b, c] = data.u32(2)?.to_be_bytes();
    let (organization, kind) = (u32::from_be_bytes([0, a, b, c]), data.u16(6)?);
    if !line.is_nested() {
        line.link_header_len += SNAP_LEN - HEADER_LEN;
    }
    let name = match organization {
        BRIDGED => "RFC2684 (VC-MUX bridged)",
        _ => names::organization(organization),
    };
    let payload = data.skip(SNAP_LEN);
    if line.options.link_header {
        put_snap(line, organization, name, kind, payload.len);
    }
    if organization == 0 && link::ethertype(line, kind, payload)? {
        return Ok(());
    }
    match (organization, kind) {
        (CISCO, 0x2000) => return cdp::print(line, payload),
        (CISCO, 0x2003) => return cdp::vtp(line, payload),
        (CISCO, 0x0111) => return cdp::udld(line, payload),
        // A spanning tree per VLAN.
        (CISCO, 0x010b) => return stp::print(line, payload),
        (BRIDGED, 1 | 7) => return ethernet::print(line, payload.skip(bridge_pad)),
        (BRIDGED, 0x000e) => return stp::print(line, payload),
        _ => {}
    }
    if !line.options.link_header {
        put_snap(line, organization, name, kind, payload.len);
    }
    default_print(line, payload);
    Ok(())
}

fn put_snap(line: &mut Line<'_>, organization: u32, name: &str, kind: u16, len: usize) {
    put!(line, "oui {name} (0x{organization:06x}), ");
    if organization == 0 {
        put!(line, "ethertype ");
        line.put_ethertype(kind);
    } else {
        let table = match organization {
            CISCO => "snap.cisco",
            BRIDGED => "snap.bridged",
            _ => "snap.other",
        };
        put!(line, "pid {} (0x{kind:04x})", names::of(table, kind));
    }
    put!(line, ", length {len}: ");
}
