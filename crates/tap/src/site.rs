//! Where to capture: an interface in a network namespace, and the things a person can ask of the capture there.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use trawl_kernel::events;
use trawl_kernel::interface::Interface;
use trawl_kernel::netns::Namespace;
use trawl_kernel::packet_socket::{Fanout, Reading};
use trawl_kernel::probe::{Capability, lack_of};
use trawl_kernel::ring::Geometry;
use trawl_kernel::{Error, Result};
use trawl_packet::verdict;
use trawl_program::again;

use crate::filter::Filter;
use crate::trigger;

/// One `-i`.
#[derive(Clone, Debug)]
pub struct Site {
    /// As the person wrote it: `veth0`, or `red:veth0`.
    pub label: String,
    pub namespace: Option<Namespace>,
    pub interface: Interface,
    /// Nobody named it: it is one of all, where the packet tap will do if no other can.
    pub one_of_any: bool,
}

impl Site {
    /// `NAME` in the namespace given (or the present one), or `NAMESPACE:NAME`.
    pub fn find(text: &str, default_namespace: Option<&str>) -> Result<Self> {
        // Alias interfaces have a colon too (eth0:1), but a namespace cannot be told from them without looking.
        let (namespace, name) = match text.split_once(':') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (default_namespace, text),
        };
        if name.is_empty() {
            return Err(Error::usage(
                format!("interface '{text}'"),
                "no interface is named",
            ));
        }
        let namespace = namespace.map(Namespace::open).transpose()?;
        let interface = Interface::find(namespace.as_ref(), name)?;
        Ok(Self {
            label: text.to_owned(),
            namespace,
            interface,
            one_of_any: false,
        })
    }
}

impl Site {
    /// The command that loads the program on it once more, so that the `hook` tap can look in.
    pub(crate) fn with_hooks(&self, program: u32) -> String {
        match trawl_program::Site::named(self.namespace.clone(), &self.interface.name) {
            Ok(site) => again::with_hooks(&site, program),
            Err(_) => format!(
                "trawl xdp load {} FILE.o --replace --keep-maps --tappable",
                self.label
            ),
        }
    }

    /// Why nothing can be said of the program on it, where this process may not open programs of others.
    pub(crate) fn may_not_look(&self) -> Option<Error> {
        let (why, how) = lack_of(&[Capability::SysAdmin])?;
        let what = format!("cannot look at the XDP program on {}", self.label);
        Some(Error::failed(what, why).fix(how))
    }

    /// It need not be asked which queue a packet came or goes by.
    pub fn has_one_queue(&self) -> bool {
        self.interface.rx_queues.max(self.interface.tx_queues) <= 1
    }

    /// No packet comes by a queue that is not there.
    pub(crate) fn check_queue(&self, options: &Options) -> Result<()> {
        let of_sent = self.interface.tx_queues;
        let of_received = self.interface.rx_queues;
        let (kind, queues) = match options.direction {
            Some(Direction::In) => ("receive ", of_received),
            Some(Direction::Out) => ("transmit ", of_sent),
            _ => ("", of_received.max(of_sent)),
        };
        let Some(wanted) = options.queue.filter(|queue| *queue >= queues.max(1)) else {
            return Ok(());
        };
        let has = match queues {
            0 | 1 => format!("0 is the only {kind}queue that it has"),
            _ => format!("it has the {kind}queues 0 to {}", queues - 1),
        };
        Err(Error::usage(
            format!("cannot choose queue {wanted} of {}", self.label),
            has,
        )
        .fix(format!(
            "ethtool -l {} tells how many are in use",
            self.interface.name
        )))
    }
}

/// Which packets, by the way they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
    Both,
}

impl Direction {
    pub fn includes_in(self) -> bool {
        self != Self::Out
    }

    pub fn includes_out(self) -> bool {
        self != Self::In
    }
}

/// How trawl's own XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver where that works, else in the stack.
    NativeFirst,
    Native,
    Skb,
}

/// At which end of an XDP program a packet is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Entry,
    Exit,
    Both,
}

impl At {
    pub fn entry(self) -> bool {
        self != Self::Exit
    }

    pub fn exit(self) -> bool {
        self != Self::Entry
    }
}

/// Which of the XDP programs on an interface are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programs {
    /// The one that is attached, whichever that is.
    Attached,
    /// That one and all behind it.
    All,
    Named(String),
    Id(u32),
}

impl Programs {
    /// `all`, a number, or a name.
    pub fn parse(text: &str) -> Self {
        match text.parse() {
            Ok(id) => Self::Id(id),
            Err(_) if text == "all" => Self::All,
            Err(_) => Self::Named(text.to_owned()),
        }
    }

    /// Whether one behind the attached program is meant.
    pub(crate) fn mean(&self, name: &str, id: u32) -> bool {
        match self {
            Self::Attached => false,
            Self::All => true,
            Self::Named(wanted) => wanted == name,
            Self::Id(wanted) => *wanted == id,
        }
    }
}

/// Whose clock the records carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSource {
    /// The system's, read at the hook.
    System,
    /// The network card's where it stamped the packet, else the system's.
    Hardware,
}

/// How often the system's clock is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stamps {
    /// For the first packets of each poll, and then for one in a few.
    #[default]
    Auto,
    /// For each packet.
    Precise,
    /// Once a poll.
    Poll,
}

/// Of the packets of a poll, the first ones get their own reading, and then each of so many.
const AUTO_FIRST: u32 = 4;
const AUTO_EVERY: u32 = 8;

impl Stamps {
    /// How many records have a reading behind the end of a poll, and which bits the number of one has not that has one
    /// later; `None` for all.
    pub(crate) fn readings(self) -> Option<(u32, u32)> {
        match self {
            Self::Auto => Some((AUTO_FIRST, AUTO_EVERY - 1)),
            Self::Precise => None,
            Self::Poll => Some((1, u32::MAX >> 1)),
        }
    }

    pub(crate) fn in_words(self) -> String {
        match self {
            Self::Auto => format!(
                ", read for the first {AUTO_FIRST} packets of each poll and every {AUTO_EVERY}th after them"
            ),
            Self::Precise => String::new(),
            Self::Poll => ", read once a poll".to_owned(),
        }
    }
}

/// What is written of each packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub flags: bool,
    pub queue: bool,
    pub id: bool,
    pub verdict: bool,
}

impl Meta {
    pub const FULL: Self = Self {
        flags: true,
        queue: true,
        id: true,
        verdict: true,
    };
    pub const NONE: Self = Self {
        flags: false,
        queue: false,
        id: false,
        verdict: false,
    };
}

impl Default for Meta {
    fn default() -> Self {
        Self::FULL
    }
}

/// What a record looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    pub meta: Meta,
    pub stamps: Stamps,
}

/// A share of the packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Each with a chance of one in so many: no pattern of the traffic decides.
    Random(u32),
    /// The first of every so many, on each CPU by itself.
    Every(u32),
}

/// What was asked for, resolved to plain values.
#[derive(Clone, Debug)]
pub struct Options {
    pub tap: super::Choice,
    /// What the kernel drops, beside what the tap sees or alone.
    pub drops: Option<super::drop::Wish>,
    /// `None`: whatever the tap sees by nature.
    pub direction: Option<Direction>,
    /// `None`: nothing was said, so that other taps may serve.
    pub programs: Option<Programs>,
    pub at: Option<At>,
    /// Record only packets that met one of these verdicts.
    pub verdicts: Option<verdict::Set>,
    pub mode: Mode,
    pub hook: Option<PathBuf>,
    pub time: TimeSource,
    pub filter: Option<Filter>,
    pub filter_at: Option<At>,
    /// Only packets received or sent by this queue.
    pub queue: Option<u32>,
    /// Only packets that are handled on this CPU.
    pub cpu: Option<u32>,
    /// Which of those that match.
    pub sample: Option<Sample>,
    /// Records a second, at most.
    pub rate_limit: Option<u64>,
    pub snaplen: u32,
    pub count: Option<u64>,
    pub duration: Option<Duration>,
    pub geometry: Geometry,
    pub recording: Recording,
    /// Packets are written only around events.
    pub trigger: Option<trigger::Plan>,
    pub promiscuous: bool,
    pub peers: Peers,
}

/// What is asked of taps that other people's libraries and mechanisms serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The libpcap to use, if not the system's.
    pub library: Option<PathBuf>,
    /// The network stack may lose the packets.
    pub steal: bool,
    /// How the packet tap's sockets are read.
    pub reading: Reading,
    /// How they share the packets.
    pub fanout: Fanout,
}

impl Options {
    /// No packet is handled on a CPU that is not there.
    pub(crate) fn check_cpu(&self) -> Result<()> {
        let cpus = events::cpu_count();
        match self.cpu.filter(|cpu| *cpu as usize >= cpus) {
            Some(wanted) => Err(Error::usage(
                format!("cannot choose packets of CPU {wanted}"),
                format!("this machine's CPUs are 0 to {}", cpus - 1),
            )),
            None => Ok(()),
        }
    }

    /// Ends of a program that a capture cannot have together.
    pub(crate) fn check_ends(&self) -> Result<()> {
        let at = self.at.unwrap_or(At::Exit);
        if at.entry() && self.filter_at == Some(At::Exit) {
            return Err(Error::usage(
                "cannot record at entry what a filter chooses at exit",
                "the record is made before the filter has looked",
            )
            .fix("leave out --filter-at, or say --at exit"));
        }
        if at == At::Entry && self.verdicts.is_some() {
            return Err(Error::usage(
                "cannot choose packets by their verdict at entry",
                "the program has not decided yet",
            )
            .fix("say --at exit, or --at both"));
        }
        Ok(())
    }
}
