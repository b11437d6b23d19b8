//! Packets that the kernel sends for one process in the context of another one, which happens to run.

use std::process::{Command, Stdio};

use trawl_lab::Station;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::run;
use trawl_tests::{Capture, Lab, args};

use super::{PORT, SCRIPT, Server};

/// Runs a shell script in the namespace of a station, and returns its output.
fn shell(station: &Station, script: &str) -> String {
    run("ip", &["netns", "exec", &station.name, "bash", "-c", script])
}

/// A datagram that waits until another process enters the receiver's address has the process that sent it.
#[test]
fn packet_that_waits_for_its_neighbour_is_its_senders() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let interface = &a.interface;
    // The receiver does not answer requests for its address.
    run("ip", &args!("-n {} link set {interface} arp on", a.name));
    run("ip", &args!("-n {} neigh flush dev {interface} nud permanent", a.name));
    let file = lab.file("neighbour.pcapng");
    let what = args!("-i {} --tap tc -Q out --process -c 1 -w {file} udp port {PORT}", lab.sender());
    let capture = Capture::start(&lab, &what);
    let sender: u32 =
        shell(a, &format!("echo $$; echo x >/dev/udp/{}/{PORT}", b.ipv4)).trim().parse().expect("a number");
    let mac = b.mac.map(|byte| format!("{byte:02x}")).join(":");
    run("ip", &args!("-n {} neigh replace {} lladdr {mac} dev {interface}", a.name, b.ipv4));
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    let process = contents.packets[0].process();
    assert_eq!(process.map(|(process, _)| process), Some(sender));
}

/// A process writes a segment to a device, and the kernel answers it before the write returns. The answer has the
/// process of the receiving socket.
#[test]
fn answer_to_a_written_packet_is_the_receivers() {
    let Some(lab) = Lab::open() else { return };
    let station = &lab.pair.b;
    shell(
        station,
        "ip tuntap add dev written mode tap && ip addr add 10.99.0.1/24 dev written && ip link set written up && \
         ip neigh replace 10.99.0.2 lladdr 02:00:00:00:00:09 dev written",
    );
    let file = lab.file("written.pcapng");
    let what = args!("-i {}:written --tap tc -Q out --process -c 1 -w {file} tcp port {PORT}", station.name);
    let capture = Capture::start(&lab, &what);
    let server = Server::start("alone", station, "10.99.0.1", PORT);
    let output = Command::new("ip")
        .args(["netns", "exec", &station.name, "python3", SCRIPT, "write", "written", &PORT.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("python3");
    assert!(output.status.success());
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    let (process, thread) = contents.packets[0].process().expect("a process");
    assert!(server.processes().contains(&process), "{process}");
    assert_eq!(thread, 0);
}

/// The kernel answers echo requests, so an answer has no process where it is sent, and the asking process where it is
/// received.
#[test]
fn echo_requests_and_answers_are_the_askers() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    shell(a, "sysctl -q -w net.ipv4.ping_group_range='0 2147483647'");
    let file = lab.file("echo.pcapng");
    let what = args!("-i {} -i {} --tap tc --process -w {file} 'icmp or icmp6'", lab.sender(), lab.receiver());
    let capture = Capture::start(&lab, &what);
    for address in [b.ipv4.to_string(), b.ipv6.to_string()] {
        shell(a, &format!("exec python3 {SCRIPT} ping {address}"));
    }
    let said = capture.stop().stderr;
    let contents = Contents::read(&file);
    // Two kinds of sockets exchange a request and an answer by each of two protocols, and each packet is seen twice.
    assert_eq!(contents.packets.len(), 2 * 2 * 2 * 2, "{said}");
    let mut unknown = 0;
    for packet in &contents.packets {
        let bytes = &packet.bytes;
        let at = if bytes[12..14] == [8, 0] { 34 } else { 54 };
        let sender = u32::from_be_bytes(bytes[at + 8..at + 12].try_into().expect("four bytes"));
        match (bytes[at], packet.process()) {
            (8 | 128 | 0 | 129, Some((process, _))) => assert_eq!(process, sender),
            (0 | 129, None) if packet.flags() == Some(2) => unknown += 1,
            other => panic!("{other:?}, flags {:?}", packet.flags()),
        }
    }
    assert_eq!(unknown, 4, "{said}");
    assert!(said.contains("the process of 4 packets is unknown"), "{said}");
}
