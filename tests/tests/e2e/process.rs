//! The process of each packet, compared with the truth in the packet's payload.

mod cases;
mod container;
mod files;
mod killed;
mod many;
mod refused;
mod senders;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use trawl_bpf::probe::kernel_is_at_least;
use trawl_lab::Station;
use trawl_packet::pcapng::block::PROCESS_PATH;
use trawl_sys::netns::run_in;
use trawl_tests::lab::Mounted;
use trawl_tests::pcapng::{Contents, Packet};
use trawl_tests::wait::wait_until;
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, Running, amount, args, binary, fleet_or_skip, skip, trawl};

const PORT: u16 = 7777;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/process.py");
const TCP: u8 = 6;
const UDP: u8 = 17;

fn python(station: &Station) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &station.name, "python3", SCRIPT]);
    command
}

/// A running server.
struct Server(Child);

impl Server {
    fn start(mode: &str, station: &Station, address: &str, port: u16) -> Self {
        let mut command = python(station);
        command.args(["serve", mode, address, &port.to_string()]);
        Self::run(command)
    }

    fn run(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "the server ended");
        Self(child)
    }

    /// Returns the processes that are left of the server.
    fn processes(&self) -> Vec<u32> {
        let found = run("pgrep", &["-g", &self.0.id().to_string()]);
        found.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The signal also kills the server's workers.
        run("kill", &["-KILL", "--", &format!("-{}", self.0.id())]);
        self.0.wait().expect("it ends");
    }
}

/// The processes at the ends of one client's datagram and connection.
#[derive(Clone, Copy, Debug)]
struct Truth {
    /// The client's port of the connection.
    port: u16,
    client: u32,
    /// The process that answered the datagram.
    receiver: u32,
    worker: u32,
}

impl Truth {
    fn parse(line: &str) -> Self {
        let numbers: Vec<u32> = line.split(' ').map_while(|n| n.parse().ok()).collect();
        let [_, port, client, receiver, worker] = numbers[..] else {
            panic!("{line}");
        };
        Self { port: port as u16, client, receiver, worker }
    }
}

/// Runs clients, and returns the truth in the order in which they ended.
fn ask(mode: &str, station: &Station, address: &str, port: u16, count: usize) -> Vec<Truth> {
    let output =
        python(station).args(["ask", mode, address, &port.to_string(), &count.to_string()]).output().expect("python3");
    let text = String::from_utf8(output.stdout).expect("text");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.lines().count(), count, "{mode}: {text} {said}");
    text.lines().map(Truth::parse).collect()
}

/// Fields of a packet's headers.
#[derive(Debug)]
struct Headers {
    protocol: u8,
    source: u16,
    destination: u16,
    /// Zero in datagrams.
    flags: u8,
    sequence: u32,
    payload: Vec<u8>,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn headers(packet: &Packet) -> Option<Headers> {
    let bytes = &packet.bytes;
    let pair = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (protocol, at, end) = match pair(12) {
        0x0800 => (bytes[23], 34, 14 + usize::from(pair(16))),
        0x86dd => (bytes[20], 54, 54 + usize::from(pair(18))),
        _ => return None,
    };
    let (flags, sequence, length) = match protocol {
        TCP => (
            bytes[at + 13],
            u32::from(pair(at + 4)) << 16 | u32::from(pair(at + 6)),
            usize::from(bytes[at + 12] >> 4) * 4,
        ),
        UDP => (0, 0, 8),
        _ => return None,
    };
    Some(Headers {
        protocol,
        source: pair(at),
        destination: pair(at + 2),
        flags,
        sequence,
        payload: bytes[at + length..end].to_vec(),
    })
}

/// The processes of packets, compared with the truth.
#[derive(Debug, Default)]
struct Tally {
    right: usize,
    /// Packets with the process of the listening socket, for a connection that its worker has not used yet, or that one
    /// end has closed.
    listener: usize,
    /// Descriptions of packets without a process.
    unknown: Vec<String>,
    wrong: Vec<String>,
}

impl Tally {
    /// Returns the packets that have a wrong process, and those without one. A segment that begins a connection may
    /// have none: its ports may be those of a connection that waits for late packets.
    fn faults(&self) -> Vec<&String> {
        let begins = format!("flags: {SYN},");
        let unknown = self.unknown.iter().filter(|one| !one.contains(&begins));
        self.wrong.iter().chain(unknown).collect()
    }
}

/// A connection in the order of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    number: usize,
    sequence: u32,
    is_answered: bool,
    has_ended: bool,
}

/// Compares the packets of a server with the truth. Until a worker has used its connection, the connection is the
/// listening socket's, which is one of `listeners`.
fn compare(contents: &Contents, port: u16, truths: &[Truth], listeners: &[u32]) -> Tally {
    let by_client: HashMap<u32, &Truth> = truths.iter().map(|one| (one.client, one)).collect();
    let mut by_port: HashMap<u16, Vec<&Truth>> = HashMap::new();
    for truth in truths {
        by_port.entry(truth.port).or_default().push(truth);
    }
    // Before Linux 6.13, the kernel answers for a closed connection by a socket of its own.
    let answers_have_sockets = kernel_is_at_least(6, 13);
    let mut connections: HashMap<u16, Connection> = HashMap::new();
    let mut tally = Tally::default();
    for packet in &contents.packets {
        let Some(headers) = headers(packet) else {
            continue;
        };
        let is_answer = headers.source == port;
        if !is_answer && headers.destination != port {
            continue;
        }
        let is_sent = packet.flags() == Some(2);
        let at_server = is_sent == is_answer;
        let (truth, is_early, has_ended) = if headers.protocol == UDP {
            let text = String::from_utf8_lossy(&headers.payload).into_owned();
            let client = text.split_whitespace().last().and_then(|n| n.parse().ok());
            (by_client[&client.expect("a number")], false, false)
        } else {
            let client = if is_answer { headers.destination } else { headers.source };
            let is_new = !connections.contains_key(&client);
            let connection = connections.entry(client).or_default();
            if headers.flags & (SYN | ACK) == SYN && connection.sequence != headers.sequence {
                *connection = Connection {
                    number: connection.number + usize::from(!is_new),
                    sequence: headers.sequence,
                    ..Connection::default()
                };
            }
            let is_early = !connection.is_answered || connection.has_ended;
            connection.has_ended |= headers.flags & (FIN | RST) != 0;
            connection.is_answered |= at_server && is_sent && !headers.payload.is_empty();
            let truth = by_port[&client][connection.number];
            // The process that sends bytes is known.
            let has_ended = connection.has_ended;
            let is_early = is_early && !connection.is_answered || has_ended;
            (truth, is_early, has_ended)
        };
        let expected = match (at_server, headers.protocol) {
            (false, _) => truth.client,
            (true, UDP) => truth.receiver,
            (true, _) => truth.worker,
        };
        let describe = |process: Option<u32>| {
            let headers = Headers { payload: Vec::new(), ..headers };
            format!("{process:?} for {truth:?}, sent: {is_sent}, at the server: {at_server}, {headers:?}")
        };
        match packet.process() {
            None if has_ended && is_sent && !answers_have_sockets => {}
            None => tally.unknown.push(describe(None)),
            Some((process, thread)) => {
                assert!(is_sent || thread == 0, "{thread}");
                if process == expected {
                    tally.right += 1;
                } else if at_server && is_early && listeners.contains(&process) {
                    tally.listener += 1;
                } else {
                    tally.wrong.push(describe(Some(process)));
                }
            }
        }
    }
    tally
}

/// Returns true if the kernel shows each process that sends or receives by a socket. On others, a tap at the egress of
/// tc shows those that send.
fn shows_each_use() -> bool {
    kernel_is_at_least(6, 3)
}

/// Packets at tc on both ends have the right process, however a worker gets its connection.
#[test]
fn clients_and_workers_are_told_apart() {
    let Some(lab) = Lab::open() else { return };
    let count = amount(40) as usize;
    let (v4, v6) = (lab.pair.b.ipv4.to_string(), lab.pair.b.ipv6.to_string());
    for (mode, address) in [("alone", &v4), ("fork", &v6), ("prefork", &v4), ("pass", &v4), ("group", &v6)] {
        let file = lab.file(&format!("{mode}.pcapng"));
        let capture = Capture::start(
            &lab,
            &args!("-i {} -i {} --tap tc --process -w {file} port {PORT}", lab.sender(), lab.receiver()),
        );
        let server = Server::start(mode, &lab.pair.b, address, PORT);
        let truths = ask("each", &lab.pair.a, address, PORT, count);
        let servers = server.processes();
        capture.stop_well();
        drop(server);
        let contents = Contents::read(&file);
        assert!(contents.undescribed == 0 || !shows_each_use(), "{mode}");
        let tally = compare(&contents, PORT, &truths, &servers);
        assert!(tally.faults().is_empty(), "{mode}: {tally:#?}");
        // Each client has a datagram and its answer, and at least six segments, each of which is seen twice.
        assert!(tally.right >= count * 8, "{mode}: {tally:?}");
    }
}

/// The receiver is also found at XDP, before the packet has a socket.
#[test]
fn xdp_names_the_receiver() {
    let Some(lab) = Lab::open() else { return };
    let count = amount(40) as usize;
    let address = lab.pair.b.ipv4.to_string();
    for tap in ["xdp", "tailcall"] {
        if tap == "tailcall" {
            trawl(&args!("xdp load {} pass --tappable", lab.receiver()));
        }
        let file = lab.file(&format!("{tap}.pcapng"));
        let capture = Capture::start(&lab, &args!("-i {} --tap {tap} --process -w {file} port {PORT}", lab.receiver()));
        let server = Server::start("prefork", &lab.pair.b, &address, PORT);
        let truths = ask("each", &lab.pair.a, &address, PORT, count);
        let servers = server.processes();
        capture.stop_well();
        drop(server);
        let tally = compare(&Contents::read(&file), PORT, &truths, &servers);
        assert!(tally.faults().is_empty(), "{tap}: {tally:#?}");
        assert!(tally.right >= count * (1 + usize::from(shows_each_use())), "{tap}: {tally:?}");
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
    let arguments = args!("--tap drop --netns {} --process --reason SOCKET_RCVBUFF -c 5 -w {file}", lab.pair.b.name);
    let capture = Capture::start(&lab, &arguments);
    let address = (lab.pair.b.ipv4, PORT);
    let socket = run_in(&lab.pair.b.namespace, || UdpSocket::bind(address));
    let _socket = socket.expect("a namespace").expect("a port");
    let script = format!(
        "head -c 60000 /dev/zero > {0}; for i in $(seq 40); do cat {0} > /dev/udp/{1}/{PORT}; done",
        lab.file("zeros"),
        lab.pair.b.ipv4
    );
    run("ip", &["netns", "exec", &lab.pair.a.name, "bash", "-c", &script]);
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
    // The program has two names, and runs as a different user under one of them.
    let program = lab.file("chosen");
    binary::copy("/bin/bash", &program);
    let cgroups = Mounted::at(&lab, "cgroup2", "rw");
    let to = |port: u16| format!("/dev/udp/{}/{port}", lab.pair.b.ipv4);
    for (number, filter) in ["--comm chosen", "--uid 12345", "--pid", "--cgroup"].iter().enumerate() {
        let group = format!("{}/trawl-{}-{number}", cgroups.path, std::process::id());
        std::fs::create_dir(&group).expect("a cgroup");
        // The process waits for a line, and then sends.
        let send = format!("read; echo mine >{}", to(4001));
        let mut child = Command::new("ip")
            .args(["netns", "exec", &lab.pair.a.name, "setpriv", "--reuid=12345"])
            .args([&program, "-c", &send])
            .stdin(Stdio::piped())
            .spawn()
            .expect("ip");
        wait_until("the program runs", || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id()));
            name.is_ok_and(|name| name.trim() == "chosen")
        });
        std::fs::write(format!("{group}/cgroup.procs"), child.id().to_string()).expect("a cgroup");
        let file = lab.file(&format!("filter-{number}.pcapng"));
        let wanted = match *filter {
            "--pid" => format!("--pid {}", child.id()),
            "--cgroup" => format!("--cgroup {}", group.rsplit('/').next().unwrap_or_default()),
            whole => whole.to_owned(),
        };
        let capture = Capture::start(&lab, &args!("-i {} --tap tc -Q out -w {file} {wanted} udp", lab.sender()));
        let other = format!("echo other >{}", to(4002));
        run("ip", &["netns", "exec", &lab.pair.a.name, "bash", "-c", &other]);
        writeln!(child.stdin.take().expect("a pipe")).expect("it reads");
        assert!(child.wait().expect("it ends").success());
        let summary = capture.stop_well();
        let contents = Contents::read(&file);
        let payloads: Vec<&[u8]> = contents.frames().iter().map(|frame| &frame[42..]).collect();
        assert_eq!(payloads, [b"mine\n"], "{filter}");
        assert_eq!(contents.packets[0].process(), Some((child.id(), child.id())), "{filter}");
        assert!(summary.filtered_out >= 1, "{filter}");
        std::fs::remove_dir(&group).expect("an empty cgroup");
    }
}

/// Returns the packets of each connection of a client, as sender's port, flags and payload's length, in any order.
fn segments_by_client(contents: &Contents) -> HashMap<u16, Vec<(u16, u8, usize)>> {
    let mut found: HashMap<u16, Vec<_>> = HashMap::new();
    for headers in contents.packets.iter().filter_map(headers) {
        let client = if headers.source == PORT { headers.destination } else { headers.source };
        found.entry(client).or_default().push((headers.source, headers.flags, headers.payload.len()));
    }
    found.values_mut().for_each(|segments| segments.sort_unstable());
    found
}

/// Packets to the listening socket of a running server have the server's process, and packets of a connection that a
/// worker accepts later have the worker's, from the first segment on.
#[test]
fn filter_by_process_keeps_connections_of_a_running_server_whole() {
    let Some(lab) = Lab::open() else { return };
    let address = lab.pair.b.ipv4.to_string();
    let server = Server::start("prefork", &lab.pair.b, &address, PORT);
    let worker = server.processes().into_iter().max().expect("a worker");
    let file = |name: &str| lab.file(&format!("{name}.pcapng"));
    let start = |name: &str, filter: &str| {
        let arguments = args!("-i {} --tap tc -w {} {filter} tcp", lab.receiver(), file(name));
        Capture::start(&lab, &arguments)
    };
    let captures = [
        start("all", ""),
        start("server", &format!("--pid {}", server.0.id())),
        start("worker", &format!("--pid {worker}")),
    ];
    let truths = ask("each", &lab.pair.a, &address, PORT, 40);
    for capture in captures {
        capture.stop_well();
    }
    let all = segments_by_client(&Contents::read(file("all")));
    assert_eq!(segments_by_client(&Contents::read(file("server"))), all);
    let of_worker = segments_by_client(&Contents::read(file("worker")));
    let own: Vec<u16> = truths.iter().filter(|one| one.worker == worker).map(|one| one.port).collect();
    assert!(!own.is_empty());
    for port in own {
        assert_eq!(of_worker.get(&port), all.get(&port), "{port}");
    }
}

/// A manager makes the listening socket, and starts the service at the first connection. The packets of that connection
/// from before the service ran are left out, which is reported.
#[test]
fn filter_by_process_keeps_connections_of_an_activated_service() {
    let Some(lab) = Lab::open() else { return };
    let address = lab.pair.b.ipv4.to_string();
    let program = lab.file("activated");
    symlink("/usr/bin/python3", &program).expect("a link");
    for mode in ["activated", "activated-each"] {
        let file = |name: &str| lab.file(&format!("{mode}-{name}.pcapng"));
        let start = |name: &str, filter: &str| {
            let options = args!("-i {} --tap tc -w {} {filter} tcp", lab.receiver(), file(name));
            Capture::start(&lab, &options)
        };
        let (all, own) = (start("all", "--process"), start("own", "--comm activated"));
        let mut manager = python(&lab.pair.b);
        manager.args(["serve", mode, &address, &PORT.to_string(), &program]);
        let manager = Server::run(manager);
        let truths = ask("one", &lab.pair.a, &address, PORT, 5);
        let managers = manager.processes();
        all.stop_well();
        let said = own.stop().stderr;
        assert!(said.contains("1 connection lacks its first packets"), "{mode}: {said}");
        let all = Contents::read(file("all"));
        let tally = compare(&all, PORT, &truths, &managers);
        assert!(tally.faults().is_empty(), "{mode}: {tally:#?}");
        let (mut all, mut own) = (segments_by_client(&all), segments_by_client(&Contents::read(file("own"))));
        let first = truths[0].port;
        let (all_of_first, own_of_first) =
            (all.remove(&first).unwrap_or_default(), own.remove(&first).unwrap_or_default());
        let (whole, kept) = (all_of_first.len(), own_of_first.len());
        assert!(kept > 1 && kept < whole, "{mode}: {own_of_first:?} of {all_of_first:?}");
        assert_eq!(own, all, "{mode}");
    }
}

/// A new child belongs to the server at its first packet, before any BPF program has seen it.
#[test]
fn filter_by_process_keeps_what_new_children_send_first() {
    let Some(lab) = Lab::open() else { return };
    let address = lab.pair.b.ipv4.to_string();
    let server = Server::start("first", &lab.pair.b, &address, PORT);
    let file = |name: &str| lab.file(&format!("{name}.pcapng"));
    let start = |name: &str, filter: &str| {
        let options = args!("-i {} --tap tc -w {} {filter} tcp", lab.receiver(), file(name));
        Capture::start(&lab, &options)
    };
    let captures = [start("all", ""), start("server", &format!("--pid {}", server.0.id()))];
    ask("each", &lab.pair.a, &address, PORT, 20);
    for capture in captures {
        capture.stop_well();
    }
    let all = segments_by_client(&Contents::read(file("all")));
    assert_eq!(all.len(), 20);
    assert_eq!(segments_by_client(&Contents::read(file("server"))), all);
}

/// A connection that the server closes first remains the server's, although the kernel acknowledges the client's end.
#[test]
fn filter_by_process_keeps_the_last_acknowledgement_of_a_closed_connection() {
    let Some(lab) = Lab::open() else { return };
    for address in [IpAddr::from(lab.pair.b.ipv4), lab.pair.b.ipv6.into()].map(|one| one.to_string()) {
        let server = Server::start("close", &lab.pair.b, &address, PORT);
        let file = |name: &str| lab.file(&format!("{name}.pcapng"));
        let start = |name: &str, filter: &str| {
            let options = args!("-i {} --tap tc -w {} {filter} tcp", lab.receiver(), file(name));
            Capture::start(&lab, &options)
        };
        let captures = [start("all", ""), start("server", &format!("--pid {}", server.0.id()))];
        ask("time-wait", &lab.pair.a, &address, PORT, 3);
        for capture in captures {
            capture.stop_well();
        }
        let all = segments_by_client(&Contents::read(file("all")));
        let ends = |contents: &[(u16, u8, usize)]| contents.iter().filter(|(_, flags, _)| flags & FIN != 0).count();
        assert!(all.values().map(|one| ends(one)).sum::<usize>() >= 6, "{all:?}");
        assert_eq!(segments_by_client(&Contents::read(file("server"))), all, "{address}");
    }
}

/// The last segment of a connection has the process that closes it, even if that never used the connection.
#[test]
fn end_of_a_connection_is_the_closing_process_s() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    let file = lab.file("closed.pcapng");
    let script = lab.file("script");
    let lines = format!(
        "import os, socket, sys\ns = socket.create_server(('{}', {PORT}))\nprint('ready', flush=True)\n\
         c = s.accept()[0]; c.recv(9); c.send(b'x'); own = os.getpid()\n\
         if os.fork() == 0:\n while os.getppid() == own: pass\n print(os.getpid(), flush=True); c.close(); sys.stdin.read()\n",
        b.ipv4
    );
    std::fs::write(&script, lines).expect("a file");
    let capture =
        Capture::start(&lab, &args!("-i {} --tap tc -Q out --process -w {file} tcp port {PORT}", lab.receiver()));
    let mut server = Command::new("ip");
    server.args(["netns", "exec", &b.name, "python3", &script]);
    let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ip");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert_eq!(line(), "ready");
    let ask = format!(
        "import socket; c = socket.create_connection(('{}', {PORT})); c.send(b'x'); c.recv(9); c.recv(9)",
        b.ipv4
    );
    run("ip", &["netns", "exec", &lab.pair.a.name, "python3", "-c", &ask]);
    let closer: u32 = line().parse().expect("a number");
    drop(server.stdin.take());
    server.wait().expect("it ends");
    capture.stop_well();
    let contents = Contents::read(&file);
    let is_end = |packet: &&Packet| headers(packet).is_some_and(|one| one.flags & FIN != 0);
    let ends: Vec<_> = contents.packets.iter().filter(is_end).map(Packet::process).collect();
    assert_eq!(ends, [Some((closer, closer))]);
}

/// Programs that were started by a relative path, also in a root of their own, and programs that already run have their
/// full path, once.
#[test]
fn paths_of_programs_are_whole() {
    let Some(lab) = Lab::open() else { return };
    let address = lab.pair.b.ipv4.to_string();
    let server = Server::start("alone", &lab.pair.b, &address, PORT);
    let program = lab.file("relative");
    binary::copy("/bin/bash", &program);
    let (directory, name) = program.rsplit_once('/').expect("a path");
    let file = lab.file("paths.pcapng");
    let capture = Capture::start(
        &lab,
        &args!("-i {} -i {} --tap tc --process -w {file} port {PORT}", lab.sender(), lab.receiver()),
    );
    ask("each", &lab.pair.a, &address, PORT, 4);
    let root = lab.file("root");
    std::fs::create_dir(&root).expect("a directory");
    let run = format!("cd {directory} && exec ./{name} -c 'echo x >/dev/udp/{address}/{PORT}; read'");
    // The new root has the whole tree, so that the program finds its libraries there.
    let within = format!("mount --rbind / {root} && exec chroot {root} bash -c \"{run}\"");
    let mut children = [args!("bash -c"), args!("unshare --mount bash -c")]
        .iter()
        .zip([&run, &within])
        .map(|(shell, line)| {
            let mut child = Command::new("ip");
            child.args(["netns", "exec", &lab.pair.a.name]).args(shell).arg(line);
            child.stdin(Stdio::piped()).spawn().expect("ip")
        })
        .collect::<Vec<_>>();
    capture.wait_seen(8 * 4 + 2);
    for child in &mut children {
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }
    capture.stop_well();
    let described = Contents::read(&file).processes;
    let of = |id: u32| -> Vec<String> {
        let own = described.iter().filter(|(one, _)| *one == id);
        own.map(|(_, options)| options.text(PROCESS_PATH).unwrap_or_default()).collect()
    };
    let own = of(server.0.id());
    assert!(own.len() == 1 && own[0].contains("python"), "{own:?}");
    for child in &children {
        let relative = of(child.id());
        assert_eq!(relative.last(), Some(&program), "{relative:?}");
    }
}

/// Other readers see the packets, and, on request, the process as a comment.
#[test]
fn comments_name_the_process_for_every_reader() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("comments.pcapng");
    let capture =
        Capture::start(&lab, &args!("-i {} --tap tc -Q out --process=comment -c 1 -w {file} udp", lab.sender()));
    let send = format!("echo x >/dev/udp/{}/4000", lab.pair.b.ipv4);
    run("ip", &["netns", "exec", &lab.pair.a.name, "bash", "-c", &send]);
    capture.wait().summary_of_success();
    let rows = tshark(&file, &["frame.comment", "udp.dstport"]);
    assert!(rows[0][0].starts_with("process=bash["), "{rows:?}");
    assert_eq!((rows.len(), rows[0][1].as_str()), (1, "4000"));
    let refused = trawl(&args!("capture -i {} --tap packet --process -c 1", lab.sender()));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("cannot name processes with the packet tap"), "{said}");
}

/// Statistics name the cgroup of a process without a container in place of the container.
#[test]
fn statistics_count_by_process_and_container() {
    let Some(lab) = Lab::open() else { return };
    let name = format!("trawl-stat-{}", std::process::id());
    let cgroups = Mounted::at(&lab, "cgroup2", "rw");
    let group = format!("{}/{name}", cgroups.path);
    std::fs::create_dir(&group).expect("a cgroup");
    let file = lab.file("stat.pcapng");
    let sender = lab.sender();
    let options = args!("-i {sender} --tap tc -Q out --process -c 1 -w {file} udp");
    let capture = Capture::start(&lab, &options);
    let arguments = "-c 1 --duration 30s --json --by process,container udp";
    let running = Running::start(&args!("stat -i {sender} {arguments}"), "capturing on");
    let send = format!("echo x >/dev/udp/{}/4000", lab.pair.b.ipv4);
    // The program starts in its cgroup, like the program of a container.
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

/// Sends datagrams from a new process. Returns the process's number.
fn datagrams(lab: &Lab, port: u16, count: usize) -> u32 {
    let to = format!("/dev/udp/{}/{port}", lab.pair.b.ipv4);
    let send = format!("echo $$; for i in $(seq {count}); do echo x >{to}; done");
    let said = run("ip", &["netns", "exec", &lab.pair.a.name, "bash", "-c", &send]);
    said.trim().parse().expect("a number")
}

/// Two hosts may have processes with the same numbers. Here two captures of the same processes stand for two hosts.
#[test]
fn stored_packets_keep_their_processes() {
    const COUNT: usize = 50;
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let url = format!("file://{}", lab.file("store"));
    let sender = lab.sender();
    let captures = ["alpha", "beta"].map(|host| {
        let spool = lab.file(&format!("spool-{host}"));
        let options =
            args!("-i {sender} --tap tc -Q out --process --store {url} --spool {spool} --chunk-size 4KiB udp");
        Capture::start_on_host(host, &lab, &options)
    });
    let ids = [4001, 4002].map(|port| datagrams(&lab, port, COUNT));
    for capture in captures {
        capture.wait_recorded(2 * COUNT as u64);
        capture.stop_well();
    }
    // Each chunk describes its processes.
    let chunks = run("find", &[&lab.file("store"), "-name", "*.zst"]);
    for chunk in chunks.lines() {
        let shown = trawl(&["read", chunk]).stdout;
        let shown = String::from_utf8(shown).expect("text");
        assert!(shown.lines().all(|line| line.contains(" bash[")), "{shown}");
    }
    assert!(chunks.lines().count() >= 4, "{chunks}");
    assert!(trawl(&["store", "index", &url]).status.success());
    let query = |arguments: &[&str]| {
        let base = args!("store query --store {url} --spool /nonexistent");
        let answer = trawl(&[&base[..], arguments].concat());
        assert!(answer.status.success(), "{answer:?}");
        answer
    };
    let sql = "SELECT pid, comm, count(*) AS packets FROM packets GROUP BY ALL ORDER BY min(time)";
    let table = query(&[sql, "--json"]).stdout;
    let table: serde_json::Value = serde_json::from_slice(&table).expect("JSON");
    let row = |pid| serde_json::json!({ "pid": pid, "comm": "bash", "packets": 2 * COUNT });
    assert_eq!(table["rows"], serde_json::json!(ids.map(row)));
    let found = lab.file("found.pcapng");
    let chosen = format!("SELECT * FROM packets WHERE pid = {}", ids[1]);
    query(&[&chosen, "--packets", &found]);
    let read = String::from_utf8(trawl(&["read", &found]).stdout).expect("text");
    let named = format!(" bash[{}]", ids[1]);
    assert_eq!(read.matches(&named).count(), 2 * COUNT, "{read}");
    let contents = Contents::read(&found);
    assert_eq!(contents.processes.len(), 1);
    for packet in &contents.packets {
        let in_comment = packet.options.text(1).is_some();
        let by_number = (!in_comment).then_some((ids[1], ids[1]));
        assert_eq!(packet.process(), by_number, "{:?}", packet.options);
    }
}
