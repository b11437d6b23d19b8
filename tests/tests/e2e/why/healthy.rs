//! Healthy traffic has no losses, whatever reasons the kernel gives when it frees packets.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::Value;
use trawl_lab::Station;
use trawl_packet::build::{Tcp, Template, flags};
use trawl_sys::netns::run_in;
use trawl_tests::witness::{inside, output, run};
use trawl_tests::{Lab, skip, wait_until};

use super::planted::AtEnd;
use super::while_running;

/// The packet that `while_running` sends last, and that no socket receives.
const LAST: &str = "udp to 9";
const ROUNDS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Checks that both namespaces lose nothing during this traffic.
#[track_caller]
fn is_healthy(lab: &Lab, traffic: impl FnOnce()) {
    let report = while_running(lab, &lab.pair.b.name, traffic);
    let rows = report["rows"].as_array().expect("rows");
    let flows = rows.iter().flat_map(|row| row["flows"].as_array().expect("flows"));
    let lost: Vec<&Value> = flows.filter(|flow| flow["flow"] != LAST).collect();
    assert!(lost.is_empty(), "{report}");
    let counters = report["counters"].as_array().expect("counters").iter();
    let only: Vec<&Value> = counters.filter(|one| one["counter_only"] != 0).collect();
    assert!(only.is_empty(), "{only:?}");
}

fn ping(from: &Station, to: &str) {
    let said = inside(from, &format!("ping -c 3 -i 0.05 -W 30 -q {to}"));
    assert!(said.contains(" 0% packet loss"), "{said}");
}

/// Opens the interface in both namespaces. Returns false if the kernel has no such device.
fn pair_of_devices(lab: &Lab, kind: &str, addresses: [&str; 2]) -> bool {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    for ((own, other), address) in [(a, b), (b, a)].into_iter().zip(addresses) {
        let kind = kind.replace("LOCAL", &own.ipv4.to_string()).replace("REMOTE", &other.ipv4.to_string());
        let add = format!("-n {} link add t0 type {kind}", own.name);
        let added = output("ip", &add.split(' ').collect::<Vec<_>>());
        if !added.status.success() {
            let why = String::from_utf8_lossy(&added.stderr).into_owned();
            skip(&format!("no device of kind {kind}: {why}"));
            return false;
        }
        inside(own, "sysctl -qw net.ipv6.conf.t0.router_solicitation_delay=0 net.ipv6.conf.t0.keep_addr_on_down=1");
        inside(own, &format!("ip addr add {address} dev t0"));
    }
    true
}

fn received(station: &Station, device: &str) -> u64 {
    let text = inside(station, &format!("cat /sys/class/net/{device}/statistics/rx_packets"));
    text.trim().parse().expect("a number")
}

/// Addresses of a second pair of interfaces, `t1` in both namespaces.
const SECOND: [&str; 2] = ["10.3.0.1", "10.3.0.2"];

/// Makes the second pair. The end in b has an address only if `is_host` is true.
fn second_pair(lab: &Lab, is_host: bool) {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    inside(b, &format!("ip link add t1 type veth peer name t1 netns {}", a.name));
    inside(a, &format!("ip addr add {}/24 brd + dev t1", SECOND[0]));
    if is_host {
        inside(b, &format!("ip addr add {}/24 brd + dev t1", SECOND[1]));
    }
    for station in [a, b] {
        inside(station, "ip link set t1 up");
    }
}

/// Checks traffic through a tunnel. If `solicits` is true, a device that comes up also sends router solicitations,
/// which reach a host that is no router.
fn tunnel_is_healthy(kind: &str, addresses: [&str; 2], solicits: bool) {
    let Some(lab) = Lab::open() else { return };
    if !pair_of_devices(&lab, kind, addresses) {
        return;
    }
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    inside(b, "ip link set t0 up");
    let to = addresses[1].split_once('/').expect("a prefix").0;
    inside(a, "ip link set t0 up");
    ping(a, to);
    is_healthy(&lab, || {
        let before = received(b, "t0");
        inside(a, "ip link set t0 down");
        inside(a, "ip link set t0 up");
        if solicits {
            wait_until("the other end's solicitations and reports", || received(b, "t0") > before + 1);
        }
        ping(a, to);
    });
}

#[test]
fn ping_with_forgotten_neighbours_is_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    is_healthy(&lab, || {
        for (family, to, from) in
            [("-4", IpAddr::from(b.ipv4), IpAddr::from(a.ipv4)), ("-6", b.ipv6.into(), a.ipv6.into())]
        {
            for _ in 0..2 {
                ping(a, &to.to_string());
                for station in [a, b] {
                    inside(station, &format!("ip {family} neigh flush all"));
                }
                ping(b, &from.to_string());
            }
        }
    });
}

/// Sends datagrams of a size to a port, and reads them back.
fn exchange(lab: &Lab, to: IpAddr, from: IpAddr, size: usize) {
    let bind = |station: &Station, address: SocketAddr| {
        let socket = run_in(&station.namespace, || UdpSocket::bind(address));
        let socket = socket.expect("a namespace").expect("a port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        socket
    };
    let server = bind(&lab.pair.b, (to, 7000).into());
    let client = bind(&lab.pair.a, (from, 0).into());
    let mut room = vec![0; size + 1];
    for _ in 0..ROUNDS {
        client.send_to(&vec![1; size], (to, 7000)).expect("sent");
        let (length, peer) = server.recv_from(&mut room).expect("a datagram");
        server.send_to(&room[..length], peer).expect("sent");
        assert_eq!(client.recv(&mut room).expect("an answer"), size);
    }
}

#[test]
fn datagrams_and_fragments_are_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    is_healthy(&lab, || {
        for size in [100, 8000] {
            exchange(&lab, b.ipv4.into(), a.ipv4.into(), size);
            exchange(&lab, b.ipv6.into(), a.ipv6.into(), size);
        }
    });
}

#[test]
fn connections_of_both_versions_are_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    is_healthy(&lab, || {
        for to in [IpAddr::from(b.ipv4), b.ipv6.into()] {
            let listener = run_in(&b.namespace, || TcpListener::bind((to, 7001)));
            let listener = listener.expect("a namespace").expect("a port");
            for _ in 0..ROUNDS {
                let client = run_in(&a.namespace, || TcpStream::connect((to, 7001)));
                let mut client = client.expect("a namespace").expect("a connection");
                let (mut server, _) = listener.accept().expect("a connection");
                client.write_all(&[1; 5000]).expect("sent");
                let mut room = [0; 5000];
                server.read_exact(&mut room).expect("the request");
                server.write_all(&room).expect("sent");
                client.read_exact(&mut room).expect("the answer");
                drop(client);
                assert_eq!(server.read(&mut room).expect("the end"), 0);
            }
        }
    });
}

/// A client that closes does not read the server's last message, which has the lengths of TLS's close_notify. The
/// message arrives before or after the kernel has replaced the client's socket by one in TIME_WAIT.
#[test]
fn goodbye_to_a_closed_client_is_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    is_healthy(&lab, || {
        for (to, version) in [(IpAddr::from(a.ipv4), "-4"), (a.ipv6.into(), "-6")] {
            let listener = run_in(&a.namespace, || TcpListener::bind((to, 7004)));
            let listener = listener.expect("a namespace").expect("a port");
            for (length, waits) in [(23, false), (24, false), (31, false), (24, true), (31, true)] {
                let client = run_in(&b.namespace, || TcpStream::connect((to, 7004)));
                let client = client.expect("a namespace").expect("a connection");
                let (mut server, _) = listener.accept().expect("a connection");
                let port = client.local_addr().expect("its address").port();
                drop(client);
                assert_eq!(server.read(&mut [0; 9]).expect("the end"), 0);
                let replaced = format!("ss {version} -Htn state fin-wait-2 sport = :{port}");
                if waits {
                    wait_until("the end is acknowledged", || !inside(b, &replaced).is_empty());
                }
                server.write_all(&vec![23; length]).expect("sent");
            }
        }
    });
}

/// The end of a connection that the other side has already forgotten is no loss.
#[test]
fn ends_of_a_forgotten_connection_are_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let frames = [flags::FIN | flags::ACK, flags::RST, flags::RST | flags::ACK].map(|flags| {
        let tcp = Tcp { src: 7005, dst: 40_000, flags, ..Tcp::default() };
        let frame = Template::new().ethernet(a.mac, b.mac).ipv4(a.ipv4.octets(), b.ipv4.octets());
        frame.tcp(tcp).build()
    });
    is_healthy(&lab, || lab.send_long(&frames));
}

#[test]
fn packets_to_groups_and_to_all_are_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let (group, other) = (Ipv4Addr::new(239, 1, 2, 3), Ipv4Addr::new(239, 1, 2, 4));
    let all = Ipv4Addr::new(10, 3, 0, 255);
    let [from, to] = SECOND.map(|one| one.parse::<Ipv4Addr>().expect("an address"));
    second_pair(&lab, true);
    inside(a, "ip route add 224.0.0.0/4 dev t1");
    is_healthy(&lab, || {
        let server = run_in(&b.namespace, || {
            let server = UdpSocket::bind(("0.0.0.0", 7002)).expect("a port");
            server.join_multicast_v4(&group, &to).expect("joined");
            server.set_read_timeout(Some(PATIENCE)).expect("a limit");
            server
        });
        let server = server.expect("a namespace");
        let client = run_in(&a.namespace, || {
            let client = UdpSocket::bind((from, 0)).expect("a port");
            client.set_broadcast(true).expect("allowed");
            client
        });
        let client = client.expect("a namespace");
        for _ in 0..ROUNDS {
            // No socket has joined the other group, and none listens at the other port.
            client.send_to(b"x", (other, 7002)).expect("sent");
            client.send_to(b"x", (all, 7003)).expect("sent");
            for to in [group, all] {
                client.send_to(b"x", (to, 7002)).expect("sent");
                server.recv(&mut [0; 9]).expect("a datagram");
            }
        }
    });
}

#[test]
fn gre_is_healthy() {
    tunnel_is_healthy("gre local LOCAL remote REMOTE", ["10.2.0.1/24", "10.2.0.2/24"], true);
}

#[test]
fn ethernet_over_gre_is_healthy() {
    let kind = "gretap local LOCAL remote REMOTE key 5";
    tunnel_is_healthy(kind, ["10.2.0.1/24", "10.2.0.2/24"], true);
}

#[test]
fn ipip_is_healthy() {
    tunnel_is_healthy("ipip local LOCAL remote REMOTE", ["10.2.0.1/24", "10.2.0.2/24"], false);
}

#[test]
fn sit_is_healthy() {
    tunnel_is_healthy("sit local LOCAL remote REMOTE", ["fd00:2::1/64", "fd00:2::2/64"], false);
}

#[test]
fn vxlan_is_healthy() {
    let kind = "vxlan id 7 local LOCAL remote REMOTE dstport 4789";
    tunnel_is_healthy(kind, ["10.2.0.1/24", "10.2.0.2/24"], true);
}

#[test]
fn vlan_is_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    for (station, address) in [(b, "10.2.0.2/24"), (a, "10.2.0.1/24")] {
        let link = &station.interface;
        let add = format!("-n {} link add link {link} name t0 type vlan id 5", station.name);
        if !output("ip", &add.split(' ').collect::<Vec<_>>()).status.success() {
            skip("the kernel has no VLAN devices");
            return;
        }
        inside(station, &format!("ip addr add {address} dev t0"));
        // Before Linux 6.12, the device inherits the flag of the device below that disables ARP.
        inside(station, "ip link set t0 arp on up");
    }
    is_healthy(&lab, || {
        inside(a, "ip link set t0 down");
        inside(a, "ip link set t0 up");
        ping(a, "10.2.0.2");
    });
}

#[test]
fn devices_above_another_are_healthy() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    second_pair(&lab, false);
    for kind in ["ipvlan mode l2", "ipvlan mode l3", "macvlan mode bridge"] {
        let other = format!("{}-c", b.name);
        run("ip", &["netns", "add", &other]);
        let end = AtEnd(|| drop(output("ip", &["netns", "del", &other])));
        let link = format!("-n {} link add link t1 name t0 netns {other} type {kind}", b.name);
        let added = output("ip", &link.split(' ').collect::<Vec<_>>());
        if !added.status.success() {
            skip(&format!("no device of kind {kind}"));
            continue;
        }
        let inside = |command: &str| {
            let words: Vec<&str> = command.split(' ').collect();
            run("ip", &[&["netns", "exec", &other], &words[..]].concat())
        };
        inside("ip addr add 10.3.0.77/24 dev t0");
        inside("sysctl -qw net.ipv6.conf.t0.router_solicitation_delay=0");
        is_healthy(&lab, || {
            inside("ip link set t0 up");
            let said = inside(&format!("ping -c 3 -i 0.05 -W 30 -q {}", SECOND[0]));
            assert!(said.contains(" 0% packet loss"), "{said}");
            let sent = || inside("cat /sys/class/net/t0/statistics/tx_packets");
            // At layer 3, the device sends only the pings.
            let least = if kind.ends_with("l3") { 3 } else { 6 };
            wait_until("solicitations and reports", || sent().trim().parse::<u64>().expect("a number") >= least);
        });
        drop(end);
    }
}

#[test]
fn bridge_is_healthy() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    second_pair(&lab, false);
    inside(b, "ip link add br0 type bridge");
    inside(b, &format!("ip addr add {}/24 dev br0", SECOND[1]));
    is_healthy(&lab, || {
        for command in ["ip link set br0 up", "ip link set t1 master br0"] {
            inside(b, command);
        }
        ping(a, SECOND[1]);
        inside(a, "ip neigh flush all");
        ping(b, SECOND[0]);
    });
}

#[test]
fn loopback_is_healthy() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    is_healthy(&lab, || {
        inside(b, "ip link set lo up");
        ping(b, "127.0.0.1");
        ping(b, "::1");
    });
}
