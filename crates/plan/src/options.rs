//! The options of a capture, as one plain value that can be stored and sent to another machine.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trawl_packet::verdict::VerdictSet;
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result, events};

use crate::filter::Filter;
use crate::outputs::nanoseconds;

/// Snap length of tcpdump.
pub const SNAPLEN: u32 = 262_144;

/// The taps by name, the values of `--tap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TapChoice {
    Auto,
    Xdp,
    /// The tail calls of an attached XDP program through a map.
    #[serde(alias = "hook")]
    Tailcall,
    Tc,
    Packet,
    /// A device of a libpcap.
    Pcap,
    /// Ports of a DPDK application.
    Dpdk,
    /// Only packets that the kernel drops.
    Drop,
}

impl TapChoice {
    /// The names of the taps, after `|` older ones, with their help.
    pub const ALL: [(&'static str, &'static str, Self); 8] = [
        ("auto", "", Self::Auto),
        ("xdp", "", Self::Xdp),
        ("tailcall|hook", "The tail calls of an attached XDP program through a map", Self::Tailcall),
        ("tc", "", Self::Tc),
        ("packet", "", Self::Packet),
        ("pcap", "A device of a libpcap: the system's, or the one that --libpcap names", Self::Pcap),
        ("dpdk", "Ports of a running DPDK application: -i dpdk:0 or -i dpdk:all, by the helper trawl-dpdk", Self::Dpdk),
        ("drop", "", Self::Drop),
    ];

    pub fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(.., choice)| *choice == self);
        found.and_then(|(names, ..)| names.split('|').next()).unwrap_or_default()
    }
}

impl fmt::Display for TapChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The taps of a capture: one, and the two that may be added to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taps {
    pub tap: TapChoice,
    /// Adds the tc tap to one at XDP.
    pub with_tc: bool,
    pub with_drops: bool,
}

impl Taps {
    /// Combines taps. If none is given, the tap is chosen according to the programs that are attached.
    pub fn of(choices: &[TapChoice]) -> Result<Self> {
        let at_xdp = |tap: &TapChoice| matches!(tap, TapChoice::Auto | TapChoice::Xdp | TapChoice::Tailcall);
        let with_tc = choices.contains(&TapChoice::Tc) && choices.iter().any(at_xdp);
        let with_drops = choices.contains(&TapChoice::Drop);
        let is_added = |tap: &TapChoice| *tap == TapChoice::Drop || (*tap == TapChoice::Tc && with_tc);
        let mut others = choices.iter().copied().filter(|tap| !is_added(tap));
        let tap = match (others.next(), with_drops) {
            (Some(tap), _) => tap,
            (None, true) => TapChoice::Drop,
            (None, false) => TapChoice::Auto,
        };
        if others.next().is_some() {
            return Err(Error::usage(
                "cannot use these taps together",
                "only tc can be combined with xdp or tailcall, and drop with any other tap",
            )
            .fix("name one tap, or some of --tap xdp,tc,drop"));
        }
        Ok(Self { tap, with_tc, with_drops })
    }

    /// Returns the default options of a capture with these taps.
    pub fn usual(self) -> CaptureOptions {
        CaptureOptions {
            with_tc: self.with_tc,
            drops: self.with_drops.then(Drops::default),
            promiscuous: true,
            ..CaptureOptions::new(self.tap, Memory::Usual)
        }
    }
}

/// Direction of the wanted packets.
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

/// Attach mode of trawl's own XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the driver if possible, else in the stack.
    #[default]
    NativeFirst,
    Native,
    Skb,
}

impl Mode {
    /// Returns the only acceptable mode, if one was requested.
    pub fn asked(self) -> Option<XdpMode> {
        match self {
            Self::NativeFirst => None,
            Self::Native => Some(XdpMode::Native),
            Self::Skb => Some(XdpMode::Skb),
        }
    }
}

/// The end of an XDP program at which a packet is recorded.
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

/// The XDP programs on an interface to capture at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Programs {
    /// The attached program.
    Attached,
    /// The attached program and all after it.
    All,
    Named(String),
    Id(u32),
}

impl Programs {
    /// Parses `all`, a number, or a name.
    pub fn parse(text: &str) -> Self {
        match text.parse() {
            Ok(id) => Self::Id(id),
            Err(_) if text == "all" => Self::All,
            Err(_) => Self::Named(text.to_owned()),
        }
    }

    /// Returns true if a program after the attached one is chosen.
    pub fn mean(&self, name: &str, id: u32) -> bool {
        match self {
            Self::Attached => false,
            Self::All => true,
            Self::Named(wanted) => wanted == name,
            Self::Id(wanted) => *wanted == id,
        }
    }
}

/// The clock of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeSource {
    /// The system's clock, read at the hook.
    #[default]
    System,
    /// The network card's clock if it stamped the packet, else the system's.
    Hardware,
}

/// Frequency at which the system's clock is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stamps {
    /// For the first packets of each poll, and then for about one packet every 1 to 2 µs.
    #[default]
    Auto,
    /// For each packet.
    Precise,
    /// Once a poll.
    Poll,
}

/// Number of packets at the start of a poll that have a reading each, and the maximum distance of later readings, in
/// packets. If packets arrive slowly, the distance is shorter.
const AUTO_FIRST: u32 = 4;
const AUTO_EVERY: u32 = 16;

/// The records since the end of the last poll for which the clock is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readings {
    pub first: u32,
    /// Later records whose number has none of these bits are stamped.
    pub mask: u32,
    /// More records are stamped if packets arrive slowly.
    pub follow: bool,
}

impl Stamps {
    /// Returns `None` if all records are stamped.
    pub fn readings(self) -> Option<Readings> {
        let (first, mask, follow) = match self {
            Self::Auto => (AUTO_FIRST, AUTO_EVERY - 1, true),
            Self::Precise => return None,
            Self::Poll => (1, u32::MAX >> 1, false),
        };
        Some(Readings { first, mask, follow })
    }

    pub fn describe(self) -> String {
        match self {
            Self::Auto => format!(
                ", read for the first {AUTO_FIRST} packets of each poll and every 1 to 2 µs after them, every {AUTO_EVERY}th at least"
            ),
            Self::Precise => String::new(),
            Self::Poll => ", read once a poll".to_owned(),
        }
    }
}

/// Metadata written with each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Meta {
    pub flags: bool,
    pub queue: bool,
    pub id: bool,
    pub verdict: bool,
}

impl Meta {
    pub const FULL: Self = Self { flags: true, queue: true, id: true, verdict: true };
    pub const NONE: Self = Self { flags: false, queue: false, id: false, verdict: false };
}

impl Default for Meta {
    fn default() -> Self {
        Self::FULL
    }
}

/// Form of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recording {
    pub meta: Meta,
    pub stamps: Stamps,
    /// Number of segments of GSO packets, which a store's index has.
    pub segments: bool,
}

/// A share of the matching packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sample {
    /// Each packet with a chance of one in N, regardless of patterns in the traffic.
    Random(u32),
    /// The first of every N packets, on each CPU separately.
    Every(u32),
}

/// Most memory for records that are not yet written, in bytes. A capture begins with little, and takes more as needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// 256 MiB, less on machines with little memory.
    #[default]
    Usual,
    Total(u64),
    ForEachCpu(u64),
}

/// The request for a capture, as plain values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureOptions {
    pub tap: TapChoice,
    /// The tc tap in addition to one at XDP.
    pub with_tc: bool,
    /// The kernel's drops, in addition to the tap's packets or alone.
    pub drops: Option<Drops>,
    /// With `None`, packets are recorded in all directions that the tap sees.
    pub direction: Option<Direction>,
    /// With `None`, the tap need not be one at an XDP program.
    pub programs: Option<Programs>,
    pub at: Option<At>,
    /// Record only packets that met one of these verdicts.
    pub verdicts: Option<VerdictSet>,
    pub mode: Mode,
    pub hook: Option<PathBuf>,
    pub time: TimeSource,
    pub filter: Option<Filter>,
    pub filter_at: Option<At>,
    /// Only packets received or sent by this queue.
    pub queue: Option<u32>,
    /// Only packets handled on this CPU.
    pub cpu: Option<u32>,
    /// A sample of the matching packets.
    pub sample: Option<Sample>,
    /// Maximum number of records a second.
    pub rate_limit: Option<u64>,
    pub snaplen: u32,
    /// Cuts packets after their headers.
    #[serde(default)]
    pub headers: bool,
    pub count: Option<u64>,
    /// Records do not wait for others on their way to an output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prompt: bool,
    #[serde(default, rename = "duration_ns", with = "nanoseconds::option")]
    pub duration: Option<Duration>,
    /// Keeps one record of a packet that several points see; it waits this long for further sightings.
    #[serde(default, rename = "once_ns", with = "nanoseconds::option")]
    pub once: Option<Duration>,
    /// Leaves out packets that another point saw within this time.
    #[serde(default, rename = "dedup_ns", with = "nanoseconds::option", skip_serializing_if = "Option::is_none")]
    pub dedup: Option<Duration>,
    pub memory: Memory,
    pub recording: Recording,
    /// Writes packets only around events.
    #[serde(default)]
    pub trigger: Option<TriggerPlan>,
    /// Names the process of each packet.
    #[serde(default)]
    pub process: Option<ProcessPlan>,
    pub promiscuous: bool,
    /// Captures on interfaces that appear during the capture.
    #[serde(default)]
    pub joins: bool,
    /// Later interfaces may appear in other network namespaces than the first ones.
    #[serde(default)]
    pub across_namespaces: bool,
    pub peers: Peers,
}

/// Memory for packets before an event: minimum and default.
pub const TRIGGER_MEMORY_MIN: u64 = 1 << 20;
pub const TRIGGER_MEMORY_DEFAULT: u64 = 64 << 20;

/// The definition of events, and the extent written around one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerPlan {
    #[serde(rename = "before_ns", with = "nanoseconds")]
    pub before: Duration,
    #[serde(rename = "after_ns", with = "nanoseconds")]
    pub after: Duration,
    /// Matching packets are events.
    pub expression: Option<String>,
    /// Packets with such a verdict are events.
    pub verdicts: Option<VerdictSet>,
    /// SIGUSR2 is an event.
    pub signal: bool,
    /// Bytes of memory for the packets before an event.
    pub memory: u64,
    /// Number of events after which the capture ends.
    pub events: Option<u64>,
}

/// Data about a packet's process in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessDetail {
    /// The process's number, and a block with its name, path and user.
    #[default]
    Plain,
    /// The same, and the process's command line.
    Full,
    /// A comment of the packet, which every reader shows.
    Comment,
}

/// Data about processes to record, and the processes whose packets are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessPlan {
    pub detail: ProcessDetail,
    /// Permits a capture without the names of processes, if the kernel does not show all uses of sockets.
    pub optional: bool,
    /// Leaves out the programs that run at each use of a socket: the caller has its own.
    #[serde(skip)]
    pub without_uses: bool,
    /// This process and its children.
    pub process: Option<u32>,
    /// Processes of this name.
    pub name: Option<String>,
    /// Processes of this user.
    pub user: Option<u32>,
    /// Processes of this cgroup and of those below it: its path, its last component, its number, or a container's
    /// number.
    pub cgroup: Option<String>,
}

impl ProcessPlan {
    /// Returns true if packets of some processes are left out.
    pub fn filters(&self) -> bool {
        self.process.is_some() || self.name.is_some() || self.user.is_some() || self.cgroup.is_some()
    }
}

/// Options of the drop tap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drops {
    /// Only these reasons, by name.
    pub reasons: Option<Vec<String>>,
    /// Includes drops that are no losses.
    pub no_losses: bool,
    /// Records the call stack of each drop.
    pub stack: bool,
    /// Records the rule of nftables or the cgroup that drops each packet, where the kernel permits it.
    pub droppers: bool,
    /// Records each step of the packets chosen by the filter, instead of drops alone.
    pub follow: bool,
    /// Without a named interface: only events in these namespaces, by name, path or a process in each; empty for the
    /// whole machine. [`CURRENT`](trawl_sys::netns::CURRENT) stands for the caller's.
    pub namespaces: Vec<String>,
    /// Follows only packets first seen at these interfaces.
    pub entries: Vec<String>,
    /// Namespaces in which packets are followed; empty for all.
    pub within: Vec<String>,
}

/// Options of taps that depend on other libraries and applications.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Peers {
    /// Path of libpcap, if not the system's.
    pub library: Option<PathBuf>,
    /// File prefix of the DPDK application, if not the default.
    pub file_prefix: Option<String>,
    /// Permits taking packets from the network stack.
    pub steal: bool,
}

impl CaptureOptions {
    /// Returns true if no record may wait for others: the capture may end with any packet, or begin to write.
    pub fn is_prompt(&self) -> bool {
        self.prompt || self.count.is_some() || self.trigger.is_some()
    }

    /// Returns true if packets are followed through the kernel, instead of recorded at a hook.
    pub fn follows(&self) -> bool {
        self.drops.as_ref().is_some_and(|asked| asked.follow)
    }

    /// Returns the default options: all packets are recorded whole, until a signal arrives.
    pub fn new(tap: TapChoice, memory: Memory) -> Self {
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
            headers: false,
            count: None,
            duration: None,
            once: None,
            dedup: None,
            memory,
            recording: Recording::default(),
            trigger: None,
            process: None,
            promiscuous: false,
            joins: false,
            prompt: false,
            across_namespaces: false,
            peers: Peers::default(),
        }
    }

    /// Returns the number of records that the taps make at most. Records that are merged first are counted afterwards.
    pub fn record_limit(&self) -> Option<u64> {
        self.count.filter(|_| !self.merges())
    }

    /// Returns true if further sightings of a packet are left out.
    pub fn merges(&self) -> bool {
        self.once.is_some() || self.dedup.is_some()
    }

    /// Checks that the chosen CPU exists.
    pub fn check_cpu(&self) -> Result<()> {
        let cpus = events::cpu_count();
        match self.cpu.filter(|cpu| *cpu as usize >= cpus) {
            Some(wanted) => Err(Error::usage(
                format!("cannot choose packets of CPU {wanted}"),
                format!("this machine's CPUs are 0 to {}", cpus - 1),
            )),
            None => Ok(()),
        }
    }

    /// Rejects ends of a program that a capture cannot combine.
    pub fn check_ends(&self) -> Result<()> {
        let at = self.at.unwrap_or(At::Exit);
        if at.entry() && self.filter_at == Some(At::Exit) {
            return Err(Error::usage(
                "cannot combine --at entry with --filter-at exit",
                "the packet is recorded before the filter at the exit runs",
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
    use trawl_packet::verdict::VerdictKind;

    use super::*;

    #[test]
    fn options_survive_json() {
        let plain = CaptureOptions::new(TapChoice::Auto, Memory::Total(2 << 20));
        let every = CaptureOptions {
            drops: Some(Drops {
                reasons: Some(vec!["NO_SOCKET".to_owned()]),
                namespaces: vec!["red".to_owned()],
                ..Drops::default()
            }),
            direction: Some(Direction::Both),
            programs: Some(Programs::Named("filter".to_owned())),
            at: Some(At::Both),
            verdicts: Some(VerdictSet::parse(VerdictKind::Xdp, "drop,pass").unwrap()),
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
            dedup: Some(Duration::from_millis(5)),
            recording: Recording { meta: Meta::NONE, stamps: Stamps::Poll, segments: false },
            trigger: Some(TriggerPlan {
                before: Duration::from_millis(10),
                after: Duration::ZERO,
                expression: Some("icmp".to_owned()),
                verdicts: None,
                signal: true,
                memory: TRIGGER_MEMORY_MIN,
                events: Some(2),
            }),
            process: Some(ProcessPlan {
                detail: ProcessDetail::Full,
                name: Some("curl".to_owned()),
                ..ProcessPlan::default()
            }),
            promiscuous: true,
            joins: false,
            across_namespaces: false,
            peers: Peers { steal: true, ..Peers::default() },
            ..CaptureOptions::new(TapChoice::Xdp, Memory::Total(2 << 20))
        };
        for options in [plain, every] {
            let text = serde_json::to_string(&options).unwrap();
            let read: CaptureOptions = serde_json::from_str(&text).unwrap();
            assert_eq!(read, options, "{text}");
        }
    }

    #[test]
    fn options_of_another_version_are_refused() {
        let mut value = serde_json::to_value(CaptureOptions::new(TapChoice::Auto, Memory::Total(2 << 20))).unwrap();
        value["colour"] = "red".into();
        let error = serde_json::from_value::<CaptureOptions>(value).unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }

    /// Checks the names that other programs read.
    #[test]
    fn json_uses_the_names_of_the_command_line() {
        let mut options = CaptureOptions::new(TapChoice::Auto, Memory::Total(2 << 20));
        options.verdicts = VerdictSet::parse(VerdictKind::Xdp, "tx").ok();
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
