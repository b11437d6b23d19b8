//! Health of the backends, asked from outside of the fast path: a TCP connection or an HTTP request to each, bounded in
//! time and in how many are asked at once.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use trawl_kernel::netns::run_maybe_in;
use trawl_kernel::{Error, Result};
use trawl_program::Site;

use crate::service::{Protocol, Service};
use crate::table::Table;

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
    /// How long the answer took.
    pub answered: std::result::Result<Duration, Failure>,
}

/// Why a backend is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    TimedOut,
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
        let mut jobs = Vec::new();
        for vip in &table.vips {
            let port = match (self.port, vip.service.port) {
                (Some(port), _) => port,
                (None, 0) => {
                    return Err(Error::usage(
                        format!("cannot check the backends of {}", vip.service),
                        "it is about all ports",
                    )
                    .fix(crate::fix::Fix::CheckPort));
                }
                (None, _) if vip.service.protocol != Protocol::Tcp => {
                    return Err(Error::usage(
                        format!("cannot check the backends of {}", vip.service),
                        "a TCP connection says nothing about a UDP port",
                    )
                    .fix(crate::fix::Fix::CheckTcpPort));
                }
                (None, port) => port,
            };
            for one in &vip.backends {
                jobs.push((vip.service, SocketAddr::new(one.address, port)));
            }
        }
        let next = Mutex::new(jobs.iter().enumerate());
        let found = Mutex::new(Vec::with_capacity(jobs.len()));
        let work = || {
            loop {
                let job = next.lock().ok().and_then(|mut next| next.next());
                let Some((number, (service, at))) = job else {
                    return;
                };
                let health = Health {
                    service: *service,
                    backend: at.ip(),
                    answered: self.ask(*at),
                };
                if let Ok(mut found) = found.lock() {
                    found.push((number, health));
                }
            }
        };
        // Threads begin in the namespace of the one that starts them.
        run_maybe_in(site.namespace(), || {
            std::thread::scope(|scope| {
                for _ in 0..jobs.len().min(AT_ONCE) {
                    scope.spawn(work);
                }
            });
        })?;
        let mut found = found.into_inner().unwrap_or_default();
        found.sort_by_key(|(number, _)| *number);
        Ok(found.into_iter().map(|(_, health)| health).collect())
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
