//! `trawl gen` in tests: the real binary, sending out of one end of a lab.

use serde_json::Value;

use crate::args;
use crate::lab::Lab;
use crate::witness::{ip_link, output};
use crate::{trawl, wait_until};

/// Runs `trawl gen KIND -i …` out of a lab's sender, which has to succeed, and returns its summary.
#[track_caller]
pub fn generate(lab: &Lab, kind: &str, arguments: &[&str]) -> Value {
    let sender = lab.sender();
    let fixed = ["gen", kind, "-i", &sender, "--json"];
    let output = trawl(&[&fixed[..], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "gen {kind} {}: {said}", arguments.join(" "));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// Runs `trawl gen`, which has to fail, and returns its exit status and message.
#[track_caller]
pub fn refused(arguments: &[&str]) -> (i32, String) {
    let output = trawl(&[&["gen"], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().unwrap_or(-1);
    assert!(code == 1 || code == 2, "gen {}: status {code}: {said}", arguments.join(" "));
    assert!(!said.contains("panicked"), "{said}");
    (code, said)
}

/// Returns the packets that the receiving end of a lab has counted, as in `ip -s link`.
pub fn received(lab: &Lab) -> u64 {
    let station = &lab.pair.b;
    let shown = output("ip", &args!("-n {} -j -s link show dev {}", station.name, station.interface));
    let all: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
    all[0]["stats64"]["rx"]["packets"].as_u64().unwrap_or(0)
}

/// Waits until the receiving end has counted exactly this many more than before.
#[track_caller]
pub fn wait_received(lab: &Lab, before: u64, count: u64) {
    wait_until(&format!("{count} packets are received"), || received(lab) - before >= count);
    assert_eq!(received(lab) - before, count);
    assert!(ip_link(&lab.pair.b).is_some());
}

/// Returns the values of these fields in each packet of a file, with all checksums validated.
#[track_caller]
pub fn dissect(file: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut arguments = vec!["-n", "-r", file];
    for protocol in ["ip", "udp", "tcp"] {
        arguments.push("-o");
        arguments.push(match protocol {
            "ip" => "ip.check_checksum:TRUE",
            "udp" => "udp.check_checksum:TRUE",
            _ => "tcp.check_checksum:TRUE",
        });
    }
    arguments.extend(["-T", "fields"]);
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let output = output("tshark", &arguments);
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows = text.lines();
    rows.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}
