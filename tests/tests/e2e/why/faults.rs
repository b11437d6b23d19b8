//! Many planted faults at once: each has the advice about it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use trawl_bpf::probe::kernel_is_at_least;
use trawl_packet::build::{Ipv4, Layer, Tcp, Template, flags};
use trawl_tests::witness::output;
use trawl_tests::{Lab, wait_until};

use super::while_running;

/// The program with the sockets, ended by its standard input.
struct Sockets {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Sockets {
    fn open(lab: &Lab) -> Self {
        let (a, b) = (&lab.pair.a, &lab.pair.b);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/why/faults.py");
        let mut python = Command::new("ip");
        python.args(["netns", "exec", &b.name, "python3", script, &b.interface]);
        python.arg(a.ipv4.to_string());
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().expect("python3");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        let mut sockets = Self { child, said };
        sockets.wait_for("ready");
        sockets
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("its output");
        assert_eq!(line.trim_end(), word);
    }

    fn send(&mut self) {
        let mut input = self.child.stdin.as_ref().expect("its input");
        input.write_all(b"\n").expect("it reads");
        self.wait_for("sent");
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `ip` in the namespace of b for each line; false at the first refusal.
fn prepare(lab: &Lab, lines: &str) -> bool {
    lines
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .all(|line| {
            let words = ["netns", "exec", &lab.pair.b.name];
            let command: Vec<&str> = line.split(' ').collect();
            output("ip", &[&words[..], &command].concat())
                .status
                .success()
        })
}

/// Makes a bridge whose port is the far end of a veth pair, from which 10.97.NUMBER.9 is reached. The command
/// `before_up` changes the port.
fn bridge(lab: &Lab, number: u8, of_bridge: &str, before_up: &str) -> bool {
    prepare(
        lab,
        &format!(
            "ip link add br{number} type bridge{of_bridge}
             ip link add near{number} type veth peer name far{number}
             ip link set far{number} master br{number}
             {before_up}
             ip link set br{number} up
             ip link set far{number} up
             ip link set near{number} up
             ip addr add 10.97.{number}.1/24 dev near{number}
             ip neigh replace 10.97.{number}.9 lladdr 02:00:00:00:00:99 dev near{number}"
        ),
    )
}

#[test]
fn planted_faults_have_their_advice() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let mut sockets = Sockets::open(&lab);
    let device = &b.interface;
    let is_since = |minor| kernel_is_at_least(6, minor);
    let ip = |source: [u8; 4], destination: [u8; 4]| Ipv4::new(source.into(), destination.into());
    let from = |ip: Ipv4| {
        Template::new()
            .ethernet(a.mac, b.mac)
            .layer(Layer::Ipv4(ip))
    };
    let (own, other) = (b.ipv4.octets(), a.ipv4.octets());
    let datagram = |ip: Ipv4| from(ip).udp(5, 7).payload([0; 18]).build();
    let syn = |source: [u8; 4], src: u16, dst: u16| {
        let tcp = Tcp {
            src,
            dst,
            seq: 1,
            flags: flags::SYN,
            window: 512,
            ..Tcp::default()
        };
        from(ip(source, own)).tcp(tcp).build()
    };
    let vxlan = [&[8, 0, 0, 0, 0, 0, 5, 0][..], &[2; 12], &[8, 6], &[0; 28]].concat();
    let fragment = Ipv4 {
        more_fragments: true,
        id: 7,
        ..ip(other, own)
    };
    // The rest of the subnet answers nothing, so that beginning connections wait.
    let stranger = [other[0], other[1], other[2], 77];
    prepare(
        &lab,
        "sysctl -qw net.ipv4.ip_forward=0 net.ipv4.ipfrag_time=1 net.ipv4.tcp_syncookies=0 net.ipv4.tcp_max_syn_backlog=2",
    );
    prepare(&lab, "sysctl -qw net.ipv4.conf.all.rp_filter=1");
    // Each fault: was it planted, the frame that meets it, and a part of its advice.
    let faults = [
        (
            prepare(&lab, "iptables-legacy -A INPUT -p udp --dport 4005 -j DROP"),
            vec![lab.udp(4005)],
            "iptables-legacy -t filter -vnL INPUT",
        ),
        (
            prepare(
                &lab,
                &format!(
                    "ip link add vx0 type vxlan id 6 remote {} dstport 4789 dev {device}\nip link set vx0 up",
                    a.ipv4
                ),
            ),
            vec![from(ip(other, own)).udp(5, 4789).payload(vxlan).build()],
            "no VXLAN device has its number",
        ),
        (
            prepare(
                &lab,
                "ip link set tun0 txqueuelen 2\nip link set tun0 up\nip addr add 10.97.0.1/24 dev tun0",
            ),
            vec![],
            "the ring of the device",
        ),
        (
            is_since(14) && bridge(&lab, 1, " stp_state 1", ""),
            vec![],
            "blocked by the spanning tree",
        ),
        (
            is_since(14) && bridge(&lab, 2, "", ""),
            vec![],
            "no port of the bridge takes it",
        ),
        (
            // Before it is up, so that it learns no sender.
            bridge(
                &lab,
                3,
                "",
                "bridge link set dev far3 locked on learning off",
            ),
            vec![],
            "the bridge's port is locked",
        ),
        (
            true,
            vec![datagram(ip(other, [10, 99, 0, 1]))],
            "forwarding is off",
        ),
        (
            is_since(14),
            vec![datagram(ip(other, [127, 0, 0, 5]))],
            "outside of the loopback interface",
        ),
        (
            is_since(14),
            vec![datagram(ip(own, own))],
            "is an address of this host",
        ),
        (true, vec![datagram(ip([10, 55, 0, 1], own))], "rp_filter=2"),
        (
            true,
            vec![datagram(fragment)],
            "other fragments of the datagram are missing",
        ),
        (
            is_since(3),
            vec![syn(other, 6, 4001)],
            "its time to live is below the socket's minimum",
        ),
        (
            true,
            vec![syn(other, 6, 4002)],
            "the connection requires TCP MD5",
        ),
        (true, vec![lab.udp(4004)], "ss -nap --bpf"),
        (true, vec![lab.udp(4006); 20], "a packet socket"),
    ];
    let connections = (0..8).map(|port| syn(stranger, 100 + port, 4003));
    let failures = || {
        let text = lab.inside("nstat -asz IpReasmFails");
        let words = text.split_whitespace().collect::<Vec<_>>();
        let at = words.iter().position(|one| *one == "IpReasmFails");
        words[at.expect("a counter") + 1] != "0"
    };
    let report = while_running(&lab, &b.name, || {
        let planted = faults.iter().filter(|(is_planted, ..)| *is_planted);
        let frames = planted.flat_map(|(_, frames, _)| frames.clone());
        lab.send_long(&frames.chain(connections).collect::<Vec<_>>());
        sockets.send();
        wait_until("the fragment is given up", failures);
    });
    let rows = report["rows"].as_array().expect("rows");
    let advice: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["advice"].as_str())
        .collect();
    for (is_planted, _, expected) in &faults {
        match is_planted {
            true => assert!(
                advice.iter().any(|advice| advice.contains(expected)),
                "{expected}: {report:#}"
            ),
            false => eprintln!("cannot be planted here: {expected}"),
        }
    }
    let counters = report["counters"].as_array().expect("counters");
    let refused = counters
        .iter()
        .find(|one| one["name"] == "TcpExtListenDrops");
    let refused = refused.unwrap_or_else(|| panic!("no refused connections: {report:#}"));
    let text = refused.to_string();
    assert!(
        text.contains("4003 of python3[") && text.contains("tcp_max_syn_backlog"),
        "{text}"
    );
}
