//! `trawl follow`: the steps of single packets, across namespaces, to their end; and no step of another packet.

use serde_json::Value;
use trawl_kernel::probe::kernel_is_at_least;
use trawl_packet::build::Template;
use trawl_tests::witness::run;
use trawl_tests::{Lab, Running, amount, trawl};

fn udp(lab: &Lab, port: u16, id: u16) -> Vec<u8> {
    let mut payload = [0; 22];
    payload[..2].copy_from_slice(&id.to_be_bytes());
    Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), lab.pair.b.ipv4.octets())
        .udp(1024 + id, port)
        .payload(payload)
        .build()
}

fn ways(output: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("a JSON object a line");
    output.lines().map(parse).collect()
}

fn steps(way: &Value) -> Vec<&str> {
    let steps = way["steps"].as_array().expect("steps");
    steps
        .iter()
        .filter_map(|step| step["step"].as_str())
        .collect()
}

/// A datagram from one namespace to another where nobody listens.
const WAY: [&str; 12] = [
    "output",
    "postrouting",
    "tc_egress",
    "queued",
    "transmitted",
    "backlog",
    "received",
    "tc_ingress",
    "prerouting",
    "routed",
    "input",
    "dropped",
];

/// Older kernels have not all places to look at.
fn is_there(step: &str) -> bool {
    match step {
        "output" | "postrouting" | "prerouting" | "routed" | "input" => kernel_is_at_least(6, 4),
        "tc_egress" | "tc_ingress" => kernel_is_at_least(6, 6),
        _ => true,
    }
}

/// Other tests' namespaces are left alone.
fn within(lab: &Lab) -> String {
    format!("{},{}", lab.pair.a.name, lab.pair.b.name)
}

#[test]
fn a_packet_is_followed_into_another_namespace() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let arguments = [
        "follow",
        "--json",
        "-c",
        "1",
        "--netns",
        &a.name,
        "--within",
        &within(&lab),
        "udp dst port 53",
    ];
    let follow = Running::start(&arguments, "following packets on");
    let send = format!("echo hello > /dev/udp/{}/53", b.ipv4);
    run("ip", &["netns", "exec", &a.name, "bash", "-c", &send]);
    let done = follow.wait();
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    let ways = ways(&done.stdout);
    let expected: Vec<&str> = WAY.into_iter().filter(|step| is_there(step)).collect();
    assert_eq!(steps(&ways[0]), expected);
    assert_eq!(ways[0]["end"], "dropped");
    let steps = ways[0]["steps"].as_array().expect("steps");
    let (first, last) = (&steps[0], &steps[steps.len() - 1]);
    assert_eq!(first["netns"], a.name.as_str());
    assert_eq!(last["netns"], b.name.as_str());
    assert_eq!(last["reason"], "NO_SOCKET");
    let times: Vec<u64> = steps
        .iter()
        .filter_map(|step| step["time_ns"].as_u64())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

/// Issue 18, point 9, in part: socket buffers are used again at once, and no packet gets a step of another one.
#[test]
fn buffers_that_are_used_again_make_no_false_link() {
    let Some(lab) = Lab::open() else { return };
    let count = amount(10_000) as u16;
    let receiver = lab.receiver();
    let number = count.to_string();
    let arguments = [
        "follow",
        "--json",
        "-c",
        &number,
        "-i",
        &receiver,
        "--within",
        &within(&lab),
        "udp dst port 53",
    ];
    let follow = Running::start(&arguments, "following packets on");
    let frames: Vec<Vec<u8>> = (0..count).map(|id| udp(&lab, 53, id)).collect();
    lab.send_long(&frames);
    let done = follow.wait();
    let ways = ways(&done.stdout);
    assert_eq!(ways.len(), usize::from(count));
    for way in &ways {
        // Nothing changes these packets on their way: another text would be another packet's step.
        let all = way["steps"].as_array().expect("steps");
        assert!(all.iter().all(|step| step["packet"].is_null()), "{way}");
        let expected: Vec<&str> = WAY.into_iter().filter(|step| is_there(step)).collect();
        let arrival = expected
            .iter()
            .position(|step| *step == "backlog")
            .unwrap_or(0);
        assert_eq!(steps(way), expected[arrival..], "{way}");
    }
    let mut first: Vec<&str> = ways
        .iter()
        .filter_map(|way| way["packet"].as_str())
        .collect();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), usize::from(count), "each packet once");
}

#[test]
fn wrong_use_is_told() {
    for arguments in [&["follow"][..], &["follow", "no such word"]] {
        assert_eq!(trawl(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
