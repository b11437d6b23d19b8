//! The common view of a packet, from which lines, JSON, statistics and live views are made, and the sources of such
//! views.

use std::borrow::Cow;
use std::fmt;

use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::note::{DropNote, Note, Owner, ProcessNote, SocketNote};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::processes::Processes;
use trawl_packet::pcapng::{Direction, Interface, NamedProcess, Verdict};
use trawl_packet::read::{CaptureReader, ReadError, Step};

/// A packet, with its capture point and its fate as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketView<'a> {
    pub timestamp_ns: u64,
    /// LINKTYPE_ value.
    pub link_type: u16,
    pub captured: &'a [u8],
    pub original_len: u32,
    pub interface: Option<&'a str>,
    pub direction: Option<Direction>,
    /// For example `xdp entry`.
    pub hook: Option<&'a str>,
    pub verdict: Option<Verdict<'a>>,
    pub queue: Option<u32>,
    pub packet_id: Option<u64>,
    pub process: Option<NamedProcess<'a>>,
    /// Packets lost between the previous packet and this one.
    pub dropped_before: Option<u64>,
    /// Text about the packet.
    pub comment: Option<&'a str>,
}

impl<'a> PacketView<'a> {
    /// Returns the end of the packet, if the kernel dropped it.
    pub fn drop(&self) -> Option<DropNote<'a>> {
        self.comment.and_then(DropNote::parse)
    }

    /// Returns the relation of the process to the socket if another process may have used it: the process owns the
    /// listening socket, or shares the socket.
    pub fn uncertain_owner(&self) -> Option<&'static str> {
        let owner = SocketNote::parse(self.comment?)?.owner?;
        matches!(owner, Owner::Listener | Owner::Shared).then(|| owner.word())
    }
}

/// A packet's identifier in short: the CPU that saw it first, and its number on that CPU; `d` before them if it was
/// seen first by a tap at drops, which has a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortId(pub u64);

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (apart, cpu) = (self.0 >> 63, self.0 >> 48 & 0x7fff);
        let mark = if apart == 1 { "d" } else { "" };
        write!(f, "{mark}{cpu}.{}", self.0 & 0xffff_ffff_ffff)
    }
}

/// Returns the device of an interface block. Blocks of drops, and of both ends of a program, have a suffix after the
/// name.
fn device(name: &str) -> &str {
    let ends = [" (drop)", " (xdp entry)", " (xdp exit)"];
    let device = ends.iter().find_map(|end| name.strip_suffix(end));
    device.unwrap_or(name)
}

/// Returns the first comment that does more than name the process, if it is text.
fn first_comment<'a>(options: &PacketOptions<'a>) -> Option<&'a str> {
    let mut comments = options.comments.iter();
    match comments.find(|text| ProcessNote::parse(text).is_none())? {
        Cow::Borrowed(text) => Some(text),
        Cow::Owned(_) => None,
    }
}

/// Packets one after the other: a file, a socket or pipe, or the blocks of a capture's rings.
pub trait PacketSource {
    /// Moves to the next packet; returns false at the end.
    fn advance(&mut self) -> Result<bool, ReadError>;

    /// Returns the current packet.
    fn current(&self) -> Option<PacketView<'_>>;

    /// Returns the time of the current packet.
    fn time_ns(&self) -> u64 {
        self.current().map_or(0, |packet| packet.timestamp_ns)
    }

    /// Moves to the next packet, or to the next block of another type if the source has such.
    fn step(&mut self) -> Result<Option<Step>, ReadError> {
        Ok(self.advance()?.then_some(Step::Packet))
    }
}

impl PacketSource for CaptureReader<'_> {
    fn advance(&mut self) -> Result<bool, ReadError> {
        Self::advance(self)
    }

    fn current(&self) -> Option<PacketView<'_>> {
        let packet = Self::current(self)?;
        let interface = self.interfaces().get(packet.interface)?;
        let processes = self.processes();
        Some(PacketView {
            timestamp_ns: packet.timestamp_ns,
            link_type: packet.link_type,
            captured: packet.captured,
            original_len: packet.original_len,
            interface: interface.name.as_deref().map(device),
            direction: packet.options.direction(),
            hook: interface.hook(),
            verdict: packet.options.verdict,
            queue: packet.options.queue,
            packet_id: packet.options.packet_id,
            process: processes.of_packet(&packet.options, packet.timestamp_ns),
            dropped_before: packet.options.drop_count,
            comment: first_comment(&packet.options),
        })
    }

    fn time_ns(&self) -> u64 {
        self.time_and_interface().map_or(0, |(time, _)| time)
    }

    fn step(&mut self) -> Result<Option<Step>, ReadError> {
        Self::step(self)
    }
}

/// The capture point of an interface block of a running capture.
#[derive(Clone, Debug)]
pub struct BlockOrigin {
    pub interface: String,
    pub hook: String,
    pub link_type: u16,
}

impl BlockOrigin {
    pub fn new(interface: &Interface, hook: String) -> Self {
        Self {
            interface: device(interface.name.as_deref().unwrap_or_default()).to_owned(),
            hook,
            link_type: interface.link_type,
        }
    }
}

/// Returns a name, if it is one.
fn named(name: &str) -> Option<&str> {
    (!name.is_empty()).then_some(name)
}

/// Packets among the finished blocks of a running capture, with the interface blocks described so far.
#[derive(Debug, Default)]
pub struct RingPackets {
    origins: Vec<BlockOrigin>,
    /// Number of interface blocks among the blocks so far.
    described: usize,
    processes: Processes,
}

impl RingPackets {
    /// Begins with the interface blocks that the capture begins with.
    pub fn new(origins: Vec<BlockOrigin>) -> Self {
        Self { origins, described: 0, processes: Processes::default() }
    }

    /// Runs `act` on each packet and the number of its interface block.
    pub fn each(&mut self, bytes: &[u8], mut act: impl FnMut(&PacketView<'_>, u32)) {
        for block in blocks(bytes) {
            if let Some(interface) = Interface::from_block(&block) {
                self.describe(&interface);
            } else if let Some(packet) = block.enhanced_packet()
                && let Some(origin) = self.origins.get(packet.interface_id as usize)
            {
                let options = PacketOptions::parse(packet.options());
                let view = PacketView {
                    timestamp_ns: packet.timestamp,
                    link_type: origin.link_type,
                    captured: packet.captured,
                    original_len: packet.original_len,
                    interface: named(&origin.interface),
                    direction: options.direction(),
                    hook: named(&origin.hook),
                    verdict: options.verdict,
                    queue: options.queue,
                    packet_id: options.packet_id,
                    process: self.processes.of_packet(&options, packet.timestamp),
                    dropped_before: options.drop_count,
                    comment: first_comment(&options),
                };
                act(&view, packet.interface_id);
            } else {
                self.processes.add_block(&block);
            }
        }
    }

    /// Adds an interface block, unless it is one that the capture begins with.
    fn describe(&mut self, interface: &Interface) {
        if self.described >= self.origins.len() {
            let hook = interface.hook().unwrap_or_default().to_owned();
            self.origins.push(BlockOrigin::new(interface, hook));
        }
        self.described += 1;
    }
}
