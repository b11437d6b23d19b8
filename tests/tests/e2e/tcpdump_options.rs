//! Tcpdump's letters, options after the expression, and equivalent names.

use serde_json::Value;
use trawl_tests::bundled::done;
use trawl_tests::lab::Directory;
use trawl_tests::witness::{nothing_attached, run, xdp_on};
use trawl_tests::{Capture, Lab, args, frames, tools_or_skip, trawl};

#[test]
fn options_may_follow_the_expression() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let place = lab.receiver();
    let arguments = ["-i", &place, "udp", "dst", "port", "9", "-c", "2", "-w", &file];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::udp(b"hello")], 5);
    assert_eq!(capture.wait().summary_of_success().recorded, 2);
    assert_eq!(trawl_tests::pcapng::Contents::read(&file).packets.len(), 2);
}

#[test]
fn letters_without_an_effect_are_accepted() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let all = "-b -u -H -y EN10MB --time-stamp-precision=micro -l -U -O -f -K -S -p -n -nn -e -v -tttt -B 4096 -j host --immediate-mode --snaplen 96 -c 1";
    let arguments: Vec<&str> = ["-i", &place].into_iter().chain(all.split(' ')).collect();
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::udp(b"hello")], 1);
    let finished = capture.wait();
    finished.summary_of_success().assert_all_recorded(1);
    assert!(finished.printed().contains("ethertype IPv4"), "{}", finished.printed());
}

/// Letters of tcpdump show the same, and letters that trawl lacks are refused by name.
#[test]
fn letters_show_something_or_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    for form in ["-d", "-dd", "-ddd"] {
        let ours = trawl(&["capture", "-i", &place, form, "udp", "port", "53"]);
        let theirs = ["-y", "EN10MB", form, "udp", "port", "53"];
        let theirs = trawl_tests::witness::output("tcpdump", &theirs);
        assert!(ours.status.success() && theirs.status.success());
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(said(&ours.stdout).trim(), said(&theirs.stdout).trim(), "{form}");
    }
    for (letter, words) in [("-L", "EN10MB"), ("-J", "adapter")] {
        let listed = trawl(&["capture", "-i", &place, letter]);
        assert!(listed.status.success());
        assert!(String::from_utf8_lossy(&listed.stdout).contains(words));
    }
    for refused in [
        &["-T", "vxlan"][..],
        &["-E", "key"],
        &["-M", "secret"],
        &["-m", "module"],
        &["-I"],
        &["-V", "list"],
        &["-y", "IEEE802_11"],
    ] {
        let output = trawl(&[&["capture", "-i", &place], refused].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("trawl: cannot") && !said.contains("tip:"), "{said}");
    }
    nothing_attached(&lab.pair.b);
}

#[test]
fn file_suffix_decides_the_format() {
    let Some(lab) = Lab::open() else { return };
    for (name, format, magic) in [
        ("a.pcap", &[][..], 0xa1b2_3c4d_u32),
        ("b.pcapng", &[][..], 0x0a0d_0d0a),
        ("c.pcap", &["--format", "pcapng"][..], 0x0a0d_0d0a),
        ("d", &["--format", "pcap"][..], 0xa1b2_3c4d),
    ] {
        let file = lab.file(name);
        let fixed = ["-i", &lab.receiver(), "-c", "1", "-w", &file];
        let capture = Capture::start(&lab, &[&fixed[..], format].concat());
        lab.send(&[frames::udp(b"hello")], 1);
        capture.wait().summary_of_success();
        let bytes = std::fs::read(&file).expect("the file");
        assert_eq!(bytes[..4], magic.to_le_bytes(), "{name}");
    }
}

#[test]
fn expression_is_read_from_a_file() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let (expression, file) = (lab.file("expression"), lab.file("file.pcapng"));
    std::fs::write(&expression, "udp and\n dst port 9\n").expect("a file");
    let capture = Capture::start(&lab, &args!("-i {place} --tap xdp -F '{expression}' -c 1 -w {file}"));
    lab.send(&[frames::silent(64), frames::udp(b"hello")], 2);
    let summary = capture.wait().summary_of_success();
    assert_eq!((summary.recorded, summary.filtered_out), (1, 1));
    let missing = trawl(&["capture", "-i", &place, "-F", &lab.file("nowhere")]);
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn all_interfaces_are_listed_and_captured_on() {
    let Some(lab) = Lab::open() else { return };
    let station = &lab.pair.b;
    let listed = trawl(&["capture", "-D", "--netns", &station.name, "--json"]);
    let rows: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["name"] == *station.interface));
    assert_eq!(row.expect("the interface")["taps"], serde_json::json!(["tc"]));
    nothing_attached(station);
    let of_read = trawl(&["read", "-D", "--json"]);
    let rows: Value = serde_json::from_slice(&of_read.stdout).expect("JSON");
    let names: Vec<&str> = rows.as_array().expect("rows").iter().filter_map(|row| row["name"].as_str()).collect();
    assert!(names.contains(&"lo"), "{names:?}");
    // The interface can be named by its number in the list.
    let number = row.expect("the interface")["index"].to_string();
    for named in [&["-i", &format!("{}:{number}", station.name)][..], &["-i", &number, "--netns", &station.name]] {
        let capture = Capture::start(&lab, &[named, &["-c", "1"]].concat());
        lab.send(&[frames::silent(64)], 1);
        let summary = capture.wait().summary_of_success();
        assert_eq!(summary.recorded, 1, "{named:?}");
    }
    let any = format!("{}:any", station.name);
    let capture = Capture::start(&lab, &["-i", &any, "--tap", "xdp"]);
    assert!(xdp_on(station).is_some());
    lab.send(&[frames::silent(64)], 5);
    capture.wait_seen(5);
    capture.stop_well();
    nothing_attached(station);
}

#[test]
fn reading_has_a_command_of_its_own() {
    let output = trawl(&["capture", "-r", "file.pcap"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("trawl read file.pcap"), "{said}");
}

/// The guard accepts the form NAMESPACE:NAME for an interface in a namespace, like all commands.
#[test]
fn guard_accepts_interfaces_with_their_namespace() {
    use trawl_tests::xdp::{CleanUp, fails, succeeds};
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, name) = (lab.receiver(), lab.pair.b.name.clone());
    succeeds(&["guard", "load", &place]);
    let rule = ["guard", "deny", "--proto", "udp", "--port", "9", "--on", &place];
    succeeds(&rule);
    succeeds(&["guard", "preset", "ping-flood", "--on", &place]);
    let whole = succeeds(&["guard", "list", "--netns", &name]);
    assert_eq!(succeeds(&["guard", "list", &place]), whole);
    assert!(whole.contains("--port 9 --on veth0") && whole.contains("echo-request"), "{whole}");
    let loopback = succeeds(&["guard", "list", &format!("{name}:lo")]);
    assert!(!loopback.contains("--port 9") && !loopback.contains("default"), "{loopback}");
    fails(&[&rule[..], &["--netns", "/proc/self/ns/net"]].concat(), 2, &["another namespace"]);
}

/// Each letter of tcpdump makes the same output as in tcpdump.
#[test]
fn read_accepts_letters_of_tcpdump() {
    if !tools_or_skip(&["tcpdump"]) {
        return;
    }
    let directory = Directory::new();
    let file = directory.path().join("three.pcap");
    let mut bytes = Vec::new();
    trawl_packet::pcap::file_header(&mut bytes, 1, 0);
    let frames = [frames::udp(b"one"), frames::udp(b"two"), frames::echo_request(1)];
    for (number, frame) in (0u64..).zip(frames) {
        let time = 1_700_000_000_000_000_000 + number * 1000;
        trawl_packet::pcap::record(&mut bytes, time, &frame, frame.len() as u32);
    }
    std::fs::write(&file, bytes).expect("a file");
    let file = file.to_str().expect("a plain path");
    for letters in args!(
        "'-nnvvXXr FILE udp' '-ttttnr FILE' 'udp -nr FILE -c1' '-d -nr FILE udp \
         port 9' '-dd -nr FILE udp port 9' '-ddd -nr FILE udp port 9' '-dO -nr \
         FILE udp port 9' '--count -nr FILE udp' '--count -nr FILE tcp' '-eqnr \
         FILE' '-LJIU --print --immediate-mode -B 100 -j host -y EN10MB -Q in \
         -i any -s 40 -nr FILE' '-C 1 -G 1 -W 2 -z true -nr FILE' '-T domain \
         -nr FILE'"
    ) {
        let words = format!("--micro {letters}").replace("FILE", file);
        let words: Vec<&str> = words.split(' ').collect();
        let theirs = run("tcpdump", &words);
        assert_eq!(done(&[&["read"], &words[..]].concat()), theirs, "{letters}");
    }
    for refused in [["-E", "key"], ["-M", "secret"], ["-m", "module"], ["-T", "rtp"]] {
        let output = trawl(&[&["read", "-r", file], &refused[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{refused:?}");
    }
    // A refused filter leaves no file, and -z gets the name of each finished one.
    let written = directory.path().join("written.pcap");
    let written = written.to_str().expect("a plain path");
    let output = trawl(&["read", file, "-w", written, "not", "a", "filter"]);
    assert!(!output.status.success() && !std::path::Path::new(written).exists());
    let named = done(&["read", file, "-w", written, "-z", "ls"]);
    assert_eq!(named.trim(), written);
}

/// The points of a capture are attached one after the other, but all begin to record at the same time.
#[test]
fn default_taps_see_requests_and_replies_from_the_first_packet_on() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let file = lab.file("ping.pcapng");
    let target = b.ipv4.to_string();
    let mut ping = std::process::Command::new("ip")
        .args(["netns", "exec", &a.name, "ping", "-q", "-i", "0.01", &target])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("ping runs");
    for _ in 0..5 {
        let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-c", "20", "-w", &file, "icmp"]);
        capture.wait().summary_of_success();
        assert_eq!(trawl_tests::witness::xdp_on(b), None);
        let rows = trawl_tests::witness::tshark(&file, &["icmp.type", "icmp.seq"]);
        let types: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        let replies = types.iter().filter(|kind| **kind == "0").count();
        // A ping may be in flight at the beginning and at the end.
        assert!((9..=11).contains(&replies), "{types:?}");
    }
    ping.kill().expect("kill ping");
    ping.wait().expect("ping ends");
}
