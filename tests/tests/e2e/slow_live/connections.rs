//! Connections of other kinds, and of other namespaces: a slow server is named or unknown, and nothing else is.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketType, bind, connect, ipproto, listen, sendto, socket};
use serde_json::Value;
use trawl_lab::Station;
use trawl_sys::netns::run_in;
use trawl_tests::stage::Stage;
use trawl_tests::traffic::{answer, ask, converse, transfer};
use trawl_tests::wire::Path;
use trawl_tests::witness::{inside, nstat};
use trawl_tests::{Running, args, tools_or_skip};

use super::applications::Application;
use super::{End, Kept, SILENT, assert_right, is, may_name, names, watched};

const SLOW: &[&str] = &["slow_answer by=server"];
const NOT: Duration = Duration::ZERO;
const THINK: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(20);
const QUESTIONS: u32 = 6;

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Connects both ends of a kind, and judges a slow server and one that answers at once, by both versions of IP.
#[track_caller]
fn judge_kind(slow: End, connect: fn(&Stage, SocketAddr) -> [TcpStream; 2]) {
    for version in 0..2 {
        let Some(stage) = Stage::open() else { return };
        let server = stage.servers()[version];
        for (ends, think) in [([slow; 2], THINK), ([SILENT; 2], NOT)] {
            let traffic = || -> Kept { Box::new(converse(connect(&stage, server), QUESTIONS, think, PAUSE)) };
            assert_right(ends, &watched(&stage, traffic));
        }
    }
}

/// The application's sockets are older than the command.
#[test]
fn connections_from_before_the_start_are_judged() {
    let Some(stage) = Stage::open() else { return };
    for server in stage.servers() {
        let slow = converse(stage.connect(server), 1, NOT, NOT);
        assert_right([names(SLOW); 2], &watched(&stage, || Box::new(converse(slow, QUESTIONS, THINK, PAUSE))));
        let healthy = converse(stage.connect(server), 1, THINK, NOT);
        assert_right([SILENT; 2], &watched(&stage, || Box::new(converse(healthy, QUESTIONS, NOT, PAUSE))));
    }
}

/// Some hosts refuse an iterator over the storage of sockets. Sockets that are open files are found all the same, also if
/// they have several descriptors.
#[test]
fn open_files_are_judged_without_an_iterator_over_storage() {
    let Some(stage) = Stage::open() else { return };
    for server in stage.servers() {
        for (ends, think) in [([names(SLOW); 2], THINK), ([SILENT; 2], NOT)] {
            let watches = [&stage.client, &stage.server].map(|end| {
                let arguments = args!("slow --netns {} --json", end.name);
                Running::start_without("storage-iterator", &arguments, "measuring connections")
            });
            let connected = stage.connect(server);
            let copies = connected.each_ref().map(|end| end.try_clone().expect("another descriptor"));
            let kept = converse(connected, QUESTIONS, think, PAUSE);
            let reports = watches.map(|watch| watch.stop().json());
            drop((kept, copies));
            assert_right(ends, &reports);
        }
    }
}

/// The first question is in the request for the connection.
#[test]
fn fast_open_is_judged_or_unknown() {
    const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);
    judge_kind(may_name(SLOW), |stage, server| {
        for end in [&stage.client, &stage.server] {
            // Without cookies, at all listeners.
            inside(end, "sysctl -qw net.ipv4.tcp_fastopen=1543");
        }
        let listener = stage.listen(server);
        let client = run_in(&stage.client.namespace, || {
            let client = socket(family(server), SocketType::STREAM, None)?;
            sendto(&client, &[2; 100], FAST_OPEN, &server)?;
            rustix::io::Result::Ok(client)
        });
        let mut client = TcpStream::from(client.expect("a namespace").expect("a server"));
        let mut end = listener.accept().expect("a client").0;
        answer(&mut end, 1, NOT);
        std::io::Read::read_exact(&mut client, &mut [0; 300]).expect("an answer");
        let opened = [(&stage.client, "TcpExtTCPFastOpenActive"), (&stage.server, "TcpExtTCPFastOpenPassive")];
        assert!(opened.iter().all(|(end, counter)| nstat(end, counter) > 0), "not planted: fast open");
        [client, end]
    });
}

#[test]
fn mptcp_is_judged_or_unknown() {
    judge_kind(may_name(SLOW), |stage, server| {
        for end in [&stage.client, &stage.server] {
            inside(end, "sysctl -qw net.mptcp.enabled=1");
        }
        let open = || socket(family(server), SocketType::STREAM, Some(ipproto::MPTCP));
        let listener = run_in(&stage.server.namespace, || {
            let listener = open()?;
            rustix::net::sockopt::set_socket_reuseaddr(&listener, true)?;
            bind(&listener, &server)?;
            listen(&listener, 8)?;
            rustix::io::Result::Ok(TcpListener::from(listener))
        });
        let listener = listener.expect("a namespace").expect("a port");
        let client = run_in(&stage.client.namespace, || {
            let client = open()?;
            connect(&client, &server)?;
            rustix::io::Result::Ok(TcpStream::from(client))
        });
        let ends = [client.expect("a namespace").expect("a server"), listener.accept().expect("a client").0];
        assert!(nstat(&stage.server, "MPTcpExtMPCapableACKRX") > 0, "not planted: multipath TCP");
        ends
    });
}

/// The server's process reads and writes by io_uring.
#[test]
fn io_uring_is_judged_or_unknown() {
    const SERVER: &str = "
import ctypes, sys, time
sys.path.insert(0, 'DIRECTORY')
from process import Ring
ring = Ring()
print(flush=True)
for _ in range(QUESTIONS):
    ring.do(Ring.RECEIVE, 0, ctypes.create_string_buffer(100))
    time.sleep(THINK)
    ring.do(Ring.SEND, 0, ctypes.create_string_buffer(300))
";
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e");
    for (ends, think) in [([may_name(SLOW); 2], THINK), ([SILENT; 2], NOT)] {
        let Some(stage) = Stage::open() else { return };
        let program = SERVER.replace("DIRECTORY", directory).replace("QUESTIONS", &QUESTIONS.to_string());
        let program = program.replace("THINK", &think.as_secs_f64().to_string());
        let reports = watched(&stage, || {
            let [mut client, end] = stage.connect(stage.servers()[0]);
            let application = Application::python(&program, OwnedFd::from(end));
            ask(&mut client, QUESTIONS, PAUSE);
            Box::new((client, application))
        });
        assert_right(ends, &reports);
    }
}

/// Returns the findings of an end in a report about all namespaces.
fn findings_of<'r>(report: &'r Value, end: &Station) -> Vec<&'r Value> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().filter(|finding| finding["netns"] == end.name.as_str()).collect()
}

/// The namespace in the middle drops a copy of each frame, which is no loss of the connection.
#[test]
fn drops_of_another_namespace_are_not_joined() {
    let path = Path { delay: Duration::from_millis(5), lose: Some(60), drops_copies: true, ..Path::default() };
    let Some(stage) = Stage::over(path) else { return };
    for server in stage.servers() {
        let watch = Running::start(&args!("slow --all-namespaces --json"), "measuring connections");
        let ends = transfer(stage.connect(server), 2 << 20, NOT);
        let report = watch.stop().json();
        drop(ends);
        let client = findings_of(&report, &stage.client);
        assert!(client.len() == 1 && is(client[0], "loss of=client"), "{report}");
        assert!(findings_of(&report, &stage.server).iter().all(|one| is(one, "loss of=client")), "{report}");
    }
}

/// The sender's losses are joined with drops of the receiving host, if both are seen.
#[test]
fn drops_of_the_receivers_namespace_are_joined_at_both_ends() {
    let Some(stage) = Stage::over(Path { delay: Duration::from_millis(5), ..Path::default() }) else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    stage.rule(&stage.server, "prerouting", "tcp dport 8080 meta length > 150 numgen inc mod 60 == 0", "drop");
    let watch = Running::start(&args!("slow --all-namespaces --json"), "measuring connections");
    let ends = transfer(stage.connect(stage.servers()[0]), 4 << 20, NOT);
    let report = watch.stop().json();
    drop(ends);
    for end in [&stage.client, &stage.server] {
        let causes = findings_of(&report, end);
        let is_good = |one: &&Value| is(one, "loss_here of=client") || is(one, "loss of=client");
        assert!(causes.iter().all(is_good), "{report}");
    }
    let joined = findings_of(&report, &stage.server);
    assert!(joined.iter().any(|one| is(one, "loss_here of=client")), "{report}");
}
