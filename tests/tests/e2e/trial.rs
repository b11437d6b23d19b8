//! `trawl xdp test`: programs run on recorded packets, and compared.

use std::process::Command;

use serde_json::{Value, json};
use trawl_packet::pcapng::write::{self, EnhancedPacket, SectionHeader};
use trawl_packet::pcapng::{Interface, Verdict};
use trawl_tests::lab::Directory;
use trawl_tests::xdp::{fails, succeeds};
use trawl_tests::{frames, programs, root_or_skip, trawl, witness};

/// The time of the first packet, at the beginning of a second.
const BEGIN: u64 = 1_700_000_000_000_000_000;

/// A recorded packet: its time after the first one, its bytes, and its verdict if it has one.
type Recorded = (u64, Vec<u8>, Option<u64>);

/// Files of a test.
pub(super) struct Files(Directory);

impl Files {
    pub fn open() -> Option<Self> {
        root_or_skip().then(|| Self(Directory::new()))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub fn object(&self, name: &str) -> String {
        let path = self.path(&format!("{name}.o"));
        std::fs::write(&path, programs::object(name)).expect("a file for the test");
        path
    }

    pub fn recording(&self, packets: &[Recorded]) -> String {
        self.named_recording("recorded", packets)
    }

    fn named_recording(&self, name: &str, packets: &[Recorded]) -> String {
        self.recorded(
            name,
            packets.iter().map(|(time, bytes, verdict)| EnhancedPacket {
                timestamp_ns: BEGIN + time,
                captured: bytes,
                original_len: bytes.len() as u32,
                verdict: verdict.map(Verdict::Xdp),
                ..EnhancedPacket::default()
            }),
        )
    }

    /// Records a packet that arrived by each of these queues.
    fn recording_of_queues(&self, queues: &[u32]) -> String {
        let bytes = frames::silent(64);
        self.recorded(
            "queues",
            queues.iter().map(|queue| EnhancedPacket {
                timestamp_ns: BEGIN,
                captured: &bytes,
                original_len: bytes.len() as u32,
                queue: Some(*queue),
                ..EnhancedPacket::default()
            }),
        )
    }

    fn recorded<'p>(&self, name: &str, packets: impl Iterator<Item = EnhancedPacket<'p>>) -> String {
        let mut out = Vec::new();
        write::section_header(&mut out, &SectionHeader::default());
        write::interface_description(&mut out, &Interface { tsresol: 9, ..Interface::default() });
        packets.for_each(|packet| write::enhanced_packet(&mut out, &packet));
        let path = self.path(&format!("{name}.pcapng"));
        std::fs::write(&path, out).expect("a file for the test");
        path
    }
}

/// Runs a test, and returns its report and exit status.
#[track_caller]
pub(super) fn report(arguments: &[&str]) -> (Value, i32) {
    let output = trawl(&[&["xdp", "test", "--json"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{said}"));
    (report, output.status.code().expect("an exit status"))
}

pub(super) fn count(report: &Value, verdict: &str) -> u64 {
    let all = report["verdicts"].as_array().expect("a list");
    all.iter().find(|one| one["verdict"] == verdict).map_or(0, |one| one["packets"].as_u64().expect("a number"))
}

fn bytes_of(example: &Value) -> Vec<Vec<u8>> {
    let packets = example["packets"].as_array().expect("a list").iter().map(|text| text.as_str().expect("a text"));
    let bytes = |text: &str| {
        let digits = (0..text.len()).step_by(2);
        digits.map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits")).collect()
    };
    packets.map(bytes).collect()
}

/// Packets of all kinds, a microsecond apart.
fn assorted(times: usize) -> Vec<Recorded> {
    let frames = frames::assorted().into_iter().filter(|frame| frame.len() < 3000);
    let all: Vec<Vec<u8>> = frames.cycle().take(times).collect();
    all.into_iter().enumerate().map(|(number, frame)| (number as u64 * 1000, frame, None)).collect()
}

#[test]
fn same_object_has_no_difference() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording(&assorted(500));
    let cases = [
        ("state", "state"),
        ("subprograms", "subprograms"),
        ("tail_calls", "tail_calls"),
        ("global_functions", "global_functions"),
        ("callbacks", "callbacks"),
        ("full_stack", "full_stack"),
        ("bucket", "bucket"),
        ("bucket", "chance"),
        ("redirecting", "redirecting"),
        ("several", "several_first"),
    ];
    for (name, program) in cases {
        let object = files.object(name);
        let (report, status) = report(&[&object, &recording, "--against", &object, "--prog", program]);
        assert_eq!((status, &report["groups"], &report["maps"]), (0, &Value::Array(vec![]), &Value::Array(vec![])));
        assert_eq!(report["packets"], 500, "{program}");
    }
}

/// The probes and the replaced calls do not change what a program does: it returns the same verdicts as the object itself.
#[test]
fn verdicts_are_those_of_the_program_itself() {
    let Some(files) = Files::open() else {
        return;
    };
    for (name, program) in [("chosen", "chosen"), ("large_switch", "large_switch"), ("full_stack", "full_stack")] {
        let plain = trawl_bpf::object::Plain::load(programs::object(name), program).expect("a program");
        let mut packets = assorted(300);
        packets.extend((0..5).map(|action| (1_000_000 + u64::from(action), frames::choosing(action), None)));
        for (_, bytes, verdict) in &mut packets {
            let outcome = trawl_bpf::test_run::xdp_outcome(plain.program(), bytes).expect("a test run");
            *verdict = Some(outcome.value.into());
        }
        let recording = files.recording(&packets);
        let (report, status) = report(&[&files.object(name), &recording, "--prog", program]);
        assert_eq!(status, 0, "{report}");
        assert_eq!(report["recorded"]["packets"], 305, "{name}");
        assert_eq!(report["recorded"]["reproduced"], 305, "{name}");
    }
}

#[test]
fn difference_is_shown_with_its_lines_and_its_smallest_packet() {
    let Some(files) = Files::open() else {
        return;
    };
    let mut special = frames::patterned(200);
    special[20] = 0x77;
    let mut packets = assorted(100);
    packets.retain(|(_, bytes, _)| bytes.get(20) != Some(&0x77));
    let others = packets.len();
    packets.push((1_000_000, special, None));
    let recording = files.recording(&packets);
    let object = files.object("marking");
    let cases = [
        ("marks_other", "marks_one", "bytes", 21),
        ("shortens", "marks_one", "length", 21),
        ("adds_metadata", "marks_one", "metadata", 21),
        ("to_second", "to_first", "target", 21),
        ("to_first", "marks_one", "verdict", 21),
    ];
    for (new, old, difference, length) in cases {
        let saved = files.path(&format!("saved-{new}"));
        let arguments =
            [&object, &recording, "--prog", new, "--against", &object, "--against-prog", old, "--save", &saved];
        let (first, status) = report(&arguments);
        assert_eq!(status, 1, "{new}: {first}");
        let groups = first["groups"].as_array().expect("a list");
        assert_eq!(groups.len(), 1, "{new}: {groups:?}");
        let group = &groups[0];
        assert_eq!(group["packets"], 1, "{group}");
        assert_eq!(group["differences"][0], difference, "{group}");
        let example = &group["example"];
        assert_eq!((&example["number"], &example["is_confirmed"]), (&Value::from(others + 1), &Value::from(true)));
        let smallest = bytes_of(example);
        assert_eq!(smallest.len(), 1);
        assert_eq!((smallest[0].len(), smallest[0][20]), (length, 0x77), "{new}: {smallest:02x?}");
        assert!(smallest[0].iter().enumerate().all(|(at, byte)| at == 20 || *byte == 0), "{smallest:02x?}");
        // The saved packet differs when it is run again alone.
        let file = only_file(&saved);
        witness::run("capinfos", &[&file]);
        let (again, status) = report(&[&object, &file, "--prog", new, "--against", &object, "--against-prog", old]);
        assert_eq!((status, &again["packets"]), (1, &Value::from(1)), "{again}");
        assert_eq!(again["groups"][0]["differences"], group["differences"]);
    }
    let verdicts =
        ["--prog", "to_first", "--against-prog", "marks_one", "--against", &object, "--ignore", "maps:marks"];
    let (allowed, status) = report(&[&[&object[..], &recording, "--allow", "tx>redirect"], &verdicts[..]].concat());
    assert_eq!((status, &allowed["groups"][0]["allowed"]), (0, &Value::from("tx>redirect")), "{allowed}");
    let filtered = ["--allow", "tx>redirect where udp port 7777"];
    let (refused, status) = report(&[&[&object[..], &recording], &filtered[..], &verdicts[..]].concat());
    assert_eq!(status, 1, "{refused}");
    let bytes = ["--prog", "marks_other", "--against-prog", "marks_one", "--against", &object];
    let (maps, status) = report(&[&[&object[..], &recording, "--ignore", "bytes"], &bytes[..]].concat());
    assert_eq!((status, &maps["groups"]), (1, &Value::Array(vec![])));
    assert_eq!((&maps["maps"][0]["name"], &maps["maps"][0]["entries"]), (&Value::from("marks"), &Value::from(1)));
    let (_, status) = report(&[&[&object[..], &recording, "--ignore", "bytes,maps:marks"], &bytes[..]].concat());
    assert_eq!(status, 0);
}

fn only_file(directory: &str) -> String {
    let files: Vec<_> = std::fs::read_dir(directory).expect("the directory").collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].as_ref().expect("an entry").path().display().to_string()
}

/// A program with a state needs the packets before the one that differs, but not all of them.
#[test]
fn shortest_sequence_is_found() {
    let Some(files) = Files::open() else {
        return;
    };
    // 200 packets at once: after 25 of them the smaller bucket is empty, after 50 the larger one too.
    let mut packets: Vec<Recorded> = Vec::new();
    for number in 0..200u64 {
        let mut frame = frames::silent(64);
        frame[14] = (number % 2) as u8;
        packets.push((number, frame, None));
    }
    let recording = files.recording(&packets);
    let object = files.object("bucket");
    let arguments = [&object, &recording, "--prog", "smaller_bucket", "--against", &object, "--against-prog", "bucket"];
    let (report, status) = report(&arguments);
    assert_eq!(status, 1, "{report}");
    let group = &report["groups"][0];
    assert_eq!((&group["before"], &group["after"]), (&Value::from("PASS"), &Value::from("DROP")), "{group}");
    assert_eq!(group["packets"], 50, "{group}");
    assert_eq!(group["example"]["is_confirmed"], true, "{group}");
    let sequence = bytes_of(&group["example"]);
    assert_eq!(sequence.len(), 26, "{group}");
    assert!(sequence.iter().all(|packet| packet[14] == sequence[0][14]));
}

#[test]
fn programs_see_the_recorded_time() {
    let Some(files) = Files::open() else {
        return;
    };
    // Tokens come every 10 µs: packets 5 µs apart are dropped half of the time once the bucket is empty.
    let packets: Vec<Recorded> = (0..1000u64).map(|number| (number * 5000, frames::silent(64), None)).collect();
    let recording = files.recording(&packets);
    let object = files.object("bucket");
    let arguments = [&object[..], &recording, "--prog", "bucket"];
    let (first, _) = report(&arguments);
    // 50 tokens at first, and one for each of the 999 intervals that are whole: the program drops the rest of an interval.
    assert_eq!(count(&first, "PASS"), 50, "{first}");
    let (second, _) = report(&arguments);
    assert_eq!(first["outcomes"], second["outcomes"]);
    let (third, _) = report(&[&arguments[..], &["--time", "recorded"]].concat());
    assert_eq!(first["outcomes"], third["outcomes"]);
    let (real, status) = report(&[&arguments[..], &["--time", "real"]].concat());
    assert_eq!((status, &real["packets"]), (0, &Value::from(1000)), "{real}");
    let slower: Vec<Recorded> = (0..1000u64).map(|number| (number * 10_000, frames::silent(64), None)).collect();
    let (slower, _) = report(&[&object, &files.recording(&slower), "--prog", "bucket"]);
    assert_eq!(count(&slower, "PASS"), 1000, "{slower}");
}

#[test]
fn chance_is_the_same_in_each_run_and_another_with_another_seed() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording(&assorted(1000));
    let object = files.object("bucket");
    let outcome = |seed: &str| report(&[&object, &recording, "--prog", "chance", "--seed", seed]).0;
    let first = outcome("1");
    assert_eq!(first["outcomes"], outcome("1")["outcomes"]);
    assert_ne!(first["outcomes"], outcome("2")["outcomes"]);
    assert!((400..600).contains(&count(&first, "PASS")), "{first}");
}

/// The kernel itself refuses to run such a program without a device.
#[test]
fn programs_that_ask_the_driver_for_the_time_see_the_recorded_one() {
    let Some(files) = Files::open() else {
        return;
    };
    if trawl_bpf::probe::kernel_function("bpf_xdp_metadata_rx_timestamp").is_err() {
        return trawl_tests::skip("this kernel has no bpf_xdp_metadata_rx_timestamp");
    }
    let packets: Vec<Recorded> = (0..100u64).map(|number| (number * 10_000_000, frames::silent(64), None)).collect();
    let (report, status) = report(&[&files.object("stamped"), &files.recording(&packets)]);
    assert_eq!((status, count(&report, "PASS"), count(&report, "DROP")), (0, 50, 50), "{report}");
}

#[test]
fn programs_at_tc_are_tested_too() {
    let Some(files) = Files::open() else {
        return;
    };
    let mut special = frames::silent(64);
    special[20] = 0x77;
    let packets = [(0, special, None), (600_000_000, frames::silent(64), None), (600_000_001, vec![0; 5000], None)];
    let recording = files.recording(&packets);
    let object = files.object("at_tc");
    let same = [&object[..], &recording, "--prog", "marks_eight", "--against", &object];
    let (same, status) = report(&same);
    assert_eq!((status, count(&same, "OK"), count(&same, "UNSPEC")), (0, 1, 1), "{same}");
    assert_eq!(same["files"][0]["left_out"][0]["packets"], 1, "{same}");
    let mut short = frames::silent(30);
    short[12..14].copy_from_slice(&[0x08, 0x00]);
    let short = files.named_recording("short", &[(0, short, None), (1, frames::udp_to(53, b"x"), None)]);
    let fuzzed = [&object[..], &short, "--prog", "marks_eight", "--against", &object, "--fuzz", "2s"];
    let (fuzzed, status) = report(&fuzzed);
    let left_out = fuzzed["files"][0]["left_out"][0]["packets"].as_u64().unwrap_or(0);
    assert_eq!((status, fuzzed["packets"].as_u64().map(|packets| packets + left_out)), (0, Some(2)), "{fuzzed}");
    let other = ["--against", &object, "--against-prog", "marks_seven"];
    let (other, status) = report(&[&[&object[..], &recording, "--prog", "marks_eight"], &other[..]].concat());
    assert_eq!((status, &other["groups"][0]["differences"][0]), (1, &Value::from("context")), "{other}");
    assert_eq!(bytes_of(&other["groups"][0]["example"])[0].len(), 21, "{other}");
    let (timed, _) = report(&[&object, &recording, "--prog", "drops_first_half"]);
    assert_eq!((count(&timed, "SHOT"), count(&timed, "OK")), (1, 1), "{timed}");
    let xdp = files.object("drop_ports");
    let mixed = ["xdp", "test", &object, &recording, "--prog", "marks_eight", "--against", &xdp];
    fails(&[&mixed[..], &["--against-prog", "drop_ports"]].concat(), 2, &["one of them is an XDP program"]);
}

#[test]
fn coverage_counts_lines_and_blocks() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording(&[(0, frames::udp_to(53, b"x"), None), (1, frames::silent(64), None)]);
    let object = files.object("drop_ports");
    let (lcov, page) = (files.path("lines.info"), files.path("lines.html"));
    let (first, status) = report(&[&object, &recording, "--coverage", &lcov]);
    assert_eq!(status, 0, "{first}");
    let lines = &first["coverage"]["lines"];
    assert!(lines["reached"].as_u64() < lines["total"].as_u64(), "{lines}");
    let text = std::fs::read_to_string(&lcov).expect("a tracefile");
    let source = format!("{}/programs/drop_ports.bpf.c", env!("CARGO_MANIFEST_DIR"));
    let number = |wanted: &str| {
        let source = std::fs::read_to_string(&source).expect("the source");
        source.lines().position(|line| line.contains(wanted)).expect("the line") + 1
    };
    // Both packets reach the first check, one the look-up, and none the counter.
    for (line, packets) in [("if ((void *)(udp + 1) > end", 2), ("if (!bpf_map_lookup_elem", 1), ("__sync_fetch", 0)] {
        let expected = format!("DA:{},{packets}\n", number(line));
        assert!(text.contains(&expected), "{expected} is missing in {text}");
    }
    // With the port in the map, everything is reached.
    let (all, status) =
        report(&[&object, &recording, "--map", "ports:3500=00000000", "--min-lines", "100%", "--coverage", &page]);
    assert_eq!((status, count(&all, "DROP")), (0, 1), "{all}");
    assert!(std::fs::read_to_string(&page).expect("a page").contains("bpf_map_lookup_elem"));
    let (missed, status) = report(&[&object, &recording, "--min-lines", "100%"]);
    assert_eq!((status, missed["missed"].as_array().map(Vec::len)), (1, Some(1)), "{missed}");
}

/// Frames for the program `edges`, each with a name for its way.
fn ways(names: &str) -> Vec<Recorded> {
    let frame = |name: char| {
        let (length, bytes) = match name {
            'd' => (14, [0, 0]), // too short
            'o' => (64, [1, 0]), // odd
            'f' => (64, [4, 0]), // four
            'l' => (64, [2, 3]), // the loop runs again
            'h' => (64, [200, 0]),
            _ => panic!("there is no way {name}"),
        };
        let mut frame = frames::silent(64);
        frame[14..16].copy_from_slice(&bytes);
        frame.truncate(length);
        frame
    };
    names.chars().enumerate().map(|(number, name)| (number as u64, frame(name), None)).collect()
}

fn branch(packets: u64, taken: impl Into<Value>, not_taken: u64) -> Value {
    json!({ "packets": packets, "taken": taken.into(), "not_taken": not_taken })
}

#[test]
fn coverage_counts_edges() {
    let Some(files) = Files::open() else {
        return;
    };
    let object = files.object("edges");
    // Reached blocks and edges, of 13 and 15.
    for (names, blocks, edges) in [
        ("d", 2, 1),
        ("o", 3, 2),
        ("f", 4, 3),
        ("l", 11, 10),
        ("h", 10, 8),
        ("od", 4, 3),
        ("dofh", 12, 11),
        ("dofhl", 13, 15),
    ] {
        let (report, status) = report(&[&object, &files.recording(&ways(names)), "--against", &object]);
        assert_eq!((status, &report["groups"]), (0, &json!([])), "{report}");
        let coverage = &report["coverage"];
        assert_eq!(coverage["blocks"], json!({ "reached": blocks, "total": 13 }), "{names}");
        assert_eq!(coverage["edges"], json!({ "reached": edges, "total": 15 }), "{names}");
    }
    let lcov = files.path("edges.info");
    let (report, _) = report(&[&object, &files.recording(&ways("dofhl")), "--coverage", &lcov]);
    let coverage = &report["coverage"];
    let functions = coverage["functions"].as_array().expect("a list").iter();
    let functions: Vec<(&Value, &Value)> = functions.map(|one| (&one["name"], &one["edges"]["total"])).collect();
    assert_eq!(functions, [(&json!("edges"), &json!(12)), (&json!("is_large"), &json!(3))]);
    let lines = coverage["files"][0]["lines"].as_array().expect("a list").iter();
    let branches: Vec<&Value> = lines.map(|line| &line["branches"]).filter(|list| **list != json!([])).collect();
    let main = [
        branch(5, 1, 4),
        branch(4, 1, 3),
        branch(3, 1, 2),
        branch(2, 1, 2),
        branch(2, Value::Null, 2),
        branch(2, 1, 1),
    ];
    assert_eq!(branches, [&json!([branch(2, 1, 1)]), &json!(main)]);
    let text = std::fs::read_to_string(&lcov).expect("a tracefile");
    assert_eq!((text.contains("BRF:13\nBRH:13\n"), text.matches("BRDA:").count()), (true, 13), "{text}");
    // lcov's own tool, where it is installed, finds the same.
    let page = ["--branch-coverage", "-o", &files.path("pages"), &lcov];
    if let Ok(output) = Command::new("genhtml").args(page).output() {
        let found = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && found.contains("(13 of 13 branches)"), "{found}");
    }
}

#[test]
fn programs_that_are_too_complex_with_all_probes_are_loaded_twice() {
    let Some(files) = Files::open() else {
        return;
    };
    let (report, status) = report(&[&files.object("halved"), &files.recording(&ways("dofhl"))]);
    let coverage = &report["coverage"];
    assert_eq!((status, &coverage["blocks"]), (0, &json!({ "reached": 11, "total": 11 })), "{report}");
    assert_eq!(coverage["edges"], json!({ "reached": 14, "total": 15 }), "{report}");
    let files = coverage["files"].as_array().expect("a list").iter();
    let lines = files.flat_map(|file| file["lines"].as_array().expect("a list"));
    let branches: Vec<&Value> = lines.map(|line| &line["branches"]).filter(|list| **list != json!([])).collect();
    let found = [
        json!([branch(5, 1, 4)]),
        json!([branch(4, 4, 4)]),
        json!([branch(4, 4, 4)]),
        json!([branch(4, 4, 4), branch(4, 0, 4)]),
    ];
    assert_eq!(branches, found.iter().collect::<Vec<_>>());
    assert!(report["program"]["tag"].is_string(), "{report}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("the coverage of halved is measured in 2 loads"), "{notes}");
}

/// A program close to the verifier's limit is too complex for it even with a quarter of the probes.
#[test]
fn programs_that_are_too_complex_with_any_probes_have_no_coverage() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording(&assorted(100));
    let (report, status) = report(&[&files.object("enormous"), &recording]);
    assert_eq!((status, &report["packets"], &report["coverage"]), (0, &json!(100), &Value::Null), "{report}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("the coverage of enormous is not measured"), "{notes}");
}

#[test]
fn results_are_written_for_continuous_integration() {
    let Some(files) = Files::open() else {
        return;
    };
    let mut special = frames::silent(64);
    special[20] = 0x77;
    let recording = files.recording(&[(0, special, None)]);
    let object = files.object("marking");
    let file = files.path("results.xml");
    let arguments = [
        "xdp",
        "test",
        &object,
        &recording,
        "--prog",
        "marks_other",
        "--against",
        &object,
        "--against-prog",
        "marks_one",
        "--junit",
        &file,
    ];
    fails(&arguments, 1, &[]);
    let check = "import sys, xml.etree.ElementTree as tree\n\
                 suite = tree.parse(sys.argv[1]).getroot()\n\
                 suite = suite if suite.tag == 'testsuite' else suite.find('testsuite')\n\
                 failures = [case for case in suite.iter('testcase') if case.find('failure') is not None]\n\
                 assert len(failures) == int(suite.get('failures')) == 3, suite.attrib";
    witness::run("python3", &["-c", check, &file]);
    let json = trawl(&[&arguments[..10], &["--json"]].concat());
    crate::json::holds("xdp test", &json.stdout);
    let expected = files.path("expected.json");
    let plain = ["xdp", "test", &object, &recording, "--prog", "marks_one", "--json"];
    std::fs::write(&expected, succeeds(&plain)).expect("a file for the test");
    succeeds(&[&plain[..], &["--expect", &expected]].concat());
    let other = ["xdp", "test", &object, &recording, "--prog", "to_first", "--expect", &expected];
    fails(&other, 1, &[]);
}

/// Without another program, the recorded verdicts are the expectation.
#[test]
fn other_verdict_than_the_recorded_one_is_a_difference() {
    let Some(files) = Files::open() else {
        return;
    };
    let packets = [(0, frames::silent(64), Some(2)), (1, frames::udp_to(53, b"x"), Some(1))];
    let (report, status) = report(&[&files.object("drop_ports"), &files.recording(&packets)]);
    assert_eq!((status, &report["recorded"]["reproduced"]), (1, &Value::from(1)), "{report}");
    let group = &report["groups"][0];
    assert_eq!((&group["before"], &group["after"]), (&Value::from("DROP"), &Value::from("PASS")), "{group}");
    assert_eq!(group["example"]["is_confirmed"], true, "{group}");
    assert_eq!(bytes_of(&group["example"]), [frames::udp_to(53, b"x")], "{group}");
}

#[test]
fn tests_that_cannot_run_end_with_two() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording(&assorted(10));
    let object = files.object("drop_ports");
    fails(&["xdp", "test", &files.path("none.o"), &recording], 2, &["cannot read"]);
    fails(&["xdp", "test", &object, &files.path("none.pcapng")], 2, &["cannot read"]);
    fails(&["xdp", "test", &recording, &recording], 2, &["cannot"]);
    fails(&["xdp", "test", &object, &recording, "--map", "prots:3500=00000000"], 2, &["maps in it: ports"]);
    fails(&["xdp", "test", &object, &recording, "--map", "ports:35=00000000"], 2, &["keys have 2 bytes"]);
    fails(&["xdp", "test", &object, &recording, "--allow", "pass>fall"], 2, &["not a verdict"]);
    fails(&["xdp", "test", &object, &recording, "--expect", &recording], 2, &["--json printed"]);
}

#[test]
fn packets_that_cannot_be_run_are_counted() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording(&[(0, frames::silent(64), None), (1, vec![0; 13], None)]);
    let (report, status) = report(&[&files.object("drop_ports"), &recording]);
    assert_eq!((status, &report["packets"]), (0, &Value::from(1)), "{report}");
    assert_eq!(report["files"][0]["left_out"][0]["packets"], 1, "{report}");
}

/// Fuzzing finds a difference that no recorded packet shows, and makes no difference of equal programs.
#[test]
fn fuzzing_finds_what_the_recording_lacks() {
    let Some(files) = Files::open() else {
        return;
    };
    let mut packets = assorted(100);
    packets.retain(|(_, bytes, _)| bytes.get(20) != Some(&0x77));
    let recording = files.recording(&packets);
    let object = files.object("marking");
    let saved = files.path("saved");
    let arguments =
        [&object[..], &recording, "--prog", "marks_other", "--against", &object, "--against-prog", "marks_one"];
    let (recorded, status) = report(&arguments);
    assert_eq!((status, &recorded["groups"]), (0, &Value::Array(vec![])), "{recorded}");
    let (fuzzed, status) = report(&[&arguments[..], &["--fuzz", "3s", "--save", &saved]].concat());
    assert_eq!((status, &fuzzed["groups"][0]["example"]["is_confirmed"]), (1, &Value::from(true)), "{fuzzed}");
    assert!(fuzzed["fuzzing"]["new_blocks"].as_u64() > Some(0), "{fuzzed}");
    let (again, status) = report(&[&arguments[..1], &[&only_file(&saved)], &arguments[2..]].concat());
    assert_eq!((status, &again["packets"]), (1, &Value::from(1)), "{again}");
    // A difference that maps alone show has no packet.
    let counts = ["--prog", "counts_other", "--against", &object, "--against-prog", "marks_one", "--fuzz", "3s"];
    let (counted, status) = report(&[&[&object[..], &recording], &counts[..]].concat());
    assert_eq!((status, &counted["groups"]), (1, &Value::Array(vec![])), "{counted}");
    assert_eq!(
        (&counted["maps"][0]["name"], &counted["maps"][0]["is_fuzzed"]),
        (&Value::from("marks"), &Value::from(true))
    );
    let same = [&object[..], &recording, "--prog", "marks_one", "--against", &object, "--fuzz", "2s"];
    let (same, status) = report(&same);
    assert_eq!((status, &same["fuzzing"]["differing"]), (0, &Value::from(0)), "{same}");
    assert!(same["fuzzing"]["runs"].as_u64() > Some(1000), "{same}");
}

#[test]
fn slower_program_misses_its_limit() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording(&assorted(100));
    let (slow, other) = (files.object("slow"), files.object("marking"));
    let against = ["--against", &other, "--against-prog", "to_first", "--timing", "--slower", "50%"];
    let allowed = ["--allow", "pass>drop", "--allow", "redirect>drop", "--ignore", "maps:marks"];
    let (slow, status) = report(&[&[&slow[..], &recording], &against[..], &allowed].concat());
    let timing = &slow["timing"];
    assert_eq!((status, slow["missed"].as_array().map(Vec::len)), (1, Some(1)), "{slow}");
    // The program spins for 3 µs by the clock, which it reads itself when it is timed.
    assert!(timing["ns"].as_f64() > Some(3000.0), "{timing}");
    let same = [&other[..], &recording, "--prog", "to_first"];
    let (same, status) = report(&[&same[..], &against[..5], &["--slower", "1000%"]].concat());
    assert_eq!(status, 0, "{same}");
}

/// Packets arrive by the recorded queue, and by the interface that is named.
#[test]
fn programs_see_the_interface_and_the_recorded_queue() {
    let Some(files) = Files::open() else {
        return;
    };
    let recording = files.recording_of_queues(&[0, 1, 2, 3, 3, 7]);
    let object = files.object("arriving");
    let (alone, status) = report(&[&object, &recording]);
    assert_eq!((status, count(&alone, "PASS")), (0, alone["packets"].as_u64().expect("a number")), "{alone}");
    let (four, status) = report(&[&object, &recording, "--as", "other0:4"]);
    assert_eq!((status, count(&four, "TX"), count(&four, "DROP")), (0, 2, 0), "{four}");
    // The number of the interface is the first that a new namespace has not given to a tunnel.
    let dropped = |index: u32| {
        let wanted = format!("wanted:00000000={:08x}", index.swap_bytes());
        count(&report(&[&object, &recording, "--as", "other0:4", "--map", &wanted]).0, "DROP")
    };
    let by_index: Vec<u64> = (2..12).map(dropped).filter(|packets| *packets > 0).collect();
    assert_eq!(by_index, [5]);
}
