//! The result of an earlier trial as the expectation of a later one, for `--expect`.

use serde::Deserialize;

use crate::report::Report;

/// The part of an earlier report that is expected again.
#[derive(Clone, Debug, Deserialize)]
pub struct Expected {
    packets: u64,
    verdicts: Vec<ExpectedVerdict>,
    outcomes: String,
}

#[derive(Clone, Debug, Deserialize)]
struct ExpectedVerdict {
    verdict: String,
    packets: u64,
}

impl Expected {
    /// Returns a sentence for each expectation that a report does not meet.
    pub fn unmet(&self, report: &Report) -> Vec<String> {
        let mut unmet = Vec::new();
        if self.packets != report.packets {
            unmet.push(format!("{} packets were expected, and {} were run", self.packets, report.packets));
        }
        let found = |name: &str| {
            let mut all = report.verdicts.iter().filter(|one| one.verdict == name);
            all.next().map_or(0, |one| one.packets)
        };
        for ExpectedVerdict { verdict, packets } in &self.verdicts {
            if *packets != found(verdict) {
                unmet.push(format!("{packets} packets with {verdict} were expected, and there are {}", found(verdict)));
            }
        }
        let is_known = |name: &str| self.verdicts.iter().any(|one| one.verdict == name);
        for new in report.verdicts.iter().filter(|one| one.packets > 0 && !is_known(&one.verdict)) {
            unmet.push(format!("no packet with {} was expected, and there are {}", new.verdict, new.packets));
        }
        if unmet.is_empty() && self.outcomes != report.outcomes {
            unmet.push(
                "the verdicts are as frequent as expected, but not of the same packets with the same bytes".to_owned(),
            );
        }
        unmet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_meets_itself_alone() {
        let report = Report { outcomes: "ab".to_owned(), ..crate::sample::report() };
        let verdicts =
            report.verdicts.iter().map(|one| ExpectedVerdict { verdict: one.verdict.clone(), packets: one.packets });
        let expected =
            Expected { packets: report.packets, verdicts: verdicts.collect(), outcomes: report.outcomes.clone() };
        assert_eq!(expected.unmet(&report), Vec::<String>::new());
        assert_eq!(expected.unmet(&Report { outcomes: "cd".to_owned(), ..report.clone() }).len(), 1);
        assert_eq!(Expected { packets: 0, ..expected.clone() }.unmet(&report).len(), 1);
        let fewer = Expected { verdicts: expected.verdicts[1..].to_vec(), ..expected };
        assert_eq!(fewer.unmet(&report).len(), 1);
    }
}
