//! The agent's health by HTTP, for the probes of Kubernetes. The agent's own loop answers, so that an agent that hangs
//! does not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use trawl_sys::{Error, Result};

use crate::agent::{HostReport, Phase};

/// Longest time that a client has to send its request.
const PATIENCE: Duration = Duration::from_millis(100);

pub struct Health(TcpListener);

impl Health {
    pub fn listen(address: SocketAddr) -> Result<Self> {
        let what = || format!("cannot answer probes at {address}");
        let listener = TcpListener::bind(address).map_err(|e| Error::os(what(), e))?;
        let set = listener.set_nonblocking(true);
        set.map_err(|e| Error::os(what(), e))?;
        Ok(Self(listener))
    }

    /// Answers the next probe, if there is one: /livez with success, /readyz with success if all desired captures run.
    pub fn answer(&self, report: impl FnOnce() -> HostReport) {
        if let Ok((stream, _)) = self.0.accept() {
            // The client may have gone.
            let _ = reply(stream, report);
        }
    }
}

impl AsFd for Health {
    /// Becomes readable once a probe waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn reply(mut stream: TcpStream, report: impl FnOnce() -> HostReport) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = [0; 1024];
    let length = stream.read(&mut request)?;
    let (status, text) = match request[..length].split(|byte| *byte == b' ').nth(1) {
        Some(b"/livez") => ("200 OK", String::new()),
        Some(b"/readyz") => match unready(&report()) {
            None => ("200 OK", String::new()),
            Some(why) => ("503 Service Unavailable", why),
        },
        _ => ("404 Not Found", "no such page: the agent answers /livez and /readyz".to_owned()),
    };
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

/// Returns the first reason why a desired capture does not run.
fn unready(report: &HostReport) -> Option<String> {
    if let Some(error) = &report.error {
        return Some(error.clone());
    }
    if report.stopping {
        return Some("the agent is ending".to_owned());
    }
    let captures = report.captures.iter();
    let mut others = captures.filter(|one| !matches!(one.phase, Phase::Running | Phase::Finished));
    others.next().map(|one| {
        let phase = format!("{:?}", one.phase).to_lowercase();
        let error = one.error.as_deref().map(|error| format!(": {error}"));
        format!("the capture '{}' is {phase}{}", one.capture.name, error.unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Event, Machine, Now, Policy};

    #[test]
    fn agent_is_ready_while_it_does_as_desired() {
        let mut machine = Machine::new(Policy::default(), Vec::new(), Vec::new());
        let why = |machine: &Machine| unready(&machine.report("host", "0", Now::default()));
        assert_eq!(why(&machine), None);
        let text = "[[capture]]\nname = \"a\"\ninterfaces = [\"eth0\"]\nstore = \"s\"";
        let desired = crate::agent::Desired::parse(text).unwrap();
        machine.step(Now::default(), Event::Desired { revision: 1, desired });
        assert_eq!(why(&machine).as_deref(), Some("the capture 'a' is starting"));
        machine.step(Now::default(), Event::Ready { run: 1 });
        assert_eq!(why(&machine), None);
        let unreadable = Event::Unreadable { revision: 2, why: "no TOML".to_owned() };
        machine.step(Now::default(), unreadable);
        assert_eq!(why(&machine).as_deref(), Some("no TOML"));
    }
}
