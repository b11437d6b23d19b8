//! The part that the findings about files and about sockets have in common, and its lines for people.

use std::fmt;

use serde::Serialize;
use trawl_view::columns;
use trawl_view::table;

use crate::verdict::Verdict;

/// The verdict about connections of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The process, the host or the end of the connections to look at.
    pub who: String,
    pub peer: String,
    pub connections: u64,
    /// The verdict about the connection of which it explains most.
    #[serde(flatten)]
    pub verdict: Verdict,
    pub why: String,
    pub evidence: String,
    pub fix: &'static str,
}

impl Line {
    /// Returns the part of all connections' time that the cause explains; the whole if that is not known.
    fn weight(&self) -> f64 {
        self.verdict.share.unwrap_or(1.0) * self.connections as f64
    }

    /// Returns all of it in one line, the most important first.
    pub fn brief(&self) -> String {
        let share = self.verdict.share.map_or(String::new(), |_| format!(", {}", self.share()));
        format!("{} {}: {}{share}; {}", self.who, self.peer_and_count(), self.why, self.evidence)
    }

    fn peer_and_count(&self) -> String {
        match self.connections {
            0 | 1 => self.peer.clone(),
            connections => format!("{} ×{connections}", self.peer),
        }
    }

    /// Returns the cause without the drop, which may be long.
    fn short_why(&self) -> &str {
        self.why.split_once(": ").map_or(&self.why, |(why, _)| why)
    }

    fn share(&self) -> String {
        self.verdict.share.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
    }
}

/// Adds a finding to the known one of its kind. The ends are of the connection of which the cause explains most.
pub(crate) fn join<T>(known: &mut T, mut more: T, line: fn(&mut T) -> &mut Line) {
    let connections = line(known).connections + line(&mut more).connections;
    if line(&mut more).verdict.share > line(known).verdict.share {
        *known = more;
    }
    line(known).connections = connections;
}

/// Sorts findings, the most important first.
pub(crate) fn sort<T>(findings: &mut [T], line: fn(&T) -> &Line) {
    findings.sort_by(|a, b| {
        let (a, b) = (line(a), line(b));
        b.verdict.level.cmp(&a.verdict.level).then(b.weight().total_cmp(&a.weight()))
    });
}

/// Writes a table, with a further line below each row: addresses and evidence may be long.
pub(crate) fn write<'l>(f: &mut fmt::Formatter<'_>, lines: impl Iterator<Item = &'l Line> + Clone) -> fmt::Result {
    if lines.clone().next().is_none() {
        return Ok(());
    }
    let columns = columns![row: Line;
        "WHO" -8 row.who, "PEER" -8 row.peer_and_count(), "WHY" -8 row.short_why(), "SHARE" 5 row.share()];
    let table = table::text(&columns, lines.clone());
    let mut rows = table.lines();
    rows.next().map_or(Ok(()), |titles| writeln!(f, "{titles}"))?;
    for (row, line) in rows.zip(lines) {
        let drop = line.verdict.cause.drop().map_or(String::new(), |drop| format!(", {drop}"));
        writeln!(f, "{row}\n  {}{drop}; {}", line.evidence, line.fix)?;
    }
    Ok(())
}
