//! Comparison of two outcomes of a packet, and the groups of packets that differ in the same way.

use std::collections::HashMap;

use crate::coverage::Path;
use crate::report::{Difference, Field, SourceLine};
use crate::side::{Left, Target};

/// Number of groups beyond which further ones are counted together.
pub(crate) const MOST_GROUPS: usize = 256;

/// The way in which a packet differs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub before: u32,
    pub after: u32,
    pub differences: Vec<Difference>,
    /// Blocks that the programs ran.
    pub paths: (Path, Path),
}

impl Kind {
    /// Returns true if the packets of both differ in the same properties, whatever ran.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.before, self.after, &self.differences) == (other.before, other.after, &other.differences)
    }
}

/// Packets of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub kind: Kind,
    pub packets: u64,
    /// Position of the first packet.
    pub first: u64,
    /// Rule that accepts the difference.
    pub allowed: Option<usize>,
    pub fields: Vec<Field>,
    pub lines: (Option<SourceLine>, Option<SourceLine>),
}

/// Fields that differ, and the lines at which the programs part: of the other one and of the tested one.
pub(crate) type Description = (Vec<Field>, (Option<SourceLine>, Option<SourceLine>));

/// Groups by their kinds.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    all: Vec<Members>,
    by_kind: HashMap<(Kind, Option<usize>), usize>,
    /// Packets of kinds that have no group.
    pub others: u64,
}

impl Groups {
    /// Adds a packet; `describe` returns the fields and lines of a new group's first packet.
    pub fn add(&mut self, kind: Kind, allowed: Option<usize>, position: u64, describe: impl FnOnce() -> Description) {
        let key = (kind, allowed);
        if let Some(at) = self.by_kind.get(&key) {
            self.all[*at].packets += 1;
        } else if self.all.len() < MOST_GROUPS {
            let (fields, lines) = describe();
            self.by_kind.insert(key.clone(), self.all.len());
            let (kind, allowed) = key;
            self.all.push(Members { kind, packets: 1, first: position, allowed, fields, lines });
        } else {
            self.others += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Members> {
        self.all.iter()
    }

    /// Adds a group that no packet joins any more.
    pub fn push(&mut self, members: Members) {
        if self.all.len() < MOST_GROUPS {
            self.all.push(members);
        } else {
            self.others += members.packets;
        }
    }

    /// Returns the groups, the largest first.
    pub fn into_sorted(mut self) -> Vec<Members> {
        self.all.sort_by_key(|group| (group.allowed.is_some(), std::cmp::Reverse(group.packets), group.first));
        self.all
    }
}

/// Returns the properties in which two outcomes differ.
pub(crate) fn differences(before: &Left, after: &Left, ignores_bytes: bool) -> Vec<Difference> {
    let ((metadata_before, packet_before), (metadata_after, packet_after)) = (before.parts(), after.parts());
    // Nobody gets the bytes of a packet that is dropped.
    let is_compared = before.leaves() && after.leaves() && !ignores_bytes;
    let same_length = packet_before.len() == packet_after.len();
    let checks = [
        (Difference::Verdict, before.verdict != after.verdict),
        (Difference::Length, is_compared && !same_length),
        (Difference::Bytes, is_compared && same_length && packet_before != packet_after),
        (Difference::Context, before.leaves() && after.leaves() && before.context != after.context),
        (Difference::Metadata, is_compared && metadata_before != metadata_after),
        (Difference::Target, before.verdict == after.verdict && !same_target(before, after)),
    ];
    checks.into_iter().filter(|(_, differs)| *differs).map(|(difference, _)| difference).collect()
}

fn same_target(before: &Left, after: &Left) -> bool {
    let same = |before: &Target, after: &Target| before.key == after.key && before.map == after.map;
    match (&before.target, &after.target) {
        (Some(before), Some(after)) => same(before, after),
        (None, None) => true,
        _ => false,
    }
}

/// Returns the runs of bytes that differ between two packets.
pub(crate) fn fields(before: &Left, after: &Left) -> Vec<Field> {
    let ((_, before), (_, after)) = (before.parts(), after.parts());
    let mut fields: Vec<Field> = Vec::new();
    for (offset, _) in before.iter().zip(after).enumerate().filter(|(_, (before, after))| before != after) {
        match fields.last_mut() {
            Some(last) if last.offset + last.length == offset => last.length += 1,
            _ => fields.push(Field { offset, length: 1 }),
        }
    }
    fields
}

/// Returns the first line of each list that the other one lacks. Lines are compared by their text if the objects have
/// it, since numbers change with the source.
pub(crate) fn parting(before: &[SourceLine], after: &[SourceLine]) -> (Option<SourceLine>, Option<SourceLine>) {
    let same = |one: &SourceLine, other: &SourceLine| {
        let has_text = !one.text.is_empty() || !other.text.is_empty();
        if has_text { one.text == other.text } else { (&one.file, one.line) == (&other.file, other.line) }
    };
    let alone = |these: &[SourceLine], others: &[SourceLine]| {
        these.iter().find(|line| !others.iter().any(|other| same(line, other))).cloned()
    };
    (alone(before, after), alone(after, before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_packet::verdict::VerdictKind;

    fn left(verdict: u32, bytes: &[u8], metadata: u32) -> Left {
        let (kind, context) = (VerdictKind::Xdp, [0; 8]);
        Left { kind, verdict, bytes: bytes.to_vec(), metadata, target: None, context }
    }

    #[test]
    fn each_property_is_compared() {
        let pass = left(2, &[1, 2, 3], 0);
        assert_eq!(differences(&pass, &pass, false), []);
        assert_eq!(differences(&pass, &left(3, &[1, 2, 3], 0), false), [Difference::Verdict]);
        assert_eq!(differences(&pass, &left(2, &[1, 9, 3], 0), false), [Difference::Bytes]);
        assert_eq!(differences(&pass, &left(2, &[1, 9, 3], 0), true), []);
        assert_eq!(differences(&pass, &left(2, &[1, 2], 0), false), [Difference::Length]);
        assert_eq!(differences(&pass, &left(2, &[7, 1, 2, 3], 1), false), [Difference::Metadata]);
        // The bytes of a dropped packet do not matter.
        assert_eq!(differences(&left(1, &[1], 0), &left(1, &[2], 0), false), []);
        let marked = Left { context: [1, 0, 0, 0, 0, 0, 0, 0], ..pass.clone() };
        assert_eq!(differences(&pass, &marked, false), [Difference::Context]);
        let to = |key| Left { target: Some(Target { map: None, key }), ..left(4, &[1], 0) };
        assert_eq!(differences(&to(3), &to(4), false), [Difference::Target]);
    }

    #[test]
    fn runs_of_bytes_are_fields() {
        let found = fields(&left(2, &[1, 2, 3, 4, 5], 0), &left(2, &[1, 0, 0, 4, 0], 0));
        assert_eq!(found, [Field { offset: 1, length: 2 }, Field { offset: 4, length: 1 }]);
    }

    #[test]
    fn programs_part_at_the_first_line_of_their_own() {
        let line = |line, text: &str| SourceLine { file: "a.c".to_owned(), line, text: text.to_owned() };
        let before = [line(1, "one"), line(2, "two")];
        let after = [line(5, "one"), line(6, "three")];
        assert_eq!(parting(&before, &after), (Some(line(2, "two")), Some(line(6, "three"))));
        assert_eq!(parting(&before, &before), (None, None));
    }
}
