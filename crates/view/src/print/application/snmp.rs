//! SNMP versions 1 and 2c, and the head of version 3.

use crate::print::line::{Data, Line, Printed, put};
use crate::print::names;

const INTEGER: u8 = 0x02;
const STRING: u8 = 0x04;
const NULL: u8 = 0x05;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const FIRST_PDU: u8 = 0xa0;
const TRAP: u8 = 4;
const BULK: u8 = 5;

/// An element: its tag, its value, and the bytes after it.
struct Element<'a> {
    tag: u8,
    value: &'a [u8],
    rest: &'a [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut len = usize::from(first);
    if first & 0x80 != 0 {
        let count = usize::from(first & 0x7f);
        let (digits, after) = rest.split_at_checked(count.min(5))?;
        len = digits.iter().fold(0usize, |len, byte| len.saturating_mul(256).saturating_add(usize::from(*byte)));
        rest = after;
    }
    let (value, rest) = rest.split_at_checked(len)?;
    Some(Element { tag, value, rest })
}

fn number(value: &[u8]) -> i64 {
    let negative = value.first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { -1 } else { 0 };
    value.iter().fold(start, |number: i64, byte| number.wrapping_shl(8) | i64::from(*byte))
}

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "snmp";
    put!(line, " ");
    if message(line, data.bytes).is_none() {
        put!(line, " [|snmp]");
    }
    Ok(())
}

fn message(line: &mut Line<'_>, bytes: &[u8]) -> Option<()> {
    let whole = element(bytes)?;
    if whole.tag != SEQUENCE {
        put!(line, "[!init SEQ]");
        return Some(());
    }
    if !whole.rest.is_empty() {
        put!(line, "[{} extra after iSEQ]", whole.rest.len());
    }
    let version = element(whole.value)?;
    let names = ["SNMPv1", "SNMPv2c", "", "SNMPv3"];
    let name = names.get(number(version.value) as usize).copied().unwrap_or("");
    if version.tag != INTEGER || name.is_empty() {
        put!(line, "SNMP [version = {}]", number(version.value));
        return Some(());
    }
    if line.verbose() {
        put!(line, "{{ {name} ");
    }
    if name == "SNMPv3" {
        head_of_3(line, version.rest)?;
    } else {
        let community = element(version.rest)?;
        if community.value != b"public" {
            put!(line, "C=");
            put_octets(line, community.value);
            put!(line, " ");
        }
        pdu(line, community.rest)?;
    }
    if line.verbose() {
        put!(line, "}} ");
    }
    Some(())
}

fn head_of_3(line: &mut Line<'_>, bytes: &[u8]) -> Option<()> {
    let header = element(bytes)?;
    let id = element(header.value)?;
    let size = element(id.rest)?;
    let flags = element(size.rest)?;
    let bits = *flags.value.first()?;
    put!(line, "F=");
    for (bit, letter) in [(1, 'a'), (2, 'p'), (4, 'r')] {
        if bits & bit != 0 {
            put!(line, "{letter}");
        }
    }
    put!(line, " ");
    Some(())
}

fn pdu(line: &mut Line<'_>, bytes: &[u8]) -> Option<()> {
    let pdu = element(bytes)?;
    let kind = pdu.tag.wrapping_sub(FIRST_PDU);
    let Some(name) = names::find("snmp.pdu", kind) else {
        put!(line, "[no PDU]");
        return Some(());
    };
    if line.verbose() {
        put!(line, "{{ ");
    }
    put!(line, "{name}({}) ", pdu.value.len());
    let bindings = if kind == TRAP { trap(line, pdu.value)? } else { request(line, kind, pdu.value)? };
    variables(line, kind, bindings)?;
    if line.verbose() {
        put!(line, " }} ");
    }
    Some(())
}

fn request<'a>(line: &mut Line<'_>, kind: u8, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let id = element(bytes)?;
    if line.verbose() {
        put!(line, "R={} ", number(id.value) as i32);
    }
    let status = element(id.rest)?;
    let index = element(status.rest)?;
    let (error, at) = (number(status.value), number(index.value));
    if kind == BULK {
        put!(line, " N={error} M={at}");
    } else if error != 0 {
        match names::find("snmp.error", error as u64) {
            Some(name) => put!(line, " {name}@{at}"),
            None => put!(line, " err={error}@{at}"),
        }
    }
    Some(index.rest)
}

fn trap<'a>(line: &mut Line<'_>, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let enterprise = element(bytes)?;
    let agent = element(enterprise.rest)?;
    let generic = element(agent.rest)?;
    let specific = element(generic.rest)?;
    let ticks = element(specific.rest)?;
    put!(line, " ");
    put_value(line, &enterprise);
    put!(line, " ");
    put_value(line, &agent);
    match names::find("snmp.trap", number(generic.value) as u64) {
        Some(name) => put!(line, " {name}"),
        None => put!(line, " gt={}", number(generic.value)),
    }
    if number(generic.value) == 6 {
        put!(line, " s={}", number(specific.value));
    }
    put!(line, " ");
    put_value(line, &ticks);
    Some(ticks.rest)
}

fn variables(line: &mut Line<'_>, kind: u8, bytes: &[u8]) -> Option<()> {
    let is_question = matches!(kind, 0 | 1 | BULK);
    let mut rest = element(bytes)?.value;
    while !rest.is_empty() {
        let binding = element(rest)?;
        let name = element(binding.value)?;
        let value = element(name.rest)?;
        put!(line, " ");
        put_value(line, &name);
        if !is_question {
            put!(line, "=");
            put_value(line, &value);
        }
        rest = binding.rest;
    }
    Some(())
}

fn put_value(line: &mut Line<'_>, element: &Element<'_>) {
    let value = element.value;
    match element.tag {
        NULL => {}
        INTEGER => put!(line, "{}", number(value) as i32),
        STRING => put_octets(line, value),
        OBJECT => put_object(line, value),
        // Application types: an address, counters, gauges and ticks.
        0x40 => {
            let parts: Vec<String> = value.iter().map(u8::to_string).collect();
            put!(line, "{}", parts.join("."));
        }
        0x41..=0x43 | 0x46 => {
            let all = value.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
            put!(line, "{all}");
        }
        0x80 => put!(line, "[noSuchObject]"),
        0x81 => put!(line, "[noSuchInstance]"),
        0x82 => put!(line, "[endOfMibView]"),
        _ => {
            for byte in value {
                put!(line, "_{byte:02x}");
            }
        }
    }
}

fn put_octets(line: &mut Line<'_>, value: &[u8]) {
    if value.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
        put!(line, "\"");
        line.put_chars(value);
        put!(line, "\"");
        return;
    }
    for (index, byte) in value.iter().enumerate() {
        put!(line, "{}{byte:02x}", if index > 0 { "_" } else { "" });
    }
}

fn put_object(line: &mut Line<'_>, value: &[u8]) {
    let mut number = 0u32;
    let mut is_first = true;
    for byte in value {
        number = number.wrapping_shl(7) | u32::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if std::mem::take(&mut is_first) {
            let top = (number / 40).min(2);
            put!(line, ".{top}");
            number -= top * 40;
        }
        put!(line, ".{number}");
        number = 0;
    }
}
