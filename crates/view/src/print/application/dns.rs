//! DNS, over UDP and TCP, and multicast DNS.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::print::line::{Data, Layout, Line, Printed, Stop, Tlvs, number, put};
use crate::print::names;
use crate::print::time::span;

static TYPES: names::Names = names::Names::new(|| names::table("dns.type"));

const HEADER_LEN: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;
const TOP_BIT: u16 = 0x8000;
/// Maximum number of characters of a name that are shown.
const MOST: usize = 255;

pub fn over_tcp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "domain";
    if data.len < 2 {
        put!(line, " [DNS over TCP: length {} < 2]", data.len);
        return Err(Stop::Invalid);
    }
    let (prefix, len) = (data.u16(0)?, data.len - 2);
    if usize::from(prefix) != len {
        put!(line, " [prefix length({prefix}) != length({len})]");
        return Err(Stop::Invalid);
    }
    put!(line, " ");
    unicast(line, data.skip(2))
}

pub fn unicast(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    print(line, data, false)
}

pub fn multicast(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    print(line, data, true)
}

fn print(line: &mut Line<'_>, data: Data<'_>, multicast: bool) -> Printed {
    line.protocol = "domain";
    if data.len < HEADER_LEN {
        put!(line, "domain [length {} < {HEADER_LEN}]", data.len);
        return Err(Stop::Invalid);
    }
    data.need(HEADER_LEN)?;
    let message = Message { data, multicast };
    if data.u16(2)? & TOP_BIT != 0 {
        message.response(line)?;
    } else {
        message.query(line)?;
    }
    put!(line, " ({})", data.len);
    Ok(())
}

/// Shows a name in the middle of other data. Returns the position after it.
pub fn put_name(line: &mut Line<'_>, data: Data<'_>, at: usize) -> Result<usize, Stop> {
    Message { data, multicast: false }.name(line, at)
}

struct Message<'a> {
    data: Data<'a>,
    multicast: bool,
}

impl Message<'_> {
    fn counts(&self) -> Result<[u16; 4], Stop> {
        let at = |at| self.data.u16(at);
        Ok([at(4)?, at(6)?, at(8)?, at(10)?])
    }

    fn response(&self, line: &mut Line<'_>) -> Printed {
        let data = self.data;
        let (id, flags) = (data.u16(0)?, data.u16(2)?);
        let [questions, answers, authorities, additionals] = self.counts()?;
        let extended = self.extended_code().unwrap_or(0);
        let code = flags & 0xf | extended;
        put!(line, "{id}");
        put_spaced(line, "dns.operation", flags >> 11 & 0xf);
        // Two codes without a space between, as in tcpdump.
        match code {
            0 => {}
            17 | 21 => put!(line, "Resp{code}"),
            _ => put_spaced(line, "dns.response", code),
        }
        for (bit, set, clear) in [(0x400, "*", ""), (0x80, "", "-"), (0x200, "|", ""), (0x20, "$", "")] {
            put!(line, "{}", if flags & bit != 0 { set } else { clear });
        }
        if questions != 1 {
            put!(line, " [{questions}q]");
        }
        let mut at = HEADER_LEN;
        for index in 0..questions {
            if index > 0 {
                put!(line, ",");
            }
            at = if line.options.verbosity > 1 {
                put!(line, " q:");
                self.question(line, at)?
            } else {
                self.skip_name(at)? + 4
            };
        }
        put!(line, " {answers}/{authorities}/{additionals}");
        at = self.records(line, at, answers)?;
        if line.options.verbosity > 1 {
            at = self.named_records(line, " ns:", at, authorities)?;
            self.named_records(line, " ar:", at, additionals)?;
        }
        Ok(())
    }

    fn query(&self, line: &mut Line<'_>) -> Printed {
        const INVERSE: u16 = 1;
        let data = self.data;
        let (id, flags) = (data.u16(0)?, data.u16(2)?);
        let [questions, answers, authorities, additionals] = self.counts()?;
        let operation = flags >> 11 & 0xf;
        put!(line, "{id}");
        put_spaced(line, "dns.operation", operation);
        put!(line, "{}", if flags & 0x100 != 0 { "+" } else { "" });
        put!(line, "{}", if flags & 0x10 != 0 { "%" } else { "" });
        if flags & 0x6cf != 0 {
            put!(line, " [b2&3=0x{flags:x}]");
        }
        if operation == INVERSE {
            if questions > 0 {
                put!(line, " [{questions}q]");
            }
            if answers != 1 {
                put!(line, " [{answers}a]");
            }
        } else {
            if answers > 0 {
                put!(line, " [{answers}a]");
            }
            if questions != 1 {
                put!(line, " [{questions}q]");
            }
        }
        if authorities > 0 {
            put!(line, " [{authorities}n]");
        }
        if additionals > 0 {
            put!(line, " [{additionals}au]");
        }
        let mut at = HEADER_LEN;
        for _ in 0..questions {
            at = self.question(line, at)?;
        }
        if line.options.verbosity > 1 {
            at = self.records(line, at, answers)?;
            at = self.named_records(line, " ns:", at, authorities)?;
            self.named_records(line, " ar:", at, additionals)?;
        }
        Ok(())
    }

    /// Returns the upper bits of the response code, from the OPT record.
    fn extended_code(&self) -> Option<u16> {
        let [questions, answers, authorities, additionals] = self.counts().ok()?;
        let mut at = HEADER_LEN;
        for _ in 0..questions {
            at = self.skip_name(at).ok()? + 4;
        }
        let before = u32::from(answers) + u32::from(authorities);
        for index in 0..before + u32::from(additionals) {
            at = self.skip_name(at).ok()?;
            if index >= before && self.data.u16(at).ok()? == TYPE_OPT {
                return Some(u16::from(self.data.u8(at + 4).ok()?) << 4);
            }
            at += 10 + usize::from(self.data.u16(at + 8).ok()?);
        }
        None
    }

    fn question(&self, line: &mut Line<'_>, at: usize) -> Result<usize, Stop> {
        let after = self.skip_name(at)?;
        let (kind, class) = (self.data.u16(after)?, self.data.u16(after + 2)?);
        put!(line, " {}", TYPES.text(kind));
        let top = if self.multicast { TOP_BIT } else { 0 };
        if class & !top != CLASS_IN {
            put!(line, " {}", names::text("dns.class", class & !top));
        }
        if self.multicast {
            put!(line, "{}", if class & TOP_BIT != 0 { " (QU)" } else { " (QM)" });
        }
        put!(line, "? ");
        self.name(line, at)?;
        Ok(after + 4)
    }

    fn named_records(&self, line: &mut Line<'_>, name: &str, at: usize, count: u16) -> Result<usize, Stop> {
        if count > 0 {
            put!(line, "{name}");
        }
        self.records(line, at, count)
    }

    fn records(&self, line: &mut Line<'_>, mut at: usize, count: u16) -> Result<usize, Stop> {
        for index in 0..count {
            if index > 0 {
                put!(line, ",");
            }
            at = self.record(line, at)?;
        }
        Ok(at)
    }

    fn record(&self, line: &mut Line<'_>, at: usize) -> Result<usize, Stop> {
        let data = self.data;
        let at = if line.verbose() {
            put!(line, " ");
            self.name(line, at)?
        } else {
            self.skip_name(at)?
        };
        data.slice(at, 10)?;
        let (kind, class, ttl, len) =
            (data.u16(at)?, data.u16(at + 2)?, data.u32(at + 4)?, usize::from(data.u16(at + 8)?));
        let top = if self.multicast { TOP_BIT } else { 0 };
        let plain_class = class & !top;
        if plain_class != CLASS_IN && kind != TYPE_OPT {
            put!(line, " {}", names::text("dns.class", plain_class));
        }
        if self.multicast && class & TOP_BIT != 0 {
            put!(line, " (Cache flush)");
        }
        if kind != TYPE_OPT && line.options.verbosity > 2 {
            put!(line, " [{}]", weeks(ttl));
        }
        put!(line, " {}", TYPES.text(kind));
        let start = at + 10;
        data.slice(start, len)?;
        self.value(line, (kind, plain_class, ttl), start, len)?;
        Ok(start + len)
    }

    fn value(&self, line: &mut Line<'_>, (kind, class, ttl): (u16, u16, u32), at: usize, len: usize) -> Printed {
        let data = self.data;
        match kind {
            TYPE_A => put!(line, " {}", data.ip4(at)?),
            28 => put!(line, " {}", data.ip6(at)?),
            2 | 5 | 12 | 39 => {
                put!(line, " ");
                self.name(line, at)?;
            }
            6 if line.verbose() => {
                put!(line, " ");
                let at = self.name(line, at)?;
                put!(line, " ");
                let at = self.name(line, at)?;
                for index in 0..5 {
                    put!(line, " {}", data.u32(at + index * 4)?);
                }
            }
            15 => {
                put!(line, " ");
                self.name(line, at + 2)?;
                put!(line, " {}", data.u16(at)?);
            }
            16 => {
                let mut rest = at;
                while rest < at + len {
                    let size = usize::from(data.u8(rest)?);
                    put!(line, " \"");
                    line.put_chars(data.slice(rest + 1, size)?);
                    put!(line, "\"");
                    rest += 1 + size;
                }
            }
            33 => {
                put!(line, " ");
                self.name(line, at + 6)?;
                line.show(data.skip(at), ":{u16 4} {u16 0} {u16 2}")?;
            }
            256 if len >= 4 => {
                line.show(data.skip(at), " {u16 0} {u16 2} ")?;
                line.put_chars(data.slice(at + 4, len - 4)?);
            }
            TYPE_OPT => {
                put!(line, " UDPsize={class}");
                if ttl & 0x8000 != 0 {
                    put!(line, " DO");
                }
                self.options(line, at, len)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Shows the options of an OPT record (EDNS).
    fn options(&self, line: &mut Line<'_>, start: usize, len: usize) -> Printed {
        if len == 0 {
            return Ok(());
        }
        let mut list = Tlvs::new(self.data.skip(start).list(len), Layout::WORDS);
        let mut joint = " [";
        while list.rest.len > 0 {
            put!(line, "{joint}");
            joint = ",";
            let option = list.take()?;
            put!(line, "{}", names::text("dns.option", option.kind));
            let value = option.bytes()?;
            if !value.is_empty() {
                put!(line, " ");
                put_option(line, option.kind, value);
            }
        }
        put!(line, "]");
        Ok(())
    }

    /// Returns the position after a name.
    fn skip_name(&self, mut at: usize) -> Result<usize, Stop> {
        loop {
            let len = self.data.u8(at)?;
            at += 1;
            match len & 0xc0 {
                0xc0 => return Ok(at + 1),
                0 if len == 0 => return Ok(at),
                0 => at += usize::from(len),
                _ => return Err(Stop::Cut),
            }
        }
    }

    /// Shows a name, following its pointers, which must lead backwards. Returns the position after it.
    fn name(&self, line: &mut Line<'_>, start: usize) -> Result<usize, Stop> {
        let (mut at, mut limit, mut after, mut shown) = (start, start, None, 0);
        if self.data.u8(start)? == 0 {
            put!(line, ".");
            return Ok(start + 1);
        }
        loop {
            let len = self.data.u8(at)?;
            match len & 0xc0 {
                0xc0 => {
                    let target = usize::from(u16::from(len & 0x3f) << 8 | u16::from(self.data.u8(at + 1)?));
                    after.get_or_insert(at + 2);
                    if target >= limit {
                        put!(line, "<BAD PTR>");
                        return Err(Stop::Cut);
                    }
                    (at, limit) = (target, target);
                }
                0 if len == 0 => break,
                0 => {
                    let label = self.data.slice(at + 1, len.into())?;
                    let room = MOST.saturating_sub(shown).min(label.len());
                    line.put_chars(&label[..room]);
                    shown += label.len();
                    if shown <= MOST {
                        put!(line, ".");
                    }
                    shown += 1;
                    at += 1 + label.len();
                }
                _ => {
                    put!(line, "<BAD LABEL TYPE>");
                    return Err(Stop::Cut);
                }
            }
        }
        if shown > MOST {
            put!(line, "<DOMAIN NAME TOO LONG>");
        }
        Ok(after.unwrap_or(at + 1))
    }
}

fn put_option(line: &mut Line<'_>, code: u16, value: &[u8]) {
    match (code, value.len()) {
        (9, 4) => put!(line, "{} sec", number(value)),
        (11, 2) => put!(line, "{:.1} sec", number(value) as f64 / 10.0),
        (12, len) => put!(line, "({len})"),
        (10, 8 | 16..=40) => {
            let (client, server) = value.split_at(8);
            line.put_hex(client);
            put!(line, "{}", if server.is_empty() { "" } else { " " });
            line.put_hex(server);
        }
        (8, 4..) => {
            let (family, bits, scope) = (number(&value[..2]), value[2], value[3]);
            let mut padded = [0u8; 16];
            let address = &value[4..];
            let most = if family == 1 { 4 } else { 16 };
            let fits = address.len() == usize::from(bits).div_ceil(8) && address.len() <= most;
            if !fits || !(1..=2).contains(&family) {
                put!(line, " (invalid)");
                return;
            }
            padded[..address.len()].copy_from_slice(address);
            let [a, b, c, d, ..] = padded;
            match family {
                1 => put!(line, "{}", Ipv4Addr::new(a, b, c, d)),
                _ => put!(line, "{}", Ipv6Addr::from(padded)),
            }
            put!(line, "/{bits}/{scope}");
        }
        (14, _) => {
            let tags = value.chunks(2).map(|tag| number(tag).to_string());
            put!(line, "{}", tags.collect::<Vec<_>>().join(" "));
        }
        (8..=11, _) => put!(line, " (invalid)"),
        _ => {
            line.put_hex(value);
        }
    }
}

/// Returns a span in weeks, days, hours, minutes and seconds.
fn weeks(seconds: u32) -> String {
    const WEEK: u32 = 604_800;
    match (seconds / WEEK, seconds % WEEK) {
        (0, rest) => span(rest),
        (weeks, 0) => format!("{weeks}w"),
        (weeks, rest) => format!("{weeks}w{}", span(rest)),
    }
}

/// Shows a name after a space, or nothing.
fn put_spaced(line: &mut Line<'_>, table: &str, value: u16) {
    match names::text(table, value) {
        name if name.is_empty() => {}
        name => put!(line, " {name}"),
    }
}
