//! The rules and policies of nftables that the kernel noted with the packets that they dropped.

use std::cmp::Reverse;

use trawl_view::why::Row;

use super::blame::{Blame, Culprit};

/// Returns the noted objects with the packets of the row that each dropped. `full_name` adds the text to a rule's name.
/// `others` returns the objects that may have dropped the remaining packets, whose number it gets.
pub fn with_noted(row: &Row, full_name: impl Fn(&str) -> Option<String>, others: impl FnOnce(u64) -> Blame) -> Blame {
    let noted = row.rules.iter().map(|(name, packets)| Culprit {
        name: full_name(name).unwrap_or_else(|| name.clone()),
        packets: Some(*packets),
        traced: None,
        is_certain: true,
    });
    let mut found: Vec<Culprit> = noted.collect();
    found.sort_by_key(|one| Reverse(one.packets));
    let remaining = row.packets.saturating_sub(row.rules.values().sum());
    if remaining == 0 {
        return Blame { culprits: found, ..Blame::default() };
    }
    let mut others = others(remaining);
    if found.is_empty() {
        return others;
    }
    // The counters of noted objects count their noted packets.
    others.culprits.retain(|one| found.iter().all(|known| known.name != one.name));
    if others.culprits.iter().any(|one| !one.is_certain) {
        others.unexplained = Some(remaining);
    }
    found.append(&mut others.culprits);
    others.culprits = found;
    others
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
        let others =
            [culprit("rule 4 of inet f in: udp dport 53 drop", None), culprit("rule 40 of inet f in: drop", None)];
        let mut row = Row { packets: 3, ..Row::default() };
        row.rules.insert("policy of inet f in".to_owned(), 1);
        row.rules.insert("rule 4 of inet f in".to_owned(), 2);
        let find = |row: &Row| {
            let uncertain = |_| Blame { culprits: others.to_vec(), ..Blame::default() };
            with_noted(row, |name| named_in(&others, name), uncertain)
        };
        let noted =
            [culprit("rule 4 of inet f in: udp dport 53 drop", Some(2)), culprit("policy of inet f in", Some(1))];
        assert_eq!(find(&row).culprits, noted);
        row.packets = 4;
        let found = find(&row);
        assert_eq!(found.culprits[..2], noted);
        assert_eq!(found.culprits[2..], others[1..]);
        assert_eq!(found.unexplained, Some(1));
    }
}
