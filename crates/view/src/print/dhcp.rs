//! DHCP and BOOTP, and DHCPv6.

use std::net::Ipv4Addr;

use super::line::{Data, Line, Mac, Printed, put};
use super::text::put_chars;

const MAGIC: u32 = 0x6382_5363;

pub(super) fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const REQUEST: u8 = 1;
    line.protocol = "bootp";
    let operation = data.u8(0)?;
    match operation {
        REQUEST => put!(line, "BOOTP/DHCP, Request"),
        2 => put!(line, "BOOTP/DHCP, Reply"),
        other => put!(line, "BOOTP/DHCP, unknown (0x{other:02x})"),
    }
    let (kind, len) = (data.u8(1)?, data.u8(2)?);
    let is_ethernet = kind == 1 && len == 6;
    if is_ethernet && operation == REQUEST {
        put!(line, " from {}", Mac(data.array(28)?));
    }
    put!(line, ", length {}", data.len);
    if !line.verbose() {
        return Ok(());
    }
    data.slice(8, 2)?;
    if kind != 1 {
        put!(line, ", htype {kind}");
    }
    if !is_ethernet {
        put!(line, ", hlen {len}");
    }
    let (hops, id, seconds) = (data.u8(3)?, data.u32(4)?, data.u16(8)?);
    if hops != 0 {
        put!(line, ", hops {hops}");
    }
    if id != 0 {
        put!(line, ", xid 0x{id:x}");
    }
    if seconds != 0 {
        put!(line, ", secs {seconds}");
    }
    let flags = data.u16(10)?;
    let set = if flags & 0x8000 != 0 {
        "Broadcast"
    } else {
        "none"
    };
    put!(line, ", Flags [{set}]");
    if line.options.verbosity > 1 {
        put!(line, " (0x{flags:04x})");
    }
    for (name, at) in [
        ("Client-IP", 12),
        ("Your-IP", 16),
        ("Server-IP", 20),
        ("Gateway-IP", 24),
    ] {
        let address = data.u32(at)?;
        if address != 0 {
            put!(line, "\n\t  {name} {}", Ipv4Addr::from(address));
        }
    }
    if is_ethernet {
        put!(
            line,
            "\n\t  Client-Ethernet-Address {}",
            Mac(data.array(28)?)
        );
    }
    for (name, at, len) in [("sname", 44, 64), ("file", 108, 128)] {
        if data.u8(at)? != 0 {
            let text = data.slice(at, len)?;
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(len);
            put!(line, "\n\t  {name} \"");
            put_chars(line, &text[..end]);
            put!(line, "\"");
        }
    }
    match data.u32(236)? {
        MAGIC => options(line, data.skip(240)),
        0 => Ok(()),
        other => {
            put!(line, "\n\t  Vendor-#0x{other:x}");
            Ok(())
        }
    }
}

/// How the values of an option are shown.
#[derive(Clone, Copy)]
enum Form {
    Addresses,
    Words,
    Shorts,
    Text,
    Flag,
    Dots,
    Colons,
    Message,
    List,
    Client,
}

fn describe(tag: u8) -> (&'static str, Option<Form>) {
    use Form::*;
    let (name, form) = match tag {
        1 => ("Subnet-Mask", Addresses),
        2 => ("Time-Zone", Words),
        3 => ("Default-Gateway", Addresses),
        4 => ("Time-Server", Addresses),
        5 => ("IEN-Name-Server", Addresses),
        6 => ("Domain-Name-Server", Addresses),
        7 => ("LOG", Addresses),
        12 => ("Hostname", Text),
        13 => ("BS", Shorts),
        14 => ("DP", Text),
        15 => ("Domain-Name", Text),
        16 => ("SS", Addresses),
        17 => ("RP", Text),
        18 => ("EP", Text),
        19 => ("IPF", Flag),
        26 => ("MTU", Shorts),
        28 => ("BR", Addresses),
        31 => ("Router-Discovery", Flag),
        33 => ("Static-Route", Addresses),
        40 => ("YD", Text),
        41 => ("YS", Addresses),
        42 => ("NTP", Addresses),
        43 => ("Vendor-Option", Dots),
        44 => ("Netbios-Name-Server", Addresses),
        46 => ("Netbios-Node", Dots),
        47 => ("Netbios-Scope", Dots),
        50 => ("Requested-IP", Addresses),
        51 => ("Lease-Time", Words),
        53 => ("DHCP-Message", Message),
        54 => ("Server-ID", Addresses),
        55 => ("Parameter-Request", List),
        56 => ("MSG", Text),
        57 => ("MSZ", Shorts),
        58 => ("RN", Words),
        59 => ("RB", Words),
        60 => ("Vendor-Class", Text),
        61 => ("Client-ID", Client),
        66 => ("TFTP", Text),
        67 => ("BF", Text),
        81 => ("FQDN", Colons),
        82 => ("Agent-Information", Colons),
        93 => ("ARCH", Shorts),
        94 => ("NDI", Dots),
        97 => ("GUID", Dots),
        100 => ("POSIX-TZ", Text),
        101 => ("TZ-Name", Text),
        114 => ("URL", Text),
        116 => ("NOAUTO", Flag),
        119 => ("Domain-Search", Text),
        121 => ("Classless-Static-Route", Colons),
        150 => ("TFTP-Server-Address", Addresses),
        252 => ("Unknown", Text),
        _ => return ("Unknown", None),
    };
    (name, Some(form))
}

fn options(line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
    put!(
        line,
        "\n\t  Vendor-rfc1048 Extensions\n\t    Magic Cookie 0x{MAGIC:08x}"
    );
    while let Ok(tag) = data.u8(0) {
        match tag {
            0 => {
                data = data.skip(1);
                continue;
            }
            255 => break,
            _ => {}
        }
        let len = usize::from(data.u8(1)?);
        let (name, form) = describe(tag);
        put!(
            line,
            "\n\t    {name} ({tag}), length {len}{}",
            if len > 0 { ": " } else { "" }
        );
        let value = data.slice(2, len)?;
        put_value(line, form, value);
        data = data.skip(2 + len);
    }
    Ok(())
}

fn put_value(line: &mut Line<'_>, form: Option<Form>, value: &[u8]) {
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0u32, |sum, byte| sum << 8 | u32::from(*byte))
    };
    let form = form.unwrap_or(match value.len() {
        len if len & 1 != 0 => Form::Dots,
        len if len & 2 != 0 => Form::Shorts,
        _ => Form::Words,
    });
    let joined = |size: usize, joint: &str, show: &dyn Fn(&[u8]) -> String| {
        let parts: Vec<String> = value.chunks_exact(size).map(show).collect();
        parts.join(joint)
    };
    let decimal = |bytes: &[u8]| number(bytes).to_string();
    match form {
        Form::Text => {
            put!(line, "\"");
            put_chars(line, value);
            put!(line, "\"");
        }
        Form::Addresses => {
            let show = |bytes: &[u8]| Ipv4Addr::from(number(bytes)).to_string();
            put!(line, "{}", joined(4, ",", &show));
        }
        Form::Words => put!(line, "{}", joined(4, ",", &decimal)),
        Form::Shorts => put!(line, "{}", joined(2, ",", &decimal)),
        Form::Dots => put!(line, "{}", joined(1, ".", &decimal)),
        Form::Colons => {
            let show = |bytes: &[u8]| format!("{:02x}", number(bytes));
            put!(line, "{}", joined(1, ":", &show));
        }
        Form::Flag => {
            let show = |bytes: &[u8]| match number(bytes) {
                0 => "N".to_owned(),
                1 => "Y".to_owned(),
                other => format!("{other}?"),
            };
            put!(line, "{}", joined(1, ",", &show));
        }
        Form::Message => {
            const NAMES: [&str; 14] = [
                "",
                "Discover",
                "Offer",
                "Request",
                "Decline",
                "ACK",
                "NACK",
                "Release",
                "Inform",
                "",
                "LeaseQuery",
                "LeaseUnassigned",
                "LeaseUnknown",
                "LeaseActive",
            ];
            let kind = number(value);
            match NAMES.get(kind as usize).filter(|name| !name.is_empty()) {
                Some(name) => put!(line, "{name}"),
                None => put!(line, "Unknown ({kind})"),
            }
        }
        Form::List => {
            for (index, tag) in value.iter().enumerate() {
                put!(line, "{}", if index % 4 == 0 { "\n\t      " } else { ", " });
                put!(line, "{} ({tag})", describe(*tag).0);
            }
        }
        Form::Client => match value {
            [1, mac @ ..] => {
                put!(line, "ether ");
                let parts: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
                put!(line, "{}", parts.join(":"));
            }
            [0, name @ ..] => {
                put!(line, "\"");
                put_chars(line, name);
                put!(line, "\"");
            }
            [kind, rest @ ..] => {
                put!(line, "hardware-type {kind}, ");
                let parts: Vec<String> = rest.iter().map(|byte| format!("{byte:02x}")).collect();
                put!(line, "{}", parts.join(":"));
            }
            [] => {}
        },
    }
}

pub(super) fn print_6(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const NAMES: [&str; 16] = [
        "",
        "solicit",
        "advertise",
        "request",
        "confirm",
        "renew",
        "rebind",
        "reply",
        "release",
        "decline",
        "reconfigure",
        "inf-req",
        "relay-fwd",
        "relay-reply",
        "leasequery",
        "leasequery-reply",
    ];
    line.protocol = "dhcp6";
    put!(line, "dhcp6");
    data.need(4)?;
    let kind = data.u8(0)?;
    match NAMES.get(usize::from(kind)).filter(|name| !name.is_empty()) {
        Some(name) => put!(line, " {name}"),
        None => put!(line, " msgtype-{kind}"),
    }
    Ok(())
}
