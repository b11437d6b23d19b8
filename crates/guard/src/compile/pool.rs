//! Tables and lists of a rule set: consecutively allocated words, with the searches built of them.
//!
//! bpf/include/guard.h defines the words.

use std::collections::HashMap;

use trawl_bpf::layout::guard::{
    GUARD_FOUND_ALLOW, GUARD_FOUND_DENY, GUARD_FOUND_LINE, GUARD_FOUND_LIST, GUARD_LAST, GUARD_NARROWEST,
    GUARD_SERVICE_BITS, GUARD_WIDEST, GUARD_WORD_AT, GUARD_WORD_BRANCH, GUARD_WORD_HALF, GUARD_WORD_KIND,
    GUARD_WORD_OFFSET, GUARD_WORD_SHIFT,
};

use crate::rule::{Action, Services};

const BITS: u32 = 128;
/// Number of bits in the half of a key that a branch reads.
const HALF: u32 = 64;
const WIDEST: u32 = GUARD_WIDEST as u32;
const NARROWEST: u32 = GUARD_NARROWEST as u32;
const SERVICE_BITS: u32 = GUARD_SERVICE_BITS as u32;
/// Maximum number of table entries for each prefix found by the table.
const ROOM: usize = 4;
/// Number of rules up to which trying each in turn beats a table of services.
pub const SHORT_LIST: usize = 8;

/// A line to be found by the first bits of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixLine {
    pub key: u128,
    pub length: u32,
    pub line: u32,
}

/// A rule to be found by the service: its line, the services it applies to, and a flag if it decides all of their
/// packets.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub line: u32,
    pub services: Vec<Services>,
    pub is_certain: bool,
    /// Its decision, if that depends on the service alone.
    pub verdict: Option<Action>,
}

#[derive(Debug)]
pub struct Pool {
    first: usize,
    words: Vec<u64>,
    lists: HashMap<Vec<u32>, u64>,
}

/// Returns a word that ends a search.
fn found(kind: usize, at: usize) -> u64 {
    (kind as u64) << GUARD_WORD_KIND | (at as u64) << GUARD_WORD_AT
}

/// Returns the line of the rule at which a search ends, if the search ends at a single rule.
pub fn only_rule(word: u64) -> Option<u32> {
    match word as u32 as usize >> GUARD_WORD_KIND {
        GUARD_FOUND_LINE | GUARD_FOUND_DENY | GUARD_FOUND_ALLOW => Some((word >> GUARD_WORD_AT) as u32),
        _ => None,
    }
}

fn bits(key: u128, offset: u32, count: u32) -> usize {
    (key << offset >> (BITS - count)) as usize
}

/// Returns the number of leading bits that two keys share.
fn common(one: u128, other: u128) -> u32 {
    (one ^ other).leading_zeros()
}

impl Pool {
    /// Creates a pool; `first` is the number of the first word.
    pub fn new(first: usize) -> Self {
        Self { first, words: Vec::new(), lists: HashMap::new() }
    }

    pub fn into_words(self) -> Vec<u64> {
        self.words
    }

    fn table(&mut self, entries: usize) -> usize {
        let at = self.words.len();
        self.words.resize(at + entries, 0);
        at
    }

    fn branch(&self, at: usize, offset: u32, stride: u32) -> u64 {
        let (half, skipped, shift) = (offset / HALF, offset % HALF, HALF - stride);
        1 << GUARD_WORD_BRANCH
            | ((self.first + at) as u64) << GUARD_WORD_AT
            | u64::from(half) << GUARD_WORD_HALF
            | u64::from(skipped) << GUARD_WORD_OFFSET
            | u64::from(shift) << GUARD_WORD_SHIFT
    }

    /// Returns the start of a search for one of these entries. They are sorted, and none is a prefix of another.
    ///
    /// Bits that all entries share are skipped, and every key has a result: the entry that shares the most leading bits
    /// with it.
    pub fn search(&mut self, entries: &[PrefixLine]) -> u64 {
        let (Some(head), Some(tail)) = (entries.first(), entries.last()) else {
            return 0;
        };
        if entries.len() == 1 {
            return found(GUARD_FOUND_LINE, head.line as usize);
        }
        let offset = common(head.key, tail.key);
        let room = if offset < HALF { HALF } else { BITS } - offset;
        let mut stride = NARROWEST;
        while stride < WIDEST && 1 << (stride + 1) <= entries.len() * ROOM {
            stride += 1;
        }
        let longest = entries.iter().map(|entry| entry.length).max().unwrap_or(BITS);
        let stride = stride.min(room).min(longest - offset);
        let at = self.table(1 << stride);
        let mut rest = entries;
        let mut before = head;
        for slot in 0..1usize << stride {
            let key = head.key & !(u128::MAX >> offset) | (slot as u128) << (BITS - offset - stride);
            let inside = |entry: &PrefixLine| common(entry.key, key) >= entry.length.min(offset + stride);
            let (own, others) = rest.split_at(rest.partition_point(inside));
            self.words[at + slot] = match own {
                [] => {
                    let nearest = match others.first() {
                        Some(next) if common(next.key, key) > common(before.key, key) => next,
                        _ => before,
                    };
                    found(GUARD_FOUND_LINE, nearest.line as usize)
                }
                _ => self.search(own),
            };
            if let Some(last) = own.last() {
                before = last;
                // An entry shorter than the table's bits fills several slots.
                if last_slot_of(last, offset, stride) == slot {
                    rest = others;
                }
            }
        }
        self.branch(at, offset, stride)
    }

    /// Returns the start of a search for the rules to try on a service, in their order. Up to `listed` rules form a
    /// list, more a table.
    pub fn services(&mut self, candidates: &[Candidate], listed: usize) -> u64 {
        let whole = (0, (1 << SERVICE_BITS) - 1);
        if candidates.len() > listed {
            self.service_table(candidates, whole, 0)
        } else {
            self.list(candidates, |one| one.services.contains(&ALL_SERVICES))
        }
    }

    fn service_table(&mut self, candidates: &[Candidate], range: Services, offset: u32) -> u64 {
        let touches = |one: &Candidate| one.services.iter().any(|(a, b)| *a <= range.1 && range.0 <= *b);
        let covers = |one: &Candidate| one.services.iter().any(|(a, b)| *a <= range.0 && range.1 <= *b);
        let mut own: Vec<Candidate> = candidates.iter().filter(|one| touches(one)).cloned().collect();
        // A rule that decides all of these services makes the rules after it unreachable.
        if let Some(end) = own.iter().position(|one| one.is_certain && covers(one)) {
            own.truncate(end + 1);
        }
        if own.len() <= 1 || own.iter().all(covers) {
            return self.list(&own, covers);
        }
        // The protocol and the fragment bit are looked up first, then one byte at a time.
        let stride = if offset == 0 { SERVICE_BITS - 16 } else { 8 };
        let at = self.table(1 << stride);
        let step = (range.1 - range.0 + 1) >> stride;
        for slot in 0..1u32 << stride {
            let first = range.0 + slot * step;
            let word = self.service_table(&own, (first, first + step - 1), offset + stride);
            self.words[at + slot as usize] = word;
        }
        self.branch(at, offset, stride)
    }

    fn list(&mut self, candidates: &[Candidate], covers_all: impl Fn(&Candidate) -> bool) -> u64 {
        let mut lines: Vec<u32> = Vec::with_capacity(candidates.len());
        for one in candidates {
            lines.push(one.line);
            if one.is_certain && covers_all(one) {
                break;
            }
        }
        match lines.as_slice() {
            [] => return 0,
            [only] => {
                let verdict = candidates[0].verdict.filter(|_| covers_all(&candidates[0]));
                let kind = match verdict {
                    Some(Action::Deny) => GUARD_FOUND_DENY,
                    Some(Action::Allow) => GUARD_FOUND_ALLOW,
                    None => GUARD_FOUND_LINE,
                };
                return found(kind, *only as usize);
            }
            _ => {}
        }
        if let Some(word) = self.lists.get(&lines) {
            return *word;
        }
        // Two entries fit in a word.
        let at = self.table(lines.len().div_ceil(2));
        let word = found(GUARD_FOUND_LIST, (self.first + at) * 2);
        let last = lines.len() - 1;
        for (number, line) in lines.iter().enumerate() {
            let mark = if number == last { GUARD_LAST as u32 } else { 0 };
            let entry = u64::from(line | mark);
            let shift = if (number % 2 == 0) == cfg!(target_endian = "little") { 0 } else { 32 };
            self.words[at + number / 2] |= entry << shift;
        }
        self.lists.insert(lines, word);
        word
    }
}

const ALL_SERVICES: Services = (0, 0xff_ffff);

/// Returns the last slot that an entry fills.
fn last_slot_of(entry: &PrefixLine, offset: u32, stride: u32) -> usize {
    let end = entry.key | u128::MAX.checked_shr(entry.length).unwrap_or(0);
    bits(end, offset, stride)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(word: u64, lowest: usize) -> u64 {
        word >> lowest & 0xff
    }

    fn at(word: u64) -> usize {
        (word >> GUARD_WORD_AT) as usize
    }

    /// Returns the word that the key selects; `None` at the end of the search.
    fn slot(word: u64, key: u128) -> Option<usize> {
        let half = match part(word, GUARD_WORD_HALF) {
            0 => key >> 64,
            _ => key,
        } as u64;
        let shift = part(word, GUARD_WORD_SHIFT);
        let chosen = half << part(word, GUARD_WORD_OFFSET) >> shift.min(63);
        (word >> GUARD_WORD_BRANCH & 1 != 0).then_some(at(word) + chosen as usize)
    }

    /// Searches in the same steps as the program.
    fn walk(pool: &Pool, mut word: u64, key: u128) -> u64 {
        while let Some(slot) = slot(word, key) {
            word = pool.words[slot - pool.first];
        }
        word
    }

    fn entries(prefixes: &[(u128, u32)]) -> Vec<PrefixLine> {
        let mask = |length: u32| u128::MAX.checked_shl(128 - length).unwrap_or(0);
        let mut all: Vec<PrefixLine> = prefixes
            .iter()
            .map(|(key, length)| PrefixLine { key: key & mask(*length), length: *length, line: 0 })
            .collect();
        all.sort();
        all.dedup();
        // No entry may be a prefix of another: the longer ones stay.
        let begins = |one: &PrefixLine, other: &PrefixLine| {
            one != other && one.length <= other.length && common(one.key, other.key) >= one.length
        };
        let mut kept: Vec<PrefixLine> =
            all.iter().filter(|one| !all.iter().any(|other| begins(one, other))).copied().collect();
        for (number, entry) in kept.iter_mut().enumerate() {
            entry.line = number as u32 + 1;
        }
        kept
    }

    /// Generates similar keys, with lengths of all kinds.
    fn prefix() -> impl Strategy<Value = (u128, u32)> {
        let key = prop_oneof![
            any::<u128>(),
            any::<u8>().prop_map(|low| 0x0a00_0000u128 << 96 | u128::from(low) << 96),
            any::<u16>().prop_map(|low| 0x2001_0db8u128 << 96 | u128::from(low) << 56),
        ];
        (key, 1..=128u32)
    }

    proptest! {
        #[test]
        fn search_finds_the_entry_that_shares_the_most_bits(
            prefixes in proptest::collection::vec(prefix(), 1..60),
            keys in proptest::collection::vec(any::<u128>(), 20),
        ) {
            let entries = entries(&prefixes);
            let mut pool = Pool::new(800);
            let start = pool.search(&entries);
            let near = prefixes.iter().flat_map(|(key, _)| [*key, key ^ 1, key ^ (1 << 97), key ^ (1 << 60)]);
            for key in keys.iter().copied().chain(near) {
                let line = at(walk(&pool, start, key)) as u32;
                let hit = entries.iter().find(|one| one.line == line).expect("a line of the entries");
                let most = entries.iter().map(|one| common(one.key, key).min(one.length)).max();
                prop_assert_eq!(Some(common(hit.key, key).min(hit.length)), most);
            }
        }

        #[test]
        fn service_finds_its_rules(
            ranges in proptest::collection::vec((0..3u32, 0..300u32, 0..300u32, any::<bool>()), 0..40),
            services in proptest::collection::vec((0..4u32, 0..320u32), 40),
            listed in proptest::sample::select(vec![1, SHORT_LIST]),
        ) {
            let candidates: Vec<Candidate> = ranges.iter().enumerate().map(|(number, (protocol, a, b, certain))| Candidate {
                line: number as u32 + 1,
                services: vec![(protocol << 16 | a.min(b), protocol << 16 | a.max(b))],
                is_certain: *certain, verdict: certain.then_some(Action::Deny),
            }).collect();
            let mut pool = Pool::new(16);
            let start = pool.services(&candidates, listed);
            for (protocol, port) in services {
                let service = protocol << 16 | port;
                let word = walk(&pool, start, u128::from(service) << (128 - SERVICE_BITS));
                let listed = lines(&pool, word);
                let holds = |line: &u32| candidates[*line as usize - 1].services.iter().any(|(a, b)| *a <= service && service <= *b);
                let tried: Vec<u32> = listed.into_iter().filter(holds).collect();
                let mut wanted: Vec<u32> = (1..=candidates.len() as u32).filter(holds).collect();
                if let Some(end) = wanted.iter().position(|line| candidates[*line as usize - 1].is_certain) {
                    wanted.truncate(end + 1);
                }
                let decided = |lines: &[u32]| lines.iter().take(wanted.len()).copied().collect::<Vec<_>>();
                prop_assert_eq!(decided(&tried), wanted.clone());
            }
        }
    }

    fn lines(pool: &Pool, word: u64) -> Vec<u32> {
        let at = at(word);
        match part(word, GUARD_WORD_KIND) as usize {
            0 => Vec::new(),
            GUARD_FOUND_LINE | GUARD_FOUND_DENY | GUARD_FOUND_ALLOW => vec![at as u32],
            _ => {
                let entry = |number: usize| {
                    let bytes = pool.words[number / 2 - pool.first].to_ne_bytes();
                    u32::from_ne_bytes(bytes[number % 2 * 4..][..4].try_into().unwrap())
                };
                let mut all = Vec::new();
                for number in at.. {
                    all.push(entry(number) & !(GUARD_LAST as u32));
                    if entry(number) & GUARD_LAST as u32 != 0 {
                        break;
                    }
                }
                all
            }
        }
    }

    #[test]
    fn dense_prefixes_take_few_steps() {
        let all: Vec<PrefixLine> = (0..100_000u32)
            .map(|number| PrefixLine { key: u128::from(0x0a00_0000 + number) << 96, length: 32, line: number + 1 })
            .collect();
        let mut pool = Pool::new(0);
        let start = pool.search(&all);
        assert!(pool.words.len() < 300_000, "{} words", pool.words.len());
        let mut word = start;
        let mut steps = 0;
        while let Some(slot) = slot(word, all[77_777].key) {
            word = pool.words[slot];
            steps += 1;
        }
        assert_eq!((at(word), steps), (77_778, 2));
    }
}
