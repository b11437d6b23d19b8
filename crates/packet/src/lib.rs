//! Capture file formats, and decoding and building of packets. No root, no system calls.
//!
//! Builds a packet, writes it to a pcap file in memory, reads it again and decodes it:
//!
//! ```
//! use trawl_packet::build::Template;
//! use trawl_packet::decode::summary;
//! use trawl_packet::pcap;
//! use trawl_packet::read::CaptureReader;
//!
//! let frame = Template::new()
//!     .ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
//!     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
//!     .udp(40000, 53)
//!     .payload(*b"hello")
//!     .build();
//! let mut file = Vec::new();
//! pcap::file_header(&mut file, 1, 65_535);
//! pcap::record(&mut file, 1_700_000_000_000_000_000, &frame, frame.len() as u32);
//!
//! // Any pcap or pcapng file can be read, compressed or not.
//! let mut reader = CaptureReader::new(&file[..])?;
//! while let Some(packet) = reader.next_packet()? {
//!     let found = summary(packet.link_type, packet.captured);
//!     assert_eq!(found.ip.expect("an IP header").dst.to_string(), "10.0.0.2");
//!     assert!(!found.incomplete);
//! }
//! # Ok::<(), trawl_packet::read::ReadError>(())
//! ```

pub mod anonymize;
pub mod application;
pub mod build;
pub mod checksum;
pub mod decode;
pub mod fnv;
pub mod freed;
mod input;
pub mod link_type;
pub mod net;
pub mod pcap;
pub mod pcapng;
pub mod read;
pub mod seekable;
pub mod verdict;
pub mod walk;
