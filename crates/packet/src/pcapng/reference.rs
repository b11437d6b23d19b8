//! The blocks and options that trawl writes, for docs/pcapng.md.

use super::block;

/// A kind of block.
#[derive(Debug)]
pub struct BlockRow {
    pub name: &'static str,
    pub kind: u32,
    /// The document that defines the block.
    pub defined: Definition,
    pub about: &'static str,
    pub options: &'static [OptionRow],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// The standard's draft.
    Standard,
    /// A custom block or its contents, which an enterprise with this number defines.
    Enterprise(u32),
    /// The standard reserves such numbers for local use.
    Local,
}

/// An option of a block, or a record in a block of names.
#[derive(Debug)]
pub struct OptionRow {
    pub name: &'static str,
    pub code: u16,
    pub about: &'static str,
    /// Readers, with the field or page of each.
    pub shown: &'static str,
}

const fn option(name: &'static str, code: u16, about: &'static str, shown: &'static str) -> OptionRow {
    OptionRow { name, code, about, shown }
}

const PROPERTIES: &str = "`trawl stat`, `capinfos`, Wireshark's page of file properties";
const OF_TRAWL: &str = "`trawl stat`";
const OF_PROCESS: &str = "`trawl read`, `trawl stat`";
const BY_KEY: &str = "by its key, see below";

pub const BLOCKS: &[BlockRow] = &[
    BlockRow {
        name: "Section Header Block",
        kind: block::SECTION_HEADER,
        defined: Definition::Standard,
        about: "The start of each file. Its numbers are little-endian.",
        options: &[
            option("shb_hardware", block::SHB_HARDWARE, "processor of the host", PROPERTIES),
            option("shb_os", block::SHB_OS, "kernel of the host", PROPERTIES),
            option("shb_userappl", block::SHB_USERAPPL, "trawl and its version", PROPERTIES),
            option("opt_comment", block::OPT_COMMENT, "the clocks of the host", BY_KEY),
        ],
    },
    BlockRow {
        name: "Interface Description Block",
        kind: block::INTERFACE_DESCRIPTION,
        defined: Definition::Standard,
        about: "One for each interface and hook.",
        options: &[
            option(
                "if_name",
                block::IF_NAME,
                "`NAMESPACE:NAME`; at both ends of a program, with the end",
                "`frame.interface_name`",
            ),
            option(
                "if_description",
                block::IF_DESCRIPTION,
                "hook, mode, clock, and the comments",
                "`frame.interface_description`, `trawl.hook`",
            ),
            option("if_MACaddr", block::IF_MACADDR, "MAC address", OF_TRAWL),
            option("if_speed", block::IF_SPEED, "bits per second", PROPERTIES),
            option("if_tsresol", block::IF_TSRESOL, "unit of time: nanoseconds", "each reader"),
            option("if_filter", block::IF_FILTER, "filter expression", PROPERTIES),
            option("if_os", block::IF_OS, "kernel of the host", PROPERTIES),
            option(
                "if_tsoffset",
                block::IF_TSOFFSET,
                "seconds to add to each time, in copied files only",
                "each reader",
            ),
            option("if_hardware", block::IF_HARDWARE, "driver, version, bus address, firmware", PROPERTIES),
            option("opt_comment", block::OPT_COMMENT, "the XDP program, the pod", BY_KEY),
        ],
    },
    BlockRow {
        name: "Enhanced Packet Block",
        kind: block::ENHANCED_PACKET,
        defined: Definition::Standard,
        about: "A packet.",
        options: &[
            option("epb_flags", block::EPB_FLAGS, "direction", "`frame.packet_flags_direction`"),
            option("epb_dropcount", block::EPB_DROPCOUNT, "packets lost since the previous one", "`frame.drop_count`"),
            option(
                "epb_packetid",
                block::EPB_PACKETID,
                "number, the same in all records of a packet",
                "`frame.packet_id`, `trawl.packet`",
            ),
            option("epb_queue", block::EPB_QUEUE, "receive queue", "`frame.interface_queue`"),
            option(
                "epb_verdict",
                block::EPB_VERDICT,
                "verdict of an XDP or tc program",
                "`frame.verdict.ebpf_xdp`, `frame.verdict.ebpf_tc`, `trawl.verdict`",
            ),
            option(
                "epb_processid_threadid",
                block::EPB_PROCESS,
                "process and thread",
                "`trawl read`; Wireshark after 5.0",
            ),
            option(
                "opt_comment",
                block::OPT_COMMENT,
                "drop, step, process, socket and more",
                "`frame.comment`, and by its key, see below",
            ),
        ],
    },
    BlockRow {
        name: "Name Resolution Block",
        kind: block::NAME_RESOLUTION,
        defined: Definition::Standard,
        about: "Names of pods' addresses. Without names, the block has a comment that belongs to no packet.",
        options: &[
            option(
                "nrb_record_ipv4",
                block::NRB_IPV4,
                "pod of an IPv4 address (a record)",
                "Wireshark's resolved names",
            ),
            option(
                "nrb_record_ipv6",
                block::NRB_IPV6,
                "pod of an IPv6 address (a record)",
                "Wireshark's resolved names",
            ),
            option("opt_comment", block::OPT_COMMENT, "the clocks, a translation of addresses, an event", BY_KEY),
        ],
    },
    BlockRow {
        name: "Interface Statistics Block",
        kind: block::INTERFACE_STATISTICS,
        defined: Definition::Standard,
        about: "The account of an interface and hook, at the end of the file.",
        options: &[
            option("isb_starttime", block::ISB_STARTTIME, "begin of the capture", OF_TRAWL),
            option("isb_endtime", block::ISB_ENDTIME, "end of the capture", OF_TRAWL),
            option("isb_ifrecv", block::ISB_IFRECV, "packets seen", OF_TRAWL),
            option("isb_ifdrop", block::ISB_IFDROP, "packets lost", PROPERTIES),
            option("isb_filteraccept", block::ISB_FILTERACCEPT, "packets that the filter accepted", OF_TRAWL),
            option("isb_osdrop", block::ISB_OSDROP, "packets that the kernel dropped before the hook", OF_TRAWL),
            option("isb_usrdeliv", block::ISB_USRDELIV, "packets written", OF_TRAWL),
            option(
                "opt_comment",
                block::OPT_COMMENT,
                "largest error of the times; `trawl why: ` and JSON, for `trawl why FILE`",
                OF_TRAWL,
            ),
        ],
    },
    BlockRow {
        name: "Custom Block: process",
        kind: block::CUSTOM,
        defined: Definition::Enterprise(block::WIRESHARK),
        about: "A process, in Wireshark's layout (type 3): its number, and options, which are little-endian in each file.",
        options: &[
            option("name", block::PROCESS_NAME, "name", OF_PROCESS),
            option("path", block::PROCESS_PATH, "program", OF_PROCESS),
            option("command", block::PROCESS_COMMAND, "arguments (`--process=full`)", OF_PROCESS),
            option("parent", block::PROCESS_PARENT, "number of the parent", OF_PROCESS),
            option("user id", block::PROCESS_USER_ID, "number of the user", OF_PROCESS),
            option("user", block::PROCESS_USER, "name of the user", OF_PROCESS),
            option("start", block::PROCESS_START, "start of the process", OF_PROCESS),
            option("opt_comment", block::OPT_COMMENT, "container, pod, cgroup", BY_KEY),
        ],
    },
    BlockRow {
        name: "Padding",
        kind: block::FILLING,
        defined: Definition::Local,
        about: "Room before a block that begins at a page of the disk. Readers skip it.",
        options: &[],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::pcapng::block::{ByteOrder, OptionList, blocks};
    use crate::pcapng::{Interface, PacketProcess, Process, Verdict, write};

    /// Returns each kind of block, with all options.
    fn all() -> Vec<u8> {
        let text = || Some("text".to_owned());
        let mut out = Vec::new();
        let section =
            write::SectionHeader { hardware: Some("h"), os: Some("o"), userappl: Some("u"), comment: Some("c") };
        write::section_header(&mut out, &section);
        let interface = Interface {
            link_type: block::LINKTYPE_ETHERNET,
            snaplen: 96,
            name: text(),
            description: text(),
            filter: text(),
            speed: Some(1),
            mac: Some([2; 6]),
            hardware: text(),
            os: text(),
            tsresol: 9,
            tsoffset: 1,
            comments: vec!["c".to_owned()],
        };
        write::interface_description(&mut out, &interface);
        let packet = write::EnhancedPacket {
            interface_id: 0,
            timestamp_ns: 1,
            captured: &[1],
            original_len: 1,
            flags: Some(1),
            queue: Some(1),
            packet_id: Some(1),
            drop_count: Some(1),
            verdict: Some(Verdict::Xdp(1)),
            process: Some(PacketProcess { id: 1, thread: 1 }),
            comment: Some("c"),
        };
        write::enhanced_packet(&mut out, &packet);
        write::names(&mut out, ["10.0.0.1", "fd00::1"].map(|text| (text.parse().expect("an address"), "n")));
        write::remark(&mut out, "c");
        let statistics = write::InterfaceStatistics {
            interface_id: 0,
            timestamp_ns: 1,
            start_ns: Some(1),
            end_ns: Some(1),
            if_received: Some(1),
            if_dropped: Some(1),
            filter_accepted: Some(1),
            os_dropped: Some(1),
            user_delivered: Some(1),
            comment: Some("c"),
        };
        write::interface_statistics(&mut out, &statistics);
        let process = Process {
            id: 1,
            name: text(),
            path: text(),
            command: Some(vec![1]),
            parent: Some(1),
            user_id: Some(1),
            user: text(),
            start_ns: Some(1),
            comment: text(),
        };
        write::process(&mut out, &process);
        let end = out.len();
        out.resize(end + 12, 0);
        write::filling(&mut out[end..]);
        out
    }

    #[test]
    fn written_blocks_and_options_are_the_rows() {
        let mut written = BTreeSet::new();
        let bytes = all();
        for block in blocks(&bytes) {
            let row = BLOCKS.iter().find(|row| row.kind == block.kind).expect("a row");
            written.insert((row.name, None));
            let (options, records) = match block.kind {
                block::SECTION_HEADER => (&block.body[16..], &[][..]),
                block::INTERFACE_DESCRIPTION => (&block.body[8..], &[][..]),
                block::ENHANCED_PACKET => (&block.body[block::EPB_FIXED_LEN + 4..], &[][..]),
                block::INTERFACE_STATISTICS => (&block.body[block::ISB_FIXED_LEN..], &[][..]),
                block::NAME_RESOLUTION if block.names_addresses() => (&[][..], block.body),
                block::NAME_RESOLUTION => (&block.body[4..], &[][..]),
                block::CUSTOM => (&block.body[16..], &[][..]),
                _ => (&[][..], &[][..]),
            };
            for list in [options, records] {
                written.extend(OptionList::new(list, ByteOrder::Little).map(|option| {
                    let found = row.options.iter().find(|one| {
                        one.code == option.code
                            && (one.name == "opt_comment") == (option.code == 1 && records.is_empty())
                    });
                    (row.name, Some(found.expect("a row").name))
                }));
            }
        }
        let rows = BLOCKS.iter().flat_map(|row| {
            let options = row.options.iter().map(|option| (row.name, Some(option.name)));
            options.chain([(row.name, None)])
        });
        assert_eq!(written, rows.collect());
    }
}
