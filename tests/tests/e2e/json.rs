//! Compares docs/json.md with the commands' output.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use serde_json::Value;
use trawl_sys::netns::run_in;
use trawl_tests::xdp::succeeds;
use trawl_tests::{Capture, Lab, Running, args, binary, frames, trawl};

/// Returns the keys that the page lists under a heading.
fn documented(heading: &str) -> BTreeSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md");
    let page = std::fs::read_to_string(path).expect("a part of the source");
    let section = page
        .split("\n## ")
        .find(|section| section.lines().next() == Some(heading))
        .unwrap_or_else(|| panic!("{heading} is not on the page"));
    let keys = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    keys.map(str::to_owned).collect()
}

fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let dot = if path.is_empty() { "" } else { "." };
                keys(value, &format!("{path}{dot}{key}"), found);
            }
        }
        Value::Array(list) => {
            found.insert(path.to_owned());
            for value in list {
                keys(value, &format!("{path}[]"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[track_caller]
pub fn holds(heading: &str, text: &[u8]) {
    let line = String::from_utf8_lossy(text);
    let document: Value =
        serde_json::from_str(line.trim()).unwrap_or_else(|e| panic!("{heading} is no JSON ({e}): {line}"));
    assert_eq!(line.trim().lines().count(), 1, "{heading} is not one line");
    let mut found = BTreeSet::new();
    keys(&document, "", &mut found);
    let known = documented(heading);
    // A key for which the page lists no subkeys describes all keys below it.
    let is_below = |key: &str, one: &str| key.strip_prefix(one).is_some_and(|rest| rest.starts_with(['.', '[']));
    let describes_all = |one: &String| !known.iter().any(|other| is_below(other, one));
    let is_known =
        |key: &String| known.contains(key) || known.iter().any(|one| is_below(key, one) && describes_all(one));
    let missing: Vec<&String> = found.iter().filter(|key| !key.is_empty() && !is_known(key)).collect();
    assert!(missing.is_empty(), "docs/json.md lacks, under {heading}: {missing:?}");
}

#[track_caller]
fn prints(heading: &str, arguments: &[&str]) {
    let output = trawl(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    holds(heading, &output.stdout);
}

#[test]
fn documents_have_the_keys_of_the_page() {
    let Some(lab) = Lab::open() else { return };
    let (from, to) = (lab.sender(), lab.receiver());
    let netns = lab.pair.b.name.clone();
    prints("xdp load", &["xdp", "load", &to, "drop", "--json"]);
    let send = ["gen", "udp", "-i", &from, "--count", "20", "--rate", "1000"];
    prints("gen udp, tcp, icmp, arp, eth, raw, template", &[&send[..], &["--json"]].concat());
    prints("gen … --print", &[&send[..6], &["--print", "1", "--json"]].concat());
    prints("xdp status", &["xdp", "status", &to, "--json"]);
    prints("xdp maps", &["xdp", "maps", &to, "--json"]);
    prints("xdp stats", &["xdp", "stats", &to, "--json"]);
    prints("xdp unload", &["xdp", "unload", &to, "--json"]);
    prints("route load", &["route", "load", &to, "--json"]);
    prints("route stats", &["route", "stats", &to, "--json"]);
    prints("route unload", &["route", "unload", &to, "--json"]);
    prints("guard load", &["guard", "load", &to, "--json"]);
    let rule = ["guard", "deny", "--netns", &netns, "--src", "192.0.2.0/24"];
    prints("guard deny", &[&rule[..], &["--json"]].concat());
    prints("guard list", &["guard", "list", "--netns", &netns, "--json"]);
    prints("guard stats", &["guard", "stats", "--netns", &netns, "--json"]);
    let of_guard = |words: &[&'static str]| {
        let heading = match words[1] {
            "allow" | "preset" => "guard allow, preset".to_owned(),
            word => format!("guard {word}"),
        };
        prints(&heading, &[words, &["--netns", &netns, "--json"]].concat());
    };
    of_guard(&["guard", "allow", "--src", "192.0.2.1"]);
    of_guard(&["guard", "preset", "ping-flood"]);
    of_guard(&["guard", "remove", "1"]);
    prints("guard unload", &["guard", "unload", &to, "--json"]);
    balancer(&to, &netns);
    confirmed(&to);
    prints("lab list", &["lab", "list", "--json"]);
    prints("capture -D", &["capture", "-D", "--json"]);
    let planned = ["capture", "-i", &to, "--dry-run", "--json", "udp"];
    prints("capture --dry-run", &planned);
    let name = netns.trim_start_matches("trawl-").trim_end_matches("-b");
    prints("lab up, show, down", &["lab", "show", name, "--json"]);
    prints("taps", &["taps", "--json"]);
    prints("filter", &["filter", "udp port 53", "--check", "--json"]);
    let watched = ["--netns", &netns, "--duration", "300ms"];
    prints("why", &[&["why", "--json"], &watched[..]].concat());
    prints("slow", &["slow", "--json", &conversation(&lab)]);
    prints("top --once", &["top", "-i", &to, "--once", "--json"]);
    prints("bench peers", &["bench", "peers", "--json"]);
    prints("bench list", &["bench", "list", "--json"]);
}

/// Records a connection that is refused; returns the file.
fn conversation(lab: &Lab) -> String {
    let file = lab.file("refused.pcapng");
    let from = lab.sender();
    let capture = Running::start(&args!("capture -i {from} --tap packet -w {file} -c 2 tcp"), "capturing on");
    let server = (lab.pair.b.ipv4, 8080);
    let refused = run_in(&lab.pair.a.namespace, || TcpStream::connect(server)).expect("a namespace");
    assert!(refused.is_err());
    assert!(capture.wait().status.success());
    file
}

fn balancer(to: &str, netns: &str) {
    let changes = "balance load, vip add, vip remove, backend add, backend remove, backend drain, backend weight";
    let vip = "tcp:192.0.2.80:80";
    prints(changes, &["balance", "load", to, "--json"]);
    let inside = |heading: &str, words: &[&str]| {
        prints(heading, &[&["balance"], words, &["--netns", netns, "--json"]].concat());
    };
    inside(changes, &["vip", "add", vip]);
    inside(changes, &["backend", "add", vip, "10.77.0.1"]);
    inside("balance vip list", &["vip", "list"]);
    inside("balance stats", &["stats"]);
    // The exit status is 1, because the backend does not answer.
    let checked = trawl(&["balance", "check", "--netns", netns, "--json"]);
    holds("balance check", &checked.stdout);
    prints("balance unload", &["balance", "unload", to, "--json"]);
}

fn confirmed(to: &str) {
    let output = trawl(&["xdp", "load", to, "pass", "--confirm", "60s", "--json"]);
    assert!(output.status.success(), "{output:?}");
    prints("guard confirm, xdp confirm", &["xdp", "confirm", to, "--json"]);
    prints("xdp unload", &["xdp", "unload", to, "--json"]);
}

/// Commands on files and stores are compared with the page, for a recording of a few packets.
#[test]
fn documents_of_files_have_the_keys_of_the_page() {
    let Some(lab) = Lab::open() else { return };
    let (from, to) = (lab.sender(), lab.receiver());
    let (file, store, spool) = (lab.file("a.pcapng"), lab.file("store"), lab.file("spool"));
    std::fs::create_dir(&store).expect("a directory of the test's own");
    let store = format!("file://{store}");
    let ways: [&[&str]; 2] = [&["-w", &file], &["--store", &store, "--spool", &spool]];
    for way in ways {
        let arguments = [&["-i", &to, "-c", "5"], way].concat();
        let capture = Capture::start(&lab, &arguments);
        lab.send(&[frames::silent(64)], 5);
        capture.wait();
    }
    prints("stat", &["stat", &file, "--by", "protocol,src", "--json"]);
    prints("filter", &["filter", "udp", "--read", &file, "--json"]);
    prints("gen replay", &["gen", "replay", "-i", &from, &file, "--json"]);
    prints("store index", &["store", "index", &store, "--json"]);
    prints("store ls", &["store", "ls", &store, "--spool", &spool, "--json"]);
    prints("store verify", &["store", "verify", &store, "--json"]);
    prints("store prune", &["store", "prune", &store, "--keep", "7d", "--json"]);
    prints("store push", &["store", "push", "--spool", &spool, "--json"]);
}

#[test]
fn errors_are_json_documents() {
    for arguments in
        [&["xdp", "load", "trawl-nowhere", "drop", "--json"][..], &["xdp", "load", "--json", "--no-such-option"]]
    {
        let output = trawl(arguments);
        assert!(!output.status.success() && output.stdout.is_empty());
        holds("errors", &output.stderr);
    }
}

/// All notices of commands with --json are JSON documents.
#[test]
fn notices_are_json_documents() {
    let Some(lab) = Lab::open() else { return };
    let to = lab.receiver();
    let said = |arguments: &[&str]| -> Vec<Value> {
        let output = trawl(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        let documents = said.lines().map(serde_json::from_str);
        documents.collect::<Result<_, _>>().unwrap_or_else(|e| panic!("{e}: {said}"))
    };
    for command in [
        &["capture", "-i", &to, "--duration", "200ms"][..],
        &["stat", "-i", &to, "--duration", "200ms"],
        &["top", "-i", &to, "--once", "--interval", "200ms"],
    ] {
        let documents = said(command);
        let of_kind = |kind: &str| {
            let found = documents.iter().find(|said| said["notice"]["kind"] == kind);
            found.unwrap_or_else(|| panic!("{kind}: {documents:?}"))
        };
        let using = of_kind("using_taps");
        assert_eq!(using["notice"]["reason"], "no_program");
        assert_eq!(using["notice"]["interface"], to);
        assert!(using["text"].is_string());
        of_kind("capturing");
        if command[0] != "top" {
            assert!(of_kind("account")["notice"]["seen"].is_u64());
        }
    }
    let receive = said(&["gen", "receive", "-i", &to, "--duration", "200ms"]);
    assert_eq!(receive[0]["notice"]["kind"], "receiving");
    assert_eq!(receive[0]["notice"]["interface"], to);
    let file = lab.file("nothing.pcap");
    succeeds(&["capture", "-i", &to, "--duration", "100ms", "-w", &file]);
    let read = said(&["read", &file, "--verdict", "drop"]);
    assert_eq!(read[0]["notice"]["kind"], "only_in_pcapng");
    assert_eq!(read[0]["notice"]["option"], "--verdict");
    let netns = &lab.pair.b.name;
    let deny = ["guard", "deny", "--netns", netns, "--src", "203.0.113.0/24"];
    assert_eq!(said(&deny)[0]["notice"]["kind"], "not_guarded");
    succeeds(&["guard", "remove", "--netns", netns, "--all"]);
}

/// A line in several writes could be interrupted by lines of other processes.
#[test]
fn line_on_standard_error_is_one_write() {
    for form in ["--json", "--count"] {
        // Each write is a datagram.
        let (received, stderr) = UnixDatagram::pair().expect("a pair of sockets");
        let mut command = Command::new(binary::path());
        command.args(["read", "/nowhere.pcap", form]).stderr(OwnedFd::from(stderr));
        assert_eq!(command.status().expect("trawl runs").code(), Some(1));
        received.set_nonblocking(true).expect("a socket");
        let mut line = [0; 4096];
        let length = received.recv(&mut line).expect("an error");
        assert!(line[..length].ends_with(b"\n"), "{:?}", String::from_utf8_lossy(&line[..length]));
        assert!(received.recv(&mut line).is_err(), "a second write");
    }
}
