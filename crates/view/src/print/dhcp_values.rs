//! DHCP options whose values have parts of their own: routes, classes, agents, names.

use std::net::Ipv4Addr;

use super::dhcp::Form;
use super::dump;
use super::line::{Line, flag_names, put};
use super::text::put_chars;

pub(super) fn put(line: &mut Line<'_>, form: Form, value: &[u8]) {
    match form {
        Form::Node | Form::Overload => number(line, form, value),
        Form::Classes => classes(line, value),
        Form::Routes => routes(line, value),
        Form::Domain => domain(line, value),
        _ => agent(line, value),
    }
}

fn number(line: &mut Line<'_>, form: Form, value: &[u8]) {
    const NODES: [(u32, &str); 4] = [(1, "b-node"), (2, "p-node"), (4, "m-node"), (8, "h-node")];
    let Some((first, rest)) = value.split_first() else {
        put!(line, "[ERROR: length < 1 bytes]");
        return;
    };
    match (form, first) {
        (Form::Node, 1 | 2 | 4 | 8) => {
            put!(line, "{}", flag_names(u32::from(*first), &NODES, ", "));
        }
        (Form::Overload, 1) => put!(line, "file"),
        (Form::Overload, 2) => put!(line, "sname"),
        (Form::Overload, 3) => put!(line, "file+sname"),
        _ => put!(line, "#{first}"),
    }
    if !rest.is_empty() {
        put!(line, "\n\t  trailing data length {}", rest.len());
    }
}

fn classes(line: &mut Line<'_>, mut rest: &[u8]) {
    if rest.len() < 2 {
        put!(line, "[ERROR: length < 2 bytes]");
        return;
    }
    let mut number = 1;
    while let Some((len, after)) = rest.split_first() {
        put!(line, "\n\t      instance#{number}: ");
        let len = usize::from(*len);
        if len == 0 {
            put!(line, "[ERROR: suboption length must be non-zero]");
            return;
        }
        let Some((class, after)) = after.split_at_checked(len) else {
            put!(line, "[ERROR: invalid option]");
            return;
        };
        put!(line, "\"");
        put_chars(line, class);
        put!(line, "\", length {len}");
        rest = after;
        number += 1;
    }
}

/// Networks, of which only the bytes are there that their masks reach, and routers.
fn routes(line: &mut Line<'_>, mut rest: &[u8]) {
    if rest.len() < 5 {
        put!(line, "[ERROR: length < 5 bytes]");
        return;
    }
    let mut joint = "";
    while let Some((width, after)) = rest.split_first() {
        put!(line, "{joint}");
        joint = ",";
        if *width > 32 {
            put!(line, "[ERROR: Mask width ({width}) > 32]");
            return;
        }
        let octets = usize::from(*width).div_ceil(8);
        let Some((route, after)) = after.split_at_checked(octets + 4) else {
            let (left, needed) = (after.len(), octets + 4);
            put!(line, "[ERROR: Remaining length ({left}) < {needed} bytes]");
            return;
        };
        let (network, router) = route.split_at(octets);
        match width {
            0 => put!(line, "(default"),
            _ => {
                let mut address = [0; 4];
                address[..octets].copy_from_slice(network);
                put!(line, "({}/{width}", Ipv4Addr::from(address));
            }
        }
        let router = router.first_chunk::<4>().copied().unwrap_or_default();
        put!(line, ":{})", Ipv4Addr::from(router));
        rest = after;
    }
}

fn domain(line: &mut Line<'_>, value: &[u8]) {
    let [flags, first, second, name @ ..] = value else {
        put!(line, "[ERROR: length < 3 bytes]");
        return;
    };
    if flags & 0xf0 != 0 {
        put!(line, "[ERROR: MBZ nibble 0x{:x} != 0] ", flags >> 4);
    }
    if flags & 0x0f != 0 {
        let letters = [(1, 'S'), (2, 'O'), (4, 'E'), (8, 'N')];
        let set = letters.iter().filter(|(bit, _)| flags & bit != 0);
        put!(
            line,
            "[{}] ",
            set.map(|(_, letter)| *letter).collect::<String>()
        );
    }
    if (*first, *second) != (0, 0) {
        put!(line, "{first}/{second} ");
    }
    put!(line, "\"");
    put_chars(line, name);
    put!(line, "\"");
}

fn agent(line: &mut Line<'_>, mut rest: &[u8]) {
    while let [kind, len, after @ ..] = rest {
        let name = match kind {
            1 => "Circuit-ID",
            2 => "Remote-ID",
            5 => "Link-selection",
            6 => "Subscriber-ID",
            _ => "Unknown",
        };
        put!(line, "\n\t      {name} SubOption {kind}, length {len}: ");
        let Some((value, after)) = after.split_at_checked(usize::from(*len)) else {
            put!(line, "length goes past end of option");
            return;
        };
        match kind {
            1 | 2 | 6 => put_chars(line, value),
            _ => dump::hex(line.out, "\n\t\t", value),
        }
        rest = after;
    }
    if !rest.is_empty() {
        put!(line, "\n\t  trailing data length {}", rest.len());
    }
}
