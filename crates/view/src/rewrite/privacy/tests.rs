use trawl_packet::build::Template;
use trawl_packet::pcapng::{PacketProcess, Process};
use trawl_packet::read::{CaptureReader, Step};

use super::super::Rewriter;
use super::*;

const SECRET: &str = "secret";
const MASK: [u8; 4] = [255, 255, 254, 0];
const ADDRESS: [u8; 4] = [10, 1, 2, 3];

fn secret() -> Option<String> {
    Some(SECRET.to_owned())
}

/// Returns a file whose blocks all contain a secret text or an address.
fn file() -> Vec<u8> {
    let mut out = Vec::new();
    write::section_header(
        &mut out,
        &write::SectionHeader { os: Some("Linux"), comment: Some(SECRET), ..write::SectionHeader::default() },
    );
    let interface = Interface {
        name: Some(format!("{SECRET}:{SECRET}:eth0")),
        description: Some(format!("tc ingress, time stamps from the system clock, {SECRET}")),
        filter: Some(format!("host {SECRET}")),
        mac: Some([2, 10, 1, 2, 3, 9]),
        comments: vec![SECRET.to_owned()],
        ..Interface::default()
    };
    write::interface_description(&mut out, &interface);
    let process = Process {
        id: 7,
        name: secret(),
        path: secret(),
        command: Some(SECRET.into()),
        parent: Some(3),
        user_id: Some(1000),
        user: secret(),
        start_ns: Some(5),
        comment: secret(),
    };
    write::process(&mut out, &process);
    let frame = Template::new().ethernet([2, 10, 1, 2, 3, 9], [4; 6]);
    let frame = frame.ipv4(ADDRESS, [10, 9, 8, 7]).udp(1, 2).payload(SECRET).build();
    write::enhanced_packet(
        &mut out,
        &write::EnhancedPacket {
            captured: &frame,
            original_len: frame.len() as u32,
            timestamp_ns: 9,
            packet_id: Some(11),
            process: Some(PacketProcess { id: 7, thread: 8 }),
            comment: Some(SECRET),
            ..write::EnhancedPacket::default()
        },
    );
    let mut other = |kind, body: &[u8]| {
        let mut block = Open::new(&mut out, ByteOrder::Little, kind);
        block.bytes(body);
        block.finish();
    };
    let name = [&[1, 0, 11, 0][..], &ADDRESS, b"secret\0\0\0\0\0\0"].concat();
    other(block::NAME_RESOLUTION, &name);
    let address = [&[1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 8, 0][..], &ADDRESS, &MASK].concat();
    other(block::INTERFACE_DESCRIPTION, &address);
    other(block::DECRYPTION_SECRETS, &[b"LKST\x06\0\0\0", SECRET.as_bytes()].concat());
    other(JOURNAL, b"MESSAGE=secret\n__REALTIME_TIMESTAMP=123\n\0");
    other(CUSTOM_NOT_COPIED, &[&[1, 2, 3, 4], SECRET.as_bytes()].concat());
    other(block::SIMPLE_PACKET, &[&(frame.len() as u32).to_le_bytes(), &frame[..]].concat());
    write::interface_statistics(
        &mut out,
        &write::InterfaceStatistics {
            if_received: Some(2),
            comment: Some(SECRET),
            ..write::InterfaceStatistics::default()
        },
    );
    out
}

fn rewritten(file: &[u8], verbatim: bool, privacy: Privacy) -> (Vec<u8>, LeftOut) {
    let mut reader = CaptureReader::new(file).expect("a header");
    let mut rewriter = Rewriter::new(verbatim, "trawl".to_owned()).with_privacy(privacy);
    let mut out = Vec::new();
    while let Some(step) = reader.step().expect("whole blocks") {
        match step {
            Step::Packet => rewriter.packet(&mut out, 0, &reader),
            Step::Block { kind } => rewriter.block(&mut out, 0, &reader, kind),
        }
    }
    let left_out = rewriter.left_out_for_privacy().expect("what was left out");
    (out, left_out)
}

fn anonymous() -> Privacy {
    let addresses = Addresses::new(&[7; 32]).expect("a long key");
    Privacy::new(false, Some(addresses))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|one| one == part)
}

fn kinds(bytes: &[u8]) -> Vec<u32> {
    block::blocks(bytes).map(|block| block.kind).collect()
}

#[test]
fn every_block_stays_without_its_secrets() {
    let file = file();
    for verbatim in [true, false] {
        let (out, left_out) = rewritten(&file, verbatim, anonymous());
        assert!(!contains(&out, SECRET.as_bytes()) && !contains(&out, &ADDRESS));
        let expected = kinds(&file).into_iter().map(|kind| match kind {
            block::SIMPLE_PACKET => block::ENHANCED_PACKET,
            kind => kind,
        });
        assert_eq!(kinds(&out), expected.collect::<Vec<_>>());
        let comments = if verbatim { 4 } else { 3 };
        let expected = LeftOut { contents: 0, comments, blocks: 3 };
        assert_eq!(left_out, expected);

        assert!(contains(&out, &MASK));
        assert!(contains(&out, b"__REALTIME_TIMESTAMP=123\n"));

        let mut reader = CaptureReader::new(&out[..]).expect("a header");
        let packet = reader.next_packet().expect("whole").expect("a packet");
        assert_eq!((packet.captured.len(), packet.original_len), (42, 48));
        assert_eq!((packet.timestamp_ns, packet.options.packet_id), (9, Some(11)));
        assert_eq!(reader.interfaces()[0].hook(), Some("tc ingress"));
        let name = reader.interfaces()[0].name.as_deref().expect("a name");
        let parts: Vec<&str> = name.split(':').collect();
        assert!(
            matches!(parts[..], [host, namespace, "eth0"] if host.starts_with("host-") && namespace == host),
            "{name}"
        );
        let process = reader.processes().find(7, 9).expect("a process");
        assert_eq!((process.parent, process.start_ns, &process.name), (Some(3), Some(5), &None));
    }
}

#[test]
fn cut_packets_keep_addresses_options_and_other_blocks() {
    let (out, left_out) = rewritten(&file(), true, Privacy::new(true, None));
    assert_eq!(left_out, LeftOut::default());
    assert!(contains(&out, &ADDRESS));
    let mut reader = CaptureReader::new(&out[..]).expect("a header");
    while let Some(packet) = reader.next_packet().expect("whole blocks") {
        assert_eq!((packet.captured.len(), packet.original_len), (42, 48));
    }
    let comment = block::blocks(&out).filter_map(|block| block.enhanced_packet());
    let comments = comment.flat_map(|packet| packet.options()).filter(|one| one.code == block::OPT_COMMENT);
    assert_eq!(comments.count(), 1);
}

/// A hash of a packet covers its payload, and a device's GUID names one host.
#[test]
fn hashes_of_packets_builds_and_device_numbers_are_left_out() {
    const HASH: [u8; 5] = [2, 0xab, 0xcd, 0xef, 0x12];
    const GUID: &str = "0F3A-77";
    const BUILD: &str = "build 19045";
    let mut file = Vec::new();
    write::section_header(&mut file, &write::SectionHeader::default());
    let mut block = Open::new(&mut file, ByteOrder::Little, block::INTERFACE_DESCRIPTION);
    block.bytes(&[1, 0, 0, 0, 0, 0, 0, 0]);
    block.option(block::IF_NAME, format!(r"\Device\NPF_{{{GUID}}}").as_bytes());
    block.option(block::IF_OS, BUILD.as_bytes());
    block.end_of_options(true);
    block.finish();
    let frame = Template::new().ethernet([2; 6], [4; 6]).ipv4(ADDRESS, [10, 9, 8, 7]);
    let frame = frame.udp(1, 2).payload(SECRET).build();
    for kind in [block::ENHANCED_PACKET, block::OBSOLETE_PACKET] {
        let mut block = Open::new(&mut file, ByteOrder::Little, kind);
        block.bytes(&[0; 12]);
        block.u32(frame.len() as u32);
        block.u32(frame.len() as u32);
        block.bytes(&frame);
        block.option(block::EPB_FLAGS, &[1, 0, 0, 0]);
        block.option(block::EPB_HASH, &HASH);
        block.end_of_options(true);
        block.finish();
    }
    let (cut, _) = rewritten(&file, true, Privacy::new(true, None));
    let (anonymized, _) = rewritten(&file, true, anonymous());
    for out in [&cut, &anonymized] {
        assert!(!contains(out, &HASH));
        assert!(contains(out, &[2, 0, 4, 0, 1, 0, 0, 0]), "flags");
    }
    assert!(!contains(&anonymized, GUID.as_bytes()) && !contains(&anonymized, BUILD.as_bytes()));
    let reader = &mut CaptureReader::new(&anonymized[..]).expect("a header");
    reader.next_packet().expect("whole").expect("a packet");
    let name = reader.interfaces()[0].name.as_deref().expect("a name");
    assert!(name.starts_with(r"\Device\NPF_{host-") && name.ends_with('}'), "{name}");
}

/// The offset tells how long the host has been running, and so identifies it.
#[test]
fn offset_of_the_clocks_is_left_out_with_the_addresses_alone() {
    let mut file = Vec::new();
    let offset = Some("monotonic-offset=17");
    write::section_header(&mut file, &write::SectionHeader { comment: offset, ..Default::default() });
    write::remark(&mut file, "monotonic-offset=18");
    let offset_after = |privacy| {
        let (out, _) = rewritten(&file, true, privacy);
        let mut reader = CaptureReader::new(&out[..]).expect("a header");
        assert!(!reader.advance().expect("whole blocks"));
        reader.monotonic_offset()
    };
    assert_eq!(offset_after(anonymous()), None);
    assert_eq!(offset_after(Privacy::new(true, None)), Some(18));
}
