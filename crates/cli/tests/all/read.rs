//! Compares `trawl read` on files that this test writes with tcpdump, tshark and capinfos.

mod follow;
mod foreign;
mod limits;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use trawl_packet::build::Template;
use trawl_packet::pcapng::write::{
    EnhancedPacket, SectionHeader, enhanced_packet, interface_description, section_header,
};
use trawl_packet::pcapng::{Direction, Interface, Verdict};
use trawl_packet::{pcap, pcapng::block};

const START: u64 = 1_700_000_000_000_000_000;

struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trawl-read-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.0.join(name), bytes).expect("a scratch file");
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trawl")).arg("read").args(arguments).env("TZ", "UTC").output().expect("trawl runs")
}

/// Returns the standard output of a successful run.
fn read(arguments: &[&str]) -> String {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(name).args(arguments).env("TZ", "UTC").stderr(Stdio::null()).output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(_) => {
            eprintln!("SKIPPED: {name} is not installed");
            None
        }
    }
}

fn frame(port: u16) -> Vec<u8> {
    Template::new()
        .ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .udp(40_000, port)
        .payload([7; 30])
        .build()
}

/// Returns packets to ports 9000 and up, a second apart.
fn a_pcap(ports: impl Iterator<Item = u16>) -> Vec<u8> {
    let mut out = Vec::new();
    pcap::file_header(&mut out, 1, 0);
    for port in ports {
        let frame = frame(port);
        let time = START + u64::from(port - 9000) * 1_000_000_000;
        pcap::record(&mut out, time, &frame, frame.len() as u32);
    }
    out
}

/// Returns the file of a capture at both ends of an XDP program, with a block of an unknown type.
fn a_pcapng() -> Vec<u8> {
    let mut out = Vec::new();
    section_header(&mut out, &SectionHeader::default());
    for hook in ["xdp entry", "xdp exit"] {
        interface_description(
            &mut out,
            &Interface {
                name: Some("eth7".to_owned()),
                description: Some(format!("{hook} (native), time stamps from the system clock")),
                ..Interface::default()
            },
        );
    }
    out.extend_from_slice(&0x0000_0bae_u32.to_le_bytes());
    out.extend_from_slice(&16u32.to_le_bytes());
    out.extend_from_slice(b"abcd");
    out.extend_from_slice(&16u32.to_le_bytes());
    for index in 0..10u16 {
        let frame = frame(9000 + index);
        for interface_id in 0..2 {
            enhanced_packet(
                &mut out,
                &EnhancedPacket {
                    interface_id,
                    timestamp_ns: START + u64::from(index) * 1_000_000_000 + u64::from(interface_id),
                    captured: &frame,
                    original_len: frame.len() as u32,
                    flags: Some(Direction::In.flags()),
                    queue: Some(3),
                    packet_id: Some(index.into()),
                    verdict: (interface_id == 1).then_some(Verdict::Xdp(u64::from(index % 2) + 1)),
                    ..EnhancedPacket::default()
                },
            );
        }
    }
    out
}

#[test]
fn lines_equal_tcpdumps_with_each_flag() {
    let scratch = Scratch::new("flags");
    let file = scratch.write("a.pcap", &a_pcap(9000..9020));
    for flags in [
        &[][..],
        &["-tttt"],
        &["-tt", "-e"],
        &["-v"],
        &["-vv", "-K"],
        &["-#"],
        &["--number", "-q"],
        &["-x"],
        &["-XX"],
        &["-A"],
        &["-S", "-N"],
        &["-c", "3"],
    ] {
        let theirs = [&["-n", "--nano"], flags, &["-r", &file, "udp and greater 10"]].concat();
        let ours = [flags, &["-n", &file, "udp and greater 10"]].concat();
        let Some(expected) = tool("tcpdump", &theirs) else {
            return;
        };
        assert_eq!(read(&ours), expected, "{flags:?}");
        assert_eq!(read(&theirs), expected, "{flags:?}");
    }
}

#[test]
fn properties_of_pcapng_alone_are_shown_and_selected() {
    let scratch = Scratch::new("verdicts");
    let file = scratch.write("a.pcapng", &a_pcapng());
    let all = read(&[&file, "-t"]);
    assert_eq!(all.lines().count(), 20);
    assert!(
        all.lines().any(|line| line == "eth7  In  IP 10.0.0.1.40000 > 10.0.0.2.9000: UDP, length 30 [xdp exit: DROP]"),
        "{all}"
    );
    let count = |arguments: &[&str]| read(&[&[&file[..]], arguments].concat()).lines().count();
    assert_eq!(count(&["--verdict", "drop"]), 5);
    assert_eq!(count(&["--verdict", "drop,pass"]), 10);
    assert_eq!(count(&["--at", "entry"]), 10);
    assert_eq!(count(&["--at", "entry", "--verdict", "drop"]), 0);
    assert_eq!(count(&["-i", "eth7"]), 20);
    assert_eq!(count(&["--interface", "eth8"]), 0);
    assert_eq!(count(&["-i", "eth[67]"]), 20);
    assert_eq!(count(&["-i", "veth*"]), 0);
    assert_eq!(count(&["--from", "+3s"]), 14);
    assert_eq!(count(&["--from", "1700000003", "--to", "1700000004.5"]), 4);
    assert_eq!(count(&["--to", "1700000000.000000001"]), 1);
    assert_eq!(count(&["udp port 9003 or udp port 9004"]), 4);
    assert_eq!(count(&["-c", "7"]), 7);
    assert_eq!(run(&[&file, "--verdict", "bananas"]).status.code(), Some(2));
    assert_eq!(run(&[&file, "tcp port"]).status.code(), Some(2));
    assert_eq!(run(&[&file, "missing.pcap"]).status.code(), Some(1));
}

#[test]
fn json_is_an_array_or_lines() {
    let scratch = Scratch::new("json");
    let file = scratch.write("a.pcapng", &a_pcapng());
    let array: serde_json::Value = serde_json::from_str(&read(&[&file, "--json=array"])).expect("JSON");
    let lines: Vec<serde_json::Value> =
        read(&[&file, "--json"]).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(array.as_array(), Some(&lines));
    assert_eq!(lines[1]["verdict"], "DROP");
    assert_eq!(lines[1]["hook"], "xdp exit");
    assert_eq!(lines[1]["time"], "1700000000.000000001");
    let none = read(&[&file, "--json=array", "tcp"]);
    assert_eq!(none.split_whitespace().collect::<String>(), "[]");
}

#[test]
fn several_files_are_merged_by_time() {
    let scratch = Scratch::new("merge");
    let even = scratch.write("even.pcap", &a_pcap((9000..9040).step_by(2)));
    let odd = scratch.write("odd.pcap", &a_pcap((9001..9040).step_by(2)));
    let whole = scratch.write("whole.pcap", &a_pcap(9000..9040));
    assert_eq!(read(&[&even, &odd]), read(&[&whole]));
    let merged = scratch.path("merged.pcap");
    read(&[&even, &odd, "-w", &merged]);
    assert_eq!(std::fs::read(&merged).unwrap(), std::fs::read(&whole).unwrap());
    let both = scratch.write("a.pcapng", &a_pcapng());
    let merged = scratch.path("merged.pcapng");
    read(&[&even, &both, &odd, "-w", &merged]);
    assert_eq!(read(&[&merged]).lines().count(), 60);
    assert_eq!(read(&[&merged, "--verdict", "drop"]).lines().count(), 5);
    let Some(text) = tool("tshark", &["-r", &merged, "-T", "fields", "-e", "frame.time_epoch"]) else {
        return;
    };
    let times: Vec<&str> = text.lines().collect();
    assert_eq!(times.len(), 60);
    assert!(times.is_sorted(), "{text}");
}

#[test]
fn a_file_that_keeps_its_format_is_copied_unchanged() {
    let scratch = Scratch::new("verbatim");
    // Two sections, the second after blocks of unknown types.
    let bytes = [a_pcapng(), a_pcapng()].concat();
    let file = scratch.write("a.pcapng", &bytes);
    let out = scratch.path("out.pcapng");
    read(&[&file, "-w", &out]);
    assert_eq!(std::fs::read(&out).unwrap(), bytes);
    read(&[&file, "-w", &out, "--verdict", "drop"]);
    let kinds: Vec<u32> = block::blocks(&std::fs::read(&out).unwrap()).map(|block| block.kind).collect();
    let count = |kind| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!((count(block::SECTION_HEADER), count(0xbae), count(block::ENHANCED_PACKET)), (2, 2, 10));
    let pcap = scratch.path("out.pcap");
    read(&[&file, "-w", &pcap]);
    assert_eq!(read(&[&pcap]).lines().count(), 40);
    assert_eq!(run(&[&file, "-w", &file]).status.code(), Some(2));
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "the file that is read stays");
}

#[test]
fn compressed_files_and_standard_input() {
    let scratch = Scratch::new("compressed");
    let plain = scratch.write("a.pcap", &a_pcap(9000..9500));
    let expected = read(&[&plain]);
    for (name, ending) in [("gzip", "gz"), ("zstd", "zst"), ("lz4", "lz4")] {
        let Some(_) = tool(name, &["--version"]) else {
            continue;
        };
        let compressed = Command::new(name).args(["-c", &plain]).output().expect("it runs");
        let file = scratch.write(&format!("a.pcap.{ending}"), &compressed.stdout);
        assert_eq!(read(&[&file]), expected, "{name}");
        let cut = scratch.write("cut", &compressed.stdout[..compressed.stdout.len() / 2]);
        assert_eq!(run(&[&cut]).status.code(), Some(1), "{name}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_trawl"))
        .args(["read", "-", "-l"])
        .env("TZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("trawl runs");
    let bytes = std::fs::read(&plain).unwrap();
    let mut stdin = child.stdin.take().expect("a pipe");
    let feeder = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().expect("trawl ends");
    feeder.join().expect("no panic").expect("all was read");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn damage_ends_reading_and_earlier_packets_are_shown() {
    let scratch = Scratch::new("damage");
    let bytes = a_pcap(9000..9010);
    let file = scratch.write("cut.pcap", &bytes[..bytes.len() - 5]);
    let output = run(&[&file]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 9);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cut.pcap") && stderr.contains("cut at byte"), "{stderr}");
}

/// tcpdump's letters without an effect on a file are accepted, and -V reads a list of files.
#[test]
fn letters_of_tcpdump() {
    let scratch = Scratch::new("letters");
    let first = scratch.write("a.pcap", &a_pcap(9000..9010));
    let second = scratch.write("b.pcap", &a_pcap(9010..9020));
    let plain = read(&[&first]);
    for letters in ["-O", "-p", "-b", "-u", "-H", "-nbuHOp", "-s100", "-s0"] {
        assert_eq!(read(&[letters, "-r", &first]), plain, "{letters}");
    }
    let list = scratch.write("list", format!("{first}\n\n{second}\n").as_bytes());
    assert_eq!(read(&["-V", &list]), read(&[&first, &second]));
    assert_eq!(read(&["-V", &list, "udp port 9012"]).lines().count(), 1);
    let empty = scratch.write("empty", b"\n");
    assert_eq!(run(&["-V", &empty]).status.code(), Some(1));
    assert_eq!(run(&["-V", &list, "-r", &first]).status.code(), Some(2));
}

#[test]
fn options_for_pcapng_alone_are_reported_for_a_pcap_file() {
    let scratch = Scratch::new("only-pcapng");
    let file = scratch.write("a.pcap", &a_pcap(9000..9010));
    for (option, value) in [("--verdict", "drop"), ("--at", "exit"), ("--interface", "eth0")] {
        let output = run(&[&file, option, value]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(said.contains(option) && said.contains("only pcapng files do"), "{said}");
    }
}

/// A pcap file has the link type of its packets, not of an interface without any.
#[test]
fn the_link_type_of_written_files() {
    let scratch = Scratch::new("link-types");
    let mut file = Vec::new();
    section_header(&mut file, &SectionHeader::default());
    for link_type in [113, 1] {
        let interface = Interface { link_type, ..Interface::default() };
        interface_description(&mut file, &interface);
    }
    let packet = a_pcap(9000..9001);
    enhanced_packet(
        &mut file,
        &EnhancedPacket {
            interface_id: 1,
            timestamp_ns: START,
            captured: &packet[40..],
            original_len: (packet.len() - 40) as u32,
            ..EnhancedPacket::default()
        },
    );
    let (from, to) = (scratch.write("two.pcapng", &file), scratch.path("one.pcap"));
    read(&[&from, "-w", &to]);
    let written = std::fs::read(&to).unwrap();
    assert_eq!(written[20..24], 1u32.to_le_bytes());
    assert_eq!(read(&[&to]).lines().count(), 1);
}

/// Limits a record to the snaplen in the file's header, like libpcap.
#[test]
fn records_are_cut_to_the_snaplen_of_the_file() {
    let scratch = Scratch::new("snaplen");
    let mut bytes = a_pcap(9000..9003);
    bytes[16..20].copy_from_slice(&20u32.to_le_bytes());
    let file = scratch.write("short.pcap", &bytes);
    let ours = read(&["-tnxx", &file]);
    assert_eq!(ours.matches("0x0010").count(), 3, "{ours}");
    assert!(!ours.contains("0x0020"), "{ours}");
    if let Some(theirs) = tool("tcpdump", &["-tnxxr", &file]) {
        let bytes = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.contains("0x00"));
            lines.map(|line| line.trim().to_owned()).collect()
        };
        assert_eq!(bytes(&ours), bytes(&theirs));
    }
}

#[test]
fn privileges_are_given_up() {
    let scratch = Scratch::new("privileges");
    let file = scratch.write("a.pcap", &a_pcap(9000..9010));
    assert_eq!(run(&[&file, "-Z", "no-such-user-here"]).status.code(), Some(2));
    let mut child = Command::new(env!("CARGO_BIN_EXE_trawl"))
        .args(["read", "-", "-l"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("trawl runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(&std::fs::read(&file).unwrap()).unwrap();
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut first).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    drop(stdin);
    assert!(child.wait_with_output().expect("trawl ends").status.success());
}
