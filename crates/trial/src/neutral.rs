//! Probes do not change what a program does, and probes of all kinds show the same coverage. Objects and packets are of a
//! directory that the test is given; without one it uses the object of xdp-tools' package and packets of random bytes.

use std::path::{Path, PathBuf};

use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::CaptureReader;
use trawl_program::load::Source;
use trawl_sys::testing::root_or_skip;

use crate::packet::Recorded;
use crate::side::ProbeKind;
use crate::state::{FirstContents, Origin};
use crate::subject::Subject;
use crate::trial::{Plan, Trial};

/// Variables with the directories of objects and of captures. Beside NAME.o may be NAME.entries with the contents of its
/// maps, each in a line: MAP:KEY=VALUE, in hexadecimal digits.
const OBJECTS: &str = "TRAWL_OBJECTS";
const CAPTURES: &str = "TRAWL_CAPTURES";
const PACKAGED: &str = "/usr/lib/x86_64-linux-gnu/bpf/xdpfilt_alw_all.o";

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let paths = all.map(|file| file.expect("an entry of the directory").path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == extension)).collect();
    found.sort();
    found
}

fn objects() -> Vec<PathBuf> {
    match std::env::var_os(OBJECTS) {
        Some(directory) => files(Path::new(&directory), "o"),
        None => vec![PathBuf::from(PACKAGED)].into_iter().filter(|path| path.exists()).collect(),
    }
}

fn hexadecimal(digits: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn entries(object: &Path) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let text = std::fs::read_to_string(object.with_extension("entries")).unwrap_or_default();
    let entry = |line: &str| {
        let (name, rest) = line.split_once(':').expect("a map");
        let (key, value) = rest.split_once('=').expect("a value");
        (name.to_owned(), hexadecimal(key), hexadecimal(value))
    };
    text.lines().map(entry).collect()
}

/// Calls a function for each packet.
fn each_packet(mut run: impl FnMut(Recorded)) {
    let mut number = 0;
    let mut packet = |time, bytes: &[u8]| {
        number += 1;
        run(Recorded { file: 0, number, time, queue: 0, verdict: None, bytes: bytes.to_vec() });
    };
    let Some(directory) = std::env::var_os(CAPTURES) else {
        let mut state = 1u64;
        for time in 0..2000 {
            let mut byte = || {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 56) as u8
            };
            let mut bytes: Vec<u8> = (0..60).map(|_| byte()).collect();
            // An IPv4 header, so that the rest matters.
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            packet(time, &bytes);
        }
        return;
    };
    for file in files(Path::new(&directory), "pcap") {
        let file = std::fs::File::open(file).expect("a capture");
        let Ok(mut reader) = CaptureReader::new(file) else {
            continue;
        };
        while let Ok(Some(one)) = reader.next_packet() {
            let is_whole = one.captured.len() == one.original_len as usize;
            if one.link_type == LINKTYPE_ETHERNET && is_whole && (14..=9000).contains(&one.captured.len()) {
                packet(one.timestamp_ns, one.captured);
            }
        }
    }
}

#[test]
fn probes_change_no_outcome() {
    if !root_or_skip() {
        return;
    }
    for file in objects() {
        let mut source = Source::read(&file).expect("an object");
        source.prefer_tc(None);
        for program in source.programs() {
            let mut coverage = None;
            for probes in [ProbeKind::Frugal, ProbeKind::OnStack, ProbeKind::InLoads(2), ProbeKind::InLoads(4)] {
                let about = format!("{} of {}, {probes:?}", program.name, file.display());
                let subject = Subject::new(file.clone(), Some(program.name.clone()));
                let plan = Plan {
                    program: subject.clone(),
                    against: Some(subject),
                    files: vec![String::new()],
                    first_contents: FirstContents::new(Origin::default(), entries(&file)),
                    ..Plan::default()
                };
                let mut trial =
                    Trial::begin_with(plan, [probes, ProbeKind::None]).unwrap_or_else(|e| panic!("{about}: {e}"));
                each_packet(|packet| trial.packet(packet).expect("a run"));
                let report = trial.finish().expect("a report");
                let parts = report.coverage.as_ref().map(|one| (one.blocks, one.edges));
                println!("{about}: {} packets, {parts:?}, {:?}", report.packets, report.notes);
                assert!(report.groups.is_empty(), "{about}: {:?}", report.groups);
                assert!(report.maps.is_empty(), "{about}: {:?}", report.maps);
                let found = format!("{:?}", report.coverage);
                assert_eq!(&found, coverage.get_or_insert_with(|| found.clone()), "{about}");
            }
        }
    }
}
