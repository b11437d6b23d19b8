//! Lists too long for comparisons, as sorted tables for a search of few steps.
//!
//! A list is searched a word at a time: an IPv4 address or a port has one word, an IPv6 address four. A word leads to a
//! state, under which the next word is looked up, so a table's entries are ranges of words under a state. A list of
//! prefixes and ranges is a list of such entries as well, and so is a list of combinations: the words of an address,
//! then the words of a port.

use std::collections::HashMap;

/// A range of words under a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    state: u32,
    from: u32,
    to: u32,
    /// The next state; 0 for values outside the list.
    next: u32,
}

/// State after the last word of a value in the list.
const FOUND: u32 = 1;

/// The table of one word, in ascending order of states and words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    entries: Vec<Entry>,
    /// True for the first word.
    pub(crate) is_first: bool,
    /// True for the last word.
    pub(crate) is_last: bool,
}

/// Size of an entry: its state and first word as one number of 64 bits, the number of further words, the next state.
pub(crate) const ENTRY_SIZE: usize = 16;

impl Table {
    /// Returns the next state of a word.
    pub(crate) fn look_up(&self, state: u32, word: u32) -> u32 {
        let after = self.entries.partition_point(|entry| (entry.state, entry.from) <= (state, word));
        match after.checked_sub(1).map(|at| self.entries[at]) {
            Some(entry) if entry.state == state && word <= entry.to => entry.next,
            _ => 0,
        }
    }

    /// Returns the number of steps of a search, which is the logarithm of the number of entries.
    pub(crate) fn steps(&self) -> u32 {
        // One additional entry precedes all words.
        (self.entries.len() + 1).next_power_of_two().ilog2().max(1)
    }

    /// Returns the bytes for the search in the kernel, in the host's byte order.
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

/// Maximum number of rows over all states; more would need seconds and hundreds of megabytes.
const MAX_STATE_ROWS: usize = 1 << 24;

/// Builds tables for rows of this many words, each a range. `None` if rows overlap so often that the tables would be
/// much longer than their list.
pub(crate) fn tables(words: usize, cells: &[(u32, u32)]) -> Option<Vec<Table>> {
    let rows = cells.len() / words;
    let cell = |row: u32, word: usize| cells[row as usize * words + word];
    // The word after which a row needs no further look-up.
    let settled: Vec<usize> = (0..rows as u32)
        .map(|row| {
            let asks = |word: &usize| cell(row, *word) != (0, u32::MAX);
            (0..words).rfind(asks).unwrap_or_default()
        })
        .collect();
    let mut tables = Vec::new();
    let mut open: Vec<(u32, Vec<u32>)> = vec![(0, (0..rows as u32).collect())];
    for word in 0..words {
        let mut entries: Vec<Entry> = Vec::new();
        let mut following: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut state_rows = 0;
        for (state, rows) in open {
            let ranges = rows.into_iter().map(|row| Range {
                from: cell(row, word).0,
                to: cell(row, word).1,
                row: (settled[row as usize] > word).then_some(row),
            });
            segments(ranges.collect(), |from, to, rows| {
                state_rows += rows.len();
                if state_rows > MAX_STATE_ROWS {
                    return false;
                }
                let next = match rows {
                    [] => FOUND,
                    rows => match following.get(rows) {
                        Some(next) => *next,
                        None => {
                            let next = FOUND + 1 + following.len() as u32;
                            following.insert(rows.to_vec(), next);
                            next
                        }
                    },
                };
                match entries.last_mut() {
                    Some(last) if last.is_continued_by(state, from, next) => last.to = to,
                    _ => entries.push(Entry { state, from, to, next }),
                }
                true
            })?;
        }
        if word > 0 {
            // Values found by fewer words stay found.
            entries.push(Entry { state: FOUND, from: 0, to: u32::MAX, next: FOUND });
        }
        entries.sort_unstable_by_key(|entry| (entry.state, entry.from));
        tables.push(Table { entries, is_first: word == 0, is_last: word + 1 == words });
        open = following.into_iter().map(|(rows, next)| (next, rows)).collect();
    }
    Some(tables)
}

impl Entry {
    /// Returns true if an entry continues this one with the same next state.
    fn is_continued_by(&self, state: u32, from: u32, next: u32) -> bool {
        self.state == state && self.next == next && self.to.checked_add(1) == Some(from)
    }
}

/// A word of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    from: u32,
    to: u32,
    /// `None` if this word settles the row.
    row: Option<u32>,
}

/// Divides overlapping ranges into disjoint ones, and calls `each` in ascending order with the rows of each: none if a
/// row is settled. Returns `None` early if the caller stops.
fn segments(mut ranges: Vec<Range>, mut each: impl FnMut(u32, u32, &[u32]) -> bool) -> Option<()> {
    ranges.sort_unstable();
    let mut active: Vec<Range> = Vec::new();
    let mut rows: Vec<u32> = Vec::new();
    let mut coming = ranges.into_iter().peekable();
    let mut at = 0u32;
    loop {
        if active.is_empty() {
            let Some(next) = coming.peek() else {
                return Some(());
            };
            at = next.from;
        }
        while let Some(range) = coming.next_if(|range| range.from == at) {
            active.push(range);
        }
        let next_begins = coming.peek().map_or(u32::MAX, |range| range.from - 1);
        let to = (active.iter()).fold(next_begins, |to, range| to.min(range.to));
        rows.clear();
        if active.iter().all(|range| range.row.is_some()) {
            rows.extend(active.iter().filter_map(|range| range.row));
            rows.sort_unstable();
        }
        if !each(at, to, &rows) {
            return None;
        }
        active.retain(|range| range.to > to);
        if to == u32::MAX {
            return Some(());
        }
        at = to + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(tables: &[Table], value: &[u32]) -> bool {
        let mut state = 0;
        for (table, word) in tables.iter().zip(value) {
            state = table.look_up(state, *word);
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
            let cells: Vec<(u32, u32)> = ranges.iter().flat_map(|&(from, to)| {
                let [from, to] = [words(from), words(to)];
                [0, 1].map(|word| (from[word], to[word]))
            }).collect();
            let tables = tables(2, &cells).unwrap();
            for value in values {
                let expected = ranges.iter().any(|&(from, to)| (from..=to).contains(&whole(value)));
                prop_assert_eq!(find(&tables, &value), expected, "{:?} in {:?}", value, list);
            }
        }

        /// Ranges of each word, with arbitrary overlaps.
        #[test]
        fn combinations_are_found(
            rows in prop::collection::vec([any_range(), any_range(), any_range()], 1..9),
            values in prop::collection::vec([0u32..9, 0u32..9, 0u32..9], 40),
        ) {
            let tables = tables(3, &rows.concat()).unwrap();
            for value in values {
                let expected = rows.iter().any(|row| {
                    row.iter().zip(value).all(|((from, to), word)| (*from..=*to).contains(&word))
                });
                prop_assert_eq!(find(&tables, &value), expected, "{:?} in {:?}", value, rows);
            }
        }
    }

    fn any_range() -> impl Strategy<Value = (u32, u32)> {
        let some = (0u32..9, 0u32..9).prop_map(|(one, other)| (one.min(other), one.max(other)));
        prop_oneof![some, Just((0, u32::MAX)), (0u32..9).prop_map(|one| (one, one))]
    }

    /// A list with a table of quadratic size is refused.
    #[test]
    fn tables_have_a_bound() {
        let cells: Vec<(u32, u32)> = (0..8000).flat_map(|n| [(n, u32::MAX - n), (n, n)]).collect();
        assert_eq!(tables(2, &cells), None);
    }
}
