//! Healthy traffic has no findings, however busy the host is.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::fs::sendfile;
use rustix::net::sockopt;
use trawl_tests::stage::Stage;
use trawl_tests::traffic::{Names, answer, ask, converse, transfer};
use trawl_tests::turn::heavy;

use super::applications::Application;
use super::{SILENT, assert_right, watched};

pub struct Kind {
    pub name: &'static str,
    pub run: fn(&Stage, SocketAddr),
}

const NOT: Duration = Duration::ZERO;
/// Connections of applications with many.
const MANY: u32 = 16;
const SHORT: u32 = 200;
/// Time of connections without data.
const IDLE: Duration = Duration::from_secs(3);

pub const KINDS: &[Kind] = &[
    Kind { name: "bulk", run: bulk },
    Kind { name: "pauses of the client", run: pauses },
    Kind { name: "idle", run: idle },
    Kind { name: "short connections", run: short_connections },
    Kind { name: "push", run: push },
    Kind { name: "names that do not exist", run: names },
    Kind { name: "sendfile", run: file },
    Kind { name: "threads", run: threads },
    Kind { name: "keepalive", run: keepalive },
    Kind { name: "long poll", run: long_poll },
];

fn bulk(stage: &Stage, server: SocketAddr) {
    transfer(stage.connect(server), 32 << 20, NOT);
}

fn pauses(stage: &Stage, server: SocketAddr) {
    converse(stage.connect(server), 12, NOT, Duration::from_millis(150));
}

fn idle(stage: &Stage, server: SocketAddr) {
    let _ends = stage.connect(server);
    thread::sleep(IDLE);
}

fn short_connections(stage: &Stage, server: SocketAddr) {
    let listener = stage.listen(server);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..SHORT {
                answer(&mut listener.accept().expect("a client").0, 1, NOT);
            }
        });
        for _ in 0..SHORT {
            ask(&mut stage.connect_to(server), 1, NOT);
        }
    });
}

fn push(stage: &Stage, server: SocketAddr) {
    let [mut client, mut server] = stage.connect(server);
    for _ in 0..5 {
        server.write_all(&[1; 100]).expect("an event");
        client.read_exact(&mut [0; 100]).expect("an event");
        thread::sleep(Duration::from_secs(1));
    }
}

fn names(stage: &Stage, server: SocketAddr) {
    let mut names = Names::at(stage, server.ip());
    for _ in 0..20 {
        names.resolve(NOT);
    }
    // Questions without an answer would be named now.
    thread::sleep(IDLE);
}

/// The server sends a file.
fn file(stage: &Stage, server: SocketAddr) {
    const LENGTH: usize = 16 << 20;
    let path = stage.file(&format!("sent-{}", server.port()));
    std::fs::write(&path, vec![5; LENGTH]).expect("a file");
    let [mut client, server] = stage.connect(server);
    thread::scope(|scope| {
        scope.spawn(move || {
            let file = File::open(path).expect("a file");
            while sendfile(&server, &file, None, LENGTH).expect("sent") > 0 {}
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("a file");
        assert_eq!(received.len(), LENGTH);
    });
}

/// Each thread has a connection of its own.
fn threads(stage: &Stage, server: SocketAddr) {
    let listener = stage.listen(server);
    thread::scope(|scope| {
        for _ in 0..MANY {
            let ends = [stage.connect_to(server), listener.accept().expect("a client").0];
            scope.spawn(move || converse(ends, 30, NOT, Duration::from_millis(20)));
        }
    });
}

fn keepalive(stage: &Stage, server: SocketAddr) {
    let ends = stage.connect(server);
    let second = Duration::from_secs(1);
    sockopt::set_socket_keepalive(&ends[0], true).expect("a setting");
    sockopt::set_tcp_keepidle(&ends[0], second).expect("a setting");
    sockopt::set_tcp_keepintvl(&ends[0], second).expect("a setting");
    thread::sleep(IDLE);
}

/// An answer after 10 s waits for an event.
fn long_poll(stage: &Stage, server: SocketAddr) {
    let listener = stage.listen(server);
    let connect = || [stage.connect_to(server), listener.accept().expect("a client").0];
    let polls = [(); 3].map(|()| connect());
    let polls = polls.map(|ends: [TcpStream; 2]| thread::spawn(|| converse(ends, 1, Duration::from_secs(10), NOT)));
    for poll in polls {
        poll.join().expect("an answer");
    }
}

/// Runs all kinds at the same time, each at a port of its own.
fn all_are_healthy(version: usize) {
    let Some(stage) = Stage::open() else { return };
    let reports = watched(&stage, || {
        thread::scope(|scope| {
            for (kind, number) in KINDS.iter().zip(1..) {
                let mut server = stage.servers()[version];
                server.set_port(server.port() + number);
                let stage = &stage;
                scope.spawn(move || (kind.run)(stage, server));
            }
        });
        Box::new(())
    });
    assert_right([SILENT; 2], &reports);
}

#[test]
fn traffic_of_an_idle_host_is_healthy() {
    all_are_healthy(0);
}

#[test]
#[ignore = "make test-long runs it"]
fn traffic_of_a_busy_host_is_healthy() {
    let _turn = heavy();
    let _busy = [(); 4].map(|()| Application::busy(None));
    all_are_healthy(1);
}
