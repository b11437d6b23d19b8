//! `--stamp` and `trawl gen receive` together: every engine's frames are recognised, and none is missing.

use serde_json::{Value, json};
use trawl_tests::witness::run;
use trawl_tests::{Capture, Lab, Running, args, trawl};

#[track_caller]
fn sent(lab: &Lab, kind: &str, arguments: &[&str]) -> Value {
    let sender = lab.sender();
    let fixed = ["gen", kind, "--stamp", "--json", "-i", &sender];
    let output = trawl(&[&fixed[..], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn receiver(lab: &Lab) -> Running {
    let arguments = ["gen", "receive", "--json", "-i", &lab.receiver()];
    Running::start(&arguments, "receiving on")
}

fn some(of: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| of[*name].clone()).collect()
}

const WHOLE: [&str; 5] = ["received", "lost", "duplicates", "reordered", "before_first"];

#[test]
fn each_engine_stamps_each_frame_once() {
    for engine in ["live", "packet", "xsk", "auto"] {
        let Some(lab) = Lab::open() else { return };
        let receiver = receiver(&lab);
        let summary = sent(&lab, "udp", &["--engine", engine, "--count", "2000", "--rate", "20k"]);
        assert_eq!(summary["frames"], 2000, "{summary}");
        let result = receiver.stop().json();
        // Some engines stamp frames again with the next numbers if the device refused them, so that the old numbers
        // count as lost.
        let refused = summary["refused"].as_u64().unwrap_or(0);
        let lost = result["lost"].as_u64().expect("a number");
        assert!(lost <= refused, "{engine}: {result} {summary}");
        assert_eq!(some(&result, &["received", "duplicates", "reordered"]), json!([2000, 0, 0]), "{engine}");
        assert_eq!(result["latency_ns"]["negative"], 0, "{engine}: {result}");
        assert_eq!(result["latency_ns"]["count"], 2000, "{engine}: {result}");
    }
}

#[test]
fn flows_of_several_threads_have_sequences_of_their_own() {
    let Some(lab) = Lab::open() else { return };
    let receiver = receiver(&lab);
    let arguments = args!(
        "--engine packet --flows 6 --src-port 1000-1005 --threads 2 --count 600 \
         --rate 5k"
    );
    sent(&lab, "udp", &arguments);
    let result = receiver.stop().json();
    assert_eq!(some(&result, &WHOLE), json!([600, 0, 0, 0, 0]));
    // Each thread has three of the six flows, because two and six have a common divisor.
    let flows = result["flows"].as_array().expect("flows");
    let counts: Vec<&Value> = flows.iter().map(|flow| &flow["received"]).collect();
    assert_eq!(counts, [&json!(100); 6]);
    let streams: std::collections::HashSet<&str> =
        flows.iter().filter_map(|flow| flow["flow"].as_str()?.split_once('.').map(|(stream, _)| stream)).collect();
    assert_eq!(streams.len(), 2);
}

#[test]
fn varying_sizes_carry_stamps() {
    for engine in ["live", "packet"] {
        let Some(lab) = Lab::open() else { return };
        let receiver = receiver(&lab);
        sent(&lab, "udp", &args!("--engine {engine} --size 60,200,570,1514 --count 400 --rate 5k"));
        let result = receiver.stop().json();
        assert_eq!(some(&result, &WHOLE), json!([400, 0, 0, 0, 0]), "{engine}");
        assert_eq!(result["received_bytes"], 100 * (60 + 200 + 570 + 1514), "{engine}");
    }
}

#[test]
fn checksums_are_correct_with_stamps() {
    let Some(lab) = Lab::open() else { return };
    let dst = lab.pair.b.ipv4.to_string();
    let tagged = ["--vlan", "42", "--payload", "random"];
    let tunnelled = ["--vxlan", "7", "--outer-dst", &dst];
    let kinds: [(&str, &[&str]); 7] = [
        ("udp", &["--dst", &dst, "--payload", "text:odd"]),
        ("udp", &args!("--dst {dst} --size 61 --src-port random:1-60000")),
        ("udp", &tagged),
        ("udp", &["-6"]),
        ("udp", &tunnelled),
        ("tcp", &["--dst", &dst]),
        ("icmp", &["--dst", &dst]),
    ];
    for engine in ["live", "packet"] {
        for (kind, arguments) in kinds {
            let file = lab.file("file.pcapng");
            let place = lab.receiver();
            let capture = Capture::start(&lab, &["-i", &place, "-Q", "in", "-c", "20", "-w", &file]);
            sent(&lab, kind, &[&["--engine", engine, "--count", "20", "--rate", "2k"][..], arguments].concat());
            capture.wait().summary_of_success();
            let checks = ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"];
            let mut tshark = args!(
                "-n -r {file} -T fields -e udp.checksum.status -e tcp.checksum.status \
                 -e icmp.checksum.status -e ip.checksum.status"
            );
            tshark.extend(checks.iter().flat_map(|check| ["-o", check]));
            let said = run("tshark", &tshark);
            // tshark shows 1 for a correct checksum, and 3 for no checksum, as in the outer header of VXLAN.
            let verdicts: Vec<&str> = said.split([',', '\t', '\n']).filter(|v| !v.is_empty()).collect();
            assert!(
                verdicts.len() >= 20 && verdicts.iter().all(|v| ["1", "3"].contains(v)) && verdicts.contains(&"1"),
                "{engine} {kind} {arguments:?}: {said}"
            );
        }
    }
}

#[test]
fn frames_without_room_for_a_stamp_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let output = trawl(&args!("gen tcp --stamp --size 60 -i {} --count 1", lab.sender()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("60 bytes are too few") && said.contains("72"), "{said}");
}
