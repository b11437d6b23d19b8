//! Ten thousand packets in networks of different kinds, each followed to its end.

use super::*;
use trawl_lab::LineOptions;
use trawl_tests::lab::{Files, LineLab};
use trawl_tests::witness::tshark;

const PORT: u16 = 9;
const TO: &str = "10.1.0.2";
/// Rate, in packets per second, at which a debug build on a busy machine can still read all steps.
const RATE: u64 = 2_000;

/// Runs commands of `ip`, `nft` and others: in the namespace of a, m (in the middle), or b.
fn set_up(lab: &LineLab, commands: &[&str]) -> Result<(), String> {
    let line = &lab.line;
    for command in commands {
        let (at, rest) = command.split_once(' ').expect("a place");
        let station = match at {
            "a" => &line.a,
            "m" => &line.left,
            _ => &line.b,
        };
        let (left, right) = (&line.left.interface, &line.right.interface);
        let rest = rest.replace("LEFT", left).replace("RIGHT", right);
        let done = std::process::Command::new("ip")
            .args(["netns", "exec", &station.name, "sh", "-c", &rest])
            .output()
            .expect("ip runs");
        if !done.status.success() {
            return Err(format!("{rest}: {}", String::from_utf8_lossy(&done.stderr)));
        }
    }
    Ok(())
}

/// Sets up a network of this kind. Returns `None` if the kernel lacks the devices for it.
pub fn lab(kind: &str) -> Option<LineLab> {
    let lab = LineLab::with(&LineOptions { quiet: false, ..LineOptions::default() })?;
    let interfaces = "ip addr flush dev";
    let clear = [
        format!("a {interfaces} veth0"),
        format!("m {interfaces} LEFT"),
        format!("m {interfaces} RIGHT"),
        format!("b {interfaces} veth0"),
        "m sysctl -q -w net.ipv4.ip_forward=1".to_owned(),
    ];
    let clear: Vec<&str> = clear.iter().map(String::as_str).collect();
    set_up(&lab, &clear).expect("a line");
    let outside = [
        "a ip addr add 10.1.1.1/24 dev veth0",
        "m ip addr add 10.1.1.2/24 dev LEFT",
        "m ip addr add 10.1.2.1/24 dev RIGHT",
        "b ip addr add 10.1.2.2/24 dev veth0",
        "a ip route add default via 10.1.1.2",
        "b ip route add default via 10.1.2.1",
    ];
    let commands: &[&str] = match kind {
        "bridge" => &[
            "m ip link add br0 type bridge",
            "m ip link set br0 up",
            "m ip link set LEFT master br0",
            "m ip link set RIGHT master br0",
            "a ip addr add 10.1.0.1/24 dev veth0",
            "b ip addr add 10.1.0.2/24 dev veth0",
        ],
        "vlan" => &[
            "a ip link add link veth0 name v5 type vlan id 5",
            "a ip link set v5 up",
            "a ip addr add 10.1.1.1/24 dev v5",
            "m ip link add link LEFT name v5 type vlan id 5",
            "m ip link set v5 up",
            "m ip addr add 10.1.1.2/24 dev v5",
            "m ip link add link RIGHT name v6 type vlan id 6",
            "m ip link set v6 up",
            "m ip addr add 10.1.0.1/24 dev v6",
            "b ip link add link veth0 name v6 type vlan id 6",
            "b ip link set v6 up",
            "b ip addr add 10.1.0.2/24 dev v6",
            "a ip route add default via 10.1.1.2",
            "b ip route add default via 10.1.0.1",
        ],
        "bond" => &[
            "m ip link add bond0 type bond mode active-backup",
            "m ip link set LEFT down",
            "m ip link set LEFT master bond0",
            "m ip link set bond0 up",
            "m ip addr add 10.1.1.2/24 dev bond0",
            "m ip addr add 10.1.0.1/24 dev RIGHT",
            "a ip addr add 10.1.1.1/24 dev veth0",
            "b ip addr add 10.1.0.2/24 dev veth0",
            "a ip route add default via 10.1.1.2",
            "b ip route add default via 10.1.0.1",
        ],
        "vxlan" => &[
            "a ip link add vx type vxlan id 7 remote 10.1.2.2 local 10.1.1.1 dstport 4789",
            "b ip link add vx type vxlan id 7 remote 10.1.1.1 local 10.1.2.2 dstport 4789",
            "a ip link set vx up",
            "b ip link set vx up",
            "a ip addr add 10.1.0.1/24 dev vx",
            "b ip addr add 10.1.0.2/24 dev vx",
        ],
        "nat" => &[
            "m nft 'add table ip n'",
            "m nft 'add chain ip n pre { type nat hook prerouting priority dstnat; }'",
            "m nft 'add chain ip n post { type nat hook postrouting priority srcnat; }'",
            "m nft 'add rule ip n pre ip daddr 10.1.0.2 dnat to 10.1.2.2'",
            "m nft 'add rule ip n post masquerade'",
        ],
        "ipsec" => &[
            "a ip xfrm state add src 10.1.1.1 dst 10.1.2.2 proto esp spi 1 mode tunnel aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff00112233 128",
            "b ip xfrm state add src 10.1.1.1 dst 10.1.2.2 proto esp spi 1 mode tunnel aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff00112233 128",
            "a ip xfrm policy add src 10.1.1.1 dst 10.1.0.2 dir out tmpl src 10.1.1.1 dst 10.1.2.2 proto esp mode tunnel",
            "b ip xfrm policy add src 10.1.1.1 dst 10.1.0.2 dir in tmpl src 10.1.1.1 dst 10.1.2.2 proto esp mode tunnel",
            "b ip addr add 10.1.0.2/32 dev lo",
        ],
        "ipsec transport" => &[
            "a ip xfrm state add src 10.1.1.1 dst 10.1.0.2 proto esp spi 1 mode transport aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff00112233 128",
            "b ip xfrm state add src 10.1.1.1 dst 10.1.0.2 proto esp spi 1 mode transport aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff00112233 128",
            "a ip xfrm policy add src 10.1.1.1 dst 10.1.0.2 dir out tmpl proto esp mode transport",
            "b ip xfrm policy add src 10.1.1.1 dst 10.1.0.2 dir in tmpl proto esp mode transport",
            "b ip addr add 10.1.0.2/32 dev lo",
            "m ip route add 10.1.0.2/32 via 10.1.2.2",
        ],
        "wireguard" => &[
            "a ip link add wg0 type wireguard",
            "b ip link add wg0 type wireguard",
            "a echo AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHl8= | wg set wg0 listen-port 51820 private-key /dev/fd/0",
            "b echo ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pn8= | wg set wg0 listen-port 51820 private-key /dev/fd/0",
            "a ip link set wg0 up",
            "b ip link set wg0 up",
            "a ip addr add 10.1.0.1/24 dev wg0",
            "b ip addr add 10.1.0.2/24 dev wg0",
        ],
        _ => &["m ip addr add 10.1.0.1/24 dev RIGHT", "b ip addr add 10.1.0.2/24 dev veth0"],
    };
    let alone = ["bridge", "vlan", "bond"].contains(&kind);
    if !alone {
        set_up(&lab, &outside).expect("a line");
    }
    if let Err(error) = set_up(&lab, commands) {
        skip(&format!("the {kind} cannot be set up here: {error}"));
        return None;
    }
    if kind == "wireguard" {
        let key = |at: &str| {
            let station = if at == "a" { &lab.line.a } else { &lab.line.b };
            let text = run("ip", &["netns", "exec", &station.name, "wg", "show", "wg0", "public-key"]);
            text.trim().to_owned()
        };
        let peer = |at: &str, other: &str, address: &str, inner: &str| {
            format!("{at} wg set wg0 peer {} endpoint {address}:51820 allowed-ips {inner}/32", key(other))
        };
        let peers = [peer("a", "b", "10.1.2.2", "10.1.0.2"), peer("b", "a", "10.1.1.1", "10.1.0.1")];
        let peers: Vec<&str> = peers.iter().map(String::as_str).collect();
        set_up(&lab, &peers).expect("peers");
    }
    Some(lab)
}

/// Every packet reaches the socket, or is dropped with a reason; at most one in a thousand is not seen to its end.
fn ends(kind: &str) {
    let Some(lab) = lab(kind) else { return };
    let line = &lab.line;
    // Only emulated machines, which are slow, have such kernels, and translated packets have more steps.
    let is_slow = kind == "nat" && !kernel_is_at_least(6, 4);
    let count = amount(if is_slow { 1_000 } else { 10_000 });
    // The ping resolves the neighbours before packets are followed.
    let ping = args!("netns exec {} ping -q -c 1 -w 10 {TO}", line.a.name);
    run("ip", &ping);
    let socket = run_in(&line.b.namespace, || UdpSocket::bind(("0.0.0.0", PORT)));
    let socket = socket.expect("the namespace").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket");
    let within = format!("{},{},{}", line.a.name, line.left.name, line.b.name);
    let filter = format!("udp dst port {PORT}");
    let arguments = args!("follow --json --netns {} --within {within} '{filter}'", line.a.name);
    let follow = Running::start(&arguments, "following packets on");
    let sender = run_in(&line.a.namespace, || UdpSocket::bind("0.0.0.0:0"));
    let sender = sender.expect("the namespace").expect("a port");
    let received = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut received = 0;
            while socket.recv(&mut [0; 256]).is_ok() {
                received += 1;
            }
            received
        });
        let begun = std::time::Instant::now();
        for number in 0..count {
            let due = Duration::from_micros(number * 1_000_000 / RATE);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            sender.send_to(&number.to_be_bytes(), (TO, PORT)).expect("it is sent");
        }
        reader.join().expect("a count")
    });
    follow.signal(Signal::INT);
    let done = follow.wait();
    let ways = ways(&done.stdout);
    // On a busy machine, memory may run short. Some packets are then not followed, but none is lost on its path.
    let account = done.stderr.lines().last().expect("an account");
    let account: Value = serde_json::from_str(account).expect("JSON");
    let lost = &account["notice"]["lost"];
    let not_followed = lost["not_followed"].as_u64().unwrap_or(0);
    assert_eq!(lost["ring_full"], 0, "{account}");
    let followed = ways.len() as u64;
    assert!(followed + not_followed >= count, "{}", done.stderr);
    assert!(followed > 0 && followed <= count, "{}", done.stderr);
    let with = |end: &str| ways.iter().filter(|way| way["end"] == end).count() as u64;
    // Before Linux 6.3, the kernel does not report that a socket received a packet.
    let is_reported = kernel_is_at_least(6, 3);
    let known = with("delivered") + if is_reported { 0 } else { with("consumed") };
    // A packet in a WireGuard tunnel is recognised after its decryption only if it arrives soon.
    let known = known + if kind == "wireguard" { with("sent") } else { 0 };
    let dropped = with("dropped");
    let lost = with("gap");
    let example = ways.iter().find(|way| way["end"] == "gap");
    let max_gaps = count / 1000;
    assert!(lost <= max_gaps, "{kind}: {lost} gaps of {count}: {example:?}");
    let is_other = |way: &&Value| !["delivered", "dropped", "gap"].contains(&way["end"].as_str().expect("a word"));
    assert_eq!(known + dropped + lost, followed, "{kind}: {:?}", ways.iter().find(is_other));
    assert!(known + lost + not_followed >= received, "{kind}: {received} were received, {known} delivered");
    if kind.starts_with("ipsec") {
        // The encrypted packet is a part of the path.
        let is_encrypted = |way: &Value| way["steps"].to_string().contains("ESP(spi=");
        let delivered = ways.iter().filter(|way| way["end"] != "gap");
        delivered.for_each(|way| assert!(is_encrypted(way), "{way}"));
    }
    let reasons = ways.iter().filter(|way| way["end"] == "dropped");
    for way in reasons {
        let last = way["steps"].as_array().and_then(|steps| steps.last());
        assert!(last.is_some_and(|step| step["reason"].is_string()), "{way}");
    }
}

#[test]
fn packets_end_in_a_routed_network() {
    ends("routed");
}

#[test]
fn packets_end_behind_a_bridge() {
    ends("bridge");
}

#[test]
fn packets_end_behind_vlans() {
    ends("vlan");
}

#[test]
fn packets_end_behind_a_bond() {
    ends("bond");
}

#[test]
fn packets_end_behind_vxlan() {
    ends("vxlan");
}

#[test]
fn packets_end_behind_address_translation() {
    ends("nat");
}

#[test]
fn packets_end_behind_ipsec() {
    ends("ipsec");
}

#[test]
fn packets_end_behind_ipsec_without_a_tunnel() {
    ends("ipsec transport");
}

#[test]
fn packets_end_behind_wireguard() {
    ends("wireguard");
}

/// The file has an interface for each step, in the order of the path; translations are named.
#[test]
fn file_shows_the_path() {
    let Some(lab) = lab("nat") else { return };
    let line = &lab.line;
    let file = Files::file(&lab, "path.pcapng");
    let within = format!("{},{},{}", line.a.name, line.left.name, line.b.name);
    let arguments =
        args!("follow -w {file} --print --json -c 1 --netns {} --within {within} 'udp dst port {PORT}'", line.a.name);
    let follow = Running::start(&arguments, "following packets on");
    let send = format!("echo hello > /dev/udp/{TO}/{PORT}");
    run("ip", &["netns", "exec", &line.a.name, "bash", "-c", &send]);
    let done = follow.wait();
    let ways = ways(&done.stdout);
    assert_eq!(ways[0]["end"], "dropped", "{}", done.stdout);
    let steps = ways[0]["steps"].as_array().expect("steps");
    let of = |step: &str| {
        let here = |one: &&Value| one["step"] == step && one["netns"] == line.left.name.as_str();
        let all: Vec<&Value> = steps.iter().filter(here).collect();
        *all.last().expect("the step")
    };
    assert_eq!(of("prerouting")["nat"], "dnat", "{}", ways[0]);
    assert_eq!(of("prerouting")["conntrack"], "new", "{}", ways[0]);
    assert_eq!(of("postrouting")["nat"], "snat", "{}", ways[0]);
    let rows = tshark(&file, &["frame.interface_name", "frame.packet_id", "ip.dst"]);
    let id = ways[0]["packet_id"].to_string();
    assert!(rows.iter().all(|row| row[1] == id), "{rows:?}");
    let mut names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    names.dedup();
    let left = format!("{} ({})", line.left.interface, line.left.name);
    assert!(names.contains(&format!("prerouting {left}").as_str()), "{names:?}");
    // Each step that is not deduced has its interface.
    let seen = steps.iter().filter(|step| step["step"] != "routed").count();
    assert_eq!(names.len(), seen, "{names:?}\n{}", ways[0]);
    let (first, last) = (&rows[0][2], &rows[rows.len() - 1][2]);
    assert_eq!((first.as_str(), last.as_str()), (TO, "10.1.2.2"));
}
/// A filter for the inner packet also selects the tunnel's packet that a program at XDP sees.
#[test]
fn packet_in_a_tunnel_is_followed_from_an_xdp_program() {
    let Some(lab) = lab("vxlan") else { return };
    if !kernel_is_at_least(6, 6) {
        skip("before Linux 6.6 netfilter and tc have no links");
        return;
    }
    let line = &lab.line;
    let receiver = trawl_tests::lab::place(&line.b);
    let loaded = trawl(&args!("xdp load {receiver} pass --tappable --mode native"));
    assert!(loaded.status.success(), "{loaded:?}");
    let arguments = args!("follow --json -c 1 -i {receiver} 'udp dst port {PORT}'");
    let follow = Running::start(&arguments, "following packets on");
    let send = format!("for i in 1 2 3; do echo hello > /dev/udp/{TO}/{PORT}; sleep 0.2; done");
    run("ip", &["netns", "exec", &line.a.name, "bash", "-c", &send]);
    let done = follow.wait();
    trawl(&["xdp", "unload", &receiver]);
    let ways = ways(&done.stdout);
    let steps = steps(&ways[0]);
    assert_eq!(steps[..2], ["xdp", "gro"], "{}", ways[0]);
    assert!(ways[0]["packet"].as_str().is_some_and(|text| text.contains("VXLAN")), "{}", ways[0]);
    assert_eq!(steps.last(), Some(&"dropped"), "{}", ways[0]);
    let inside = ways[0]["steps"].as_array().expect("steps").iter();
    let mut inside = inside.filter(|step| step["interface"] == "vx");
    assert!(inside.any(|step| step["step"] == "input"), "{}", ways[0]);
}
