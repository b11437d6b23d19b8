//! The subset of HTTP for a scraper and a browser: GET, one answer a connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trawl_sys::Result;

use super::Plots;
use super::{Figures, metrics};

const PAGE: &str = include_str!("page.html");
/// Largest request: its first line and headers.
const MOST: usize = 16 << 10;
/// Time in which a client must send its request, and accept each part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most connections at the same time; further ones get an error and are closed.
const AT_ONCE: usize = 32;

struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn plain(status: &'static str, body: String) -> Self {
        Self {
            status,
            kind: "text/plain",
            body,
        }
    }
}

/// Answers requests as long as the listener lives, each in a thread of its own: an idle client does not delay others.
pub(super) fn serve(
    listener: &TcpListener,
    figures: &(dyn Fn() -> Result<Figures> + Sync),
    plots: &(dyn Fn() -> Plots + Sync),
) {
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for connection in listener.incoming().flatten() {
            if busy.fetch_add(1, Ordering::Relaxed) >= AT_ONCE {
                busy.fetch_sub(1, Ordering::Relaxed);
                let why = "too many connections at once\n".to_owned();
                send(connection, &Answer::plain("503 Service Unavailable", why));
                continue;
            }
            let busy = &busy;
            scope.spawn(move || {
                answer(connection, figures, plots);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

/// Answers one request; a client that disconnects is not an error.
fn answer(
    mut connection: TcpStream,
    figures: &dyn Fn() -> Result<Figures>,
    plots: &dyn Fn() -> Plots,
) {
    let request = head(&mut connection);
    if let Some(request) = request {
        send(connection, &answer_to(&request, figures, plots));
    }
}

fn send(mut connection: TcpStream, answer: &Answer) {
    let Answer { status, kind, body } = answer;
    if connection.set_write_timeout(Some(PATIENCE)).is_err() {
        return;
    }
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
         Content-Security-Policy: default-src 'self' 'unsafe-inline'\r\nX-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = connection
        .write_all(head.as_bytes())
        .and_then(|()| connection.write_all(body.as_bytes()));
}

fn head(connection: &mut TcpStream) -> Option<String> {
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut buffer = [0; 1024];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        // The deadline covers the whole head: a byte a second does not prolong it.
        let left = deadline.checked_duration_since(std::time::Instant::now())?;
        let left = left.max(Duration::from_millis(1));
        connection.set_read_timeout(Some(left)).ok()?;
        let count = connection.read(&mut buffer).ok()?;
        if count == 0 || bytes.len() > MOST {
            return None;
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
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

fn answer_to(
    request: &str,
    figures: &dyn Fn() -> Result<Figures>,
    plots: &dyn Fn() -> Plots,
) -> Answer {
    let plain = |status, body: &str| Answer::plain(status, body.to_owned());
    let mut words = request.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    if method != "GET" {
        return plain("405 Method Not Allowed", "only GET is answered\n");
    }
    // A page of another site may resolve its own name to this machine (DNS rebinding); loopback has no other names.
    let host = request.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    if host.is_some_and(|host| !is_address(host)) {
        return plain("403 Forbidden", "name this machine by its address\n");
    }
    let answer = |make: fn(&Figures) -> Option<String>, kind| match figures() {
        Ok(figures) => match make(&figures) {
            Some(body) => Answer {
                status: "200 OK",
                kind,
                body,
            },
            None => plain("500 Internal Server Error", "the figures cannot be shown\n"),
        },
        Err(error) => plain("500 Internal Server Error", &format!("{error}\n")),
    };
    match target.split('?').next().unwrap_or("") {
        "/" => Answer {
            status: "200 OK",
            kind: "text/html",
            body: PAGE.to_owned(),
        },
        "/metrics" => answer(
            |figures| Some(metrics::text(figures)),
            "text/plain; version=0.0.4",
        ),
        "/figures.json" => answer(
            |figures| serde_json::to_string(figures).ok(),
            "application/json",
        ),
        "/history.json" => match serde_json::to_string(&plots()) {
            Ok(body) => Answer {
                status: "200 OK",
                kind: "application/json",
                body,
            },
            Err(error) => plain("500 Internal Server Error", &format!("{error}\n")),
        },
        _ => plain(
            "404 Not Found",
            "the pages are /, /metrics, /figures.json and /history.json\n",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::is_address;

    #[test]
    fn hosts_are_numbers_or_localhost() {
        for host in [
            "localhost",
            "LocalHost:9464",
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:9464",
        ] {
            assert!(is_address(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:80",
            "[evil]",
            "::1",
            "[::1",
        ] {
            assert!(!is_address(host), "{host}");
        }
    }
}
