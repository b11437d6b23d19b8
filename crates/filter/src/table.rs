//! Lists too long for comparisons, as sorted tables that a search of few steps looks values up in.
//!
//! A list is searched a word at a time: an IPv4 address or a port has one word, an IPv6 address four. What a word leads
//! to is the state that the next word is looked up with, so a table's entries are ranges of words under a state. A list
//! of prefixes and ranges is a list of such entries as well.

use std::collections::BTreeMap;

/// The words from one to another, under a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    state: u32,
    from: u32,
    to: u32,
    /// The state that follows; 0 is for what is not in the list.
    next: u32,
}

/// The state after the last word of what is in the list.
const FOUND: u32 = 1;

/// One word's table, in ascending order of states and words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    entries: Vec<Entry>,
    /// Words before this one have been looked up.
    pub(crate) is_first: bool,
    /// More words follow.
    pub(crate) is_last: bool,
}

/// Bytes of an entry: its state and first word as one number of 64 bits, how many words follow that, the next state.
pub(crate) const ENTRY_SIZE: usize = 16;

impl Table {
    /// What a word leads to.
    pub(crate) fn look_up(&self, state: u32, word: u32) -> u32 {
        let after = self
            .entries
            .partition_point(|entry| (entry.state, entry.from) <= (state, word));
        match after.checked_sub(1).map(|at| self.entries[at]) {
            Some(entry) if entry.state == state && word <= entry.to => entry.next,
            _ => 0,
        }
    }

    /// Steps of a search: a power of two is as many entries.
    pub(crate) fn steps(&self) -> u32 {
        // One more, which every word comes after.
        (self.entries.len() + 1).next_power_of_two().ilog2().max(1)
    }

    /// As the search in the kernel expects it, in the host's order of bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let count = 1 << self.steps();
        let mut bytes = Vec::with_capacity(count * ENTRY_SIZE);
        let mut add = |key: u64, span: u32, next: u32| {
            bytes.extend(key.to_ne_bytes());
            bytes.extend(span.to_ne_bytes());
            bytes.extend(next.to_ne_bytes());
        };
        add(0, 0, 0);
        for entry in &self.entries {
            let key = u64::from(entry.state) << 32 | u64::from(entry.from);
            add(key, entry.to - entry.from, entry.next);
        }
        for _ in self.entries.len() + 1..count {
            add(u64::MAX >> 1, 0, 0);
        }
        bytes
    }
}

/// Tables for ranges of numbers of so many words, given in the order of bytes in which people write them.
pub(crate) fn tables<const WORDS: usize>(ranges: Ranges<WORDS>) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut open: Vec<(u32, Ranges<WORDS>)> = vec![(0, ranges)];
    for word in 0..WORDS {
        let is_last = word + 1 == WORDS;
        let mut entries = Vec::new();
        let mut following = Vec::new();
        let mut next = FOUND + 1;
        for (state, ranges) in open {
            let (whole, single) = split(&ranges, word);
            for (from, to) in &whole {
                let (from, to) = (*from, *to);
                entries.push(Entry {
                    state,
                    from,
                    to,
                    next: FOUND,
                });
            }
            for (value, ranges) in single {
                let after = whole.partition_point(|&(from, _)| from <= value);
                if after > 0 && value <= whole[after - 1].1 {
                    continue;
                }
                entries.push(Entry {
                    state,
                    from: value,
                    to: value,
                    next,
                });
                following.push((next, ranges));
                next += 1;
            }
        }
        if word > 0 {
            // What was found by fewer words stays found.
            entries.push(Entry {
                state: FOUND,
                from: 0,
                to: u32::MAX,
                next: FOUND,
            });
        }
        entries.sort_unstable_by_key(|entry| (entry.state, entry.from));
        tables.push(Table {
            entries,
            is_first: word == 0,
            is_last,
        });
        open = following;
    }
    tables
}

type Ranges<const WORDS: usize> = Vec<([u32; WORDS], [u32; WORDS])>;

/// Ranges of one word that settle it, joined, and by its value those of which more words have to be looked at.
fn split<const WORDS: usize>(
    ranges: &Ranges<WORDS>,
    word: usize,
) -> (Vec<(u32, u32)>, BTreeMap<u32, Ranges<WORDS>>) {
    let mut whole = Vec::new();
    let mut single: BTreeMap<u32, Ranges<WORDS>> = BTreeMap::new();
    for &(from, to) in ranges {
        let rest_is_all = from[word + 1..].iter().all(|&w| w == 0)
            && to[word + 1..].iter().all(|&w| w == u32::MAX);
        if rest_is_all {
            whole.push((from[word], to[word]));
        } else {
            single.entry(from[word]).or_default().push((from, to));
        }
    }
    whole.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(whole.len());
    for (from, to) in whole {
        match joined.last_mut() {
            Some((_, end)) if u64::from(from) <= u64::from(*end) + 1 => *end = (*end).max(to),
            _ => joined.push((from, to)),
        }
    }
    (joined, single)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find<const WORDS: usize>(tables: &[Table], value: [u32; WORDS]) -> bool {
        let mut state = 0;
        for (table, word) in tables.iter().zip(value) {
            state = table.look_up(state, word);
            if state == 0 {
                return false;
            }
        }
        true
    }

    fn number() -> impl Strategy<Value = [u32; 2]> {
        let word = prop_oneof![0u32..4, (u32::MAX - 2)..=u32::MAX];
        [word.clone(), word]
    }

    proptest! {
        #[test]
        fn prefixes_are_found(
            list in prop::collection::vec((number(), prop_oneof![Just(0u32), 29u32..36, 61u32..65]), 0..12),
            values in prop::collection::vec(number(), 20),
        ) {
            let whole = |[high, low]: [u32; 2]| u64::from(high) << 32 | u64::from(low);
            let words = |value: u64| [(value >> 32) as u32, value as u32];
            let ranges: Vec<(u64, u64)> = list.iter().map(|&(value, length)| {
                let host = u64::MAX.checked_shr(length).unwrap_or(0);
                (whole(value) & !host, whole(value) | host)
            }).collect();
            let tables = tables(ranges.iter().map(|&(from, to)| (words(from), words(to))).collect());
            for value in values {
                let expected = ranges.iter().any(|&(from, to)| (from..=to).contains(&whole(value)));
                prop_assert_eq!(find(&tables, value), expected, "{:?} in {:?}", value, list);
            }
        }
    }
}
