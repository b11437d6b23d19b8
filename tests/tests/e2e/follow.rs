//! `trawl follow`: the steps of single packets, across namespaces, to their end; and no step of another packet.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use trawl_kernel::netns::run_in;
use trawl_kernel::probe::kernel_is_at_least;
use trawl_packet::build::Template;
use trawl_tests::witness::{bpf_objects, has_bpf_object, run};
use trawl_tests::{Capture, Lab, Running, amount, skip, trawl, wait_until};

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

/// Follows one datagram of six bytes to a port of the receiver, which is sent then.
fn follow_datagram(lab: &Lab, port: u16) -> Running {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let arguments = [
        "follow",
        "--json",
        "-c",
        "1",
        "--netns",
        &a.name,
        "--within",
        &within(lab),
        &format!("udp dst port {port}"),
    ];
    let follow = Running::start(&arguments, "following packets on");
    let send = format!("echo hello > /dev/udp/{}/{port}", b.ipv4);
    run("ip", &["netns", "exec", &a.name, "bash", "-c", &send]);
    follow
}

#[test]
fn a_packet_is_followed_into_another_namespace() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    if is_there("input") {
        // Connection tracking takes the last but one priority at the input of IPv6.
        let inside =
            |words: &[&str]| run("ip", &[&["netns", "exec", &b.name, "nft"], words].concat());
        inside(&["add table inet t"]);
        inside(&["add chain inet t i { type filter hook input priority 0; }"]);
        inside(&["add rule inet t i ct state invalid drop"]);
    }
    let follow = follow_datagram(&lab, 53);
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

/// So many packets of different lengths are sent from each port.
const LENGTHS: u64 = 100;

/// Source port and length of a packet, in a tunnel or not.
fn own_marks(text: &str) -> Option<(String, String)> {
    let (_, inner) = text.rsplit_once("10.99.0.1.")?;
    let (port, rest) = inner.split_once(" > ")?;
    let (_, length) = rest.rsplit_once("length ")?;
    Some((port.to_owned(), length.to_owned()))
}

/// Issue 18, point 9: over translation, a tunnel, clones, an XDP program and buffers that are used again, no packet gets a
/// step of another one, and where it is not known again there is a gap.
#[test]
#[ignore = "make test-long runs it"]
fn translation_tunnels_clones_and_xdp_make_no_false_link() {
    let Some(lab) = Lab::alone() else { return };
    if !kernel_is_at_least(6, 6) {
        skip("netfilter and tcx have no links before Linux 6.6");
        return;
    }
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let inside = |station: &str, command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        run("ip", &[&["netns", "exec", station], &words[..]].concat());
    };
    // Out of a through a tunnel, translated on the way in; a packet socket gets a clone of each.
    for (station, own, other, address) in [
        (a, a.ipv4, b.ipv4, "10.99.0.1/24"),
        (b, b.ipv4, a.ipv4, "10.99.0.2/24"),
    ] {
        let tunnel = format!(
            "ip link add vx type vxlan id 7 local {own} remote {other} dev veth0 dstport 4789"
        );
        inside(&station.name, &tunnel);
        inside(&station.name, &format!("ip addr add {address} dev vx"));
        inside(&station.name, "ip link set vx up");
    }
    inside(&b.name, "nft add table ip t");
    inside(
        &b.name,
        "nft add chain ip t p { type nat hook prerouting priority dstnat ; }",
    );
    inside(
        &b.name,
        "nft add rule ip t p udp dport 5300 redirect to :5301",
    );
    let socket = run_in(&b.namespace, || {
        UdpSocket::bind("0.0.0.0:5301").expect("a port")
    })
    .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let receiver = lab.receiver();
    assert!(
        trawl(&["xdp", "load", &receiver, "pass", "--tappable"])
            .status
            .success()
    );
    let clones = Capture::start(
        &lab,
        &[
            "--tap",
            "packet",
            "-i",
            &receiver,
            "-w",
            &lab.file("c.pcapng"),
        ],
    );
    let count = amount(100_000);
    let arguments = [
        "follow",
        "--json",
        "--memory",
        "512MiB",
        "--netns",
        &a.name,
        "--within",
        &within(&lab),
        "udp dst port 5300",
    ];
    let follow = Running::start(&arguments, "following packets on");
    // Port and length tell each packet from all others.
    let senders: Vec<UdpSocket> = run_in(&a.namespace, || {
        let sender = |_| UdpSocket::bind("10.99.0.1:0").expect("a port");
        (0..count.div_ceil(LENGTHS)).map(sender).collect()
    })
    .unwrap();
    let send = |number: u64| {
        let text = vec![b'x'; (number % LENGTHS) as usize + 1];
        let sender = &senders[(number / LENGTHS) as usize];
        sender.send_to(&text, "10.99.0.2:5300").unwrap();
    };
    // The first ones in lockstep: there is room for each in the socket's buffer.
    for number in 0..LENGTHS {
        send(number);
        let length = socket.recv(&mut [0; 256]).expect("the packet");
        assert_eq!(length as u64, number + 1);
    }
    let received = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut received = LENGTHS;
            while socket.recv(&mut [0; 256]).is_ok() {
                received += 1;
            }
            received
        });
        (LENGTHS..count).for_each(send);
        reader.join().unwrap()
    });
    follow.signal(Signal::INT);
    let done = follow.wait();
    clones.stop_well();
    trawl(&["xdp", "unload", &receiver]);
    let ways = ways(&done.stdout);
    assert!(received > 0 && !ways.is_empty());
    let (mut delivered, mut whole) = (0, 0);
    // The end of one buffer may come anywhere after its last step.
    let way_there = |way: &Value| -> Vec<String> {
        let there = steps(way).into_iter();
        let there = there.filter(|step| !["consumed", "dropped"].contains(step));
        there.map(str::to_owned).collect()
    };
    let longest = ways
        .iter()
        .filter(|way| way["end"] == "delivered")
        .map(way_there)
        .max_by_key(Vec::len)
        .expect("a way from one end to the other");
    for way in &ways {
        let all = way["steps"].as_array().expect("steps");
        let names = steps(way);
        // Where no gap is told, nothing is missing, except that a packet may be taken up later where there was no room.
        let there = way_there(way);
        let is_late = done.stderr.contains("not followed")
            && longest.windows(there.len()).any(|part| part == there);
        assert!(
            names.contains(&"gap") || is_late || longest.starts_with(&there),
            "{way}"
        );
        // What is the same at all steps tells a packet from another: it has this many steps at most, in this order.
        let times: Vec<u64> = all
            .iter()
            .filter_map(|step| step["time_ns"].as_u64())
            .collect();
        assert!(times.is_sorted(), "{way}");
        let texts = all.iter().filter_map(|step| step["packet"].as_str());
        let own = way["packet"].as_str().map(own_marks);
        assert!(own.as_ref().is_some_and(Option::is_some), "{way}");
        for text in texts {
            assert_eq!(
                Some(own_marks(text)),
                own,
                "{text} is another packet: {way}"
            );
        }
        assert!(
            names.iter().filter(|name| **name == "output").count() <= 2,
            "{way}"
        );
        assert!(
            all.iter()
                .filter(|step| step["interface"] == "vx" && step["step"] == "prerouting")
                .count()
                <= 1,
            "{way}"
        );
        delivered += usize::from(way["end"] == "delivered");
        let translated = all.iter().any(|step| {
            step["step"] == "prerouting"
                && step["packet"]
                    .as_str()
                    .is_some_and(|packet| packet.contains(".5301:"))
        });
        whole += u64::from(translated && names[0] == "output" && way["end"] == "delivered");
    }
    assert!(delivered as u64 <= received, "{delivered} of {received}");
    // Where there was room for all packets, none is missing, and each that was received is told.
    if done.stderr.contains(" 0 lost") {
        assert_eq!((ways.len() as u64, delivered as u64), (count, received));
    }
    assert!(
        whole >= LENGTHS / 2,
        "{whole} of {} are seen from one end to the other",
        ways.len()
    );
}

/// Issue 18: from an XDP program in native mode over receive offload, tc and netfilter to the socket.
#[test]
fn a_packet_is_followed_from_an_xdp_program_to_its_socket() {
    let Some(lab) = Lab::open() else { return };
    if !kernel_is_at_least(6, 2) {
        skip("before Linux 6.2 packets cannot be followed at XDP programs");
        return;
    }
    let b = &lab.pair.b;
    let receiver = lab.receiver();
    let loaded = trawl(&[
        "xdp",
        "load",
        &receiver,
        "pass",
        "--tappable",
        "--mode",
        "native",
    ]);
    assert!(loaded.status.success(), "{loaded:?}");
    let socket = run_in(&b.namespace, || {
        UdpSocket::bind((b.ipv4, 5300)).expect("a port")
    })
    .unwrap();
    let follow = follow_datagram(&lab, 5300);
    let mut text = [0; 16];
    assert_eq!(socket.recv(&mut text).expect("a datagram"), 6);
    let done = follow.wait();
    trawl(&["xdp", "unload", &receiver]);
    let ways = ways(&done.stdout);
    let all = ways[0]["steps"].as_array().expect("steps");
    let here: Vec<&str> = all
        .iter()
        .filter(|step| step["netns"] == b.name.as_str())
        .filter_map(|step| step["step"].as_str())
        .collect();
    let expected = [
        "gro",
        "received",
        "tc_ingress",
        "prerouting",
        "routed",
        "input",
    ];
    let expected: Vec<&str> = expected.into_iter().filter(|step| is_there(step)).collect();
    let begin = here.iter().position(|step| *step == "gro");
    let begin = begin.unwrap_or_else(|| panic!("no receive offload in {}", ways[0]));
    assert_eq!(here[begin..begin + expected.len()], expected, "{}", ways[0]);
    assert!(steps(&ways[0]).contains(&"xdp"), "{}", ways[0]);
    if kernel_is_at_least(6, 3) {
        let own = std::fs::read_to_string("/proc/self/comm").expect("a name");
        let socket = all.iter().find(|step| step["step"] == "socket");
        let socket = socket.unwrap_or_else(|| panic!("no socket in {}", ways[0]));
        assert_eq!(socket["socket"], "udp:5300");
        let by = format!("{}[{}]", own.trim_end(), std::process::id());
        assert_eq!(socket["by"], by.as_str(), "{}", ways[0]);
        assert_eq!(ways[0]["end"], "delivered", "{}", ways[0]);
    }
}

/// Issue 18, point 9: what receive offload made of a TCP stream; each segment is told to be part of the packet that has its
/// place in the stream.
#[test]
fn segments_are_joined_to_the_packet_that_has_them() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    for (station, features) in [
        (a, &["tso", "off", "gso", "off"][..]),
        (b, &["gro", "on"][..]),
    ] {
        let fixed = ["netns", "exec", &station.name, "ethtool", "-K", "veth0"];
        run("ip", &[&fixed[..], features].concat());
    }
    let address = (b.ipv4, 8080);
    let listener = run_in(&b.namespace, || TcpListener::bind(address));
    let listener = listener.unwrap().unwrap();
    let receiver = lab.receiver();
    let within = within(&lab);
    let arguments = [
        "follow",
        "--json",
        "-i",
        &receiver,
        "--within",
        &within,
        "tcp dst port 8080",
    ];
    let follow = Running::start(&arguments, "following packets on");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
        let sender = run_in(&a.namespace, || TcpStream::connect(address));
        sender.unwrap().unwrap().write_all(&[7; 1 << 20]).unwrap();
    });
    follow.signal(Signal::INT);
    let ways = ways(&follow.wait().stdout);
    let range = |way: &Value| -> (u32, u32) {
        let text = way["packet"].as_str().expect("a packet");
        let range = text.split("seq ").nth(1).expect("a sequence number");
        let range = range.split(',').next().expect("its end");
        let (from, to) = range.split_once(':').expect("a segment");
        (
            from.parse().expect("a number"),
            to.parse().expect("a number"),
        )
    };
    let mut joined = 0;
    for way in ways.iter().filter(|way| way["end"] == "joined") {
        joined += 1;
        let into = ways
            .iter()
            .find(|other| other["packet_id"] == way["joined_into"])
            .unwrap_or_else(|| panic!("nothing that {way} is part of"));
        let segments = into["steps"].as_array().expect("steps").iter();
        let segments = segments.filter_map(|step| step["segments"].as_u64()).max();
        let (first, (from, to)) = (range(into), range(way));
        let length = first.1.wrapping_sub(first.0) * segments.expect("segments") as u32;
        assert!(from.wrapping_sub(first.0) < length, "{way} in {into}");
        assert!(to.wrapping_sub(first.0) <= length, "{way} in {into}");
    }
    assert!(joined > 0, "{} ways", ways.len());
}

/// Issue 18, point 8.
#[test]
fn nothing_is_left_of_a_killed_follow() {
    let Some(lab) = Lab::open() else { return };
    let arguments = ["follow", "--within", &within(&lab), "udp port 9"];
    let follow = Running::start(&arguments, "following packets on");
    let held = bpf_objects(follow.id());
    for kind in ["prog", "link"] {
        assert!(
            held.iter().any(|(one, _)| *one == kind),
            "no {kind} in {held:?}"
        );
    }
    assert!(held.iter().all(has_bpf_object), "{held:?}");
    follow.kill();
    wait_until("nothing is left", || !held.iter().any(has_bpf_object));
}

#[test]
fn wrong_use_is_told() {
    for arguments in [&["follow"][..], &["follow", "no such word"]] {
        assert_eq!(trawl(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
