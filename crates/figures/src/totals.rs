//! Sums by the names of processes and of what they belong to, of which the first ones have sums of their own.

use std::collections::BTreeMap;

use crate::series::OTHER;

/// Maximum number of names: with one more for the others, two metrics and two directions, this makes 1,000 series.
const MOST: usize = 249;
pub const UNKNOWN: &str = "unknown";

/// Sums by names: a process, then what it belongs to.
#[derive(Debug)]
pub struct Totals<const PARTS: usize, Sum>(BTreeMap<[String; PARTS], Sum>);

impl<const PARTS: usize, Sum> Default for Totals<PARTS, Sum> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<const PARTS: usize, Sum> Totals<PARTS, Sum> {
    /// Returns the sum of a name; the one of all others if there are too many. `empty` begins one.
    pub fn of(&mut self, name: [String; PARTS], empty: impl FnOnce() -> Sum) -> &mut Sum {
        let others = || std::array::from_fn(|part| if part == 0 { OTHER.to_owned() } else { String::new() });
        let name = if self.0.len() < MOST || self.0.contains_key(&name) { name } else { others() };
        self.0.entry(name).or_insert_with(empty)
    }

    pub fn all(&self) -> impl Iterator<Item = (&[String; PARTS], &Sum)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_bpf::layout::Shared as _;
    use trawl_bpf::layout::process::Traffic;

    #[test]
    fn names_beyond_the_limit_are_one() {
        let mut totals: Totals<2, Traffic> = Totals::default();
        let traffic = Traffic { packets: [1, 2], bytes: [10, 20] };
        for number in 0..2 * MOST {
            totals.of([format!("p{number}"), String::new()], Traffic::zeroed).add(&traffic);
        }
        assert_eq!(totals.all().count(), MOST + 1);
        let (_, other) = totals.all().find(|(name, _)| name[0] == OTHER).unwrap();
        assert_eq!(other.packets[0], MOST as u64);
    }
}
