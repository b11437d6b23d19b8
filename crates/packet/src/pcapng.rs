//! pcapng, the file format trawl records in (draft-ietf-opsawg-pcapng).
//!
//! Written files are little-endian, because the kernel side writes finished packet blocks in the host's order and trawl
//! runs on little-endian hosts only. Files of both orders are read.

pub mod block;
pub mod note;
pub mod options;
pub mod processes;
pub(crate) mod read;
pub mod reference;
pub mod translations;
pub mod write;

use block::{DIRECTION_INBOUND, DIRECTION_MASK, DIRECTION_OUTBOUND};
use note::{CgroupNote, Note, PodNote, ProcessNote, ProgramNote};

/// Properties of an interface from its Interface Description Block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// LINKTYPE_ value: 1 is Ethernet.
    pub link_type: u16,
    /// Longest captured length of a packet; 0 is no limit.
    pub snaplen: u32,
    pub name: Option<String>,
    pub description: Option<String>,
    /// Capture filter as written by the user.
    pub filter: Option<String>,
    /// Bits per second.
    pub speed: Option<u64>,
    pub mac: Option<[u8; 6]>,
    pub hardware: Option<String>,
    pub os: Option<String>,
    /// `if_tsresol` as stored: a negative power of ten, or of two when the top bit is set.
    pub tsresol: u8,
    /// Seconds to add to every timestamp.
    pub tsoffset: i64,
    pub comments: Vec<String>,
}

impl Default for Interface {
    fn default() -> Self {
        Self {
            link_type: block::LINKTYPE_ETHERNET,
            snaplen: 0,
            name: None,
            description: None,
            filter: None,
            speed: None,
            mac: None,
            hardware: None,
            os: None,
            tsresol: block::TSRESOL_NANOSECONDS,
            tsoffset: 0,
            comments: Vec::new(),
        }
    }
}

impl Interface {
    /// Returns a time since 1970 in the interface's own units, rounded down.
    pub fn ticks(&self, timestamp_ns: u64) -> u64 {
        const NANOSECONDS: i128 = 1_000_000_000;
        let ns = i128::from(timestamp_ns) - i128::from(self.tsoffset) * NANOSECONDS;
        let ns = ns.clamp(0, u64::MAX.into()) as u128;
        let exponent = u32::from(self.tsresol & 0x7f);
        let base: u128 = if self.tsresol & 0x80 == 0 { 10 } else { 2 };
        let scale = base.checked_pow(exponent).and_then(|scale| ns.checked_mul(scale));
        scale.map_or(u64::MAX, |scaled| (scaled / NANOSECONDS as u128) as u64)
    }

    /// Returns the hook of a trawl capture, such as `xdp exit`, which begins its description.
    pub fn hook(&self) -> Option<&str> {
        let (seen_at, _) = self.description.as_deref()?.split_once(", time stamps from the ")?;
        Some(seen_at.split_once(" (").map_or(seen_at, |(hook, _)| hook))
    }

    /// Returns the Kubernetes pod of the interface.
    pub fn pod(&self) -> Option<PodNote<'_>> {
        self.comments.iter().find_map(|comment| PodNote::parse(comment))
    }

    /// Returns the XDP program at which the interface's packets were seen.
    pub fn program(&self) -> Option<ProgramNote<'_>> {
        self.comments.iter().find_map(|comment| ProgramNote::parse(comment))
    }
}

/// Verdict on a packet: an `epb_verdict` option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// TC_ACT_ value of a tc program.
    Tc(u64),
    /// XDP_ value of an XDP program.
    Xdp(u64),
    /// A kind trawl does not interpret, with its bytes.
    Other { kind: u8, value: &'a [u8] },
}

/// The process of a packet; zero where it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketProcess {
    pub id: u32,
    pub thread: u32,
}

/// The process of a packet, as far as the file describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedProcess<'a> {
    pub id: u32,
    /// The thread that sent the packet; zero where it is unknown.
    pub thread: u32,
    pub name: Option<&'a str>,
    pub described: Option<&'a Process>,
}

impl NamedProcess<'_> {
    /// Returns the comment that names the process, for files in which its number already stands for another one.
    pub fn comment(&self) -> String {
        ProcessNote { name: self.name.unwrap_or_default(), id: self.id }.text()
    }
}

/// Description of a process, in a block of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    pub name: Option<String>,
    pub path: Option<String>,
    /// The arguments, each but the last with a zero byte after it.
    pub command: Option<Vec<u8>>,
    pub parent: Option<u32>,
    pub user_id: Option<u32>,
    pub user: Option<String>,
    /// Nanoseconds since 1970.
    pub start_ns: Option<u64>,
    pub comment: Option<String>,
}

impl Process {
    /// Returns the ID of the process's container; without a container its pod, else its systemd unit or cgroup.
    pub fn container(&self) -> Option<&str> {
        let CgroupNote { container, pod, cgroup, .. } = CgroupNote::parse(self.comment.as_deref()?)?;
        let unit = || cgroup?.rsplit('/').next();
        container.or(pod).or_else(unit)
    }

    /// Returns the number of its pod.
    pub fn pod(&self) -> Option<&str> {
        CgroupNote::parse(self.comment.as_deref()?)?.pod
    }
}

/// Direction of a packet, from the low bits of `epb_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

impl Direction {
    /// Returns the direction bits of an `epb_flags` value; `None` if they are unset.
    pub fn from_flags(flags: u32) -> Option<Self> {
        match flags & DIRECTION_MASK {
            DIRECTION_INBOUND => Some(Self::In),
            DIRECTION_OUTBOUND => Some(Self::Out),
            _ => None,
        }
    }

    /// Returns the bits to store in `epb_flags`.
    pub fn flags(self) -> u32 {
        match self {
            Self::In => DIRECTION_INBOUND,
            Self::Out => DIRECTION_OUTBOUND,
        }
    }
}
