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
    /// The host or the end of the connection to look at.
    pub who: String,
    pub peer: String,
    /// The process there, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    pub client: IpAddr,
    pub server: SocketAddr,
    pub connections: u64,
    /// The verdict about the connection of which it explains most.
    #[serde(flatten)]
    pub verdict: Verdict,
    pub why: Cow<'static, str>,
    pub evidence: String,
    pub fix: &'static str,
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
            let row = rows.entry(key).or_insert_with(|| Finding::new(client, server, processes, verdict.clone()));
            row.connections += 1;
            if verdict.share > row.verdict.share {
                *row = Finding { connections: row.connections, ..Finding::new(client, server, processes, verdict) };
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
        let weight = |one: &Finding| one.verdict.share.unwrap_or(1.0) * one.connections as f64;
        findings.sort_by(|a, b| {
            let by_level = b.verdict.level.cmp(&a.verdict.level);
            by_level.then(weight(b).total_cmp(&weight(a)))
        });
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
        Self {
            who: process.as_ref().map_or(address, |process| format!("{}[{}]", process.name, process.id)),
            peer,
            pid: process.as_ref().map(|process| process.id),
            process: process.map(|process| process.name),
            client,
            server,
            connections: 0,
            why: verdict.cause.why(),
            evidence: verdict.cause.to_string(),
            fix: verdict.cause.fix(),
            verdict,
        }
    }

    fn line(&self) -> Line<'_> {
        Line {
            who: &self.who,
            peer: &self.peer,
            connections: self.connections,
            why: &self.why,
            verdict: &self.verdict,
            evidence: &self.evidence,
            fix: self.fix,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Line<'_>> = self.findings.iter().map(Finding::line).collect();
        lines::write(f, &rows)?;
        let nothing = if self.findings.is_empty() { ": no cause of delay found" } else { "" };
        writeln!(f, "{} in {}{nothing}", count(self.connections, "connection"), count(self.packets, "packet"))?;
        match self.drops_left_out {
            0 => Ok(()),
            dropped => writeln!(f, "{} left out: the place of a loss may be unknown", count(dropped, "drop")),
        }
    }
}
