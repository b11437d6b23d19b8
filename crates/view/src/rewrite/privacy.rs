//! Removes confidential parts from blocks: only payload, or also addresses and the names of hosts, processes and users.
//! Every block stays; a block whose contents trawl does not know keeps only its type and length.

use trawl_packet::anonymize::{Addresses, Anonymizer};
use trawl_packet::checksum::cover_kept;
use trawl_packet::pcapng::block::{self, Block, ByteOrder, HEADER_LEN, OptionList, TRAILER_LEN, padded};
use trawl_packet::pcapng::{Interface, Process, write};
use trawl_packet::walk::headers_len;

const CAPTURED_AT: usize = 12;
const SECTION_FIELDS: usize = 8;
const INTERFACE_FIELDS: usize = 8;
const STATISTICS_FIELDS: usize = 12;

const IF_IPV4: u16 = 4;
const IF_IPV6: u16 = 5;
/// Options without a name of a host, its builds, an address or free text.
const SECTION_KEPT: [u16; 1] = [block::SHB_USERAPPL];
/// Also resolution, zone, frame check length and the speeds of both directions.
const INTERFACE_KEPT: [u16; 7] = [block::IF_SPEED, block::IF_TSRESOL, 10, 13, block::IF_TSOFFSET, 16, 17];
const PACKET_KEPT: [u16; 6] = [
    block::EPB_FLAGS,
    block::EPB_DROPCOUNT,
    block::EPB_PACKETID,
    block::EPB_QUEUE,
    block::EPB_VERDICT,
    block::EPB_PROCESS,
];
const OBSOLETE_KEPT: [u16; 1] = [block::EPB_FLAGS];
const STATISTICS_KEPT: [u16; 7] = [
    block::ISB_STARTTIME,
    block::ISB_ENDTIME,
    block::ISB_IFRECV,
    block::ISB_IFDROP,
    block::ISB_FILTERACCEPT,
    block::ISB_OSDROP,
    block::ISB_USRDELIV,
];
const CUSTOM_NOT_COPIED: u32 = 0x4000_0bad;
/// An entry of systemd's journal, as text. Readers require its time.
const JOURNAL: u32 = 9;
const JOURNAL_TIME: &[u8] = b"__REALTIME_TIMESTAMP=";

/// A packet whose block or record was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written<'a> {
    pub link_type: u16,
    pub stored: &'a [u8],
}

/// Parts that were left out of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Packets of which at most the link header is known.
    pub contents: u64,
    pub comments: u64,
    /// Blocks of unknown contents.
    pub blocks: u64,
}

/// Removes confidential parts of packets and blocks, and counts them.
#[derive(Clone, Debug)]
pub struct Privacy {
    /// Cuts packets after their headers.
    cuts: bool,
    anonymizer: Option<Anonymizer>,
    left_out: LeftOut,
}

impl Privacy {
    pub fn new(cuts: bool, addresses: Option<Addresses>) -> Self {
        Self { cuts, anonymizer: addresses.map(Anonymizer::new), left_out: LeftOut::default() }
    }

    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Returns the bytes of a packet that are kept.
    fn packet(&mut self, packet: Written<'_>) -> Vec<u8> {
        let Written { link_type, stored } = packet;
        let end = if self.cuts { headers_len(link_type, stored) } else { stored.len() };
        let Some(anonymizer) = &mut self.anonymizer else {
            let mut kept = stored[..end].to_vec();
            cover_kept(link_type, stored, &mut kept);
            return kept;
        };
        let new = anonymizer.packet(link_type, stored, end);
        self.left_out.contents += u64::from(!new.is_known);
        new.bytes.to_vec()
    }

    /// Appends a little-endian block of a capture, changed; `link_type` is the one of a packet's interface.
    pub fn append(&mut self, out: &mut Vec<u8>, block: &Block<'_>, link_type: impl FnOnce(u32) -> u16) {
        let from = out.len();
        out.extend_from_slice(block.bytes);
        let packet = block.enhanced_packet();
        let packet =
            packet.map(|packet| Written { link_type: link_type(packet.interface_id), stored: packet.captured });
        self.blocks(out, from, ByteOrder::Little, packet);
    }

    /// Changes the blocks that were appended to `out`; `packet` belongs to a packet block among them.
    pub(super) fn blocks(&mut self, out: &mut Vec<u8>, from: usize, order: ByteOrder, packet: Option<Written<'_>>) {
        let written = out.split_off(from);
        let mut rest = &written[..];
        while let Some([kind, len]) = words(rest, order) {
            let Some((raw, after)) = rest.split_at_checked(len as usize) else {
                break;
            };
            let body = raw.get(HEADER_LEN..raw.len().saturating_sub(TRAILER_LEN));
            self.block(out, order, kind, body.unwrap_or_default(), packet);
            rest = after;
        }
    }

    fn block(&mut self, out: &mut Vec<u8>, order: ByteOrder, kind: u32, body: &[u8], packet: Option<Written<'_>>) {
        let mut block = Open::new(out, order, kind);
        match (kind, packet) {
            (block::SECTION_HEADER, _) => self.section(&mut block, body),
            (block::SIMPLE_PACKET, Some(packet)) => {
                block.kind(block::ENHANCED_PACKET);
                self.simple_packet(&mut block, body, packet);
            }
            (block::ENHANCED_PACKET | block::OBSOLETE_PACKET, Some(packet)) => {
                self.timed_packet(&mut block, kind, body, packet);
            }
            _ if self.anonymizer.is_none() => block.bytes(body),
            (block::INTERFACE_DESCRIPTION, _) => self.interface(&mut block, body),
            (block::INTERFACE_STATISTICS, _) => {
                let (fields, options) = split(body, STATISTICS_FIELDS);
                block.bytes(fields);
                self.options(&mut block, options, &STATISTICS_KEPT);
            }
            (block::NAME_RESOLUTION, _) => self.names(&mut block, body),
            (JOURNAL, _) => {
                block.bytes(&time_of_entry(body));
                self.left_out.blocks += 1;
            }
            _ => self.other(&mut block, kind, body),
        }
        block.finish();
    }

    fn section(&mut self, block: &mut Open<'_>, body: &[u8]) {
        let (fields, rest) = split(body, SECTION_FIELDS);
        block.bytes(fields);
        // The length of the changed section is unknown.
        block.bytes(&[0xff; 8]);
        let options = rest.get(8..).unwrap_or_default();
        match self.anonymizer {
            Some(_) => self.options(block, options, &SECTION_KEPT),
            None => block.bytes(options),
        }
    }

    /// Turns a simple packet into an enhanced one: the former has no captured length.
    fn simple_packet(&mut self, block: &mut Open<'_>, body: &[u8], packet: Written<'_>) {
        let (original, _) = split(body, 4);
        let bytes = self.packet(packet);
        block.bytes(&[0; CAPTURED_AT]);
        block.u32(bytes.len() as u32);
        block.bytes(original);
        block.bytes(&bytes);
    }

    fn timed_packet(&mut self, block: &mut Open<'_>, kind: u32, body: &[u8], packet: Written<'_>) {
        let (fields, rest) = split(body, block::EPB_FIXED_LEN);
        let options = rest.get(padded(packet.stored.len())..).unwrap_or_default();
        let bytes = self.packet(packet);
        block.bytes(&fields[..CAPTURED_AT.min(fields.len())]);
        block.u32(bytes.len() as u32);
        block.bytes(fields.get(CAPTURED_AT + 4..).unwrap_or_default());
        block.bytes(&bytes);
        match (&self.anonymizer, kind) {
            (None, _) => without_hash(block, options),
            (_, block::OBSOLETE_PACKET) => self.options(block, options, &OBSOLETE_KEPT),
            _ => self.options(block, options, &PACKET_KEPT),
        }
    }

    fn interface(&mut self, block: &mut Open<'_>, body: &[u8]) {
        let (fields, options) = split(body, INTERFACE_FIELDS);
        block.bytes(fields);
        let mut any = false;
        for option in OptionList::new(options, block.order) {
            let value = match (option.code, option.value) {
                (block::IF_NAME, name) => self.interface_name(name),
                (block::IF_DESCRIPTION, text) => match hook_and_clock(text) {
                    Some(text) => text.to_vec(),
                    None => continue,
                },
                (block::OPT_COMMENT, _) => {
                    self.left_out.comments += 1;
                    continue;
                }
                (code, value) if INTERFACE_KEPT.contains(&code) => value.to_vec(),
                (code, value) => match self.interface_address(code, value) {
                    Some(value) => value,
                    None => continue,
                },
            };
            block.option(option.code, &value);
            any = true;
        }
        block.end_of_options(any);
    }

    /// Returns an interface's name, with replaced names of its host and namespace, or number of its device.
    fn interface_name(&self, name: &[u8]) -> Vec<u8> {
        let Some(Anonymizer { addresses, .. }) = &self.anonymizer else {
            return name.to_vec();
        };
        let mut new = Vec::new();
        let mut rest = name;
        while let Some(colon) = rest.iter().position(|byte| *byte == b':') {
            new.extend_from_slice(addresses.name(&rest[..colon]).as_bytes());
            new.push(b':');
            rest = &rest[colon + 1..];
        }
        match device_number(rest) {
            Some(part) => {
                let number = addresses.name(&rest[part.clone()]);
                [&new, &rest[..part.start], number.as_bytes(), &rest[part.end..]].concat()
            }
            None => [&new, rest].concat(),
        }
    }

    /// Returns the value of an option with an address and its mask or prefix length.
    fn interface_address(&mut self, code: u16, value: &[u8]) -> Option<Vec<u8>> {
        let addresses = &mut self.anonymizer.as_mut()?.addresses;
        match code {
            IF_IPV4 => {
                let (address, mask) = value.split_first_chunk::<4>()?;
                Some([&addresses.v4((*address).into()).octets(), mask].concat())
            }
            IF_IPV6 => {
                let (address, length) = value.split_first_chunk::<16>()?;
                Some([&addresses.v6((*address).into()).octets(), length].concat())
            }
            block::IF_MACADDR => Some(addresses.mac(value.try_into().ok()?).to_vec()),
            _ => None,
        }
    }

    /// Replaces addresses and their names.
    fn names(&mut self, block: &mut Open<'_>, body: &[u8]) {
        let Some(anonymizer) = &mut self.anonymizer else {
            return;
        };
        let mut end = 0;
        for record in OptionList::new(body, block.order) {
            end += 4 + padded(record.value.len());
            let value = record.value;
            let addresses = &mut anonymizer.addresses;
            let (address, names) = match record.code {
                block::NRB_IPV4 => match value.split_first_chunk::<4>() {
                    Some((address, names)) => (addresses.v4((*address).into()).octets().to_vec(), names),
                    None => continue,
                },
                block::NRB_IPV6 => match value.split_first_chunk::<16>() {
                    Some((address, names)) => (addresses.v6((*address).into()).octets().to_vec(), names),
                    None => continue,
                },
                _ => continue,
            };
            let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
            let names: String = names.map(|name| addresses.name(name) + "\0").collect();
            block.option(record.code, &[&address, names.as_bytes()].concat());
        }
        block.u32(0);
        self.options(block, body.get(end + 4..).unwrap_or_default(), &[]);
    }

    /// Writes a block of another type: of a process only its numbers, of others only the length.
    fn other(&mut self, block: &mut Open<'_>, kind: u32, body: &[u8]) {
        let (maker, rest) = match kind {
            block::CUSTOM | CUSTOM_NOT_COPIED => split(body, 4),
            _ => (&[][..], body),
        };
        block.bytes(maker);
        match Process::parse(kind, body, block.order) {
            Some(process) => {
                let mut anonymous = Vec::new();
                write::process(
                    &mut anonymous,
                    &Process {
                        id: process.id,
                        parent: process.parent,
                        start_ns: process.start_ns,
                        ..Process::default()
                    },
                );
                // After the maker, its contents are little-endian in files of either order.
                let contents = HEADER_LEN + 4..anonymous.len() - TRAILER_LEN;
                block.bytes(&anonymous[contents]);
            }
            None => {
                self.left_out.blocks += u64::from(rest.iter().any(|byte| *byte != 0));
                block.zeroes(rest.len());
            }
        }
    }

    /// Copies the options with these codes.
    fn options(&mut self, block: &mut Open<'_>, options: &[u8], kept: &[u16]) {
        let mut any = false;
        for option in OptionList::new(options, block.order) {
            let is_kept = kept.contains(&option.code);
            // Verdicts of other programs than XDP's and tc's may contain anything.
            let is_opaque = option.code == block::EPB_VERDICT
                && kept.contains(&block::EPB_VERDICT)
                && !matches!(option.value, [block::VERDICT_EBPF_TC | block::VERDICT_EBPF_XDP, ..]);
            if is_kept && !is_opaque {
                block.option(option.code, option.value);
                any = true;
            }
            self.left_out.comments += u64::from(option.code == block::OPT_COMMENT);
        }
        block.end_of_options(any);
    }
}

/// Returns the position of the number in a name such as `\Device\NPF_{GUID}`, which Windows gives to one device of one
/// host.
fn device_number(name: &[u8]) -> Option<std::ops::Range<usize>> {
    let start = name.iter().position(|byte| *byte == b'{')? + 1;
    let length = name.get(start..)?.iter().position(|byte| *byte == b'}')?;
    Some(start..start + length)
}

/// Copies options except hashes, which cover the payload.
fn without_hash(block: &mut Open<'_>, options: &[u8]) {
    let mut any = false;
    for option in OptionList::new(options, block.order) {
        if option.code != block::EPB_HASH {
            block.option(option.code, option.value);
            any = true;
        }
    }
    block.end_of_options(any);
}

/// Returns the beginning of a description that a capture of trawl wrote; what follows may name a device.
fn hook_and_clock(description: &[u8]) -> Option<&[u8]> {
    let text = std::str::from_utf8(description).ok()?;
    let interface = Interface { description: Some(text.to_owned()), ..Interface::default() };
    let clock = interface.hook().and_then(|_| text.find(" clock"))?;
    description.get(..clock + " clock".len())
}

/// Returns the line with the time of a journal's entry.
fn time_of_entry(entry: &[u8]) -> Vec<u8> {
    let mut lines = entry.split(|byte| *byte == b'\n');
    let time = lines.find_map(|line| line.strip_prefix(JOURNAL_TIME));
    let digits = time.unwrap_or(b"0").iter().copied().take_while(u8::is_ascii_digit);
    JOURNAL_TIME.iter().copied().chain(digits).chain([b'\n']).collect()
}

fn split(body: &[u8], at: usize) -> (&[u8], &[u8]) {
    body.split_at_checked(at).unwrap_or((body, &[]))
}

/// Returns the first two numbers.
fn words(bytes: &[u8], order: ByteOrder) -> Option<[u32; 2]> {
    let (one, rest) = bytes.split_first_chunk()?;
    Some([order.u32(*one), order.u32(*rest.first_chunk()?)])
}

/// A block of either byte order that is being appended.
struct Open<'a> {
    out: &'a mut Vec<u8>,
    order: ByteOrder,
    start: usize,
}

impl<'a> Open<'a> {
    fn new(out: &'a mut Vec<u8>, order: ByteOrder, kind: u32) -> Self {
        let start = out.len();
        let mut block = Self { out, order, start };
        block.u32(kind);
        block.u32(0);
        block
    }

    fn number(&self, value: u32) -> [u8; 4] {
        match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
    }

    fn kind(&mut self, kind: u32) {
        let kind = self.number(kind);
        self.out[self.start..][..4].copy_from_slice(&kind);
    }

    fn u32(&mut self, value: u32) {
        let value = self.number(value);
        self.out.extend_from_slice(&value);
    }

    /// Appends bytes, and padding after them.
    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.zeroes(padded(bytes.len()) - bytes.len());
    }

    fn zeroes(&mut self, count: usize) {
        self.out.resize(self.out.len() + count, 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        for half in [code, value.len() as u16] {
            self.out.extend_from_slice(&match self.order {
                ByteOrder::Little => half.to_le_bytes(),
                ByteOrder::Big => half.to_be_bytes(),
            });
        }
        self.bytes(value);
    }

    fn end_of_options(&mut self, any: bool) {
        self.zeroes(if any { 4 } else { 0 });
    }

    fn finish(mut self) {
        let len = (self.out.len() - self.start + TRAILER_LEN) as u32;
        self.u32(len);
        let len = self.number(len);
        self.out[self.start + 4..][..4].copy_from_slice(&len);
    }
}

#[cfg(test)]
mod tests;
