//! Packets as people and machines see them: lines in tcpdump's format, JSON, statistics and live views, all made from
//! one record view. No root, no system calls.
//!
//! A capture file's packets as lines in tcpdump's format:
//!
//! ```
//! use trawl_packet::read::CaptureReader;
//! use trawl_view::print::{PrintOptions, Printer};
//! use trawl_view::record::PacketSource;
//!
//! # let mut file = Vec::new();
//! # trawl_packet::pcap::file_header(&mut file, 1, 65_535);
//! # let frame = trawl_packet::build::Template::new()
//! #     .ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
//! #     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
//! #     .udp(40000, 9)
//! #     .payload(*b"hello")
//! #     .build();
//! # trawl_packet::pcap::record(&mut file, 0, &frame, frame.len() as u32);
//! let mut reader = CaptureReader::new(&file[..])?;
//! let mut printer = Printer::new(PrintOptions::default());
//! let mut text = String::new();
//! while PacketSource::advance(&mut reader)? {
//!     if let Some(packet) = PacketSource::current(&reader) {
//!         printer.line(&mut text, &packet);
//!     }
//! }
//! assert!(text.contains("IP 10.0.0.1.40000 > 10.0.0.2.9: UDP, length 5"), "{text}");
//! # Ok::<(), trawl_packet::read::ReadError>(())
//! ```
//!
//! Any [`Source`](record::PacketSource) can be shown: a file, the blocks of a running capture, or packets that a
//! program makes up. [`json::JsonLines`] prints the same packets for machines, [`stat::Statistics`] counts them.

pub mod json;
pub mod merge;
pub mod print;
pub mod record;
pub mod rewrite;
pub mod stat;
pub mod table;
pub mod text;
pub mod why;

use record::PacketView;

/// A form in which packets are shown, one after the other.
pub trait Show {
    /// Appends the packet, with its line end.
    fn show(&mut self, out: &mut String, packet: &PacketView<'_>);

    /// Appends the text after the last packet.
    fn end(&mut self, _out: &mut String) {}
}

impl Show for print::Printer {
    fn show(&mut self, out: &mut String, packet: &PacketView<'_>) {
        self.line(out, packet);
    }
}
