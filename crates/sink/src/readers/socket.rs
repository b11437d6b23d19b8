//! The connection of a reader, with or without TLS. No call blocks.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};
use trawl_sys::netlink::socket_option::{keep_alive, limit_unsent};

/// Largest record of TLS.
const RECORD: usize = 16 << 10;
/// Maximum number of unsent bytes in the kernel for a reader that does not read. The rest of the socket's buffer stays
/// free for the end of a block; see `lift_limit`.
const UNSENT: u32 = 16 << 10;
/// Maximum number of reads in a row from a reader that keeps sending.
const MOST_READS: usize = 16;

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    tls: Option<Tls>,
}

#[derive(Debug)]
struct Tls {
    connection: ServerConnection,
    /// Number of bytes that were encrypted, but not all sent.
    encrypted: usize,
}

/// Returns the result of an action, or `None` if it would have to wait.
fn at_once<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Socket {
    pub(super) fn new(stream: TcpStream, config: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        limit_unsent(&stream, UNSENT)?;
        let connection = config.map(ServerConnection::new).transpose();
        let tls = connection.map_err(io::Error::other)?.map(|connection| Tls { connection, encrypted: 0 });
        Ok(Self { stream, tls })
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the number of bytes to send at a time: TLS shows a reader whole records only.
    pub(super) fn piece(&self) -> usize {
        self.tls.as_ref().map_or(usize::MAX, |_| RECORD)
    }

    /// Returns the number of bytes that `send` has encrypted, but not sent yet.
    pub(super) fn encrypted(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.encrypted)
    }

    pub(super) fn is_handshaking(&self) -> bool {
        let connection = self.tls.as_ref().map(|tls| &tls.connection);
        connection.is_some_and(|connection| connection.is_handshaking())
    }

    /// Returns true if encrypted bytes wait to be sent.
    pub(super) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection.wants_write())
    }

    /// Reads what the reader sends, which has no meaning except for TLS. Returns false once it sends nothing more.
    pub(super) fn read_input(&mut self) -> io::Result<bool> {
        let mut scratch = [0; 4096];
        for _ in 0..MOST_READS {
            let Some(tls) = &mut self.tls else {
                match at_once(self.stream.read(&mut scratch))? {
                    Some(0) => return Ok(false),
                    Some(_) => continue,
                    None => break,
                }
            };
            match at_once(tls.connection.read_tls(&mut self.stream))? {
                Some(0) => return Ok(false),
                Some(_) => {}
                None => break,
            }
            let state = tls.connection.process_new_packets().map_err(|error| {
                // Send the alert that explains the end; if that fails, the connection ends without it.
                let _ = tls.connection.write_tls(&mut self.stream);
                io::Error::other(error)
            })?;
            while at_once(tls.connection.reader().read(&mut scratch))?.is_some_and(|read| read > 0) {}
            if state.peer_has_closed() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends encrypted bytes. Returns true if none is left.
    pub(super) fn push(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else {
            return Ok(true);
        };
        while tls.connection.wants_write() {
            if at_once(tls.connection.write_tls(&mut self.stream))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends from the front of `bytes`, and returns the number of bytes that the kernel accepted; 0 if the caller must
    /// wait, and offer the same bytes again.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return Ok(at_once(self.stream.write(bytes))?.unwrap_or(0));
        };
        if tls.encrypted == 0 {
            tls.encrypted = tls.connection.writer().write(bytes)?;
        }
        let is_sent = self.push()?;
        let encrypted = self.tls.as_mut().map(|tls| &mut tls.encrypted);
        Ok(encrypted.filter(|_| is_sent).map_or(0, std::mem::take))
    }

    /// Returns the error of a connection that nothing is sent on.
    pub(super) fn error(&self) -> io::Result<()> {
        self.stream.take_error()?.map_or(Ok(()), Err)
    }

    /// Makes room for the rest of a block.
    pub(super) fn lift_limit(&self) -> io::Result<()> {
        limit_unsent(&self.stream, u32::MAX)
    }

    /// Ends the stream after the bytes sent so far.
    pub(super) fn close(mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
        }
        // Failures are ignored: a reader that is gone needs no end. Input is read first, because unread input would
        // turn the end into a reset.
        let _ = self.push();
        let _ = self.read_input();
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
