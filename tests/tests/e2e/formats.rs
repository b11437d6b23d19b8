//! Files and pipes that other programs read.

use std::io::Write;
use std::process::{Command, Stdio};

use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, run, tcpdump, tshark};
use trawl_tests::{Capture, Lab, args, frames, trawl};

#[test]
fn the_old_format_has_nanoseconds_and_is_read_by_all() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcap");
    let arguments = args!("-i {} --tap xdp --format pcap -c 3 -w {file}", lab.receiver());
    let capture = Capture::start(&lab, &arguments);
    let long = frames::udp(&[b'x'; 1472]);
    lab.send(&[frames::udp(b"one"), frames::udp(b"two"), long], 3);
    capture.wait().summary_of_success().assert_all_recorded(3);

    let bytes = std::fs::read(&file).expect("the file");
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes(), "the magic number of nanoseconds");
    assert_eq!(capinfos(&file, "File timestamp precision"), "nanoseconds (9)");
    let lines = tcpdump(&file, &["-tt", "--nano"]);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("10.77.0.1.40000 > 10.77.0.2.9: UDP, length 3"), "{lines:?}");
    let seconds = lines[0].split(' ').next().expect("a time");
    let (_, fraction) = seconds.split_once('.').expect("a fraction");
    assert_eq!(fraction.len(), 9, "{seconds}");
    let rows = tshark(&file, &["frame.len", "udp.payload", "frame.time_epoch"]);
    assert_eq!(rows.len(), 3);
    assert_eq!((rows[0][1].as_str(), rows[1][1].as_str()), ("6f6e65", "74776f"));
    assert_eq!(rows[2][0], "1514");
    assert_eq!(rows[0][2], seconds);
}

#[test]
fn the_old_format_cuts_at_the_snap_length() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcap");
    let fixed = ["-i", &lab.receiver(), "--tap", "xdp", "--format", "pcap"];
    let capture = Capture::start(&lab, &[&fixed[..], &["-s", "64", "-c", "1", "-w", &file]].concat());
    lab.send(&[frames::patterned(1514)], 1);
    capture.wait().summary_of_success();
    assert_eq!(tshark(&file, &["frame.len", "frame.cap_len"]), [["1514", "64"]]);
}

#[test]
fn the_old_format_from_two_cpus_is_in_time_order() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcap");
    let arguments = args!("-i {} --tap xdp --format pcap -w {file}", lab.receiver());
    let capture = Capture::start(&lab, &arguments);
    lab.send_from_two_cpus(&[frames::silent(64)], 5_000);
    capture.wait_recorded(10_000);
    capture.stop_well().assert_all_recorded(10_000);
    assert_eq!(capinfos(&file, "Number of packets"), "10 k");
    assert_eq!(capinfos(&file, "Strict time order"), "True");
}

/// Captures two datagrams to standard output, and pipes it into a program's standard input.
fn piped_into(format: &str, reader: &str, arguments: &[&str]) -> Option<String> {
    let lab = Lab::open()?;
    let fixed = ["-i", &lab.receiver(), "--tap", "xdp", "--format", format];
    let (capture, stdout) = Capture::start_piped(&lab, &[&fixed[..], &["-c", "2", "-w", "-"]].concat());
    let reader = Command::new(reader)
        .args(arguments)
        .stdin(stdout)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the reader starts");
    lab.send(&[frames::udp(b"one"), frames::udp(b"three")], 2);
    capture.wait().summary_of_success().assert_all_recorded(2);
    let output = reader.wait_with_output().expect("the reader ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("cut short"), "{said}");
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn tcpdump_reads_a_pipe() {
    for format in ["pcapng", "pcap"] {
        let Some(text) = piped_into(format, "tcpdump", &["-n", "-r", "-"]) else {
            return;
        };
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{format}: {text}");
        assert!(lines[0].ends_with("10.77.0.1.40000 > 10.77.0.2.9: UDP, length 3"), "{text}");
        assert!(lines[1].ends_with("10.77.0.1.40000 > 10.77.0.2.9: UDP, length 5"), "{text}");
    }
}

#[test]
fn tshark_reads_a_pipe() {
    for format in ["pcapng", "pcap"] {
        let arguments = ["-n", "-r", "-", "-T", "fields", "-e", "udp.payload"];
        let Some(text) = piped_into(format, "tshark", &arguments) else {
            return;
        };
        assert_eq!(text, "6f6e65\n7468726565\n", "{format}");
    }
}

#[test]
fn pipe_shows_packets_while_the_capture_goes_on() {
    let Some(lab) = Lab::open() else { return };
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "xdp", "-w", "-"]);
    for number in 0..3 {
        let frame = frames::numbered(0xabcd_0000 + number, 64);
        lab.send(std::slice::from_ref(&frame), 1);
        capture.wait_output(|bytes| bytes.windows(frame.len()).any(|window| window == frame));
    }
    let finished = capture.stop();
    finished.summary_of_success().assert_all_recorded(3);
    assert_eq!(Contents::parse(&finished.stdout).packets.len(), 3);
}

#[test]
fn existing_file_is_replaced_only_by_a_capture_that_starts() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    std::fs::File::create(&file).and_then(|mut file| file.write_all(&[b'x'; 100_000])).expect("a file");
    let output = trawl(&["capture", "-i", "trawl-nowhere", "-w", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read(&file).expect("the file").len(), 100_000);

    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-c", "1", "-w", &file]);
    lab.send(&[frames::silent(64)], 1);
    capture.wait().summary_of_success();
    assert_eq!(Contents::read(&file).packets.len(), 1);
}

#[test]
fn mixed_link_types_are_refused_in_the_old_format() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    run("ip", &["-n", name, "tuntap", "add", "dev", "tun0", "mode", "tun"]);
    run("ip", &["-n", name, "link", "set", "tun0", "up"]);
    let file = lab.file("file.pcap");
    let tunnel = format!("{name}:tun0");
    let arguments = args!("capture -i {} -i {tunnel} --format pcap -w {file}", lab.receiver());
    let output = trawl(&arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("different") && said.contains("pcapng"), "{said}");
    assert!(!lab.path("file.pcap").exists());
}

/// Packets have the same numbers as in Wireshark, which also counts custom blocks and journal entries.
#[test]
fn packets_have_wiresharks_numbers() {
    let Some(lab) = Lab::open() else { return };
    let words = |list: &[u32]| -> Vec<u8> { list.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let block = |kind: u32, body: Vec<u8>| {
        let length = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, &body, &length].concat()
    };
    let packet = |frame: &[u8]| {
        let length = frame.len() as u32;
        let mut body = words(&[0, 0, 0, length, length]);
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        block(6, body)
    };
    let (wanted, other) = (frames::udp(b"wanted"), frames::silent(60));
    let custom = |kind: u32| block(kind, words(&[32_473, 0]));
    let journal = block(9, b"__REALTIME_TIMESTAMP=1\nMESSAGE=hello\n\n\0\0".to_vec());
    let unknown = block(0x0bad_cafe & 0x7fff_ffff, words(&[1, 2]));
    let file = lab.file("numbers.pcapng");
    let blocks = [
        block(0x0a0d_0d0a, words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX])),
        block(1, words(&[1, 0])),
        packet(&wanted),
        custom(0xbad),
        packet(&other),
        unknown,
        packet(&wanted),
        journal.clone(),
        journal,
        packet(&wanted),
        custom(0x4000_0bad),
        custom(0xbad),
        packet(&other),
        packet(&wanted),
    ];
    std::fs::write(&file, blocks.concat()).expect("a file");
    let theirs = run("tshark", &args!("-nr {file} -Y udp -T fields -e frame.number"));
    let theirs: Vec<u64> = theirs.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(theirs.len(), 4, "{theirs:?}");
    let done = trawl(&["filter", "--read", &file, "udp", "--json"]);
    assert!(done.status.success(), "{done:?}");
    let said: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(said["read"]["matched"], serde_json::json!(theirs), "{said}");
}
