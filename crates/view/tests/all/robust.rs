//! The printer and the summary accept any bytes: random ones, cut ones, changed ones.

use crate::packets;
use proptest::prelude::*;
use trawl_packet::decode;
use trawl_view::print::{Dump, DumpForm, PrintOptions, Printer, Timestamp};
use trawl_view::record::PacketView;

const LINK_TYPES: [u16; 8] = [0, 1, 101, 107, 113, 276, 2, 65_535];

/// Returns options from the tersest to the most verbose.
fn all_options() -> [PrintOptions; 3] {
    let plain = PrintOptions::default();
    let dump = Some(Dump { form: DumpForm::Ascii, link_header: false });
    [
        plain,
        PrintOptions { verbosity: 1, dump, timestamp: Timestamp::DeltaFirst, ..plain },
        PrintOptions { verbosity: 3, link_header: true, timestamp: Timestamp::Date, ..plain },
    ]
}

fn show(printers: &mut [Printer], link_type: u16, captured: &[u8], original_len: u32) {
    let view = PacketView { link_type, captured, original_len, ..PacketView::default() };
    for printer in printers {
        let mut out = String::new();
        printer.line(&mut out, &view);
        assert!(out.ends_with('\n'));
        // No byte of a packet reaches the terminal as a control character.
        assert!(out.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()), "{out:?}");
    }
    decode::summary(link_type, captured);
}

fn printers() -> Vec<Printer> {
    all_options().map(Printer::new).into()
}

#[test]
fn every_packet_cut_at_every_byte() {
    let mut printers = printers();
    for case in packets::all() {
        for cut in 0..=case.bytes.len() {
            show(&mut printers, case.link_type, &case.bytes[..cut], case.original_len as u32);
            show(&mut printers, case.link_type, &case.bytes[..cut], cut as u32);
        }
    }
}

#[test]
fn every_packet_with_every_byte_changed() {
    let mut printers = printers();
    for case in packets::all() {
        let mut bytes = case.bytes.clone();
        for at in 0..bytes.len() {
            let stored = bytes[at];
            for value in [0, 1, 0x7f, 0x80, 0xff, stored ^ 1, stored ^ 0x10] {
                bytes[at] = value;
                show(&mut printers, case.link_type, &bytes, case.original_len as u32);
            }
            bytes[at] = stored;
        }
    }
}

proptest! {
    #[test]
    fn random_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        link_type in proptest::sample::select(&LINK_TYPES[..]),
        original_len in any::<u32>(),
    ) {
        show(&mut printers(), link_type, &bytes, original_len);
    }

    #[test]
    fn random_bytes_after_a_known_start(
        case in any::<prop::sample::Index>(),
        keep in 0..80usize,
        bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let all = packets::all();
        let case = &all[case.index(all.len())];
        let mut start = case.bytes.clone();
        start.truncate(keep);
        start.extend(bytes);
        show(&mut printers(), case.link_type, &start, start.len() as u32);
    }
}
