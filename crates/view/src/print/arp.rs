//! ARP and reverse ARP.

use std::net::Ipv4Addr;

use super::dump;
use super::line::{Colons, Data, Line, Printed, put};
use super::names;

const HARDWARE_ETHERNET: u16 = 1;
const HARDWARE_ATM: u16 = 19;
const HEADER_LEN: usize = 8;

/// Over ATM each side has two hardware addresses, with lengths of their own (RFC 2225).
fn atm(line: &mut Line<'_>, operation: u16, data: Data<'_>) -> Printed {
    const FIRST: usize = 12;
    let lengths = data.array::<8>(4)?;
    let [
        number,
        subaddress,
        _,
        _,
        sender,
        target_number,
        target_subaddress,
        _,
    ] = lengths.map(|len| usize::from(len & 0x3f));
    let sender_at = FIRST + number + subaddress;
    let target_at = sender_at + sender + target_number + target_subaddress;
    let address = |at| data.array(at).map(Ipv4Addr::from);
    if !line.options.link_header {
        put!(line, "ARP, ");
    }
    if line.verbose() {
        put!(line, "ATM, IPv4 (len {sender}/{}), ", lengths[7]);
    }
    match operation {
        1 => {
            let target = data.slice(sender_at + sender, target_number)?;
            put!(line, "Request who-has {}", address(target_at)?);
            if target.iter().any(|byte| *byte != 0) {
                put!(line, " ({})", Colons(target));
            }
            put!(line, " tell {}", address(sender_at)?);
        }
        2 => {
            let at = Colons(data.slice(FIRST, number)?);
            put!(line, "Reply {} is-at {at}", address(sender_at)?);
        }
        _ => put!(line, "ATM, operation {operation}"),
    }
    put!(line, ", length {}", data.len);
    Ok(())
}

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "arp";
    let (hardware, protocol) = (data.u16(0)?, data.u16(2)?);
    let (hardware_len, protocol_len) = (data.u8(4)?, data.u8(5)?);
    let operation = data.u16(6)?;
    if hardware == HARDWARE_ATM {
        return atm(line, operation, data);
    }
    let (hlen, plen) = (usize::from(hardware_len), usize::from(protocol_len));
    data.need(HEADER_LEN + 2 * (hlen + plen))?;
    if !line.options.link_header {
        put!(line, "ARP, ");
    }
    let is_ip = protocol == names::IPV4;
    let usual = is_ip && plen == 4 && hlen != 0;
    if !usual || line.verbose() {
        put_kinds(line, hardware, hardware_len, protocol, protocol_len);
        if !line.verbose() {
            put!(line, ", length {}", data.len);
            return Ok(());
        }
        put!(line, ", ");
    }
    let sender_mac = Colons(data.slice(HEADER_LEN, hlen)?);
    let target_mac = Colons(data.slice(HEADER_LEN + hlen + plen, hlen)?);
    let address = |at| -> Result<String, _> {
        Ok(match (is_ip, plen) {
            (false, _) => "<wrong proto type>".to_string(),
            (true, 4) => Ipv4Addr::from(data.array(at)?).to_string(),
            (true, _) => "<wrong len>".to_string(),
        })
    };
    let sender_ip = address(HEADER_LEN + hlen)?;
    let target_ip = address(HEADER_LEN + 2 * hlen + plen)?;
    match operation {
        1 => {
            put!(line, "Request who-has {target_ip}");
            if target_mac.0.iter().any(|byte| *byte != 0) {
                put!(line, " ({target_mac})");
            }
            put!(line, " tell {sender_ip}");
        }
        2 => put!(line, "Reply {sender_ip} is-at {sender_mac}"),
        3 => put!(
            line,
            "Reverse Request who-is {target_mac} tell {sender_mac}"
        ),
        4 => put!(line, "Reverse Reply {target_mac} at {target_ip}"),
        8 => put!(
            line,
            "Inverse Request who-is {target_mac} tell {sender_mac}"
        ),
        9 => put!(line, "Inverse Reply {sender_mac} at {sender_ip}"),
        _ => {
            put!(line, "Unknown ({operation}) ");
            dump::hex_ascii(line.out, data.bytes);
            return Ok(());
        }
    }
    put!(line, ", length {}", data.len);
    Ok(())
}

fn put_kinds(line: &mut Line<'_>, hardware: u16, hlen: u8, protocol: u16, plen: u8) {
    match hardware {
        HARDWARE_ETHERNET => put!(line, "Ethernet"),
        _ => put!(line, "Unknown Hardware ({hardware})"),
    }
    put!(line, " (len {hlen}), ");
    match names::ethertype(protocol) {
        Some(name) => put!(line, "{name}"),
        None => put!(line, "Unknown Protocol (0x{protocol:04x})"),
    }
    put!(line, " (len {plen})");
}
