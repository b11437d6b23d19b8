//! The subset of HTTP for scrapers, browsers and webhooks: one request and one answer per connection, each in a thread
//! of its own.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum size of a request's first line and headers.
const HEAD: usize = 16 << 10;
/// Maximum size of a request's body: Alertmanager describes each alert of a group in a kilobyte.
const BODY: usize = 1 << 20;
/// Time in which a client must send its request, and accept each part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of connections whose requests have not arrived. A newer one closes the oldest, so that idle clients
/// keep nobody out.
const WAITING: usize = 32;
/// Maximum number of answers at the same time; further requests get an error.
const AT_ONCE: usize = 32;

/// A request that has arrived.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    /// Names and values of the header lines.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Address of the client.
    pub from: IpAddr,
}

/// An answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: &'static str,
    pub kind: &'static str,
    pub body: String,
}

impl Answer {
    pub fn plain(status: &'static str, body: &str) -> Self {
        Self { status, kind: "text/plain", body: body.to_owned() }
    }
}

impl Request {
    /// Returns a header's value, if the request has exactly one header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(one, _)| one.eq_ignore_ascii_case(name));
        let (_, value) = values.next()?;
        values.next().is_none().then_some(value)
    }

    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(one, _)| one.eq_ignore_ascii_case(name))
    }

    /// Refuses requests that a page of another site makes a browser send: those with that site's origin and, because
    /// the page may resolve its own name to this machine (DNS rebinding), those that address this machine by a name.
    pub fn refuse_pages(&self) -> Option<Answer> {
        let host = self.header("host");
        if self.has("host") && !host.is_some_and(is_address) {
            return Some(Answer::plain("403 Forbidden", "address this machine by its IP address\n"));
        }
        self.refuse_origins()
    }

    /// Refuses a request with the origin of another site.
    fn refuse_origins(&self) -> Option<Answer> {
        let own = self.header("host").map(|host| format!("http://{host}"));
        let is_own = !self.has("origin") || (own.is_some() && self.header("origin") == own.as_deref());
        (!is_own).then(|| Answer::plain("403 Forbidden", "pages of other sites are not answered\n"))
    }

    /// Returns true if the request has this token: `Authorization: Bearer TOKEN`. The duration does not depend on which
    /// bytes are equal.
    pub fn has_token(&self, token: &str) -> bool {
        let given = self.header("authorization").unwrap_or_default();
        let given = given.strip_prefix("Bearer ").unwrap_or_default().as_bytes();
        let differences = given.iter().zip(token.as_bytes()).fold(0, |all, (one, other)| all | (one ^ other));
        // Without the black box, the optimizer could end the loop at the first difference.
        given.len() == token.len() && std::hint::black_box(differences) == 0
    }
}

/// Connections whose requests have not arrived, the oldest first, and the number of the next.
#[derive(Default)]
struct Waiting {
    connections: VecDeque<(u64, TcpStream)>,
    next: u64,
}

/// Answers requests as long as the listener lives.
pub fn serve(listener: &TcpListener, answer: &(dyn Fn(&Request) -> Answer + Sync)) {
    let waiting = Mutex::new(Waiting::default());
    let answering = AtomicUsize::new(0);
    let answering = &answering;
    let locked = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for mut connection in listener.incoming().flatten() {
            let Ok(copy) = connection.try_clone() else {
                continue;
            };
            let number = {
                let mut waiting = locked();
                if waiting.connections.len() >= WAITING
                    && let Some((_, oldest)) = waiting.connections.pop_front()
                {
                    let _ = oldest.shutdown(Shutdown::Both);
                }
                waiting.next += 1;
                let number = waiting.next;
                waiting.connections.push_back((number, copy));
                number
            };
            let locked = &locked;
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                let request = read(&mut connection);
                locked().connections.retain(|(one, _)| *one != number);
                let is_busy = answering.fetch_add(1, Ordering::Relaxed) >= AT_ONCE;
                match request {
                    Ok(_) if is_busy => {
                        let why = "too many requests at once\n";
                        send(connection, &Answer::plain("503 Service Unavailable", why));
                    }
                    Ok(request) => send(connection, &answer(&request)),
                    Err(Some(refusal)) => send(connection, &refusal),
                    // A client that disconnects is not an error.
                    Err(None) => {}
                }
                answering.fetch_sub(1, Ordering::Relaxed);
            });
            if started.is_err() {
                locked().connections.retain(|(one, _)| *one != number);
            }
        }
    });
}

fn send(mut connection: TcpStream, answer: &Answer) {
    let Answer { status, kind, body } = answer;
    if connection.set_write_timeout(Some(PATIENCE)).is_err() {
        return;
    }
    let allow = if status.starts_with("401") { "WWW-Authenticate: Bearer\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n{allow}\
         Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\nX-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body.as_bytes()));
}

/// Reads a request. The error is the answer to a request that cannot be read; `None` if the client gets no answer.
fn read(connection: &mut TcpStream) -> Result<Request, Option<Answer>> {
    let from = connection.peer_addr().map_err(|_| None::<Answer>)?.ip();
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut more = |bytes: &mut Vec<u8>| -> Result<(), Option<Answer>> {
        // The deadline covers the whole request: a byte a second does not prolong it.
        let left = deadline.checked_duration_since(Instant::now()).ok_or(None::<Answer>)?.max(Duration::from_millis(1));
        connection.set_read_timeout(Some(left)).map_err(|_| None::<Answer>)?;
        let mut buffer = [0; 16 << 10];
        match connection.read(&mut buffer) {
            Ok(0) | Err(_) => Err(None),
            Ok(count) => {
                bytes.extend_from_slice(&buffer[..count]);
                Ok(())
            }
        }
    };
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        if bytes.len() > HEAD {
            let status = "431 Request Header Fields Too Large";
            return Err(Some(Answer::plain(status, "the head is too large\n")));
        }
        more(&mut bytes)?;
    };
    let mut request = parse(&bytes[..end], from);
    let length = length(&request).map_err(Some)?;
    while bytes.len() < end + length {
        more(&mut bytes)?;
    }
    request.body = bytes[end..end + length].to_vec();
    Ok(request)
}

fn parse(head: &[u8], from: IpAddr) -> Request {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split_whitespace().map(str::to_owned);
    let headers = lines.filter_map(|line| line.split_once(':'));
    Request {
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        headers: headers.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect(),
        body: Vec::new(),
        from,
    }
}

/// Returns the length of a request's body.
fn length(request: &Request) -> Result<usize, Answer> {
    if request.has("transfer-encoding") {
        return Err(Answer::plain("411 Length Required", "send a Content-Length\n"));
    }
    if !request.has("content-length") {
        return Ok(0);
    }
    let wrong = || Answer::plain("400 Bad Request", "the Content-Length is not one number\n");
    let text = request.header("content-length").ok_or_else(wrong)?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    match text.parse::<usize>() {
        Ok(length) if length <= BODY => Ok(length),
        _ => Err(Answer::plain("413 Content Too Large", "the body is larger than 1 MiB\n")),
    }
}

/// Returns true if a Host header names this machine by a number, or as localhost; the port is optional.
fn is_address(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::Ipv4Addr>().is_ok()
        || name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(head: &str) -> Request {
        parse(head.replace('\n', "\r\n").as_bytes(), IpAddr::from([127, 0, 0, 1]))
    }

    #[test]
    fn hosts_are_numbers_or_localhost() {
        for host in ["localhost", "LocalHost:9464", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:9464"] {
            assert!(is_address(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:80", "[evil]", "::1", "[::1"] {
            assert!(!is_address(host), "{host}");
        }
    }

    #[test]
    fn requests_of_other_sites_pages_are_refused() {
        let refused = |head: &str| request(head).refuse_pages().is_some();
        assert!(!refused("GET / HTTP/1.1\nHost: 127.0.0.1:9\n\n"));
        assert!(!refused("POST / HTTP/1.1\nHost: 127.0.0.1:9\nOrigin: http://127.0.0.1:9\n\n"));
        for head in [
            "GET / HTTP/1.1\nHost: evil.example\n\n",
            "POST / HTTP/1.1\nHost: 127.0.0.1:9\nOrigin: http://evil.example\n\n",
            "POST / HTTP/1.1\nHost: 127.0.0.1:9\nOrigin: null\n\n",
            "POST / HTTP/1.1\nOrigin: http://evil.example\n\n",
            "POST / HTTP/1.1\nHost: 127.0.0.1:9\nHost: evil.example\n\n",
        ] {
            assert!(refused(head), "{head}");
        }
    }

    #[test]
    fn only_the_whole_token_is_accepted() {
        let has = |value: &str| request(&format!("POST / HTTP/1.1\nAuthorization: {value}\n\n")).has_token("secret");
        assert!(has("Bearer secret"));
        for value in ["Bearer secre", "Bearer secrets", "Bearer ", "secret", "Bearer Secret"] {
            assert!(!has(value), "{value}");
        }
    }

    #[test]
    fn lengths_are_one_number_of_at_most_1_mib() {
        let of = |lines: &str| {
            let answer = length(&request(&format!("POST / HTTP/1.1\n{lines}\n\n")));
            answer.map_err(|refusal| refusal.status)
        };
        assert_eq!(of("A: b"), Ok(0));
        assert_eq!(of("Content-Length: 5"), Ok(5));
        for wrong in ["+5", "-1", "", "5, 5", "0x10", "5\nContent-Length: 6"] {
            assert_eq!(of(&format!("Content-Length: {wrong}")), Err("400 Bad Request"), "{wrong}");
        }
        for long in ["1048577", "18446744073709551615", "18446744073709551616"] {
            assert_eq!(of(&format!("Content-Length: {long}")), Err("413 Content Too Large"));
        }
        assert_eq!(of("Transfer-Encoding: chunked"), Err("411 Length Required"));
    }

    #[test]
    fn idle_clients_keep_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            serve(&listener, &|request| Answer::plain("200 OK", &request.target));
        });
        let idle: Vec<TcpStream> = (0..3 * WAITING).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(b"GET /here HTTP/1.1\r\n\r\n").expect("it is read");
        let mut said = String::new();
        client.read_to_string(&mut said).expect("an answer");
        assert!(said.starts_with("HTTP/1.1 200 OK") && said.ends_with("/here"), "{said}");
        drop(idle);
    }
}
