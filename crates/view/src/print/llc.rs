//! 802.2 LLC, and the spanning tree it carries.

use super::line::{Data, Line, Mac, Printed, Stop, flag_names, put};
use super::text::put_string;
use super::{cdp, link, names};

const CISCO: u32 = 0x00_000c;
const SAP_STP: u8 = 0x42;
const SAP_SNAP: u8 = 0xaa;
const CONTROL_UI: u8 = 0x03;
pub(super) const HEADER_LEN: usize = 3;
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
    let name = |sap| match sap & !1 {
        0x00 => "Null",
        0x02 => "802.1B I",
        0x04 => "SNA",
        0x06 => "IP",
        0x0e => "ProWay NM",
        SAP_STP => "STP",
        0x4e => "RS511",
        0x7e => "ISO8208",
        0x8e => "ProWay",
        SAP_SNAP => "SNAP",
        0xe0 => "IPX",
        0xf0 => "NetBeui",
        0xfe => "OSI",
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

/// RFC 2684: frames of another kind inside.
const BRIDGED: u32 = 0x00_80c2;

/// Between SNAP and a bridged frame, on links that align it.
const BRIDGE_PAD: usize = 2;

/// A SNAP header: an organization, and a type that is an ethertype where it names none. The first bytes are those of the
/// header before it.
pub(super) fn snap(line: &mut Line<'_>, data: Data<'_>, bridge_pad: usize) -> Printed {
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
        // A spanning tree for each VLAN.
        (CISCO, 0x010b) => return spanning_tree(line, payload),
        (BRIDGED, 1 | 7) => return link::ethernet(line, payload.skip(bridge_pad)),
        (BRIDGED, 0x000e) => return spanning_tree(line, payload),
        _ => {}
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
        put!(
            line,
            "pid {} (0x{kind:04x})",
            protocol_name(organization, kind)
        );
    }
    put!(line, ", length {len}: ");
}

/// What an organization means by a type of its own.
fn protocol_name(organization: u32, kind: u16) -> &'static str {
    match (organization, kind) {
        (CISCO, 0x010b) => "PVST",
        (CISCO, 0x010c) => "VLAN Bridge",
        (CISCO, 0x0111) => "UDLD",
        (CISCO, 0x2000) => "CDP",
        (CISCO, 0x2003) => "VTP",
        (CISCO, 0x2004) => "DTP",
        (BRIDGED, 0x0001) => "Ethernet + FCS",
        (BRIDGED, 0x0007) => "Ethernet w/o FCS",
        (BRIDGED, 0x000e) => "BPDU",
        _ => "Unknown",
    }
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
    const SINGLE_LEN: usize = 35;
    line.protocol = "stp";
    let (protocol_id, version, kind) = (data.u16(0)?, data.u8(2)?, data.u8(3)?);
    if protocol_id != 0 {
        put!(line, "unknown STP version, length {}", data.len);
        return Ok(());
    }
    match version {
        0 => put!(line, "STP 802.1d"),
        2 => put!(line, "STP 802.1w"),
        3 => put!(line, "STP 802.1s"),
        4 => put!(line, "STP 802.1aq"),
        _ => {
            put!(line, "STP Unknown STP protocol (0x{version:02x})");
            return Ok(());
        }
    }
    match kind {
        CONFIG => put!(line, ", Config"),
        RAPID => put!(line, ", Rapid STP"),
        TOPOLOGY_CHANGE => {
            put!(line, ", Topology Change");
            return Ok(());
        }
        _ => {
            put!(line, ", Unknown BPDU Type (0x{kind:02x})");
            return Ok(());
        }
    }
    if kind == RAPID && version > 2 {
        return multiple_trees(line, version, data);
    }
    if data.len < SINGLE_LEN + usize::from(kind == RAPID) {
        return Err(Stop::Invalid);
    }
    if kind == RAPID && version != 2 {
        return Ok(());
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
            put!(line, ", port-role {}", port_role(flags));
        }
    }
    Ok(())
}

/// Priority and address of a bridge.
fn bridge(data: Data<'_>, at: usize) -> Result<String, Stop> {
    Ok(format!(
        "{:04x}.{}",
        data.u16(at)?,
        Mac(data.array(at + 2)?)
    ))
}

fn digest(data: Data<'_>, at: usize) -> Result<String, Stop> {
    let bytes = data.slice(at, 16)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn port_role(flags: u8) -> &'static str {
    ["Unknown", "Alternate", "Root", "Designated"][usize::from(flags >> 2 & 3)]
}

/// The common tree of several, with `-v` each of the others.
fn multiple_trees(line: &mut Line<'_>, version: u8, data: Data<'_>) -> Printed {
    const LEAST: usize = 102;
    /// Up to the length of what the third version adds.
    const HEADER_LEN_V3: usize = 38;
    const CONFIGURATION_LEN: usize = 64;
    const TREE_LEN: usize = 16;
    if data.len < LEAST {
        return Err(Stop::Invalid);
    }
    if data.u8(35)? != 0 {
        // Such a message has no content of the first version.
        return Err(Stop::Invalid);
    }
    let len = usize::from(data.u16(36)?);
    if data.len < HEADER_LEN_V3 + len {
        return Err(Stop::Invalid);
    }
    let flags = data.u8(4)?;
    let list = flag_names(flags.into(), &STP_FLAGS, ", ");
    put!(line, ", CIST Flags [{list}], length {}", data.len);
    let more = (version == 4).then(|| data.skip(HEADER_LEN_V3 + len));
    if !line.verbose() {
        return more.map_or(Ok(()), has_shortest_paths);
    }
    let role = port_role(flags);
    put!(
        line,
        "\n\tport-role {role}, CIST root-id {}, CIST ext-pathcost {}",
        bridge(data, 5)?,
        data.u32(13)?
    );
    put!(
        line,
        "\n\tCIST regional-root-id {}, CIST port-id {:04x},",
        bridge(data, 17)?,
        data.u16(25)?
    );
    let seconds = |at| data.u16(at).map(|value| f32::from(value) / 256.0);
    put!(
        line,
        "\n\tmessage-age {:.2}s, max-age {:.2}s, hello-time {:.2}s, forwarding-delay {:.2}s",
        seconds(27)?,
        seconds(29)?,
        seconds(31)?,
        seconds(33)?
    );
    put!(line, "\n\tv3len {len}, MCID Name ");
    put_string(line, data.slice(39, 32)?);
    put!(
        line,
        ", rev {},\n\t\tdigest {}, CIST int-root-pathcost {},",
        data.u16(71)?,
        digest(data, 73)?,
        data.u32(89)?
    );
    put!(
        line,
        "\n\tCIST bridge-id {}, CIST remaining-hops {}",
        bridge(data, 93)?,
        data.u8(101)?
    );
    let count = len.saturating_sub(CONFIGURATION_LEN) / TREE_LEN;
    for number in 0..count {
        let tree = data.skip(LEAST + number * TREE_LEN);
        let flags = tree.u8(0)?;
        put!(
            line,
            "\n\tMSTI {}, Flags [{}], port-role {}",
            tree.u16(1)? & 0xfff,
            flag_names(flags.into(), &STP_FLAGS, ", "),
            port_role(flags)
        );
        put!(
            line,
            "\n\t\tMSTI regional-root-id {}, pathcost {}",
            bridge(tree, 1)?,
            tree.u32(9)?
        );
        put!(
            line,
            "\n\t\tMSTI bridge-prio {}, port-prio {}, hops {}",
            tree.u8(13)? >> 4,
            tree.u8(14)? >> 4,
            tree.u8(15)?
        );
    }
    more.map_or(Ok(()), |more| shortest_paths(line, more))
}

/// The length must be that of what follows.
fn has_shortest_paths(data: Data<'_>) -> Printed {
    const LEAST: usize = 85;
    let len = usize::from(data.u16(0)?);
    match len >= LEAST && data.len >= len + 2 {
        true => Ok(()),
        false => Err(Stop::Invalid),
    }
}

/// What shortest path bridging adds.
fn shortest_paths(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    has_shortest_paths(data)?;
    put!(line, "\n\tv4len {}, AUXMCID Name ", data.u16(0)?);
    put_string(line, data.slice(3, 32)?);
    put!(
        line,
        ", Rev {},\n\t\tdigest {}",
        data.u16(35)?,
        digest(data, 37)?
    );
    let (agreement, format, convention) = (data.u8(53)?, data.u8(55)?, data.u8(56)?);
    put!(
        line,
        "\n\tAgreement num {}, Discarded Agreement num {}, Agreement valid-flag {},\n\tRestricted role-flag: {}, Format id {} cap {}, ",
        agreement >> 6,
        agreement >> 4 & 3,
        agreement >> 3 & 1,
        agreement >> 2 & 1,
        format >> 4,
        format
    );
    put!(
        line,
        "Convention id {} cap {},\n\tEdge count {}, Agreement digest ",
        convention >> 4,
        convention,
        data.u16(57)?
    );
    for at in (67..87).step_by(4) {
        put!(line, "{:08x}", data.u32(at)?);
    }
    Ok(())
}
