//! Reads capture files: written files round-trip, other programs' files are understood, and damage is reported without
//! a panic.

use crate::common::{Scratch, have};
use crate::packets;
use proptest::prelude::*;
use std::io::Read as _;
use trawl_packet::pcap;
use trawl_packet::pcapng::{Direction, Interface, Verdict, block, write};
use trawl_packet::read::{CaptureReader, ReadError};

#[derive(Debug, Clone, PartialEq)]
struct Owned {
    interface: u32,
    timestamp_ns: u64,
    captured: Vec<u8>,
    original_len: u32,
    flags: Option<u32>,
    queue: Option<u32>,
    packet_id: Option<u64>,
    drop_count: Option<u64>,
    xdp: Option<u64>,
    comment: Option<String>,
}

/// Returns all packets up to the end or the error, the error, and the interfaces.
fn read(bytes: &[u8]) -> (Vec<Owned>, Option<ReadError>, Vec<Interface>) {
    let mut packets = Vec::new();
    let mut reader = match CaptureReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (packets, Some(error), Vec::new()),
    };
    let error = loop {
        match reader.next_packet() {
            Ok(Some(packet)) => packets.push(Owned {
                interface: packet.interface as u32,
                timestamp_ns: packet.timestamp_ns,
                captured: packet.captured.to_vec(),
                original_len: packet.original_len,
                flags: packet.options.flags,
                queue: packet.options.queue,
                packet_id: packet.options.packet_id,
                drop_count: packet.options.drop_count,
                xdp: match packet.options.verdict {
                    Some(Verdict::Xdp(action)) => Some(action),
                    _ => None,
                },
                comment: packet.options.comments.first().map(|comment| comment.to_string()),
            }),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert!(error.is_none() || reader.next_packet().is_ok_and(|packet| packet.is_none()));
    (packets, error, reader.interfaces().to_vec())
}

fn write_packet(out: &mut Vec<u8>, packet: &Owned) {
    write::enhanced_packet(
        out,
        &write::EnhancedPacket {
            interface_id: packet.interface,
            timestamp_ns: packet.timestamp_ns,
            captured: &packet.captured,
            original_len: packet.original_len,
            flags: packet.flags,
            queue: packet.queue,
            packet_id: packet.packet_id,
            drop_count: packet.drop_count,
            verdict: packet.xdp.map(Verdict::Xdp),
            process: None,
            comment: packet.comment.as_deref(),
        },
    );
}

fn write_file(interfaces: &[Interface], packets: &[Owned]) -> Vec<u8> {
    let mut out = Vec::new();
    write::section_header(&mut out, &write::SectionHeader::default());
    for interface in interfaces {
        write::interface_description(&mut out, interface);
    }
    for packet in packets {
        write_packet(&mut out, packet);
    }
    write::interface_statistics(&mut out, &write::InterfaceStatistics::default());
    out
}

fn text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[^\0]{0,20}")
}

prop_compose! {
    fn any_interface()(
        name in text(),
        description in text(),
        filter in text(),
        hardware in text(),
        os in text(),
        comments in proptest::collection::vec("[^\0]{0,20}", 0..3),
        speed in any::<Option<u64>>(),
        mac in any::<Option<[u8; 6]>>(),
        link_type in any::<u16>(),
        snaplen in any::<u32>(),
    ) -> Interface {
        Interface {
            link_type, snaplen, name, description, filter, speed, mac, hardware, os, comments,
            ..Interface::default()
        }
    }
}

prop_compose! {
    fn any_packet(interfaces: u32)(
        interface in 0..interfaces,
        timestamp_ns in any::<u64>(),
        captured in proptest::collection::vec(any::<u8>(), 0..200),
        original_len in any::<u32>(),
        flags in any::<Option<u32>>(),
        queue in any::<Option<u32>>(),
        packet_id in any::<Option<u64>>(),
        drop_count in any::<Option<u64>>(),
        xdp in any::<Option<u64>>(),
        comment in text(),
    ) -> Owned {
        Owned {
            interface, timestamp_ns, captured, original_len, flags, queue, packet_id, drop_count,
            xdp, comment,
        }
    }
}

proptest! {
    #[test]
    fn pcapng_round_trips(
        interfaces in proptest::collection::vec(any_interface(), 3),
        packets in proptest::collection::vec(any_packet(3), 0..20),
    ) {
        let (read, error, described) = read(&write_file(&interfaces, &packets));
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(read, packets);
        prop_assert_eq!(described, interfaces);
    }

    #[test]
    fn pcap_round_trips(packets in proptest::collection::vec(any_packet(1), 0..20)) {
        let mut out = Vec::new();
        pcap::file_header(&mut out, 1, 0);
        for packet in &packets {
            let ns = packet.timestamp_ns % (u64::from(u32::MAX) * 1_000_000_000);
            pcap::record(&mut out, ns, &packet.captured, packet.original_len);
        }
        let (read, error, _) = read(&out);
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(read.len(), packets.len());
        for (read, packet) in read.iter().zip(&packets) {
            prop_assert_eq!(read.timestamp_ns, packet.timestamp_ns % (u64::from(u32::MAX) * 1_000_000_000));
            prop_assert_eq!(&read.captured, &packet.captured);
            prop_assert_eq!(read.original_len, packet.original_len);
        }
    }

    /// Every packet before the cut is delivered, and the error gives its position.
    #[test]
    fn cut_file_yields_its_whole_packets(
        packets in proptest::collection::vec(any_packet(1), 1..10),
        cut in any::<prop::sample::Index>(),
    ) {
        let file = write_file(&[Interface::default()], &packets);
        let cut = cut.index(file.len());
        let (read, error, _) = read(&file[..cut]);
        let whole = block::blocks(&file[..cut]);
        let count = whole.clone().filter(|block| block.kind == block::ENHANCED_PACKET).count();
        prop_assert_eq!(&read[..], &packets[..count]);
        let last = whole.map(|block| block.total_len() as u64).sum::<u64>();
        match error {
            None => prop_assert_eq!(last, cut as u64),
            Some(ReadError::Truncated { offset, .. }) => prop_assert_eq!(offset, last),
            Some(ReadError::Empty) => prop_assert_eq!(cut, 0),
            Some(other) => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn random_bytes_cause_no_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), magic in 0..5usize) {
        let magics = [0x0a0d0d0au32, 0xa1b2c3d4, 0xa1b23c4d, 0xd4c3b2a1, 0];
        if magic < 4 && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&magics[magic].to_le_bytes());
        }
        read(&bytes);
    }

    #[test]
    fn damaged_files_cause_no_panic(
        packets in proptest::collection::vec(any_packet(1), 1..5),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = write_file(&[Interface::default()], &packets);
        for (at, value) in damage {
            let at = at.index(file.len());
            file[at] = value;
        }
        read(&file);
    }
}

/// Returns a block in big-endian order.
fn big(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 12).to_be_bytes();
    [&kind.to_be_bytes()[..], &len, body, &len].concat()
}

fn big_section() -> Vec<u8> {
    let body = [&0x1a2b_3c4du32.to_be_bytes()[..], &[0, 1, 0, 0], &[0xff; 8]].concat();
    let mut section = big(block::SECTION_HEADER, &body);
    // Milliseconds.
    section.extend(big(1, &[0, 1, 0, 0, 0, 0, 0, 8, 0, 9, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0]));
    section
}

#[test]
fn sections_of_both_orders_with_every_kind_of_packet() {
    let packet = Owned {
        interface: 0,
        timestamp_ns: 7,
        captured: vec![1, 2, 3],
        original_len: 3,
        flags: None,
        queue: None,
        packet_id: None,
        drop_count: None,
        xdp: None,
        comment: None,
    };
    let mut file = write_file(&[Interface::default(), Interface::default()], &[packet]);
    file.extend(big_section());
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
    let enhanced = [words(&[0, 0, 1500, 5, 9]), b"hello\0\0\0".to_vec(), words(&[0x0002_0004, 1, 0])];
    file.extend(big(6, &enhanced.concat()));
    for skipped in [4, 5, 0x0a, 0xbad, 0x4000_0bad, 0x1234] {
        file.extend(big(skipped, &[9; 16]));
    }
    file.extend(big(3, &[words(&[20]), vec![7; 12]].concat()));
    file.extend(big(2, &[words(&[17, 0, 2500, 4, 4]), b"old!".to_vec(), words(&[0x0002_0004, 2, 0])].concat()));
    let (packets, error, interfaces) = read(&file);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(interfaces.len(), 3);
    assert_eq!(interfaces[2].tsresol, 3);
    let [first, enhanced, simple, obsolete] = &packets[..] else { panic!("{packets:?}") };
    assert_eq!((first.interface, first.timestamp_ns), (0, 7));
    assert_eq!((enhanced.interface, enhanced.timestamp_ns), (2, 1_500_000_000));
    assert_eq!((&enhanced.captured[..], enhanced.original_len), (&b"hello"[..], 9));
    assert_eq!(enhanced.flags, Some(Direction::In.flags()));
    // The interface's snapshot length is 8.
    assert_eq!((&simple.captured[..], simple.original_len), (&[7; 8][..], 20));
    assert_eq!((obsolete.timestamp_ns, &obsolete.captured[..]), (2_500_000_000, &b"old!"[..]));
    assert_eq!((obsolete.drop_count, obsolete.flags), (Some(17), Some(Direction::Out.flags())));
}

/// libpcap refuses these versions and link types as well.
fn section(comment: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    write::section_header(&mut out, &write::SectionHeader { comment, ..Default::default() });
    write::interface_description(&mut out, &Interface::default());
    out
}

#[test]
fn monotonic_offset_is_the_latest_of_the_section() {
    let packet = write::EnhancedPacket::default();
    let mut file = section(Some("monotonic-offset=17"));
    write::enhanced_packet(&mut file, &packet);
    for remark in ["monotonic-offset=18446744073709551615", "nat=17 nonsense"] {
        write::remark(&mut file, remark);
        write::enhanced_packet(&mut file, &packet);
    }
    // The packets of this section may come from several hosts.
    file.extend(section(None));
    write::remark(&mut file, "monotonic-offset=3");
    write::enhanced_packet(&mut file, &packet);
    file.extend(section(Some("a remark of somebody's")));
    write::enhanced_packet(&mut file, &packet);
    let mut reader = CaptureReader::new(&file[..]).expect("a header");
    let mut offsets = Vec::new();
    while reader.advance().expect("whole blocks") {
        offsets.push(reader.monotonic_offset());
    }
    assert_eq!(offsets, [Some(17), Some(u64::MAX), Some(u64::MAX), None, None]);
}

#[test]
fn unknown_versions_and_link_types_are_refused() {
    let pcap = |major: u16, minor: u16, link_type: u32| {
        let mut file = 0xa1b2_c3d4u32.to_le_bytes().to_vec();
        file.extend([major.to_le_bytes(), minor.to_le_bytes()].concat());
        file.extend([0; 12]);
        file.extend(link_type.to_le_bytes());
        read(&file).1
    };
    for (major, minor) in [(1, 4), (2, 5), (3, 0)] {
        assert!(pcap(major, minor, 1).is_some(), "{major}.{minor}");
    }
    assert!(pcap(2, 4, 0x30_0000).is_some());
    for (major, minor, link_type) in [(2, 4, 1), (2, 0, 1), (543, 0, 1), (2, 4, 0x2400_0001)] {
        let error = pcap(major, minor, link_type);
        assert!(error.is_none(), "{major}.{minor} {link_type:#x}: {error:?}");
    }
    for (minor, known) in [(0, true), (1, false), (2, true)] {
        let mut file = 0x0a0d_0d0au32.to_le_bytes().to_vec();
        file.extend(28u32.to_le_bytes());
        file.extend(0x1a2b_3c4du32.to_le_bytes());
        file.extend([1u16.to_le_bytes(), u16::to_le_bytes(minor)].concat());
        file.extend([0xff; 8]);
        file.extend(28u32.to_le_bytes());
        assert_eq!(read(&file).1.is_none(), known, "pcapng 1.{minor}");
    }
}

#[test]
fn pcap_of_all_four_magics() {
    for (magic, ns) in [(0xa1b2_c3d4u32, 5_000_000_006_000), (0xa1b2_3c4d, 5_000_000_006)] {
        for swap in [false, true] {
            let number = |value: u32| {
                if swap { value.to_be_bytes() } else { value.to_le_bytes() }
            };
            let mut file = number(magic).to_vec();
            let half = |value: u16| {
                if swap { value.to_be_bytes() } else { value.to_le_bytes() }
            };
            file.extend([half(2), half(4)].concat());
            file.extend([0; 12]);
            for value in [101, 5, 6, 4, 60] {
                file.extend(number(value));
            }
            file.extend([1, 2, 3, 4]);
            let (packets, error, interfaces) = read(&file);
            assert!(error.is_none(), "{error:?}");
            assert_eq!(interfaces[0].link_type, 101);
            let ns = if ns > 5_000_000_000_000 { 5_000_006_000 } else { ns };
            assert_eq!((packets[0].timestamp_ns, packets[0].original_len), (ns, 60));
            assert_eq!(packets[0].captured, [1, 2, 3, 4]);
            let (packets, error, _) = read(&file[..file.len() - 1]);
            assert!(packets.is_empty());
            assert!(matches!(error, Some(ReadError::Truncated { offset: 24, expected: 20, found: 19, .. })));
        }
    }
}

/// A source that delivers some bytes from time to time.
struct Dripping<'a> {
    rest: &'a [u8],
    piece: usize,
    waits: bool,
}

impl std::io::Read for Dripping<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.waits = !self.waits;
        if self.waits {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let piece = self.piece.min(buffer.len());
        let count = self.rest.read(&mut buffer[..piece])?;
        Ok(count)
    }
}

/// Returns a file whose record headers have this length, which its file header does not show.
fn pcap_with_headers(len: usize) -> Vec<u8> {
    let mut file = 0xa1b2_c3d4u32.to_le_bytes().to_vec();
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]);
    for number in 0..5u8 {
        let size = 40 + u32::from(number);
        for value in [5, 6, size, size] {
            file.extend(value.to_le_bytes());
        }
        file.resize(file.len() + len - 16, 8);
        file.resize(file.len() + size as usize, number);
    }
    file
}

#[test]
fn pcap_variants_are_found_in_pieces_and_cut_files() {
    for len in [16, 20, 24] {
        let file = pcap_with_headers(len);
        // The variant shows in the first records only.
        for piece in if len == 16 { 1..90 } else { 200..210 } {
            // The header is complete when a followed file is opened.
            let (header, rest) = file.split_at(24);
            let waits = false;
            let drops = Dripping { rest, piece, waits };
            let mut reader = CaptureReader::new(header.chain(drops)).expect("a header");
            let mut sizes = Vec::new();
            loop {
                match reader.next_packet() {
                    Ok(Some(packet)) => {
                        assert!(packet.captured.iter().all(|b| *b == sizes.len() as u8));
                        sizes.push(packet.captured.len());
                    }
                    Ok(None) => break,
                    Err(error) => assert!(error.would_block(), "{len}, {piece}: {error}"),
                }
            }
            assert_eq!(sizes, [40, 41, 42, 43, 44], "{len}, {piece}");
        }
    }
    let file = pcap_with_headers(16);
    let ends = [24, 80, 137, 195, 254, 314];
    // This holds even if the rest is as long as the extra bytes of another variant in the header of a single record.
    for cut in 24..file.len() {
        let (packets, error, _) = read(&file[..cut]);
        assert_eq!(packets.len(), ends.iter().filter(|end| **end <= cut).count() - 1);
        match error {
            None => assert!(ends.contains(&cut), "{cut}"),
            Some(error) => assert!(matches!(error, ReadError::Truncated { .. }), "{error}"),
        }
    }
}

/// Guards packets of files that lack some bytes: the zeroes or parts of packets after the gap look like records of a
/// variant with longer headers.
#[test]
fn lost_bytes_are_not_taken_for_a_variant() {
    for filling in [0, 1, 0xff] {
        for (records, lost) in [(2, 4), (3, 4), (4, 4), (3, 8), (6, 8), (6, 12)] {
            let mut file = pcap_with_headers(16)[..24].to_vec();
            for number in 0..records {
                for value in [1_700_000_000u32 + number, 6, 60, 60] {
                    file.extend(value.to_le_bytes());
                }
                file.resize(file.len() + 60, filling);
            }
            for at in (40..100).chain(116..160) {
                let damaged = [&file[..at], &file[at + lost..]].concat();
                let (packets, _, _) = read(&damaged);
                assert_eq!(packets[0].captured[..], damaged[40..100], "{filling}, {records}, {lost}, {at}");
            }
        }
    }
}

#[test]
fn errors_name_defect_and_position() {
    let error = |bytes: &[u8]| read(bytes).1.expect("an error").to_string();
    assert!(error(b"").contains("empty"));
    assert!(error(b"PK\x03\x04 and more").contains("504b0304"));
    let file = write_file(&[], &[]);
    let mut unknown = file.clone();
    let packet = write::EnhancedPacket { interface_id: 3, ..Default::default() };
    write::enhanced_packet(&mut unknown, &packet);
    let text = error(&unknown);
    assert!(text.contains(&format!("byte {}", file.len())) && text.contains("interface 3"), "{text}");
    let mut long = file.clone();
    long.extend([6, 0, 0, 0, 0, 0, 0, 0xf0]);
    assert!(matches!(read(&long).1, Some(ReadError::TooLong { len: 0xf000_0000, .. })));
    let mut differs = write_file(&[Interface::default()], &[]);
    *differs.last_mut().unwrap() ^= 1;
    assert!(error(&differs).contains("lengths differ"));
}

/// A source that delivers one byte at a time and is interrupted in between.
struct Slow<'a>(&'a [u8], bool);

impl std::io::Read for Slow<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let len = self.0.len().min(out.len()).min(1);
        out[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

#[test]
fn slow_source_yields_large_packets() {
    let mut file = write_file(&[Interface::default()], &[]);
    let large = vec![5; 300_000];
    for captured in [&large[..], &[1], &large] {
        let packet = write::EnhancedPacket { captured, original_len: 300_000, ..Default::default() };
        write::enhanced_packet(&mut file, &packet);
    }
    let mut reader = CaptureReader::new(Slow(&file, false)).unwrap();
    let mut lengths = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        lengths.push(packet.captured.len());
    }
    assert_eq!(lengths, [300_000, 1, 300_000]);
}

/// Reads files that editcap converted from trawl's to other formats.
#[test]
fn files_of_wireshark_are_read() {
    if !have("editcap") {
        return;
    }
    let mut file = Vec::new();
    pcap::file_header(&mut file, 1, 0);
    let cases: Vec<_> = packets::all().into_iter().filter(|case| case.link_type == 1).collect();
    for (index, case) in cases.iter().enumerate() {
        pcap::record(&mut file, 1_000 * index as u64, &case.bytes, case.original_len as u32);
    }
    let scratch = Scratch::new("editcap");
    let path = scratch.write("in.pcap", &file);
    for format in ["pcap", "nsecpcap", "pcapng", "modpcap"] {
        let out = path.with_extension(format);
        let status = std::process::Command::new("editcap")
            .args(["-F", format])
            .args([&path, &out])
            .status()
            .expect("run editcap");
        assert!(status.success());
        let (packets, error, _) = read(&std::fs::read(&out).expect("read what editcap wrote"));
        assert!(error.is_none(), "{error:?}");
        assert_eq!(packets.len(), cases.len());
        for (index, (packet, case)) in packets.iter().zip(&cases).enumerate() {
            assert_eq!(packet.captured, case.bytes);
            assert_eq!(packet.timestamp_ns, 1_000 * index as u64);
        }
    }
}
