//! Traffic of a client and a server, with pauses of either.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use trawl_sys::netns::run_in;

use crate::stage::Stage;

/// Exchanges questions and answers, and returns the ends. The server waits `think` before each answer, the client
/// `pause` after it.
pub fn converse(
    [mut client, mut server]: [TcpStream; 2],
    count: u32,
    think: Duration,
    pause: Duration,
) -> [TcpStream; 2] {
    thread::scope(|scope| {
        let answering = scope.spawn(move || {
            answer(&mut server, count, think);
            server
        });
        ask(&mut client, count, pause);
        [client, answering.join().expect("a server")]
    })
}

/// Answers questions, each after a time.
pub fn answer(server: &mut TcpStream, count: u32, think: Duration) {
    let mut question = [0; 100];
    for _ in 0..count {
        server.read_exact(&mut question).expect("a question");
        thread::sleep(think);
        server.write_all(&[1; 300]).expect("an answer");
    }
}

/// Asks a server that answers, with a pause after each answer.
pub fn ask(client: &mut TcpStream, count: u32, pause: Duration) {
    let mut answer = [0; 300];
    for _ in 0..count {
        client.write_all(&[2; 100]).expect("a question");
        client.read_exact(&mut answer).expect("an answer");
        thread::sleep(pause);
    }
}

/// Sends bytes to a server that reads them in pieces, with pauses; returns the ends after the last byte.
pub fn transfer([mut client, mut server]: [TcpStream; 2], bytes: usize, pause: Duration) -> [TcpStream; 2] {
    thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut piece = vec![0; 16 << 10];
            while server.read(&mut piece).expect("data") > 0 {
                thread::sleep(pause);
            }
            server
        });
        client.write_all(&vec![3; bytes]).expect("sent");
        client.shutdown(Shutdown::Write).expect("the end");
        [client, reading.join().expect("a server")]
    })
}

/// A host and its resolver, for questions about names that do not exist.
#[derive(Debug)]
pub struct Names {
    host: UdpSocket,
    resolver: UdpSocket,
    server: SocketAddr,
    asked: u16,
}

impl Names {
    /// Opens a resolver at this address of the server, and a socket of the client, which is connected by IPv6.
    pub fn at(stage: &Stage, address: IpAddr) -> Self {
        let bind = |at: SocketAddr| move || UdpSocket::bind(at);
        let server = SocketAddr::new(address, 53);
        let resolver = run_in(&stage.server.namespace, bind(server)).expect("a namespace").expect("a port");
        let from = SocketAddr::new(if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
        let host = run_in(&stage.client.namespace, bind(from)).expect("a namespace").expect("a port");
        // Libraries for names differ in this.
        if address.is_ipv6() {
            host.connect(server).expect("an address");
        }
        Self { host, resolver, server, asked: 0 }
    }

    /// Asks once, without an answer.
    pub fn ask(&mut self) -> ([u8; 64], usize, SocketAddr) {
        let [high, low] = self.asked.to_be_bytes();
        self.asked += 1;
        let question = [high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
        self.host.send_to(&question, self.server).expect("sent");
        let mut message = [0; 64];
        let (length, asker) = self.resolver.recv_from(&mut message).expect("a question");
        (message, length, asker)
    }

    /// Asks once; the resolver answers after a time that the name does not exist.
    pub fn resolve(&mut self, took: Duration) {
        let (mut message, length, asker) = self.ask();
        thread::sleep(took);
        message[2..4].copy_from_slice(&[0x81, 0x83]);
        self.resolver.send_to(&message[..length], asker).expect("an answer");
        self.host.recv_from(&mut [0; 64]).expect("an answer");
    }

    /// Waits for an answer that does not come; returns after this time.
    pub fn wait_in_vain(&self, time: Duration) {
        self.host.set_read_timeout(Some(time)).expect("a time");
        self.host.recv_from(&mut [0; 64]).expect_err("no answer");
        self.host.set_read_timeout(None).expect("no time");
    }

    /// Sends a packet that is no question.
    pub fn send_other(&self) {
        self.host.send_to(&[0; 20], SocketAddr::new(self.server.ip(), 9)).expect("sent");
    }
}
