//! Real TCP connections to a real listener: handshakes by the kernel and a continuous flow of data, all of it counted.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use trawl_io::send::tcp::{Readiness, begin, unacknowledged, wait};
use trawl_sys::error::copy_of;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::units::rounded;
use trawl_sys::{Error, Result};

use crate::pace::{Pacer, Rate};

const CHUNK: usize = 64 * 1024;
/// Timeout of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest wait between two checks for the end of the run.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// Interval for checking acknowledgements, which the kernel does not report.
const ACKNOWLEDGEMENT: Duration = Duration::from_micros(200);
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Consecutive failures, without a connection in between, that end the run.
const HOPELESS: u64 = 100;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Connecting<'a> {
    pub namespace: Option<&'a Namespace>,
    pub to: SocketAddr,
    pub from: Option<IpAddr>,
    /// Connections that are open at a time.
    pub connections: usize,
    /// New connections a second.
    pub rate: Option<f64>,
    /// Bytes after which a connection is replaced by a new one; `None`: it stays open.
    pub bytes: Option<u64>,
    /// Bits of data a second, over all connections.
    pub bandwidth: Option<f64>,
    /// Number of connections that ends the run.
    pub count: Option<u64>,
    pub duration: Option<Duration>,
}

/// The counts of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionAccount {
    /// Completed handshakes.
    pub connected: u64,
    pub failed: u64,
    /// Connections closed by this side after their last byte.
    pub closed: u64,
    /// Connections that the other side ended.
    pub ended_by_peer: u64,
    pub open: u64,
    /// Bytes that the other side acknowledged.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    #[serde(serialize_with = "rounded")]
    pub seconds: f64,
    /// Nanoseconds from the first packet of a handshake to its end.
    #[serde(rename = "handshake_ns", serialize_with = "percentiles")]
    pub handshakes: Histogram<u64>,
    /// Reason of the last failure.
    pub last_failure: Option<String>,
}

fn percentiles<S: Serializer>(times: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    let parts = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)];
    serializer.collect_map(parts.map(|(name, part)| (name, times.value_at_quantile(part))))
}

struct Connection {
    stream: TcpStream,
    since: Instant,
    connected: bool,
    /// Bytes that were handed to the kernel.
    written: u64,
    /// True once all is written; the connection closes when the other side has acknowledged it.
    closing: bool,
}

impl Connection {
    fn waits_for_acknowledgement(&self) -> bool {
        self.closing && unacknowledged(&self.stream).is_ok_and(|bytes| bytes > 0)
    }

    fn acknowledged(&self) -> u64 {
        let left = unacknowledged(&self.stream).unwrap_or(0);
        self.written.saturating_sub(left)
    }
}

/// Fate of a connection in a round.
enum Fate {
    Goes,
    Done,
    Ended,
    Failed(std::io::Error),
}

/// Opens connections and sends data. `watch` receives the account about ten times a second, and returns false to end
/// the run.
pub fn run(
    plan: &Connecting<'_>,
    watch: &mut (dyn FnMut(&ConnectionAccount) -> bool + Send),
) -> Result<ConnectionAccount> {
    if plan.connections == 0 {
        return Err(Error::usage("cannot send over 0 connections", "at least one is required"));
    }
    run_maybe_in(plan.namespace, || Run::new(plan)?.go(watch))?
}

struct Run<'a> {
    plan: &'a Connecting<'a>,
    start: Instant,
    openings: Pacer,
    data: Pacer,
    opened: u64,
    in_a_row: u64,
    connections: Vec<Connection>,
    /// Its byte counts cover closed connections only.
    account: ConnectionAccount,
    chunk: Vec<u8>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Connecting<'a>) -> Result<Self> {
        let rate = plan.rate.map_or(Rate::Unlimited, Rate::Frames);
        let data = plan.bandwidth.map_or(Rate::Unlimited, |per_second| Rate::Bits { per_second, overhead: 0 });
        rate.check()?;
        data.check()?;
        let longest = HANDSHAKE.as_nanos() as u64 * 2;
        let handshakes =
            Histogram::new_with_max(longest, 3).map_err(|e| Error::failed("cannot count handshakes", e))?;
        Ok(Self {
            plan,
            start: Instant::now(),
            openings: Pacer::new(rate, 1, 0.0),
            data: Pacer::new(data, 1, 0.0),
            opened: 0,
            in_a_row: 0,
            connections: Vec::new(),
            account: ConnectionAccount {
                connected: 0,
                failed: 0,
                closed: 0,
                ended_by_peer: 0,
                open: 0,
                bytes_sent: 0,
                bytes_received: 0,
                seconds: 0.0,
                handshakes,
                last_failure: None,
            },
            chunk: vec![0; CHUNK],
        })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn go(mut self, watch: &mut (dyn FnMut(&ConnectionAccount) -> bool + Send)) -> Result<ConnectionAccount> {
        let mut watched = Instant::now();
        loop {
            let all_opened = self.plan.count.is_some_and(|count| self.opened >= count);
            let over = self.plan.duration.is_some_and(|time| self.start.elapsed() >= time);
            // Permanent connections would never end: the last handshake is the end.
            let waits = |one: &Connection| !one.connected || self.plan.bytes.is_some();
            if over || (all_opened && !self.connections.iter().any(waits)) {
                break;
            }
            if !all_opened {
                self.open()?;
            }
            self.round()?;
            if watched.elapsed() >= WATCH_EVERY {
                watched = Instant::now();
                if !watch(&self.account_now()) {
                    break;
                }
            }
        }
        Ok(self.account_now())
    }

    fn account_now(&self) -> ConnectionAccount {
        let acknowledged = self.connections.iter().map(Connection::acknowledged);
        ConnectionAccount {
            seconds: self.start.elapsed().as_secs_f64(),
            open: self.open_now(),
            bytes_sent: self.account.bytes_sent + acknowledged.sum::<u64>(),
            ..self.account.clone()
        }
    }

    fn open_now(&self) -> u64 {
        self.connections.iter().filter(|one| one.connected).count() as u64
    }

    fn open(&mut self) -> Result<()> {
        let due = self.openings.due(self.now(), 1.0);
        let room = (self.plan.connections - self.connections.len()) as u64;
        let left = self.plan.count.map_or(u64::MAX, |count| count - self.opened);
        for _ in 0..due.min(room).min(left) {
            self.opened += 1;
            self.openings.record(1, 0);
            match begin(self.plan.to, self.plan.from) {
                Ok(stream) => self.connections.push(Connection {
                    stream,
                    since: Instant::now(),
                    connected: false,
                    written: 0,
                    closing: false,
                }),
                Err(e) => {
                    self.fail(&e)?;
                    break;
                }
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: &std::io::Error) -> Result<()> {
        self.account.failed += 1;
        self.in_a_row += 1;
        let failure = Error::os(format!("cannot connect to {}", self.plan.to), copy_of(error));
        self.account.last_failure = Some(failure.to_string());
        if self.in_a_row < HOPELESS {
            return Ok(());
        }
        Err(match error.kind() {
            ErrorKind::AddrNotAvailable => {
                failure.fix("all source ports are in use: open fewer connections, or give another --src")
            }
            ErrorKind::ConnectionRefused => failure.fix("check that a server listens there: ss -lnt"),
            _ => failure,
        })
    }

    /// Waits for events, and handles them.
    fn round(&mut self) -> Result<()> {
        let now = self.now();
        let mut due = self.data.due(now, 1.0);
        let may_write = due > 0;
        let streams: Vec<&TcpStream> = self.connections.iter().map(|one| &one.stream).collect();
        let wants =
            |one: &Connection| Readiness { read: one.connected, write: !one.connected || (may_write && !one.closing) };
        let mut ready: Vec<Readiness> = self.connections.iter().map(wants).collect();
        let until = |due: Option<u64>| Duration::from_nanos(due.unwrap_or(now).saturating_sub(now));
        let mut patience = LONGEST_WAIT;
        if !may_write {
            patience = patience.min(until(self.data.next_due()));
        }
        if self.connections.len() < self.plan.connections {
            patience = patience.min(until(self.openings.next_due()));
        }
        if self.connections.iter().any(|one| one.closing) {
            patience = patience.min(ACKNOWLEDGEMENT);
        }
        wait(&streams, &mut ready, patience.max(Duration::from_micros(50)))
            .map_err(|e| Error::os("cannot wait for connections", e))?;
        let mut at = 0;
        for ready in ready {
            let fate = self.serve(at, ready, &mut due);
            if matches!(fate, Fate::Goes) {
                at += 1;
                continue;
            }
            self.account.bytes_sent += self.connections.remove(at).acknowledged();
            match fate {
                Fate::Goes => {}
                Fate::Done => self.account.closed += 1,
                Fate::Ended => self.account.ended_by_peer += 1,
                Fate::Failed(error) => self.fail(&error)?,
            }
        }
        // The connection that was served last is served first the next time, so that all share a bandwidth.
        if self.plan.bandwidth.is_some() && !self.connections.is_empty() {
            self.connections.rotate_left(1);
        }
        Ok(())
    }

    fn serve(&mut self, at: usize, ready: Readiness, due: &mut u64) -> Fate {
        let one = &mut self.connections[at];
        if !one.connected {
            if ready.write {
                if let Ok(Some(error)) | Err(error) = one.stream.take_error() {
                    return Fate::Failed(error);
                }
                one.connected = true;
                self.account.connected += 1;
                self.in_a_row = 0;
                let took = one.since.elapsed().as_nanos() as u64;
                self.account.handshakes.saturating_record(took);
            } else if one.since.elapsed() > HANDSHAKE {
                return Fate::Failed(ErrorKind::TimedOut.into());
            }
            return Fate::Goes;
        }
        if ready.read {
            match one.stream.read(&mut self.chunk) {
                Ok(0) => return Fate::Ended,
                Ok(read) => self.account.bytes_received += read as u64,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Fate::Ended,
            }
        }
        if one.closing {
            return if one.waits_for_acknowledgement() { Fate::Goes } else { Fate::Done };
        }
        if ready.write && *due > 0 {
            let left = self.plan.bytes.map_or(u64::MAX, |bytes| bytes - one.written);
            let most = left.min(*due).min(CHUNK as u64) as usize;
            self.chunk[..most].fill(0);
            match one.stream.write(&self.chunk[..most]) {
                Ok(sent) => {
                    one.written += sent as u64;
                    self.data.record(1, sent as u64);
                    *due = due.saturating_sub(sent as u64);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Fate::Ended,
            }
            one.closing = self.plan.bytes.is_some_and(|bytes| one.written >= bytes);
        }
        Fate::Goes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn plan(to: SocketAddr) -> Connecting<'static> {
        Connecting {
            namespace: None,
            to,
            from: None,
            connections: 4,
            rate: None,
            bytes: Some(10_000),
            bandwidth: None,
            count: Some(20),
            duration: None,
        }
    }

    #[test]
    fn connections_are_made_and_bytes_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut total = 0;
            for _ in 0..20 {
                let (mut stream, _) = listener.accept().unwrap();
                total += std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
            }
            total
        });
        let account = run(&plan(to), &mut |_| true).unwrap();
        assert_eq!((account.connected, account.closed, account.failed), (20, 20, 0));
        assert_eq!((account.bytes_sent, server.join().unwrap()), (200_000, 200_000));
        assert_eq!(account.handshakes.len(), 20);
    }

    /// Bytes that wait in a socket's buffer were not sent.
    #[test]
    fn unacknowledged_bytes_do_not_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let silent = std::thread::spawn(move || listener.accept().unwrap());
        let account = run(
            &Connecting {
                connections: 1,
                bytes: None,
                count: None,
                duration: Some(Duration::from_millis(300)),
                ..plan(to)
            },
            &mut |_| true,
        )
        .unwrap();
        let (mut stream, _) = silent.join().unwrap();
        stream.set_nonblocking(true).unwrap();
        let (mut arrived, mut room) = (0, vec![0; 1 << 20]);
        while let Ok(read @ 1..) = stream.read(&mut room) {
            arrived += read as u64;
            if arrived >= account.bytes_sent {
                break;
            }
        }
        assert!(account.bytes_sent > 0 && account.bytes_sent <= arrived, "{account:?}");
    }

    #[test]
    fn missing_listener_is_reported() {
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = run(&Connecting { count: None, ..plan(unused) }, &mut |_| true).unwrap_err();
        assert!(error.to_string().contains("ss -lnt"), "{error}");
    }
}
