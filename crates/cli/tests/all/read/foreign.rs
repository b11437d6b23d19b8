//! Files as other programs write them: variants of pcap that the file header does not show, and sections of the other
//! byte order. Wireshark's tools check their contents, and the files made of them.

use trawl_packet::pcapng::block;

use super::{Scratch, a_pcap, frame, read, run, tool};

/// A variant of pcap: its name in capinfos, magic, minor version, link type, and the number of bytes by which a
/// record's header exceeds the usual one.
type Variant = (&'static str, u32, u16, u32, usize);

const VARIANTS: [Variant; 6] = [
    ("Wireshark/tcpdump/... - pcap", 0xa1b2_c3d4, 4, 1, 0),
    ("Nokia tcpdump - pcap", 0xa1b2_c3d4, 4, 1, 4),
    ("RedHat 6.1 tcpdump - pcap", 0xa1b2_c3d4, 4, 1, 8),
    ("Modified tcpdump - pcap", 0xa1b2_cd34, 4, 1, 8),
    ("SuSE 6.3 tcpdump - pcap", 0xa1b2_cd34, 4, 1, 12),
    ("AIX tcpdump - pcap", 0xa1b2_c3d4, 2, 6, 0),
];

/// A writer of numbers in one byte order.
struct Writer {
    is_big: bool,
    bytes: Vec<u8>,
}

impl Writer {
    fn new(is_big: bool) -> Self {
        let bytes = Vec::new();
        Self { is_big, bytes }
    }

    fn half(&mut self, value: u16) {
        let (big, little) = (value.to_be_bytes(), value.to_le_bytes());
        self.bytes.extend(if self.is_big { big } else { little });
    }

    fn word(&mut self, value: u32) {
        let (big, little) = (value.to_be_bytes(), value.to_le_bytes());
        self.bytes.extend(if self.is_big { big } else { little });
    }

    fn words(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.word(*value));
    }
}

fn variant(is_big: bool, magic: u32, minor: u16, link_type: u32, extra: usize) -> Vec<u8> {
    let mut out = Writer::new(is_big);
    out.word(magic);
    out.half(2);
    out.half(minor);
    out.words(&[0, 0, 65_535, link_type]);
    for index in 0..5 {
        let frame = frame(9000 + index as u16);
        let (captured, original) = (frame.len() as u32, frame.len() as u32 + index);
        out.words(&[1_700_000_000 + index, 123_456]);
        // Up to version 2.2 the original length comes first.
        out.words(&match minor {
            2 => [original, captured],
            _ => [captured, original],
        });
        out.bytes.extend(&[9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0][..extra]);
        out.bytes.extend(frame);
    }
    out.bytes
}

/// Returns time, lengths and port of each packet, by tshark.
fn shown(file: &str) -> Option<String> {
    let fields = ["frame.time_epoch", "frame.len", "frame.cap_len", "udp.dstport"];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let arguments: Vec<&str> = ["-r", file, "-T", "fields"].into_iter().chain(fields).collect();
    tool("tshark", &arguments)
}

/// Returns the same by trawl.
fn read_by_trawl(file: &str) -> String {
    let lines = read(&[file, "--jsonl"]);
    let shown = lines.lines().map(|line| {
        let packet: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let time = packet["time"].as_str().expect("a time");
        let [len, captured] = ["length", "captured"].map(|field| &packet[field]);
        let port = &packet["decoded"]["transport"]["dst_port"];
        format!("{time}\t{len}\t{captured}\t{port}\n")
    });
    shown.collect()
}

#[test]
fn variants_of_pcap_are_recognized_as_by_wireshark() {
    let scratch = Scratch::new("variants");
    let file = |is_big: bool, (name, magic, minor, link_type, extra): Variant| {
        let bytes = variant(is_big, magic, minor, link_type, extra);
        let file = scratch.write(&format!("{name:.4}-{is_big}.pcap"), &bytes);
        (file, name)
    };
    let little = VARIANTS.map(|variant| file(false, variant));
    for (file, name) in little.iter().chain([&file(true, VARIANTS[1])]) {
        let (Some(kind), Some(theirs)) = (tool("capinfos", &["-t", file]), shown(file)) else {
            return;
        };
        let mut kinds = kind.lines();
        assert!(kinds.any(|line| line.ends_with(name)), "{name}: {kind}");
        assert_eq!(theirs.lines().count(), 5, "{name}: {theirs}");
        assert_eq!(read_by_trawl(file), theirs, "{name}");
    }
    // The headers of the first three files are equal, their records' headers are not.
    let files = little.each_ref().map(|(file, _)| file.as_str());
    for files in [&files[..3], &files[3..5]] {
        let merged = scratch.path("merged.pcap");
        read(&[files, &["-w", &merged]].concat());
        let theirs = shown(&merged).expect("tshark");
        for line in read_by_trawl(files[0]).lines() {
            let count = theirs.lines().filter(|other| *other == line).count();
            assert_eq!(count, files.len(), "{line}: {theirs}");
        }
    }
}

fn option(out: &mut Writer, code: u16, value: &[u8]) {
    out.half(code);
    out.half(value.len() as u16);
    out.bytes.extend(value);
    out.bytes.resize(out.bytes.len().next_multiple_of(4), 0);
}

fn append_block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Writer)) {
    let mut inner = Writer::new(true);
    body(&mut inner);
    let len = inner.bytes.len() as u32 + 12;
    for part in [&kind.to_be_bytes()[..], &len.to_be_bytes(), &inner.bytes, &len.to_be_bytes()] {
        out.extend(part);
    }
}

/// Returns a section in big-endian order with blocks and options of many kinds.
fn a_big_section() -> Vec<u8> {
    let mut out = Vec::new();
    append_block(&mut out, block::SECTION_HEADER, |out| {
        out.word(block::BYTE_ORDER_MAGIC);
        out.half(1);
        out.half(0);
        out.words(&[u32::MAX, u32::MAX]);
    });
    append_block(&mut out, block::INTERFACE_DESCRIPTION, |out| {
        out.half(1);
        out.half(0);
        out.word(262_144);
        option(out, block::IF_NAME, b"big0");
        option(out, block::IF_SPEED, &10_000_000u64.to_be_bytes());
        option(out, block::IF_TSRESOL, &[6]);
        option(out, block::IF_TSOFFSET, &100u64.to_be_bytes());
        option(out, 0, &[]);
    });
    append_block(&mut out, block::NAME_RESOLUTION, |out| {
        option(out, block::NRB_IPV4, b"\x0a\0\0\x02two.example\0");
        option(out, 0, &[]);
    });
    append_block(&mut out, block::DECRYPTION_SECRETS, |out| {
        out.words(&[0x544c_534b, 6]);
        out.bytes.extend(b"#none\n\0\0");
    });
    append_block(&mut out, 0x0bae, |out| out.bytes.extend(b"abcd"));
    for index in 0..3u32 {
        let frame = frame(9500 + index as u16);
        let time = (1_700_000_000 - 100) * 1_000_000 + u64::from(index) * 1_000_000 + 7;
        append_block(&mut out, block::ENHANCED_PACKET, |out| {
            let len = frame.len() as u32;
            out.words(&[0, (time >> 32) as u32, time as u32, len, len + index]);
            out.bytes.extend(&frame);
            option(out, block::OPT_COMMENT, b"first");
            option(out, block::OPT_COMMENT, b"second");
            option(out, block::EPB_FLAGS, &1u32.to_be_bytes());
            option(out, block::EPB_DROPCOUNT, &17u64.to_be_bytes());
            option(out, block::EPB_PACKETID, &u64::from(index).to_be_bytes());
            option(out, block::EPB_QUEUE, &3u32.to_be_bytes());
            let verdict = [&[block::VERDICT_EBPF_XDP][..], &2u64.to_be_bytes()].concat();
            option(out, block::EPB_VERDICT, &verdict);
            option(out, 0, &[]);
        });
    }
    append_block(&mut out, block::INTERFACE_STATISTICS, |out| {
        let time = (1_700_000_000u64 - 100) * 1_000_000;
        out.words(&[0, (time >> 32) as u32, time as u32]);
        let start = [(time >> 32) as u32, time as u32].map(u32::to_be_bytes);
        option(out, block::ISB_STARTTIME, start.as_flattened());
        option(out, block::ISB_IFRECV, &33u64.to_be_bytes());
        option(out, block::ISB_IFDROP, &5u64.to_be_bytes());
        option(out, 0, &[]);
    });
    out
}

/// Returns tshark's details of the packets of that section's interface.
fn details(file: &str) -> Option<String> {
    let fields = [
        "frame.time_epoch",
        "frame.len",
        "frame.interface_name",
        "frame.comment",
        "frame.packet_id",
        "frame.interface_queue",
        "frame.verdict.ebpf_xdp",
        "frame.packet_flags_direction",
        "frame.drop_count",
        "udp.dstport",
    ];
    let of_it = ["-r", file, "-Y", "frame.interface_name == big0", "-T", "fields"];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    tool("tshark", &of_it.into_iter().chain(fields).collect::<Vec<_>>())
}

#[test]
fn big_endian_sections_are_merged_with_all_contents() {
    let scratch = Scratch::new("big");
    let big = scratch.write("big.pcapng", &a_big_section());
    let little = scratch.write("little.pcap", &a_pcap(9000..9010));
    let merged = scratch.path("merged.pcapng");
    let done = run(&[&little, &big, "-w", &merged]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("left out 1 block of "), "{said}");

    let bytes = std::fs::read(&merged).expect("the merged file");
    let kinds: Vec<u32> = block::blocks(&bytes).map(|block| block.kind).collect();
    for (kind, count) in [
        (block::INTERFACE_DESCRIPTION, 2),
        (block::ENHANCED_PACKET, 13),
        (block::NAME_RESOLUTION, 1),
        (block::DECRYPTION_SECRETS, 1),
        (block::INTERFACE_STATISTICS, 1),
        (0x0bae, 0),
    ] {
        let there = kinds.iter().filter(|other| **other == kind).count();
        assert_eq!(there, count, "blocks of type {kind:#x}");
    }
    let statistics = |file| {
        let report: serde_json::Value = serde_json::from_slice(&stat(&[file, "--json"])).expect("JSON");
        let interfaces = report["files"][0]["interfaces"].as_array().expect("interfaces");
        let mut of_it = interfaces.iter().find(|i| i["name"] == "big0").expect("it").clone();
        of_it.as_object_mut().expect("an object").remove("number");
        of_it
    };
    assert_eq!(statistics(&merged), statistics(&big));

    let Some(theirs) = details(&big) else { return };
    assert_eq!(theirs.lines().count(), 3, "{theirs}");
    assert!(theirs.contains("1700000002.000007000") && theirs.contains("second"), "{theirs}");
    assert_eq!(details(&merged).unwrap(), theirs);
    let hosts = tool("tshark", &["-r", &merged, "-q", "-z", "hosts"]).unwrap();
    assert!(hosts.contains("two.example"), "{hosts}");
    let about = tool("capinfos", &[&merged]).unwrap();
    for expected in ["Name = big0", "Speed = 10000000", "Number of stat entries = 1"] {
        assert!(about.contains(expected), "{expected}: {about}");
    }
}

fn stat(arguments: &[&str]) -> Vec<u8> {
    let done = std::process::Command::new(env!("CARGO_BIN_EXE_trawl"))
        .arg("stat")
        .args(arguments)
        .output()
        .expect("trawl runs");
    assert!(done.status.success(), "{done:?}");
    done.stdout
}
