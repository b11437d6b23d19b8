//! DHCP and BOOTP, and DHCPv6.

use std::net::Ipv4Addr;

use super::dhcp_values;
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
pub(super) enum Form {
    Addresses,
    Words,
    Shorts,
    Text,
    Flag,
    Dots,
    Message,
    Pairs,
    Node,
    Overload,
    Classes,
    Routes,
    Domain,
    Agent,
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
        8 => ("CS", Addresses),
        9 => ("LPR-Server", Addresses),
        10 => ("IM", Addresses),
        11 => ("RL", Addresses),
        20 => ("SRT", Flag),
        21 => ("PF", Pairs),
        22 => ("RSZ", Shorts),
        23 => ("TTL", Dots),
        24 => ("MTU-Timeout", Words),
        25 => ("MTU-Table", Shorts),
        27 => ("LSN", Flag),
        29 => ("MD", Flag),
        30 => ("MS", Flag),
        32 => ("RSA", Addresses),
        33 => ("Static-Route", Pairs),
        34 => ("UT", Flag),
        35 => ("AT", Words),
        36 => ("IE", Flag),
        37 => ("TT", Dots),
        38 => ("KI", Words),
        39 => ("KG", Flag),
        40 => ("YD", Text),
        41 => ("YS", Addresses),
        42 => ("NTP", Addresses),
        43 => ("Vendor-Option", Dots),
        44 => ("Netbios-Name-Server", Addresses),
        45 => ("WDD", Addresses),
        46 => ("Netbios-Node", Node),
        47 => ("Netbios-Scope", Text),
        48 => ("XFS", Addresses),
        49 => ("XDM", Addresses),
        52 => ("OO", Overload),
        64 => ("N+D", Shorts),
        65 => ("N+S", Addresses),
        68 => ("MH", Addresses),
        69 => ("SMTP", Addresses),
        70 => ("POP3", Addresses),
        71 => ("NNTP", Addresses),
        72 => ("WWW", Addresses),
        73 => ("FG", Addresses),
        74 => ("IRC", Addresses),
        75 => ("STS", Addresses),
        76 => ("STDA", Addresses),
        77 => ("User-Class", Classes),
        78 => ("SLP-DA", Dots),
        79 => ("SLP-SCOPE", Dots),
        80 => ("SLP-NA", Text),
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
        81 => ("FQDN", Domain),
        82 => ("Agent-Information", Agent),
        93 => ("ARCH", Shorts),
        94 => ("NDI", Dots),
        97 => ("GUID", Dots),
        100 => ("POSIX-TZ", Text),
        101 => ("TZ-Name", Text),
        114 => ("URL", Text),
        116 => ("NOAUTO", Flag),
        83 => ("ARMT", Dots),
        88 => ("TZSTR", Text),
        89 => ("FQDNS", Dots),
        90 => ("AUTH", Dots),
        91 => ("Last-Transaction-Time", Words),
        92 => ("Associated-IP", Addresses),
        95 => ("LDAP", Text),
        98 => ("UAP", Text),
        112 => ("NI", Addresses),
        113 => ("NITAG", Text),
        117 => ("NSSEARCH", Shorts),
        118 => ("SUBNET", Addresses),
        121 => ("Classless-Static-Route", Routes),
        249 => ("Classless-Static-Route-Microsoft", Routes),
        161 => ("MUD-URL", Text),
        150 => ("TFTP-Server-Address", Addresses),
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
        Form::Pairs => {
            let address = |bytes: &[u8]| Ipv4Addr::from(number(bytes));
            let show =
                |bytes: &[u8]| format!("({}:{})", address(&bytes[..4]), address(&bytes[4..]));
            put!(line, "{}", joined(8, ",", &show));
        }
        Form::Node | Form::Overload | Form::Classes | Form::Routes | Form::Domain | Form::Agent => {
            dhcp_values::put(line, form, value);
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
