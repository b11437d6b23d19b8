//! The arguments of `trawl capture`, and what they mean in plain values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use trawl_kernel::layout::RECORD_MAX_CAPTURED;
use trawl_kernel::privilege::User;
use trawl_kernel::ring::Geometry;
use trawl_kernel::{Error, Result};
use trawl_packet::verdict;
use trawl_tap::Choice;
use trawl_tap::filter::Filter;
use trawl_tap::options::{
    At, Direction, Drops, Mode, Options, Programs, Recording, Sample, Stamps, TimeSource,
};

use super::beside::Wanted;
use super::drops::DropArgs;
use super::interfaces::Pattern;
use super::peers::PeerArgs;
use super::pod::PodArgs;
use super::recording::RecordingArgs;
use super::remote::HostArgs;
use super::stored::StoreArgs;
use super::tcpdump::{StampType, TcpdumpArgs};
use super::trigger::{self, TriggerArgs};
use crate::filter_file;
use crate::habits;
use crate::lines::LineArgs;
use crate::netns::NetnsArg;
use crate::units;
use crate::verifier_log::VerifierLog;

/// A record's size as a rule, in bytes.
const USUAL_RECORD: u64 = 2048;

/// Records packets at XDP, tc or a socket to a file for Wireshark, or shows them as lines
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interface to capture on, NAME or NAMESPACE:NAME; may be given several times. any: all interfaces that are up. Patterns
    /// name those that match: 'veth*', '*:eth0' of every named namespace. None with --tap drop alone
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    pub(super) interfaces: Vec<String>,
    #[command(flatten)]
    pub(super) netns: NetnsArg,
    /// Where to see the packets; tc may be combined with xdp or hook, drop with any: xdp,tc,drop
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    tap: Vec<TapName>,
    /// Which way the packets go [default: in for the xdp and hook taps, inout for tc and packet]
    #[arg(short = 'Q', long, value_enum, value_name = "WAY")]
    direction: Option<DirectionName>,
    /// Which of the attached XDP programs to look at: a name, an id, or all
    #[arg(long, visible_alias = "prog", value_name = "NAME|ID|all")]
    program: Option<String>,
    /// At which end of the XDP program to record [default: exit]
    #[arg(long, value_enum)]
    at: Option<AtName>,
    /// Record only packets with these verdicts: aborted, drop, pass, tx, redirect
    #[arg(long, value_name = "LIST")]
    verdict: Option<String>,
    /// The pinned program array through which the XDP program makes its tail call [default: found by trawl]
    #[arg(long, value_name = "PATH")]
    hook: Option<PathBuf>,
    /// During the capture, add hooks to the attached XDP program, which was loaded from this file: the same
    /// program with the same maps; the program without hooks is restored at the end
    #[arg(long, value_name = "FILE.o", conflicts_with = "hook")]
    pub(super) tappable: Option<PathBuf>,
    /// Write the packets to this file, or to standard output with '-'; several times for several outputs. The name may be followed by
    /// ,snaplen=N ,format=pcap|pcapng ,compress=zstd|lz4|gzip|none for this output alone
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub(super) write: Vec<PathBuf>,
    /// What is particular to the first of them.
    #[arg(skip)]
    pub(super) first: Wanted,
    /// And to the others.
    #[arg(skip)]
    pub(super) others: Vec<Wanted>,
    /// How much of a packet is in memory, if outputs cut it.
    #[arg(skip)]
    kept: Option<u32>,
    /// Format of the file [default: pcap for a FILE that ends in .pcap, else pcapng]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Permissions of created files, in octal [default: 600, less what the umask takes away]
    #[arg(long, value_name = "MODE", value_parser = units::file_mode)]
    pub(super) file_mode: Option<u32>,
    /// Bytes to keep of each packet; 0 for all
    #[arg(
        short = 's',
        long = "snapshot-length",
        visible_alias = "snaplen",
        value_name = "SNAPLEN",
        default_value_t = 0
    )]
    pub(super) snaplen: u64,
    /// End after this many recorded packets
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    pub(super) recording: RecordingArgs,
    #[command(flatten)]
    pub(super) verifier_log: VerifierLog,
    /// Leave the interface's promiscuous mode as it is
    #[arg(short = 'p', long = "no-promiscuous-mode")]
    no_promiscuous: bool,
    /// List the interfaces, and the tap that a capture on each would use
    #[arg(short = 'D', long)]
    pub(super) list_interfaces: bool,
    /// Show figures on standard error this often
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(super) stats: Option<Duration>,
    /// Change to this user once the capture is set up; files belong to it, and -z runs as it
    ///
    /// Interfaces that appear later and fit a pattern of -i are not captured then.
    #[arg(short = 'Z', long = "relinquish-privileges", value_name = "USER", value_parser = user)]
    pub(super) user: Option<User>,
    /// Write the account as JSON to this file, or to standard output with '-'
    #[arg(long, value_name = "FILE")]
    pub(super) summary: Option<PathBuf>,
    /// How to attach trawl's own XDP program [default: native, and skb where the driver cannot]
    #[arg(long, value_enum)]
    mode: Option<ModeName>,
    /// The clock for time stamps, and how often it is read
    #[arg(long = "time", value_enum, default_value_t = TimeName::Auto)]
    clock: TimeName,
    /// Show packets as JSON, one object a line
    #[arg(long, conflicts_with = "write")]
    pub(super) json: bool,
    /// Show each packet's identifier as CPU and number: the same for all sightings of one packet, at entry and exit, after
    /// a redirect, at tc and where it is dropped
    #[arg(long, conflicts_with = "write")]
    pub(super) id: bool,
    /// Print errors and the account only
    #[arg(short = 'q', long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) trigger: TriggerArgs,
    #[command(flatten)]
    pub(super) remote: HostArgs,
    #[command(flatten)]
    pub(super) store: StoreArgs,
    #[command(flatten)]
    pub(super) pod: PodArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    pub(super) drops: DropArgs,
    #[command(flatten)]
    peers: PeerArgs,
    #[command(flatten)]
    pub(super) lines: LineArgs,
    #[command(flatten)]
    pub(super) tcpdump: TcpdumpArgs,
    /// Which packets, as tcpdump takes it: 'tcp port 80 and host 10.0.0.1'. Options may follow it
    #[arg(
        value_name = "EXPRESSION",
        help_heading = "Arguments",
        allow_negative_numbers = true
    )]
    expression: Vec<String>,
}

/// Which packets are recorded.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filtering")]
struct ChoiceArgs {
    /// Read the expression from a file, as tcpdump's -F; `#` begins a comment
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with_all = ["expression", "cbpf"])]
    filter_file: Option<PathBuf>,
    /// A filter as a classic program, as `tcpdump -ddd` prints it, instead of an expression
    #[arg(long, value_name = "PROGRAM", conflicts_with = "expression")]
    cbpf: Option<String>,
    /// Apply the expression to the packet inside a tunnel: VXLAN, GENEVE, GRE or IP-in-IP
    #[arg(long, conflicts_with = "cbpf")]
    inner: bool,
    /// Where the filter sees the packet: as it arrived at the XDP program, or as it left it
    #[arg(long, value_enum, value_name = "END")]
    filter_at: Option<FilterEnd>,
    /// Only packets of this receive or transmit queue
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// Only packets that are handled on this CPU
    #[arg(long, alias = "cpus", value_name = "N")]
    cpu: Option<u32>,
    /// One packet in N of those that match, chosen by chance
    #[arg(long, value_name = "1/N", value_parser = units::one_in, conflicts_with = "sample_every")]
    sample: Option<u32>,
    /// Every Nth packet of those that match, counted on each CPU by itself
    #[arg(long, value_name = "N", value_parser = units::one_in)]
    sample_every: Option<u32>,
    /// Record at most this many packets a second, and count the others
    #[arg(long, value_name = "PPS", value_parser = units::rate)]
    limit_rate: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FilterEnd {
    Entry,
    Exit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TapName {
    Auto,
    Xdp,
    Hook,
    Tc,
    Packet,
    /// A device of a libpcap: the system's, or the one that --libpcap names
    Pcap,
    /// Ports of a running DPDK application: -i dpdk:0 or -i dpdk:all, by the helper trawl-dpdk
    Dpdk,
    Drop,
}

/// Directions that -Q takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectionName {
    In,
    Out,
    Inout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtName {
    Entry,
    Exit,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Pcapng,
    Pcap,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeName {
    Native,
    Skb,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TimeName {
    /// The system's, for the first packets of each poll of the device and every 1 to 2 µs after them, where that can be
    Auto,
    /// The system's, for each packet
    #[value(alias = "system")]
    Precise,
    /// The system's, once a poll
    Poll,
    /// The network card's, where it stamped the packet
    Hw,
}

impl Args {
    /// What is named by -i are devices of a libpcap.
    pub(super) fn names_devices(&self) -> bool {
        self.tap.contains(&TapName::Pcap)
    }

    /// What is named by -i are ports of a DPDK application.
    pub(super) fn names_ports(&self) -> bool {
        self.tap.contains(&TapName::Dpdk)
    }

    pub(super) fn wants_hardware_time(&self) -> bool {
        match self.tcpdump.time_stamp_type {
            Some(stamps) => matches!(stamps, StampType::Adapter),
            None => matches!(self.clock, TimeName::Hw),
        }
    }

    /// Whether the tc tap goes with one at XDP.
    fn with_tc(&self) -> bool {
        let at_xdp = |tap: &TapName| matches!(tap, TapName::Auto | TapName::Xdp | TapName::Hook);
        self.tap.contains(&TapName::Tc) && self.tap.iter().any(at_xdp)
    }

    /// The tap for packets that come by, and what is asked of the one at drops.
    fn taps(&self) -> Result<(Choice, Option<Drops>)> {
        let wants_drops = self.tap.contains(&TapName::Drop);
        let beside =
            |tap: &TapName| *tap == TapName::Drop || (*tap == TapName::Tc && self.with_tc());
        let mut others = self.tap.iter().filter(|tap| !beside(tap));
        let tap = match others.next() {
            None => Choice::Drop,
            Some(TapName::Auto) if self.tappable.is_some() => Choice::Hook,
            Some(TapName::Auto) => Choice::Auto,
            Some(TapName::Xdp) => Choice::Xdp,
            Some(TapName::Hook) => Choice::Hook,
            Some(TapName::Tc) => Choice::Tc,
            Some(TapName::Packet) => Choice::Packet,
            Some(TapName::Pcap) => Choice::Pcap,
            Some(TapName::Dpdk) => Choice::Dpdk,
            Some(TapName::Drop) => Choice::Drop,
        };
        if others.next().is_some() {
            return Err(Error::usage(
                "cannot use these taps together",
                "only tc goes with xdp or hook, and drop with any other one",
            )
            .fix("name one tap, or some of --tap xdp,tc,drop"));
        }
        let is_named = !self.interfaces.is_empty() || !self.pod.pods.is_empty();
        if !is_named && tap != Choice::Drop && !self.list_interfaces {
            let first = self
                .expression
                .first()
                .filter(|word| habits::is_interface(word));
            if let Some(interface) = first {
                let why = format!("{interface} is an interface, and no filter");
                return Err(Error::usage("cannot capture", why).fix(format!(
                    "type: trawl capture -i {}",
                    self.expression.join(" ")
                )));
            }
            return Err(Error::usage("cannot capture", "no interface is named")
                .fix("name one with -i (--interface); trawl capture -D lists them"));
        }
        match wants_drops {
            true => Ok((tap, Some(self.drops.chosen(self.netns.as_deref())))),
            false => self.drops.refuse().map(|()| (tap, None)),
        }
    }

    /// What packets are written as to the first output.
    pub(super) fn format(&self) -> Format {
        let by_name = self.write.first().map(|path| self.format_of(path));
        self.first.format.or(by_name).unwrap_or(Format::Pcapng)
    }

    /// As was said, or as the name of a file ends.
    pub(super) fn format_of(&self, path: &Path) -> Format {
        let name = path.to_string_lossy();
        let packed = [".zst", ".lz4", ".gz"];
        let name = packed.iter().find_map(|end| name.strip_suffix(end));
        let by_name = match name.unwrap_or(&path.to_string_lossy()).ends_with(".pcap") {
            true => Format::Pcap,
            false => Format::Pcapng,
        };
        self.format.unwrap_or(by_name)
    }

    /// As it was typed, or as its file has it.
    pub(super) fn expression(&self) -> Result<String> {
        match &self.choice.filter_file {
            Some(path) => filter_file::read(path),
            None => Ok(self.expression.join(" ")),
        }
    }

    fn filter(&self) -> Result<Option<Filter>> {
        let expression = self.expression()?;
        Ok(match &self.choice.cbpf {
            Some(program) => Some(Filter::Classic(program.clone())),
            None if expression.is_empty() && self.choice.inner => {
                return Err(Error::usage(
                    "cannot look inside tunnels",
                    "--inner needs an expression to ask there",
                ));
            }
            None if expression.is_empty() => None,
            None if self.choice.inner => Some(Filter::Inner(expression)),
            None => Some(Filter::Expression(expression)),
        })
    }

    pub fn options(&self) -> Result<Options> {
        self.tcpdump.refuse()?;
        let (tap, drops) = self.taps()?;
        self.peers.check(tap)?;
        let kind = verdict::Kind::Xdp;
        let verdicts = self
            .verdict
            .as_deref()
            .map(|list| verdict::Set::parse(kind, list))
            .transpose();
        let verdicts = verdicts.map_err(|e| Error::usage("cannot understand --verdict", e))?;
        let trigger = self.trigger.plan(self.recording.meta()?.verdict)?;
        if let Some(plan) = &trigger {
            trigger::check(plan, verdicts.as_ref(), self.count)?;
        }
        Ok(Options {
            tap,
            // Events and notes of drops are tied to the interfaces of the beginning; who gives up root's rights cannot
            // attach to others later.
            joins: drops.is_none()
                && trigger.is_none()
                && self.user.is_none()
                && (!Pattern::all(self).is_empty() || !self.pod.pods.is_empty()),
            across_namespaces: Pattern::all(self).iter().any(Pattern::spans_namespaces),
            drops,
            with_tc: self.with_tc(),
            direction: self.direction.map(|way| match way {
                DirectionName::In => Direction::In,
                DirectionName::Out => Direction::Out,
                DirectionName::Inout => Direction::Both,
            }),
            programs: self.program.as_deref().map(Programs::parse),
            at: self.at.map(|at| match at {
                AtName::Entry => At::Entry,
                AtName::Exit => At::Exit,
                AtName::Both => At::Both,
            }),
            verdicts,
            mode: match self.mode {
                None => Mode::NativeFirst,
                Some(ModeName::Native) => Mode::Native,
                Some(ModeName::Skb) => Mode::Skb,
            },
            hook: self.hook.clone(),
            time: match self.wants_hardware_time() {
                false => TimeSource::System,
                true => TimeSource::Hardware,
            },
            filter: self.filter()?,
            filter_at: self.choice.filter_at.map(|end| match end {
                FilterEnd::Entry => At::Entry,
                FilterEnd::Exit => At::Exit,
            }),
            queue: self.choice.queue,
            cpu: self.choice.cpu,
            sample: match (self.choice.sample, self.choice.sample_every) {
                (Some(number), _) => Some(Sample::Random(number)),
                (None, every) => every.map(Sample::Every),
            },
            rate_limit: self.choice.limit_rate,
            snaplen: match self.kept {
                Some(bytes) => bytes,
                None => snaplen(self.snaplen)?,
            },
            count: self.count,
            duration: self.duration,
            geometry: self.geometry()?,
            recording: Recording {
                meta: self.recording.meta()?,
                stamps: match self.clock {
                    TimeName::Auto => Stamps::Auto,
                    TimeName::Poll => Stamps::Poll,
                    TimeName::Precise | TimeName::Hw => Stamps::Precise,
                },
            },
            trigger,
            promiscuous: !self.no_promiscuous,
            peers: self.peers.resolve(),
        })
    }
}

impl Args {
    /// Packets that are printed need little memory, and a number of packets what these fill.
    fn geometry(&self) -> Result<Geometry> {
        let geometry = self.recording.geometry(self.tcpdump.buffer())?;
        let is_printed = self.write.is_empty() && self.store.store.is_none();
        Ok(match (is_printed, self.count) {
            (true, _) => geometry.growing_from(0),
            (false, Some(count)) => geometry.growing_from(count.saturating_mul(USUAL_RECORD)),
            (false, None) => geometry,
        })
    }

    /// Takes what is particular to each output off its name. As much of packets is kept as the longest output wants, and all
    /// for an expression that decides about events; the outputs then cut.
    pub(super) fn read_outputs(&mut self) -> Result<()> {
        let mut all: Vec<Wanted> = Vec::new();
        for text in &mut self.write {
            let wanted = Wanted::parse(text)?;
            text.clone_from(&wanted.path);
            all.push(wanted);
        }
        let common = snaplen(self.snaplen)?;
        let longest = match self.trigger.looks_at_packets() {
            true => Some(RECORD_MAX_CAPTURED as u32),
            false => all.iter().filter_map(|one| one.snaplen).max(),
        };
        self.kept = longest.filter(|longest| *longest > common);
        if self.kept.is_some() {
            for one in &mut all {
                one.snaplen.get_or_insert(common);
            }
        }
        let mut all = all.into_iter();
        self.first = all.next().unwrap_or_default();
        self.others = all.collect();
        Ok(())
    }
}

fn user(name: &str) -> std::result::Result<User, String> {
    User::find(name).map_err(|error| error.why().to_owned())
}

/// Zero means all, as it does for tcpdump.
pub(super) fn snaplen(asked: u64) -> Result<u32> {
    match u32::try_from(asked) {
        Ok(0) => Ok(RECORD_MAX_CAPTURED as u32),
        Ok(bytes) if bytes as usize <= RECORD_MAX_CAPTURED => Ok(bytes),
        _ => Err(Error::usage(
            format!("cannot keep {asked} bytes of each packet"),
            format!("{RECORD_MAX_CAPTURED} is the limit"),
        )
        .fix("leave out -s to keep all of it")),
    }
}
