//! Appends finished little-endian blocks to a buffer.

use std::net::IpAddr;

use super::block::OptionList;
use super::block::{self, Block, ByteOrder, padded};
use super::options::PacketOptions;
use super::{Interface, PacketProcess, Process, Verdict};

/// Contents of the Section Header Block: the host and the program that made a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SectionHeader<'a> {
    pub hardware: Option<&'a str>,
    pub os: Option<&'a str>,
    pub userappl: Option<&'a str>,
    pub comment: Option<&'a str>,
}

/// A packet with all its options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EnhancedPacket<'a> {
    pub interface_id: u32,
    /// Nanoseconds since 1970; the interface's `tsresol` must match.
    pub timestamp_ns: u64,
    pub captured: &'a [u8],
    pub original_len: u32,
    /// `epb_flags`, see [`super::Direction::flags`].
    pub flags: Option<u32>,
    pub queue: Option<u32>,
    pub packet_id: Option<u64>,
    /// Packets lost between the previous one and this one.
    pub drop_count: Option<u64>,
    pub verdict: Option<Verdict<'a>>,
    pub process: Option<PacketProcess>,
    pub comment: Option<&'a str>,
}

/// Counters of an interface; times in the interface's units, nanoseconds in files that trawl writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceStatistics<'a> {
    pub interface_id: u32,
    /// Time at which the counters were read.
    pub timestamp_ns: u64,
    pub start_ns: Option<u64>,
    pub end_ns: Option<u64>,
    pub if_received: Option<u64>,
    pub if_dropped: Option<u64>,
    pub filter_accepted: Option<u64>,
    pub os_dropped: Option<u64>,
    pub user_delivered: Option<u64>,
    pub comment: Option<&'a str>,
}

pub fn section_header(out: &mut Vec<u8>, section: &SectionHeader<'_>) {
    let SectionHeader { hardware, os, userappl, comment } = *section;
    let mut block = Open::new(out, block::SECTION_HEADER);
    block.u32(block::BYTE_ORDER_MAGIC);
    block.u16(1);
    block.u16(0);
    // Unknown section length: the file grows until the capture ends.
    block.u64(u64::MAX);
    block.text(block::SHB_HARDWARE, hardware);
    block.text(block::SHB_OS, os);
    block.text(block::SHB_USERAPPL, userappl);
    block.text(block::OPT_COMMENT, comment);
    block.finish();
}

pub fn interface_description(out: &mut Vec<u8>, interface: &Interface) {
    let Interface {
        link_type,
        snaplen,
        name,
        description,
        filter,
        speed,
        mac,
        hardware,
        os,
        tsresol,
        tsoffset,
        comments,
    } = interface;
    let mut block = Open::new(out, block::INTERFACE_DESCRIPTION);
    block.u16(*link_type);
    block.u16(0);
    block.u32(*snaplen);
    block.text(block::IF_NAME, name.as_deref());
    block.text(block::IF_DESCRIPTION, description.as_deref());
    if let Some(mac) = mac {
        block.option(block::IF_MACADDR, mac);
    }
    block.number(block::IF_SPEED, *speed);
    block.option(block::IF_TSRESOL, &[*tsresol]);
    if let Some(filter) = filter {
        let mut value = vec![block::FILTER_IS_STRING];
        value.extend_from_slice(cut(filter, MAX_OPTION_LEN - 1).as_bytes());
        block.option(block::IF_FILTER, &value);
    }
    block.text(block::IF_OS, os.as_deref());
    if *tsoffset != 0 {
        block.option(block::IF_TSOFFSET, &tsoffset.to_le_bytes());
    }
    block.text(block::IF_HARDWARE, hardware.as_deref());
    for comment in comments {
        block.text(block::OPT_COMMENT, Some(comment));
    }
    block.finish();
}

pub fn enhanced_packet(out: &mut Vec<u8>, packet: &EnhancedPacket<'_>) {
    let EnhancedPacket {
        interface_id,
        timestamp_ns,
        captured,
        original_len,
        flags,
        queue,
        packet_id,
        drop_count,
        verdict,
        process,
        comment,
    } = *packet;
    let mut block = Open::new(out, block::ENHANCED_PACKET);
    block.u32(interface_id);
    block.timestamp(timestamp_ns);
    block.u32(captured.len() as u32);
    block.u32(original_len);
    block.bytes(captured);
    if let Some(flags) = flags {
        block.option(block::EPB_FLAGS, &flags.to_le_bytes());
    }
    block.number(block::EPB_DROPCOUNT, drop_count);
    block.number(block::EPB_PACKETID, packet_id);
    if let Some(queue) = queue {
        block.option(block::EPB_QUEUE, &queue.to_le_bytes());
    }
    if let Some(verdict) = verdict {
        block.verdict(verdict);
    }
    if let Some(PacketProcess { id, thread }) = process {
        let value = [id.to_le_bytes(), thread.to_le_bytes()].concat();
        block.option(block::EPB_PROCESS, &value);
    }
    block.text(block::OPT_COMMENT, comment);
    block.finish();
}

pub fn interface_statistics(out: &mut Vec<u8>, statistics: &InterfaceStatistics<'_>) {
    let InterfaceStatistics {
        interface_id,
        timestamp_ns,
        start_ns,
        end_ns,
        if_received,
        if_dropped,
        filter_accepted,
        os_dropped,
        user_delivered,
        comment,
    } = *statistics;
    let mut block = Open::new(out, block::INTERFACE_STATISTICS);
    block.u32(interface_id);
    block.timestamp(timestamp_ns);
    for (code, time) in [(block::ISB_STARTTIME, start_ns), (block::ISB_ENDTIME, end_ns)] {
        if let Some(time) = time {
            // High half first, unlike the other 64-bit options.
            block.option(code, &time.rotate_left(32).to_le_bytes());
        }
    }
    block.number(block::ISB_IFRECV, if_received);
    block.number(block::ISB_IFDROP, if_dropped);
    block.number(block::ISB_FILTERACCEPT, filter_accepted);
    block.number(block::ISB_OSDROP, os_dropped);
    block.number(block::ISB_USRDELIV, user_delivered);
    block.text(block::OPT_COMMENT, comment);
    block.finish();
}

/// Turns all of `room` into one block of a local type that readers skip; `room` is empty or holds at least 12 bytes, a
/// multiple of four.
pub fn filling(room: &mut [u8]) {
    let length = (room.len() as u32).to_le_bytes();
    room.fill(0);
    if let [kind @ .., _, _, _, _] = room
        && kind.len() >= block::HEADER_LEN
    {
        kind[..4].copy_from_slice(&block::FILLING.to_le_bytes());
        kind[4..8].copy_from_slice(&length);
        let end = room.len() - block::TRAILER_LEN;
        room[end..].copy_from_slice(&length);
    }
}

/// Appends an Enhanced Packet Block with a comment before its options. Options with the code `without` are left out.
pub fn with_comment(out: &mut Vec<u8>, packet: &[u8], comment: &str, without: Option<u16>) {
    with_option(out, packet, without, |block, _| {
        block.text(block::OPT_COMMENT, Some(comment));
    });
}

/// Appends an Enhanced Packet Block that reports additional losses before it.
pub fn with_drop_count(out: &mut Vec<u8>, packet: &[u8], lost: u64) {
    with_option(out, packet, Some(block::EPB_DROPCOUNT), |block, packet| {
        let before = PacketOptions::parse(packet.options()).drop_count;
        block.number(block::EPB_DROPCOUNT, Some(before.unwrap_or(0) + lost));
    });
}

/// Appends an Enhanced Packet Block with an option before the others. Options with the code `without` are left out.
fn with_option(
    out: &mut Vec<u8>,
    packet: &[u8],
    without: Option<u16>,
    first: impl FnOnce(&mut Open<'_>, block::EnhancedPacket<'_>),
) {
    let Some(parsed) = block::blocks(packet).next().and_then(|one| one.enhanced_packet()) else {
        out.extend_from_slice(packet);
        return;
    };
    let options = block::HEADER_LEN + block::EPB_FIXED_LEN + padded(parsed.captured_len());
    let mut block = Open::new(out, block::ENHANCED_PACKET);
    block.out.extend_from_slice(&packet[block::HEADER_LEN..options]);
    first(&mut block, parsed);
    for option in parsed.options().filter(|one| Some(one.code) != without) {
        block.option(option.code, option.value);
    }
    block.finish();
}

/// Appends an Interface Statistics Block with the deliveries and the additional losses of one reader.
pub fn with_deliveries(out: &mut Vec<u8>, statistics: &Block<'_>, delivered: u64, lost: u64) {
    let order = ByteOrder::Little;
    let Some((fixed, options)) = statistics.body.split_at_checked(block::ISB_FIXED_LEN) else {
        out.extend_from_slice(statistics.bytes);
        return;
    };
    let mut block = Open::new(out, block::INTERFACE_STATISTICS);
    block.out.extend_from_slice(fixed);
    for option in OptionList::new(options, order) {
        let number = option.value.try_into().map(|bytes| order.u64(bytes));
        match (option.code, number) {
            (block::ISB_USRDELIV, Ok(_)) => block.number(option.code, Some(delivered)),
            (block::ISB_IFDROP, Ok(dropped)) => block.number(option.code, Some(dropped + lost)),
            _ => block.option(option.code, option.value),
        }
    }
    block.finish();
}

/// Appends an Enhanced Packet Block with a comment that names the process instead of its number, which in this file may
/// stand for another host's process.
pub fn with_process_in_comment(out: &mut Vec<u8>, packet: &[u8], comment: &str) {
    with_comment(out, packet, comment, Some(block::EPB_PROCESS));
}

/// Appends a description of a process in Wireshark's layout, which is little-endian in files of either order.
pub fn process(out: &mut Vec<u8>, process: &Process) {
    let Process { id, name, path, command, parent, user_id, user, start_ns, comment } = process;
    let mut block = Open::new(out, block::CUSTOM);
    block.u32(block::WIRESHARK);
    block.u32(block::WIRESHARK_PROCESS);
    let length_at = block.out.len();
    block.u32(0);
    block.u32(*id);
    block.text(block::PROCESS_NAME, name.as_deref());
    block.text(block::PROCESS_PATH, path.as_deref());
    if let Some(command) = command {
        block.option(block::PROCESS_COMMAND, command);
    }
    if let Some(parent) = parent {
        block.option(block::PROCESS_PARENT, &parent.to_le_bytes());
    }
    if let Some(user_id) = user_id {
        block.option(block::PROCESS_USER_ID, &user_id.to_le_bytes());
    }
    block.text(block::PROCESS_USER, user.as_deref());
    block.number(block::PROCESS_START, *start_ns);
    block.text(block::OPT_COMMENT, comment.as_deref());
    block.u32(u32::from(block::OPT_END));
    let length = (block.out.len() - length_at - 4) as u32;
    block.out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    // The block itself has no options.
    block.has_options = false;
    block.finish();
}

/// Appends the names of addresses.
pub fn names<'a>(out: &mut Vec<u8>, names: impl IntoIterator<Item = (IpAddr, &'a str)>) {
    let mut block = Open::new(out, block::NAME_RESOLUTION);
    // The records have the layout and the end mark of options.
    for (address, name) in names {
        let (code, address) = match address {
            IpAddr::V4(address) => (block::NRB_IPV4, address.octets().to_vec()),
            IpAddr::V6(address) => (block::NRB_IPV6, address.octets().to_vec()),
        };
        block.option(code, &[&address, name.as_bytes(), &[0]].concat());
    }
    block.finish();
}

/// Appends a comment that belongs to no packet: in a Name Resolution Block without names, which readers skip.
pub fn remark(out: &mut Vec<u8>, comment: &str) {
    let mut block = Open::new(out, block::NAME_RESOLUTION);
    // The end mark of the records.
    block.u32(0);
    block.text(block::OPT_COMMENT, Some(comment));
    block.finish();
}

const MAX_OPTION_LEN: usize = u16::MAX as usize;

/// Returns the longest prefix of `text` that fits `limit` bytes and ends between characters.
fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// A block being appended; `finish` fills in its lengths.
struct Open<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    has_options: bool,
}

impl<'a> Open<'a> {
    fn new(out: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = out.len();
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        Self { out, start, has_options: false }
    }

    fn u16(&mut self, value: u16) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn timestamp(&mut self, value: u64) {
        self.u32((value >> 32) as u32);
        self.u32(value as u32);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(&[0; 3][..padded(bytes.len()) - bytes.len()]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(MAX_OPTION_LEN)];
        self.has_options = true;
        self.u16(code);
        self.u16(value.len() as u16);
        self.bytes(value);
    }

    fn text(&mut self, code: u16, value: Option<&str>) {
        if let Some(value) = value {
            self.option(code, cut(value, MAX_OPTION_LEN).as_bytes());
        }
    }

    fn number(&mut self, code: u16, value: Option<u64>) {
        if let Some(value) = value {
            self.option(code, &value.to_le_bytes());
        }
    }

    fn verdict(&mut self, verdict: Verdict<'_>) {
        let mut value = [0; 9];
        match verdict {
            Verdict::Tc(action) => {
                value[0] = block::VERDICT_EBPF_TC;
                value[1..].copy_from_slice(&action.to_le_bytes());
            }
            Verdict::Xdp(action) => {
                value[0] = block::VERDICT_EBPF_XDP;
                value[1..].copy_from_slice(&action.to_le_bytes());
            }
            Verdict::Other { kind, value } => {
                let mut bytes = vec![kind];
                bytes.extend_from_slice(value);
                return self.option(block::EPB_VERDICT, &bytes);
            }
        }
        self.option(block::EPB_VERDICT, &value);
    }

    fn finish(mut self) {
        if self.has_options {
            self.u32(u32::from(block::OPT_END));
        }
        let total = (self.out.len() - self.start + block::TRAILER_LEN) as u32;
        self.u32(total);
        self.out[self.start + 4..self.start + 8].copy_from_slice(&total.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_an_enhanced_packet() {
        let mut out = Vec::new();
        enhanced_packet(
            &mut out,
            &EnhancedPacket {
                interface_id: 1,
                timestamp_ns: 0x0102_0304_0506_0708,
                captured: b"abcde",
                original_len: 64,
                verdict: Some(Verdict::Xdp(1)),
                ..Default::default()
            },
        );
        let expected: &[u8] = &[
            6, 0, 0, 0, 60, 0, 0, 0, 1, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, 5, 0, 0, 0, 64, 0, 0, 0, b'a', b'b', b'c',
            b'd', b'e', 0, 0, 0, 7, 0, 9, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn packet_without_options_has_no_end_mark() {
        let mut out = Vec::new();
        enhanced_packet(&mut out, &EnhancedPacket { captured: &[0; 60], ..Default::default() });
        assert_eq!(out.len(), block::MIN_BLOCK_LEN + block::EPB_FIXED_LEN + 60);
    }

    #[test]
    fn losses_are_added_to_those_of_a_packet() {
        for before in [None, Some(2)] {
            let mut plain = Vec::new();
            let packet =
                EnhancedPacket { captured: b"abcde", queue: Some(3), drop_count: before, ..Default::default() };
            enhanced_packet(&mut plain, &packet);
            let mut out = Vec::new();
            with_drop_count(&mut out, &plain, 40);
            let parsed = block::blocks(&out).next().unwrap();
            let parsed = parsed.enhanced_packet().unwrap();
            let options = PacketOptions::parse(parsed.options());
            assert_eq!(options.drop_count, Some(40 + before.unwrap_or(0)));
            assert_eq!((options.queue, parsed.captured), (Some(3), &b"abcde"[..]));
        }
    }

    #[test]
    fn statistics_name_what_one_reader_got() {
        let statistics = InterfaceStatistics {
            interface_id: 2,
            if_received: Some(100),
            if_dropped: Some(5),
            user_delivered: Some(95),
            ..Default::default()
        };
        let mut whole = Vec::new();
        interface_statistics(&mut whole, &statistics);
        let mut out = Vec::new();
        let block = block::blocks(&whole).next().unwrap();
        with_deliveries(&mut out, &block, 60, 35);
        let mut expected = Vec::new();
        let of_reader = InterfaceStatistics { if_dropped: Some(40), user_delivered: Some(60), ..statistics };
        interface_statistics(&mut expected, &of_reader);
        assert_eq!(out, expected);
    }

    #[test]
    fn comment_is_added_to_a_packet() {
        for queue in [None, Some(3)] {
            let mut plain = Vec::new();
            let packet =
                EnhancedPacket { timestamp_ns: 7, captured: b"abcde", original_len: 64, queue, ..Default::default() };
            enhanced_packet(&mut plain, &packet);
            let mut out = Vec::new();
            with_comment(&mut out, &plain, "why", None);
            let mut walk = block::blocks(&out);
            let parsed = walk.next().and_then(|one| one.enhanced_packet()).unwrap();
            assert!(walk.next().is_none() && walk.rest().is_empty());
            assert_eq!((parsed.timestamp, parsed.captured), (7, &b"abcde"[..]));
            let options: Vec<_> = parsed.options().collect();
            assert_eq!(options[0].code, block::OPT_COMMENT);
            assert_eq!(options[0].value, b"why");
            assert_eq!(options.len(), 1 + usize::from(queue.is_some()));
        }
    }

    #[test]
    fn comment_replaces_the_number_of_a_process() {
        for process in [None, Some(PacketProcess { id: 7, thread: 9 })] {
            let mut plain = Vec::new();
            let packet =
                EnhancedPacket { captured: b"abcde", original_len: 5, queue: Some(3), process, ..Default::default() };
            enhanced_packet(&mut plain, &packet);
            let mut out = Vec::new();
            with_process_in_comment(&mut out, &plain, "process=curl[7]");
            let mut walk = block::blocks(&out);
            let parsed = walk.next().and_then(|one| one.enhanced_packet()).unwrap();
            assert!(walk.next().is_none() && walk.rest().is_empty());
            let options = PacketOptions::parse(parsed.options());
            assert_eq!((options.process, options.queue), (None, Some(3)));
            assert_eq!(options.comments, ["process=curl[7]"]);
        }
    }

    #[test]
    fn text_too_long_for_an_option_is_cut_at_a_character() {
        let comment = "ä".repeat(40_000);
        let mut out = Vec::new();
        section_header(&mut out, &SectionHeader { comment: Some(&comment), ..Default::default() });
        let block = block::blocks(&out).next().unwrap();
        let options = super::super::block::OptionList::new(&block.body[16..], block::ByteOrder::Little);
        let value = options.last().unwrap().value;
        assert_eq!(value.len(), 65_534);
        assert!(std::str::from_utf8(value).is_ok());
    }
}
