//! Packets on a socket, for several readers (pcap-over-IP). The stream of a reader begins with the blocks that packets
//! refer to. Each reader has a thread and a queue of its own: if its queue is full, that reader alone loses packets,
//! and the capture never waits.
//!
//! ```text
//! Readers ─Batch─▶ Queue ─▶ thread ─▶ Socket (TCP, TLS)
//!         ╲──────▶ Queue ─▶ thread ─▶ Socket
//! ```

mod budget;
mod handshakes;
mod log;
mod queue;
mod socket;
mod tls;
mod transmission;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::ServerConfig;
use trawl_packet::pcapng::block::blocks;
use trawl_pipeline::{Blocks, Counts, Pressure, WriteOutcome, Writer};
use trawl_plan::outputs::ListenPlan;
use trawl_sys::events::{self, Wake};
use trawl_sys::{Error, Result};

use crate::form::{Encoder, OutputForm};
use crate::preamble::Preamble;
pub use budget::Budget;
use handshakes::Handshakes;
pub use log::{ReaderFate, ReaderLog, ReaderNews};
use queue::{Batch, Encoded, Reader};
use transmission::Transmission;

/// Maximum number of readers.
const MOST_READERS: usize = 64;
/// Number of bytes that are gathered for a batch.
const GATHER: usize = 256 << 10;
/// Longest sleep of the thread that accepts readers.
const ACCEPT_EVERY: Duration = Duration::from_secs(1);
/// Pause after a connection that could not be accepted, for example because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CHECK_EVERY: Duration = Duration::from_millis(2);

/// A socket on which readers can connect already, and are served later.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    log: ReaderLog,
}

impl Listener {
    /// Listens, and reads the files for TLS.
    pub fn bind(plan: &ListenPlan) -> Result<Self> {
        let tls = plan.tls.as_ref().map(tls::config).transpose()?;
        let fail = |error: io::Error| {
            let fix = match error.kind() {
                io::ErrorKind::AddrInUse => "choose another port, or 0 for any free one",
                io::ErrorKind::AddrNotAvailable => "'ip address' lists the addresses of this machine",
                io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
                _ => "choose another address",
            };
            Error::os(format!("cannot listen on {}", plan.address), error).fix(fix)
        };
        let socket = TcpListener::bind(plan.address).map_err(fail)?;
        socket.set_nonblocking(true).map_err(fail)?;
        Ok(Self { address: socket.local_addr().map_err(fail)?, log: ReaderLog::default(), socket, tls })
    }

    /// Returns the address, with the port that the kernel chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the record of all readers, which outlives the listener.
    pub fn log(&self) -> ReaderLog {
        self.log.clone()
    }

    /// Serves readers from the first blocks on, in threads with the rights of the writing thread.
    ///
    /// A `patient` writer waits for the first reader, and for readers that are slow.
    pub fn serve(self, form: OutputForm, budget: Budget, patient: bool) -> Result<Readers> {
        let mut encoder = Encoder::new(form);
        let hub = Arc::new(Hub {
            file_header: encoder.take_header(),
            tls: self.tls,
            log: self.log,
            state: Mutex::default(),
            budget,
            handshakes: Handshakes::default(),
            missed: Arc::default(),
            is_ending: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            closing: Wake::new()?,
            connections: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
        });
        Ok(Readers { hub, encoder, pending: Vec::new(), socket: Some(self.socket), acceptor: None, patient })
    }
}

/// State that the writer and the threads share.
struct Hub {
    /// Header of the stream in the pcap format; empty for pcapng.
    file_header: Vec<u8>,
    tls: Option<Arc<ServerConfig>>,
    log: ReaderLog,
    state: Mutex<State>,
    budget: Budget,
    handshakes: Handshakes,
    /// Packets that no reader got, although one was connected.
    missed: Arc<Mutex<Counts>>,
    /// True once the capture is over: readers that do not read are no longer waited for.
    is_ending: AtomicBool,
    /// True once all packets are sent: the streams end.
    is_closed: AtomicBool,
    /// Wakes all threads for good when the streams end.
    closing: Wake,
    /// Readers, and connections without TLS, which become one at once.
    connections: AtomicUsize,
    threads: AtomicUsize,
}

#[derive(Default)]
struct State {
    preamble: Preamble,
    readers: Vec<Arc<Reader>>,
    /// True once a reader has connected.
    had_reader: bool,
    /// Packets that arrived while no reader was connected.
    not_kept: Counts,
}

impl Hub {
    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Accepts readers until the streams end.
    fn accept(self: &Arc<Self>, socket: &TcpListener) {
        while !self.is_closed() {
            match socket.accept() {
                Ok((stream, address)) => self.serve_connection(stream, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // If the wait fails, the next attempt only comes sooner.
                    let _ = events::wait(&[socket.as_fd(), self.closing.as_fd()], ACCEPT_EVERY);
                }
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Serves a connection in a thread of its own.
    fn serve_connection(self: &Arc<Self>, stream: TcpStream, address: SocketAddr) {
        // A connection without a certificate is no reader yet, and does not count against the limit of readers.
        let handshake = match &self.tls {
            Some(_) => match self.handshakes.begin(&stream, address.ip()) {
                Ok(number) => Some(number),
                Err(error) => return self.log.refuse(address, error.to_string()),
            },
            None => None,
        };
        if handshake.is_none() && !self.reserve_place(address) {
            return;
        }
        self.threads.fetch_add(1, Ordering::AcqRel);
        let hub = Arc::clone(self);
        let serve = move || {
            Transmission::run(&hub, stream, address, handshake);
            hub.threads.fetch_sub(1, Ordering::AcqRel);
        };
        let thread = std::thread::Builder::new().name("trawl-reader".to_owned());
        if let Err(error) = thread.spawn(serve) {
            self.threads.fetch_sub(1, Ordering::AcqRel);
            match handshake {
                Some(number) => self.handshakes.end(number),
                None => self.release_place(),
            }
            self.log.refuse(address, error.to_string());
        }
    }

    /// Counts a connection as a reader; refuses it and returns false if too many are connected.
    fn reserve_place(&self, address: SocketAddr) -> bool {
        let is_free = self.connections.fetch_add(1, Ordering::AcqRel) < MOST_READERS;
        if !is_free {
            self.release_place();
            let why = format!("{MOST_READERS} readers are connected already");
            self.log.refuse(address, why);
        }
        is_free
    }

    fn release_place(&self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds a reader, which receives all packets from now on; `None` once the capture is over.
    fn admit(&self, address: SocketAddr) -> Result<Option<Arc<Reader>>> {
        let mut state = self.state.lock();
        if self.is_ending() {
            return Ok(None);
        }
        let mut begin = self.file_header.clone();
        if begin.is_empty() {
            state.preamble.parts().for_each(|part| begin.extend_from_slice(part));
        }
        let is_pcapng = self.file_header.is_empty();
        let reader = Arc::new(Reader::new(is_pcapng, begin)?);
        state.readers.push(Arc::clone(&reader));
        state.had_reader = true;
        self.budget.join();
        self.log.join(address);
        Ok(Some(reader))
    }

    /// Removes a reader once its queue is empty.
    fn remove(&self, reader: &Arc<Reader>) {
        let is_other = |one: &Arc<Reader>| !Arc::ptr_eq(one, reader);
        self.state.lock().readers.retain(is_other);
        self.budget.leave();
    }
}

/// The writer of an output whose readers connect while the capture runs.
pub struct Readers {
    hub: Arc<Hub>,
    encoder: Encoder,
    /// Blocks for the next batch.
    pending: Vec<u8>,
    /// The socket until readers are accepted: not before the section header is known.
    socket: Option<TcpListener>,
    acceptor: Option<JoinHandle<()>>,
    patient: bool,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

impl Readers {
    fn begin(&mut self, socket: TcpListener) -> Result<()> {
        let hub = Arc::clone(&self.hub);
        let thread = std::thread::Builder::new().name("trawl-accept".to_owned());
        let accept = thread.spawn(move || hub.accept(&socket));
        let fail = |e| Error::os("cannot start the thread that accepts readers", e);
        self.acceptor = Some(accept.map_err(fail)?);
        Ok(())
    }

    /// Returns true if packets wait for the first reader.
    fn waits_for_first(&self) -> bool {
        self.patient && self.socket.is_none() && !self.hub.state.lock().had_reader
    }

    /// Returns the pressure: a patient writer is busy while a reader's queue has more than `most` bytes.
    fn pressure(&self, most: usize) -> Pressure {
        let is_behind = || self.hub.state.lock().readers.iter().any(|reader| reader.waiting() > most);
        if self.patient && (self.waits_for_first() || is_behind()) {
            Pressure::Busy { wants_segments: false }
        } else {
            Pressure::Idle
        }
    }

    /// Hands the gathered blocks to all readers.
    fn hand_out(&mut self) {
        let blocks_now = std::mem::take(&mut self.pending);
        if blocks_now.is_empty() {
            return;
        }
        let is_pcap = self.encoder.is_pcap();
        let (mut counts, mut descriptions) = (Counts::default(), Encoded::default());
        let mut state = self.hub.state.lock();
        for block in blocks(&blocks_now) {
            match block.enhanced_packet() {
                Some(packet) => counts.add(packet.interface_id, 1),
                None => {
                    state.preamble.add(&block);
                    descriptions.push(&block);
                }
            }
        }
        if state.readers.is_empty() {
            state.not_kept.add_all(&counts);
            return;
        }
        self.encoder.encode(&blocks_now);
        let units = self.encoder.units(&blocks_now);
        let bytes = if is_pcap { self.encoder.encoded(&blocks_now).to_vec() } else { blocks_now };
        self.encoder.clear();
        if is_pcap {
            descriptions = Encoded::default();
        }
        let encoded = Encoded { bytes, units };
        let batch = Batch::new(encoded, counts, descriptions, &self.hub.missed);
        let share = self.hub.budget.share();
        state.readers.iter().for_each(|reader| reader.offer(&batch, share));
    }
}

impl Writer for Readers {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        self.pending.extend_from_slice(blocks.bytes());
        if self.pending.len() >= GATHER && !self.waits_for_first() {
            self.hand_out();
        }
        let share = self.hub.budget.share();
        Ok(self.pressure(share / 2))
    }

    fn flush(&mut self) -> Result<Pressure> {
        if !self.waits_for_first() {
            self.hand_out();
        }
        self.socket.take().map_or(Ok(()), |socket| self.begin(socket))?;
        Ok(self.pressure(0))
    }

    /// Blocks wait for the first reader.
    fn due(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then(|| Instant::now() + CHECK_EVERY)
    }

    /// Waits for readers as long as they make progress, for a limited time. The streams end when the writer is dropped.
    fn finish(&mut self) -> WriteOutcome {
        self.hand_out();
        self.hub.is_ending.store(true, Ordering::Release);
        let readers = self.hub.state.lock().readers.clone();
        readers.iter().for_each(|reader| reader.wake.ring());
        while readers.iter().any(|reader| !reader.is_settled()) {
            std::thread::sleep(CHECK_EVERY);
        }
        WriteOutcome {
            not_kept: self.hub.state.lock().not_kept.clone(),
            unwritten: self.hub.missed.lock().clone(),
            ..WriteOutcome::default()
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.hub.is_ending.store(true, Ordering::Release);
        self.hub.is_closed.store(true, Ordering::Release);
        self.hub.closing.ring();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        while self.hub.threads.load(Ordering::Acquire) > 0 {
            std::thread::sleep(CHECK_EVERY);
        }
    }
}
