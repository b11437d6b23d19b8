//! Faults of paths, hosts and applications: a function plants each, checks by other tools that it is real, and returns
//! the connections; a table has the causes that either end may name.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::process::Signal;
use trawl_lab::sender::Engine;
use trawl_packet::build::{Tcp, Template, flags};
use trawl_sys::netns::run_in;
use trawl_tests::lab::send_from;
use trawl_tests::stage::{PORT, Stage, counted};
use trawl_tests::traffic::{Names, converse, transfer};
use trawl_tests::wire::Path;
use trawl_tests::witness::{connection_values, inside, nstat, run};
use trawl_tests::{args, tools_or_skip, wait_until};

use super::applications::Application;
use super::starved;
use super::{End, Kept, SILENT, assert_right, may_name, names, watched};

pub struct Fault {
    pub name: &'static str,
    path: Option<Path>,
    plant: fn(&Stage, SocketAddr) -> Kept,
    pub ends: [End; 2],
}

impl Fault {
    /// Opens the lab of the fault; `None` if it has to be skipped.
    pub fn stage(&self) -> Option<Stage> {
        match self.path {
            Some(path) => Stage::over(path),
            None => Stage::open(),
        }
    }

    /// Returns the reports of both ends about the fault by a version of IP: 0 or 1.
    pub fn reports(&self, stage: &Stage, version: usize) -> [serde_json::Value; 2] {
        watched(stage, || (self.plant)(stage, stage.servers()[version]))
    }

    #[track_caller]
    fn is_named(&self, version: usize) {
        if !tools_or_skip(&["nft", "ss", "nstat", "tc"]) {
            return;
        }
        let Some(stage) = self.stage() else { return };
        assert_right(self.ends, &self.reports(&stage, version));
    }
}

const NOT: Duration = Duration::ZERO;
const PLAIN: Path = Path { delay: NOT, lose: None, late: None, longest: None, drops_copies: false, rate: None };

const fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn delay(count: u64) -> Path {
    Path { delay: milliseconds(count), ..PLAIN }
}

/// Makes a test of each fault, by IPv4 and IPv6 in turn, and the table of them. A drop in the other end's namespace is
/// one of this host too.
macro_rules! faults {
    ($($name:ident: $path:expr, $plant:path, $client:expr, $server:expr;)*) => {
        pub const FAULTS: &[Fault] =
            &[$(Fault { name: stringify!($name), path: $path, plant: $plant, ends: [$client, $server] }),*];

        mod test {
            $(
                #[test]
                fn $name() {
                    let number = super::FAULTS.iter().position(|fault| fault.name == stringify!($name));
                    let number = number.expect("a fault");
                    super::FAULTS[number].is_named(number % 2);
                }
            )*
        }
    };
}

const LOSS: &[&str] = &["loss of=client"];
const LOSS_HERE: &[&str] = &["loss_here of=client"];
const SLOW_ANSWER: &[&str] = &["slow_answer by=server"];
const SLOW_READER: &[&str] = &["slow_reader at=server"];
const RESET: &[&str] = &["reset by=server"];

faults! {
    loss_on_the_path: Some(Path { lose: Some(60), ..delay(5) }), loss_on_the_path, names(LOSS), may_name(LOSS);
    loss_at_the_receiving_host: Some(delay(5)), loss_at_the_receiving_host,
        names(&["loss of=client", "loss_here of=client"]), names(LOSS_HERE);
    loss_of_joined_segments: None, loss_of_joined_segments,
        names(&["loss of=client", "loss_here of=client"]), names(LOSS_HERE);
    drops_of_data_at_local_output: Some(delay(2)), drops_of_data_at_local_output, may_name(LOSS_HERE), SILENT;
    drops_of_questions_at_local_output: None, drops_of_questions_at_local_output, names(LOSS_HERE), SILENT;
    distance: Some(delay(50)), distance, names(&["distance"]), names(&["distance"]);
    reordering: Some(Path { late: Some(10), ..delay(5) }), reordering,
        names(&["reordering of=client"]), may_name(&["reordering of=client"]);
    queue_on_the_path: Some(Path { rate: Some((600_000, 8 << 20)), ..delay(2) }), queue_on_the_path,
        names(&["queue of=client"]), may_name(&["queue of=client"]);
    queue_of_the_local_interface: None, queue_of_the_local_interface, names(&["local_queue"]), SILENT;
    slow_reader: None, slow_reader, names(SLOW_READER), names(SLOW_READER);
    stopped_reader: None, stopped_reader, names(SLOW_READER), names(SLOW_READER);
    small_send_buffer: Some(delay(20)), small_send_buffer, names(&["send_buffer"]), may_name(&["distance"]);
    slow_answers: None, slow_answers, names(SLOW_ANSWER), names(SLOW_ANSWER);
    full_listen_queue: None, full_listen_queue,
        may_name(&["no_answer", "late_answer"]), names(&["listen_queue_full"]);
    full_queue_of_requests: None, full_queue_of_requests,
        may_name(&["no_answer", "late_answer"]), names(&["syn_queue_full"]);
    slow_names: None, slow_names, names(&["slow_names"]), may_name(&["slow_names"]);
    silent_names: None, silent_names, names(&["silent_names"]), may_name(&["silent_names"]);
    large_packets_vanish: Some(Path { longest: Some(1300), ..delay(2) }), large_packets_vanish,
        names(&["large_segments of=client"]), SILENT;
    closed_port: None, closed_port, names(&["refused"]), may_name(&["refused"]);
    reset_by_a_rule_of_the_server: None, reset_by_a_rule_of_the_server,
        names(&["reset by=server", "reset_here"]), names(&["reset_here"]);
    reset_by_a_rule_of_the_client: None, reset_by_a_rule_of_the_client, names(&["reset_here"]), SILENT;
    reset_by_the_servers_process: None, reset_by_the_servers_process, names(RESET), names(RESET);
    dropped_requests: None, dropped_requests, names(&["no_answer", "loss_here of=client"]), may_name(LOSS_HERE);
    late_answer: None, late_answer, names(&["late_answer", "loss_here of=client"]),
        may_name(&["late_answer", "loss_here of=client"]);
    quota_of_the_server: None, starved::by_quota, names(SLOW_ANSWER), names(&["cpu_starvation"]);
    busy_cpu_of_the_server: None, starved::by_others, names(SLOW_ANSWER), names(&["cpu_starvation"]);
}

/// Keeps the connections open by IPv4, and closes them by IPv6: both kinds are reported.
fn kept(ends: [TcpStream; 2], server: SocketAddr) -> Kept {
    if server.is_ipv4() { Box::new(ends) } else { Box::new(()) }
}

/// Returns the largest value of a connection of the client, by ss.
#[track_caller]
fn largest(stage: &Stage, value: &str) -> f64 {
    connection_values(&stage.client, value).into_iter().fold(0.0, f64::max)
}

#[track_caller]
fn is_counted(count: u64, event: &str) {
    assert!(count > 0, "not planted: {event}");
}

fn loss_on_the_path(stage: &Stage, server: SocketAddr) -> Kept {
    let ends = transfer(stage.connect(server), 4 << 20, NOT);
    is_counted(stage.wire().lost().min(nstat(&stage.client, "TcpRetransSegs")), "loss");
    kept(ends, server)
}

/// Drops one of this number of packets with data at the receiving host.
fn loss_of_one_of(count: u32, stage: &Stage, server: SocketAddr) -> Kept {
    let one_of_many = format!("tcp dport {PORT} meta length > 150 numgen inc mod {count} == 0");
    stage.rule(&stage.server, "prerouting", &one_of_many, "drop");
    let ends = transfer(stage.connect(server), 8 << 20, NOT);
    is_counted(counted(&stage.server).min(nstat(&stage.client, "TcpRetransSegs")), "loss");
    kept(ends, server)
}

fn loss_at_the_receiving_host(stage: &Stage, server: SocketAddr) -> Kept {
    loss_of_one_of(50, stage, server)
}

/// A packet has many segments, which the interfaces do not split.
fn loss_of_joined_segments(stage: &Stage, server: SocketAddr) -> Kept {
    loss_of_one_of(8, stage, server)
}

/// Packets at this hook have many segments, so that few of them make up the data.
/// The next acknowledgement makes the sender try again, so that most drops delay nothing.
fn drops_of_data_at_local_output(stage: &Stage, server: SocketAddr) -> Kept {
    let one_of_many = format!("tcp dport {PORT} meta length > 150 numgen inc mod 4 == 0");
    stage.rule(&stage.client, "output", &one_of_many, "drop");
    let ends = transfer(stage.connect(server), 1 << 20, NOT);
    is_counted(counted(&stage.client), "drop");
    kept(ends, server)
}

fn drops_of_questions_at_local_output(stage: &Stage, server: SocketAddr) -> Kept {
    let one_of_many = format!("tcp dport {PORT} meta length > 150 numgen inc mod 3 == 0");
    stage.rule(&stage.client, "output", &one_of_many, "drop");
    let ends = converse(stage.connect(server), 24, NOT, NOT);
    is_counted(counted(&stage.client), "drop");
    kept(ends, server)
}

fn distance(stage: &Stage, server: SocketAddr) -> Kept {
    let ends = converse(stage.connect(server), 12, NOT, NOT);
    assert!(largest(stage, "rtt") >= 100.0);
    kept(ends, server)
}

fn reordering(stage: &Stage, server: SocketAddr) -> Kept {
    let ends = transfer(stage.connect(server), 2 << 20, NOT);
    is_counted(stage.wire().late().min(nstat(&stage.client, "TcpExtTCPDSACKRecv")), "reordering");
    assert_eq!(stage.wire().lost(), 0);
    kept(ends, server)
}

/// Sets a congestion control that fills queues. Each namespace may have this one.
fn fill_queues(stage: &Stage) {
    inside(&stage.client, "sysctl -qw net.ipv4.tcp_congestion_control=reno");
}

fn queue_on_the_path(stage: &Stage, server: SocketAddr) -> Kept {
    fill_queues(stage);
    let ends = transfer(stage.connect(server), 2 << 20, NOT);
    assert!(largest(stage, "rtt") > 100.0);
    assert_eq!(stage.wire().lost(), 0);
    kept(ends, server)
}

fn queue_of_the_local_interface(stage: &Stage, server: SocketAddr) -> Kept {
    fill_queues(stage);
    let client = &stage.client;
    let bucket = "root tbf rate 10mbit burst 10kb limit 2mb";
    run("tc", &args!("-n {} qdisc replace dev {} {bucket}", client.name, client.interface));
    let listener = stage.listen(server);
    let pairs = [(); 6].map(|()| [stage.connect_to(server), listener.accept().expect("a client").0]);
    let transfers = pairs.map(|ends| thread::spawn(move || transfer(ends, 400 << 10, NOT)));
    let pairs = transfers.map(|transfer| transfer.join().expect("a transfer"));
    assert!(largest(stage, "rtt") > 20.0);
    if server.is_ipv4() { Box::new(pairs) } else { Box::new(()) }
}

fn slow_reader(stage: &Stage, server: SocketAddr) -> Kept {
    let ends = transfer(stage.connect(server), 4 << 20, milliseconds(10));
    is_counted(nstat(&stage.server, "TcpExtTCPToZeroWindowAdv"), "closed window");
    kept(ends, server)
}

/// A stopped process has the server's end.
fn stopped_reader(stage: &Stage, server: SocketAddr) -> Kept {
    let [mut client, end] = stage.connect(server);
    let mut reader = Command::new("cat");
    let reader = Application::start(reader.stdin(OwnedFd::from(end)).stdout(Stdio::null()));
    reader.signal(Signal::STOP);
    wait_until("the reader stops", || reader.state() == 'T');
    client.set_write_timeout(Some(milliseconds(2500))).expect("a time");
    client.write_all(&vec![3; 64 << 20]).expect_err("a stopped reader");
    is_counted(nstat(&stage.server, "TcpExtTCPToZeroWindowAdv"), "closed window");
    Box::new((client, reader))
}

fn small_send_buffer(stage: &Stage, server: SocketAddr) -> Kept {
    let ends = stage.connect(server);
    sockopt::set_socket_send_buffer_size(&ends[0], 16 << 10).expect("a size");
    let ends = transfer(ends, 1 << 20, NOT);
    let sizes = connection_values(&stage.client, "tb");
    assert_eq!(sizes, [f64::from(32 << 10)]);
    kept(ends, server)
}

fn slow_answers(stage: &Stage, server: SocketAddr) -> Kept {
    let begun = Instant::now();
    let ends = converse(stage.connect(server), 6, milliseconds(300), milliseconds(20));
    assert!(begun.elapsed() >= milliseconds(1800));
    kept(ends, server)
}

/// Connects clients at once; each waits this long. Returns the connections.
fn connect_at_once(stage: &Stage, server: SocketAddr, clients: usize, time: Duration) -> Vec<TcpStream> {
    let connect =
        || run_in(&stage.client.namespace, || TcpStream::connect_timeout(&server, time)).expect("a namespace");
    thread::scope(|scope| {
        let attempts: Vec<_> = (0..clients).map(|_| scope.spawn(connect)).collect();
        attempts.into_iter().filter_map(|attempt| attempt.join().expect("an attempt").ok()).collect()
    })
}

fn full_listen_queue(stage: &Stage, server: SocketAddr) -> Kept {
    let listener = stage.listen(server);
    rustix::net::listen(&listener, 1).expect("a shorter queue");
    let clients = connect_at_once(stage, server, 8, milliseconds(2500));
    is_counted(nstat(&stage.server, "TcpExtListenOverflows"), "overflow");
    Box::new((clients, listener))
}

/// Half-open requests come from an address whose host answers nothing.
fn full_queue_of_requests(stage: &Stage, server: SocketAddr) -> Kept {
    const LENGTH: i32 = 16;
    let (a, b) = (&stage.client, &stage.server);
    inside(b, "sysctl -qw net.ipv4.tcp_syncookies=0");
    let listener = stage.listen(server);
    rustix::net::listen(&listener, LENGTH).expect("a shorter queue");
    let silent = if server.is_ipv4() { "10.77.0.99" } else { "fd00:77::99" };
    let [m, n, o, p, q, r] = a.mac;
    let link = format!("{m:x}:{n:x}:{o:x}:{p:x}:{q:x}:{r:x}");
    inside(b, &format!("ip neigh replace {silent} lladdr {link} dev {} nud permanent", b.interface));
    let request = |port: u16| {
        let ethernet = Template::new().ethernet(a.mac, b.mac);
        let addressed = match server {
            SocketAddr::V4(server) => ethernet.ipv4(silent.parse::<std::net::Ipv4Addr>().expect("one"), *server.ip()),
            SocketAddr::V6(server) => ethernet.ipv6(silent.parse::<std::net::Ipv6Addr>().expect("one"), *server.ip()),
        };
        let tcp = Tcp { src: port, dst: PORT, seq: 1, flags: flags::SYN, window: 1000, ..Tcp::default() };
        addressed.tcp(tcp).build()
    };
    let requests: Vec<_> = (2000..2000 + 4 * LENGTH as u16).map(request).collect();
    send_from(a, &requests, requests.len() as u64, Engine::Packet, None, None);
    let clients = connect_at_once(stage, server, 4, milliseconds(2500));
    is_counted(nstat(b, "TcpExtTCPReqQFullDrop"), "drop of a request");
    assert_eq!(nstat(b, "TcpExtListenOverflows"), 0);
    Box::new((clients, listener))
}

fn slow_names(stage: &Stage, server: SocketAddr) -> Kept {
    let mut names = Names::at(stage, server.ip());
    for _ in 0..4 {
        names.resolve(milliseconds(800));
    }
    Box::new(names)
}

fn silent_names(stage: &Stage, server: SocketAddr) -> Kept {
    let mut names = Names::at(stage, server.ip());
    for _ in 0..3 {
        names.ask();
    }
    names.wait_in_vain(milliseconds(3000));
    Box::new(names)
}

fn large_packets_vanish(stage: &Stage, server: SocketAddr) -> Kept {
    let [mut client, mut server_end] = stage.connect(server);
    client.write_all(&[2; 100]).expect("a question");
    server_end.read_exact(&mut [0; 100]).expect("a question");
    client.write_all(&[2; 5000]).expect("it waits in the buffer");
    wait_until("the timer repeats segments", || nstat(&stage.client, "TcpExtTCPTimeouts") >= 3);
    is_counted(stage.wire().lost(), "large packet");
    Box::new([client, server_end])
}

fn closed_port(stage: &Stage, server: SocketAddr) -> Kept {
    for _ in 0..3 {
        let refused = run_in(&stage.client.namespace, || TcpStream::connect(server)).expect("a namespace");
        assert_eq!(refused.expect_err("no server").kind(), std::io::ErrorKind::ConnectionRefused);
    }
    Box::new(())
}

/// Asks a question that a rule at a hook of an end answers with a reset.
fn reset_by_a_rule(stage: &Stage, server: SocketAddr, end: &trawl_lab::Station, hook: &str) -> Kept {
    let [mut client, server_end] = stage.connect(server);
    let question = format!("tcp dport {PORT} meta length > 100");
    stage.rule(end, hook, &question, "reject with tcp reset");
    client.write_all(&[2; 100]).expect("a question");
    let error = client.read(&mut [0; 10]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    is_counted(counted(end), "rejected question");
    Box::new([client, server_end])
}

fn reset_by_a_rule_of_the_server(stage: &Stage, server: SocketAddr) -> Kept {
    reset_by_a_rule(stage, server, &stage.server, "input")
}

fn reset_by_a_rule_of_the_client(stage: &Stage, server: SocketAddr) -> Kept {
    reset_by_a_rule(stage, server, &stage.client, "output")
}

fn reset_by_the_servers_process(stage: &Stage, server: SocketAddr) -> Kept {
    let [mut client, mut server_end] = stage.connect(server);
    client.write_all(&[2; 100]).expect("a question");
    server_end.read_exact(&mut [0; 100]).expect("a question");
    sockopt::set_socket_linger(&server_end, Some(NOT)).expect("a reset at the end");
    drop(server_end);
    let error = client.read(&mut [0; 10]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    is_counted(nstat(&stage.server, "TcpOutRsts"), "reset");
    Box::new(client)
}

fn dropped_requests(stage: &Stage, server: SocketAddr) -> Kept {
    let listener = stage.listen(server);
    stage.rule(&stage.server, "input", &format!("tcp dport {PORT}"), "drop");
    let clients = connect_at_once(stage, server, 3, milliseconds(2500));
    assert!(clients.is_empty());
    is_counted(counted(&stage.server), "dropped request");
    Box::new(listener)
}

/// The second request of each connection is answered.
fn late_answer(stage: &Stage, server: SocketAddr) -> Kept {
    let every_other = format!("tcp dport {PORT} tcp flags & (syn | ack) == syn numgen inc mod 2 == 0");
    stage.rule(&stage.server, "input", &every_other, "drop");
    let connections: Vec<_> = (0..3).map(|_| stage.connect(server)).collect();
    assert_eq!(counted(&stage.server), 3);
    Box::new(connections)
}
