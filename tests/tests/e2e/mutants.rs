//! Mutants: programs in which one instruction is another one. A test on recorded packets has to see most of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use trawl_packet::build::{Arp, Icmp, Tcp, Template, flags};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::CaptureReader;
use trawl_tests::lab::Directory;
use trawl_tests::{frames, root_or_skip, skip};
use trawl_trial::report::Report;
use trawl_trial::{FirstContents, Origin, Plan, Recorded, Subject, Trial};

/// Variables with the directories of objects and of captures. Beside NAME.o are NAME.mutants and NAME.entries, the
/// contents of its maps, each in a line: MAP:KEY=VALUE, in hexadecimal digits.
const OBJECTS: &str = "TRAWL_OBJECTS";
const CAPTURES: &str = "TRAWL_CAPTURES";
/// The variable with the seconds of fuzzing for each mutant that the captures do not show.
const FUZZ: &str = "TRAWL_FUZZ";

pub(super) const XDP_FILTER: &str = "/usr/lib/x86_64-linux-gnu/bpf/xdpfilt_alw_all.o";
const SECTION: &[u8] = b"xdp";
const INSTRUCTION: usize = 8;
/// Fewest mutants of xdp-filter that the packets of this test show, of every eighth, and captures of tcpdump's tests.
const SEEN: usize = 3;
const SEEN_BY_CAPTURES: usize = 50;
/// The same after a minute of fuzzing.
const SEEN_BY_FUZZING: usize = 80;
/// The same of katran's.
const KATRAN_SEEN_BY_CAPTURES: usize = 25;
const KATRAN_SEEN_BY_FUZZING: usize = 55;

pub(super) type Entries = Vec<(String, Vec<u8>, Vec<u8>)>;

/// An object and the place of its program.
struct Object {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    let digits = bytes[at..at + length].iter().rev();
    digits.fold(0, |number, byte| number << 8 | usize::from(*byte))
}

impl Object {
    /// Reads an ELF file of 64 bits, and finds the section with the program by its name and its type.
    fn read(path: &Path) -> Self {
        const PROGBITS: usize = 1;
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (headers, size) = (number(&bytes, 40, 8), number(&bytes, 58, 2));
        let (count, names) = (number(&bytes, 60, 2), number(&bytes, 62, 2));
        let header = |section: usize| headers + section * size;
        let texts = number(&bytes, header(names) + 24, 8);
        let is_program = |section: &usize| {
            let name = &bytes[texts + number(&bytes, header(*section), 4)..];
            name.starts_with(SECTION) && name[SECTION.len()] == 0 && number(&bytes, header(*section) + 4, 4) == PROGBITS
        };
        let at = header((0..count).find(is_program).expect("a section of programs"));
        let begin = number(&bytes, at + 24, 8);
        Self { begin, end: begin + number(&bytes, at + 32, 8), bytes }
    }

    /// Returns a number for the instructions, FNV-1a.
    fn digest(&self) -> u64 {
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.bytes[self.begin..self.end].iter().fold(0xcbf2_9ce4_8422_2325, add)
    }

    /// Returns the object with a field of an instruction replaced.
    fn mutant(&self, mutant: &Mutant) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let at = self.begin + mutant.instruction * INSTRUCTION;
        let value = mutant.value.to_le_bytes();
        match mutant.field.as_str() {
            "code" => bytes[at] = value[0],
            "regs" => bytes[at + 1] = value[0],
            "off" => bytes[at + 2..at + 4].copy_from_slice(&value[..2]),
            "imm" => bytes[at + 4..at + 8].copy_from_slice(&value[..4]),
            other => panic!("an instruction has no field {other}"),
        }
        bytes
    }
}

struct Mutant {
    instruction: usize,
    field: String,
    value: i64,
}

/// Reads a list: `digest NUMBER` of the unchanged instructions, then `INSTRUCTION FIELD VALUE` for each mutant.
fn mutants(text: &str) -> (u64, Vec<Mutant>) {
    let mut lines = text.lines();
    let digest = lines.next().and_then(|line| line.strip_prefix("digest ")).expect("a digest");
    let mutant = |line: &str| {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("three words");
        Mutant {
            instruction: word().parse().expect("a number"),
            field: word().to_owned(),
            value: word().parse().expect("a number"),
        }
    };
    (u64::from_str_radix(digest, 16).expect("a number"), lines.map(mutant).collect())
}

fn entry(map: &str, key: &[u8], value: u64) -> (String, Vec<u8>, Vec<u8>) {
    (map.to_owned(), key.to_vec(), value.to_le_bytes().to_vec())
}

/// Filters of xdp-filter for the sources and destinations of some packets: of ports, addresses, and stations.
pub(super) fn filters() -> Entries {
    const SOURCE: u64 = 1;
    const DESTINATION: u64 = 2;
    const TCP: u64 = 4;
    const UDP: u64 = 8;
    let port = |port: u16, flags| entry("filter_ports", &u32::from(port.to_be()).to_le_bytes(), flags);
    let mut filters = vec![
        port(53, DESTINATION | UDP),
        port(80, DESTINATION | TCP),
        port(443, SOURCE | DESTINATION | TCP | UDP),
        port(1024, SOURCE | TCP),
        port(2000, SOURCE | UDP),
        entry("filter_ipv4", &[10, 0, 0, 1], SOURCE),
        entry("filter_ipv4", &[10, 0, 0, 2], DESTINATION),
        entry("filter_ipv4", &[10, 0, 0, 3], SOURCE | DESTINATION),
        entry("filter_ethernet", &[2, 0, 0, 0, 0, 1], SOURCE),
        entry("filter_ethernet", &[2, 0, 0, 0, 0, 2], DESTINATION),
    ];
    let six = |last, flags| {
        let mut address = [0; 16];
        (address[0], address[15]) = (0xfd, last);
        entry("filter_ipv6", &address, flags)
    };
    filters.extend([six(1, SOURCE), six(2, DESTINATION)]);
    filters
}

/// Returns filters for the ports and addresses of some of these packets.
fn filters_of(packets: &[Vec<u8>]) -> Entries {
    const ANY: u64 = 15;
    let mut filters = Entries::new();
    for (number, packet) in packets.iter().enumerate() {
        let flags = (number / 7 % 15 + 1) as u64;
        match (number % 7, packet.get(12..14)) {
            (0, Some([8, 0])) if packet.len() >= 38 => {
                filters.push(entry("filter_ports", &[packet[36], packet[37], 0, 0], flags));
            }
            (1, Some([8, 0])) if packet.len() >= 38 => {
                filters.push(entry("filter_ports", &[packet[34], packet[35], 0, 0], flags));
            }
            (2, Some([8, 0])) if packet.len() >= 34 => filters.push(entry("filter_ipv4", &packet[26..30], flags & 3)),
            (3, Some([8, 0])) if packet.len() >= 34 => filters.push(entry("filter_ipv4", &packet[30..34], ANY)),
            (4, Some([0x86, 0xdd])) if packet.len() >= 54 => filters.push(entry("filter_ipv6", &packet[38..54], flags)),
            (5, Some([0x86, 0xdd])) if packet.len() >= 54 => filters.push(entry("filter_ipv6", &packet[22..38], flags)),
            (6, Some(_)) if number % 3 == 0 => filters.push(entry("filter_ethernet", &packet[6..12], flags & 3)),
            _ => {}
        }
    }
    filters
}

/// Returns packets of many kinds, with and without the ports and addresses of the filters.
pub(super) fn packets() -> Vec<Vec<u8>> {
    let ports = [53, 80, 443, 1024, 2000, 9];
    let mut packets = Vec::new();
    for tags in 0..3 {
        for last in 0..4u8 {
            let tagged = || {
                let stations = Template::new().ethernet([2, 0, 0, 0, 0, last], [2, 0, 0, 0, 0, last ^ 3]);
                (0..tags).fold(stations, |template, tag| template.vlan(tag + 7))
            };
            let six = |last| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
            let four = || tagged().ipv4([10, 0, 0, last], [10, 0, 0, last ^ 1]);
            let inner = [
                four(),
                tagged().ipv4([10, 0, 0, 9], [10, 0, 0, last]),
                tagged().ipv6(six(u16::from(last)), six(u16::from(last ^ 1))),
                tagged().ipv6(six(9), six(u16::from(last))),
            ];
            packets.push(tagged().arp(Arp::request(frames::FROM, [10, 0, 0, 1].into(), [10, 0, 0, 2].into())).build());
            packets.push(four().icmp(Icmp::echo_request(1, 2)).build());
            packets.push(tagged().ipv6(six(1), six(2)).icmpv6(Icmp::echo_request_v6(1, 2)).build());
            for template in inner {
                for (number, port) in ports.into_iter().enumerate() {
                    let other = ports[(number + usize::from(last) + 1) % ports.len()];
                    packets.push(template.clone().udp(other, port).payload(*b"data").build());
                    let tcp = Tcp { src: port, dst: other, flags: flags::SYN, ..Tcp::default() };
                    packets.push(template.clone().tcp(tcp).build());
                }
            }
        }
    }
    packets
}

/// Returns the packets, and each of them cut after a part of its headers.
fn whole_and_cut() -> Vec<Vec<u8>> {
    let whole = packets();
    let cut = |(number, packet): (usize, &Vec<u8>)| packet[..14 + number * 5 % (packet.len() - 14)].to_vec();
    let cut: Vec<Vec<u8>> = whole.iter().enumerate().map(cut).collect();
    [whole, cut].concat()
}

/// Returns the packets of a directory's captures with Ethernet headers, each once.
fn captured(directory: &Path) -> Vec<Vec<u8>> {
    let mut packets = std::collections::BTreeSet::new();
    for file in std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
        let file = std::fs::File::open(file.expect("an entry of the directory").path()).expect("a capture");
        let Ok(mut reader) = CaptureReader::new(file) else {
            continue;
        };
        while let Ok(Some(packet)) = reader.next_packet() {
            let is_whole = packet.captured.len() == packet.original_len as usize;
            if packet.link_type == LINKTYPE_ETHERNET && is_whole && (14..=3000).contains(&packet.captured.len()) {
                packets.insert(packet.captured.to_vec());
            }
        }
    }
    packets.into_iter().collect()
}

/// Compares two objects on packets a microsecond apart; `None` if the kernel refuses the new one.
fn compare(new: &Path, old: &Path, entries: &Entries, packets: &[Vec<u8>], fuzz: Option<Duration>) -> Option<Report> {
    let subject = |file: &Path| Subject::new(file.to_owned(), None);
    let mut trial = Trial::begin(Plan {
        program: subject(new),
        against: Some(subject(old)),
        files: vec![String::new()],
        first_contents: FirstContents::new(Origin::default(), entries.clone()),
        fuzz,
        ..Plan::default()
    })
    .ok()?;
    for (number, bytes) in (1u64..).zip(packets) {
        let time = number * 1000;
        let packet = Recorded { file: 0, number, time, queue: 0, verdict: None, bytes: bytes.clone() };
        trial.packet(packet).expect("a run");
    }
    Some(trial.finish().expect("a report"))
}

/// Numbers of mutants.
#[derive(Debug, Default)]
struct Seen {
    /// All mutants that the kernel loads.
    accepted: usize,
    /// Mutants that differ in the outcome of a packet, in the contents of maps alone, or in either after fuzzing.
    by_packets: usize,
    by_maps: usize,
    by_fuzzing: usize,
}

impl Seen {
    fn total(&self) -> usize {
        self.by_packets + self.by_maps + self.by_fuzzing
    }
}

/// Returns the time to fuzz each mutant that the packets do not show.
fn fuzzing() -> Option<Duration> {
    let seconds = std::env::var(FUZZ).ok()?;
    Some(Duration::from_secs(seconds.parse().unwrap_or_else(|e| panic!("{FUZZ}: {e}"))))
}

/// Compares mutants with their object; `None` if the list was made for another object.
fn seen(path: &Path, (list, every): (&str, usize), entries: &Entries, packets: &[Vec<u8>]) -> Option<Seen> {
    let object = Object::read(path);
    let (digest, mutants) = mutants(list);
    if object.digest() != digest {
        skip(&format!("{} is not the one that the list of mutants was made for", path.display()));
        return None;
    }
    let same = compare(path, path, entries, packets, None).expect("the kernel accepts the object");
    assert!(same.groups.is_empty() && same.maps.is_empty(), "{same:?}");
    // Most mutants are seen soon.
    let times: Vec<Duration> = fuzzing().into_iter().flat_map(|most| [most / 30, most]).collect();
    let directory = Directory::new();
    let file = directory.path().join("mutant.o");
    let mut seen = Seen::default();
    for mutant in mutants.iter().step_by(every) {
        std::fs::write(&file, object.mutant(mutant)).expect("a file for the test");
        let Some(report) = compare(&file, path, entries, packets, None) else {
            continue;
        };
        seen.accepted += 1;
        let (groups, maps) = (report.groups.len(), report.maps.len());
        println!("instruction {}: {groups} groups, {maps} maps", mutant.instruction);
        check_examples(&report, mutant);
        if groups > 0 {
            seen.by_packets += 1;
        } else if maps > 0 {
            seen.by_maps += 1;
        } else if times.iter().any(|time| is_seen_by_fuzzing(&file, path, entries, packets, *time, mutant)) {
            seen.by_fuzzing += 1;
        }
    }
    println!("{}: {seen:?} with {} packets", path.display(), packets.len());
    Some(seen)
}

fn is_seen_by_fuzzing(
    file: &Path,
    path: &Path,
    entries: &Entries,
    packets: &[Vec<u8>],
    time: Duration,
    mutant: &Mutant,
) -> bool {
    let report = compare(file, path, entries, packets, Some(time)).expect("the kernel accepts the mutant");
    check_examples(&report, mutant);
    let runs = report.fuzzing.map(|fuzzing| fuzzing.runs);
    let (groups, maps) = (report.groups.len(), report.maps.len());
    println!("instruction {}: {groups} groups, {maps} maps, fuzzed {time:?}, runs: {runs:?}", mutant.instruction);
    !report.groups.is_empty() || !report.maps.is_empty()
}

/// The packets of examples differ when they are run again alone.
fn check_examples(report: &Report, mutant: &Mutant) {
    let examples = report.groups.iter().map(|group| &group.example);
    let unconfirmed = examples.filter(|example| !example.packets.is_empty() && !example.is_confirmed).count();
    let shown = report.groups.len().min(20);
    assert!(unconfirmed <= report.groups.len() - shown, "instruction {}: {report:?}", mutant.instruction);
}

#[test]
fn mutants_of_xdp_filter_are_seen() {
    if !root_or_skip() {
        return;
    }
    let path = Path::new(XDP_FILTER);
    if !path.exists() {
        return skip("the package xdp-tools is not installed");
    }
    // Making examples smaller takes time for each mutant: every eighth has to do unless captures are given.
    let (packets, every, least) = match (std::env::var_os(CAPTURES), fuzzing()) {
        (Some(directory), None) => (captured(Path::new(&directory)), 1, SEEN_BY_CAPTURES),
        (Some(directory), Some(_)) => (captured(Path::new(&directory)), 1, SEEN_BY_FUZZING),
        (None, _) => (whole_and_cut(), 8, SEEN),
    };
    let filters = if every == 1 { filters_of(&packets) } else { filters() };
    let list = include_str!("mutants/xdpfilt_alw_all.txt");
    if let Some(seen) = seen(path, (list, every), &filters, &packets) {
        assert!(seen.total() >= least, "{seen:?}");
    }
}

#[test]
fn mutants_of_katran_are_seen_by_captures() {
    let (Some(objects), Some(captures)) = (std::env::var_os(OBJECTS), std::env::var_os(CAPTURES)) else {
        return skip(&format!("{OBJECTS} and {CAPTURES} name no directories"));
    };
    if !root_or_skip() {
        return;
    }
    let path = PathBuf::from(objects).join("katran.o");
    let text = |extension| std::fs::read_to_string(path.with_extension(extension)).expect("a file beside the object");
    let entries = text("entries").lines().map(parsed).collect();
    let packets = captured(Path::new(&captures));
    let least = if fuzzing().is_some() { KATRAN_SEEN_BY_FUZZING } else { KATRAN_SEEN_BY_CAPTURES };
    if let Some(seen) = seen(&path, (&text("mutants"), 1), &entries, &packets) {
        assert!(seen.total() >= least, "{seen:?}");
    }
}

fn parsed(line: &str) -> (String, Vec<u8>, Vec<u8>) {
    let (name, rest) = line.split_once(':').expect("a map");
    let (key, value) = rest.split_once('=').expect("a value");
    let bytes = |digits: &str| {
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        (0..digits.len()).step_by(2).map(byte).collect()
    };
    (name.to_owned(), bytes(key), bytes(value))
}
