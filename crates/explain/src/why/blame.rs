//! The objects that dropped packets, or may have, and their names.

use serde::{Deserialize, Serialize};
use trawl_sys::words::shown;

/// Number of uncertain objects that a row names.
const MOST_NAMED: usize = 3;
/// Name of the object that drops packets if its table is full.
pub const CONNECTION_TRACKING: &str = "connection tracking";

/// Suffix of the name of a netem that loses packets on purpose. A netem without it drops packets only when it is full.
pub const WITH_LOSS: &str = ", which loses packets on purpose";

/// An object and its counter, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    pub packets: Option<u64>,
}

/// An object that may have dropped packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    pub name: String,
    /// Packets of the row that it dropped, or packets that its counter counted meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Traced packets that it dropped: a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traced: Option<u64>,
    pub is_certain: bool,
}

/// The objects that dropped the packets of a row, or may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Blame {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub culprits: Vec<Culprit>,
    /// Packets that the certain objects do not explain: an uncertain object, or one with traced packets, dropped each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unexplained: Option<u64>,
    /// Number of further objects that may have dropped packets.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_candidates: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Blame {
    pub fn certain(name: &str, packets: Option<u64>) -> Culprit {
        Culprit { name: name.to_owned(), packets, traced: None, is_certain: true }
    }

    /// Returns the blame of packets that one of these dropped.
    pub fn one_of(live: &[&Candidate], unexplained: Option<u64>) -> Self {
        let named =
            live.iter().take(MOST_NAMED).map(|one| Culprit { is_certain: false, ..Self::certain(&one.name, None) });
        Self { culprits: named.collect(), unexplained, other_candidates: live.len().saturating_sub(MOST_NAMED) }
    }

    /// Returns the blame of this many packets, whose rules are not noted. `may_match` is false for a rule's text if
    /// none of them can have matched it.
    pub fn of_some(self, remaining: u64, may_match: impl Fn(&str) -> bool) -> Self {
        let is_explained =
            self.unexplained.is_none() && self.other_candidates == 0 && self.culprits.iter().all(|one| one.is_certain);
        let may_match = |one: &Culprit| may_match(one.name.split_once(": ").map_or("", |(_, text)| text));
        let mut live: Vec<Culprit> = self.culprits.into_iter().filter(may_match).collect();
        let is_certain = is_explained && live.len() == 1;
        for one in &mut live {
            *one = Culprit { is_certain, ..Self::certain(&one.name, is_certain.then_some(remaining)) };
        }
        Self { culprits: live, unexplained: None, other_candidates: self.other_candidates }
    }

    /// Returns a line for each object that dropped packets, or one for all that may have.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let certain = self.culprits.iter().filter(|one| one.is_certain);
        let lines = certain.map(|one| match (one.packets, one.traced) {
            (Some(packets), _) => format!("{} ({packets})", shown(&one.name)),
            (None, Some(traced)) => format!("{} ({traced} traced)", shown(&one.name)),
            (None, None) => shown(&one.name).into_owned(),
        });
        let is_possible = |one: &&Culprit| !one.is_certain || one.traced.is_some() && self.unexplained.is_some();
        let possible = self.culprits.iter().filter(is_possible);
        let mut possible: Vec<String> = possible.map(|one| shown(&one.name).into_owned()).collect();
        let word = match possible.len() + self.other_candidates {
            1 => "perhaps",
            _ => "one of",
        };
        let rest = self.unexplained.map_or(String::new(), |rest| format!(" ({rest})"));
        let has_any = !possible.is_empty();
        possible.extend(match self.other_candidates {
            0 => None,
            1 => Some("or 1 other".to_owned()),
            others => Some(format!("or {others} others")),
        });
        let rest = has_any.then(|| format!("{word}{rest}: {}", possible.join("; ")));
        lines.chain(rest)
    }

    /// Returns the name of the one object that certainly dropped all packets, without the text of a rule.
    pub fn only_culprit(&self) -> Option<&str> {
        let is_all = self.unexplained.is_none() && self.other_candidates == 0;
        match &self.culprits[..] {
            [one] if one.is_certain && is_all => one.name.split(": ").next(),
            _ => None,
        }
    }

    pub fn add(&mut self, other: Self) {
        self.culprits.extend(other.culprits);
        self.unexplained = other.unexplained;
        self.other_candidates += other.other_candidates;
    }
}
