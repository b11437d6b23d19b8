//! A complete rule set: changes to it, and reading it from a map.

use std::collections::{HashMap, HashSet};

use crate::rule::{Action, Draft, On, Rule};
use serde::Serialize;

/// Packets that a rule decided or limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Packets that it dropped, if it denies, or let pass, if it allows.
    pub decided: u64,
    /// Packets that it dropped although it allows, because their source was over its rate.
    pub limited: u64,
}

/// Action on packets that no rule decides, on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceDefault {
    pub on: On,
    pub action: Action,
    pub hits: u64,
}

/// The rules of a network namespace, by number, and the defaults of its guarded interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    pub rules: Vec<Rule>,
    pub defaults: Vec<InterfaceDefault>,
    pub next_id: u32,
    pub(crate) hits: HashMap<u32, Hits>,
}

/// Result of adding a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    pub id: u32,
    /// Set if it replaced a rule for the same packets, keeping its number and its hits.
    pub replaced: bool,
}

/// Differences between two sets, as text for people and machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleChanges {
    pub added: Vec<Listed>,
    pub removed: Vec<Listed>,
    pub changed: Vec<Changed>,
    pub defaults: Vec<Changed>,
    /// Number of rules that are the same in both sets.
    pub unchanged: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub id: u32,
    pub rule: String,
}

/// A rule, or the default of an interface, before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The rule's number or the interface's name.
    pub of: String,
    pub from: String,
    pub to: String,
}

impl Default for RuleSet {
    fn default() -> Self {
        Self { rules: Vec::new(), defaults: Vec::new(), next_id: 1, hits: HashMap::new() }
    }
}

impl RuleSet {
    pub fn hits_of(&self, id: u32) -> Hits {
        self.hits.get(&id).copied().unwrap_or_default()
    }

    /// Adds a rule, or replaces the one for the same packets.
    pub fn add(&mut self, draft: Draft) -> Added {
        let same = |old: &&mut Rule| old.is_about_the_same(&draft);
        if let Some(old) = self.rules.iter_mut().find(same) {
            old.draft = draft;
            let id = old.id;
            return Added { id, replaced: true };
        }
        let id = self.next_id;
        self.rules.push(draft.numbered(id));
        self.next_id += 1;
        Added { id, replaced: false }
    }

    /// Replaces all rules. A new rule for the same packets as an old one keeps that one's number and hits.
    pub fn replace_all(&mut self, drafts: Vec<Draft>) {
        let key = |rule: &Rule| (rule.what.clone(), rule.is_limit());
        let known: HashMap<_, u32> = self.rules.iter().map(|rule| (key(rule), rule.id)).collect();
        let mut rules: Vec<Rule> = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let mut rule = draft.numbered(self.next_id);
            match known.get(&key(&rule)) {
                Some(id) => rule.id = *id,
                None => self.next_id += 1,
            }
            rules.push(rule);
        }
        rules.sort_by_key(|rule| rule.id);
        self.rules = rules;
        self.forget_hits();
    }

    /// Removes rules; returns their number.
    pub fn remove(&mut self, is_meant: impl Fn(&Rule) -> bool) -> usize {
        let before = self.rules.len();
        self.rules.retain(|rule| !is_meant(rule));
        self.forget_hits();
        before - self.rules.len()
    }

    /// Lists the rules added, removed and changed between this set and its successor.
    pub fn changes_to(&self, next: &Self) -> RuleChanges {
        let listed = |rule: &Rule| Listed { id: rule.id, rule: rule.to_string() };
        let before: HashMap<u32, &Rule> = self.rules.iter().map(|rule| (rule.id, rule)).collect();
        let mut changes = RuleChanges::default();
        let mut kept = HashSet::new();
        for rule in &next.rules {
            let Some(old) = before.get(&rule.id) else {
                changes.added.push(listed(rule));
                continue;
            };
            kept.insert(rule.id);
            let (from, to) = (described(old), described(rule));
            if from == to {
                changes.unchanged += 1;
            } else {
                let of = rule.id.to_string();
                changes.changed.push(Changed { of, from, to });
            }
        }
        let gone = self.rules.iter().filter(|rule| !kept.contains(&rule.id));
        changes.removed = gone.map(listed).collect();
        for (old, new) in self.defaults.iter().zip(&next.defaults) {
            if old.action != new.action {
                changes.defaults.push(Changed {
                    of: new.on.name.clone(),
                    from: old.action.name().to_owned(),
                    to: new.action.name().to_owned(),
                });
            }
        }
        changes
    }

    /// Counts the packets that the removed and changed rules and defaults of `changes` have decided.
    pub fn decided_by(&self, changes: &RuleChanges) -> u64 {
        let removed = changes.removed.iter().map(|one| one.id);
        let changed = changes.changed.iter().filter_map(|one| one.of.parse().ok());
        let rules = removed.chain(changed).map(|id| {
            let hits = self.hits_of(id);
            hits.decided + hits.limited
        });
        let defaults = self.defaults.iter().filter(|one| {
            let mut changed = changes.defaults.iter();
            changed.any(|change| change.of == one.on.name)
        });
        rules.sum::<u64>() + defaults.map(|one| one.hits).sum::<u64>()
    }

    fn forget_hits(&mut self) {
        let kept: HashSet<u32> = self.rules.iter().map(|rule| rule.id).collect();
        self.hits.retain(|id, _| kept.contains(id));
    }

    /// Sets the default of an interface.
    pub fn set_default(&mut self, on: On, action: Action) {
        match self.defaults.iter_mut().find(|one| one.on.index == on.index) {
            Some(old) => {
                old.on = on;
                old.action = action;
            }
            None => self.defaults.push(InterfaceDefault { on, action, hits: 0 }),
        }
    }

    /// Returns the interfaces that the set names.
    pub fn interfaces(&mut self) -> impl Iterator<Item = &mut On> {
        let of_rules = self.rules.iter_mut().filter_map(|rule| rule.draft.what.on.as_mut());
        of_rules.chain(self.defaults.iter_mut().map(|default| &mut default.on))
    }

    /// Returns the same rules with their hits reset.
    pub fn without_hits(mut self) -> Self {
        self.hits.clear();
        for default in &mut self.defaults {
            default.hits = 0;
        }
        self
    }

    /// Takes over the hits of a set in which no program counts any more.
    pub fn take_hits(&mut self, from: &Self) {
        for rule in &self.rules {
            if let Some(hits) = from.hits.get(&rule.id) {
                self.hits.insert(rule.id, *hits);
            }
        }
        for default in &mut self.defaults {
            let old = from.defaults.iter().find(|old| old.on.index == default.on.index);
            default.hits = old.map_or(default.hits, |old| old.hits);
        }
    }
}

/// Describes a rule as `guard list` shows it. The text mentions a time limit but not the remaining time, which always
/// changes.
fn described(rule: &Rule) -> String {
    match rule.expires {
        Some(_) => format!("{rule} for a limited time"),
        None => rule.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Match;

    fn deny(source: &str) -> Draft {
        Draft {
            action: Action::Deny,
            what: Match { source: Some(source.parse().unwrap()), ..Match::default() },
            rate: None,
            expires: None,
        }
    }

    #[test]
    fn rule_for_the_same_packets_is_replaced() {
        let mut set = RuleSet::default();
        assert_eq!(set.add(deny("10.0.0.1")), Added { id: 1, replaced: false });
        assert_eq!(set.add(deny("10.0.0.2")), Added { id: 2, replaced: false });
        let allow = Draft { action: Action::Allow, ..deny("10.0.0.1") };
        assert_eq!(set.add(allow), Added { id: 1, replaced: true });
        assert_eq!((set.rules.len(), set.rules[0].action), (2, Action::Allow));
        // A limit coexists with a rule that decides.
        let limit = Draft { rate: Some(5), ..deny("10.0.0.1") };
        assert_eq!(set.add(limit), Added { id: 3, replaced: false });
    }

    #[test]
    fn changes_name_added_removed_and_changed_rules_and_count_their_packets() {
        let mut set = RuleSet::default();
        for source in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
            set.add(deny(source));
        }
        for (id, decided) in [(1, 5), (2, 7), (3, 11)] {
            let hits = Hits { decided, limited: 0 };
            set.hits.insert(id, hits);
        }
        let mut next = set.clone();
        let allow = Draft { action: Action::Allow, ..deny("10.0.0.2") };
        next.replace_all(vec![deny("10.0.0.1"), allow, deny("10.0.0.4")]);
        let changes = set.changes_to(&next);
        let ids = |all: &[Listed]| all.iter().map(|one| one.id).collect::<Vec<_>>();
        assert_eq!(ids(&changes.added), [4]);
        assert_eq!(ids(&changes.removed), [3]);
        assert_eq!(changes.changed.len(), 1);
        assert_eq!(changes.changed[0].from, "deny --src 10.0.0.2");
        assert_eq!(changes.changed[0].to, "allow --src 10.0.0.2");
        assert_eq!(changes.unchanged, 1);
        assert_eq!(set.decided_by(&changes), 18);
        assert_eq!(set.changes_to(&set.clone()).unchanged, 3);
    }

    #[test]
    fn rules_that_stay_keep_number_and_hits() {
        let mut set = RuleSet::default();
        for source in ["10.0.0.1", "10.0.0.2"] {
            set.add(deny(source));
        }
        set.hits = [(1, 10), (2, 20)].map(|(id, decided)| (id, Hits { decided, limited: 0 })).into();
        set.replace_all(vec![deny("10.0.0.3"), deny("10.0.0.2")]);
        let ids: Vec<u32> = set.rules.iter().map(|rule| rule.id).collect();
        assert_eq!(ids, [2, 3]);
        assert_eq!((set.hits_of(2).decided, set.hits_of(3).decided, set.hits_of(1).decided), (20, 0, 0));
        assert_eq!(set.remove(|rule| rule.id == 2), 1);
        assert_eq!(set.hits_of(2), Hits::default());
    }
}
