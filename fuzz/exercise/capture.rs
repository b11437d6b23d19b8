//! Drives the parsers of packets and capture files with arbitrary bytes. The fuzz targets and the tests that replay and
//! mutate their seeds share these functions.
#![allow(dead_code, reason = "each target uses its own part")]

use std::io::{self, Cursor, Read};

use trawl_packet::anonymize::Addresses;
use trawl_packet::application;
use trawl_packet::build::{Tcp, Template};
use trawl_packet::decode;
use trawl_packet::pcap;
use trawl_packet::pcapng::block;
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::read::{CaptureReader, FileFormat, Step, compressed};
use trawl_packet::seekable::{self, Seekable};
use trawl_packet::walk::walk;
use trawl_view::Show;
use trawl_view::json::JsonLines;
use trawl_view::print::{Dump, DumpForm, PrintOptions, Printer};
use trawl_view::record::{PacketSource, PacketView};
use trawl_view::rewrite::{Privacy, Rewriter};
use trawl_view::stat::{Field, FileFacts, FileFigures, Statistics, Stored};

/// Reads a whole file, prints its packets, and summarises them and the blocks between.
pub fn capture_file(bytes: &[u8]) {
    let Ok(mut reader) = CaptureReader::new(bytes) else {
        return;
    };
    let mut printer = Printer::new(PrintOptions { verbosity: 1, ..PrintOptions::default() });
    let mut json = JsonLines;
    let mut statistics = Statistics::new(vec![Field::Src, Field::Verdict, Field::Reason]);
    let mut figures = FileFigures::default();
    let mut line = String::new();
    while let Ok(Some(step)) = reader.step() {
        match step {
            Step::Block { kind } => {
                let (order, first) = (reader.byte_order(), reader.first_interface());
                figures.block(kind, reader.raw(), order, first);
            }
            Step::Packet => {
                let Some(view) = PacketSource::current(&reader) else {
                    continue;
                };
                line.clear();
                printer.line(&mut line, &view);
                json.show(&mut line, &view);
                statistics.add(&view);
                figures.packet(&Stored {
                    timestamp_ns: view.timestamp_ns,
                    interface: reader.time_and_interface().map_or(0, |(_, id)| id),
                    link_type: view.link_type,
                    captured: view.captured.len() as u32,
                    original_len: view.original_len,
                    direction: view.direction,
                });
            }
        }
    }
    let file = figures.report(FileFacts::default(), reader.interfaces());
    let report = statistics.report(vec![file], 3);
    assert!(report.text(str::to_owned).ends_with('\n'));
    anonymized(bytes);
    rewritten(bytes, false);
    rewritten(bytes, true);
}

/// Anonymizes a file and checks that the copy holds as many packets and no damage.
fn anonymized(bytes: &[u8]) {
    let (Ok(mut reader), Ok(addresses)) = (CaptureReader::new(bytes), Addresses::new(&[7; 32])) else {
        return;
    };
    // Anonymized records of pcap become pcapng blocks, because the rewriter copies pcap records only unchanged.
    let verbatim = reader.pcap_header().is_none();
    let privacy = Privacy::new(true, Some(addresses));
    let mut rewriter = Rewriter::new(verbatim, "trawl".to_owned()).with_privacy(privacy);
    let (mut copy, mut packets) = (Vec::new(), 0);
    while let Ok(Some(step)) = reader.step() {
        match step {
            Step::Block { kind } => rewriter.block(&mut copy, 0, &reader, kind),
            Step::Packet => {
                rewriter.packet(&mut copy, 0, &reader);
                packets += 1;
            }
        }
    }
    rewriter.start(&mut copy, &reader);
    let mut copied = match CaptureReader::new(&copy[..]) {
        Ok(copied) => copied,
        Err(_) if packets == 0 => return,
        Err(error) => panic!("anonymized: {error}"),
    };
    let mut there = 0;
    while copied.advance().expect("a file that is whole") {
        there += 1;
    }
    assert_eq!(there, packets, "anonymized");
}

/// Rewrites a file and checks that the copy holds the same packets and no damage.
fn rewritten(bytes: &[u8], verbatim: bool) {
    let Ok(mut reader) = CaptureReader::new(bytes) else {
        return;
    };
    let mut rewriter = Rewriter::new(verbatim, "trawl".to_owned());
    let mut copy = Vec::new();
    let mut packets = Vec::new();
    while let Ok(Some(step)) = reader.step() {
        match step {
            Step::Block { kind } => rewriter.block(&mut copy, 0, &reader, kind),
            Step::Packet => {
                rewriter.packet(&mut copy, 0, &reader);
                packets.extend(reader.stored().map(<[u8]>::to_vec));
            }
        }
    }
    rewriter.start(&mut copy, &reader);
    let mut there = 0;
    let mut copied = match CaptureReader::new(&copy[..]) {
        Ok(copied) => copied,
        // A file without a header holds nothing to compare.
        Err(_) if packets.is_empty() => return,
        Err(error) => panic!("verbatim {verbatim}: {error}"),
    };
    while copied.advance().expect("a file that is whole") {
        // The first records decide the variant of pcap. Damaged records, which the copy lacks, also count for that, so
        // the copy may be recognised as another variant.
        if matches!(copied.format(), FileFormat::Pcap { modified: true, .. }) {
            return;
        }
        assert_eq!(copied.stored(), packets.get(there).map(Vec::as_slice));
        there += 1;
    }
    assert_eq!(there, packets.len(), "verbatim {verbatim}");
}

const LINKTYPE_FRELAY: u16 = 107;

/// Maximum number of decompressed bytes. A few compressed bytes can expand to more than a fuzzer's memory.
const MAX_DECOMPRESSED: u64 = 4 << 20;

/// Reads a file that may be compressed, and its table of frames if it has one.
pub fn compressed_file(bytes: &[u8]) {
    if let Ok((source, _)) = compressed::open(bytes) {
        let mut unpacked = Vec::new();
        // The undamaged part before an error is still parsed.
        let _ = source.take(MAX_DECOMPRESSED).read_to_end(&mut unpacked);
        capture_file(&unpacked);
    }
    if let Ok(Some(seekable)) = Seekable::open(Cursor::new(bytes))
        && let Ok(Some(parts)) = seekable.between(|first| (first, first.saturating_add(1 << 40)))
    {
        let _ = io::copy(&mut parts.take(MAX_DECOMPRESSED), &mut io::sink());
    }
    if let Ok(frames) = seekable::frames(bytes) {
        for frame in frames.iter().take(4) {
            let end = frame.offset.checked_add(frame.compressed.into());
            let part = end.and_then(|end| bytes.get(frame.offset as usize..end as usize));
            // The decompression allocates as many bytes as the table gives, so larger frames are skipped.
            if let Some(part) = part.filter(|_| u64::from(frame.decompressed) <= MAX_DECOMPRESSED) {
                let _ = seekable::decompress(frame, part);
            }
        }
    }
}

/// Walks blocks, reads their options, and turns them into pcap records.
pub fn blocks(bytes: &[u8]) {
    let mut records = Vec::new();
    let mut walk = block::blocks(bytes);
    let mut walked = 0;
    for block in walk.by_ref() {
        walked += block.total_len();
        if let Some(packet) = block.enhanced_packet() {
            let _ = PacketOptions::parse(packet.options());
        }
        pcap::record_from_block(&mut records, &block);
    }
    assert_eq!(walked + walk.rest().len(), bytes.len());
}

/// Prints and summarises one packet. The first byte selects the link type and the options. A packet of another link
/// type than Ethernet is also read as a frame of each serial link.
pub fn packet(bytes: &[u8]) {
    const LINK_TYPES: [u16; 4] =
        [block::LINKTYPE_ETHERNET, block::LINKTYPE_RAW, block::LINKTYPE_LINUX_SLL2, block::LINKTYPE_NULL];
    let Some((&choice, captured)) = bytes.split_first() else {
        return;
    };
    const SERIAL: [u16; 6] = [
        LINKTYPE_FRELAY,
        block::LINKTYPE_PPP,
        block::LINKTYPE_PPP_HDLC,
        block::LINKTYPE_PPP_ETHER,
        block::LINKTYPE_C_HDLC,
        block::LINKTYPE_LINUX_SLL,
    ];
    let link_type = LINK_TYPES[usize::from(choice & 3)];
    one_packet(link_type, choice, captured);
    if link_type != block::LINKTYPE_ETHERNET {
        for link_type in SERIAL {
            one_packet(link_type, choice, captured);
        }
    }
}

fn one_packet(link_type: u16, choice: u8, captured: &[u8]) {
    let options = PrintOptions {
        link_header: choice & 4 != 0,
        verbosity: choice >> 3 & 3,
        dump: (choice & 32 != 0).then_some(Dump { form: DumpForm::HexAscii, link_header: false }),
        ..PrintOptions::default()
    };
    // For some packets, the original length is larger, as if the snapshot length had cut off some bytes.
    let original_len = captured.len() as u32 + u32::from(choice >> 6) * 100;
    let view = PacketView { link_type, captured, original_len, ..PacketView::default() };
    let mut line = String::new();
    let mut printer = Printer::new(options);
    printer.line(&mut line, &view);
    printer.line(&mut line, &view);
    decode::summary(link_type, captured);
}

/// Looks for names in the payload of a packet. The first byte selects the protocol and the port.
pub fn names(bytes: &[u8]) {
    const UDP_PORTS: [u16; 3] = [53, 4789, 6081];
    let Some((&choice, payload)) = bytes.split_first() else {
        return;
    };
    let packet = Template::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let packet = match UDP_PORTS.get(usize::from(choice & 3)) {
        Some(port) => packet.udp(40_000, *port),
        None => packet.tcp(Tcp { src: 40_000, dst: if choice & 4 == 0 { 53 } else { 443 }, ..Tcp::default() }),
    };
    let packet = packet.payload(payload).build();
    let headers = walk(block::LINKTYPE_RAW, &packet);
    let host = application::http_host(&headers);
    let mut names = vec![application::dns_name(&headers), host.map(|host| host.into_owned())];
    if let Some(hello) = application::client_hello(&headers) {
        assert!(hello.ja4.as_ref().is_none_or(|ja4| ja4.len() == 36));
        names.extend([hello.server_name, hello.ja4]);
    }
    for name in names.into_iter().flatten() {
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    assert!(application::vni(&headers).is_none_or(|vni| vni < 1 << 24));
}
