//! The line being made, and the checked view of the bytes it is made of.

use super::PrintOptions;
use super::flows::Flows;

/// Why the rest of a packet is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The captured bytes end here: shown as `[|protocol]`.
    Cut,
    /// What is said here contradicts itself: shown as `(invalid)`.
    Invalid,
}

pub(super) type Printed = Result<(), Stop>;

/// Headers inside headers, at most: deeper is no real packet, and each level takes stack.
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
pub(super) struct Line<'a> {
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
        Self {
            out,
            options,
            flows,
            protocol: "",
            link_header_len: 0,
            depth: 0,
        }
    }

    pub fn verbose(&self) -> bool {
        self.options.verbosity > 0
    }

    /// Shows a header of a kind that can hold its own kind.
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

    /// True inside a tunnel or another header: the outermost link header is known.
    pub fn is_nested(&self) -> bool {
        self.depth > 1
    }
}

/// Bytes of a packet from some header on, and how many there were on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data<'a> {
    /// What was captured.
    pub bytes: &'a [u8],
    /// What the packet had, by the header outside.
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

    /// `len` captured bytes from `at` on.
    pub fn slice(&self, at: usize, len: usize) -> Result<&'a [u8], Stop> {
        self.bytes
            .get(at..)
            .and_then(|rest| rest.get(..len))
            .ok_or(Stop::Cut)
    }

    /// Fails unless the first `len` bytes were captured.
    pub fn need(&self, len: usize) -> Printed {
        if self.bytes.len() < len {
            Err(Stop::Cut)
        } else {
            Ok(())
        }
    }

    /// What follows the first `count` bytes.
    pub fn skip(&self, count: usize) -> Self {
        Self {
            bytes: self.bytes.get(count..).unwrap_or_default(),
            len: self.len.saturating_sub(count),
        }
    }

    /// The same bytes, of which there are `len` by a header of their own.
    pub fn claimed(&self, len: usize) -> Self {
        Self {
            bytes: &self.bytes[..self.bytes.len().min(len)],
            len,
        }
    }
}

/// Six bytes as a MAC address.
pub(super) struct Mac(pub [u8; 6]);

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Bytes in hexadecimal with colons between, as link addresses are shown.
pub(super) struct Colons<'a>(pub &'a [u8]);

impl std::fmt::Display for Colons<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if at > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

/// Names of the bits set in `flags`, joined; `none` if no named one is.
pub(super) fn flag_names(flags: u32, names: &[(u32, &str)], joint: &str) -> String {
    let set: Vec<_> = names
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    if set.is_empty() {
        "none".to_string()
    } else {
        set.join(joint)
    }
}
