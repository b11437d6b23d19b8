//! Files with processes, as trawl and other programs read them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::{Value, json};
use trawl_tests::witness::{capinfos, run, tcpdump, tshark};
use trawl_tests::{Capture, Lab, args, binary, trawl};

const LAYOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/process/layout.py");

fn lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    text.lines().map(parse).collect()
}

fn read_json(file: &str) -> Vec<Value> {
    let done = trawl(&["read", "--json", file]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    lines(&String::from_utf8_lossy(&done.stdout))
}

#[test]
fn readers_of_the_published_layout_agree() {
    let Some(lab) = Lab::open() else { return };
    let (file, second) = (lab.file("processes.pcapng"), lab.file("second"));
    binary::copy("/bin/bash", &second);
    let (sender, receiver) = (lab.sender(), lab.receiver());
    let capture = Capture::start(&lab, &args!("-i {sender} -i {receiver} --tap tc --process=full -w {file} udp"));
    // The process first runs one program, and then another.
    let to = |port: u16| format!("/dev/udp/{}/{port}", lab.pair.b.ipv4);
    let script = format!("echo 1 >{}; exec {second} -c 'echo 2 >{}'", to(4001), to(4002));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &lab.pair.a.name, "bash", "-c", &script]);
    let mut child = command.process_group(0).spawn().expect("ip");
    let id = child.id();
    assert!(child.wait().expect("it ends").success());
    capture.stop_well();

    let found = lines(&run("python3", &[LAYOUT, &file]));
    let by_trawl: Vec<Value> = read_json(&file).iter().map(|packet| packet["process"].clone()).collect();
    // Each datagram is recorded at both ends of the veth, at both with its sender.
    assert_eq!((found.len(), by_trawl.len()), (4, 4));
    for (one, other) in found.iter().zip(&by_trawl) {
        for field in ["id", "thread", "name"] {
            assert_eq!(one[field], other[field], "{one} {other}");
        }
    }
    let bash = fs::canonicalize("/bin/bash").expect("bash");
    let paths = [bash.to_str().expect("plain"), &second];
    for (number, packet) in found.iter().enumerate() {
        let port = [4001, 4002][number / 2];
        let own = &paths[number / 2..][..1];
        assert_eq!(packet["id"], id, "{port}: {packet}");
        assert_eq!(packet["parent"], std::process::id(), "{port}: {packet}");
        assert_eq!((&packet["user_id"], &packet["user"]), (&json!(0), &json!("root")));
        let path = packet["path"].as_str().unwrap_or_default();
        assert_eq!(fs::canonicalize(path).ok().as_deref(), Some(own[0].as_ref()), "{packet}");
        let command = packet["command"].as_str().unwrap_or_default();
        assert!(command.contains("\0-c\0echo"), "{packet}");
    }
    assert!(found[0]["start"].as_u64() < found[2]["start"].as_u64(), "{found:?}");

    // Older versions of tshark show each description as a frame without a protocol.
    let rows = tshark(&file, &["udp.dstport"]);
    let ports: Vec<&String> = rows.iter().flatten().filter(|port| !port.is_empty()).collect();
    assert_eq!(ports, ["4001", "4001", "4002", "4002"]);
    assert_eq!(capinfos(&file, "Number of packets"), "4");
    assert_eq!(tcpdump(&file, &[]).len(), 4);
}

/// trawl reads the files of macOS, which have a block for each process, and in each packet the number of its block.
#[test]
fn processes_of_darwin_are_read() {
    let lab = trawl_tests::lab::Directory::new();
    let file = lab.path().join("darwin.pcapng");
    let file = file.to_str().expect("plain");
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let block = |kind: u32, body: Vec<u8>| {
        let length = body.len() as u32 + 12;
        [words(&[kind, length]), body, words(&[length])].concat()
    };
    let option = |code: u32, value: &[u8]| {
        let mut bytes = words(&[(value.len() as u32) << 16 | code]);
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let process =
        |id: u32, name: &str| block(0x8000_0001, [words(&[id]), option(2, name.as_bytes()), words(&[0])].concat());
    let packet = |number: u32| {
        let frame = [0x5a; 60];
        let head = words(&[0, 0, 1, 60, 60]);
        block(6, [head, frame.to_vec(), option(0x8001, &number.to_le_bytes()), words(&[0])].concat())
    };
    let bytes = [
        block(0x0a0d_0d0a, words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX])),
        block(1, words(&[1, 0])),
        process(501, "ssh"),
        process(502, "Safari"),
        packet(1),
        packet(0),
    ];
    fs::write(file, bytes.concat()).expect("a file");
    let found: Vec<Value> = read_json(file).iter().map(|packet| packet["process"].clone()).collect();
    assert_eq!(found, [json!({"id": 502, "name": "Safari"}), json!({"id": 501, "name": "ssh"})]);
    assert_eq!(tshark(file, &["frame.len"]).len(), 2);
}
