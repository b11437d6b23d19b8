//! An S3 server (moto, from PyPI) behind a proxy that injects faults, with one connection per request. Google's XML
//! interface is S3's with other headers, which the proxy renames.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::{binary, skip, trawl};

pub const BUCKET: &str = "trawl";

/// Objects are private; the server accepts any signature.
const AUTHORIZATION: &str =
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// Fault of the requests that create an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Each connection is closed at once, whatever the request.
    Partition,
    /// Nothing is forwarded until [`Server::set`] ends the fault.
    Slow,
    /// The request is answered with this status, and not executed.
    Status(u16),
    /// The request is executed, and the connection closed before its answer.
    LostReply,
    /// The request is executed twice; the second answer is returned.
    Doubled,
    /// The request is answered as a success, and not executed.
    Forgotten,
    /// Other bytes are stored.
    StoresOther,
    /// Reading requests get other bytes.
    Flipped,
    /// Reading requests get half of the bytes.
    Halved,
    /// Reading requests for a part between two offsets get another part, as if it were the right one.
    Shifted,
    /// Objects are listed, but cannot be read.
    Gone,
}

impl Fault {
    /// Returns whether requests of a method, and of a listing, may meet it.
    fn is_of(self, method: &str, lists: bool) -> bool {
        match self {
            Self::None => false,
            Self::Partition => true,
            Self::Flipped | Self::Halved | Self::Shifted | Self::Gone => method == "GET" && !lists,
            _ => method == "PUT",
        }
    }
}

/// Flips a bit in the middle.
fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x10;
    }
}

/// Splits an answer into its head and its body.
fn split(answer: &[u8]) -> (String, Vec<u8>) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.map_or(answer.len(), |end| end + 4);
    let (head, body) = answer.split_at(end);
    (String::from_utf8_lossy(head).into_owned(), body.to_vec())
}

/// Returns the first and the last offset of the part of an object that a request asks for.
fn asked_part(head: &str) -> Option<(u64, u64)> {
    let lower = head.to_ascii_lowercase();
    let (_, range) = lower.split_once("\r\nrange: bytes=")?;
    let (from, to) = range.lines().next()?.split_once('-')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// Replaces the lines of a head that begin with a name.
fn replaced(head: &str, name: &str, with: &str) -> String {
    let lines = head.split_inclusive("\r\n");
    lines.map(|line| if line.to_ascii_lowercase().starts_with(name) { with } else { line }).collect()
}

#[derive(Debug)]
struct Proxy {
    target: AtomicU16,
    /// The fault, the number of requests that meet it, and a part of their objects' keys.
    fault: Mutex<(Fault, u64, String)>,
    met: AtomicU64,
    ended: AtomicBool,
}

/// The server and its proxy, stopped when dropped.
#[derive(Debug)]
pub struct Server {
    moto: Child,
    proxy: Arc<Proxy>,
    port: u16,
}

const START: &str = "
import sys
try:
    from moto.server import ThreadedMotoServer
except ImportError:
    sys.exit(77)
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
";

/// Returns the directory of the packages that `make test` installs from PyPI.
pub fn python_packages() -> PathBuf {
    let target = binary::path().parent().and_then(std::path::Path::parent);
    target.expect("a target directory").join("python")
}

/// Starts the server and returns its port.
fn moto() -> Option<(Child, u16)> {
    let mut child = Command::new("python3")
        .args(["-c", START])
        .env("PYTHONPATH", python_packages())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    said.read_line(&mut line).expect("it is text");
    let Ok(target) = line.trim().parse() else {
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(77), "moto did not start");
        skip("Python's moto is not installed: pip install 'moto[server]'");
        return None;
    };
    Some((child, target))
}

/// Sends a request to an S3 server and returns the answer, status and body.
fn ask(port: u16, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

impl Server {
    /// Starts the server; reports that the test is skipped if trawl or Python lack support.
    pub fn open() -> Option<Self> {
        // A URL without a bucket is refused before any request.
        let probe = trawl(&["store", "ls", "s3://"]);
        if String::from_utf8_lossy(&probe.stderr).contains("for file:// stores only") {
            skip("this trawl has no S3: cargo build --bin trawl --features cloud");
            return None;
        }
        let (moto, target) = moto()?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let proxy = Arc::new(Proxy {
            target: AtomicU16::new(target),
            fault: Mutex::new((Fault::None, 0, String::new())),
            met: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let at_work = Arc::clone(&proxy);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if at_work.ended.load(Ordering::Acquire) {
                    return;
                }
                let proxy = Arc::clone(&at_work);
                std::thread::spawn(move || proxy.serve(stream));
            }
        });
        let server = Self { moto, proxy, port };
        server.make_bucket();
        Some(server)
    }

    fn make_bucket(&self) {
        assert_eq!(self.request("PUT", "", &[]).0, 200);
    }

    /// Kills the server with its data; the proxy closes each connection.
    pub fn kill(&mut self) {
        self.moto.kill().expect("it runs");
        self.moto.wait().expect("it ends");
    }

    /// Starts a new server in its place, with an empty bucket.
    pub fn restart(&mut self) {
        let (moto, target) = moto().expect("it started before");
        self.moto = moto;
        self.proxy.target.store(target, Ordering::Release);
        self.make_bucket();
    }

    /// Makes the next requests that create objects, or all of them, meet a fault.
    pub fn set(&self, fault: Fault, times: u64) {
        self.set_for("", fault, times);
    }

    /// Makes requests for objects with this part in their keys meet a fault.
    pub fn set_for(&self, part: &str, fault: Fault, times: u64) {
        *self.proxy.fault.lock().expect("no panic") = (fault, times, part.to_owned());
        self.proxy.met.store(0, Ordering::Release);
    }

    /// Returns the number of requests that met the fault.
    pub fn met(&self) -> u64 {
        self.proxy.met.load(Ordering::Acquire)
    }

    /// Returns the environment for trawl.
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
            ("NO_PROXY", "127.0.0.1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// Returns the environment for Google's interface, whose requests the proxy translates to S3's.
    pub fn environment_of_google(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        [
            ("GOOGLE_BASE_URL", endpoint.as_str()),
            ("GOOGLE_ALLOW_HTTP", "true"),
            ("GOOGLE_BEARER_TOKEN", "test"),
            ("NO_PROXY", "127.0.0.1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// Sends a request to the server, bypassing the proxy; returns status and body.
    pub fn request(&self, method: &str, key: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut request = format!(
            "{method} /{BUCKET}/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: {AUTHORIZATION}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        let answer = ask(self.proxy.target(), &request).expect("moto answers");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole answer");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        (status.expect("a status"), answer[end + 4..].to_vec())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.proxy.ended.store(true, Ordering::Release);
        // Wakes the listener's thread by a connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.moto.kill();
        let _ = self.moto.wait();
    }
}

impl Proxy {
    fn target(&self) -> u16 {
        self.target.load(Ordering::Acquire)
    }

    /// Returns the fault of a request, from its first line.
    fn fault(&self, request: &str) -> Fault {
        let mut state = self.fault.lock().expect("no panic");
        let (fault, left, part) = &*state;
        let (fault, left) = (*fault, *left);
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let is_meant = fault.is_of(method, target.contains("list-type")) && target.contains(&**part);
        if left == 0 || !is_meant {
            return Fault::None;
        }
        if fault != Fault::Slow {
            state.1 = left.saturating_sub(1);
        }
        self.met.fetch_add(1, Ordering::AcqRel);
        fault
    }

    fn is_slow(&self) -> bool {
        self.fault.lock().expect("no panic").0 == Fault::Slow && !self.ended.load(Ordering::Acquire)
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
        let mut head = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
            if lower.starts_with("authorization: bearer") {
                head.push_str(&format!("Authorization: {AUTHORIZATION}\r\n"));
            } else if lower.starts_with("x-goog-if-generation-match: 0") {
                // This is Google's equivalent of `If-None-Match: *`.
                head.push_str("If-None-Match: *\r\n");
            } else if !lower.starts_with("connection:") {
                head.push_str(&line);
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let fault = self.fault(&head);
        let part = asked_part(&head);
        match (fault, part) {
            (Fault::StoresOther, _) => flip(&mut body),
            (Fault::Shifted, Some((from, to))) => {
                let other = format!("Range: bytes={}-{}\r\n", from / 2, to - from + from / 2);
                head = replaced(&head, "range:", &other);
            }
            _ => {}
        }
        let mut request = format!("{head}Connection: close\r\n\r\n").into_bytes();
        request.extend_from_slice(&body);
        let refused =
            |status: u16| format!("HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let answer = match fault {
            Fault::Partition => return,
            Fault::Status(status) => refused(status).into_bytes(),
            Fault::Gone => refused(404).into_bytes(),
            Fault::Forgotten => {
                b"HTTP/1.1 200 OK\r\nETag: \"0\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
            }
            Fault::Flipped | Fault::Halved => {
                let answer = ask(self.target(), &request).unwrap_or_default();
                let (head, mut body) = split(&answer);
                match fault {
                    Fault::Flipped => flip(&mut body),
                    _ => body.truncate(body.len() / 2),
                }
                let length = format!("Content-Length: {}\r\n", body.len());
                let head = replaced(&head, "content-length:", &length);
                [head.into_bytes(), body].concat()
            }
            Fault::Slow => {
                while self.is_slow() {
                    std::thread::park_timeout(std::time::Duration::from_millis(5));
                }
                ask(self.target(), &request).unwrap_or_default()
            }
            Fault::Shifted => {
                let answer = ask(self.target(), &request).unwrap_or_default();
                let (head, body) = split(&answer);
                let range = head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-range:"));
                let all = range.and_then(|line| line.rsplit('/').next()).unwrap_or("*");
                let head = match part {
                    Some((from, to)) => {
                        let part = format!("Content-Range: bytes {from}-{to}/{all}\r\n");
                        replaced(&head, "content-range:", &part)
                    }
                    None => head,
                };
                [head.into_bytes(), body].concat()
            }
            Fault::None | Fault::StoresOther => ask(self.target(), &request).unwrap_or_default(),
            Fault::LostReply => {
                let _ = ask(self.target(), &request);
                return;
            }
            Fault::Doubled => {
                let _ = ask(self.target(), &request);
                ask(self.target(), &request).unwrap_or_default()
            }
        };
        let _ = stream.write_all(&answer);
        let _ = stream.shutdown(Shutdown::Both);
    }
}
