//! Converts the note on a kernel record for the file: an interface block for each device and link type, and a comment
//! as text. A stage between the merge and the sink.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use trawl_packet::net::ethertype;

use trawl_bpf::droppers;
use trawl_bpf::kallsyms::Symbols;
use trawl_bpf::layout::drop::{
    DROP_LINK_RAW, DROP_LOSS_COPIED, DROP_LOSS_DONE, DROP_LOSS_YES, DROP_NOTE_CODE, DROPPER_CGROUP, DropNote,
    DropStack, FollowNote, NftRule, STEP_DROPPED, STEP_NETFILTER_FIRST, STEP_NETFILTER_LAST,
};
use trawl_bpf::layout::{Shared, text_in};
use trawl_bpf::table::Table;
use trawl_packet::freed::Freed;
use trawl_packet::pcapng::block::{Block, EnhancedPacket, blocks};
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
const STEPS: [&str; STEP_DROPPED] = [
    "xdp",
    "gro",
    "backlog",
    "received",
    "tc_ingress",
    "netfilter",
    "netfilter",
    "queued",
    "tc_egress",
    "qdisc_enqueue",
    "qdisc_dequeue",
    "transmitted",
    "ipsec",
    "socket",
    "read",
    "consumed",
    "dropped",
];
/// Netfilter's hooks, in the order of NF_INET_….
const NETFILTER_HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];
/// States of packets in connection tracking, in the order of enum ip_conntrack_info.
const TRACKING: [&str; 8] =
    ["established", "related", "new", "established,reply", "related,reply", "unknown", "unknown", "untracked"];
/// Status bits of a connection whose addresses are translated: IPS_SRC_NAT and IPS_DST_NAT.
const TRANSLATIONS: [(u64, &str); 2] = [(1 << 4, "src"), (1 << 5, "dst")];
/// Methods by which a packet was recognised, in the order of FOUND_….
const FOUND: [&str; 4] = ["new", "buffer", "memory", "content"];
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
    /// No program names processes: they are looked up in the lists of open sockets.
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
    /// Rules and policies of nftables as text, and the map with their names.
    droppers: HashMap<u64, Option<String>>,
    rules: Option<Table>,
    out: Vec<u8>,
    comment: String,
}

impl DropConverter {
    /// Creates the converter. `follows`: records are steps of packets, not drops alone. `lists_sockets`: processes are
    /// looked up in the lists of open sockets.
    pub fn new(reasons: Reasons, symbols: Symbols, rules: Option<Table>, follows: bool, lists_sockets: bool) -> Self {
        Self {
            follows,
            lists_sockets,
            point: 0,
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

    /// Sets the interface block of the kernel's records, among the first blocks of the file.
    pub fn begin(&mut self, point: u32, interfaces: &[Interface]) {
        self.point = point;
        self.next = interfaces.len() as u32;
        if let Some(like) = interfaces.get(point as usize) {
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
        let more = match self.follows {
            true => FollowNote::from_bytes(rest).map_or(More::Nothing, More::Step),
            false => DropStack::from_bytes(rest).map_or(More::Nothing, More::Stack),
        };
        self.record(&packet, &note, &more);
    }

    fn record(&mut self, packet: &EnhancedPacket<'_>, note: &DropNote, more: &More) {
        let device = self.device(note);
        let interface_id = self.interface(note, device.as_deref());
        let reason = self.reasons.name(note.reason).into_owned();
        let options = PacketOptions::parse(packet.options());
        let process = options.comments.first().map(|text| &**text);
        self.describe(note, more, &reason, process);
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
        match name.is_empty() {
            false => Some(name),
            true => self.names.device(note.netns, note.ifindex).map(str::to_owned),
        }
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

    fn describe_dropper(&mut self, dropper: u64) {
        if dropper & DROPPER_CGROUP as u64 != 0 {
            let number = dropper & !(DROPPER_CGROUP as u64);
            let _ = write!(self.comment, " by=cgroup:{number}");
        } else if let (Some(rules), 1..) = (&self.rules, dropper) {
            let find = || droppers::rule(rules, dropper).map(|rule| rule_text(&rule));
            if let Some(rule) = self.droppers.entry(dropper).or_insert_with(find) {
                let _ = write!(self.comment, " rule={rule}");
            }
        }
    }

    /// Writes the comment: key=value pairs separated by spaces, in a fixed order. `process` is such a pair too.
    fn describe(&mut self, note: &DropNote, more: &More, reason: &str, process: Option<&str>) {
        self.comment.clear();
        let at = location(&mut self.locations, &mut self.symbols, note.location);
        // Writing to a String cannot fail.
        let _ = match more {
            More::Step(step) => describe_step(&mut self.comment, step, reason, note.location, at),
            _ => write!(self.comment, "drop={reason} at={at}"),
        };
        if note.netns != 0 {
            let _ = write!(self.comment, " netns={}", self.names.namespace(note.netns));
        }
        if note.segments > 1 {
            let _ = write!(self.comment, " segs={}", note.segments);
        }
        // A socket without a port is closed by now.
        if note.family != 0 && note.port != 0 {
            let protocol = protocol(note.protocol);
            let _ = write!(self.comment, " sock={protocol}:{}", note.port);
            match note.family {
                FAMILY_IPV4 => {
                    let address = Ipv4Addr::from(note.address[0].to_ne_bytes());
                    let _ = write!(self.comment, " addr={address}");
                }
                FAMILY_IPV6 => {
                    let mut bytes = [0; 16];
                    for (to, word) in bytes.chunks_exact_mut(4).zip(note.address) {
                        to.copy_from_slice(&word.to_ne_bytes());
                    }
                    let _ = write!(self.comment, " addr={}", Ipv6Addr::from(bytes));
                }
                _ => {}
            }
            if self.lists_sockets
                && note.inode != 0
                && let Some(process) = self.names.process(note.inode)
            {
                let name = process.name.replace(char::is_whitespace, "_");
                let _ = write!(self.comment, " pid={} comm={name}", process.id);
            }
        }
        if let Some(process) = process {
            let _ = write!(self.comment, " {}", process.replace(char::is_whitespace, "_"));
        }
        if note.receive_buffer != 0 && reason == RECEIVE_BUFFER_FULL {
            let _ = write!(self.comment, " rcvbuf={}", note.receive_buffer);
        }
        let freed = match note.no_loss as usize {
            DROP_LOSS_YES => Freed::Lost,
            DROP_LOSS_COPIED => Freed::Copied,
            DROP_LOSS_DONE => Freed::Done,
            _ => Freed::Unwanted,
        };
        if let Some(word) = freed.word() {
            let _ = write!(self.comment, " loss={word}");
        }
        self.describe_dropper(note.dropper);
        if let More::Stack(stack) = more {
            self.comment.push_str(" stack=");
            let mut is_first = true;
            // Functions before the location of the drop free the buffer and run the tap.
            let all = &stack.addresses;
            let begin = all.iter().position(|address| *address == note.location);
            let addresses = all[begin.unwrap_or(0)..].iter();
            for address in addresses.take_while(|address| **address != 0) {
                if !std::mem::take(&mut is_first) {
                    self.comment.push(',');
                }
                self.comment.push_str(location(&mut self.locations, &mut self.symbols, *address));
            }
        }
    }
}

/// Returns family, table, chain and handle of a rule of nftables, or without a handle the chain's policy.
fn rule_text(rule: &NftRule) -> String {
    let family = nft_family(rule.family);
    let family = family.map_or_else(|| rule.family.to_string(), str::to_owned);
    let name = |words: &[u32]| text_in(words).replace(char::is_whitespace, "_");
    let policy = format!("{family},{},{}", name(&rule.table), name(&rule.chain));
    match rule.handle {
        0 => policy,
        handle => format!("{policy},{handle}"),
    }
}

fn describe_step(comment: &mut String, step: &FollowNote, reason: &str, location: u64, at: &str) -> std::fmt::Result {
    let number = step.step as usize;
    let name = STEPS.get(number.wrapping_sub(1)).copied();
    let hook = NETFILTER_HOOKS.get(step.hook as usize).copied();
    match number {
        STEP_NETFILTER_FIRST => write!(comment, "step={} side=first", hook.unwrap_or("netfilter")),
        STEP_NETFILTER_LAST => write!(comment, "step={} side=last", hook.unwrap_or("netfilter")),
        _ => write!(comment, "step={}", name.unwrap_or("unknown")),
    }?;
    if number == STEP_DROPPED {
        write!(comment, " drop={reason}")?;
    }
    if location != 0 {
        write!(comment, " at={at}")?;
    }
    if let Some(found) = FOUND.get(step.found as usize) {
        write!(comment, " found={found}")?;
    }
    write!(comment, " number={}", step.number)?;
    if let Some(state) = TRACKING.get((step.tracking as usize).wrapping_sub(1)) {
        write!(comment, " ct={state}")?;
        let kinds = TRANSLATIONS.iter();
        let kinds = kinds.filter(|(bit, _)| step.connection & bit != 0);
        let kinds: Vec<&str> = kinds.map(|(_, name)| *name).collect();
        if !kinds.is_empty() {
            write!(comment, " nat={}", kinds.join(","))?;
        }
    }
    if step.pid != 0 {
        let bytes = step.command.iter().flat_map(|word| word.to_ne_bytes());
        let name: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        let name = String::from_utf8_lossy(&name).replace(char::is_whitespace, "_");
        write!(comment, " by={name}[{}]", step.pid)?;
    }
    Ok(())
}

fn location<'l>(known: &'l mut HashMap<u64, String>, symbols: &mut Symbols, address: u64) -> &'l str {
    known.entry(address).or_insert_with(|| {
        symbols.refresh();
        match symbols.caller(address) {
            Some(at) => at.to_string(),
            None => format!("{address:#x}"),
        }
    })
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
