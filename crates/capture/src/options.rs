//! What is asked of a capture, as one plain value that can be stored and sent to another machine.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trawl_bpf::layout::TapConfig;
use trawl_packet::verdict;
use trawl_pipeline::plan::nanoseconds;
use trawl_ring::Geometry;
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result, events, host};

use crate::Choice;
use crate::filter::Filter;
use crate::trigger;

/// As many bytes of a packet as tcpdump records.
pub const SNAPLEN: u32 = 262_144;

/// Which packets, by the way they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the driver where that works, else in the stack.
    #[default]
    NativeFirst,
    Native,
    Skb,
}

impl Mode {
    /// The only mode that will do.
    pub(crate) fn asked(self) -> Option<XdpMode> {
        match self {
            Self::NativeFirst => None,
            Self::Native => Some(XdpMode::Native),
            Self::Skb => Some(XdpMode::Skb),
        }
    }
}

/// At which end of an XDP program a packet is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Programs {
    /// The one that is attached, whichever that is.
    AttachedTap,
    /// That one and all after it.
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

    /// Whether one after the attached program is meant.
    pub(crate) fn mean(&self, name: &str, id: u32) -> bool {
        match self {
            Self::AttachedTap => false,
            Self::All => true,
            Self::Named(wanted) => wanted == name,
            Self::Id(wanted) => *wanted == id,
        }
    }
}

/// Whose clock the records carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeSource {
    /// The system's, read at the hook.
    #[default]
    System,
    /// The network card's where it stamped the packet, else the system's.
    Hardware,
}

/// How often the system's clock is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stamps {
    /// For the first packets of each poll, and then every 1 to 2 µs, as near as whole packets allow.
    #[default]
    Auto,
    /// For each packet.
    Precise,
    /// Once a poll.
    Poll,
}

/// Of the packets of a poll, the first ones get their own reading, and then one in a number that follows the traffic, which is
/// at most this.
const AUTO_FIRST: u32 = 4;
const AUTO_EVERY: u32 = 16;

/// For which records the clock is read after the end of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readings {
    pub(crate) first: u32,
    /// Later records whose number has none of these bits are stamped.
    pub(crate) mask: u32,
    /// For more of them where packets come slowly.
    pub(crate) follow: bool,
}

impl Readings {
    /// Tells a program.
    pub(crate) fn write_to(self, config: &mut TapConfig) {
        config.clock_first = self.first;
        config.clock_mask = self.mask;
        config.clock_follows = self.follow.into();
    }
}

impl Stamps {
    /// `None` for all records.
    pub(crate) fn readings(self) -> Option<Readings> {
        let (first, mask, follow) = match self {
            Self::Auto => (AUTO_FIRST, AUTO_EVERY - 1, true),
            Self::Precise => return None,
            Self::Poll => (1, u32::MAX >> 1, false),
        };
        Some(Readings {
            first,
            mask,
            follow,
        })
    }

    pub(crate) fn in_words(self) -> String {
        match self {
            Self::Auto => format!(
                ", read for the first {AUTO_FIRST} packets of each poll and every 1 to 2 µs after them, every {AUTO_EVERY}th at least"
            ),
            Self::Precise => String::new(),
            Self::Poll => ", read once a poll".to_owned(),
        }
    }
}

/// What is written of each packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recording {
    pub meta: Meta,
    pub stamps: Stamps,
}

/// A share of the packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sample {
    /// Each with a chance of one in N: no pattern of the traffic decides.
    Random(u32),
    /// The first of every N, on each CPU by itself.
    Every(u32),
}

/// Memory for records that are not written yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    pub size: MemorySize,
    /// Bytes to take at first; more is added while it is needed. `None`: all at once.
    pub at_first: Option<u64>,
}

/// How much memory a capture may take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemorySize {
    /// 256 MiB, less on machines with little memory.
    #[default]
    Usual,
    Total(u64),
    ForEachCpu(u64),
}

impl Memory {
    /// Takes this much in all, and little of it at first.
    pub fn growing_to(size: MemorySize) -> Self {
        Self {
            size,
            at_first: Some(0),
        }
    }

    pub fn for_each_cpu(bytes: u64) -> Self {
        Self {
            size: MemorySize::ForEachCpu(bytes),
            at_first: None,
        }
    }

    pub fn total(bytes: u64) -> Self {
        Self {
            size: MemorySize::Total(bytes),
            at_first: None,
        }
    }

    /// Cuts the memory up for a machine with this many CPUs and this much memory available.
    pub fn geometry(self, cpus: usize, available: u64) -> Result<Geometry> {
        let geometry = match self.size {
            MemorySize::Usual => Geometry::by_default(cpus, available),
            MemorySize::Total(bytes) => Geometry::for_total(bytes, cpus),
            MemorySize::ForEachCpu(bytes) => Geometry::for_share(bytes, cpus),
        }?;
        Ok(match self.at_first {
            Some(bytes) => geometry.growing_from(bytes),
            None => geometry,
        })
    }

    /// Cuts the memory up for this machine.
    pub(crate) fn here(self) -> Result<Geometry> {
        self.geometry(events::cpu_count(), host::available_memory())
    }
}

/// What was asked for, resolved to plain values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    pub tap: Choice,
    /// The tc tap as well, beside one at XDP.
    pub with_tc: bool,
    /// What the kernel drops, beside what the tap sees or alone.
    pub drops: Option<Drops>,
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
    #[serde(default, rename = "duration_ns", with = "nanoseconds::option")]
    pub duration: Option<Duration>,
    pub memory: Memory,
    pub recording: Recording,
    /// Packets are written only around events.
    #[serde(default)]
    pub trigger: Option<trigger::TriggerPlan>,
    pub promiscuous: bool,
    /// Interfaces that appear while the capture goes on are captured on as well.
    #[serde(default)]
    pub joins: bool,
    /// They may appear in other network namespaces than the first ones are in.
    #[serde(default)]
    pub across_namespaces: bool,
    pub peers: Peers,
}

/// What is asked of the tap at drops beside what all taps are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drops {
    /// Only these reasons, by name.
    pub reasons: Option<Vec<String>>,
    /// What is no loss as well.
    pub no_losses: bool,
    /// The functions that led to each drop.
    pub stack: bool,
    /// Each step of the packets that the filter chooses, instead of drops alone.
    pub follow: bool,
    /// Where no interface is named: only what happens in these namespaces, by name, path or a process in each; none for
    /// all of the machine. [`CURRENT`](trawl_sys::netns::CURRENT) stands for the caller's.
    pub namespaces: Vec<String>,
    /// Of packets that are followed: only those that are seen first at these interfaces.
    pub entries: Vec<String>,
    /// And the namespaces with places to look at; none for all.
    pub within: Vec<String>,
}

/// What is asked of taps that other people's libraries and mechanisms serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Peers {
    /// The libpcap to use, if not the system's.
    pub library: Option<PathBuf>,
    /// Which DPDK application, by the name of its files, if not the one without a name.
    pub file_prefix: Option<String>,
    /// The network stack may lose the packets.
    pub steal: bool,
}

impl Options {
    /// Packets are followed on their way, instead of recorded where they come by.
    pub fn follows(&self) -> bool {
        self.drops.as_ref().is_some_and(|asked| asked.follow)
    }

    /// What is asked if nothing else is: whole packets, all of them, until a signal ends it.
    pub fn new(tap: Choice, memory: Memory) -> Self {
        Self {
            tap,
            with_tc: false,
            drops: None,
            direction: None,
            programs: None,
            at: None,
            verdicts: None,
            mode: Mode::default(),
            hook: None,
            time: TimeSource::default(),
            filter: None,
            filter_at: None,
            queue: None,
            cpu: None,
            sample: None,
            rate_limit: None,
            snaplen: SNAPLEN,
            count: None,
            duration: None,
            memory,
            recording: Recording::default(),
            trigger: None,
            promiscuous: false,
            joins: false,
            across_namespaces: false,
            peers: Peers::default(),
        }
    }

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
            .fix("leave out --filter-at, or use --at exit"));
        }
        if at == At::Entry && self.verdicts.is_some() {
            return Err(Error::usage(
                "cannot choose packets by their verdict at entry",
                "the program has not decided yet",
            )
            .fix("use --at exit or --at both"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_json() {
        let plain = Options::new(Choice::Auto, Memory::total(2 << 20));
        let every = Options {
            drops: Some(Drops {
                reasons: Some(vec!["NO_SOCKET".to_owned()]),
                namespaces: vec!["red".to_owned()],
                ..Drops::default()
            }),
            direction: Some(Direction::Both),
            programs: Some(Programs::Named("filter".to_owned())),
            at: Some(At::Both),
            verdicts: Some(verdict::Set::parse(verdict::Kind::Xdp, "drop,pass").unwrap()),
            mode: Mode::Skb,
            hook: Some("/sys/fs/bpf/hook".into()),
            time: TimeSource::Hardware,
            filter: Some(Filter::Inner("udp port 53".to_owned())),
            filter_at: Some(At::Entry),
            queue: Some(1),
            cpu: Some(1),
            sample: Some(Sample::Random(10)),
            rate_limit: Some(1000),
            count: Some(3),
            duration: Some(Duration::from_millis(1500)),
            recording: Recording {
                meta: Meta::NONE,
                stamps: Stamps::Poll,
            },
            trigger: Some(trigger::TriggerPlan {
                before: Duration::from_millis(10),
                after: Duration::ZERO,
                expression: Some("icmp".to_owned()),
                verdicts: None,
                signal: true,
                memory: trigger::MEMORY_MIN,
                events: Some(2),
            }),
            promiscuous: true,
            joins: false,
            across_namespaces: false,
            peers: Peers {
                steal: true,
                ..Peers::default()
            },
            ..Options::new(Choice::Xdp, Memory::total(2 << 20))
        };
        for options in [plain, every] {
            let text = serde_json::to_string(&options).unwrap();
            let read: Options = serde_json::from_str(&text).unwrap();
            assert_eq!(read, options, "{text}");
        }
    }

    #[test]
    fn options_of_another_version_are_refused() {
        let mut value =
            serde_json::to_value(Options::new(Choice::Auto, Memory::total(2 << 20))).unwrap();
        value["colour"] = "red".into();
        let error = serde_json::from_value::<Options>(value).unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }

    /// The names that other programs meet.
    #[test]
    fn names_are_those_of_the_command_line() {
        let mut options = Options::new(Choice::Auto, Memory::total(2 << 20));
        options.verdicts = verdict::Set::parse(verdict::Kind::Xdp, "tx").ok();
        options.sample = Some(Sample::Every(5));
        options.duration = Some(Duration::from_secs(1));
        let value = serde_json::to_value(options).unwrap();
        assert_eq!(value["tap"], "auto");
        assert_eq!(value["mode"], "native_first");
        assert_eq!(value["sample"]["every"], 5);
        assert_eq!(value["duration_ns"], 1_000_000_000u64);
        assert_eq!(value["verdicts"]["actions"][0], "tx");
    }
}
