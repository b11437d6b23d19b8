//! The agent's health by HTTP, for the probes of Kubernetes and for Prometheus. The agent's own loop answers, so that an
//! agent that hangs does not.

mod metrics;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use trawl_front::{prometheus, terminal};
use trawl_spool::figures::Figures;
use trawl_sys::{Error, Result, clock};

use crate::agent::{CaptureReport, HostReport, Phase, Refusal};

/// Longest head of a request.
const HEAD: usize = 8 << 10;
/// Longest time that a client has to send its request.
const PATIENCE: Duration = Duration::from_millis(100);

/// State of an agent.
pub struct Facts {
    pub report: HostReport,
    /// Set while the bus is connected; absent without a bus.
    pub is_connected: Option<bool>,
    /// Figures of the spool, by capture.
    pub spool: BTreeMap<String, Figures>,
}

pub struct Health(TcpListener);

impl Health {
    pub fn listen(address: SocketAddr) -> Result<Self> {
        let what = || format!("cannot answer probes at {address}");
        let listener = TcpListener::bind(address).map_err(|e| Error::os(what(), e))?;
        let ready = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
        let address = ready.map_err(|e| Error::os(what(), e))?;
        terminal::say(&format!("answering probes at http://{address}/livez"));
        Ok(Self(listener))
    }

    /// Answers the next probe, if there is one: /livez with success, /readyz with success if all desired captures run,
    /// /metrics with figures.
    pub fn answer(&self, facts: impl FnOnce() -> Facts) {
        if let Ok((stream, _)) = self.0.accept() {
            // The client may have gone.
            let _ = reply(stream, facts);
        }
    }
}

impl AsFd for Health {
    /// Becomes readable once a probe waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn reply(mut stream: TcpStream, facts: impl FnOnce() -> Facts) -> io::Result<()> {
    let request = read(&mut stream)?;
    let (status, text) = match request.split(|byte| *byte == b' ').nth(1) {
        Some(b"/livez") => ("200 OK", String::new()),
        Some(b"/readyz") => match unready(&facts().report) {
            None => ("200 OK", String::new()),
            Some(why) => ("503 Service Unavailable", why),
        },
        Some(b"/metrics") => ("200 OK", metrics::text(&facts(), clock::wall())),
        _ => ("404 Not Found", "no such page: the agent answers /livez, /readyz and /metrics".to_owned()),
    };
    let (length, kind) = (text.len(), prometheus::KIND);
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

/// Reads a request to the end of its head, which may arrive in pieces.
fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    stream.set_nonblocking(false)?;
    let until = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < HEAD {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        let length = stream.read(&mut piece)?;
        if length == 0 || Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        request.extend_from_slice(&piece[..length]);
    }
    Ok(request)
}

/// Returns the first reason why a desired capture does not run. A command that its operator may not give counts for
/// nothing.
fn unready(report: &HostReport) -> Option<String> {
    if let Some(error) = &report.error {
        return Some(error.clone());
    }
    if report.stopping {
        return Some("the agent is ending".to_owned());
    }
    let runs = |one: &CaptureReport| matches!(one.phase, Phase::Running | Phase::Finished);
    let counts = |one: &CaptureReport| !one.refused.as_ref().is_some_and(Refusal::is_of_operator);
    report.captures.iter().find(|one| !runs(one) && counts(one)).map(described)
}

/// Returns the phase of a capture and its reason as a sentence.
fn described(one: &CaptureReport) -> String {
    let phase = format!("{:?}", one.phase).to_lowercase();
    let why = one.refused.as_ref().map(ToString::to_string).or_else(|| one.error.clone());
    let why = why.map(|why| format!(": {why}"));
    format!("the capture '{}' is {phase}{}", one.capture.name, why.unwrap_or_default())
}

/// Returns a sentence for each capture that the policy refuses.
pub fn refusals(report: &HostReport) -> Vec<String> {
    let refused = report.captures.iter().filter(|one| one.phase == Phase::Refused);
    refused.map(described).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Event, Machine, Now, Policy};

    #[test]
    fn agent_is_ready_while_it_does_as_desired() {
        let mut machine = Machine::new(Policy::default(), true, Vec::new(), Vec::new());
        let why = |machine: &Machine| unready(&machine.report("host", "0", Now::default()));
        assert_eq!(why(&machine), None);
        let text = "[[capture]]\nname = \"a\"\ninterfaces = [\"eth0\"]\nstore = \"s\"";
        let desired = crate::agent::Desired::parse(text).unwrap();
        machine.step(Now::default(), Event::Desired { sender: None, revision: 1, state: desired.into() });
        assert_eq!(why(&machine).as_deref(), Some("the capture 'a' is starting"));
        machine.step(Now::default(), Event::Ready { run: 1 });
        assert_eq!(why(&machine), None);
        let unreadable = Event::Unreadable { sender: None, revision: 2, why: "no TOML".to_owned() };
        machine.step(Now::default(), unreadable);
        assert_eq!(why(&machine).as_deref(), Some("no TOML"));
    }

    #[test]
    fn refusal_has_its_reason() {
        let policy = Policy::parse("max_duration_seconds = 60").unwrap();
        let mut machine = Machine::new(policy, true, Vec::new(), Vec::new());
        let text = "[[capture]]\nname = \"a\"\ninterfaces = [\"eth0\"]\nstore = \"s\"";
        let desired = crate::agent::Desired::parse(text).unwrap();
        machine.step(Now::default(), Event::Desired { sender: None, revision: 1, state: desired.into() });
        let report = machine.report("host", "0", Now::default());
        let why = "the capture 'a' is refused: policy: duration_seconds is missing, at most 60";
        assert_eq!(refusals(&report), [why]);
        assert_eq!(unready(&report).as_deref(), Some(why));
    }
}
