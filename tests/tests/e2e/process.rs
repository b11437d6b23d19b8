//! The process of each packet: the truth is in the payload.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use trawl_bpf::probe::kernel_is_at_least;
use trawl_lab::Station;
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::{Contents, Packet};
use trawl_tests::wait::wait_until;
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, Running, args, binary, skip, trawl};

const PORT: u16 = 7777;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/process.py");
const TCP: u8 = 6;
const UDP: u8 = 17;

fn python(station: &Station) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &station.name, "python3", SCRIPT]);
    command
}

/// A server, and its first process, which answers datagrams.
struct Server {
    child: Child,
    process: u32,
}

impl Server {
    fn start(mode: &str, station: &Station, address: &str) -> Self {
        let mut child = python(station)
            .args(["serve", mode, address, &PORT.to_string()])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("a line");
        let process = line.trim().parse().expect("a number");
        Self { child, process }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its workers too.
        run("kill", &["-KILL", "--", &format!("-{}", self.child.id())]);
        self.child.wait().expect("it ends");
    }
}

/// The processes of one client's packets.
#[derive(Clone, Copy, Debug)]
struct Truth {
    client: u32,
    server: u32,
}

/// The truth by protocol and by the client's port; `None` if two clients had the same port.
type Truths = HashMap<(u8, u16), Option<Truth>>;

/// Runs clients, and returns the truth.
fn ask(station: &Station, address: &str, count: usize, server: u32) -> Truths {
    let output = python(station)
        .args(["ask", address, &PORT.to_string(), &count.to_string()])
        .output()
        .expect("python3");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut truths = Truths::new();
    for line in text.lines() {
        let numbers: Vec<u32> = line
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        let [datagram, connection, client, worker] = numbers[..] else {
            panic!("{line}");
        };
        for (protocol, port, server) in [(UDP, datagram, server), (TCP, connection, worker)] {
            let is_new = !truths.contains_key(&(protocol, port as u16));
            let truth = is_new.then_some(Truth { client, server });
            truths.insert((protocol, port as u16), truth);
        }
    }
    assert_eq!(text.lines().count(), count, "{text}");
    truths
}

/// Fields of a packet's headers.
#[derive(Debug)]
struct Headers {
    protocol: u8,
    /// True if the server sent it.
    is_answer: bool,
    client_port: u16,
    has_payload: bool,
    /// One end has closed the connection: from now on, whoever closes the last descriptor sends segments.
    ends: bool,
}

fn headers(packet: &Packet) -> Option<Headers> {
    let bytes = &packet.bytes;
    let (protocol, at, end) = match u16::from_be_bytes([bytes[12], bytes[13]]) {
        0x0800 => (
            bytes[23],
            34,
            14 + usize::from(u16::from_be_bytes([bytes[16], bytes[17]])),
        ),
        0x86dd => (
            bytes[20],
            54,
            54 + usize::from(u16::from_be_bytes([bytes[18], bytes[19]])),
        ),
        _ => return None,
    };
    if ![TCP, UDP].contains(&protocol) {
        return None;
    }
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let is_answer = port(at) == PORT;
    let header = match protocol {
        TCP => usize::from(bytes[at + 12] >> 4) * 4,
        _ => 8,
    };
    Some(Headers {
        protocol,
        is_answer,
        client_port: if is_answer { port(at + 2) } else { port(at) },
        has_payload: at + header < end,
        ends: protocol == TCP && bytes[at + 13] & 1 == 1,
    })
}

/// Compares the packets of a file with the truth, and returns the number of those whose process is as it has to be. Until
/// a worker has used its connection, the connection is the listening socket's, which is one of the server's processes.
fn compare(contents: &Contents, truths: &Truths, servers: &[u32], what: &str) -> usize {
    let mut right = 0;
    // Connections that their worker has answered, and that one end has closed.
    let (mut answered, mut ended) = (HashSet::new(), HashSet::new());
    for packet in &contents.packets {
        let Some(headers) = headers(packet) else {
            continue;
        };
        let Some(truth) = truths[&(headers.protocol, headers.client_port)] else {
            continue;
        };
        let is_sent = packet.flags() == Some(2);
        let (process, thread) = packet.process().unwrap_or_else(|| panic!("{what}: none"));
        let expected = match is_sent == headers.is_answer {
            true => truth.server,
            false => truth.client,
        };
        if headers.ends {
            ended.insert(headers.client_port);
        }
        let is_answered =
            answered.contains(&headers.client_port) && !ended.contains(&headers.client_port);
        if expected == truth.server && headers.protocol == TCP && !is_answered {
            let is_known = process == expected || servers.contains(&process);
            assert!(is_known, "{what}: {process} for {truth:?}, {headers:?}");
        } else {
            assert_eq!(
                process, expected,
                "{what}: {truth:?}, sent: {is_sent}, {headers:?}"
            );
        }
        assert!(is_sent || thread == 0, "{what}: {thread}");
        if headers.is_answer && headers.has_payload && headers.protocol == TCP && is_sent {
            answered.insert(headers.client_port);
        }
        right += usize::from(process == expected);
    }
    right
}

/// The processes of a server's group.
fn group(server: &Server) -> Vec<u32> {
    let found = run("pgrep", &["-g", &server.child.id().to_string()]);
    found.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns true if the kernel shows who uses a socket that it did not make.
fn shows_each_use() -> bool {
    let shows = kernel_is_at_least(6, 3);
    if !shows {
        skip("before Linux 6.3, a process that was given a socket is not seen to use it");
    }
    shows
}

/// Whichever way a worker comes to its connection, at tc on both ends.
#[test]
fn clients_and_workers_are_told_apart() {
    let Some(lab) = Lab::open().filter(|_| shows_each_use()) else {
        return;
    };
    let (v4, v6) = (lab.pair.b.ipv4.to_string(), lab.pair.b.ipv6.to_string());
    for (mode, address) in [
        ("alone", &v4),
        ("fork", &v6),
        ("prefork", &v4),
        ("pass", &v4),
        ("group", &v6),
    ] {
        let file = lab.file(&format!("{mode}.pcapng"));
        let capture = Capture::start(
            &lab,
            &args!(
                "-i {} -i {} --tap tc --process -w {file} port {PORT}",
                lab.sender(),
                lab.receiver()
            ),
        );
        let server = Server::start(mode, &lab.pair.b, address);
        let truths = ask(&lab.pair.a, address, 40, server.process);
        let servers = group(&server);
        capture.stop_well();
        drop(server);
        let contents = Contents::read(&file);
        assert_eq!(contents.undescribed, 0, "{mode}");
        let right = compare(&contents, &truths, &servers, mode);
        // A datagram and its answer, and at least six segments, each seen twice.
        assert!(right >= 36 * 8, "{mode}: {right}");
    }
}

/// The receiver is found at XDP too, before the packet has a socket.
#[test]
fn xdp_names_the_receiver() {
    let Some(lab) = Lab::open().filter(|_| shows_each_use()) else {
        return;
    };
    let address = lab.pair.b.ipv4.to_string();
    for tap in ["xdp", "tailcall"] {
        if tap == "tailcall" {
            trawl(&args!("xdp load {} pass --tappable", lab.receiver()));
        }
        let file = lab.file(&format!("{tap}.pcapng"));
        let capture = Capture::start(
            &lab,
            &args!(
                "-i {} --tap {tap} --process -w {file} port {PORT}",
                lab.receiver()
            ),
        );
        let server = Server::start("prefork", &lab.pair.b, &address);
        let truths = ask(&lab.pair.a, &address, 40, server.process);
        let servers = group(&server);
        capture.stop_well();
        drop(server);
        let right = compare(&Contents::read(&file), &truths, &servers, tap);
        assert!(right >= 36 * 2, "{tap}: {right}");
    }
}

/// A drop names the owner of the socket that the packet was for.
#[test]
fn drop_names_the_owner_of_the_full_socket() {
    let Some(lab) = Lab::open() else { return };
    if !kernel_is_at_least(6, 11) {
        skip("before Linux 6.11, the tracepoint of drops does not name the receiving socket");
        return;
    }
    let file = lab.file("drop.pcapng");
    let arguments = args!(
        "--tap drop --netns {} --process --reason SOCKET_RCVBUFF -c 5 -w {file}",
        lab.pair.b.name
    );
    let capture = Capture::start(&lab, &arguments);
    let address = (lab.pair.b.ipv4, PORT);
    let socket = run_in(&lab.pair.b.namespace, || UdpSocket::bind(address));
    let _socket = socket.expect("a namespace").expect("a port");
    let script = format!(
        "head -c 60000 /dev/zero > {0}; for i in $(seq 40); do cat {0} > /dev/udp/{1}/{PORT}; done",
        lab.file("zeros"),
        lab.pair.b.ipv4
    );
    run(
        "ip",
        &["netns", "exec", &lab.pair.a.name, "bash", "-c", &script],
    );
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    assert_eq!((contents.packets.len(), contents.undescribed), (5, 0));
    for packet in &contents.packets {
        assert_eq!(packet.process(), Some((std::process::id(), 0)));
    }
}

/// Each filter by process keeps the packets of one of two processes that do the same.
#[test]
fn filters_choose_packets_by_process() {
    let Some(lab) = Lab::open() else { return };
    // Two names of one program, one of them with a user of its own.
    let program = lab.file("chosen");
    binary::copy("/bin/bash", &program);
    let to = |port: u16| format!("/dev/udp/{}/{port}", lab.pair.b.ipv4);
    for (number, filter) in ["--comm chosen", "--uid 12345", "--pid", "--cgroup"]
        .iter()
        .enumerate()
    {
        let group = format!(
            "/sys/fs/cgroup/unified/trawl-{}-{number}",
            std::process::id()
        );
        let has_groups = std::fs::create_dir(&group).is_ok();
        if *filter == "--cgroup" && !has_groups {
            skip("no cgroups of version 2 at /sys/fs/cgroup/unified");
            continue;
        }
        // It waits until its line comes, and then sends.
        let send = format!("read; echo mine >{}", to(4001));
        let mut child = Command::new("ip")
            .args([
                "netns",
                "exec",
                &lab.pair.a.name,
                "setpriv",
                "--reuid=12345",
            ])
            .args([&program, "-c", &send])
            .stdin(Stdio::piped())
            .spawn()
            .expect("ip");
        wait_until("the program runs", || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id()));
            name.is_ok_and(|name| name.trim() == "chosen")
        });
        if has_groups {
            let _ = std::fs::write(format!("{group}/cgroup.procs"), child.id().to_string());
        }
        let file = lab.file(&format!("filter-{number}.pcapng"));
        let wanted = match *filter {
            "--pid" => format!("--pid {}", child.id()),
            "--cgroup" => format!("--cgroup {}", group.rsplit('/').next().unwrap_or_default()),
            whole => whole.to_owned(),
        };
        let capture = Capture::start(
            &lab,
            &args!("-i {} --tap tc -Q out -w {file} {wanted} udp", lab.sender()),
        );
        let other = format!("echo other >{}", to(4002));
        run(
            "ip",
            &["netns", "exec", &lab.pair.a.name, "bash", "-c", &other],
        );
        writeln!(child.stdin.take().expect("a pipe")).expect("it reads");
        assert!(child.wait().expect("it ends").success());
        let summary = capture.stop_well();
        let contents = Contents::read(&file);
        let payloads: Vec<&[u8]> = contents.frames().iter().map(|frame| &frame[42..]).collect();
        assert_eq!(payloads, [b"mine\n"], "{filter}");
        assert_eq!(
            contents.packets[0].process(),
            Some((child.id(), child.id())),
            "{filter}"
        );
        assert!(summary.filtered_out >= 1, "{filter}");
        if has_groups {
            std::fs::remove_dir(&group).expect("an empty cgroup");
        }
    }
}

/// Other readers see the packets, and the process as a comment if asked for.
#[test]
fn comments_name_the_process_for_every_reader() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("comments.pcapng");
    let capture = Capture::start(
        &lab,
        &args!(
            "-i {} --tap tc -Q out --process=comment -c 1 -w {file} udp",
            lab.sender()
        ),
    );
    let send = format!("echo x >/dev/udp/{}/4000", lab.pair.b.ipv4);
    run(
        "ip",
        &["netns", "exec", &lab.pair.a.name, "bash", "-c", &send],
    );
    capture.wait().summary_of_success();
    let rows = tshark(&file, &["frame.comment", "udp.dstport"]);
    assert!(rows[0][0].starts_with("process=bash["), "{rows:?}");
    assert_eq!((rows.len(), rows[0][1].as_str()), (1, "4000"));
    let refused = trawl(&args!(
        "capture -i {} --tap packet --process -c 1",
        lab.sender()
    ));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("cannot name processes with the packet tap"),
        "{said}"
    );
}

/// Without a container, the cgroup stands for it.
#[test]
fn statistics_count_by_process_and_container() {
    let Some(lab) = Lab::open() else { return };
    let name = format!("trawl-stat-{}", std::process::id());
    let group = format!("/sys/fs/cgroup/unified/{name}");
    if std::fs::create_dir(&group).is_err() {
        return skip("no cgroups of version 2 at /sys/fs/cgroup/unified");
    }
    let file = lab.file("stat.pcapng");
    let sender = lab.sender();
    let options = args!("-i {sender} --tap tc -Q out --process -c 1 -w {file} udp");
    let capture = Capture::start(&lab, &options);
    let arguments = "-c 1 --duration 30s --json --by process,container udp";
    let running = Running::start(&args!("stat -i {sender} {arguments}"), "capturing on");
    let send = format!("echo x >/dev/udp/{}/4000", lab.pair.b.ipv4);
    // The program begins in its cgroup, as that of a container does.
    let mut child = Command::new("bash")
        .args(["-c", "read; exec ip netns exec \"$0\" bash -c \"$1\""])
        .args([&lab.pair.a.name, &send])
        .stdin(Stdio::piped())
        .spawn()
        .expect("bash");
    std::fs::write(format!("{group}/cgroup.procs"), child.id().to_string()).expect("a cgroup");
    writeln!(child.stdin.take().expect("a pipe")).expect("it reads");
    assert!(child.wait().expect("it ends").success());
    let expected = serde_json::json!([format!("bash[{}]", child.id()), name]);
    assert_eq!(running.wait().json()["groups"][0]["values"], expected);
    capture.wait().summary_of_success();
    let read = trawl(&args!("stat {file} --json --by process,container"));
    let report: serde_json::Value = serde_json::from_slice(&read.stdout).expect("JSON");
    assert_eq!(report["groups"][0]["values"], expected);
    std::fs::remove_dir(&group).expect("an empty cgroup");
}
