//! Traffic specifications as text, made into a [`Pattern`].
//!
//! A [`Spec`] is a kind of traffic and a text for each key, from the command line or from a template file. [`KEYS`]
//! lists the keys. [`pattern`] turns one spec or a weighted mix of them into frames.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use Protocol::{Arp, Eth, Icmp, Raw, Tcp, Udp};
use field::{FieldKind, FieldValues};
use trawl_packet::net::mac_text;
use trawl_sys::{Error, Result};

use self::frame::mac_bytes;
use crate::pattern::{Edit, Exception, Pattern, Variant, common_divisor};
use crate::stamp;

pub mod field;
mod frame;

/// Maximum number of a schedule's entries. A mix whose order repeats only later is cut here.
const LONGEST_SCHEDULE: usize = 1 << 16;

/// Kind of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    Tcp,
    Icmp,
    Arp,
    Eth,
    Raw,
}

impl Protocol {
    pub const ALL: [Self; 6] = [Self::Udp, Self::Tcp, Self::Icmp, Self::Arp, Self::Eth, Self::Raw];

    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Icmp => "icmp",
            Self::Arp => "arp",
            Self::Eth => "eth",
            Self::Raw => "raw",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == text)
    }

    /// Returns true if the frames have IP addresses, which have routes.
    pub fn is_ip(self) -> bool {
        matches!(self, Self::Udp | Self::Tcp | Self::Icmp)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const IP: &[Protocol] = &[Udp, Tcp, Icmp];
const IP_ARP: &[Protocol] = &[Udp, Tcp, Icmp, Arp];
const PORTS: &[Protocol] = &[Udp, Tcp];
const BUILT: &[Protocol] = &[Udp, Tcp, Icmp, Arp, Eth];
const PAYLOAD: &[Protocol] = &[Udp, Tcp, Icmp, Eth];
const ANY: &[Protocol] = &Protocol::ALL;

/// Every key, the kinds of traffic that have it, and its description.
pub const KEYS: [(&str, &[Protocol], &str); 29] = [
    ("src-mac", BUILT, "source MAC address"),
    ("dst-mac", BUILT, "destination MAC address"),
    ("src", IP_ARP, "source address"),
    ("dst", IP_ARP, "destination address"),
    ("src-port", PORTS, "source port"),
    ("dst-port", PORTS, "destination port"),
    ("dscp", IP, "differentiated services code point"),
    ("ttl", IP, "time to live, hop limit"),
    ("size", ANY, "length of each frame without the checksum at its end"),
    ("payload", PAYLOAD, "what the frames carry"),
    ("vlan", BUILT, "VLAN tags, outermost first"),
    ("mpls", IP, "MPLS labels, outermost first"),
    ("vxlan", BUILT, "VXLAN network identifier"),
    ("outer-src", BUILT, "tunnel's source address"),
    ("outer-dst", BUILT, "tunnel's destination address"),
    ("outer-src-mac", BUILT, "tunnel's source MAC address"),
    ("outer-dst-mac", BUILT, "tunnel's destination MAC address"),
    ("flags", &[Tcp], "TCP flags"),
    ("seq", &[Tcp, Icmp], "TCP sequence number, ICMP echo sequence number"),
    ("ack", &[Tcp], "TCP acknowledgement number"),
    ("window", &[Tcp], "TCP window"),
    ("type", &[Icmp], "ICMP type"),
    ("code", &[Icmp], "ICMP code"),
    ("id", &[Icmp], "ICMP echo identifier"),
    ("op", &[Arp], "request or reply"),
    ("ethertype", ANY, "Ethernet type"),
    ("hex", &[Raw], "the frame in hexadecimal digits"),
    ("flows", ANY, "number of flows, sent round-robin"),
    ("every", ANY, "N:KEY=VALUE: every Nth frame is different"),
];

/// A kind of traffic and a text for each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub protocol: Protocol,
    values: BTreeMap<&'static str, String>,
}

/// A key with an invalid value, and the reason: a template file shows it at its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub key: String,
    pub why: String,
}

impl Misfit {
    fn new(key: &str, why: impl Into<String>) -> Self {
        Self { key: key.to_owned(), why: why.into() }
    }
}

impl From<Misfit> for Error {
    fn from(misfit: Misfit) -> Self {
        Self::usage(misfit.key, misfit.why)
    }
}

impl Spec {
    pub fn new(protocol: Protocol) -> Self {
        Self { protocol, values: BTreeMap::new() }
    }

    /// Sets a key's value. Unknown keys, and keys that this kind of traffic does not have, are refused.
    pub fn set(&mut self, key: &str, value: impl Into<String>) -> Result<(), Misfit> {
        let found = KEYS.iter().find(|(name, ..)| *name == key);
        let Some((name, protocols, _)) = found else {
            return Err(Misfit::new(key, format!("no such field{}", suggestion(key))));
        };
        if !protocols.contains(&self.protocol) {
            return Err(Misfit::new(key, format!("{} frames do not have it", self.protocol)));
        }
        self.values.insert(name, value.into());
        Ok(())
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Sets a key's value unless it has one.
    pub fn set_default(&mut self, key: &'static str, value: impl Into<String>) {
        self.values.entry(key).or_insert_with(|| value.into());
    }

    /// Returns the values of a key.
    fn values(&self, key: &str, kind: FieldKind) -> Result<Option<FieldValues>, Misfit> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        kind.values(text).map(Some).map_err(|why| Misfit::new(key, why))
    }

    fn values_or(&self, key: &str, kind: FieldKind, default: u128) -> Result<FieldValues, Misfit> {
        Ok(self.values(key, kind)?.unwrap_or(FieldValues::Fixed(default)))
    }

    /// Returns the value of a key that is the same in all frames.
    fn number_or(&self, key: &str, bits: u32, default: u128) -> Result<u128, Misfit> {
        match self.values_or(key, FieldKind::Number(bits), default)? {
            FieldValues::Fixed(value) => Ok(value),
            _ => Err(Misfit::new(key, "expected one number: it is the same in all frames")),
        }
    }

    /// Returns the address that frames are routed by: the first destination, of the tunnel if any.
    pub fn destination(&self) -> Result<Option<IpAddr>, Misfit> {
        let key = if self.get("vxlan").is_some() { "outer-dst" } else { "dst" };
        self.address(key)
    }

    /// Returns the first address of a key.
    pub fn address(&self, key: &str) -> Result<Option<IpAddr>, Misfit> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        let choice = family(text).values(text).map_err(|why| Misfit::new(key, why))?;
        Ok(Some(match family(text) {
            FieldKind::V6 => IpAddr::V6(choice.first().into()),
            _ => IpAddr::V4((choice.first() as u32).into()),
        }))
    }

    fn flows(&self) -> Result<Option<u64>, Misfit> {
        match self.values("flows", FieldKind::Number(32))? {
            None => Ok(None),
            Some(FieldValues::Fixed(0)) => Err(Misfit::new("flows", "at least one is required")),
            Some(FieldValues::Fixed(flows)) => Ok(Some(flows as u64)),
            Some(_) => Err(Misfit::new("flows", "expected one number")),
        }
    }

    /// Returns the spec of every Nth frame.
    fn exception(&self) -> Result<Option<(u64, Self)>, Misfit> {
        let Some(text) = self.get("every") else {
            return Ok(None);
        };
        let wrong = |why: &str| Misfit::new("every", why);
        let shape = "write for example 1000:ethertype=0x1111";
        let (every, changes) = text.split_once(':').ok_or_else(|| wrong(shape))?;
        let every = FieldKind::Number(32).value(every).map_err(|why| wrong(&why))?;
        if every == 0 {
            return Err(wrong("the interval must be at least 1"));
        }
        let mut other = self.clone();
        other.values.remove("every");
        for change in changes.split(';') {
            let (key, value) = change.split_once('=').ok_or_else(|| wrong(shape))?;
            let key = key.trim();
            if matches!(key, "flows" | "every" | "size") {
                return Err(wrong(&format!("{key} is the same for all frames")));
            }
            let set = other.set(key, value.trim());
            set.map_err(|misfit| wrong(&format!("{}: {}", misfit.key, misfit.why)))?;
        }
        Ok(Some((every as u64, other)))
    }
}

/// Returns the kind of address that a text begins with.
pub(crate) fn family(text: &str) -> FieldKind {
    if text.contains(':') && !text.starts_with("random:") || text.matches(':').count() > 1 {
        FieldKind::V6
    } else {
        FieldKind::V4
    }
}

/// Returns the most similar key, as a question.
fn suggestion(key: &str) -> String {
    let near = KEYS.iter().map(|(name, ..)| (distance(key, name), *name)).min();
    match near {
        Some((0..=2, name)) => format!("; is it {name}?"),
        _ => {
            let names: Vec<&str> = KEYS.iter().map(|(name, ..)| *name).collect();
            format!("; known are {}", names.join(", "))
        }
    }
}

/// Returns the edit distance of two texts.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, b) in other.bytes().enumerate() {
            let change = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = change.min(before + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

/// Limits of a spec's frames on their path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of the longest frame, without VLAN tags; `None` if unknown.
    pub mtu: Option<u32>,
    pub seed: u64,
    /// Stream of the stamps at the end of all frames; `None`: no stamps.
    pub stamp: Option<u16>,
}

impl Limits {
    /// Returns the length of a stamp in each frame.
    fn stamp_room(&self) -> usize {
        self.stamp.map_or(0, |_| stamp::LENGTH)
    }
}

/// Maximum memory for a spec's frames, which are made in advance.
const FRAMES_MEMORY: usize = 256 << 20;

/// The frames of one spec: its variants, in order.
struct Part {
    variants: Vec<Variant>,
    /// The same variants with the exceptions of every Nth frame.
    others: Vec<Variant>,
    every: Option<u64>,
    flows: Option<u64>,
}

impl Part {
    fn of(spec: &Spec, limits: &Limits) -> Result<Self, Misfit> {
        let exception = spec.exception()?;
        let flows = spec.flows()?;
        let variants = variants(spec, flows, limits)?;
        let (every, others) = match &exception {
            Some((every, other)) => (Some(*every), self::variants(other, flows, limits)?),
            None => (None, Vec::new()),
        };
        if !others.is_empty() && others.len() != variants.len() {
            return Err(Misfit::new("every", "the frames of every must have as many payloads as the others"));
        }
        Ok(Self { variants, others, every, flows })
    }
}

/// Returns a spec's variants: one for each length and each payload, in turn.
fn variants(spec: &Spec, flows: Option<u64>, limits: &Limits) -> Result<Vec<Variant>, Misfit> {
    let sizes = match spec.get("size") {
        Some(text) => Sizes::parse(text, limits.seed).map_err(|why| Misfit::new("size", why))?,
        None => Sizes::Shortest,
    };
    let payloads = match spec.get("payload") {
        Some(text) => Payload::parse(text, limits.seed).map_err(|why| Misfit::new("payload", why))?,
        None => vec![Payload::Bytes(Vec::new())],
    };
    let maker = frame::Maker::new(spec, flows, limits.seed)?;
    let least = payloads.iter().map(|one| maker.headers() + one.least() + limits.stamp_room()).max();
    let least = least.unwrap_or(0).max(maker.least());
    let lengths = sizes.lengths(least).map_err(|why| Misfit::new("size", why))?;
    if let Some(mtu) = limits.mtu {
        let most = mtu as usize + maker.link_header();
        if let Some(length) = lengths.iter().find(|length| **length > most) {
            let why = format!(
                "a frame of {length} bytes exceeds the MTU of {mtu}: the longest possible frame has {most} bytes"
            );
            return Err(Misfit::new("size", why));
        }
    }
    let count = lcm(lengths.len(), payloads.len());
    let longest = lengths.iter().max().copied().unwrap_or_default();
    if count.saturating_mul(longest) > FRAMES_MEMORY {
        let why = format!("{count} different frames of up to {longest} bytes are too many to prepare in memory");
        return Err(Misfit::new("size", why));
    }
    let made = (0..count).map(|n| {
        let (length, payload) = (lengths[n % lengths.len()], &payloads[n % payloads.len()]);
        maker.make(length, payload, limits.stamp_room())
    });
    made.collect()
}

/// Returns the frames of several specs, each as often as its weight requires.
pub fn pattern(mix: &[(Spec, usize)], limits: &Limits) -> Result<Pattern, (usize, Misfit)> {
    let mut parts = Vec::new();
    for (at, (spec, _)) in mix.iter().enumerate() {
        parts.push(Part::of(spec, limits).map_err(|misfit| (at, misfit))?);
    }
    let exceptions: Vec<u64> = parts.iter().filter_map(|part| part.every).collect();
    let every = exceptions.first().copied();
    if exceptions.iter().any(|one| Some(*one) != every) {
        return Err((0, Misfit::new("every", "all parts of a mix must have the same interval")));
    }
    let flows = parts.iter().filter_map(|part| part.flows).max();
    let mut variants = Vec::new();
    let mut first = Vec::new();
    for part in &parts {
        first.push(variants.len());
        variants.extend(part.variants.iter().cloned());
    }
    let further = variants.len();
    if every.is_some() {
        for part in &parts {
            let others = if part.others.is_empty() { &part.variants } else { &part.others };
            variants.extend(others.iter().cloned());
        }
    }
    let numbers: Vec<(usize, usize)> = mix.iter().enumerate().map(|(at, (_, w))| (at, *w)).collect();
    let turns = spread(&numbers);
    let longest_part = parts.iter().map(|part| part.variants.len()).fold(1, lcm);
    let length = lcm(turns.len(), longest_part * turns.len()).min(LONGEST_SCHEDULE.max(turns.len()));
    let mut next = vec![0; parts.len()];
    let schedule = (0..length).map(|at| {
        let part = turns[at % turns.len()];
        let kinds = parts[part].variants.len();
        let variant = first[part] + next[part] % kinds;
        next[part] += 1;
        variant as u32
    });
    let schedule = schedule.collect();
    let exception = every.map(|every| Exception { every, further });
    let pattern = Pattern::new(variants, schedule, flows, exception);
    let Some(stream) = limits.stamp else {
        return Ok(pattern);
    };
    pattern.stamped(stream).map_err(|length| {
        let why = format!("a frame of {length} bytes has no room for a stamp");
        (0, Misfit::new("size", why))
    })
}

fn lcm(a: usize, b: usize) -> usize {
    let divisor = common_divisor(a as u64, b as u64).max(1) as usize;
    (a / divisor).saturating_mul(b)
}

// Lengths of frames: one, several in turn, a mix, or random.

/// The simple Internet mix of frame lengths, without the checksum: seven, four and one of twelve.
const IMIX: [(usize, usize); 3] = [(60, 7), (590, 4), (1514, 1)];
/// Random lengths are drawn once, and repeat after this many frames.
const DRAWS: u64 = 4096;
const LONGEST: u128 = 65_549;

/// The lengths of frames, in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Each frame is as short as possible, and has at least 60 bytes.
    Shortest,
    InTurn(Vec<usize>),
    /// The mix; its shortest frames grow to the length of the headers if necessary.
    Imix,
}

impl Sizes {
    /// Parses `64`, `64,1500`, `64:7,590:4,1514:1` (with weights), `64-1500`, `64-1500/10`, `random:64-1500`, `imix`.
    pub fn parse(text: &str, seed: u64) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Self::Imix);
        }
        let size = FieldKind::Number(17);
        if text.contains(':') && !text.starts_with("random:") {
            let mut weighted = Vec::new();
            for one in text.split(',') {
                let (length, weight) = one.split_once(':').unwrap_or((one, "1"));
                let weight = FieldKind::Number(10).value(weight)?;
                if weight == 0 {
                    return Err("a weight must be above 0".to_owned());
                }
                weighted.push((size.value(length)? as usize, weight as usize));
            }
            return Ok(Self::InTurn(spread(&weighted)));
        }
        let lengths: Vec<u128> = match size.values(text)? {
            FieldValues::Fixed(length) => vec![length],
            FieldValues::List(lengths) => lengths,
            FieldValues::Step { first, step, count } => (0..u128::from(count)).map(|n| first + n * step).collect(),
            FieldValues::Random { first, count } => {
                let draw = Edit::random(first as u64, count as u64, seed);
                (0..DRAWS).map(|n| u128::from(draw.value(n, n))).collect()
            }
        };
        if let Some(length) = lengths.iter().find(|length| **length > LONGEST) {
            return Err(format!("{length} bytes exceed the maximum of {LONGEST}"));
        }
        Ok(Self::InTurn(lengths.into_iter().map(|l| l as usize).collect()))
    }

    /// Returns the lengths in turn, for frames of at least this many bytes.
    pub fn lengths(&self, least: usize) -> Result<Vec<usize>, String> {
        match self {
            Self::Shortest => Ok(vec![least.max(60)]),
            Self::Imix => {
                let mix = IMIX.map(|(length, weight)| (length.max(least), weight));
                Ok(spread(&mix))
            }
            Self::InTurn(lengths) => match lengths.iter().find(|length| **length < least) {
                Some(length) => {
                    Err(format!("{length} bytes are too few for the headers and the payload, which require {least}"))
                }
                None => Ok(lengths.clone()),
            },
        }
    }
}

/// Repeats each item by its weight, as evenly as possible.
pub fn spread<T: Copy>(weighted: &[(T, usize)]) -> Vec<T> {
    let total: usize = weighted.iter().map(|(_, weight)| weight).sum();
    let mut credit = vec![0i64; weighted.len()];
    let mut order = Vec::with_capacity(total);
    for _ in 0..total {
        for (credit, (_, weight)) in credit.iter_mut().zip(weighted) {
            *credit += *weight as i64;
        }
        let richest = (0..credit.len()).max_by_key(|at| (credit[*at], std::cmp::Reverse(*at)));
        if let Some(at) = richest {
            credit[at] -= total as i64;
            order.push(weighted[at].0);
        }
    }
    order
}

// Default differences between flows.

/// First source port that represents a flow.
const FIRST_FLOW_PORT: u128 = 1024;
/// Number of source ports that represent flows.
const FLOW_PORTS: u64 = 65_536 - 1024;

impl Spec {
    /// Makes flows different: if no field varies, ports, identifiers or addresses are made to.
    fn with_flows(&self, flows: Option<u64>) -> Result<Spec, Misfit> {
        let mut varied = self.clone();
        let Some(flows) = flows else {
            return Ok(varied);
        };
        let mut period = 1u64;
        let mut chance = false;
        for (key, kind) in [
            ("src-mac", FieldKind::Mac),
            ("dst-mac", FieldKind::Mac),
            ("src", family(self.get("src").unwrap_or(""))),
            ("dst", family(self.get("dst").unwrap_or(""))),
            ("src-port", FieldKind::Number(16)),
            ("dst-port", FieldKind::Number(16)),
            ("id", FieldKind::Number(16)),
        ] {
            let Some(choice) = self.values(key, kind)? else {
                continue;
            };
            match choice.period() {
                Some(0) => period = u64::MAX,
                Some(own) => period = lcm(period as usize, own as usize) as u64,
                None => chance = true,
            }
        }
        if period > 1 || chance {
            if period < flows && !chance {
                let why = format!("the varying fields yield only {period} different flows");
                return Err(Misfit::new("flows", why));
            }
            return Ok(varied);
        }
        let last = |first: u128, count: u64| format!("{first}-{}", first + u128::from(count) - 1);
        match self.protocol {
            Protocol::Udp | Protocol::Tcp => {
                let ports = flows.min(FLOW_PORTS);
                varied.values.insert("src-port", last(FIRST_FLOW_PORT, ports));
                if flows > FLOW_PORTS {
                    // One port fewer on the other side: pairs repeat only after the product of both.
                    varied.values.insert("dst-port", last(FIRST_FLOW_PORT, FLOW_PORTS - 1));
                }
            }
            Protocol::Icmp if flows <= 65_536 => {
                varied.values.insert("id", last(0, flows));
            }
            Protocol::Icmp => {
                return Err(Misfit::new("flows", "an ICMP echo identifier distinguishes at most 65536 flows"));
            }
            Protocol::Arp | Protocol::Eth => {
                let mac = self.values_or("src-mac", FieldKind::Mac, 0)?.first();
                let text = |mac: u128| mac_text(mac_bytes(&FieldValues::Fixed(mac)));
                let range = format!("{}-{}", text(mac), text(mac + u128::from(flows) - 1));
                varied.values.insert("src-mac", range);
            }
            Protocol::Raw => {
                return Err(Misfit::new("flows", "a raw frame has no field that can vary"));
            }
        }
        Ok(varied)
    }
}

// Payloads of frames.

/// The bytes after the headers; zeroes fill the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    Bytes(Vec<u8>),
    /// A repeated byte.
    Fill(u8),
    /// Random bytes; the first eight differ in each frame.
    Random(u64),
    /// The frame's number in the first eight bytes.
    Number,
}

impl Payload {
    /// Parses `zeros`, `text:…`, `hex:…`, `fill:0xNN`, `random`, `number`; several separated by `|` alternate.
    pub fn parse(text: &str, seed: u64) -> Result<Vec<Self>, String> {
        text.split('|').map(|one| Self::one(one.trim(), seed)).collect()
    }

    fn one(text: &str, seed: u64) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("text", text)) => Ok(Self::Bytes(text.as_bytes().to_vec())),
            Some(("hex", digits)) => hex(digits).map(Self::Bytes),
            Some(("fill", byte)) => {
                let byte = field::FieldKind::Number(8).value(byte)?;
                Ok(Self::Fill(byte as u8))
            }
            None if text == "zeros" => Ok(Self::Bytes(Vec::new())),
            None if text == "random" => Ok(Self::Random(seed)),
            None if text == "number" => Ok(Self::Number),
            _ => {
                Err(format!("'{text}' is not a payload; known are zeros, text:…, hex:…, fill:0xNN, random and number"))
            }
        }
    }

    /// Returns the least length.
    pub fn least(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Fill(_) => 0,
            Self::Random(_) => 2,
            Self::Number => 8,
        }
    }

    /// Returns the payload with this length, which is at least the least one.
    pub fn bytes(&self, length: usize) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => {
                let mut bytes = bytes.clone();
                bytes.resize(length, 0);
                bytes
            }
            Self::Fill(byte) => vec![*byte; length],
            Self::Number => vec![0; length],
            Self::Random(seed) => {
                let random = Edit::random(0, 0, seed ^ 0x7061_796c);
                let words = (0..length.div_ceil(8) as u64).map(|n| random.value(n, n)).map(u64::to_be_bytes);
                let mut bytes: Vec<u8> = words.flatten().collect();
                bytes.truncate(length);
                bytes
            }
        }
    }

    /// Returns the edit of the varying value at the beginning of a payload of that length at this offset.
    pub fn varying(&self, offset: usize, length: usize) -> Option<Edit> {
        let width = match length {
            8.. => 8,
            4.. => 4,
            2.. => 2,
            _ => return None,
        };
        let bits = width as u32 * 8;
        let edit = match self {
            Self::Random(seed) => Edit::random(0, 1u64.checked_shl(bits).unwrap_or(0), *seed ^ 0x6c6f_6164),
            Self::Number if width == 8 => Edit::number(0),
            _ => return None,
        };
        Some(edit.at(offset, width, 0, bits))
    }
}

/// Parses pairs of hexadecimal digits, with or without blanks and colons between them.
pub fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
    if digits.len() % 2 == 1 {
        return Err("an odd number of hexadecimal digits".to_owned());
    }
    let digit = |c: char| c.to_digit(16).ok_or_else(|| format!("'{c}' is not a hexadecimal digit"));
    digits.chunks(2).map(|pair| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        let of = |text: &str| Sizes::parse(text, 1).unwrap().lengths(42);
        assert_eq!(of("64"), Ok(vec![64]));
        assert_eq!(of("64,1500"), Ok(vec![64, 1500]));
        assert_eq!(of("64-70/3"), Ok(vec![64, 67, 70]));
        assert_eq!(of("60:2,90:1"), Ok(vec![60, 90, 60]));
        let mix = of("imix").unwrap();
        assert_eq!((mix.len(), mix.iter().filter(|l| **l == 60).count()), (12, 7));
        let random = of("random:60-100").unwrap();
        assert!(random.iter().all(|length| (60..=100).contains(length)));
        assert_eq!(Sizes::Shortest.lengths(42), Ok(vec![60]));
        assert_eq!(Sizes::Shortest.lengths(70), Ok(vec![70]));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for text in ["", "0x", "99999", "64:0", "-5", "70-60", "imix2"] {
            assert!(Sizes::parse(text, 1).is_err(), "{text}");
        }
        assert!(Sizes::parse("41", 1).unwrap().lengths(42).is_err());
    }

    #[test]
    fn payloads_are_parsed() {
        let one = |text| Payload::parse(text, 1).unwrap().remove(0);
        assert_eq!(one("text:hi").bytes(3), b"hi\0");
        assert_eq!(one("hex:de ad:be ef").bytes(4), [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(one("fill:0xab").bytes(2), [0xab; 2]);
        assert_eq!(Payload::parse("text:a|text:b", 1).unwrap().len(), 2);
        assert_eq!(one("random").bytes(20)[..8], one("random").bytes(9)[..8]);
        for text in ["", "hex:abc", "hex:xy", "fill:256", "words", "text"] {
            assert!(Payload::parse(text, 1).is_err(), "{text}");
        }
    }
}
