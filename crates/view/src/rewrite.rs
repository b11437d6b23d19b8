//! Writes packets that were read from files to a new file. A single file that keeps its format is copied record by
//! record and block by block, including unknown types; only records of Nokia's and Red Hat's variants, which the header
//! of their file does not show, are converted to the usual layout. Several files, or one in another format, become one
//! section of pcapng with the interfaces of all files.

mod big_endian;
mod privacy;

use std::collections::{HashMap, HashSet};

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::OptionList;
use trawl_packet::pcapng::block::{self, ByteOrder, HEADER_LEN};
use trawl_packet::pcapng::processes::Processes;
use trawl_packet::pcapng::write::{
    EnhancedPacket, SectionHeader, enhanced_packet, interface_description, section_header, with_process_in_comment,
};
use trawl_packet::read::{CaptureReader, Packet};

use privacy::Written;
pub use privacy::{LeftOut, Privacy};

/// Appends whole records or blocks to a buffer.
#[derive(Debug)]
pub struct Rewriter {
    verbatim: bool,
    application: String,
    started: bool,
    /// Numbers of the interfaces in the new file, by file and by number in that file.
    interfaces: HashMap<(usize, usize), u32>,
    written_interfaces: u32,
    /// True if all times become nanoseconds, for outputs that know no other unit.
    in_nanoseconds: bool,
    /// Interfaces whose descriptions were copied unchanged.
    carried: HashSet<u32>,
    /// Processes that the new file describes.
    processes: Processes,
    left_out: u64,
    privacy: Option<Privacy>,
}

impl Rewriter {
    /// Creates a rewriter; `verbatim` if the single file keeps its format, or all files are of pcap with the same
    /// header.
    pub fn new(verbatim: bool, application: String) -> Self {
        Self {
            verbatim,
            application,
            started: false,
            interfaces: HashMap::new(),
            written_interfaces: 0,
            in_nanoseconds: false,
            carried: HashSet::new(),
            processes: Processes::default(),
            left_out: 0,
            privacy: None,
        }
    }

    /// Removes parts of packets and blocks from now on. Records of pcap that are copied stay as they are.
    pub fn with_privacy(self, privacy: Privacy) -> Self {
        Self { privacy: Some(privacy), ..self }
    }

    /// Converts the times of all interfaces to nanoseconds.
    pub fn in_nanoseconds(self) -> Self {
        Self { in_nanoseconds: true, ..self }
    }

    /// Returns true if blocks and records are copied as they are.
    pub fn is_verbatim(&self) -> bool {
        self.verbatim
    }

    /// Returns the parts left out for privacy.
    pub fn left_out_for_privacy(&self) -> Option<LeftOut> {
        self.privacy.as_ref().map(Privacy::left_out)
    }

    /// Returns the number of blocks that could not be copied, from big-endian sections and with an unknown layout of
    /// numbers.
    pub fn blocks_left_out(&self) -> u64 {
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
        match reader.pcap_header().filter(|_| self.verbatim) {
            Some(header) => out.extend_from_slice(header),
            // The blocks of a file that is copied include the header, unless the file is cut before its end.
            None => {
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
        if self.verbatim { reader.byte_order() } else { ByteOrder::Little }
    }

    fn append_block(&mut self, out: &mut Vec<u8>, file: usize, reader: &CaptureReader<'_>, kind: u32) {
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
    pub fn packet(&mut self, out: &mut Vec<u8>, file: usize, reader: &CaptureReader<'_>) {
        self.start(out, reader);
        let from = out.len();
        self.append_packet(out, file, reader);
        let order = self.order_written(reader);
        if let (Some(privacy), Some(packet), Some(stored)) = (&mut self.privacy, reader.current(), reader.stored()) {
            let link_type = packet.link_type;
            privacy.blocks(out, from, order, Some(Written { link_type, stored }));
        }
    }

    fn append_packet(&mut self, out: &mut Vec<u8>, file: usize, reader: &CaptureReader<'_>) {
        if self.verbatim {
            match reader.pcap_record() {
                // Files with equal headers may be of different variants.
                Some(parts) => parts.iter().for_each(|part| out.extend_from_slice(part)),
                None => out.extend_from_slice(reader.raw()),
            }
            return;
        }
        let (Some(packet), Some(stored)) = (reader.current(), reader.stored()) else {
            return;
        };
        let id = self.interface(out, file, packet.interface, reader);
        let from = out.len();
        self.pcapng_packet(out, reader, &packet, stored, id);
        let (options, time) = (&packet.options, packet.timestamp_ns);
        let process = options.process.and(reader.processes().of_packet(options, time));
        // The new file describes another process with this number.
        if let Some(process) = process
            && self.processes.find(process.id, time) != process.described
        {
            let block = out.split_off(from);
            with_process_in_comment(out, &block, &process.comment());
        }
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
            let start = out.len();
            copy_with_interface(out, raw, id);
            if !self.carried.contains(&id) {
                set_time(&mut out[start..], packet.timestamp_ns);
            }
            return;
        }
        // A copied description determines the units.
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
        let start = out.len();
        match order {
            ByteOrder::Little => copy_with_interface(out, raw, *id),
            ByteOrder::Big => big_endian::statistics(out, raw, *id),
        }
        let described = index.and_then(|index| reader.interfaces().get(index));
        if let Some(interface) = described.filter(|_| !self.carried.contains(id)) {
            statistics_in_nanoseconds(&mut out[start..], interface);
        }
    }

    /// Returns the number of an interface in the new file; its first use appends its description.
    fn interface(&mut self, out: &mut Vec<u8>, file: usize, index: usize, reader: &CaptureReader<'_>) -> u32 {
        if let Some(known) = self.interfaces.get(&(file, index)) {
            return *known;
        }
        let raw = reader.raw();
        let is_in_nanoseconds =
            |interface: &Interface| interface.tsresol == block::TSRESOL_NANOSECONDS && interface.tsoffset == 0;
        let stays_as_stored = !reader.names_host()
            && reader.pcap_header().is_none()
            && (!self.in_nanoseconds || reader.interfaces().get(index).is_some_and(is_in_nanoseconds))
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

/// Offset of the high half of the time in a block with the number of an interface.
const TIME: usize = HEADER_LEN + 4;

/// Sets the time of a little-endian block of a packet or of statistics.
fn set_time(block: &mut [u8], time: u64) {
    if let Some(field) = block.get_mut(TIME..TIME + 8) {
        field.copy_from_slice(&time.rotate_left(32).to_le_bytes());
    }
}

/// Converts the times of a little-endian block of statistics from the units of its interface.
fn statistics_in_nanoseconds(block: &mut [u8], interface: &Interface) {
    let time = |bytes: &[u8]| -> Option<u64> {
        let ticks = u64::from_le_bytes(*bytes.first_chunk()?).rotate_left(32);
        Some(interface.nanoseconds(ticks))
    };
    let Some(written) = block.get(TIME..).and_then(time) else {
        return;
    };
    set_time(block, written);
    let mut at = HEADER_LEN + block::ISB_FIXED_LEN;
    let options = block.get(at..).unwrap_or_default().to_vec();
    for option in OptionList::new(&options, ByteOrder::Little) {
        let value = at + 4;
        if let (block::ISB_STARTTIME | block::ISB_ENDTIME, Some(time), Some(field)) =
            (option.code, time(option.value), block.get_mut(value..value + 8))
        {
            field.copy_from_slice(&time.rotate_left(32).to_le_bytes());
        }
        at = value + block::padded(option.value.len());
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
    fn processes_of_two_files_are_distinguished() {
        let files = [file("old", 100, &[150, 500]), file("new", 200, &[300, 600])];
        let mut rewriter = Rewriter::new(false, String::new());
        let mut out = Vec::new();
        for (number, file) in files.iter().enumerate() {
            let mut reader = CaptureReader::new(&file[..]).expect("a header");
            while let Some(step) = reader.step().expect("whole blocks") {
                match step {
                    Step::Packet => rewriter.packet(&mut out, number, &reader),
                    Step::Block { kind } => rewriter.block(&mut out, number, &reader, kind),
                }
            }
        }
        // In the new file, the number of the first file's packet at 500 belongs to a later process.
        let mut reader = CaptureReader::new(&files[0][..]).expect("a header");
        while reader.advance().expect("whole blocks") {
            rewriter.packet(&mut out, 0, &reader);
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
