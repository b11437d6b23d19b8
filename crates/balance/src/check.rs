//! Health of the backends: a TCP SYN to the virtual address through the tunnel or by the MAC address by which packets
//! reach each of them, and with HTTP or another port a connection to the backend's own address. Both are bounded in time
//! and in how many are asked at once.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use trawl_program::Site;
use trawl_sys::netns::run_maybe_in;
use trawl_sys::{Error, Result};

use crate::path::{self, Answer};
use crate::service::{Protocol, Service};
use crate::table::{Forward, Table};

/// Backends that are asked at the same time.
const AT_ONCE: usize = 32;
/// Of an answer, as far as its first line may reach.
const LONGEST_STATUS: usize = 1024;

/// How backends are asked.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The path of an HTTP request; `None`: a TCP connection is enough.
    pub http: Option<String>,
    /// `None`: the port of the virtual address.
    pub port: Option<u16>,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub service: Service,
    pub backend: IpAddr,
    /// How the SYN to the virtual address was sent to the backend.
    pub forward: Forward,
    /// The port of the backend's own address that was asked besides.
    pub own_port: Option<u16>,
    /// How long the answer took.
    pub answered: std::result::Result<Duration, Failure>,
}

/// Why a backend is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    TimedOut,
    /// Packets to the virtual address do not reach the backend, or its answers do not return. `answers_itself`: its own
    /// address accepts a connection at the same port.
    NoPath {
        answers_itself: bool,
    },
    Refused,
    /// What it answered is no HTTP, or a status that is no success.
    Status(Option<u16>),
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl Probe {
    /// Asks all backends of a table, from the namespace of the balancer's interface.
    pub fn ask_all(&self, site: &Site, table: &Table) -> Result<Vec<Health>> {
        let mut paths = Vec::new();
        for vip in &table.vips {
            let is_tcp = vip.service.protocol == Protocol::Tcp;
            let port = match (vip.service.port, self.port) {
                (port, _) if is_tcp && port != 0 => port,
                (_, Some(port)) => port,
                (0, None) => {
                    return Err(Error::usage(
                        format!("cannot check the backends of {}", vip.service),
                        "it is about all ports",
                    )
                    .fix("--port N names the one to check"));
                }
                (_, None) => {
                    return Err(Error::usage(
                        format!("cannot check the backends of {}", vip.service),
                        "a TCP connection says nothing about a UDP port",
                    )
                    .fix("--port N names a TCP port to check"));
                }
            };
            let probe = |backend| path::Probe { vip, backend, port };
            paths.extend(vip.backends.iter().map(probe));
        }
        let answers = path::ask(site, table.sources, &paths, self.timeout)?;
        let asks_itself = self.http.is_some() || self.port.is_some();
        let own = |probe: &path::Probe<'_>| {
            let port = self.port.unwrap_or(probe.port);
            SocketAddr::new(probe.backend.address, port)
        };
        // Where no answer came, the backend's own address tells whether it is the path.
        let jobs = paths.iter().zip(&answers).map(|(probe, answer)| {
            let is_asked = asks_itself || matches!(answer, Ok(Answer::Nothing));
            is_asked.then(|| own(probe))
        });
        let connected = self.connect_to_all(site, jobs.collect())?;
        let outcomes = paths.iter().zip(answers).zip(connected);
        let health = |((probe, answer), connected): ((&path::Probe<'_>, _), Option<_>)| Health {
            service: probe.vip.service,
            backend: probe.backend.address,
            forward: probe.vip.forward,
            own_port: asks_itself.then(|| own(probe).port()),
            answered: self.judge(probe, answer, connected),
        };
        Ok(outcomes.map(health).collect())
    }

    fn judge(
        &self,
        probe: &path::Probe<'_>,
        answer: std::result::Result<Answer, String>,
        connected: Option<std::result::Result<Duration, Failure>>,
    ) -> std::result::Result<Duration, Failure> {
        // A reset shows the path as well as a connection does. It is a failure where the service itself was asked.
        let serves = probe.vip.service.protocol == Protocol::Tcp && probe.vip.service.port != 0;
        match answer.map_err(Failure::Other)? {
            Answer::Nothing => Err(Failure::NoPath {
                answers_itself: matches!(connected, Some(Ok(_))),
            }),
            Answer::Reset(_) if serves => Err(Failure::Refused),
            Answer::Open(took) | Answer::Reset(took) => connected.unwrap_or(Ok(took)),
        }
    }

    /// Connects to addresses, several at a time; the outcomes have their order.
    fn connect_to_all(
        &self,
        site: &Site,
        jobs: Vec<Option<SocketAddr>>,
    ) -> Result<Vec<Option<std::result::Result<Duration, Failure>>>> {
        let next = Mutex::new(jobs.iter().enumerate());
        let found = Mutex::new(vec![None; jobs.len()]);
        let work = || {
            loop {
                let job = next.lock().ok().and_then(|mut next| next.next());
                let Some((number, at)) = job else {
                    return;
                };
                let answered = at.map(|at| self.ask(at));
                if let Ok(mut found) = found.lock() {
                    found[number] = answered;
                }
            }
        };
        // Threads begin in the namespace of the one that starts them.
        run_maybe_in(site.namespace(), || {
            std::thread::scope(|scope| {
                for _ in 0..jobs.iter().flatten().count().min(AT_ONCE) {
                    scope.spawn(work);
                }
            });
        })?;
        Ok(found.into_inner().unwrap_or_default())
    }

    fn ask(&self, at: SocketAddr) -> std::result::Result<Duration, Failure> {
        let began = Instant::now();
        let end = began + self.timeout;
        let stream = TcpStream::connect_timeout(&at, self.timeout)?;
        if let Some(path) = &self.http {
            ask_http(stream, at, path, end)?;
        }
        Ok(began.elapsed())
    }
}

fn ask_http(
    mut stream: TcpStream,
    at: SocketAddr,
    path: &str,
    end: Instant,
) -> std::result::Result<(), Failure> {
    let left = || match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(Failure::TimedOut),
        left => Ok(left),
    };
    stream.set_write_timeout(Some(left()?))?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 256];
    while !answer.contains(&b'\n') && answer.len() < LONGEST_STATUS {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    match status_of(&answer) {
        Some(status) if (200..400).contains(&status) => Ok(()),
        status => Err(Failure::Status(status)),
    }
}

/// Of `HTTP/1.1 200 OK`, the number.
fn status_of(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    words
        .next()
        .filter(|version| version.starts_with("HTTP/"))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answer_with(text: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            let mut request = [0; 512];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(text.as_bytes());
        });
        at
    }

    fn probe(http: Option<&str>) -> Probe {
        Probe {
            http: http.map(str::to_owned),
            port: None,
            timeout: Duration::from_secs(5),
        }
    }

    #[test]
    fn health_is_what_the_answer_says() {
        let asked = |text| probe(Some("/")).ask(answer_with(text));
        assert!(asked("HTTP/1.1 204 No Content\r\n\r\n").is_ok());
        assert_eq!(
            asked("HTTP/1.0 503 No\r\n"),
            Err(Failure::Status(Some(503)))
        );
        assert_eq!(asked("SSH-2.0\r\n"), Err(Failure::Status(None)));
        assert!(probe(None).ask(answer_with("")).is_ok());
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = free.local_addr().expect("an address");
        drop(free);
        assert_eq!(probe(None).ask(at), Err(Failure::Refused));
    }
}
