//! Converts the note on a kernel record for the file: an interface block for each device and link type, and a comment.
//! The converter is a stage between the merge and the sink.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use trawl_bpf::droppers;
use trawl_bpf::kallsyms::Symbols;
use trawl_bpf::layout::drop::{
    DROP_LINK_RAW, DROP_LOSS_COPIED, DROP_LOSS_DONE, DROP_LOSS_YES, DROP_NOTE_CODE, DROPPER_CGROUP, DropNote,
    DropStack, FollowNote, NftRule, STEP_DROPPED, STEP_NETFILTER_FIRST, STEP_NETFILTER_LAST,
};
use trawl_bpf::layout::{Shared, text_in};
use trawl_bpf::table::Table;
use trawl_packet::freed::Freed;
use trawl_packet::net::ethertype;
use trawl_packet::pcapng::block::{Block, EnhancedPacket, blocks};
use trawl_packet::pcapng::note::{
    self, FollowStep, Found, Note, OwnerNote, ProcessNote, Side, Step, Tracking, Translated,
};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::{Direction, Interface, Verdict, write};
use trawl_pipeline::{Blocks, Pressure, Stage, WriteOutcome, Writer};
use trawl_sys::Result;
use trawl_sys::netlink::nft_family;

use super::names::Names;
use super::reasons::Reasons;

const FAMILY_IPV4: u32 = 2;
const FAMILY_IPV6: u32 = 10;
/// Reason with which the size of the socket's receive buffer is shown.
const RECEIVE_BUFFER_FULL: &str = "SOCKET_RCVBUFF";
const TC_ACT_SHOT: u64 = 2;
const XDP_DROP: u64 = 1;
/// Steps of followed packets, in the order of the numbers in bpf/include/drop.h; the first has records of its own, and
/// netfilter steps are named after their hook.
const STEPS: [Step; STEP_DROPPED] = [
    Step::Xdp,
    Step::Gro,
    Step::Backlog,
    Step::Received,
    Step::TcIngress,
    Step::Netfilter,
    Step::Netfilter,
    Step::Queued,
    Step::TcEgress,
    Step::QdiscEnqueue,
    Step::QdiscDequeue,
    Step::Transmitted,
    Step::Ipsec,
    Step::Socket,
    Step::Read,
    Step::Consumed,
    Step::Dropped,
];
/// Netfilter's hooks, in the order of NF_INET_….
const NETFILTER_HOOKS: [Step; 5] = [Step::Prerouting, Step::Input, Step::Forward, Step::Output, Step::Postrouting];
/// States of packets in connection tracking, in the order of enum ip_conntrack_info.
const TRACKING: [Tracking; 8] = [
    Tracking::Established,
    Tracking::Related,
    Tracking::New,
    Tracking::EstablishedReply,
    Tracking::RelatedReply,
    Tracking::Unknown,
    Tracking::Unknown,
    Tracking::Untracked,
];
/// Status bits of a connection whose addresses are translated: IPS_SRC_NAT and IPS_DST_NAT.
const SOURCE_NAT: u64 = 1 << 4;
const DESTINATION_NAT: u64 = 1 << 5;
/// Methods by which a packet was recognised, in the order of FOUND_….
const FOUND: [Found; 4] = [Found::New, Found::Buffer, Found::Memory, Found::Content];
/// Name of the tap in interface blocks and counters.
pub const HOOK: &str = "drop";

/// Key of an interface block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BlockKey {
    netns: u32,
    ifindex: u32,
    name: [u32; 4],
    link: u32,
}

/// An interface block with the number of its records.
#[derive(Debug)]
struct Numbered {
    id: u32,
    records: u64,
}

/// Returns a record's note, and the bytes after it.
fn note_of<'p>(packet: &EnhancedPacket<'p>) -> Option<(DropNote, &'p [u8])> {
    let raw = packet.options().find(|option| usize::from(option.code) == DROP_NOTE_CODE)?;
    let note = DropNote::from_bytes(raw.value)?;
    Some((note, raw.value.get(size_of::<DropNote>()..)?))
}

/// Returns the frame that the kernel's filter sees, and its length: bare IP gets a header without addresses.
pub fn as_frame<'p>(packet: &EnhancedPacket<'p>) -> (Cow<'p, [u8]>, u32) {
    let is_bare = note_of(packet).is_some_and(|(note, _)| note.link as usize == DROP_LINK_RAW);
    if !is_bare {
        return (Cow::Borrowed(packet.captured), packet.original_len);
    }
    let kind: u16 = match packet.captured.first().map(|byte| byte >> 4) {
        Some(6) => ethertype::IPV6,
        _ => ethertype::IPV4,
    };
    let frame = [&[0; 12], &kind.to_be_bytes()[..], packet.captured].concat();
    let header = (frame.len() - packet.captured.len()) as u32;
    (Cow::Owned(frame), packet.original_len + header)
}

/// Data after a note.
#[derive(Debug)]
enum More {
    Nothing,
    Stack(DropStack),
    Step(FollowNote),
}

/// Converter of notes to text.
#[derive(Debug)]
pub struct DropConverter {
    follows: bool,
    /// True if no program names processes: they are looked up in the lists of open sockets.
    lists_sockets: bool,
    /// Interface block of the kernel's records, for packets without a known device.
    point: u32,
    /// Number of the next new interface block.
    next: u32,
    blocks: HashMap<BlockKey, Numbered>,
    /// Template of new interface blocks.
    like: Interface,
    reasons: Reasons,
    symbols: Symbols,
    names: Names,
    /// Drop locations as text.
    locations: HashMap<u64, String>,
    /// Rules and policies of nftables, and the map with their names.
    droppers: HashMap<u64, Option<note::Rule<'static>>>,
    rules: Option<Table>,
    out: Vec<u8>,
    comment: String,
}

impl DropConverter {
    /// Creates the converter. `point` is the interface block of the kernel's records. `follows`: records are steps of
    /// packets, not drops alone. `lists_sockets`: processes are looked up in the lists of open sockets.
    pub fn new(
        point: u32,
        reasons: Reasons,
        symbols: Symbols,
        rules: Option<Table>,
        follows: bool,
        lists_sockets: bool,
    ) -> Self {
        Self {
            follows,
            lists_sockets,
            point,
            next: 0,
            blocks: HashMap::new(),
            like: Interface::default(),
            reasons,
            symbols,
            names: Names::default(),
            locations: HashMap::new(),
            droppers: HashMap::new(),
            rules,
            out: Vec::new(),
            comment: String::new(),
        }
    }

    /// Sets the first interface blocks of the file.
    pub fn begin(&mut self, interfaces: &[Interface]) {
        self.next = interfaces.len() as u32;
        if let Some(like) = interfaces.get(self.point as usize) {
            self.like = like.clone();
        }
    }

    /// Returns the added interface blocks, with the number of records in each.
    fn added(&self) -> Vec<(u32, u64)> {
        let mut added: Vec<_> =
            self.blocks.values().map(|key| (key.id, key.records)).filter(|(id, _)| *id != self.point).collect();
        added.sort_unstable();
        added
    }

    fn convert(&mut self, block: &Block<'_>) {
        let Some(packet) = block.enhanced_packet().filter(|packet| packet.interface_id == self.point) else {
            self.out.extend_from_slice(block.bytes);
            return;
        };
        let Some((note, rest)) = note_of(&packet) else {
            self.out.extend_from_slice(block.bytes);
            return;
        };
        let more = if self.follows {
            FollowNote::from_bytes(rest).map_or(More::Nothing, More::Step)
        } else {
            DropStack::from_bytes(rest).map_or(More::Nothing, More::Stack)
        };
        self.record(&packet, &note, &more);
    }

    fn record(&mut self, packet: &EnhancedPacket<'_>, note: &DropNote, more: &More) {
        let device = self.device(note);
        let interface_id = self.interface(note, device.as_deref());
        let reason = self.reasons.name(note.reason).into_owned();
        let options = PacketOptions::parse(packet.options());
        let about = options.comments.first().map(|text| &**text);
        self.describe(note, more, &reason, about);
        let verdict = match reason.as_str() {
            "TC_INGRESS" | "TC_EGRESS" => Some(Verdict::Tc(TC_ACT_SHOT)),
            "XDP" => Some(Verdict::Xdp(XDP_DROP)),
            _ => None,
        };
        let direction = direction(note);
        write::enhanced_packet(
            &mut self.out,
            &write::EnhancedPacket {
                interface_id,
                timestamp_ns: packet.timestamp,
                captured: packet.captured,
                original_len: packet.original_len,
                flags: Some(direction.map_or(0, Direction::flags)),
                queue: None,
                packet_id: options.packet_id,
                drop_count: options.drop_count,
                verdict,
                process: options.process,
                comment: Some(&self.comment),
            },
        );
    }

    fn device(&mut self, note: &DropNote) -> Option<String> {
        if note.ifindex == 0 {
            return None;
        }
        let name = text_in(&note.name);
        if name.is_empty() { self.names.device(note.netns, note.ifindex).map(str::to_owned) } else { Some(name) }
    }

    /// Returns the interface block of a device and link type, which is written at its first use.
    fn interface(&mut self, note: &DropNote, device: Option<&str>) -> u32 {
        let mut name = [0; 4];
        for (at, byte) in device.unwrap_or_default().bytes().take(16).enumerate() {
            name[at / 4] |= u32::from(byte) << (at % 4 * 8);
        }
        let key = BlockKey {
            netns: if device.is_some() { note.netns } else { 0 },
            ifindex: if device.is_some() { note.ifindex } else { 0 },
            name,
            link: note.link,
        };
        if let Some(block) = self.blocks.get_mut(&key) {
            block.records += 1;
            return block.id;
        }
        let is_point = device.is_none() && note.link == u32::from(self.like.link_type);
        let id = if is_point { self.point } else { self.next };
        if !is_point {
            self.next += 1;
            let interface = Interface {
                link_type: note.link as u16,
                name: Some(match device {
                    Some(device) => format!("{device} ({HOOK})"),
                    None => self.like.name.clone().unwrap_or_default(),
                }),
                ..self.like.clone()
            };
            write::interface_description(&mut self.out, &interface);
        }
        self.blocks.insert(key, Numbered { id, records: 1 });
        id
    }

    /// Finds the functions of addresses that the comment names.
    fn locate(&mut self, addresses: &[u64]) {
        for address in addresses.iter().take_while(|address| **address != 0) {
            self.locations.entry(*address).or_insert_with(|| {
                self.symbols.refresh();
                self.symbols.caller(*address).map_or_else(|| format!("{address:#x}"), |at| at.to_string())
            });
        }
    }

    /// Writes the comment. `about` is the packet's comment on its process or socket.
    fn describe(&mut self, note: &DropNote, more: &More, reason: &str, about: Option<&str>) {
        // Functions before the location of the drop free the buffer and run the tap.
        let stack = match more {
            More::Stack(DropStack { addresses, .. }) => {
                let begin = addresses.iter().position(|address| *address == note.location);
                &addresses[begin.unwrap_or(0)..]
            }
            _ => &[],
        };
        self.locate(&[note.location]);
        self.locate(stack);
        let at = |address: &u64| self.locations.get(address).map(String::as_str);
        let dropper = note.dropper & !(DROPPER_CGROUP as u64);
        let is_cgroup = dropper != note.dropper;
        let rule = self.rules.as_ref().filter(|_| !is_cgroup && dropper != 0).and_then(|rules| {
            let find = || droppers::rule(rules, dropper).map(|rule| named_rule(&rule));
            self.droppers.entry(dropper).or_insert_with(find).clone()
        });
        let netns = (note.netns != 0).then(|| self.names.namespace(note.netns).to_owned());
        // A socket without a port is already closed.
        let has_socket = note.family != 0 && note.port != 0;
        let lists = has_socket && self.lists_sockets && note.inode != 0;
        let process = lists.then(|| self.names.process(note.inode)).flatten();
        let protocol = protocol(note.protocol);
        let facts = note::DropNote {
            reason,
            at: at(&note.location).unwrap_or(if matches!(more, More::Step(_)) { "" } else { "0x0" }),
            netns: netns.as_deref(),
            segments: Some(note.segments).filter(|count| *count > 1),
            socket: has_socket.then(|| note::LocalSocket { protocol: &protocol, port: note.port as u16 }),
            address: address(note).filter(|_| has_socket),
            pid: process.map(|process| process.id),
            command: process.map(|process| process.name.as_str()),
            owner: about.and_then(OwnerNote::parse),
            receive_buffer: Some(note.receive_buffer).filter(|size| *size != 0 && reason == RECEIVE_BUFFER_FULL),
            no_loss: match note.no_loss as usize {
                DROP_LOSS_YES => Freed::Lost,
                DROP_LOSS_COPIED => Freed::Copied,
                DROP_LOSS_DONE => Freed::Done,
                _ => Freed::Unwanted,
            },
            rule,
            cgroup: is_cgroup.then_some(dropper),
            stack: stack.iter().map_while(at).collect(),
        };
        self.comment.clear();
        match more {
            More::Step(followed) => write_step(&mut self.comment, followed, facts),
            _ => facts.write(&mut self.comment),
        }
    }
}

/// Returns the local address of the socket.
fn address(note: &DropNote) -> Option<IpAddr> {
    let bytes = note.address.map(u32::to_ne_bytes);
    match note.family {
        FAMILY_IPV4 => Some(IpAddr::from(bytes[0])),
        FAMILY_IPV6 => <[u8; 16]>::try_from(bytes.as_flattened()).ok().map(IpAddr::from),
        _ => None,
    }
}

fn named_rule(rule: &NftRule) -> note::Rule<'static> {
    note::Rule {
        family: nft_family(rule.family).map_or_else(|| rule.family.to_string().into(), Cow::from),
        table: text_in(&rule.table).into(),
        chain: text_in(&rule.chain).into(),
        // A policy has no handle.
        handle: Some(rule.handle).filter(|handle| *handle != 0),
    }
}

/// Writes the comment of a step. Only a dropped packet has a reason.
fn write_step(out: &mut String, followed: &FollowNote, facts: note::DropNote<'_>) {
    let number = followed.step as usize;
    let hook = NETFILTER_HOOKS.get(followed.hook as usize).copied().unwrap_or(Step::Netfilter);
    let (step, side) = match number {
        STEP_NETFILTER_FIRST => (hook, Some(Side::First)),
        STEP_NETFILTER_LAST => (hook, Some(Side::Last)),
        _ => (STEPS.get(number.wrapping_sub(1)).copied().unwrap_or(Step::Unknown), None),
    };
    let tracking = TRACKING.get((followed.tracking as usize).wrapping_sub(1)).copied();
    let is_translated = |bit: u64| tracking.is_some() && followed.connection & bit != 0;
    let command: Vec<u8> = followed.command.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let command = command.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(command);
    let note = FollowStep {
        step,
        side,
        found: FOUND.get(followed.found as usize).copied(),
        number: Some(followed.number),
        tracking,
        translated: Translated { source: is_translated(SOURCE_NAT), destination: is_translated(DESTINATION_NAT) },
        reader: (followed.pid != 0).then_some(ProcessNote { name: &name, id: followed.pid }),
        facts: note::DropNote { reason: if step == Step::Dropped { facts.reason } else { "" }, ..facts },
    };
    note.write(out);
}

/// Returns the function that contains the call that returns to an address, or the address.
pub fn function(symbols: &Symbols, address: u64) -> String {
    let found = symbols.caller(address);
    found.map_or_else(|| format!("{address:#x}"), |at| at.function.to_owned())
}

/// Returns the direction: received packets have an interface, packets sent by a socket have none.
fn direction(note: &DropNote) -> Option<Direction> {
    match (note.received_on, note.family) {
        (0, 0) => None,
        (0, _) => Some(Direction::Out),
        _ => Some(Direction::In),
    }
}

fn protocol(number: u32) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmp6".to_owned(),
        132 => "sctp".to_owned(),
        136 => "udplite".to_owned(),
        255 => "raw".to_owned(),
        262 => "mptcp".to_owned(),
        other => other.to_string(),
    }
}

impl Stage for DropConverter {
    fn push(&mut self, pushed: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        self.out.clear();
        for block in blocks(pushed.bytes()) {
            self.convert(&block);
        }
        next.write(Blocks::Bytes(&self.out))
    }

    fn account(&mut self, outcome: &mut WriteOutcome) {
        outcome.added.extend(self.added());
    }
}
