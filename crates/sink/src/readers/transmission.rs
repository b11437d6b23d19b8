//! The thread of a reader: it sends the packets in the reader's queue, and detects that the reader has left.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::block::MIN_BLOCK_LEN;
use trawl_packet::pcapng::write::filling;
use trawl_pipeline::Patience;
use trawl_sys::events::{self, Wake};

use super::Hub;
use super::log::ReaderFate;
use super::queue::{Item, Reader};
use super::socket::Socket;

/// Time in which a connection must become a reader.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longest sleep, and the longest while the streams end.
const IDLE: Duration = Duration::from_secs(1);
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Time after the capture in which a reader that makes progress receives the rest.
const FAREWELL: Duration = Duration::from_secs(5);

pub(super) struct Transmission<'h> {
    hub: &'h Hub,
    reader: &'h Reader,
    socket: &'h mut Socket,
    /// The batch that is being sent, and the number of its bytes that were sent.
    taken: Option<(Item, usize)>,
    sent: u64,
    /// True once the reader has closed its side of the connection.
    is_mute: bool,
    /// Time since which the reader is behind after the end of the capture, and the patience with it.
    farewell: Option<(Instant, Patience)>,
}

impl<'h> Transmission<'h> {
    /// Serves a connection to its end.
    pub(super) fn run(hub: &'h Hub, stream: TcpStream, address: SocketAddr, handshake: Option<u64>) {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let admitted = Socket::new(stream, hub.tls.clone())
            .and_then(|mut socket| complete_handshake(&mut socket, &hub.closing).map(|()| socket));
        let socket = match admitted {
            Ok(socket) => Some(socket),
            Err(error) => {
                hub.log.refuse(address, error.to_string());
                None
            }
        };
        let has_place = match handshake {
            Some(number) => {
                hub.handshakes.end(number);
                socket.is_some() && hub.reserve_place(address)
            }
            None => true,
        };
        if let Some(socket) = socket.filter(|_| has_place) {
            Self::serve(hub, socket, address);
        }
        if has_place {
            hub.release_place();
        }
    }

    /// Serves a reader to its end.
    fn serve(hub: &'h Hub, mut socket: Socket, address: SocketAddr) {
        let reader = match hub.admit(address) {
            Ok(Some(reader)) => reader,
            Ok(None) => return,
            Err(error) => return hub.log.refuse(address, error.to_string()),
        };
        let mut transmission = Transmission {
            hub,
            reader: &reader,
            socket: &mut socket,
            taken: None,
            sent: 0,
            is_mute: false,
            farewell: None,
        };
        let left = transmission.send_all();
        if left.is_err() {
            transmission.finish_block();
        }
        let (sent, lost) = reader.end(transmission.taken);
        hub.remove(&reader);
        let fate = ReaderFate { reader: address, sent, lost, left: left.as_ref().err().map(reason) };
        hub.log.leave(fate, !hub.is_ending());
        socket.close();
    }

    /// Sends all packets until the streams end. An error is the reason why the reader leaves earlier.
    fn send_all(&mut self) -> io::Result<()> {
        loop {
            self.detect_close()?;
            if self.reader.is_cut() {
                return Err(io::Error::other("it read too slowly"));
            }
            if self.send_some()? {
                continue;
            }
            if self.taken.is_none() && self.hub.is_closed() {
                return Ok(());
            }
            if self.hub.is_ending() && self.taken.is_some() {
                let (since, patience) = self.farewell.get_or_insert_with(|| (Instant::now(), Patience::begin()));
                if since.elapsed() > FAREWELL || patience.is_over_at(self.sent) || self.hub.is_closed() {
                    return Err(io::Error::other("it did not read the rest in time"));
                }
            }
            self.wait();
        }
    }

    /// Sends from the current batch, or else from the next one. Returns false if nothing was sent.
    fn send_some(&mut self) -> io::Result<bool> {
        if self.taken.is_none() {
            self.taken = self.reader.next().map(|item| (item, 0));
        }
        let Some((item, done)) = &mut self.taken else {
            self.socket.push()?;
            return Ok(false);
        };
        let count = self.socket.send(item.piece(*done, self.socket.piece()))?;
        *done += count;
        self.sent += count as u64;
        item.note_sent(*done);
        if *done == item.bytes().len()
            && let Some((item, _)) = self.taken.take()
        {
            self.reader.sent(item);
            return Ok(true);
        }
        Ok(count > 0)
    }

    /// Sends the rest of the current block, so that the stream ends with a whole block although trawl gives up on the
    /// reader.
    fn finish_block(&mut self) {
        let Some((item, done)) = &mut self.taken else {
            return;
        };
        let end = item.block_end(*done + self.socket.encrypted());
        // Without more room, or a connection, the block stays cut.
        let _ = self.socket.lift_limit();
        while *done < end {
            match self.socket.send(&item.bytes()[*done..end]) {
                Ok(sent @ 1..) => *done += sent,
                _ => break,
            }
        }
        item.note_sent(*done);
    }

    /// Detects that the reader closes the connection.
    fn detect_close(&mut self) -> io::Result<()> {
        if self.is_mute {
            return self.socket.error();
        }
        if self.socket.read_input()? {
            return Ok(());
        }
        if self.socket.is_encrypted() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.is_mute = true;
        // The reader may have closed its side alone. If it is gone, its host answers the bytes of an empty block with a
        // reset.
        if self.reader.is_pcapng() {
            let mut probe = vec![0; MIN_BLOCK_LEN];
            filling(&mut probe);
            self.reader.describe(probe);
        }
        Ok(())
    }

    /// Waits for packets, for the reader, or for the end.
    fn wait(&self) {
        let mut awaited = vec![self.reader.wake.as_fd(), self.hub.closing.as_fd()];
        if !self.is_mute {
            awaited.push(self.socket.as_fd());
        }
        let is_blocked = self.taken.is_some() || self.socket.wants_write();
        let outlet = is_blocked.then(|| self.socket.as_fd());
        let at_most = if self.hub.is_ending() { CHECK_EVERY } else { IDLE };
        // If the wait fails, the next attempt only comes sooner.
        let _ = match outlet {
            None if self.is_mute => events::wait_or_failure(&awaited, self.socket.as_fd(), at_most),
            outlet => events::wait_also(&awaited, outlet, at_most),
        };
        self.reader.wake.clear();
    }
}

/// Carries out the TLS handshake, if any.
fn complete_handshake(socket: &mut Socket, closing: &Wake) -> io::Result<()> {
    let began = Instant::now();
    while socket.is_handshaking() {
        let left = HANDSHAKE.saturating_sub(began.elapsed());
        if left.is_zero() || events::is_readable(closing.as_fd()) {
            return Err(io::Error::other("it did not finish the TLS handshake"));
        }
        let outlet = socket.wants_write().then(|| socket.as_fd());
        let _ = events::wait_also(&[closing.as_fd(), socket.as_fd()], outlet, left);
        if !socket.read_input()? {
            return Err(io::Error::other("it closed the connection during the TLS handshake"));
        }
        socket.push()?;
    }
    socket.push().map(drop)
}

/// Returns the reason why a reader left, for people.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => "it closed the connection".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => "its host is gone".to_owned(),
        _ => error.to_string(),
    }
}
