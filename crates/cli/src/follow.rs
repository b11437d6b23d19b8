//! `trawl follow`: one packet's path through the kernel's network stack, to its end.

mod file;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use trawl_bpf::layout::drop::FOLLOW_BRANCH;
use trawl_bpf::{functions, program};
use trawl_capture::assembly::HostFeatures;
use trawl_capture::event::Event;
use trawl_capture::options::{At, CaptureOptions, Drops, Memory, MemorySize};
use trawl_capture::point::Point;
use trawl_capture::session::{self, Ended, Observer};
use trawl_capture::summary::Summary;
use trawl_capture::taps::drop::Along;
use trawl_packet::decode::{Transport, summary};
use trawl_packet::freed::Freed;
use trawl_packet::verdict::VerdictKind;
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_sys::counters;
use trawl_sys::netlink::{LinkRecord, Netlink, veth_peer_in};
use trawl_sys::netns::{Namespace, NamespaceSearch};
use trawl_sys::privilege::Capabilities;
use trawl_sys::{Error, Result, clock, process};
use trawl_view::print::{PrintOptions, Printer, Timestamp};
use trawl_view::record::{PacketView, RingPackets, ShortId};

use crate::args::{LibpcapArg, NamespacesArg};
use crate::subject::{Subject, SubjectArgs, TO_ENTER};
use crate::why::{SNAPLEN, Watcher, watching_drops};
use crate::{capture, json, terminal, units};

use file::StepFile;

/// Time after a path's last step at which the path is reported.
const PATIENCE_NS: u64 = 100_000_000;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time after which a TCP segment or a datagram that reached the protocol at this host and was not dropped is the
/// protocol's: it frees some without a further step. Losses of records are known by then.
const SETTLED_NS: u64 = 1_000_000_000;
/// Memory for steps at the beginning. More is added on demand, but a burst would come before it.
const AT_FIRST: u64 = 64 << 20;
/// Time after which a packet is no longer recognized: bpf/include/drop.h.
const AGE_NS: u64 = 10_000_000_000;

/// Shows the path of single packets through the kernel
///
/// Steps are XDP, GRO, tc, netfilter, routing, queues, devices and namespaces, to the socket or the point where each
/// packet ended. With a command, the packets of its processes, and the answers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "N", default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    #[command(flatten)]
    namespaces: NamespacesArg,
    /// Only packets that are first seen at this interface, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", add = crate::completion::interfaces())]
    interfaces: Vec<String>,
    /// Look at netfilter, tc and XDP in these network namespaces too; with --all-namespaces, in these alone [default:
    /// those in which packets are first seen]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    within: Vec<String>,
    /// Memory for steps that are not printed yet; while half of it is in use, new packets are not followed and count as
    /// lost [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Write each step to this pcapng file, with an interface for each step, and print no paths
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print the paths as well as write them
    #[arg(long, requires = "write")]
    print: bool,
    /// One JSON object a line for each packet
    #[arg(long)]
    json: bool,
    /// Filter in tcpdump's syntax
    #[arg(value_name = "FILTER", required_unless_present = "subject")]
    expression: Vec<String>,
    #[command(flatten)]
    subject: SubjectArgs,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

impl Args {
    /// Returns the namespaces in which packets are first seen; none for all.
    fn names(&self) -> Vec<String> {
        match self.subject.words.is_empty() {
            true => self.namespaces.names(),
            false => self.namespaces.names_for_command(),
        }
    }

    /// Returns the namespaces with netfilter, tc and XDP programs to look at; none for all.
    fn within(&self) -> Vec<String> {
        let of_interfaces = self.interfaces.iter().map(|name| name.split_once(':'));
        let named: Option<Vec<_>> = of_interfaces.collect();
        let mut names = match named {
            Some(named) if !named.is_empty() => named.into_iter().map(|(name, _)| name.to_owned()).collect(),
            _ => self.names(),
        };
        names.extend(self.within.iter().cloned());
        names.sort();
        names.dedup();
        names
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let drops = Drops {
        no_losses: true,
        follow: true,
        namespaces: args.names(),
        entries: args.interfaces.clone(),
        within: args.within(),
        ..Drops::default()
    };
    let along = Along::find(&drops)?;
    let namespaces = along.namespaces.clone();
    let sites = along.with_programs();
    let mut options = CaptureOptions {
        at: Some(At::Both),
        memory: Memory { size: args.memory.map_or(MemorySize::Usual, MemorySize::Total), at_first: Some(AT_FIRST) },
        ..watching_drops(drops, &args.expression, args.duration)
    };
    let losses = Rc::new(Cell::new(0));
    let mut observer = Follower {
        watcher: Watcher {
            json: args.json,
            started: |point| {
                let is_whole = point.site.is_none();
                is_whole.then(|| format!("following packets on {}", point.label))
            },
            subject: Subject::prepare(&args.subject.words, &mut options, true, None)?,
        },
        losses: Rc::clone(&losses),
    };
    let mut attached = session::attach(&sites, &options, HostFeatures::this(), &mut observer)?;
    observer.watcher.watch_subject(&attached)?;
    let file = args.write.as_deref();
    let file = file.map(|path| capture::outputs::one_file(path, &mut attached));
    let file = file.transpose()?.map(StepFile::new).transpose()?;
    let to_enter = match &observer.watcher.subject {
        Some(_) => TO_ENTER,
        None => Capabilities::empty(),
    };
    let confined = attached.confine(None, to_enter)?;
    let mut sink = Following {
        packets: capture::shown::packets(confined.session()),
        open: BTreeMap::new(),
        joined: Joined::default(),
        left: args.count,
        json: args.json,
        prints: args.write.is_none() || args.print,
        file,
        ends: BTreeMap::new(),
        devices: LastDevices::find(&namespaces),
        losses: Rc::clone(&losses),
        reported: Reported::default(),
        now: 0,
        came: false,
        looked: Instant::now(),
    };
    let (summary, ended) = confined.run(&mut sink, &mut observer)?;
    losses.set(lost_records(&summary));
    sink.end_all()?;
    let status = observer.watcher.subject.map_or(0, Subject::end);
    if let Some(file) = sink.file.take() {
        file.finish(&summary.total)?;
    }
    sink.tell_ends();
    let text = format!("steps: {}", summary.total);
    json::event_as(&Event::Account(summary.total), &text);
    match ended {
        Ended::Signal | Ended::Duration | Ended::Count | Ended::Size | Ended::Command => Ok(ExitCode::from(status)),
        Ended::Output(error) => Err(error),
        other => Err(Error::failed("cannot continue to follow packets", other)),
    }
}

/// Returns the number of lost steps, without the packets that are not followed.
fn lost_records(summary: &Summary) -> u64 {
    let lost = summary.total.lost.iter();
    let of_followed = lost.filter(|(reason, _)| *reason != "not_followed");
    of_followed.map(|(_, count)| count).sum()
}

/// A reporter that also watches the losses.
struct Follower {
    watcher: Watcher,
    losses: Rc<Cell<u64>>,
}

impl Observer for Follower {
    fn event(&mut self, event: &Event) {
        self.watcher.event(event);
    }

    fn started(&mut self, points: &[Point]) {
        self.watcher.started(points);
    }

    fn entered(&mut self) -> Vec<Namespace> {
        self.watcher.entered()
    }

    fn is_urgent(&mut self) -> bool {
        self.watcher.is_urgent()
    }

    fn is_over(&mut self) -> bool {
        self.watcher.is_over()
    }

    fn figures(&mut self, summary: &Summary) {
        self.watcher.figures(summary);
    }

    fn looked_after(&mut self, summary: &mut dyn FnMut() -> Summary) {
        self.losses.set(lost_records(&summary()));
    }
}

struct Following {
    packets: RingPackets,
    open: BTreeMap<u64, PacketPath>,
    /// Packets that receive offload joined recently.
    joined: Joined,
    /// Number of packets whose path is still to be shown.
    left: u64,
    json: bool,
    prints: bool,
    file: Option<StepFile>,
    /// Number of packets by their end.
    ends: BTreeMap<End, u64>,
    devices: LastDevices,
    /// Number of steps that were lost so far.
    losses: Rc<Cell<u64>>,
    reported: Reported,
    /// The time of the last record, or later.
    now: u64,
    /// Set if records arrived since the last check of paths.
    came: bool,
    /// Time of the last check for paths that did not go on.
    looked: Instant,
}

impl Following {
    fn take(&mut self, packet: &PacketView<'_>) -> Result<()> {
        let Some(id) = packet.packet_id else {
            return Ok(());
        };
        self.now = self.now.max(packet.timestamp_ns);
        self.came = true;
        let Some(seen) = Seen::new(packet) else {
            return Ok(());
        };
        if !self.open.contains_key(&id) && self.reported.has(id) {
            return Ok(());
        }
        if self.left > 0
            && let Some(file) = &mut self.file
        {
            file.add(packet, &seen.step)?;
        }
        self.joined.note(id, &seen);
        let path = self.open.entry(id).or_insert_with(|| PacketPath::new(id, packet, &seen, self.losses.get()));
        path.add(packet, seen);
        if path.is_over()
            && let Some(path) = self.open.remove(&id)
        {
            self.tell(&path)?;
        }
        Ok(())
    }

    /// Ends paths that have not gone on for a while.
    fn end_old(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        // Records may be read long after they were made; the clock counts only while none are left to read.
        if !std::mem::take(&mut self.came) {
            self.now = self.now.max(clock::wall());
        }
        let now = self.now;
        let joined = &self.joined;
        let is_old = |path: &PacketPath| {
            let idle = now.saturating_sub(path.last_time());
            let is_complete = path.may_be_over() || joined.has(path).is_some();
            idle > AGE_NS || idle > SETTLED_NS && path.is_at_protocol() || idle > PATIENCE_NS && is_complete
        };
        let old: Vec<u64> = self.open.iter().filter(|(_, path)| is_old(path)).map(|(id, _)| *id).collect();
        for id in old {
            if let Some(path) = self.open.remove(&id) {
                self.close(path)?;
            }
        }
        self.joined.forget_before(now.saturating_sub(AGE_NS));
        Ok(())
    }

    fn end_all(&mut self) -> Result<()> {
        for path in std::mem::take(&mut self.open).into_values() {
            self.close(path)?;
        }
        Ok(())
    }

    fn close(&mut self, mut path: PacketPath) -> Result<()> {
        if path.end == End::Gap && self.devices.ends(&path) {
            path.end = End::Sent;
        }
        if matches!(path.end, End::Gap | End::Sent | End::Unwanted)
            && let Some(program) = self.devices.program_after(&path)
        {
            path.end = End::AtXdp;
            path.program = Some(program.clone());
        }
        if path.end == End::Gap && path.is_at_protocol() && path.losses == self.losses.get() {
            path.end = End::Consumed;
        }
        if matches!(path.end, End::Gap | End::Consumed)
            && let Some(into) = self.joined.has(&path)
        {
            path.end = End::Joined;
            path.joined_into = Some(into);
        }
        self.tell(&path)
    }

    fn tell(&mut self, path: &PacketPath) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        if self.left == 0 {
            process::interrupt(std::process::id())?;
        }
        *self.ends.entry(path.end).or_default() += 1;
        self.reported.add(path.packet_id, path.last_time());
        if !self.prints {
            return Ok(());
        }
        let text = match self.json {
            true => json::line(path)?,
            false => path.to_string(),
        };
        terminal::write_out(&text)
    }
}

/// Packets whose path was reported lately. A last step, such as the end of a buffer after its socket, may be read after
/// that.
#[derive(Debug, Default)]
struct Reported {
    recent: HashSet<u64>,
    earlier: HashSet<u64>,
    since: u64,
}

impl Reported {
    fn add(&mut self, id: u64, time: u64) {
        if time.saturating_sub(self.since) > AGE_NS {
            self.earlier = std::mem::take(&mut self.recent);
            self.since = time;
        }
        self.recent.insert(id);
    }

    fn has(&self, id: u64) -> bool {
        self.recent.contains(&id) || self.earlier.contains(&id)
    }
}

/// Devices that packets leave this host by, or that encrypt them: transmitted packets are not seen as the same any
/// more. By namespace and name.
#[derive(Debug, Default)]
struct LastDevices {
    all: HashSet<(String, String)>,
    /// XDP programs on the other ends of cables.
    programs: HashMap<(String, String), String>,
}

impl LastDevices {
    fn find(namespaces: &[Namespace]) -> Self {
        let mut found = Self::default();
        let mut look = NamespaceSearch::default();
        for namespace in namespaces {
            // A namespace may be gone by now.
            let links = Netlink::open(Some(namespace)).and_then(|mut netlink| netlink.links());
            for link in links.unwrap_or_default() {
                let place = (counters::label(namespace), link.name.clone());
                match link.kind.as_deref() {
                    None if link.name != "lo" => {
                        found.all.insert(place);
                    }
                    Some("wireguard") => {
                        found.all.insert(place);
                    }
                    Some("veth") => {
                        let program = program_behind(&mut look, namespace, &link);
                        found.programs.extend(program.map(|program| (place, program)));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// Returns true if the packet's last step was its transmission by one of them.
    fn ends(&self, path: &PacketPath) -> bool {
        let place = path.transmitted_by();
        place.is_some_and(|place| self.all.contains(&place))
    }

    /// Returns the XDP program that received the packet after its last step.
    fn program_after(&self, path: &PacketPath) -> Option<&String> {
        self.programs.get(&path.transmitted_by()?)
    }
}

/// Names the XDP program on the other end of a cable.
fn program_behind(look: &mut NamespaceSearch, namespace: &Namespace, link: &LinkRecord) -> Option<String> {
    let peer = veth_peer_in(look, Some(namespace), link).ok()??;
    let id = peer.link.xdp.first()?.program_id;
    let name = program::open_by_id(id).and_then(|fd| functions::name_of(fd.as_fd()));
    let name = name.unwrap_or_else(|_| format!("with the id {id}"));
    let space = peer.namespace.as_ref().unwrap_or(namespace);
    Some(format!("{name} on {} ({})", peer.link.name, counters::label(space)))
}

impl Following {
    /// Tells the number of packets, and how they ended.
    fn tell_ends(&self) {
        let total: u64 = self.ends.values().sum();
        let ends = self.ends.iter();
        let ends: Vec<String> = ends.map(|(end, count)| format!("{count} {}", end.word())).collect();
        let packets = if total == 1 { "packet" } else { "packets" };
        let text = match ends.is_empty() {
            true => "no packet was followed".to_owned(),
            false => format!("{total} {packets}: {}", ends.join(", ")),
        };
        json::say("followed", json!({ "packets": total, "ends": self.ends }), &text);
    }
}

impl Writer for Following {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let mut packets = std::mem::take(&mut self.packets);
        let mut taken = Ok(());
        packets.each(blocks.bytes(), |packet, _| {
            if taken.is_ok() {
                taken = self.take(packet);
            }
        });
        self.packets = packets;
        taken?;
        self.file.iter_mut().try_for_each(StepFile::flush)?;
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.end_old().map(|()| Pressure::Idle)
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}

/// A step in its form for output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Step {
    pub step: String,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Duration, if both ends of the step were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The packet after this step, if addresses, ports or headers have changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<String>,
    /// The XDP program's verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Result of routing: `local`, or `forward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Kind of an end that is no loss: `no` (no socket wanted the packet), `copied` (a socket got a copy), or `done`
    /// (the packet was consumed).
    #[serde(skip_serializing_if = "Freed::is_loss")]
    pub loss: Freed,
    /// The function in which the packet ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The socket that received the packet: `udp:53`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The process that read the packet, or that has the socket open: `name[pid]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Number of segments that the packet stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    /// The packet's state in connection tracking: `new`, `established`, `related`, followed by `,reply` in that
    /// direction; `untracked`. Absent before it is tracked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conntrack: Option<String>,
    /// Translation in this step: `snat`, `dnat`, or both. Replies are translated back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nat: Option<&'static str>,
    /// Evidence that it is the same packet, other than its socket buffer: `memory` or `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// The end of a timed section that a record marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Only,
    First,
    Last,
}

/// The position of a TCP segment in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flow: (IpAddr, u16, IpAddr, u16),
    pub sequence: u32,
    pub length: u32,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub step: Step,
    pub side: Side,
    /// Number among the packet's steps; `None` if it was not counted.
    pub number: Option<u32>,
    /// The fields of a packet's line that may change along the path.
    pub outline: Outline,
    pub segment: Option<Segment>,
}

/// The protocol, addresses and ports.
pub type Outline = [u8; OUTLINE];
const OUTLINE: usize = 40;
const SOCKET: &str = "socket";
/// Marks a step of a connection whose addresses are translated, until it is known whether this step does.
const TRANSLATED: &str = "nat";
const ETHERNET: u16 = 1;
const ETHERNET_LENGTH: usize = 14;

impl Seen {
    /// Parses a record; `None` unless it is a step of a followed packet.
    pub fn new(packet: &PacketView<'_>) -> Option<Self> {
        let (step, side, number) = match packet.comment.and_then(|text| text.strip_prefix("step=")) {
            Some(comment) => of_stack(packet, comment),
            None => {
                let (step, side) = at_xdp(packet)?;
                (step, side, None)
            }
        };
        let joins = matches!(step.step.as_str(), "gro" | "received");
        Some(Self { step, side, number, outline: outline(packet), segment: joins.then(|| segment(packet)).flatten() })
    }
}

fn of_stack(packet: &PacketView<'_>, comment: &str) -> (Step, Side, Option<u32>) {
    let word = |key: &str| {
        let mut pairs = comment.split(' ').filter_map(|word| word.split_once('='));
        let found = pairs.find(|(one, _)| *one == key);
        found.map(|(_, value)| value.to_owned())
    };
    let side = match word("side").as_deref() {
        Some("first") => Side::First,
        Some("last") => Side::Last,
        _ => Side::Only,
    };
    let name = comment.split(' ').next().unwrap_or_default();
    let at_socket = |key: &str| (name == SOCKET).then(|| word(key)).flatten();
    let owner = at_socket("comm").zip(at_socket("pid"));
    let step = Step {
        step: name.to_owned(),
        time_ns: packet.timestamp_ns,
        interface: packet.interface.filter(|name| *name != "unknown").map(str::to_owned),
        netns: word("netns"),
        reason: word("drop"),
        loss: word("loss").map_or(Freed::Lost, |word| Freed::of_word(&word)),
        at: word("at"),
        socket: at_socket("sock"),
        by: word("by").or_else(|| owner.map(|(name, id)| format!("{name}[{id}]"))),
        segments: word("segs").and_then(|count| count.parse().ok()),
        conntrack: word("ct"),
        nat: word("nat").map(|_| TRANSLATED),
        found: word("found").filter(|how| how != "new" && how != "buffer"),
        ..Step::default()
    };
    let number = word("number").and_then(|number| number.parse().ok());
    (step, side, number)
}

/// Returns the entry and the exit of an XDP program.
fn at_xdp(packet: &PacketView<'_>) -> Option<(Step, Side)> {
    let hook = packet.hook?;
    let side = match hook.starts_with("xdp entry") {
        true => Side::First,
        false if hook.starts_with("xdp exit") => Side::Last,
        false => return None,
    };
    let (netns, interface) = match packet.interface?.split_once(':') {
        Some((netns, interface)) => (Some(netns.to_owned()), interface),
        None => (None, packet.interface?),
    };
    let verdict = match packet.verdict {
        Some(trawl_packet::pcapng::Verdict::Xdp(action)) => VerdictKind::Xdp.name(action),
        _ => None,
    };
    let step = Step {
        step: "xdp".to_owned(),
        time_ns: packet.timestamp_ns,
        interface: Some(interface.to_owned()),
        netns,
        verdict: verdict.map(str::to_owned),
        ..Step::default()
    };
    Some((step, side))
}

fn outline(packet: &PacketView<'_>) -> Outline {
    let mut outline = [0; OUTLINE];
    let skip = match packet.link_type {
        ETHERNET => ETHERNET_LENGTH,
        _ => 0,
    };
    let bytes = packet.captured.get(skip..).unwrap_or_default();
    let parts: &[std::ops::Range<usize>] = match bytes.first().map(|first| first >> 4) {
        Some(4) => &[0..1, 9..10, 12..24],
        Some(6) => &[6..7, 8..44],
        _ => &[0..14, 14..28],
    };
    let meant = parts.iter().filter_map(|part| bytes.get(part.clone()));
    for (to, from) in outline.iter_mut().zip(meant.flatten()) {
        *to = *from;
    }
    outline
}

/// Returns the parts of the addresses and ports that differ.
fn translation(before: &Outline, after: &Outline) -> Option<&'static str> {
    // Protocol, addresses and ports follow each other; the first byte is of IPv4 alone.
    let (source, destination, ports) = match before[0] >> 4 {
        4 => (2..6, 6..10, 10),
        _ => (1..17, 17..33, 33),
    };
    let differs = |part: std::ops::Range<usize>| before[part.clone()] != after[part];
    let source = differs(source) || differs(ports..ports + 2);
    let destination = differs(destination) || differs(ports + 2..ports + 4);
    match (source, destination) {
        (true, true) => Some("snat,dnat"),
        (true, false) => Some("snat"),
        (false, true) => Some("dnat"),
        (false, false) => None,
    }
}

/// Returns the packet in tcpdump's format.
pub fn line(packet: &PacketView<'_>) -> String {
    let mut line = String::new();
    Printer::new(PrintOptions { timestamp: Timestamp::None, ..PrintOptions::default() }).line(
        &mut line,
        &PacketView {
            link_type: packet.link_type,
            captured: packet.captured,
            original_len: packet.original_len,
            ..PacketView::default()
        },
    );
    line.trim_end().to_owned()
}

fn segment(packet: &PacketView<'_>) -> Option<Segment> {
    let decoded = summary(packet.link_type, packet.captured);
    let ip = decoded.ip?;
    let Some(Transport::Tcp { src_port, dst_port, seq, payload_len, .. }) = decoded.transport else {
        return None;
    };
    Some(Segment {
        flow: (ip.src, src_port, ip.dst, dst_port),
        sequence: seq,
        // The part that was cut off is payload.
        length: packet.original_len - (packet.captured.len() as u32).min(packet.original_len) + payload_len as u32,
    })
}

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Stands for steps that were not recorded.
const GAP: &str = "gap";
const CONSUMED: &str = "consumed";
const TRANSMITTED: &str = "transmitted";
const OFFLOAD: &str = "gro";
/// Receive offload holds segments no longer than this. A later one may be a retransmission.
const OFFLOAD_NS: u64 = 20_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A socket received the packet.
    Delivered,
    /// The last device accepted the packet.
    Sent,
    /// The stack consumed the packet normally.
    Consumed,
    /// The kernel freed the packet without a loss: nothing wanted it.
    Unwanted,
    /// An XDP program received the packet whose verdicts trawl does not see, and no later step was seen.
    AtXdp,
    /// Receive offload joined the packet to another one.
    Joined,
    Dropped,
    /// The packet was not seen any more, or not recognized with certainty.
    Gap,
}

impl End {
    fn word(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Sent => "sent",
            Self::Consumed => "consumed",
            Self::Unwanted => "unwanted",
            Self::AtXdp => "ended at an XDP program",
            Self::Joined => "joined",
            Self::Dropped => "dropped",
            Self::Gap => "not seen to the end",
        }
    }
}

#[derive(Debug, Serialize)]
pub struct PacketPath {
    pub packet_id: u64,
    /// The packet as first seen, in tcpdump's format.
    pub packet: String,
    pub steps: Vec<Step>,
    pub end: End,
    /// Identifier of the packet that this one was joined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined_into: Option<u64>,
    /// The XDP program at which the packet ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// True for a TCP segment without data.
    #[serde(skip)]
    is_bare: bool,
    /// Number of steps of all packets that had been lost when this one was first seen.
    #[serde(skip)]
    losses: u64,
    /// The number of the latest step.
    #[serde(skip)]
    number: u32,
    #[serde(skip)]
    outline: Outline,
    #[serde(skip)]
    segment: Option<Segment>,
}

impl PacketPath {
    pub fn new(id: u64, packet: &PacketView<'_>, first: &Seen, losses: u64) -> Self {
        let decoded = summary(packet.link_type, packet.captured);
        let is_bare = matches!(decoded.transport, Some(Transport::Tcp { payload_len: 0, .. }));
        Self {
            packet_id: id,
            packet: line(packet),
            steps: Vec::new(),
            end: End::Gap,
            joined_into: None,
            program: None,
            is_bare,
            losses,
            number: 0,
            outline: first.outline,
            segment: None,
        }
    }

    pub fn add(&mut self, packet: &PacketView<'_>, seen: Seen) {
        if let Some(number) = seen.number {
            if self.is_torn(&seen.step, number) {
                self.steps.push(Step { step: GAP.to_owned(), time_ns: seen.step.time_ns, ..Step::default() });
            }
            self.number = self.number.max(number);
        }
        let Seen { mut step, side, number: _, outline, segment } = seen;
        let changed = (self.outline != outline).then(|| line(packet));
        let is_end = side == Side::Last;
        let translated = step.nat.take().filter(|_| is_end && changed.is_some());
        step.nat = translated.and_then(|_| translation(&self.outline, &outline));
        self.outline = outline;
        if step.step != CONSUMED {
            self.segment = segment;
        }
        let last = self.steps.last().map(|last| last.step.as_str());
        let before = last.map(str::to_owned);
        self.end = self.end_after(&step);
        if side == Side::Last
            && let Some(begun) = self.steps.last_mut().filter(|one| one.step == step.step)
            && begun.took_ns.is_none()
        {
            begun.took_ns = Some(step.time_ns.saturating_sub(begun.time_ns));
            begun.packet = changed.or(begun.packet.take());
            begun.verdict = step.verdict;
            begun.nat = step.nat;
            begun.conntrack = step.conntrack.or(begun.conntrack.take());
            begun.interface = step.interface.or(begun.interface.take());
            return;
        }
        if let (Some("prerouting"), Some(to)) = (before.as_deref(), route(&step)) {
            self.steps.push(Step {
                step: "routed".to_owned(),
                time_ns: step.time_ns,
                interface: step.interface.clone(),
                netns: step.netns.clone(),
                to: Some(to),
                ..Step::default()
            });
        }
        step.packet = changed;
        self.steps.push(step);
    }

    /// Returns true if records of steps before this one were lost.
    fn is_torn(&self, step: &Step, number: u32) -> bool {
        let branch = match step.found {
            Some(_) => FOLLOW_BRANCH as u32,
            None => 0,
        };
        number > self.number + branch + 1 || step.found.is_some() && self.steps.is_empty()
    }

    /// Returns the packet's end if this is its last step.
    fn end_after(&self, step: &Step) -> End {
        let last = self.steps.last().map_or("", |last| last.step.as_str());
        match step.step.as_str() {
            "socket" | "read" => End::Delivered,
            "dropped" => match step.loss {
                Freed::Copied => End::Delivered,
                Freed::Done => End::Consumed,
                // The end of a connection in the queue of a socket that closes has done its work.
                Freed::Unwanted if self.is_bare && [SOCKET, "input"].contains(&last) => End::Consumed,
                Freed::Unwanted => End::Unwanted,
                Freed::Lost => End::Dropped,
            },
            "xdp" => match step.verdict.as_deref() {
                Some("DROP" | "ABORTED") => End::Dropped,
                Some("TX") => End::Sent,
                _ => End::Gap,
            },
            "consumed" => match last {
                "socket" | "read" => End::Delivered,
                TRANSMITTED => End::Sent,
                // Sockets of datagrams are read without a step of their own.
                "input" if self.is_for_socket() => End::Delivered,
                _ => End::Consumed,
            },
            _ => End::Gap,
        }
    }

    /// Returns true if the packet reached TCP or UDP at this host, and was not seen after that.
    fn is_at_protocol(&self) -> bool {
        let last = self.steps.last();
        let is_passed = last.is_some_and(|last| last.step == "input" && last.took_ns.is_some());
        is_passed && self.is_for_socket()
    }

    /// Returns the namespace and the device that transmitted the packet in its last step, or before the kernel freed
    /// it.
    fn transmitted_by(&self) -> Option<(String, String)> {
        let mut last = self.steps.iter().rev();
        let ends = [CONSUMED, "dropped"];
        let step = last.find(|step| !ends.contains(&step.step.as_str()))?;
        if step.step != TRANSMITTED {
            return None;
        }
        step.netns.clone().zip(step.interface.clone())
    }

    /// Returns true for a protocol whose packets end at sockets, unless dropped.
    fn is_for_socket(&self) -> bool {
        let protocol = match self.outline[0] >> 4 {
            4 => self.outline[1],
            _ => self.outline[0],
        };
        [TCP, UDP].contains(&protocol)
    }

    pub fn last_time(&self) -> u64 {
        let last = self.steps.last();
        last.map_or(0, |step| step.time_ns + step.took_ns.unwrap_or(0))
    }

    /// Returns true if no further step can follow.
    pub fn is_over(&self) -> bool {
        let mut last = self.steps.iter().rev().map(|step| step.step.as_str());
        match self.end {
            _ if self.steps.last().is_some_and(|step| !step.loss.is_loss()) => true,
            End::Dropped => true,
            // A packet joined to another one may be freed with it.
            End::Consumed | End::Delivered => last.next() == Some(CONSUMED) && last.next() != Some(OFFLOAD),
            // A packet sent at one end of a cable is received at the other, perhaps in other memory.
            _ => false,
        }
    }

    /// Returns true if further steps would have arrived by now.
    pub fn may_be_over(&self) -> bool {
        self.end != End::Gap
    }
}

/// Returns the routing result implied by the hook that follows the hook for all packets.
fn route(step: &Step) -> Option<&'static str> {
    match step.step.as_str() {
        "input" => Some("local"),
        "forward" => Some("forward"),
        _ => None,
    }
}

/// Writes a line for each step.
impl fmt::Display for PacketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.packet)?;
        let first = self.steps.first().map_or(0, |step| step.time_ns);
        let mut tracking = None;
        for step in &self.steps {
            let is_news = step.conntrack.is_some() && step.conntrack != tracking;
            let conntrack = step.conntrack.clone().filter(|_| is_news);
            tracking = step.conntrack.clone().or(tracking);
            let micros = step.time_ns.saturating_sub(first) as f64 / 1000.0;
            let mut at = step.interface.clone().unwrap_or_default();
            if let Some(netns) = &step.netns {
                at += &format!(" ({netns})");
            }
            let to = step.to.map(|to| match to {
                "local" => "to this host",
                _ => "on to this interface",
            });
            let loss = step.loss.text().map(|text| format!("({text})"));
            let text = |text: &str| Some(text.to_owned());
            let named = |before: &str, value: &Option<String>, after: &str| {
                let value = value.as_ref()?;
                Some(format!("{before}{value}{after}"))
            };
            let took = step.took_ns.map(|took| took as f64 / 1000.0);
            let parts = [
                (step.step == GAP).then_some("steps were lost").and_then(text),
                to.and_then(text),
                step.verdict.clone(),
                step.reason.clone(),
                loss,
                named("at ", &step.at, ""),
                step.socket.clone(),
                named("by ", &step.by, ""),
                step.segments.map(|count| format!("{count} segments")),
                took.map(|took| format!("took {took:.1} us")),
                named("conntrack ", &conntrack, ""),
                step.nat.map(str::to_owned),
                named("now ", &step.packet, ""),
                named("(known by its ", &step.found, ")"),
            ];
            let more: Vec<String> = parts.into_iter().flatten().collect();
            let line = format!("  {micros:>10.1} us  {:<14} {at:<24} {}", step.step, more.join(" "));
            writeln!(f, "{}", line.trim_end())?;
        }
        let joined = ShortId(self.joined_into.unwrap_or(0));
        let program = self.program.as_deref().unwrap_or_default();
        let end = match self.end {
            End::Gap => "gap            not seen any more, or not known again for certain",
            End::Joined => &format!("joined         to packet {joined} by receive offload"),
            End::Delivered => "end            delivered to a socket",
            End::Sent => "end            sent",
            End::Consumed => "end            consumed",
            End::Unwanted => "end            unwanted (no loss)",
            End::AtXdp => &format!("end            ended at the XDP program {program} (its verdict is not visible)"),
            End::Dropped => "end            dropped",
        };
        writeln!(f, "                 {end}")
    }
}

/// Packets that stand for several segments, as the stack received them.
#[derive(Debug, Default)]
pub struct Joined {
    all: Vec<(u64, u64, Segment)>,
}

impl Joined {
    pub fn note(&mut self, id: u64, seen: &Seen) {
        let is_joined = seen.step.segments.is_some_and(|count| count > 1);
        if seen.step.step == "received"
            && is_joined
            && let Some(segment) = &seen.segment
        {
            self.all.push((id, seen.step.time_ns, segment.clone()));
        }
    }

    /// Returns the joined packet that contains this one, which was last seen at receive offload.
    pub fn has(&self, path: &PacketPath) -> Option<u64> {
        let mut last = path.steps.iter().rev();
        let last = last.find(|step| step.step != CONSUMED)?;
        if last.step != OFFLOAD {
            return None;
        }
        let own = path.segment.as_ref()?;
        let has = |(id, time, segment): &&(u64, u64, Segment)| {
            let into = own.sequence.wrapping_sub(segment.sequence);
            *id != path.packet_id
                && (last.time_ns..=last.time_ns + OFFLOAD_NS).contains(time)
                && segment.flow == own.flow
                && own.length > 0
                && u64::from(into) + u64::from(own.length) <= u64::from(segment.length)
        };
        self.all.iter().find(has).map(|(id, ..)| *id)
    }

    pub fn forget_before(&mut self, time: u64) {
        self.all.retain(|(_, seen, _)| *seen >= time);
    }
}
