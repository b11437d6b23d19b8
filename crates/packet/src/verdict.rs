//! Names of XDP and tc verdicts, in both directions.

use serde::{Deserialize, Serialize};

use crate::pcapng::Verdict;

/// Kind of program that gives a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    Xdp,
    Tc,
}

/// `enum xdp_action`, by value.
const XDP: [(&str, u64); 5] = [("ABORTED", 0), ("DROP", 1), ("PASS", 2), ("TX", 3), ("REDIRECT", 4)];

/// TC_ACT_ values. UNSPEC is -1 there, and tcx calls it NEXT.
const TC: [(&str, u64); 10] = [
    ("OK", 0),
    ("RECLASSIFY", 1),
    ("SHOT", 2),
    ("PIPE", 3),
    ("STOLEN", 4),
    ("QUEUED", 5),
    ("REPEAT", 6),
    ("REDIRECT", 7),
    ("TRAP", 8),
    ("UNSPEC", u64::MAX),
];

/// Other common names of tc verdicts; tcx has its own for three of them.
const TC_ALIASES: [(&str, u64); 3] = [("PASS", 0), ("DROP", 2), ("NEXT", u64::MAX)];

/// Returns false for a tc verdict that leaves the decision to the next program, as the verdicts of trawl's own do.
pub fn decides(verdict: Verdict<'_>) -> bool {
    !matches!(verdict, Verdict::Tc(TC_UNSPEC_NARROW | u64::MAX))
}

/// UNSPEC, which is -1, as 32 bits without sign extension.
const TC_UNSPEC_NARROW: u64 = u32::MAX as u64;

impl VerdictKind {
    /// Returns the names of the actions.
    pub fn names(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Xdp => &XDP,
            Self::Tc => &TC,
        }
    }

    fn aliases(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Xdp => &[],
            Self::Tc => &TC_ALIASES,
        }
    }

    /// Returns the kernel's name for `action`, without its prefix.
    pub fn name(self, action: u64) -> Option<&'static str> {
        let action = match (self, action) {
            (Self::Tc, TC_UNSPEC_NARROW) => u64::MAX,
            _ => action,
        };
        self.names().iter().find(|(_, value)| *value == action).map(|(name, _)| *name)
    }

    /// Returns the action of that name, ignoring case.
    pub fn action(self, name: &str) -> Option<u64> {
        let mut known = self.names().iter().chain(self.aliases());
        known.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }
}

/// Returns the displayed form of a verdict: the action's name, or its number if it has none.
pub fn text(verdict: Verdict<'_>) -> String {
    let (kind, action) = match verdict {
        Verdict::Xdp(action) => (VerdictKind::Xdp, action),
        Verdict::Tc(action) => (VerdictKind::Tc, action),
        Verdict::Other { kind, value } => {
            return format!("verdict type {kind}, {} bytes", value.len());
        }
    };
    kind.name(action).map_or_else(|| action.to_string(), str::to_string)
}

/// A `--verdict` list: the actions by which packets are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Names", try_from = "Names")]
pub struct VerdictSet {
    kind: VerdictKind,
    /// One bit per action, in the order of the kind's names.
    bits: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a verdict of an {} program: use {}", kind_name(*kind), names_of(*kind))]
pub struct UnknownVerdict {
    pub name: String,
    pub kind: VerdictKind,
}

fn kind_name(kind: VerdictKind) -> &'static str {
    match kind {
        VerdictKind::Xdp => "XDP",
        VerdictKind::Tc => "tc",
    }
}

fn names_of(kind: VerdictKind) -> String {
    let names: Vec<_> = kind.names().iter().map(|(name, _)| name.to_lowercase()).collect();
    names.join(", ")
}

/// The serialized form of a set.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    kind: VerdictKind,
    actions: Vec<String>,
}

impl From<VerdictSet> for Names {
    fn from(set: VerdictSet) -> Self {
        let names = set.actions().filter_map(|action| set.kind.name(action));
        Self { kind: set.kind, actions: names.map(str::to_lowercase).collect() }
    }
}

impl TryFrom<Names> for VerdictSet {
    type Error = UnknownVerdict;

    fn try_from(names: Names) -> Result<Self, UnknownVerdict> {
        Self::parse(names.kind, &names.actions.join(","))
    }
}

impl VerdictSet {
    /// Parses a list such as `drop,pass`.
    pub fn parse(kind: VerdictKind, list: &str) -> Result<Self, UnknownVerdict> {
        let mut set = Self { kind, bits: 0 };
        for name in list.split(',').map(str::trim) {
            let unknown = || UnknownVerdict { name: name.to_string(), kind };
            let action = kind.action(name).ok_or_else(unknown)?;
            set.bits |= set.bit(action);
        }
        Ok(set)
    }

    pub fn contains(&self, action: u64) -> bool {
        self.bits & self.bit(action) != 0
    }

    /// Returns true for a verdict of this kind of program with an action of the set.
    pub fn includes(&self, verdict: Verdict<'_>) -> bool {
        match verdict {
            Verdict::Xdp(action) => self.kind == VerdictKind::Xdp && self.contains(action),
            Verdict::Tc(action) => self.kind == VerdictKind::Tc && self.contains(action),
            Verdict::Other { .. } => false,
        }
    }

    /// Returns the kernel's values of the actions in the set.
    pub fn actions(&self) -> impl Iterator<Item = u64> {
        let set = *self;
        self.kind.names().iter().map(|(_, action)| *action).filter(move |a| set.contains(*a))
    }

    fn bit(&self, action: u64) -> u16 {
        let name = self.kind.name(action);
        let position = self.kind.names().iter().position(|(known, _)| Some(*known) == name);
        position.map_or(0, |at| 1 << at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_actions_agree() {
        for kind in [VerdictKind::Xdp, VerdictKind::Tc] {
            for (name, action) in kind.names() {
                assert_eq!(kind.name(*action), Some(*name));
                assert_eq!(kind.action(&name.to_lowercase()), Some(*action));
            }
        }
        assert_eq!(VerdictKind::Tc.name(u64::from(u32::MAX)), Some("UNSPEC"));
        assert_eq!(VerdictKind::Tc.action("drop"), Some(2));
        assert_eq!(VerdictKind::Xdp.name(5), None);
    }

    #[test]
    fn list_holds_the_named_actions() {
        let set = VerdictSet::parse(VerdictKind::Xdp, "drop, PASS").unwrap();
        assert!(set.contains(1) && set.contains(2));
        assert!(!set.contains(0) && !set.contains(3) && !set.contains(99));
        assert_eq!(set.actions().collect::<Vec<_>>(), [1, 2]);
        assert!(set.includes(Verdict::Xdp(1)) && !set.includes(Verdict::Tc(1)) && !set.includes(Verdict::Xdp(9)));
    }

    #[test]
    fn error_for_an_unknown_name_lists_the_known_ones() {
        let error = VerdictSet::parse(VerdictKind::Xdp, "drop,shot").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"shot\"") && text.contains("redirect"), "{text}");
        assert!(VerdictSet::parse(VerdictKind::Xdp, "").is_err());
        assert!(VerdictSet::parse(VerdictKind::Tc, "shot").unwrap().contains(2));
    }

    #[test]
    fn verdict_without_a_name_shows_its_number() {
        assert_eq!(text(Verdict::Xdp(1)), "DROP");
        assert_eq!(text(Verdict::Xdp(77)), "77");
        assert_eq!(text(Verdict::Tc(2)), "SHOT");
    }
}
