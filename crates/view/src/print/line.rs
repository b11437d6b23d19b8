//! The line of a packet, and the checked view of the bytes from which it is made.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::flows::Flows;
use super::{DumpForm, PrintOptions, digits, dump, names};

/// Reasons why the rest of a packet is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The captured bytes end here: shown as `[|protocol]`.
    Cut,
    /// The data contradicts itself: shown as `(invalid)`.
    Invalid,
}

pub type Printed = Result<(), Stop>;

/// Maximum depth of headers inside headers: no real packet is deeper, and each level uses stack.
const MAX_DEPTH: u8 = 24;

/// Appends formatted text to a line. Writing to a String cannot fail.
macro_rules! put {
    ($line:expr, $($format:tt)*) => {{
        use std::fmt::Write as _;
        let _ = write!($line.out, $($format)*);
    }};
}
pub(super) use put;

#[derive(Debug)]
pub struct Line<'a> {
    pub out: &'a mut String,
    pub options: &'a PrintOptions,
    pub flows: &'a mut Flows,
    /// The header being read, for the mark where the bytes end.
    pub protocol: &'static str,
    /// Bytes of the outermost link header so far, which a dump leaves out.
    pub link_header_len: usize,
    depth: u8,
}

impl<'a> Line<'a> {
    pub fn new(out: &'a mut String, options: &'a PrintOptions, flows: &'a mut Flows) -> Self {
        Self { out, options, flows, protocol: "", link_header_len: 0, depth: 0 }
    }

    pub fn verbose(&self) -> bool {
        self.options.verbosity > 0
    }

    /// Appends text with fields of the data in it, nothing if one of them was not captured. A field is `{form at}`: a
    /// form (`u16` decimal, `x16` hexadecimal of full width, `h16` without leading zeros, `n8` and `f8` the name of a
    /// value and the names of flags by a table, `ip4`, `ip6`, `mac`) and the position of its first byte; `>>4` and `&f`
    /// after the position shift and mask the value.
    pub fn show(&mut self, data: Data<'_>, template: &str) -> Printed {
        let start = self.out.len();
        let mut rest = template;
        while !rest.is_empty() {
            let (text, after) = split(rest, b'{');
            self.out.push_str(text);
            let (field, after) = split(after, b'}');
            if !field.is_empty()
                && let Err(stop) = self.field(data, field)
            {
                self.out.truncate(start);
                return Err(stop);
            }
            rest = after;
        }
        Ok(())
    }

    fn field(&mut self, data: Data<'_>, field: &str) -> Printed {
        let (form, operand) = split(field, b' ');
        let (operand, table) = split(operand, b' ');
        let (operand, mask) = split(operand, b'&');
        let (at, shift) = split(operand, b'>');
        let at = decimal(at);
        match form {
            "ip4" => return data.ip4(at).map(|address| put!(self, "{address}")),
            "ip6" => return data.ip6(at).map(|address| put!(self, "{address}")),
            "mac" => return data.array(at).map(|address| put!(self, "{}", Mac(address))),
            _ => {}
        }
        let bits = decimal(&form[1..]);
        let mask = u64::from_str_radix(mask, 16).unwrap_or(u64::MAX);
        let shift = decimal(shift.trim_start_matches('>'));
        let value = data.number(at, bits / 8)? >> shift & mask;
        match form.as_bytes()[0] {
            b'u' => digits::decimal(self.out, value, 1),
            b'x' => dump::digits(self.out, value, bits / 4),
            b'h' => dump::digits(self.out, value, 1),
            b'n' => self.out.push_str(&names::text(table, value)),
            b'f' => self.out.push_str(&names::flags(table, value)),
            _ => debug_assert!(false, "no form {form}"),
        }
        Ok(())
    }

    /// Appends `IPv4 (0x0800)`, or `Unknown (0x88b5)`.
    pub fn put_ethertype(&mut self, value: u16) {
        let name = names::ethertype(value).unwrap_or("Unknown");
        put!(self, "{name} (0x{value:04x})");
    }

    /// Appends bytes as tcpdump shows text: control characters as `^X`, bytes above 127 as `M-x`.
    pub fn put_chars(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if !byte.is_ascii() {
                self.out.push_str("M-");
            }
            let low = byte & 0x7f;
            if low.is_ascii_graphic() || low == b' ' {
                self.out.push(low.into());
            } else {
                self.out.push('^');
                self.out.push((low ^ 0x40).into());
            }
        }
    }

    /// Appends text that ends at a zero byte or with its field.
    pub fn put_string(&mut self, bytes: &[u8]) {
        self.put_chars(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
    }

    /// Appends text and a number after it.
    pub fn put_number(&mut self, before: &str, number: impl Into<u64>) {
        self.out.push_str(before);
        digits::decimal(self.out, number.into(), 1);
    }

    /// Appends bytes in hexadecimal without separators.
    pub fn put_hex(&mut self, bytes: &[u8]) {
        for byte in bytes {
            dump::byte(self.out, *byte);
        }
    }

    /// Appends rows of bytes in hexadecimal that begin with `before`, which has the line end.
    pub fn dump(&mut self, before: &str, bytes: &[u8]) {
        dump::hex(self.out, before, bytes);
    }

    /// Appends rows of bytes in hexadecimal and as text.
    pub fn dump_ascii(&mut self, bytes: &[u8]) {
        dump::hex_ascii(self.out, bytes);
    }

    /// Shows a header that can contain another header of its own kind.
    pub fn nested(&mut self, show: impl FnOnce(&mut Self) -> Printed) -> Printed {
        if self.depth == MAX_DEPTH {
            put!(self, " [nested too deep]");
            return Err(Stop::Invalid);
        }
        self.depth += 1;
        let printed = show(self);
        self.depth -= 1;
        printed
    }

    /// Returns true inside a tunnel or another header: the outermost link header is known.
    pub fn is_nested(&self) -> bool {
        self.depth > 1
    }
}

/// Bytes of a packet from some header on, and their number on the wire.
#[derive(Debug, Clone, Copy)]
pub struct Data<'a> {
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Length on the wire, as the outer header states it.
    pub len: usize,
}

impl<'a> Data<'a> {
    pub fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Stop> {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or(Stop::Cut)
    }

    pub fn u8(&self, at: usize) -> Result<u8, Stop> {
        self.bytes.get(at).copied().ok_or(Stop::Cut)
    }

    pub fn u16(&self, at: usize) -> Result<u16, Stop> {
        self.array(at).map(u16::from_be_bytes)
    }

    pub fn u32(&self, at: usize) -> Result<u32, Stop> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// Returns the big-endian number of `len` bytes, at most eight.
    pub fn number(&self, at: usize, len: usize) -> Result<u64, Stop> {
        Ok(number(self.slice(at, len)?))
    }

    pub fn ip4(&self, at: usize) -> Result<Ipv4Addr, Stop> {
        self.array(at).map(Ipv4Addr::from)
    }

    pub fn ip6(&self, at: usize) -> Result<Ipv6Addr, Stop> {
        self.array::<16>(at).map(Ipv6Addr::from)
    }

    /// Fails as for a cut packet unless the outer header claims at least this many bytes; tcpdump checks the same.
    pub fn at_least(&self, len: usize) -> Printed {
        if self.len < len { Err(Stop::Cut) } else { self.need(len) }
    }

    /// Returns `len` captured bytes from `at` on.
    pub fn slice(&self, at: usize, len: usize) -> Result<&'a [u8], Stop> {
        self.bytes.get(at..).and_then(|rest| rest.get(..len)).ok_or(Stop::Cut)
    }

    /// Fails unless the first `len` bytes were captured.
    pub fn need(&self, len: usize) -> Printed {
        if self.bytes.len() < len { Err(Stop::Cut) } else { Ok(()) }
    }

    /// Returns the data after the first `count` bytes.
    pub fn skip(&self, count: usize) -> Self {
        Self { bytes: self.bytes.get(count..).unwrap_or_default(), len: self.len.saturating_sub(count) }
    }

    /// Returns the same bytes as a list of `len` bytes, however many are captured.
    pub fn list(&self, len: usize) -> Self {
        Self { len, ..*self }
    }

    /// Returns the same bytes, limited to the `len` that a header of their own claims.
    pub fn claimed(&self, len: usize) -> Self {
        Self { bytes: &self.bytes[..self.bytes.len().min(len)], len }
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        let len = bytes.len();
        Self { bytes, len }
    }
}

/// Returns the bytes as a big-endian number; of more than eight the last.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// The head of an option, TLV, attribute and the like.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Number of bytes of the kind, and of the length after it.
    pub kind: usize,
    pub len: usize,
    /// The length counts the whole, not the value alone.
    pub whole: bool,
    /// The next one begins at a multiple of this number of bytes.
    pub align: usize,
}

impl Layout {
    /// Kind and length of one byte each; the length counts the whole.
    pub const BYTES: Self = Self { kind: 1, len: 1, whole: true, align: 1 };
    /// Kind and length of two bytes each; the length counts the value.
    pub const WORDS: Self = Self { kind: 2, len: 2, whole: false, align: 1 };

    pub const fn of_value(self) -> Self {
        Self { whole: false, ..self }
    }

    pub const fn of_whole(self) -> Self {
        Self { whole: true, ..self }
    }

    pub const fn aligned(self, align: usize) -> Self {
        Self { align, ..self }
    }
}

/// A list of options; each protocol's printer checks their lengths by its own rules.
#[derive(Debug)]
pub struct Tlvs<'a> {
    pub rest: Data<'a>,
    layout: Layout,
}

/// An option.
#[derive(Debug, Clone, Copy)]
pub struct Tlv<'a> {
    pub kind: u16,
    /// Length as stored.
    pub len: usize,
    pub value: Data<'a>,
    /// The length covers at least the option's head.
    pub is_long_enough: bool,
    /// The option ends within the list.
    pub fits: bool,
    /// Bytes of the list from this option on.
    pub room: usize,
}

impl<'a> Tlvs<'a> {
    pub fn new(rest: Data<'a>, layout: Layout) -> Self {
        Self { rest, layout }
    }

    /// Returns the next option, or `None` at the end of the list.
    pub fn next(&mut self) -> Result<Option<Tlv<'a>>, Stop> {
        match self.rest.len {
            0 => Ok(None),
            _ => self.take().map(Some),
        }
    }

    /// Returns the next option; fails if the bytes end in its kind or length.
    pub fn take(&mut self) -> Result<Tlv<'a>, Stop> {
        let Layout { kind, len, whole, align } = self.layout;
        let head = kind + len;
        let (kind, len) = (self.rest.number(0, kind)? as u16, self.rest.number(kind, len)? as usize);
        let total = if whole { len } else { len + head };
        let tlv = Tlv {
            kind,
            len,
            value: self.rest.skip(head).claimed(total.saturating_sub(head)),
            is_long_enough: total >= head,
            fits: total <= self.rest.len,
            room: self.rest.len,
        };
        self.rest = self.rest.skip(total.max(head).next_multiple_of(align));
        Ok(tlv)
    }
}

impl<'a> Tlv<'a> {
    /// Returns the bytes of the value; fails unless all were captured.
    pub fn bytes(&self) -> Result<&'a [u8], Stop> {
        self.value.slice(0, self.value.len)
    }
}

/// Splits text at a letter.
fn split(text: &str, letter: u8) -> (&str, &str) {
    match text.bytes().position(|byte| byte == letter) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    }
}

fn decimal(text: &str) -> usize {
    text.bytes().fold(0, |sum, digit| sum * 10 + usize::from(digit & 0xf))
}

/// A MAC address.
pub struct Mac(pub [u8; 6]);

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Colons(&self.0).fmt(f)
    }
}

/// Bytes in hexadecimal with colons between, as for link addresses.
pub struct Colons<'a>(pub &'a [u8]);

impl std::fmt::Display for Colons<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::with_capacity(self.0.len() * 3);
        for byte in self.0 {
            dump::byte(&mut text, *byte);
            text.push(':');
        }
        f.write_str(text.strip_suffix(':').unwrap_or_default())
    }
}

/// Shows bytes that are not decoded, unless a hexadecimal dump of the packet follows anyway.
pub fn default_print(line: &mut Line<'_>, data: Data<'_>) {
    let form = line.options.dump.map(|dump| dump.form);
    if form.is_none_or(|form| form == DumpForm::Ascii) {
        line.dump_ascii(data.bytes);
    }
}
