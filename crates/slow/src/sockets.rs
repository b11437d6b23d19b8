//! The verdicts about the sockets of a host: a row for each cause, process and peer.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;
use trawl_view::text::count;

use crate::lines::{self, Line};
use crate::measures::{NAMES_PORT, Side};
use crate::socket::{Socket, Stage};
use crate::verdict::{Cause, Verdict};

/// The process of a socket, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Owner {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// Verdicts of one cause about the connections of a process with a peer.
#[derive(Clone, Debug, Serialize)]
pub struct SocketFinding {
    #[serde(flatten)]
    pub line: Line,
    /// This host's end of the connections; absent for a listening socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
    /// The ends of the connection of which the cause explains most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// Name or number of the network namespace.
    pub netns: String,
    #[serde(flatten)]
    pub owner: Owner,
}

impl SocketFinding {
    /// Returns the finding as one line.
    pub fn text(&self) -> String {
        let is_named = self.netns.parse::<u32>().is_err();
        let netns = if is_named { format!("{}: ", self.netns) } else { String::new() };
        format!("{netns}{}; {}", self.line.brief(), self.line.fix)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct SocketReport {
    pub connections: u64,
    /// Connections that wait for data of their processes.
    pub waiting: u64,
    /// Events that found no room. Without them, a cause may be missing, and the place of a loss is not known.
    pub lost_events: u64,
    pub findings: Vec<SocketFinding>,
}

/// The verdicts so far.
#[derive(Debug, Default)]
pub struct Findings(BTreeMap<Key, SocketFinding>);

/// The owner, the namespace, who, the peer and the cause, and the side to look at.
type Key = (Owner, String, (String, String, String), Option<Side>);

/// The ends of a connection, or a part of them.
#[derive(Clone, Debug)]
pub struct Between {
    /// Name or number of the network namespace.
    pub netns: String,
    /// This host's end; `None` for a listening socket.
    pub side: Option<Side>,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
}

impl Between {
    /// Returns the ends of a socket's connection in a namespace.
    pub fn of(socket: &Socket, netns: String) -> Self {
        let is_listening = matches!(socket.stage, Stage::Listening(_));
        let side = (!is_listening).then_some(socket.side);
        let (local, remote) = (Some(socket.local), side.map(|_| socket.remote));
        Self { netns, side, local, remote }
    }
}

impl Findings {
    /// Adds a verdict about a connection of a process.
    pub fn add(&mut self, owner: &Owner, between: Between, verdict: Verdict) {
        let Between { netns, side, local, remote } = between;
        let peer = match (side, remote) {
            (Some(Side::Client), Some(remote)) if remote.port() != NAMES_PORT => remote.to_string(),
            (_, Some(remote)) => remote.ip().to_string(),
            (_, None) => "-".to_owned(),
        };
        let who = match local.filter(|_| side.is_none()) {
            Some(local) => format!("{} {}", named(owner), listening_at(local)),
            None => named(owner),
        };
        let line = Line {
            who,
            peer,
            connections: 1,
            why: why(&verdict.cause, side),
            evidence: evidence(&verdict.cause, side),
            fix: verdict.cause.fix(),
            verdict,
        };
        let kind = (line.who.clone(), line.peer.clone(), line.why.clone());
        let key = (owner.clone(), netns.clone(), kind, line.verdict.cause.at());
        let finding = SocketFinding { line, side, local, remote, netns, owner: owner.clone() };
        match self.0.get_mut(&key) {
            Some(known) => lines::join(known, finding, |one| &mut one.line),
            None => drop(self.0.insert(key, finding)),
        }
    }

    /// Returns the findings, the most important first.
    pub fn sorted(self) -> Vec<SocketFinding> {
        let mut findings: Vec<SocketFinding> = self.0.into_values().collect();
        lines::sort(&mut findings, |one| &one.line);
        findings
    }
}

/// Returns the name and number of a process, and its container.
fn named(owner: &Owner) -> String {
    let name = match (&owner.process, owner.pid) {
        (Some(name), Some(pid)) => format!("{name}[{pid}]"),
        (None, Some(pid)) => format!("[{pid}]"),
        _ => return "-".to_owned(),
    };
    match &owner.container {
        Some(container) => format!("{name} {container}"),
        None => name,
    }
}

fn listening_at(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("*:{}", address.port()),
        false => address.to_string(),
    }
}

/// Returns the cause in a few words, as the end of this host sees it.
fn why(cause: &Cause, side: Option<Side>) -> String {
    match cause.at() {
        Some(at) if side == Some(at.other()) => format!("peer {}", cause.why()),
        _ => cause.why().into_owned(),
    }
}

/// Returns the evidence. One host alone does not know why the peer is slow.
fn evidence(cause: &Cause, side: Option<Side>) -> String {
    match cause {
        Cause::SlowAnswer { by, .. } if side == Some(by.other()) => format!("{cause}, by its code or its CPUs"),
        _ => cause.to_string(),
    }
}

impl fmt::Display for SocketReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines::write(f, self.findings.iter().map(|one| &one.line))?;
        let nothing = if self.findings.is_empty() { ": no cause of delay found" } else { "" };
        let waiting = match self.waiting {
            0 => String::new(),
            waiting => format!("; {waiting} wait for data of their processes"),
        };
        writeln!(
            f,
            "{} of this machine measured, {} lost{waiting}{nothing}",
            count(self.connections, "connection"),
            count(self.lost_events, "event")
        )
    }
}
