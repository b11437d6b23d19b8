//! The rules and policies of nftables that the kernel noted with the packets that they dropped.

use std::cmp::Reverse;

use trawl_view::why::Row;

use super::culprits::Culprit;

/// Returns the noted objects with the packets of the row that each dropped. `full_name` adds the text to a rule's name.
/// `others` returns the objects that may have dropped the remaining packets.
pub fn with_noted(
    row: &Row,
    full_name: impl Fn(&str) -> Option<String>,
    others: impl FnOnce() -> Vec<Culprit>,
) -> Vec<Culprit> {
    let noted = row.rules.iter().map(|(name, packets)| Culprit {
        name: full_name(name).unwrap_or_else(|| name.clone()),
        packets: Some(*packets),
        traced: None,
        is_certain: true,
    });
    let mut found: Vec<Culprit> = noted.collect();
    found.sort_by_key(|one| Reverse(one.packets));
    if row.rules.values().sum::<u64>() < row.packets {
        let is_new = |other: &Culprit| found.iter().all(|one| one.name != other.name);
        let others: Vec<Culprit> = others().into_iter().filter(is_new).collect();
        found.extend(others);
    }
    found
}

/// Returns the full name that one of these objects has.
pub fn named_in(all: &[Culprit], name: &str) -> Option<String> {
    let found = all.iter().map(|one| &one.name).find(|full| {
        let rest = full.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
    });
    found.cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_objects_come_before_those_of_remaining_packets() {
        let culprit = |name: &str, packets| Culprit {
            name: name.to_owned(),
            packets,
            traced: None,
            is_certain: packets.is_some(),
        };
        let others = [
            culprit("rule 4 of inet f in: udp dport 53 drop", None),
            culprit("rule 40 of inet f in: drop", None),
        ];
        let mut row = Row {
            packets: 3,
            ..Row::default()
        };
        row.rules.insert("policy of inet f in".to_owned(), 1);
        row.rules.insert("rule 4 of inet f in".to_owned(), 2);
        let find = |row: &Row| with_noted(row, |name| named_in(&others, name), || others.to_vec());
        let noted = [
            culprit("rule 4 of inet f in: udp dport 53 drop", Some(2)),
            culprit("policy of inet f in", Some(1)),
        ];
        assert_eq!(find(&row), noted);
        row.packets = 4;
        assert_eq!(find(&row)[..2], noted);
        assert_eq!(find(&row)[2..], others[1..]);
    }
}
