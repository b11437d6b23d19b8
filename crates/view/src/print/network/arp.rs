//! ARP and reverse ARP.

use crate::print::line::{Colons, Data, Line, Printed, put};
use crate::print::names;
use trawl_packet::net::ethertype;

const HARDWARE_ETHERNET: u16 = 1;
const HARDWARE_ATM: u16 = 19;
const HEADER_LEN: usize = 8;

/// Shows ARP over ATM, where each side has two hardware addresses, with lengths of their own (RFC 2225).
fn atm(line: &mut Line<'_>, operation: u16, data: Data<'_>) -> Printed {
    const FIRST: usize = 12;
    let stored = data.array::<8>(4)?;
    let lengths = stored.map(|len| usize::from(len & 0x3f));
    let [number, subaddress, _, _, sender, target_number, target_subaddress, _] = lengths;
    let sender_at = FIRST + number + subaddress;
    let target_at = sender_at + sender + target_number + target_subaddress;
    if !line.options.link_header {
        put!(line, "ARP, ");
    }
    if line.verbose() {
        put!(line, "ATM, IPv4 (len {sender}/{}), ", stored[7]);
    }
    match operation {
        1 => {
            let target = data.slice(sender_at + sender, target_number)?;
            put!(line, "Request who-has {}", data.ip4(target_at)?);
            if target.iter().any(|byte| *byte != 0) {
                put!(line, " ({})", Colons(target));
            }
            put!(line, " tell {}", data.ip4(sender_at)?);
        }
        2 => {
            let at = Colons(data.slice(FIRST, number)?);
            put!(line, "Reply {} is-at {at}", data.ip4(sender_at)?);
        }
        _ => put!(line, "ATM, operation {operation}"),
    }
    put!(line, ", length {}", data.len);
    Ok(())
}

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
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
    let is_ip = protocol == ethertype::IPV4;
    let usual = is_ip && plen == 4 && hlen != 0;
    if !usual || line.verbose() {
        match hardware {
            HARDWARE_ETHERNET => put!(line, "Ethernet (len {hlen}), "),
            _ => put!(line, "Unknown Hardware ({hardware}) (len {hlen}), "),
        }
        match names::ethertype(protocol) {
            Some(name) => put!(line, "{name} (len {plen})"),
            None => put!(line, "Unknown Protocol (0x{protocol:04x}) (len {plen})"),
        }
        if !line.verbose() {
            put!(line, ", length {}", data.len);
            return Ok(());
        }
        put!(line, ", ");
    }
    let from = Colons(data.slice(HEADER_LEN, hlen)?);
    let to = Colons(data.slice(HEADER_LEN + hlen + plen, hlen)?);
    let address = |at| -> Result<String, _> {
        Ok(match (is_ip, plen) {
            (false, _) => "<wrong proto type>".to_string(),
            (true, 4) => data.ip4(at)?.to_string(),
            (true, _) => "<wrong len>".to_string(),
        })
    };
    let sender = address(HEADER_LEN + hlen)?;
    let target = address(HEADER_LEN + 2 * hlen + plen)?;
    match operation {
        1 => {
            put!(line, "Request who-has {target}");
            if to.0.iter().any(|byte| *byte != 0) {
                put!(line, " ({to})");
            }
            put!(line, " tell {sender}");
        }
        2 => put!(line, "Reply {sender} is-at {from}"),
        3 => put!(line, "Reverse Request who-is {to} tell {from}"),
        4 => put!(line, "Reverse Reply {to} at {target}"),
        8 => put!(line, "Inverse Request who-is {to} tell {from}"),
        9 => put!(line, "Inverse Reply {from} at {sender}"),
        _ => {
            put!(line, "Unknown ({operation}) ");
            line.dump_ascii(data.bytes);
            return Ok(());
        }
    }
    put!(line, ", length {}", data.len);
    Ok(())
}
