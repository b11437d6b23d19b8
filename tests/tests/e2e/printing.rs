//! Lines on standard output of captures without a file.

use trawl_lab::program::{Does, Loaded};
use trawl_tests::{Capture, Lab, args, frames};

/// Returns the lines that one datagram makes with these options.
fn line_of_a_datagram(options: &[&str]) -> Option<String> {
    let lab = Lab::open()?;
    let fixed = ["-i", &lab.receiver(), "--tap", "xdp", "-c", "1"];
    let capture = Capture::start(&lab, &[&fixed[..], options].concat());
    lab.send(&[frames::udp(b"hello")], 1);
    let finished = capture.wait();
    finished.summary_of_success().assert_all_recorded(1);
    Some(finished.printed())
}

const DATAGRAM: &str = "10.77.0.1.40000 > 10.77.0.2.9: UDP, length 5";

fn is_time(text: &str, template: &str) -> bool {
    text.len() == template.len()
        && text.bytes().zip(template.bytes()).all(|(byte, wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        })
}

#[test]
fn line_shows_time_interface_verdict_and_contents() {
    let Some(text) = line_of_a_datagram(&[]) else {
        return;
    };
    assert_eq!(text.lines().count(), 1, "{text}");
    let time = text.split(' ').next().expect("a word");
    assert!(is_time(time, "00:00:00.000000000") || is_time(time, "00:00:00.000000"), "{text}");
    for part in [DATAGRAM, "xdp exit", "PASS", "veth0", "IP"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn lines_appear_while_the_capture_goes_on() {
    let Some(lab) = Lab::open() else { return };
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "xdp", "-t"]);
    for count in 1..=3 {
        lab.send(&[frames::udp(b"hello")], 1);
        capture.wait_printed(|text| text.matches(DATAGRAM).count() == count && text.ends_with('\n'));
    }
    let finished = capture.stop();
    finished.summary_of_success().assert_all_recorded(3);
    assert_eq!(finished.printed().lines().count(), 3);
}

#[test]
fn verdict_of_another_tools_program_is_shown() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "-c", "4"]);
    lab.send(&(0..4).map(frames::choosing).collect::<Vec<_>>(), 4);
    let finished = capture.wait();
    finished.summary_of_success();
    let text = finished.printed();
    let verdicts: Vec<&str> = text.split("[xdp exit: ").skip(1).filter_map(|rest| rest.split(']').next()).collect();
    assert_eq!(verdicts, ["ABORTED", "DROP", "PASS", "TX"], "{text}");
}

#[test]
fn direction_of_packets_is_shown() {
    let Some(lab) = Lab::open() else { return };
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tc", "-c", "2"]);
    lab.send(&[frames::echo_request(1)], 1);
    let finished = capture.wait();
    finished.summary_of_success();
    let text = finished.printed();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("tc ingress") && lines[0].contains(" In "), "{text}");
    assert!(lines[0].contains("ICMP echo request, id 7, seq 1"), "{text}");
    assert!(lines[1].contains("tc egress") && lines[1].contains(" Out "), "{text}");
    assert!(lines[1].contains("ICMP echo reply, id 7, seq 1"), "{text}");
}

#[test]
fn times_have_the_requested_format() {
    let Some(none) = line_of_a_datagram(&["-t"]) else {
        return;
    };
    assert!(!none.starts_with(|c: char| c.is_ascii_digit()), "{none}");
    let first = |options: &[&str]| {
        let text = line_of_a_datagram(options).expect("root");
        text.split(' ').next().map(str::to_owned).expect("a word")
    };
    let epoch = first(&["-tt"]);
    let seconds: f64 = epoch.parse().expect("seconds since 1970");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert!((0.0..60.0).contains(&(now.as_secs_f64() - seconds)), "{epoch}");
    for (option, templates) in [
        ("-ttt", ["00:00:00.000000000", "00:00:00.000000"]),
        ("-tttt", ["0000-00-00", "0000-00-00"]),
        ("-ttttt", ["00:00:00.000000000", "00:00:00.000000"]),
    ] {
        let time = first(&[option]);
        assert!(time.trim().is_empty() || templates.iter().any(|one| is_time(&time, one)), "{option}: {time}");
    }
}

#[test]
fn link_headers_and_bytes_are_shown_on_request() {
    let Some(link) = line_of_a_datagram(&["-e", "-n"]) else {
        return;
    };
    assert!(link.contains("02:74:72:61:77:01 > 02:74:72:61:77:02"), "{link}");
    assert!(link.contains("ethertype IPv4 (0x0800)"), "{link}");

    let hex = line_of_a_datagram(&["-x"]).expect("root");
    // The bytes begin at the IP header, without the link layer.
    assert!(hex.contains("\t0x0000:  4500 0021"), "{hex}");
    let hex = line_of_a_datagram(&["-xx"]).expect("root");
    assert!(hex.contains("\t0x0000:  0274 7261 7702 0274"), "{hex}");
    let both = line_of_a_datagram(&["-X"]).expect("root");
    assert!(both.contains("\t0x0000:  4500 0021") && both.contains("hell"), "{both}");
}

#[test]
fn verbose_lines_show_more_of_each_header() {
    let Some(text) = line_of_a_datagram(&["-v"]) else {
        return;
    };
    for part in ["tos 0x0", "ttl 64", "flags [DF]", "proto UDP (17)", "length 33"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn protocols_are_printed_by_name() {
    let Some(lab) = Lab::open() else { return };
    let sent = frames::assorted();
    let count = sent.len().to_string();
    let capture = Capture::start(&lab, &args!("-i {} --tap xdp -t -e -c {count}", lab.receiver()));
    lab.send(&sent, sent.len() as u64);
    let finished = capture.wait();
    finished.summary_of_success().assert_all_recorded(sent.len() as u64);
    let text = finished.printed();
    for part in [
        DATAGRAM,
        "vlan 42",
        "fd00:77::1.40000 > fd00:77::2.9: UDP, length 3",
        "Flags [S]",
        "ICMP echo request, id 7, seq 1",
        "who-has 10.77.0.2 tell 10.77.0.1",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn summary_can_go_to_standard_output() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    // `Capture` would add a summary file, so the command is run directly, and its last line is the only summary.
    let output = trawl_tests::trawl(&args!("capture -i {place} --duration 50ms --summary -"));
    assert_eq!(output.status.code(), Some(0));
    let summary = trawl_tests::Summary::parse(&String::from_utf8_lossy(&output.stdout));
    assert_eq!((summary.seen, summary.ended.as_str()), (0, "duration"));
}
