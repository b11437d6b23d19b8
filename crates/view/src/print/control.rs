//! Protocols between routers and servers: NTP, PTP, BFD, VRRP, HSRP, EIGRP.

use std::net::{Ipv4Addr, Ipv6Addr};

use trawl_packet::checksum::Sum;

use super::line::{Data, Line, Printed, Stop, flag_names, put};
use super::protocol::Ip;
use super::text::put_chars;

pub(super) fn ntp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const MODES: [&str; 8] = [
        "unspecified",
        "symmetric active",
        "symmetric passive",
        "Client",
        "Server",
        "Broadcast",
        "Control Message",
        "Reserved",
    ];
    line.protocol = "ntp";
    let first = data.u8(0)?;
    let mode = usize::from(first & 7);
    put!(
        line,
        "NTPv{}, {}, length {}",
        first >> 3 & 7,
        MODES[mode],
        data.len
    );
    if !line.verbose() {
        return Ok(());
    }
    let leap = first & 0xc0;
    let leap_name = match leap {
        0 => "",
        0x40 => "+1s",
        0x80 => "-1s",
        _ => "clock unsynchronized",
    };
    put!(line, "\n\tLeap indicator: {leap_name} ({leap})");
    match mode {
        0..6 => ntp_times(line, data),
        6 => ntp_control(line, data),
        _ => Ok(()),
    }
}

/// One line: what it is, whose, and the time that it tells.
pub(super) fn ptp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ptp";
    let version = data.u8(1)?;
    put!(line, "PTPv{}", version & 15);
    if version >> 4 != 0 {
        put!(line, ".{}", version >> 4);
    }
    if version & 15 != 2 {
        put!(line, ", length {}", data.len);
        return Ok(());
    }
    let kind = data.u8(0)? & 15;
    let name = match kind {
        0 => "sync",
        1 => "delay req",
        2 => "peer delay req",
        3 => "peer delay resp",
        8 => "follow up",
        9 => "delay resp",
        10 => "peer delay resp follow up",
        11 => "announce",
        12 => "signaling",
        13 => "management",
        _ => "reserved",
    };
    let clock = u64::from_be_bytes(data.array(20)?);
    put!(
        line,
        ", {name} msg, domain {}, clock {clock:#018x}, port {}, seq {}",
        data.u8(4)?,
        data.u16(28)?,
        data.u16(30)?
    );
    if kind == 11 {
        let grandmaster = u64::from_be_bytes(data.array(53)?);
        put!(
            line,
            ", grandmaster {grandmaster:#018x} priority {} class {}, steps removed {}",
            data.u8(47)?,
            data.u8(48)?,
            data.u16(61)?
        );
    } else if kind < 11 {
        let seconds = u64::from(data.u16(34)?) << 32 | u64::from(data.u32(36)?);
        put!(line, ", time {seconds}.{:09}", data.u32(40)?);
    }
    put!(line, ", length {}", data.u16(2)?);
    Ok(())
}

/// Versions 0 and 1, and the group state of version 2.
pub(super) fn hsrp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "hsrp";
    let is_second = data.u8(0)? == 1 && data.u8(1)? == 40;
    let (version, operation, state) = match is_second {
        true => (data.u8(2)?, data.u8(3)?, data.u8(4)?),
        false => (data.u8(0)?, data.u8(1)?, data.u8(2)?),
    };
    let operation = match operation {
        0 => "hello",
        1 => "coup",
        2 => "resign",
        3 if !is_second => {
            put!(line, "HSRPv{version}-advertise {}", data.len);
            return Ok(());
        }
        _ => "Unknown",
    };
    let state = match (is_second, state) {
        (true, 0) => "disabled",
        (true, 1) | (false, 0) => "initial",
        (true, 2) | (false, 1) => "learn",
        (true, 3) | (false, 2) => "listen",
        (_, 4) => "speak",
        (true, 5) | (false, 8) => "standby",
        (true, 6) | (false, 16) => "active",
        _ => "Unknown",
    };
    let group = if is_second {
        data.u16(6)?
    } else {
        data.u8(6)?.into()
    };
    put!(
        line,
        "HSRPv{version}-{operation} {}: state={state} group={group}",
        data.len
    );
    match is_second && data.u8(5)? == 6 {
        true => put!(line, " addr={}", Ipv6Addr::from(data.array::<16>(26)?)),
        false => {
            let at = if is_second { 26 } else { 16 };
            put!(line, " addr={}", Ipv4Addr::from(data.array::<4>(at)?));
        }
    }
    if line.verbose() && !is_second {
        let (hello, hold, priority) = (data.u8(3)?, data.u8(4)?, data.u8(5)?);
        put!(
            line,
            " hellotime={hello}s holdtime={hold}s priority={priority} auth=\""
        );
        let word = data.array::<8>(8)?;
        put_chars(
            line,
            word.split(|byte| *byte == 0).next().unwrap_or_default(),
        );
        put!(line, "\"");
    }
    Ok(())
}

/// The head of a control message (RFC 9327).
fn ntp_control(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 12;
    if data.len < HEADER_LEN {
        return Err(Stop::Invalid);
    }
    let second = data.u8(1)?;
    put!(
        line,
        ", {}, {}, {}, OpCode={}",
        if second & 0x80 == 0 {
            "Request"
        } else {
            "Response"
        },
        if second & 0x40 == 0 { "OK" } else { "Error" },
        if second & 0x20 == 0 { "Last" } else { "More" },
        second & 0x1f
    );
    put!(line, "\n\tSequence={}", data.u16(2)?);
    match data.u16(4)? {
        0 => put!(line, ", Status=0"),
        status => put!(line, ", Status={status:#x}"),
    }
    let count = data.u16(10)?;
    put!(
        line,
        ", Assoc.={}, Offset={}, Count={count}",
        data.u16(6)?,
        data.u16(8)?
    );
    let count = usize::from(count);
    if HEADER_LEN + count > data.len {
        return Err(Stop::Invalid);
    }
    if count > 0 {
        data.need(HEADER_LEN + count)?;
        put!(line, "\n\tTO-BE-DONE: data not interpreted");
    }
    Ok(())
}

fn ntp_times(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const LEN: usize = 48;
    if data.len < LEN {
        return Err(Stop::Invalid);
    }
    let stratum = data.u8(1)?;
    let name = match stratum {
        0 => "unspecified",
        1 => "primary reference",
        2..=15 => "secondary reference",
        16 => "unsynchronized",
        _ => "reserved",
    };
    put!(line, ", Stratum {stratum} ({name})");
    let (poll, precision) = (data.u8(2)? as i8, data.u8(3)? as i8);
    put!(line, ", poll {poll}");
    match poll {
        0..=31 => put!(line, " ({}s)", 1u32 << poll),
        -31..=-1 => put!(line, " (1/{}s)", 1u32 << -poll),
        _ => {}
    }
    put!(line, ", precision {precision}");
    for (name, at) in [("\n\tRoot Delay: ", 4), (", Root dispersion: ", 8)] {
        let fixed = data.u32(at)?;
        let millionths = (f64::from(fixed & 0xffff) / 65_536.0 * 1e6) as u32;
        put!(line, "{name}{}.{millionths:06}", fixed >> 16);
    }
    put!(line, ", Reference-ID: ");
    match stratum {
        0 => put!(line, "(unspec)"),
        1 => put_chars(line, data.slice(12, 4)?),
        _ => put!(line, "0x{:08x}", data.u32(12)?),
    }
    for (name, at) in [
        ("\n\t  Reference Timestamp:  ", 16),
        ("\n\t  Originator Timestamp: ", 24),
        ("\n\t  Receive Timestamp:    ", 32),
        ("\n\t  Transmit Timestamp:   ", 40),
    ] {
        put!(line, "{name}");
        put_ntp_time(line, data.u32(at)?, data.u32(at + 4)?);
    }
    for (name, at) in [
        ("\n\t    Originator - Receive Timestamp:  ", 32),
        ("\n\t    Originator - Transmit Timestamp: ", 40),
    ] {
        put!(line, "{name}");
        let time = |at: usize| Ok((data.u32(at)?, data.u32(at + 4)?));
        let (before, after) = (time(24)?, time(at)?);
        if before == (0, 0) {
            put_ntp_time(line, after.0, after.1);
            continue;
        }
        let whole =
            |(seconds, fraction): (u32, u32)| i128::from(seconds) << 32 | i128::from(fraction);
        let apart = whole(after) - whole(before);
        let sign = if apart > 0 { '+' } else { '-' };
        let apart = apart.unsigned_abs();
        let billionths = billionths(apart as u32);
        put!(line, "{sign}{}.{billionths:09}", (apart >> 32) as u32);
    }
    match data.len - LEN {
        0 => {}
        4 => put!(line, "\n\tKey id: {}", data.u32(48)?),
        len @ (20 | 24) => {
            put!(line, "\n\tKey id: {}\n\tAuthentication: ", data.u32(48)?);
            for byte in data.slice(52, len - 4)? {
                put!(line, "{byte:02x}");
            }
        }
        more => put!(line, "\n\t({more} more bytes after the header)"),
    }
    Ok(())
}

fn billionths(fraction: u32) -> u32 {
    (f64::from(fraction) / 4_294_967_296.0 * 1e9) as u32
}

fn put_ntp_time(line: &mut Line<'_>, seconds: u32, fraction: u32) {
    const SINCE_1900: i64 = 2_208_988_800;
    put!(line, "{seconds}.{:09}", billionths(fraction));
    if seconds == 0 {
        return;
    }
    // As tcpdump has it: of the era that ends in 2036.
    let unix = i64::from(seconds) - SINCE_1900;
    put!(line, " ({}Z)", super::time::date_and_time(unix));
}

const BFD_FLAGS: [(u32, &str); 6] = [
    (0x20, "Poll"),
    (0x10, "Final"),
    (0x08, "Control Plane Independent"),
    (0x04, "Authentication Present"),
    (0x02, "Demand"),
    (0x01, "Multipoint"),
];

pub(super) fn bfd(line: &mut Line<'_>, port: u16, data: Data<'_>) -> Printed {
    const ECHO: u16 = 3785;
    const HEADER_LEN: usize = 24;
    const AUTHENTICATED: u8 = 0x04;
    line.protocol = "bfd";
    if port == ECHO {
        put!(line, "BFD, Echo, length: {}", data.len);
        return Ok(());
    }
    let (first, flags) = (data.u8(0)?, data.u8(1)?);
    let version = first >> 5;
    if version != 1 {
        put!(line, "BFDv{version}, Control, length: {}", data.len);
        return Ok(());
    }
    let place = match port {
        4784 => "Multihop",
        6784 => "Lag",
        _ => "Control",
    };
    let state = ["AdminDown", "Down", "Init", "Up"][usize::from(flags >> 6)];
    let set = flag_names(u32::from(flags & 0x3f), &BFD_FLAGS, ", ");
    if !line.verbose() {
        put!(
            line,
            "BFDv1, {place}, State {state}, Flags: [{set}], length: {}",
            data.len
        );
        return Ok(());
    }
    let diagnostics = [
        "No Diagnostic",
        "Control Detection Time Expired",
        "Echo Function Failed",
        "Neighbor Signaled Session Down",
        "Forwarding Plane Reset",
        "Path Down",
        "Concatenated Path Down",
        "Administratively Down",
        "Reverse Concatenated Path Down",
    ];
    let diagnostic = first & 0x1f;
    let named = diagnostics
        .get(usize::from(diagnostic))
        .unwrap_or(&"unknown");
    put!(
        line,
        "BFDv1, length: {}\n\t{place}, State {state}, Flags: [{set}], Diagnostic: {named} (0x{diagnostic:02x})",
        data.len
    );
    let (times, sends) = (u32::from(data.u8(2)?), data.u32(12)?);
    put!(
        line,
        "\n\tDetection Timer Multiplier: {times} ({} ms Detection time), BFD Length: {}",
        times.wrapping_mul(sends) / 1000,
        data.u8(3)?
    );
    put!(
        line,
        "\n\tMy Discriminator: 0x{:08x}, Your Discriminator: 0x{:08x}",
        data.u32(4)?,
        data.u32(8)?
    );
    put!(
        line,
        "\n\t  Desired min Tx Interval:    {:4} ms",
        sends / 1000
    );
    put!(
        line,
        "\n\t  Required min Rx Interval:   {:4} ms",
        data.u32(16)? / 1000
    );
    put!(
        line,
        "\n\t  Required min Echo Interval: {:4} ms",
        data.u32(20)? / 1000
    );
    if flags & AUTHENTICATED != 0 {
        bfd_authentication(line, data.skip(HEADER_LEN))?;
    }
    Ok(())
}

/// Who may speak: a password, or a digest over the message with a number that grows.
fn bfd_authentication(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let (kind, len) = (data.u8(0)?, usize::from(data.u8(1)?));
    let name = match kind {
        1 => "Simple Password",
        2 => "Keyed MD5",
        3 => "Meticulous Keyed MD5",
        4 => "Keyed SHA1",
        5 => "Meticulous Keyed SHA1",
        _ => "Unknown",
    };
    put!(
        line,
        "\n\tAuthentication: {name} ({kind}), length: {len}\n\t  Auth Key ID: {}",
        data.u8(2)?
    );
    match (kind, len) {
        (1, 4..=19) => {
            put!(line, ", Password: ");
            put_chars(line, data.slice(3, len - 3)?);
        }
        (2 | 3, 24) | (4 | 5, 28) => {
            let what = if len == 24 { "Digest" } else { "Hash" };
            put!(
                line,
                ", Sequence Number: 0x{:08x}\n\t  {what}: ",
                data.u32(4)?
            );
            for byte in data.slice(8, len - 8)? {
                put!(line, "{byte:02x}");
            }
        }
        (1..=5, _) => put!(line, "[invalid length {len}]"),
        _ => {}
    }
    Ok(())
}

pub(super) fn vrrp(line: &mut Line<'_>, ip: &Ip, ttl: u8, data: Data<'_>) -> Printed {
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
    put!(line, ", vrid {}, prio {}", data.u8(1)?, data.u8(2)?);
    if version == 2 {
        let authentication = match data.u8(4)? {
            0 => "none".to_owned(),
            1 => "simple".to_owned(),
            2 => "ah".to_owned(),
            other => format!("#{other}"),
        };
        put!(
            line,
            ", authtype {authentication}, intvl {}s, length {}",
            data.u8(5)?,
            data.len
        );
    } else {
        put!(
            line,
            ", intvl {}cs, length {}",
            data.u16(4)? & 0xfff,
            data.len
        );
    }
    if !line.verbose() {
        return Ok(());
    }
    if data.bytes.len() == data.len {
        let sum = match (version, ip.addresses()) {
            (3, Some(addresses)) => addresses.pseudo_header(112, data.len).add(data.bytes),
            _ => Sum::default().add(data.bytes),
        };
        if sum.finish() != 0 {
            put!(line, ", (bad vrrp cksum {:x})", data.u16(6)?);
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
            put!(line, "{}", Ipv4Addr::from(data.u32(8 + index * 4)?));
        } else {
            let address = data.array::<16>(8 + index * 16)?;
            put!(line, "{}", std::net::Ipv6Addr::from(address));
        }
    }
    if version == 2 && data.u8(4)? == 1 {
        let text = data.slice(8 + count * 4, 8)?;
        let end = text
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 1);
        put!(line, " auth \"");
        put_chars(line, &text[..end]);
        put!(line, "\"");
    }
    Ok(())
}

pub(super) fn eigrp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "eigrp";
    let (version, code) = (data.u8(0)?, data.u8(1)?);
    if version != 2 {
        put!(line, "EIGRP version {version} packet not supported");
        return Ok(());
    }
    let name = match code {
        1 => "Update",
        3 => "Query",
        4 => "Reply",
        5 => "Hello",
        6 => "IPX SAP",
        8 => "Probe",
        10 => "SIA-Query",
        11 => "SIA-Reply",
        _ => "",
    };
    match name {
        "" => put!(line, "EIGRP unknown ({code}), length: {}", data.len),
        name => put!(line, "EIGRP {name}, length: {}", data.len),
    }
    Ok(())
}
