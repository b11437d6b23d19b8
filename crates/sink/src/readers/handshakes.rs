//! Connections that have not shown a certificate yet. Their number is limited, and a new one closes the oldest, so that
//! stalled connections cannot keep readers out.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};

use parking_lot::Mutex;

/// Most handshakes at the same time, and most from one address.
const MOST: usize = 32;
const MOST_OF_ADDRESS: usize = 8;

#[derive(Debug)]
struct Handshake {
    number: u64,
    from: IpAddr,
    stream: TcpStream,
}

#[derive(Debug, Default)]
pub(super) struct Handshakes(Mutex<(u64, VecDeque<Handshake>)>);

impl Handshakes {
    /// Adds a connection, and closes the oldest one if there are too many: of its own address first. Returns its
    /// number.
    pub(super) fn begin(&self, stream: &TcpStream, from: IpAddr) -> io::Result<u64> {
        let (stream, from) = (stream.try_clone()?, from.to_canonical());
        let (next, open) = &mut *self.0.lock();
        let of_address = open.iter().filter(|one| one.from == from).count();
        let oldest = if of_address >= MOST_OF_ADDRESS {
            open.iter().position(|one| one.from == from)
        } else {
            (open.len() >= MOST).then_some(0)
        };
        if let Some(oldest) = oldest.and_then(|at| open.remove(at)) {
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        *next += 1;
        open.push_back(Handshake { number: *next, from, stream });
        Ok(*next)
    }

    /// Removes a connection whose handshake is over.
    pub(super) fn end(&self, number: u64) {
        self.0.lock().1.retain(|one| one.number != number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn oldest_handshake_of_an_address_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let handshakes = Handshakes::default();
        let begin = |from: [u8; 4]| {
            let client = TcpStream::connect(address).expect("it listens");
            let (stream, _) = listener.accept().expect("a connection");
            handshakes.begin(&stream, from.into()).expect("a number");
            client.set_nonblocking(true).expect("a socket");
            client
        };
        let is_closed = |mut client: &TcpStream| matches!(client.read(&mut [0]), Ok(0));
        let one: Vec<TcpStream> = (0..MOST_OF_ADDRESS).map(|_| begin([192, 0, 2, 1])).collect();
        let other = begin([192, 0, 2, 2]);
        assert!(!one.iter().any(is_closed));
        let newer = begin([192, 0, 2, 1]);
        assert!(is_closed(&one[0]) && !one[1..].iter().any(is_closed));
        // Too many of all addresses.
        let _many: Vec<TcpStream> = (0..MOST as u8).map(|last| begin([198, 51, 100, last])).collect();
        assert!(one.iter().chain([&newer, &other]).all(is_closed));
    }
}
