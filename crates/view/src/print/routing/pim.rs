//! PIM version 2.

use std::net::{Ipv4Addr, Ipv6Addr};

use trawl_packet::checksum::Sum;

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, put};
use crate::print::network::Ip;
use crate::print::time::span;
use crate::print::{link, names};

const PROTOCOL: u8 = 103;
const HEADER_LEN: usize = 4;
const REGISTER: u8 = 1;
const GRAFT_ACK: u8 = 7;
const DF_ELECTION: u8 = 10;

pub fn print(line: &mut Line<'_>, ip: &Ip, data: Data<'_>) -> Printed {
    line.protocol = "pim";
    let first = data.u8(0)?;
    let (version, kind) = (first >> 4, first & 0xf);
    if version != 2 {
        put!(line, "[pim-version-{version}], length {}", data.len);
        return Ok(());
    }
    let name = names::of("pim.message", kind);
    if !line.verbose() {
        put!(line, "PIMv2, {name}, length {}", data.len);
        return Ok(());
    }
    put!(line, "PIMv2, length {}\n\t{name}", data.len);
    line.protocol = "pimv2";
    let address_len = data.u8(1)? & 0xf;
    if address_len != 0 {
        put!(line, ", RFC2117-encoding");
    }
    let stored = data.u16(2)?;
    put!(line, ", cksum 0x{stored:04x} ");
    put!(line, "({})", checksum(ip, kind, stored, data));
    let subtype = data.u8(1)? >> 4;
    let message = &mut Message { data: data.skip(HEADER_LEN), address_len: address_len.into() };
    match kind {
        0 => hello(line, message),
        REGISTER => register(line, message),
        2 => {
            put!(line, " group=");
            message.group(line)?;
            put!(line, " source=");
            message.unicast(line)
        }
        3 | 6 | GRAFT_ACK => join_and_prune(line, kind, message),
        4 => bootstrap(line, message),
        5 => {
            put!(line, " group=");
            message.group(line)?;
            put!(line, " src=");
            message.unicast(line)?;
            let (preference, metric) = (message.u32()?, message.u32()?);
            let tree = if preference >> 31 != 0 { " RPT" } else { "" };
            let preference = preference & 0x7fff_ffff;
            put!(line, "{tree} pref={preference} metric={metric}");
            Ok(())
        }
        8 => candidate(line, message),
        9 => {
            put!(line, " src=");
            message.unicast(line)?;
            put!(line, " grp=");
            message.group(line)?;
            put!(line, " forwarder=");
            message.unicast(line)?;
            put!(line, " TUNR {}", span(message.u16()?.into()));
            Ok(())
        }
        DF_ELECTION => election(line, subtype, message),
        _ => {
            put!(line, " [type {kind}]");
            Ok(())
        }
    }
}

/// Verifies the checksum. It excludes a registered packet, though some senders include it.
fn checksum(ip: &Ip, kind: u8, stored: u16, data: Data<'_>) -> &'static str {
    const REGISTER_LEN: usize = 8;
    let is_correct = |len: usize| {
        let bytes = data.bytes.get(..len)?;
        let sum = match ip.addresses() {
            Some(addresses) if !ip.is_v4() => addresses.pseudo_header(PROTOCOL, len),
            _ => Sum::default(),
        };
        Some(sum.add(bytes).finish() == 0)
    };
    let head = match kind {
        REGISTER => is_correct(REGISTER_LEN),
        _ => None,
    };
    match (stored, head, is_correct(data.len)) {
        (0, ..) => "unverified",
        (_, Some(true), _) | (_, _, Some(true)) => "correct",
        (_, _, None) => "unverified",
        _ => "incorrect",
    }
}

/// The rest of a message.
struct Message<'a> {
    data: Data<'a>,
    /// Length of all addresses; zero if each has its own.
    address_len: usize,
}

impl Message<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        if self.data.len < N {
            return Err(Stop::Cut);
        }
        let bytes = self.data.array(0)?;
        self.data = self.data.skip(N);
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8, Stop> {
        self.take().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Stop> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        self.take().map(u32::from_be_bytes)
    }

    /// Returns the length of the next address.
    fn family(&mut self) -> Result<usize, Stop> {
        if self.address_len != 0 {
            return Ok(self.address_len);
        }
        let [family, encoding] = self.take()?;
        match (family, encoding) {
            (1, 0) => Ok(4),
            (2, 0) => Ok(16),
            _ => Err(Stop::Cut),
        }
    }

    fn put_address(&mut self, line: &mut Line<'_>, len: usize) -> Printed {
        match len {
            4 => put!(line, "{}", Ipv4Addr::from(self.take::<4>()?)),
            16 => put!(line, "{}", Ipv6Addr::from(self.take::<16>()?)),
            _ => return Err(Stop::Cut),
        }
        Ok(())
    }

    fn unicast(&mut self, line: &mut Line<'_>) -> Printed {
        let len = self.family()?;
        self.put_address(line, len)
    }

    /// Shows an address with the length of its prefix, after its flags.
    fn prefixed(&mut self, line: &mut Line<'_>) -> Result<u8, Stop> {
        let len = self.family()?;
        let [flags, bits] = self.take()?;
        self.put_address(line, len)?;
        if usize::from(bits) != 8 * len {
            put!(line, "/{bits}");
        }
        Ok(flags)
    }

    fn group(&mut self, line: &mut Line<'_>) -> Printed {
        match self.prefixed(line)? {
            0 => {}
            flags => put!(line, "(0x{flags:02x})"),
        }
        Ok(())
    }

    fn source(&mut self, line: &mut Line<'_>) -> Printed {
        let flags = self.prefixed(line)?;
        if flags != 0 {
            put!(line, "({}", names::joined("pim.source", flags, ""));
            if flags & 0xf8 != 0 {
                put!(line, "+0x{:02x}", flags & 0xf8);
            }
            put!(line, ")");
        }
        Ok(())
    }
}

fn hello(line: &mut Line<'_>, message: &mut Message<'_>) -> Printed {
    let mut list = Tlvs::new(message.data, Layout::WORDS);
    while list.rest.len > 0 {
        list.rest.at_least(4)?;
        let tlv = list.take()?;
        let (kind, len, value) = (tlv.kind, tlv.len, tlv.value);
        let name = names::of("pim.option", kind);
        put!(line, "\n\t  {name} Option ({kind}), length {len}, Value: ");
        if !tlv.fits {
            return Err(Stop::Cut);
        }
        let bytes = tlv.bytes()?;
        let expected = match kind {
            1 => 2,
            2 | 20 | 21 => 4,
            18 | 19 if len != 0 => 4,
            _ => len,
        };
        if len != expected {
            put!(line, "[option length {len} != {expected}]");
            return Err(Stop::Invalid);
        }
        let mut is_dumped = line.options.verbosity > 1;
        match kind {
            1 => put!(line, "{}", span(value.u16(0)?.into())),
            2 => {
                line.show(value, "\n\t    T-bit={u16 0>>15}, LAN delay {u16 0&7fff}ms, Override interval {u16 2}ms")?
            }
            18 | 19 if len == 0 => put!(line, "Bi-Directional Capability (Old)"),
            18 | 19 => line.show(value, "{u32 0}")?,
            20 => line.show(value, "0x{x32 0}")?,
            21 => {
                line.show(value, "v{u8 0}")?;
                match value.u8(1)? {
                    0 => {}
                    interval => put!(line, ", interval {}", span(interval.into())),
                }
                if value.u16(2)? != 0 {
                    line.show(value, " ?0x{x16 2}?")?;
                }
            }
            24 | 65_001 if is_dumped => {
                let address_len = message.address_len;
                let mut addresses = Message { data: value, address_len };
                while addresses.data.len > 0 {
                    put!(line, "\n\t    ");
                    addresses.unicast(line)?;
                }
            }
            22 | 24 | 65_001 => {}
            _ => is_dumped = true,
        }
        if is_dumped {
            line.dump("\n\t    ", bytes);
        }
    }
    Ok(())
}

fn register(line: &mut Line<'_>, message: &mut Message<'_>) -> Printed {
    let flags = match message.u32()? {
        0x8000_0000 => "Border",
        0x4000_0000 => "Null",
        _ => "none",
    };
    put!(line, ", Flags [ {flags} ]\n\t");
    let inner = message.data;
    if inner.len == 0 {
        return Err(Stop::Cut);
    }
    match inner.u8(0)? >> 4 {
        0 => line.show(inner, "IP-Null-header {ip4 12} > {ip4 16}"),
        4 | 6 => line.nested(|line| link::any_ip(line, inner)),
        version => {
            put!(line, "IP ver {version}");
            Ok(())
        }
    }
}

fn join_and_prune(line: &mut Line<'_>, kind: u8, message: &mut Message<'_>) -> Printed {
    let has_neighbor = kind != GRAFT_ACK;
    if has_neighbor {
        put!(line, ", upstream-neighbor: ");
        message.unicast(line)?;
    }
    let ([_, groups], hold) = (message.take()?, message.u16()?);
    put!(line, "\n\t  {groups} group(s)");
    match hold {
        _ if !has_neighbor => {}
        u16::MAX => put!(line, ", holdtime: infinite"),
        _ => put!(line, ", holdtime: {}", span(hold.into())),
    }
    for group in 1..=groups {
        put!(line, "\n\t    group #{group}: ");
        message.group(line)?;
        let (joined, pruned) = (message.u16()?, message.u16()?);
        put!(line, ", joined sources: {joined}, pruned sources: {pruned}");
        for (what, count) in [("joined", joined), ("pruned", pruned)] {
            for number in 1..=count {
                put!(line, "\n\t      {what} source #{number}: ");
                message.source(line)?;
            }
        }
    }
    Ok(())
}

fn bootstrap(line: &mut Line<'_>, message: &mut Message<'_>) -> Printed {
    put!(line, " tag={:x}", message.u16()?);
    put!(line, " hashmlen={}", message.u8()?);
    put!(line, " BSRprio={} BSR=", message.u8()?);
    message.unicast(line)?;
    let mut group = 0;
    while message.data.len > 0 {
        put!(line, " (group{group}: ");
        message.group(line)?;
        let [count, here, _, _] = message.take()?;
        put!(line, " RPcnt={count} FRPcnt={here}");
        for number in 0..here {
            if message.data.len == 0 {
                break;
            }
            put!(line, " RP{number}=");
            message.unicast(line)?;
            let (hold, [priority, _]) = (message.u16()?, message.take()?);
            put!(line, ",holdtime={},prio={priority}", span(hold.into()));
        }
        put!(line, ")");
        group += 1;
    }
    Ok(())
}

fn candidate(line: &mut Line<'_>, message: &mut Message<'_>) -> Printed {
    let [count, priority] = message.take()?;
    put!(line, " prefix-cnt={count} prio={priority}");
    put!(line, " holdtime={} RP=", span(message.u16()?.into()));
    message.unicast(line)?;
    for number in 0..count {
        if message.data.len == 0 {
            break;
        }
        put!(line, " Group{number}=");
        message.group(line)?;
    }
    Ok(())
}

/// Shows the election of a forwarder for bidirectional groups (RFC 5015).
fn election(line: &mut Line<'_>, subtype: u8, message: &mut Message<'_>) -> Printed {
    let name = names::of("pim.election", subtype);
    put!(line, "\n\t  {name}, rpa=");
    message.unicast(line)?;
    put!(line, " sender pref={}", message.u32()?);
    put!(line, " sender metric={}", message.u32()?);
    let other = match subtype {
        3 => "offer",
        4 => "new winner",
        _ => return Ok(()),
    };
    put!(line, "\n\t  {other} addr=");
    message.unicast(line)?;
    put!(line, " {other} pref={}", message.u32()?);
    put!(line, " {other} metric={}", message.u32()?);
    if subtype == 3 {
        put!(line, " interval {}ms", message.u16()?);
    }
    Ok(())
}
