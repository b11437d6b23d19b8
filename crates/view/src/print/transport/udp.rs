//! UDP.

use crate::print::line::{Data, Line, Printed, put};
use crate::print::network::Ip;
use crate::print::transport::{as_chosen, datagram, names_length};
use trawl_packet::net::protocol;

const HEADER_LEN: usize = 8;

pub fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = "udp";
    let (src, dst) = ip.put_ports(line, protocol::UDP, data)?;
    if data.len < HEADER_LEN {
        put!(line, "truncated-udp {}", data.len);
        return Ok(());
    }
    data.need(HEADER_LEN)?;
    let stored_len = usize::from(data.u16(4)?);
    if stored_len != 0 && stored_len < HEADER_LEN {
        put!(line, "truncated-udplength {stored_len}");
        return Ok(());
    }
    let room = data.len - HEADER_LEN;
    // A length of zero is a datagram too long for the field.
    let len = if stored_len == 0 { room } else { stored_len - HEADER_LEN };
    let claimed = if ip.fragmented && names_length(src, dst) {
        // The rest is in other fragments.
        len + HEADER_LEN
    } else {
        data.len.min(len + HEADER_LEN)
    };
    let payload = data.claimed(claimed).skip(HEADER_LEN);
    if let Some(datagrams) = line.options.datagrams {
        return as_chosen(line, datagrams, payload);
    }
    // tcpdump does not verify IPv4, where the checksum is optional, before the second `-v`.
    if line.options.verbosity > u8::from(ip.is_v4()) && !line.options.trust_checksums && !ip.fragmented {
        checksum(line, ip, data.claimed(payload.len + HEADER_LEN))?;
    }
    if !line.options.quick && datagram(line, ip, (src, dst), payload)? {
        return Ok(());
    }
    if len > room && !ip.fragmented {
        put!(line, "UDP, bad length {len} > {room}");
    } else {
        line.put_number("UDP, length ", len as u64);
    }
    Ok(())
}

fn checksum(line: &mut Line<'_>, ip: &Ip, datagram: Data<'_>) -> Printed {
    let stored = datagram.u16(6)?;
    if stored == 0 {
        put!(line, "[no cksum] ");
        return Ok(());
    }
    let (Some(addresses), true) = (ip.addresses(), datagram.bytes.len() == datagram.len) else {
        return Ok(());
    };
    let sum = addresses.pseudo_header(protocol::UDP, datagram.len).add(datagram.bytes);
    if sum.finish() == 0 {
        put!(line, "[udp sum ok] ");
    } else {
        let right = sum.should_be(stored);
        put!(line, "[bad udp cksum 0x{stored:04x} -> 0x{right:04x}!] ");
    }
    Ok(())
}
