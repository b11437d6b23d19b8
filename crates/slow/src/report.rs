//! The verdicts about many connections: a row for each cause, server and side.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use trawl_view::text::count;

use crate::judge::{judge, judge_names};
use crate::lines::{self, Line};
use crate::measures::{Connection, Process, Side};
use crate::packets::Asked;
use crate::verdict::Verdict;

/// Verdicts of one cause about the connections of a host with a server.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    #[serde(flatten)]
    pub line: Line,
    /// The process there, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    pub client: IpAddr,
    pub server: SocketAddr,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub connections: u64,
    pub packets: u64,
    /// Dropped segments that could not be kept: the place of a loss may be unknown.
    pub drops_left_out: u64,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn new(packets: u64, drops_left_out: u64, connections: &[Connection], names: &[Asked]) -> Self {
        let mut rows: BTreeMap<(SocketAddr, IpAddr, Cow<'static, str>, Option<Side>), Finding> = BTreeMap::new();
        let unknown = [None, None];
        let mut add = |client: IpAddr, server: SocketAddr, processes: &[Option<Process>; 2], verdict: Verdict| {
            let at = verdict.cause.at();
            let key = (server, client, verdict.cause.why(), at);
            let finding = Finding::new(client, server, processes, verdict);
            match rows.get_mut(&key) {
                Some(known) => lines::join(known, finding, |one| &mut one.line),
                None => drop(rows.insert(key, finding)),
            }
        };
        for connection in connections {
            let verdicts = judge(connection).into_iter();
            let (client, processes) = (connection.client.ip(), &connection.processes);
            verdicts.for_each(|verdict| add(client, connection.server, processes, verdict));
        }
        for asked in names {
            let verdicts = judge_names(&asked.questions).into_iter();
            verdicts.for_each(|verdict| add(asked.host, asked.server, &unknown, verdict));
        }
        let mut findings: Vec<Finding> = rows.into_values().collect();
        lines::sort(&mut findings, |one| &one.line);
        Self { connections: connections.len() as u64, packets, drops_left_out, findings }
    }
}

impl Finding {
    /// A cause on the path shows the side whose process is known, or the client.
    fn new(client: IpAddr, server: SocketAddr, processes: &[Option<Process>; 2], verdict: Verdict) -> Self {
        let known = |side: &Side| processes[*side as usize].is_some();
        let side = verdict.cause.at().or_else(|| Side::BOTH.into_iter().find(known)).unwrap_or(Side::Client);
        let process = processes[side as usize].clone();
        let (client_shown, server_shown) = (client.to_string(), server.to_string());
        let (address, peer) = match side {
            Side::Client => (client_shown, server_shown),
            Side::Server => (server_shown, client_shown),
        };
        let who = process.as_ref().map_or(address, |process| format!("{}[{}]", process.name, process.id));
        Self {
            line: Line {
                who,
                peer,
                connections: 1,
                why: verdict.cause.why().into_owned(),
                evidence: verdict.cause.to_string(),
                fix: verdict.cause.fix(),
                verdict,
            },
            pid: process.as_ref().map(|process| process.id),
            process: process.map(|process| process.name),
            client,
            server,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lines::write(f, self.findings.iter().map(|one| &one.line))?;
        let nothing = if self.findings.is_empty() { ": no cause of delay found" } else { "" };
        writeln!(f, "{} in {}{nothing}", count(self.connections, "connection"), count(self.packets, "packet"))?;
        match self.drops_left_out {
            0 => Ok(()),
            dropped => writeln!(f, "{} left out: the place of a loss may be unknown", count(dropped, "drop")),
        }
    }
}
