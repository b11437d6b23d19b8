//! The lines of reports for people.

use std::fmt;

use trawl_view::columns;
use trawl_view::table;

use crate::verdict::Verdict;

/// The verdict about connections of one kind, for people.
pub(crate) struct Line<'a> {
    pub who: &'a str,
    pub peer: &'a str,
    pub connections: u64,
    pub why: &'a str,
    pub verdict: &'a Verdict,
    pub evidence: &'a str,
    pub fix: &'a str,
}

impl Line<'_> {
    fn peer_and_count(&self) -> String {
        match self.connections {
            0 | 1 => self.peer.to_owned(),
            connections => format!("{} ×{connections}", self.peer),
        }
    }

    /// Returns the cause without the drop, which may be long.
    fn short_why(&self) -> &str {
        self.why.split_once(": ").map_or(self.why, |(why, _)| why)
    }

    fn share(&self) -> String {
        self.verdict.share.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
    }
}

/// Writes a table, with a further line below each row: addresses and evidence may be long.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, lines: &[Line<'_>]) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    let columns = columns![row: Line<'_>;
        "WHO" -8 row.who, "PEER" -8 row.peer_and_count(), "WHY" -8 row.short_why(), "SHARE" 5 row.share()];
    let table = table::text(&columns, lines.iter());
    let mut rows = table.lines();
    rows.next().map_or(Ok(()), |titles| writeln!(f, "{titles}"))?;
    for (row, line) in rows.zip(lines) {
        let drop = line.verdict.cause.drop().map_or(String::new(), |drop| format!(", {drop}"));
        writeln!(f, "{row}\n  {}{drop}; {}", line.evidence, line.fix)?;
    }
    Ok(())
}
