//! The subset of HTTP for scrapers, browsers and webhooks: one request and one answer per connection, each in a thread
//! of its own.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trawl_sys::{Error, Result, events};

/// Maximum size of a request's first line and headers.
const HEAD: usize = 16 << 10;
/// Maximum size of a request's body: Alertmanager describes each alert of a group in a kilobyte.
const BODY: usize = 1 << 20;
/// Time in which a client must send its request, and accept each part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time in which a client must accept each part of an answer that is written while it is made.
const STREAM_PATIENCE: Duration = Duration::from_secs(30);
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

/// The connection to a client that waits for its answer.
#[derive(Clone, Debug)]
pub struct Client(Arc<TcpStream>);

impl Client {
    /// Returns true if the client has closed the connection.
    pub fn is_gone(&self) -> bool {
        events::is_readable(self.0.as_fd()) && !matches!(self.0.peek(&mut [0]), Ok(1))
    }
}

/// Makes a body while it is written.
type Source = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()>>;

/// The body of an answer.
pub enum Body {
    Text(String),
    /// A body whose end the client does not see if an error interrupts it.
    Stream(Source),
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Body {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.debug_tuple("Text").field(text).finish(),
            Self::Stream(_) => f.debug_tuple("Stream").finish_non_exhaustive(),
        }
    }
}

/// Allows a page to use only its own server, and the scripts and styles in its text.
const POLICY: &str = "default-src 'self' 'unsafe-inline'";

/// An answer to a request.
#[derive(Debug)]
pub struct Answer {
    status: &'static str,
    kind: &'static str,
    body: Body,
    policy: &'static str,
    headers: Vec<(&'static str, String)>,
}

impl Answer {
    pub fn new(status: &'static str, kind: &'static str, body: impl Into<Body>) -> Self {
        Self { status, kind, body: body.into(), policy: POLICY, headers: Vec::new() }
    }

    pub fn plain(status: &'static str, body: &str) -> Self {
        Self::new(status, "text/plain", body)
    }

    /// Sets the Content-Security-Policy.
    pub fn policy(self, policy: &'static str) -> Self {
        Self { policy, ..self }
    }

    /// Adds a header line, whose value must not contain line ends.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the text before the body.
    fn head(&self) -> String {
        let Self { status, kind, body, policy, headers } = self;
        let mut head = format!("HTTP/1.1 {status}\r\n");
        let is_text = kind.starts_with("text/") || *kind == "application/json";
        let mut add = |name: &str, value: &str| {
            let _ = write!(head, "{name}: {value}\r\n");
        };
        add("Content-Type", &format!("{kind}{}", if is_text { "; charset=utf-8" } else { "" }));
        match body {
            Body::Text(text) => add("Content-Length", &text.len().to_string()),
            Body::Stream(_) => add("Transfer-Encoding", "chunked"),
        }
        if status.starts_with("401") {
            add("WWW-Authenticate", "Bearer");
        }
        add("Content-Security-Policy", policy);
        add("X-Content-Type-Options", "nosniff");
        add("Cache-Control", "no-store");
        headers.iter().for_each(|(name, value)| add(name, value));
        add("Connection", "close");
        head + "\r\n"
    }
}

/// Writes each part as a chunk of HTTP.
struct Chunked<'a>(&'a TcpStream);

impl Write for Chunked<'_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if !part.is_empty() {
            let length = format!("{:x}\r\n", part.len());
            self.0.write_all(&[length.as_bytes(), part, b"\r\n"].concat())?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

    /// Refuses a request with the origin of another site. A proxy may have added TLS.
    pub fn refuse_origins(&self) -> Option<Answer> {
        let origin = self.header("origin").and_then(|origin| origin.split_once("://"));
        let is_own = !self.has("origin") || origin.is_some_and(|(_, host)| self.header("host") == Some(host));
        (!is_own).then(|| Answer::plain("403 Forbidden", "pages of other sites are not answered\n"))
    }

    /// Returns true if the request has this token: `Authorization: Bearer TOKEN`. The duration does not depend on which
    /// bytes are equal.
    pub fn has_token(&self, token: &str) -> bool {
        let given = self.header("authorization").unwrap_or_default();
        is_same(given.strip_prefix("Bearer ").unwrap_or_default(), token)
    }
}

/// Returns true if two secrets are equal. The duration does not depend on which bytes are equal.
pub fn is_same(given: &str, secret: &str) -> bool {
    let differences = given.bytes().zip(secret.bytes()).fold(0, |all, (one, other)| all | (one ^ other));
    // Without the black box, the optimizer could end the loop at the first difference.
    given.len() == secret.len() && std::hint::black_box(differences) == 0
}

/// Connections whose requests have not arrived, the oldest first, and the number of the next.
#[derive(Default)]
struct Waiting {
    connections: VecDeque<(u64, TcpStream)>,
    next: u64,
}

/// Listens for connections.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| cannot_listen(address, error))
}

fn cannot_listen(address: SocketAddr, error: std::io::Error) -> Error {
    let fix = match error.kind() {
        ErrorKind::AddrInUse => Some(format!(
            "give another port with --listen, or end the command that listens there: ss -ltnp 'sport = :{}'",
            address.port()
        )),
        ErrorKind::AddrNotAvailable => Some("give an address of this machine with --listen: ip address".to_owned()),
        ErrorKind::PermissionDenied => Some("give a port above 1023 with --listen, or run as root".to_owned()),
        _ => None,
    };
    let error = Error::os(format!("cannot listen on {address}"), error);
    match fix {
        Some(fix) => error.fix(fix),
        None => error,
    }
}

/// Answers requests as long as the listener lives.
pub fn serve(listener: &TcpListener, answer: &(dyn Fn(&Request, &Client) -> Answer + Sync)) {
    let waiting = Mutex::new(Waiting::default());
    let answering = AtomicUsize::new(0);
    let answering = &answering;
    let locked = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for connection in listener.incoming().flatten() {
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
                let client = Client(Arc::new(connection));
                let request = read(&client.0);
                locked().connections.retain(|(one, _)| *one != number);
                let is_busy = answering.fetch_add(1, Ordering::Relaxed) >= AT_ONCE;
                match request {
                    Ok(_) if is_busy => {
                        let why = "too many requests at once\n";
                        let _ = send(&client.0, Answer::plain("503 Service Unavailable", why));
                    }
                    // A client that disconnects is not an error.
                    Ok(request) => drop(send(&client.0, answer(&request, &client))),
                    Err(Some(refusal)) => drop(send(&client.0, refusal)),
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

fn send(mut connection: &TcpStream, answer: Answer) -> io::Result<()> {
    let head = answer.head();
    connection.set_write_timeout(Some(PATIENCE))?;
    connection.write_all(head.as_bytes())?;
    match answer.body {
        Body::Text(text) => connection.write_all(text.as_bytes()),
        Body::Stream(source) => {
            connection.set_write_timeout(Some(STREAM_PATIENCE))?;
            source(&mut Chunked(connection))?;
            connection.write_all(b"0\r\n\r\n")
        }
    }
}

/// Reads a request. The error is the answer to a request that cannot be read; `None` if the client gets no answer.
fn read(mut connection: &TcpStream) -> std::result::Result<Request, Option<Answer>> {
    let from = connection.peer_addr().map_err(|_| None::<Answer>)?.ip();
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut more = |bytes: &mut Vec<u8>| -> std::result::Result<(), Option<Answer>> {
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
fn length(request: &Request) -> std::result::Result<usize, Answer> {
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

    /// Serves answers, and returns the address.
    fn served(answer: impl Fn(&Request, &Client) -> Answer + Send + Sync + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || serve(&listener, &answer));
        address
    }

    #[test]
    fn interrupted_stream_has_no_end() {
        let address = served(|request, _| {
            let is_whole = request.target == "/whole";
            let source = move |out: &mut dyn Write| {
                out.write_all(b"one").and_then(|()| out.write_all(b"two"))?;
                if is_whole { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
            };
            Answer::new("200 OK", "text/plain", Body::Stream(Box::new(source)))
        });
        for (target, expected) in
            [("/whole", "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"), ("/cut", "3\r\none\r\n3\r\ntwo\r\n")]
        {
            let mut client = TcpStream::connect(address).expect("it listens");
            client.write_all(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes()).expect("it is read");
            let mut said = String::new();
            client.read_to_string(&mut said).expect("an answer");
            assert_eq!(said.split_once("\r\n\r\n").map(|(_, body)| body), Some(expected));
        }
    }

    #[test]
    fn client_that_closes_is_gone() {
        let (sender, gone) = std::sync::mpsc::channel();
        let sender = Mutex::new(sender);
        let address = served(move |_, client| {
            let sender = sender.lock().expect("a sender");
            sender.send(client.is_gone()).expect("it waits");
            while !client.is_gone() {
                std::thread::yield_now();
            }
            sender.send(true).expect("it waits");
            Answer::plain("200 OK", "")
        });
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is read");
        assert_eq!(gone.recv(), Ok(false));
        drop(client);
        assert_eq!(gone.recv(), Ok(true));
    }

    #[test]
    fn idle_clients_keep_nobody_out() {
        let address = served(|request, _| Answer::plain("200 OK", &request.target));
        let idle: Vec<TcpStream> = (0..3 * WAITING).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(b"GET /here HTTP/1.1\r\n\r\n").expect("it is read");
        let mut said = String::new();
        client.read_to_string(&mut said).expect("an answer");
        assert!(said.starts_with("HTTP/1.1 200 OK") && said.ends_with("/here"), "{said}");
        drop(idle);
    }
}
