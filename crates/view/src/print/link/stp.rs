//! Spanning trees: one for a bridge, a rapid one, several (802.1s), and shortest paths (802.1aq).

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const CONFIG: u8 = 0x00;
    const RAPID: u8 = 0x02;
    const SINGLE_LEN: usize = 35;
    line.protocol = "stp";
    let (protocol_id, version, kind) = (data.u16(0)?, data.u8(2)?, data.u8(3)?);
    if protocol_id != 0 {
        put!(line, "unknown STP version, length {}", data.len);
        return Ok(());
    }
    put!(line, "STP {}", names::text("stp.version", version));
    if names::find("stp.version", version).is_none() {
        return Ok(());
    }
    put!(line, ", {}", names::text("stp.kind", kind));
    if kind != CONFIG && kind != RAPID {
        return Ok(());
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
    line.show(data, ", Flags [{f8 4 stp.flags}], bridge-id {x16 17}.{mac 19}.{x16 25}")?;
    put!(line, ", length {}", data.len);
    if line.verbose() {
        times(line, data)?;
        line.show(data, "\n\troot-id {x16 5}.{mac 7}, root-pathcost {u32 13}")?;
        if kind == RAPID {
            line.show(data, ", port-role {n8 4>>2&3 stp.role}")?;
        }
    }
    Ok(())
}

/// Shows the age of a message and the times of the tree.
fn times(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let seconds = |at| data.u16(at).map(|value| f32::from(value) / 256.0);
    let (age, most) = (seconds(27)?, seconds(29)?);
    put!(line, "\n\tmessage-age {age:.2}s, max-age {most:.2}s");
    let (hello, delay) = (seconds(31)?, seconds(33)?);
    put!(line, ", hello-time {hello:.2}s, forwarding-delay {delay:.2}s");
    Ok(())
}

/// Shows the common tree of several; with `-v` each of the others too.
fn multiple_trees(line: &mut Line<'_>, version: u8, data: Data<'_>) -> Printed {
    const LEAST: usize = 102;
    /// Header with the part that the third version adds.
    const HEADER_LEN_V3: usize = 38;
    const CONFIGURATION_LEN: usize = 64;
    const TREE_LEN: usize = 16;
    // Such a message lacks the content of the first version.
    if data.len < LEAST || data.u8(35)? != 0 {
        return Err(Stop::Invalid);
    }
    let len = usize::from(data.u16(36)?);
    if data.len < HEADER_LEN_V3 + len {
        return Err(Stop::Invalid);
    }
    line.show(data, ", CIST Flags [{f8 4 stp.flags}]")?;
    put!(line, ", length {}", data.len);
    let more = (version == 4).then(|| data.skip(HEADER_LEN_V3 + len));
    if !line.verbose() {
        return more.map_or(Ok(()), has_shortest_paths);
    }
    line.show(data, "\n\tport-role {n8 4>>2&3 stp.role}, CIST root-id {x16 5}.{mac 7}, CIST ext-pathcost {u32 13}")?;
    line.show(data, "\n\tCIST regional-root-id {x16 17}.{mac 19}, CIST port-id {x16 25},")?;
    times(line, data)?;
    put!(line, "\n\tv3len {len}, MCID Name ");
    line.put_string(data.slice(39, 32)?);
    line.show(data, ", rev {u16 71},\n\t\tdigest {x64 73}{x64 81}, CIST int-root-pathcost {u32 89},")?;
    line.show(data, "\n\tCIST bridge-id {x16 93}.{mac 95}, CIST remaining-hops {u8 101}")?;
    for number in 0..len.saturating_sub(CONFIGURATION_LEN) / TREE_LEN {
        let tree = data.skip(LEAST + number * TREE_LEN);
        line.show(tree, "\n\tMSTI {u16 1&fff}, Flags [{f8 0 stp.flags}], port-role {n8 0>>2&3 stp.role}")?;
        line.show(tree, "\n\t\tMSTI regional-root-id {x16 1}.{mac 3}, pathcost {u32 9}")?;
        line.show(tree, "\n\t\tMSTI bridge-prio {u8 13>>4}, port-prio {u8 14>>4}, hops {u8 15}")?;
    }
    more.map_or(Ok(()), |more| shortest_paths(line, more))
}

/// Fails unless the length matches the data after it.
fn has_shortest_paths(data: Data<'_>) -> Printed {
    const LEAST: usize = 85;
    let len = usize::from(data.u16(0)?);
    if len >= LEAST && data.len >= len + 2 { Ok(()) } else { Err(Stop::Invalid) }
}

/// Shows the part that shortest path bridging adds.
fn shortest_paths(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    has_shortest_paths(data)?;
    line.show(data, "\n\tv4len {u16 0}, AUXMCID Name ")?;
    line.put_string(data.slice(3, 32)?);
    line.show(data, ", Rev {u16 35},\n\t\tdigest {x64 37}{x64 45}")?;
    line.show(
        data,
        "\n\tAgreement num {u8 53>>6}, Discarded Agreement num {u8 53>>4&3}, Agreement valid-flag {u8 53>>3&1},\
        \n\tRestricted role-flag: {u8 53>>2&1}, Format id {u8 55>>4} cap {u8 55}, ",
    )?;
    line.show(data, "Convention id {u8 56>>4} cap {u8 56},\n\tEdge count {u16 57}, Agreement digest ")?;
    for at in (67..87).step_by(4) {
        line.show(data.skip(at), "{x32 0}")?;
    }
    Ok(())
}
