//! VRRP and HSRP, by which several routers act as one.

use trawl_packet::checksum::Sum;

use crate::print::line::{Data, Line, Printed, put};
use crate::print::names;
use crate::print::network::Ip;

pub fn print(line: &mut Line<'_>, ip: &Ip, ttl: u8, data: Data<'_>) -> Printed {
    line.protocol = "vrrp";
    let (version, kind) = (data.u8(0)? >> 4, data.u8(0)? & 0xf);
    match kind {
        1 => put!(line, "VRRPv{version}, Advertisement"),
        _ => put!(line, "VRRPv{version}, unknown type ({kind})"),
    }
    if ttl != 255 {
        put!(line, ", (ttl {ttl})");
    }
    if !(2..=3).contains(&version) || kind != 1 {
        return Ok(());
    }
    line.show(data, ", vrid {u8 1}, prio {u8 2}")?;
    match version {
        2 => line.show(data, ", authtype {n8 4 vrrp.authentication}, intvl {u8 5}s")?,
        _ => line.show(data, ", intvl {u16 4&fff}cs")?,
    }
    put!(line, ", length {}", data.len);
    if !line.verbose() {
        return Ok(());
    }
    if data.bytes.len() == data.len {
        let sum = match (version, ip.addresses()) {
            (3, Some(addresses)) => addresses.pseudo_header(112, data.len).add(data.bytes),
            _ => Sum::default().add(data.bytes),
        };
        if sum.finish() != 0 {
            line.show(data, ", (bad vrrp cksum {h16 6})")?;
        }
    }
    let count = usize::from(data.u8(3)?);
    put!(line, ", addrs");
    if count > 1 {
        put!(line, "({count})");
    }
    put!(line, ":");
    for index in 0..count {
        put!(line, "{}", if index == 0 { ' ' } else { ',' });
        if ip.is_v4() {
            put!(line, "{}", data.ip4(8 + index * 4)?)
        } else {
            put!(line, "{}", data.ip6(8 + index * 16)?)
        }
    }
    if version == 2 && data.u8(4)? == 1 {
        let text = data.slice(8 + count * 4, 8)?;
        let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        put!(line, " auth \"");
        line.put_chars(&text[..end]);
        put!(line, "\"");
    }
    Ok(())
}

/// Shows versions 0 and 1 of HSRP, and the group state of version 2.
pub fn hsrp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const ADVERTISE: u8 = 3;
    line.protocol = "hsrp";
    let is_second = data.u8(0)? == 1 && data.u8(1)? == 40;
    let (version, operation, state) =
        if is_second { (data.u8(2)?, data.u8(3)?, data.u8(4)?) } else { (data.u8(0)?, data.u8(1)?, data.u8(2)?) };
    if operation == ADVERTISE && !is_second {
        put!(line, "HSRPv{version}-advertise {}", data.len);
        return Ok(());
    }
    let operation = names::of("hsrp.operation", operation);
    let (state, group) = if is_second {
        (names::of("hsrp2.state", state), data.u16(6)?)
    } else {
        (names::of("hsrp.state", state), data.u8(6)?.into())
    };
    put!(line, "HSRPv{version}-{operation} {}: state={state} group={group}", data.len);
    match (is_second, data.u8(5)?) {
        (true, 6) => line.show(data, " addr={ip6 26}")?,
        (true, _) => line.show(data, " addr={ip4 26}")?,
        (false, _) => line.show(data, " addr={ip4 16}")?,
    }
    if line.verbose() && !is_second {
        line.show(data, " hellotime={u8 3}s holdtime={u8 4}s priority={u8 5} auth=\"")?;
        line.put_string(data.slice(8, 8)?);
        put!(line, "\"");
    }
    Ok(())
}
