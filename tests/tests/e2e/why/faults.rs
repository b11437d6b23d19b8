//! Many planted faults at once, each of which must have advice about it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use trawl_bpf::probe::kernel_is_at_least;
use trawl_packet::build::{Ipv4, Layer, Tcp, Template, flags};
use trawl_sys::netns::run_in;
use trawl_tests::witness::{output, run};
use trawl_tests::{Lab, skip, wait_until};

use super::while_running;

/// The program with the sockets, which ends with its standard input.
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
        assert_eq!(sockets.line(), "ready");
        sockets
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) -> String {
        let mut input = self.child.stdin.as_ref().expect("its input");
        input.write_all(b"\n").expect("it reads");
        self.line()
    }

    fn send(&mut self) {
        assert_eq!(self.go_on(), "sent");
    }

    /// Connects from a to port 4008.
    fn connect(&mut self, lab: &Lab) -> Connection {
        let connect = || TcpStream::connect((lab.pair.b.ipv4, 4008));
        let client = run_in(&lab.pair.a.namespace, connect);
        let mut client = client.expect("a namespace").expect("a connection");
        client.write_all(b"x").expect("sent");
        let line = self.go_on();
        let numbers = line.split(' ').map(|word| word.parse().expect("a number"));
        let numbers: Vec<u32> = numbers.collect();
        Connection {
            port: numbers[0] as u16,
            next: numbers[1],
            acknowledgement: numbers[2],
            stamp: numbers[3],
            _client: client,
        }
    }
}

/// A connection to port 4008.
struct Connection {
    port: u16,
    /// The next sequence number, and the last acknowledgement and time stamp of the client.
    next: u32,
    acknowledgement: u32,
    stamp: u32,
    _client: TcpStream,
}

impl Connection {
    /// Returns a segment of the client whose sequence number is `after` bytes beyond the next one, and whose stamp is
    /// `before` ticks before the last one.
    fn segment(&self, after: u32, before: u32) -> Tcp {
        let stamp = self.stamp.wrapping_sub(before).to_be_bytes();
        Tcp {
            src: self.port,
            dst: 4008,
            seq: self.next.wrapping_add(after),
            ack: self.acknowledgement,
            flags: flags::PSH | flags::ACK,
            window: 512,
            options: [&[1, 1, 8, 10][..], &stamp, &[0; 4]].concat(),
            ..Tcp::default()
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs each line by `ip netns exec` in the namespace of b. Returns false at the first failure.
fn prepare(lab: &Lab, lines: &str) -> bool {
    lines.lines().map(str::trim).filter(|line| !line.is_empty()).all(|line| {
        let words = ["netns", "exec", &lab.pair.b.name];
        let command: Vec<&str> = line.split(' ').collect();
        output("ip", &[&words[..], &command].concat()).status.success()
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

/// Adds a second isolated port to the fourth bridge.
fn isolated_port(lab: &Lab) -> bool {
    prepare(
        lab,
        "ip link add away4 type veth peer name back4
         ip link set away4 master br4
         bridge link set dev away4 isolated on
         ip link set away4 up
         ip link set back4 up",
    )
}

/// A key of 128 bits.
const KEY: &str = "0x000102030405060708090a0b0c0d0e0f";

#[test]
fn planted_faults_have_their_advice() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let mut sockets = Sockets::open(&lab);
    let device = &b.interface;
    let is_since = |minor| kernel_is_at_least(6, minor);
    let ip = |source: [u8; 4], destination: [u8; 4]| Ipv4::new(source.into(), destination.into());
    let from = |ip: Ipv4| Template::new().ethernet(a.mac, b.mac).layer(Layer::Ipv4(ip));
    let (own, other) = (b.ipv4.octets(), a.ipv4.octets());
    let datagram = |ip: Ipv4| from(ip).udp(5, 7).payload([0; 18]).build();
    let syn = |source: [u8; 4], src: u16, dst: u16| {
        let tcp = Tcp { src, dst, seq: 1, flags: flags::SYN, window: 512, ..Tcp::default() };
        from(ip(source, own)).tcp(tcp).build()
    };
    let vxlan = [&[8, 0, 0, 0, 0, 0, 5, 0][..], &[2; 12], &[8, 6], &[0; 28]].concat();
    let fragment = Ipv4 { more_fragments: true, id: 7, ..ip(other, own) };
    // Other addresses of the subnet do not answer, so that connections from them stay half-open.
    let stranger = [other[0], other[1], other[2], 77];
    let unprotected = [other[0], other[1], other[2], 78];
    let protocol = |number, payload: &[u8]| {
        let ip = Ipv4 { protocol: Some(number), ..ip(other, own) };
        from(ip).payload(payload).build()
    };
    let esp = |security: u8| {
        let header = [0, 0, 1, security, 0, 0, 0, 1];
        protocol(50, &[&header[..], &[7; 16 + 16 + 12]].concat())
    };
    let connection = sockets.connect(&lab);
    let segment = |after, before| {
        let segment = connection.segment(after, before);
        from(ip(other, own)).tcp(segment).payload([0; 100]).build()
    };
    let to_v6 = Template::new().ethernet(a.mac, b.mac).ipv6(a.ipv6, b.ipv6);
    prepare(
        &lab,
        "sysctl -qw net.ipv4.ip_forward=0 net.ipv4.ipfrag_time=1 net.ipv4.tcp_syncookies=0 net.ipv4.tcp_max_syn_backlog=2",
    );
    prepare(&lab, "sysctl -qw net.ipv4.conf.all.rp_filter=1");
    let has_tree = bridge(&lab, 1, " stp_state 1 forward_delay 3000", "") && prepare(&lab, "ip link set far1 down");
    let has_esp = prepare(
        &lab,
        &format!(
            "ip xfrm state add src {} dst {} proto esp spi 0x100 mode transport auth hmac(sha1) {KEY} enc cbc(aes) {KEY}",
            a.ipv4, b.ipv4
        ),
    );
    // Each fault has: true if it could be planted, the frames that it affects, and a part of its advice or of the name
    // of the object that dropped them.
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
            prepare(&lab, "ip link set tun0 txqueuelen 2\nip link set tun0 up\nip addr add 10.97.0.1/24 dev tun0"),
            vec![],
            "the ring of the device",
        ),
        (has_tree, vec![], "blocked by the spanning tree"),
        (bridge(&lab, 2, "", ""), vec![], "the bridge has no port but far2"),
        (
            // The port must be locked before it is up, so that it learns no sender.
            bridge(&lab, 3, "", "bridge link set dev far3 locked on learning off"),
            vec![],
            "the bridge's port far3 is locked",
        ),
        (true, vec![datagram(ip(other, [10, 99, 0, 1]))], "forwarding is off"),
        (is_since(14), vec![datagram(ip(other, [127, 0, 0, 5]))], "outside of the loopback interface"),
        (is_since(14), vec![datagram(ip(own, own))], "is an address of this host"),
        (true, vec![datagram(ip([10, 55, 0, 1], own))], "rp_filter=2"),
        (true, vec![datagram(fragment)], "other fragments of the datagram are missing"),
        (is_since(3), vec![syn(other, 6, 4001)], "its time to live is below the socket's minimum"),
        (true, vec![syn(other, 6, 4002)], "the connection requires TCP MD5"),
        (true, vec![segment(0, 1 << 30)], "an old time stamp: a duplicate from long ago"),
        (true, vec![segment(1 << 30, 0)], "outside of the window"),
        (
            prepare(&lab, &format!("sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1")),
            vec![to_v6.udp(5, 7).payload([0; 18]).build()],
            "IPv6 is disabled",
        ),
        (
            prepare(&lab, "iptables-legacy -A INPUT -p udp --dport 4007 -j NFQUEUE --queue-num 7"),
            vec![lab.udp(4007)],
            "no program listens at the queue of a rule",
        ),
        (
            bridge(&lab, 4, "", "bridge link set dev far4 isolated on") && isolated_port(&lab),
            vec![],
            "the bridge's port far4 is isolated, and so are all others",
        ),
        (
            bridge(&lab, 5, " vlan_filtering 1", "bridge vlan del dev far5 vid 1"),
            vec![],
            "the bridge's port does not have its VLAN",
        ),
        (
            prepare(
                &lab,
                &format!("ip link add gre5 type gre local {} remote {} key 5\nip link set gre5 up", b.ipv4, a.ipv4),
            ),
            vec![protocol(47, &[0x20, 0, 8, 0, 0, 0, 0, 6, 0x45, 0, 0, 20])],
            "no GRE device has its addresses and key",
        ),
        (
            prepare(
                &lab,
                &format!(
                    "ip xfrm policy add src {} dst {} dir in tmpl proto esp mode transport",
                    Ipv4Addr::from(unprotected),
                    b.ipv4
                ),
            ),
            vec![datagram(ip(unprotected, own))],
            "XfrmInTmplMismatch: the packet did not come by the SA that the policy requires",
        ),
        (has_esp, vec![esp(1)], "XfrmInNoStates: no SA has the packet's SPI"),
        (has_esp, vec![esp(0)], "XfrmInStateProtoError: the packet cannot be authenticated"),
        (
            prepare(
                &lab,
                &format!(
                    "tc qdisc add dev {device} clsact
                     tc filter add dev {device} ingress pref 7 protocol ip u32 match ip dport 4009 0xffff action drop"
                ),
            ),
            vec![lab.udp(4009)],
            "filter u32 pref 7 ",
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
        // The spanning tree blocks the port for a minute.
        if has_tree && prepare(&lab, "ip link set far1 up") {
            wait_until("the port listens", || lab.inside("bridge link show dev far1").contains("state listening"));
        }
        sockets.send();
        wait_until("the fragment is given up", failures);
    });
    let rows = report["rows"].as_array().expect("rows");
    let culprits = rows.iter().flat_map(|row| row["culprits"].as_array().into_iter().flatten());
    let advice: Vec<&str> = rows
        .iter()
        .map(|row| &row["advice"])
        .chain(culprits.map(|one| &one["name"]))
        .filter_map(Value::as_str)
        .collect();
    for (is_planted, _, expected) in &faults {
        if *is_planted {
            assert!(advice.iter().any(|advice| advice.contains(expected)), "{expected}: {report:#}");
        } else {
            eprintln!("cannot be planted here: {expected}");
        }
    }
    let counters = report["counters"].as_array().expect("counters");
    let refused = counters.iter().find(|one| one["name"] == "TcpExtListenDrops");
    let refused = refused.unwrap_or_else(|| panic!("no refused connections: {report:#}"));
    let text = refused.to_string();
    assert!(text.contains("4003 of python3[") && text.contains("tcp_max_syn_backlog"), "{text}");
}

/// Connection tracking drops packets if its table is full.
#[test]
fn full_table_of_connections_is_named() {
    if std::env::var_os("TRAWL_TESTS_MACHINE").is_none() {
        skip("the limit applies to all namespaces: only a virtual machine of the test's own may lower it");
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let rules = "add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in ct state new counter";
    run("ip", &["netns", "exec", &lab.pair.b.name, "nft", rules]);
    run("sysctl", &["-qw", "net.netfilter.nf_conntrack_max=2"]);
    let flows: Vec<Vec<u8>> = (0..20).map(|number| lab.udp(4100 + number)).collect();
    let report = while_running(&lab, &lab.pair.b.name, || lab.send_long(&flows));
    let rows = report["rows"].as_array().expect("rows");
    let expected = "the table of connections is full (2 of 2 entries): raise net.netfilter.nf_conntrack_max";
    assert!(rows.iter().any(|row| row["advice"].as_str().is_some_and(|text| text.contains(expected))), "{report:#}");
}
