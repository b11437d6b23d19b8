//! Packets that were read, as a file again. A single file that keeps its format is copied record by record and block by
//! block, unknown types too; only records of Nokia's and Red Hat's variants, which the header of their file does not
//! show, become usual ones. Several files, or one in another format, become one section with the interfaces of all
//! files.

mod big_endian;
mod privacy;

use std::collections::{HashMap, HashSet};

use trawl_packet::pcap;
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::{self, ByteOrder, HEADER_LEN};
use trawl_packet::pcapng::processes::Processes;
use trawl_packet::pcapng::write::{
    EnhancedPacket, SectionHeader, enhanced_packet, interface_description, section_header, with_process_in_comment,
};
use trawl_packet::read::{CaptureReader, Packet};

use privacy::Written;
pub use privacy::{LeftOut, Privacy};

/// The format of an output file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Pcapng,
    Pcap,
}

/// Reasons why a packet cannot be written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RewriteError {
    #[error("a pcap file holds packets of one link type, and there are packets of types {first} and {other}")]
    LinkTypes { first: u16, other: u16 },
    #[error("the times of a pcap file end in 2106, and the time of a packet is {seconds} seconds after 1970")]
    Late { seconds: u64 },
}

/// Appends whole records or blocks to a buffer.
#[derive(Debug)]
pub struct Rewriter {
    format: Format,
    verbatim: bool,
    application: String,
    started: bool,
    link_type: Option<u16>,
    /// Numbers of the interfaces in the new file, by file and by number in that file.
    interfaces: HashMap<(usize, usize), u32>,
    written_interfaces: u32,
    /// Interfaces whose descriptions were copied unchanged.
    carried: HashSet<u32>,
    /// Processes that the new file describes.
    processes: Processes,
    left_out: u64,
    privacy: Option<Privacy>,
}

impl Rewriter {
    /// Creates a rewriter; `verbatim` if the single file is of that format, or all files have the same header.
    pub fn new(format: Format, verbatim: bool, application: String) -> Self {
        Self {
            format,
            verbatim,
            application,
            started: false,
            link_type: None,
            interfaces: HashMap::new(),
            written_interfaces: 0,
            carried: HashSet::new(),
            processes: Processes::default(),
            left_out: 0,
            privacy: None,
        }
    }

    /// Removes parts of packets and blocks from now on. Records of pcap are then not copied as they are.
    pub fn with_privacy(self, privacy: Privacy) -> Self {
        Self { verbatim: self.verbatim && self.format == Format::Pcapng, privacy: Some(privacy), ..self }
    }

    /// Returns the parts left out for privacy.
    pub fn private(&self) -> Option<LeftOut> {
        self.privacy.as_ref().map(Privacy::left_out)
    }

    /// Returns the number of blocks that could not be copied, from big-endian sections and with an unknown layout of
    /// numbers.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Writes the header of a pcapng file before any file is read.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.started, true) {
            section_header(out, &SectionHeader { userappl: Some(&self.application), ..SectionHeader::default() });
        }
    }

    /// Returns the files of the interfaces in the new file, with their numbers.
    pub fn files(&self) -> impl Iterator<Item = (u32, usize)> {
        self.interfaces.iter().map(|((file, _), id)| (*id, *file))
    }

    /// Writes the header; a file without packets is still a valid file.
    pub fn start(&mut self, out: &mut Vec<u8>, reader: &CaptureReader<'_>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        match (self.format, self.verbatim) {
            (Format::Pcap, true) => out.extend_from_slice(reader.pcap_header().unwrap_or_default()),
            (Format::Pcap, false) => {
                // The type of the first packet to be written: the first interface may have no wanted packet.
                let packet = reader.current().map(|packet| packet.link_type);
                let of_file = || reader.interfaces().first().map(|one| one.link_type);
                let link_type = packet.or_else(of_file).unwrap_or(block::LINKTYPE_ETHERNET);
                self.link_type = Some(link_type);
                pcap::file_header(out, link_type, 0);
            }
            // The blocks of a file that is copied include the header, unless the file is cut before its end.
            (Format::Pcapng, _) => {
                section_header(out, &SectionHeader { userappl: Some(&self.application), ..SectionHeader::default() })
            }
        }
    }

    /// Appends the reader's current block without a packet.
    pub fn block(&mut self, out: &mut Vec<u8>, file: usize, reader: &CaptureReader<'_>, kind: u32) {
        let from = out.len();
        self.append_block(out, file, reader, kind);
        let order = self.order_written(reader);
        if let Some(privacy) = &mut self.privacy {
            privacy.blocks(out, from, order, None);
        }
    }

    /// Returns the byte order of blocks that were appended.
    fn order_written(&self, reader: &CaptureReader<'_>) -> ByteOrder {
        match self.verbatim {
            true => reader.byte_order(),
            false => ByteOrder::Little,
        }
    }

    fn append_block(&mut self, out: &mut Vec<u8>, file: usize, reader: &CaptureReader<'_>, kind: u32) {
        if self.format == Format::Pcap {
            return;
        }
        if self.verbatim {
            self.started = true;
            out.extend_from_slice(reader.raw());
            return;
        }
        self.start(out, reader);
        let from = out.len();
        match kind {
            block::SECTION_HEADER => {}
            block::INTERFACE_DESCRIPTION => {
                self.interface(out, file, reader.interfaces().len().saturating_sub(1), reader);
            }
            block::INTERFACE_STATISTICS => self.statistics(out, file, reader),
            _ if reader.byte_order() == ByteOrder::Big => {
                let is_carried = big_endian::other(out, reader.raw(), kind);
                self.left_out += u64::from(!is_carried);
            }
            _ => out.extend_from_slice(reader.raw()),
        }
        block::blocks(&out[from..]).for_each(|block| self.processes.add_block(&block));
    }

    /// Appends the reader's current packet.
    pub fn packet(&mut self, out: &mut Vec<u8>, file: usize, reader: &CaptureReader<'_>) -> Result<(), RewriteError> {
        self.start(out, reader);
        let from = out.len();
        self.append_packet(out, file, reader)?;
        let order = self.order_written(reader);
        if let (Some(privacy), Some(packet), Some(stored)) = (&mut self.privacy, reader.current(), reader.stored()) {
            let link_type = packet.link_type;
            let written = Written { link_type, stored };
            match self.format {
                Format::Pcap => privacy.record(out, from, written),
                Format::Pcapng => privacy.blocks(out, from, order, Some(written)),
            }
        }
        Ok(())
    }

    fn append_packet(
        &mut self,
        out: &mut Vec<u8>,
        file: usize,
        reader: &CaptureReader<'_>,
    ) -> Result<(), RewriteError> {
        if self.verbatim {
            match reader.pcap_record() {
                // Files with equal headers may be of different variants.
                Some(parts) => parts.iter().for_each(|part| out.extend_from_slice(part)),
                None => out.extend_from_slice(reader.raw()),
            }
            return Ok(());
        }
        let (Some(packet), Some(stored)) = (reader.current(), reader.stored()) else {
            return Ok(());
        };
        if self.format == Format::Pcap {
            let first = *self.link_type.get_or_insert(packet.link_type);
            if first != packet.link_type {
                let other = packet.link_type;
                return Err(RewriteError::LinkTypes { first, other });
            }
            let seconds = packet.timestamp_ns / 1_000_000_000;
            if u32::try_from(seconds).is_err() {
                return Err(RewriteError::Late { seconds });
            }
            pcap::record(out, packet.timestamp_ns, stored, packet.original_len);
            return Ok(());
        }
        let id = self.interface(out, file, packet.interface, reader);
        let from = out.len();
        self.pcapng_packet(out, reader, &packet, stored, id);
        let (options, time) = (&packet.options, packet.timestamp_ns);
        let process = options.process.and(reader.processes().of_packet(options, time));
        // In another file, the number stands for another process.
        if let Some(process) = process
            && self.processes.find(process.id, time) != process.described
        {
            let block = out.split_off(from);
            with_process_in_comment(out, &block, &process.comment());
        }
        Ok(())
    }

    /// Appends a packet's block under the number of its interface in the new file.
    fn pcapng_packet(
        &self,
        out: &mut Vec<u8>,
        reader: &CaptureReader<'_>,
        packet: &Packet<'_>,
        stored: &[u8],
        id: u32,
    ) {
        let raw = reader.raw();
        let is_block = reader.pcap_header().is_none();
        let is_enhanced = is_block
            && packet.byte_order == ByteOrder::Little
            && raw.starts_with(&block::ENHANCED_PACKET.to_le_bytes());
        if is_enhanced {
            copy_with_interface(out, raw, id);
            return;
        }
        // In the units of the description that was copied.
        let is_carried = self.carried.contains(&id);
        let described = reader.interfaces().get(packet.interface);
        let ticks = match described {
            Some(interface) if is_carried => interface.ticks(packet.timestamp_ns),
            _ => packet.timestamp_ns,
        };
        if is_block && packet.byte_order == ByteOrder::Big {
            let changed = (!is_carried).then_some(ticks);
            if big_endian::packet(out, raw, id, changed) {
                return;
            }
        }
        let comment = packet.options.comments.first();
        enhanced_packet(
            out,
            &EnhancedPacket {
                interface_id: id,
                timestamp_ns: ticks,
                captured: stored,
                original_len: packet.original_len,
                flags: packet.options.flags,
                queue: packet.options.queue,
                packet_id: packet.options.packet_id,
                drop_count: packet.options.drop_count,
                verdict: packet.options.verdict,
                process: packet.options.process,
                comment: comment.map(AsRef::as_ref),
            },
        );
    }

    /// Appends statistics of an interface under its number in the new file; an undescribed interface's are dropped.
    fn statistics(&self, out: &mut Vec<u8>, file: usize, reader: &CaptureReader<'_>) {
        let (raw, order) = (reader.raw(), reader.byte_order());
        let stored = raw.get(HEADER_LEN..).and_then(|body| body.first_chunk());
        let index = stored.map(|id| order.u32(*id) as usize).and_then(|id| id.checked_add(reader.first_interface()));
        let Some(id) = index.and_then(|index| self.interfaces.get(&(file, index))) else {
            return;
        };
        match order {
            ByteOrder::Little => copy_with_interface(out, raw, *id),
            ByteOrder::Big => big_endian::statistics(out, raw, *id),
        }
    }

    /// Returns the number of an interface in the new file; its first use appends its description.
    fn interface(&mut self, out: &mut Vec<u8>, file: usize, index: usize, reader: &CaptureReader<'_>) -> u32 {
        if let Some(known) = self.interfaces.get(&(file, index)) {
            return *known;
        }
        let raw = reader.raw();
        let stays_as_stored = !reader.names_host()
            && reader.pcap_header().is_none()
            && match reader.byte_order() {
                ByteOrder::Little => {
                    let is_description = raw.starts_with(&block::INTERFACE_DESCRIPTION.to_le_bytes());
                    out.extend_from_slice(if is_description { raw } else { &[] });
                    is_description
                }
                ByteOrder::Big => big_endian::interface(out, raw),
            };
        let id = self.written_interfaces;
        if stays_as_stored {
            self.carried.insert(id);
        } else {
            let described = reader.interfaces().get(index).cloned().unwrap_or_default();
            let nanoseconds = Interface {
                tsresol: block::TSRESOL_NANOSECONDS,
                tsoffset: 0,
                // Records of pcap may exceed the limit of their file; in pcapng libpcap refuses such packets, and files
                // whose interfaces have different limits.
                snaplen: match reader.pcap_header() {
                    Some(_) => 0,
                    None => described.snaplen,
                },
                ..described
            };
            interface_description(out, &nanoseconds);
        }
        self.written_interfaces += 1;
        self.interfaces.insert((file, index), id);
        id
    }
}

/// Copies a little-endian block whose body begins with the number of an interface, with another number.
fn copy_with_interface(out: &mut Vec<u8>, raw: &[u8], id: u32) {
    let start = out.len();
    out.extend_from_slice(raw);
    if let Some(field) = out.get_mut(start + HEADER_LEN..start + HEADER_LEN + 4) {
        field.copy_from_slice(&id.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::{PacketProcess, Process, write};
    use trawl_packet::read::Step;

    use super::*;

    /// A file of one host: a description of process 7, and packets of it at these times.
    fn file(name: &str, start: u64, times: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        section_header(&mut out, &SectionHeader::default());
        interface_description(&mut out, &Interface::default());
        write::process(
            &mut out,
            &Process { id: 7, name: Some(name.to_owned()), start_ns: Some(start), ..Process::default() },
        );
        for time in times {
            let packet = EnhancedPacket {
                timestamp_ns: *time,
                process: Some(PacketProcess { id: 7, thread: 0 }),
                ..EnhancedPacket::default()
            };
            enhanced_packet(&mut out, &packet);
        }
        out
    }

    #[test]
    fn processes_of_two_files_are_told_apart() {
        let files = [file("old", 100, &[150, 500]), file("new", 200, &[300, 600])];
        let mut rewriter = Rewriter::new(Format::Pcapng, false, String::new());
        let mut out = Vec::new();
        for (number, file) in files.iter().enumerate() {
            let mut reader = CaptureReader::new(&file[..]).expect("a header");
            while let Some(step) = reader.step().expect("whole blocks") {
                match step {
                    Step::Packet => rewriter.packet(&mut out, number, &reader).expect("pcapng"),
                    Step::Block { kind } => rewriter.block(&mut out, number, &reader, kind),
                }
            }
        }
        // A later process has the number of the first file's packet at 500 now.
        let mut reader = CaptureReader::new(&files[0][..]).expect("a header");
        while reader.advance().expect("whole blocks") {
            rewriter.packet(&mut out, 0, &reader).expect("pcapng");
        }
        let mut reader = CaptureReader::new(&out[..]).expect("a header");
        let mut names = Vec::new();
        while reader.advance().expect("whole blocks") {
            let packet = reader.current().expect("a packet");
            let time = packet.timestamp_ns;
            let process = reader.processes().of_packet(&packet.options, time);
            let name = process.and_then(|process| process.name?.parse().ok());
            names.push((time, name, packet.options.process.is_some()));
        }
        let expected = [
            (150, "old", true),
            (500, "old", true),
            (300, "new", true),
            (600, "new", true),
            (150, "old", true),
            (500, "old", false),
        ];
        let expected = expected.map(|(time, name, has)| (time, Some(name.to_owned()), has));
        assert_eq!(names, expected);
    }
}
