//! trawl's post-dissector in tshark, of Debian 12 and of later releases: its fields have the values that trawl itself reads
//! from the same files.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use trawl_bpf::probe::kernel_is_at_least;
use trawl_packet::pcapng::note::keys::FIELDS;
use trawl_packet::pcapng::note::{FollowStep, Note, ProgramNote};
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::Contents;
use trawl_tests::stage::Stage;
use trawl_tests::traffic::converse;
use trawl_tests::witness::{capinfos, inside, output, run};
use trawl_tests::{Capture, Lab, Running, args, frames, skip, tools_or_skip, trawl};

use super::package::repository;

/// tshark: the installed one, or one in a root directory of its own.
struct Tshark {
    root: Option<PathBuf>,
}

impl Tshark {
    fn installed() -> Option<Self> {
        tools_or_skip(&["tshark"]).then_some(Self { root: None })
    }

    /// Returns the one of a later release of Debian, if `scripts/fetch-machine` has fetched it.
    fn of(suite: &str) -> Option<Self> {
        let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let target = trawl_tests::binary::path().ancestors().nth(2).expect("the target directory").to_owned();
        let root = target.join(format!("machine/debian/system-{suite}-{architecture}-tshark"));
        if !root.join("ready").exists() {
            skip(&format!("scripts/fetch-machine system {suite} {architecture} tshark has not fetched it"));
            return None;
        }
        Some(Self { root: Some(root) })
    }

    /// Returns a row for each packet of a file with the values of all fields of the post-dissector, and the comments.
    /// Descriptions of processes, which tshark counts as packets, have no row.
    fn rows(&self, file: &str) -> Vec<Vec<String>> {
        let script = repository().join("packaging/wireshark/trawl.lua");
        let fields = FIELDS.iter().flat_map(|field| ["-e", field.name]).chain(["-e", "frame.comment"]);
        let options = |script: &str, file: &str| {
            let mut all =
                args!("-n -X lua_script:{script} -r {file} -Y trawl -T fields -E aggregator=; -E separator=|");
            all.extend(fields.clone());
            all.into_iter().map(str::to_owned).collect::<Vec<String>>()
        };
        let done = match &self.root {
            None => {
                let all = options(script.to_str().expect("text"), file);
                output("tshark", &all.iter().map(String::as_str).collect::<Vec<_>>())
            }
            Some(root) => {
                // Since Wireshark 4.4, root runs no Lua.
                static ROOMS: AtomicU32 = AtomicU32::new(0);
                let number = ROOMS.fetch_add(1, Ordering::Relaxed);
                let room = format!("/tmp/trawl-{}-{number}", std::process::id());
                let path = root.join(&room[1..]);
                fs::create_dir(&path).expect("a directory");
                for (name, from) in [("trawl.lua", script.as_path()), ("file", file.as_ref())] {
                    fs::copy(from, path.join(name)).expect("a copy");
                    fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o644)).expect("a mode");
                }
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
                let all = options(&format!("{room}/trawl.lua"), &format!("{room}/file"));
                let mut command = Command::new("chroot");
                command.args(["--userspec=65534:65534"]).arg(root).arg("tshark").args(all).env("HOME", "/tmp");
                let done = command.output().expect("chroot runs");
                fs::remove_dir_all(&path).expect("own files");
                done
            }
        };
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let complaints: Vec<&str> = said.lines().filter(|line| !line.starts_with("Running as user")).collect();
        assert!(done.status.success() && complaints.is_empty(), "tshark says of {file}: {said}");
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
    }
}

/// The values of a packet's fields.
struct Row<'r>(&'r [String]);

impl<'r> Row<'r> {
    /// Returns the value of a field; `None` if the packet has none.
    #[track_caller]
    fn get(&self, name: &str) -> Option<&'r str> {
        let place = FIELDS.iter().position(|field| field.name == name).expect("a field");
        Some(self.0[place].as_str()).filter(|value| !value.is_empty())
    }

    fn comment(&self) -> &'r str {
        self.0.last().expect("a comment")
    }
}

/// Returns a value of a JSON document as text.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => Some(list.iter().filter_map(text).collect::<Vec<_>>().join(";")),
        other => Some(other.to_string()),
    }
}

/// The fields, and their places in the documents of `trawl read --json`.
const SAME: [(&str, &str); 16] = [
    ("trawl.packet", "/packet_id"),
    ("trawl.hook", "/hook"),
    ("trawl.interface", "/interface"),
    ("trawl.verdict", "/verdict"),
    ("trawl.drop.reason", "/drop/reason"),
    ("trawl.drop.location", "/drop/at"),
    ("trawl.drop.namespace", "/drop/netns"),
    ("trawl.drop.no_loss", "/drop/no_loss"),
    ("trawl.drop.stack", "/drop/stack"),
    ("trawl.drop.cgroup", "/drop/cgroup"),
    ("trawl.drop.rule.family", "/drop/rule/family"),
    ("trawl.drop.rule.table", "/drop/rule/table"),
    ("trawl.drop.rule.chain", "/drop/rule/chain"),
    ("trawl.drop.rule.handle", "/drop/rule/handle"),
    ("trawl.socket.address", "/drop/address"),
    ("trawl.socket.receive_buffer", "/drop/receive_buffer"),
];

/// Compares the fields of each packet with the file's other readers; returns the rows.
#[track_caller]
fn assert_same(shark: &Tshark, file: &str) -> Vec<Vec<String>> {
    let read = trawl(&["read", "--json", file]);
    assert!(read.status.success(), "{read:?}");
    let read = String::from_utf8_lossy(&read.stdout).into_owned();
    let packets: Vec<Value> = read.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let rows = shark.rows(file);
    assert!(!rows.is_empty() && rows.len() == packets.len(), "{rows:?} {packets:?}");
    for (row, packet) in rows.iter().zip(&packets) {
        let row = Row(row);
        let step = FollowStep::parse(row.comment());
        for (field, place) in SAME {
            // trawl read shows no steps.
            if step.is_some() && place.starts_with("/drop/") {
                continue;
            }
            let expected = packet.pointer(place).and_then(text);
            assert_eq!(row.get(field), expected.as_deref(), "{field} of {packet}");
        }
        assert_process(&row, packet, step.as_ref());
        let socket = row.get("trawl.socket.protocol").zip(row.get("trawl.socket.port"));
        let socket = socket.map(|(protocol, port)| format!("{protocol}:{port}"));
        assert!(step.is_some() || socket == packet.pointer("/drop/socket").and_then(text), "{packet}");
        if let Some(step) = &step {
            assert_step(&row, step);
        }
    }
    rows
}

/// Compares the process of a packet: the one that a comment names, or the one that has the socket open.
#[track_caller]
fn assert_process(row: &Row<'_>, packet: &Value, step: Option<&FollowStep<'_>>) {
    let of = |name: &str, of_step: Option<String>| {
        let of_drop = packet["drop"].get(if name == "id" { "pid" } else { "command" }).and_then(text);
        of_drop.or(of_step).or_else(|| packet["process"].get(name).and_then(text))
    };
    let facts = step.map(|step| &step.facts);
    let id = of("id", facts.and_then(|facts| facts.pid).map(|id| id.to_string()));
    let name = of("name", facts.and_then(|facts| facts.command).map(str::to_owned));
    // Wireshark up to 5.0 does not read the option with the process.
    let is_in_comment = row.get("trawl.process.pid").is_some() || row.comment().contains("process=");
    if is_in_comment {
        assert_eq!(row.get("trawl.process.pid").map(str::to_owned), id, "{packet}");
        assert_eq!(row.get("trawl.process.name").map(str::to_owned), name, "{packet}");
    }
}

/// Compares the fields of a step with the comment, as `trawl follow` reads it.
#[track_caller]
fn assert_step(row: &Row<'_>, step: &FollowStep<'_>) {
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    let is_true = |name: &str| row.get(name).is_some_and(|value| value == "1" || value == "True");
    assert_eq!(row.get("trawl.step"), Some(step.step.word()));
    assert_eq!(row.get("trawl.step.side"), step.side.map(|side| side.word()));
    assert_eq!(row.get("trawl.step.found"), step.found.map(|found| found.word()));
    assert_eq!(row.get("trawl.step.number").map(str::to_owned), number(step.number));
    assert_eq!(row.get("trawl.step.tracking"), step.tracking.map(|tracking| tracking.word()));
    assert_eq!(row.get("trawl.step.reader"), step.reader.map(|reader| reader.name));
    assert_eq!(row.get("trawl.step.reader.pid").map(str::to_owned), number(step.reader.map(|reader| reader.id)));
    assert_eq!(row.get("trawl.step.namespace"), step.facts.netns);
    let at = Some(step.facts.at).filter(|at| !at.is_empty());
    assert_eq!(row.get("trawl.step.location"), at);
    assert_eq!(is_true("trawl.nat.source"), step.translated.source);
    assert_eq!(is_true("trawl.nat.destination"), step.translated.destination);
    let reason = Some(step.facts.reason).filter(|reason| !reason.is_empty());
    assert_eq!(row.get("trawl.drop.reason"), reason);
    assert_eq!(row.get("trawl.drop.location"), reason.and(at));
}

/// Packets that an XDP program drops, at both of its ends.
fn verdicts(shark: &Tshark, lab: &Lab) {
    let receiver = lab.receiver();
    let loaded = trawl(&args!("xdp load {receiver} drop --tappable"));
    assert!(loaded.status.success(), "{loaded:?}");
    let file = lab.file("verdicts.pcapng");
    let capture = Capture::start(lab, &args!("--tap tailcall --at both -Q in -c 4 -w {file} -i {receiver}"));
    lab.send(&[frames::silent(64)], 2);
    capture.wait().summary_of_success();
    let unloaded = trawl(&args!("xdp unload {receiver}"));
    assert!(unloaded.status.success(), "{unloaded:?}");
    let rows = assert_same(shark, &file);
    let contents = Contents::read(&file);
    let program = contents.interfaces[0].options.text(1).expect("a comment");
    let program = ProgramNote::parse(&program).expect("a program");
    for row in rows.iter().map(|row| Row(row)) {
        assert_eq!(row.get("trawl.program"), Some(program.name));
        assert_eq!(row.get("trawl.program.id"), Some(program.id.to_string().as_str()));
        assert_eq!(row.get("trawl.program.tag"), Some(program.tag));
    }
    let dropped = rows.iter().filter(|row| Row(row).get("trawl.verdict") == Some("DROP")).count();
    assert_eq!(dropped, 2);
}

/// Packets that a rule drops, and packets that no socket receives. The fix of a drop is the advice of `trawl why`.
fn drops(shark: &Tshark, lab: &Lab) {
    let b = &lab.pair.b;
    for command in [
        "nft add table inet f",
        "nft add chain inet f in { type filter hook input priority 0 ; }",
        "nft add rule inet f in udp dport 5555 drop",
    ] {
        inside(b, command);
    }
    let file = lab.file("drops.pcapng");
    let why = Running::start(&args!("why --netns {} --json --record {file}", b.name), "looking");
    lab.send_long(&[lab.udp(5555), lab.udp(7)]);
    let done = why.stop();
    inside(b, "nft delete table inet f");
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let rows = assert_same(shark, &file);
    for reason in ["NETFILTER_DROP", "NO_SOCKET"] {
        let row = rows.iter().map(|row| Row(row)).find(|row| row.get("trawl.drop.reason") == Some(reason));
        let row = row.unwrap_or_else(|| panic!("no {reason} in {rows:?}"));
        let judged = report["rows"].as_array().expect("rows").iter().find(|one| one["reason"] == reason);
        let advice = judged.and_then(|one| one["advice"].as_str()).unwrap_or_else(|| panic!("no advice in {report}"));
        let fix = row.get("trawl.drop.fix").expect("a fix");
        // Without permission to trace, the packets do not name the rule, and only trawl why finds the chain.
        let is_general = reason == "NETFILTER_DROP" && row.get("trawl.drop.rule").is_none();
        assert!(fix.ends_with(if is_general { "nft list ruleset" } else { advice }), "{fix} for {advice}");
        assert_eq!(row.get("trawl.drop.rule").is_some(), row.comment().contains(" rule="), "{rows:?}");
    }
}

/// A packet that is translated on its way to another namespace.
fn steps(shark: &Tshark, lab: &Lab) {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    for command in [
        "nft add table ip t",
        "nft add chain ip t p { type nat hook prerouting priority dstnat ; }",
        "nft add rule ip t p udp dport 5300 redirect to :5301",
    ] {
        inside(b, command);
    }
    let socket = run_in(&b.namespace, || UdpSocket::bind("0.0.0.0:5301").expect("a port")).expect("a namespace");
    let file = lab.file("steps.pcapng");
    let follow = args!("follow -c 1 --netns {} --within {},{} -w {file} 'udp dst port 5300'", a.name, a.name, b.name);
    let follow = Running::start(&follow, "following packets on");
    run("ip", &args!("netns exec {} bash -c 'echo hello > /dev/udp/{}/5300'", a.name, b.ipv4));
    socket.recv(&mut [0; 16]).expect("the packet");
    let done = follow.wait();
    assert!(done.status.success(), "{}", done.stderr);
    inside(b, "nft delete table ip t");
    let rows = assert_same(shark, &file);
    let rows: Vec<Row<'_>> = rows.iter().map(|row| Row(row)).collect();
    assert!(rows.iter().all(|row| row.get("trawl.step").is_some()));
    let translated = rows.iter().filter(|row| row.get("trawl.nat.destination").is_some()).count();
    assert!(translated > 0 || !kernel_is_at_least(6, 6), "no step has a translation");
}

/// Packets with their process in a comment.
fn processes(shark: &Tshark, lab: &Lab) {
    let file = lab.file("processes.pcapng");
    let options = args!("-i {} --tap tc -Q out --process=comment -c 1 -w {file} udp", lab.sender());
    let capture = Capture::start(lab, &options);
    run("ip", &args!("netns exec {} bash -c 'echo x >/dev/udp/{}/4000'", lab.pair.a.name, lab.pair.b.ipv4));
    capture.wait().summary_of_success();
    let rows = assert_same(shark, &file);
    let row = Row(&rows[0]);
    assert_eq!(row.get("trawl.process.name"), Some("bash"));
    assert_eq!(row.get("trawl.process.uid"), Some("0"));
}

/// The first packet of a connection with slow answers has the verdict.
#[test]
fn verdict_of_a_slow_connection_is_a_field() {
    let Some(shark) = Tshark::installed() else { return };
    let (Some(lab), Some(stage)) = (Lab::open(), Stage::open()) else { return };
    let file = lab.file("slow.pcapng");
    let arguments = args!("slow --netns {} --json --record {file}", stage.client.name);
    let watch = Running::start(&arguments, "measuring connections");
    let answer = Duration::from_millis(300);
    let ends = converse(stage.connect(stage.servers()[0]), 6, answer, Duration::from_millis(20));
    let report = watch.stop().json();
    drop(ends);
    let evidence = report["findings"][0]["evidence"].as_str().unwrap_or_else(|| panic!("no finding in {report}"));
    // The packets do not tell what is known only at one end.
    let (measured, _) = evidence.split_once(',').unwrap_or((evidence, ""));
    let rows = assert_same(&shark, &file);
    let verdicts: Vec<&str> = rows.iter().filter_map(|row| Row(row).get("trawl.slow")).collect();
    assert_eq!(verdicts.len(), 1, "{rows:?}");
    assert!(verdicts[0].contains(measured), "{verdicts:?} in {report}");
}

/// Runs all comparisons with a tshark.
fn compare(shark: Option<Tshark>) {
    let Some(shark) = shark else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    verdicts(&shark, &lab);
    drops(&shark, &lab);
    steps(&shark, &lab);
    processes(&shark, &lab);
}

#[test]
fn fields_in_tshark_have_the_values_that_trawl_reads() {
    compare(Tshark::installed());
}

#[test]
#[ignore = "make test-long runs it"]
fn fields_in_tshark_of_debian_13_have_the_values_that_trawl_reads() {
    compare(Tshark::of("trixie"));
}

#[test]
#[ignore = "make test-long runs it"]
fn fields_in_tshark_of_unstable_have_the_values_that_trawl_reads() {
    compare(Tshark::of("sid"));
}

/// Fields without a value in any sample, with the reason.
const NOT_IN_SAMPLES: [(&str, &str); 2] =
    [("trawl.pod", "interfaces of pods need Kubernetes"), ("trawl.pod.labels", "interfaces of pods need Kubernetes")];

/// Returns the files in docs/samples, by name.
fn samples() -> Vec<String> {
    let entries = fs::read_dir(repository().join("docs/samples")).expect("a part of the source");
    let paths = entries.map(|entry| entry.expect("an entry").path().display().to_string());
    let mut paths: Vec<String> = paths.filter(|path| path.ends_with(".pcapng")).collect();
    paths.sort();
    paths
}

/// Compares the fields of all samples with trawl's reader, and finds the fields without a value.
fn compare_samples(shark: Option<Tshark>) {
    let Some(shark) = shark else { return };
    let mut missing: BTreeSet<&str> = FIELDS.iter().map(|field| field.name).collect();
    for file in samples() {
        for row in assert_same(&shark, &file) {
            let has_value = |name: &str| Row(&row).get(name).is_some();
            missing.retain(|name| !has_value(name));
        }
    }
    assert_eq!(missing, NOT_IN_SAMPLES.map(|(name, _)| name).into());
}

#[test]
fn samples_have_a_value_of_each_field_in_tshark() {
    compare_samples(Tshark::installed());
}

#[test]
#[ignore = "make test-long runs it"]
fn samples_have_a_value_of_each_field_in_tshark_of_debian_13() {
    compare_samples(Tshark::of("trixie"));
}

#[test]
#[ignore = "make test-long runs it"]
fn samples_have_a_value_of_each_field_in_tshark_of_unstable() {
    compare_samples(Tshark::of("sid"));
}

/// The samples are small, are listed, and do not describe the machine that recorded them.
#[test]
fn samples_are_small_and_neutral() {
    let page = fs::read_to_string(repository().join("docs/samples/README.md")).expect("a part of the source");
    let mut bytes = 0;
    for file in samples() {
        let name = file.rsplit('/').next().expect("a name");
        assert!(page.contains(&format!("`{name}`")), "docs/samples/README.md does not list {name}");
        bytes += fs::metadata(&file).expect("a file").len();
        if tools_or_skip(&["capinfos"]) {
            let said = run("capinfos", &[&file]);
            let mut systems = said.lines().filter(|line| line.contains("Capture oper-sys:"));
            assert!(systems.all(|line| line.ends_with(" Linux")), "{said}");
            assert!(!said.contains("Capture hardware:"), "{said}");
            let count = trawl(&["read", "--count", &file]);
            assert!(count.status.success() && !count.stdout.is_empty(), "{count:?}");
            assert_ne!(capinfos(&file, "Number of packets"), "0");
        }
    }
    assert!(bytes < 300_000, "{bytes} bytes");
}
