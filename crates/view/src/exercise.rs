//! Drives the parsers over any bytes: the body of the fuzz targets, shared with the test that
//! replays their seeds so that both mean the same.

use std::io::Read;

use crate::print::{Dump, DumpForm, PrintOptions, Printer};
use crate::record::PacketView;
use trawl_packet::decode;
use trawl_packet::pcap;
use trawl_packet::pcapng::block;
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::read::{CaptureReader, compressed};
use trawl_packet::seekable;

/// Reads a whole file and prints its packets.
pub fn capture_file(bytes: &[u8]) {
    let Ok(mut reader) = CaptureReader::new(bytes) else {
        return;
    };
    let mut printer = Printer::new(PrintOptions {
        verbosity: 1,
        ..PrintOptions::default()
    });
    let mut line = String::new();
    while let Ok(Some(packet)) = reader.next_packet() {
        line.clear();
        let view = PacketView {
            timestamp_ns: packet.timestamp_ns,
            link_type: packet.link_type,
            captured: packet.captured,
            original_len: packet.original_len,
            direction: packet.options.direction(),
            verdict: packet.options.verdict,
            ..PacketView::default()
        };
        printer.line(&mut line, &view);
    }
}

/// What a compressed file may come to here: a few bytes can stand for more than a fuzzer has memory for.
const MOST_UNPACKED: u64 = 4 << 20;

/// A file that may be compressed, and its table of frames if it has one.
pub fn compressed_file(bytes: &[u8]) {
    if let Ok((source, _)) = compressed::open(bytes) {
        let mut unpacked = Vec::new();
        // An error comes after what was sound.
        let _ = source.take(MOST_UNPACKED).read_to_end(&mut unpacked);
        capture_file(&unpacked);
    }
    if let Ok(frames) = seekable::frames(bytes) {
        for frame in frames.iter().take(4) {
            let end = frame.offset.checked_add(frame.compressed.into());
            let part = end.and_then(|end| bytes.get(frame.offset as usize..end as usize));
            // Its length is what the table says, so that nothing larger is made of it.
            if let Some(part) = part.filter(|_| u64::from(frame.decompressed) <= MOST_UNPACKED) {
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

/// Prints and summarises one packet. The first byte picks the link type and the options.
pub fn packet(bytes: &[u8]) {
    const LINK_TYPES: [u16; 4] = [
        block::LINKTYPE_ETHERNET,
        block::LINKTYPE_RAW,
        block::LINKTYPE_LINUX_SLL2,
        block::LINKTYPE_NULL,
    ];
    let Some((&choice, captured)) = bytes.split_first() else {
        return;
    };
    let link_type = LINK_TYPES[usize::from(choice & 3)];
    let options = PrintOptions {
        link_header: choice & 4 != 0,
        verbosity: choice >> 3 & 3,
        dump: (choice & 32 != 0).then_some(Dump {
            form: DumpForm::HexAscii,
            link_header: false,
        }),
        ..PrintOptions::default()
    };
    // As if the snapshot length had cut some bytes off.
    let original_len = captured.len() as u32 + u32::from(choice >> 6) * 100;
    let view = PacketView {
        link_type,
        captured,
        original_len,
        ..PacketView::default()
    };
    let mut line = String::new();
    let mut printer = Printer::new(options);
    printer.line(&mut line, &view);
    printer.line(&mut line, &view);
    decode::summary(link_type, captured);
}
