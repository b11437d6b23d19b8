//! A strict reader of pcapng that shares no code with trawl's: blocks, options and packets.

use std::collections::HashSet;
use std::path::Path;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const NAME_RESOLUTION: u32 = 4;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const FILLING: u32 = 0x8054_524c;
const CUSTOM: u32 = 0xbad;
const WIRESHARK: u32 = 32622;
const WIRESHARK_PROCESS: u32 = 3;

/// The options of a block: code and value, without padding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptionList(Vec<(u16, Vec<u8>)>);

impl OptionList {
    pub fn bytes(&self, code: u16) -> Option<&[u8]> {
        let mut found = self.0.iter().filter(|(one, _)| *one == code);
        let value = found.next().map(|(_, value)| value.as_slice());
        assert!(found.next().is_none(), "option {code} is there twice");
        value
    }

    pub fn text(&self, code: u16) -> Option<String> {
        self.bytes(code).map(|value| String::from_utf8(value.to_vec()).expect("UTF-8"))
    }

    pub fn u32(&self, code: u16) -> Option<u32> {
        self.bytes(code).map(|value| u32::from_le_bytes(value.try_into().expect("four bytes")))
    }

    pub fn u64(&self, code: u16) -> Option<u64> {
        self.bytes(code).map(|value| u64::from_le_bytes(value.try_into().expect("eight bytes")))
    }

    /// Returns a time of two 32-bit halves, the high one first, as in the format.
    pub fn time(&self, code: u16) -> Option<u64> {
        self.bytes(code).map(|value| high_low(word(value, 0), word(value, 4)))
    }
}

#[derive(Clone, Debug)]
pub struct Interface {
    pub link_type: u16,
    pub snaplen: u32,
    pub options: OptionList,
}

impl Interface {
    pub fn name(&self) -> String {
        self.options.text(2).unwrap_or_default()
    }

    pub fn description(&self) -> String {
        self.options.text(3).unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub interface: u32,
    pub time: u64,
    pub bytes: Vec<u8>,
    pub original: u32,
    pub options: OptionList,
}

impl Packet {
    pub fn flags(&self) -> Option<u32> {
        self.options.u32(2)
    }

    pub fn drop_count(&self) -> u64 {
        self.options.u64(4).unwrap_or_default()
    }

    pub fn packet_id(&self) -> Option<u64> {
        self.options.u64(5)
    }

    pub fn queue(&self) -> Option<u32> {
        self.options.u32(6)
    }

    /// Returns the numbers of the process and of its thread.
    pub fn process(&self) -> Option<(u32, u32)> {
        let value = self.options.bytes(8)?;
        assert_eq!(value.len(), 8);
        Some((word(value, 0), word(value, 4)))
    }

    /// Returns kind and value.
    pub fn verdict(&self) -> Option<(u8, u64)> {
        let (kind, value) = self.options.bytes(7)?.split_first()?;
        Some((*kind, u64::from_le_bytes(value.try_into().expect("eight bytes"))))
    }
}

#[derive(Clone, Debug)]
pub struct Statistics {
    pub interface: u32,
    pub time: u64,
    pub options: OptionList,
}

impl Statistics {
    /// Returns the start of the counts: the high half comes first.
    pub fn start(&self) -> u64 {
        let start = self.options.u64(2).expect("a time at which it began");
        start.rotate_left(32)
    }
}

/// A whole file.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub section: OptionList,
    pub interfaces: Vec<Interface>,
    pub packets: Vec<Packet>,
    pub statistics: Vec<Statistics>,
    /// Comments that belong to no packet.
    pub remarks: Vec<String>,
    /// Descriptions of processes, with their numbers.
    pub processes: Vec<(u32, OptionList)>,
    /// Packets of a process that no block before them describes.
    pub undescribed: usize,
    described: HashSet<u32>,
    pub fillings: usize,
}

impl Contents {
    #[track_caller]
    pub fn read(file: impl AsRef<Path>) -> Self {
        let file = file.as_ref();
        let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        Self::parse(&bytes)
    }

    /// Parses a file; panics on anything that the format forbids.
    #[track_caller]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut contents = Self::default();
        let mut rest = bytes;
        assert_eq!(word(rest, 0), SECTION_HEADER, "it begins with a section header");
        while !rest.is_empty() {
            let length = word(rest, 4) as usize;
            assert!(length.is_multiple_of(4) && (12..=rest.len()).contains(&length), "a block of {length} bytes");
            let (block, after) = rest.split_at(length);
            assert_eq!(word(block, length - 4) as usize, length, "the length at a block's end");
            contents.add_block(word(block, 0), &block[8..length - 4]);
            rest = after;
        }
        contents
    }

    fn add_block(&mut self, kind: u32, body: &[u8]) {
        match kind {
            SECTION_HEADER => {
                assert_eq!(word(body, 0), 0x1a2b_3c4d, "little endian");
                self.section = options(&body[16..]);
            }
            INTERFACE_DESCRIPTION => self.interfaces.push(Interface {
                link_type: word(body, 0) as u16,
                snaplen: word(body, 4),
                options: options(&body[8..]),
            }),
            ENHANCED_PACKET => {
                assert!(self.statistics.is_empty(), "statistics come last");
                let captured = word(body, 12) as usize;
                let packet = Packet {
                    interface: word(body, 0),
                    time: high_low(word(body, 4), word(body, 8)),
                    bytes: body[20..20 + captured].to_vec(),
                    original: word(body, 16),
                    options: options(&body[20 + captured.next_multiple_of(4)..]),
                };
                assert!((packet.interface as usize) < self.interfaces.len(), "an interface that is described");
                assert!(packet.original as usize >= captured);
                let is_described = |(id, _): (u32, u32)| self.described.contains(&id);
                self.undescribed += usize::from(packet.process().is_some_and(|one| !is_described(one)));
                self.packets.push(packet);
            }
            INTERFACE_STATISTICS => self.statistics.push(Statistics {
                interface: word(body, 0),
                time: high_low(word(body, 4), word(body, 8)),
                options: options(&body[12..]),
            }),
            NAME_RESOLUTION => {
                assert_eq!(word(body, 0), 0, "no names");
                self.remarks.extend(options(&body[4..]).text(1));
            }
            CUSTOM => {
                assert_eq!((word(body, 0), word(body, 4)), (WIRESHARK, WIRESHARK_PROCESS));
                let length = word(body, 8) as usize;
                assert_eq!(length, body.len() - 12, "the entry fills the block");
                self.described.insert(word(body, 12));
                self.processes.push((word(body, 12), options(&body[16..])));
            }
            // Local use: pads a piece of the file to the disk's alignment.
            FILLING => self.fillings += 1,
            other => panic!("a block of type {other}"),
        }
    }

    pub fn frames(&self) -> Vec<&[u8]> {
        self.packets.iter().map(|packet| packet.bytes.as_slice()).collect()
    }

    /// Returns the packets of an interface block.
    pub fn of(&self, interface: u32) -> Vec<&Packet> {
        self.packets.iter().filter(|packet| packet.interface == interface).collect()
    }

    /// Checks that no packet of an interface precedes the start of its statistics.
    #[track_caller]
    pub fn assert_statistics_begin_first(&self) {
        assert!(!self.statistics.is_empty(), "the file has statistics");
        for statistics in &self.statistics {
            let earliest = self.of(statistics.interface).into_iter();
            let earliest = earliest.map(|packet| packet.time).min();
            assert!(
                earliest.is_none_or(|time| statistics.start() <= time),
                "{earliest:?}, before {}",
                statistics.start()
            );
        }
    }

    #[track_caller]
    pub fn assert_in_time_order(&self) {
        let at = self.packets.windows(2).position(|two| two[0].time > two[1].time);
        assert_eq!(at, None, "the packet after this one is earlier");
    }
}

fn options(mut bytes: &[u8]) -> OptionList {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (code, length) = (word(bytes, 0) as u16, (word(bytes, 0) >> 16) as usize);
        if code == 0 {
            assert_eq!((length, bytes.len()), (0, 4), "nothing follows the end of the options");
            break;
        }
        all.push((code, bytes[4..4 + length].to_vec()));
        bytes = &bytes[4 + length.next_multiple_of(4)..];
    }
    OptionList(all)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).unwrap_or_else(|| panic!("the file is cut: {} bytes are left", bytes.len()));
    u32::from_le_bytes(four.try_into().expect("four bytes"))
}

fn high_low(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}
