//! The new findings of reports that follow each other.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use crate::measures::Side;
use crate::sockets::{SocketFinding, SocketReport};
use crate::verdict::Cause;

/// The findings that were told, and when each was in a report last.
#[derive(Debug)]
pub struct News {
    told: HashMap<Kind, Instant>,
    /// Time without a finding after which it is new again.
    over_after: Duration,
}

/// Findings that are one for the reader, whatever process has the name. A server has many clients; a client names each
/// server.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Kind {
    cause: Discriminant<Cause>,
    process: Option<String>,
    container: Option<String>,
    netns: String,
    side: Option<Side>,
    server: Option<String>,
}

impl Kind {
    fn of(finding: &SocketFinding) -> Self {
        Self {
            cause: discriminant(&finding.line.verdict.cause),
            process: finding.owner.process.clone(),
            container: finding.owner.container.clone(),
            netns: finding.netns.clone(),
            side: finding.side,
            server: (finding.side == Some(Side::Client)).then(|| finding.line.peer.clone()),
        }
    }
}

impl News {
    pub fn new(over_after: Duration) -> Self {
        Self { told: HashMap::new(), over_after }
    }

    /// Returns the new findings of a report that blame somebody.
    pub fn of<'r>(&mut self, report: &'r SocketReport, now: Instant) -> Vec<&'r SocketFinding> {
        self.told.retain(|_, last| now.saturating_duration_since(*last) < self.over_after);
        let blaming = report.findings.iter().filter(|one| one.line.verdict.cause.has_culprit());
        blaming.filter(|one| self.told.insert(Kind::of(one), now).is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::sockets::{Between, Findings, Owner};
    use crate::verdict::{Level, Verdict};

    const SLOW: Cause = Cause::SlowAnswer { by: Side::Server, answers: 4, median_ns: 300_000_000 };

    /// A finding: this host's end, its process, the peer's address, and the cause.
    type One = (Side, u32, u8, Cause);

    fn report(findings: &[One]) -> SocketReport {
        let mut all = Findings::default();
        for (side, pid, peer, cause) in findings {
            let owner = Owner { pid: Some(*pid), process: Some("api".to_owned()), ..Owner::default() };
            let address = |host, port| Some(SocketAddr::from(([10, 0, 0, host], port)));
            let between = Between {
                netns: "web".to_owned(),
                side: Some(*side),
                local: address(1, 80),
                remote: address(*peer, 90),
            };
            let verdict = Verdict { cause: cause.clone(), level: Level::Likely, share: None };
            all.add(&owner, between, verdict);
        }
        SocketReport { connections: 1, waiting: 0, lost_events: 0, findings: all.sorted() }
    }

    #[test]
    fn lasting_finding_is_told_once() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut news = News::new(Duration::from_secs(10));
        let mut told = |seconds, findings: &[One]| -> Vec<String> {
            let report = report(findings);
            news.of(&report, at(seconds)).into_iter().map(SocketFinding::text).collect()
        };
        let first = told(0, &[(Side::Server, 7, 2, SLOW)]);
        assert_eq!(first, ["web: api[7] 10.0.0.2: answers slowly; median 300 ms of 4 answers; profile the process"]);
        // Another process of the name, and another client.
        assert_eq!(told(5, &[(Side::Server, 8, 3, SLOW)]), [""; 0]);
        assert_eq!(told(14, &[(Side::Server, 8, 3, SLOW)]), [""; 0]);
        assert_eq!(told(15, &[(Side::Server, 8, 3, Cause::Refused)]).len(), 1, "another cause");
        assert_eq!(told(24, &[(Side::Server, 8, 3, SLOW)]).len(), 1, "it was over");
        // Each server is another one.
        assert_eq!(told(25, &[(Side::Client, 8, 3, SLOW), (Side::Client, 8, 4, SLOW)]).len(), 2);
        assert_eq!(told(26, &[(Side::Client, 8, 3, SLOW), (Side::Client, 8, 4, SLOW)]), [""; 0]);
    }

    #[test]
    fn distance_blames_nobody() {
        let far = Cause::Distance { round_trip_ns: 100_000_000, rounds: 9 };
        let mut news = News::new(Duration::from_secs(10));
        assert_eq!(news.of(&report(&[(Side::Client, 7, 2, far)]), Instant::now()).len(), 0);
    }
}
