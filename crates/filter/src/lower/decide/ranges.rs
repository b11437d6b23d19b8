//! Sets of numbers: what a test asks of a value, and what is known of one.

use trawl_ebpf::op;

use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// A set of 32-bit numbers as ranges, both ends included: sorted, apart, and never touching.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(in crate::lower) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    pub(in crate::lower) fn one(value: u32) -> Self {
        Ranges(vec![(value, value)])
    }

    pub(super) fn between(from: u32, to: u32) -> Self {
        if from > to {
            return Ranges::default();
        }
        Ranges(vec![(from, to)])
    }

    pub(super) fn up_to(greatest: u32) -> Self {
        Ranges::between(0, greatest)
    }

    /// The numbers for which a comparison with a constant holds; none for a test of bits.
    pub(super) fn of_test(test: u8, constant: u32) -> Option<Self> {
        Some(match test {
            op::JEQ => Ranges::one(constant),
            op::JGE => Ranges::between(constant, u32::MAX),
            op::JGT if constant == u32::MAX => Ranges::default(),
            op::JGT => Ranges::between(constant + 1, u32::MAX),
            _ => return None,
        })
    }

    pub(in crate::lower) fn from_values(values: impl IntoIterator<Item = u32>) -> Self {
        let mut ranges: Vec<_> = values.into_iter().map(|value| (value, value)).collect();
        ranges.sort_unstable();
        Ranges::joined(ranges)
    }

    pub(in crate::lower) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The only number in it, if there is just one.
    pub(super) fn single(&self) -> Option<u32> {
        match self.0[..] {
            [(from, to)] if from == to => Some(from),
            _ => None,
        }
    }

    pub(super) fn joined(sorted: Vec<(u32, u32)>) -> Self {
        let mut ranges: Vec<(u32, u32)> = Vec::with_capacity(sorted.len());
        for (from, to) in sorted {
            match ranges.last_mut() {
                Some((_, end)) if u64::from(from) <= u64::from(*end) + 1 => *end = (*end).max(to),
                _ => ranges.push((from, to)),
            }
        }
        Ranges(ranges)
    }

    pub(super) fn or(&self, other: &Self) -> Self {
        let mut all = [&self.0[..], &other.0[..]].concat();
        // Two sorted runs, which this kind of sorting merges.
        all.sort();
        Ranges::joined(all)
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        let (mut here, mut there) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut ranges = Vec::new();
        while let (Some(&&(a, b)), Some(&&(c, d))) = (here.peek(), there.peek()) {
            if a.max(c) <= b.min(d) {
                ranges.push((a.max(c), b.min(d)));
            }
            if b < d {
                here.next();
            } else {
                there.next();
            }
        }
        Ranges(ranges)
    }

    /// What is missing from it up to a greatest number.
    pub(super) fn not(&self, greatest: u32) -> Self {
        let mut ranges = Vec::new();
        let mut next = Some(0u32);
        for &(from, to) in &self.0 {
            let Some(start) = next.filter(|&start| start <= greatest) else {
                break;
            };
            if from > start {
                ranges.push((start, (from - 1).min(greatest)));
            }
            next = to.checked_add(1);
        }
        if let Some(start) = next.filter(|&start| start <= greatest) {
            ranges.push((start, greatest));
        }
        Ranges(ranges)
    }
}

/// A set that is looked up often: its hash is worked out once.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    hash: u64,
    set: Rc<Ranges>,
}

impl Shared {
    pub(super) fn new(set: Ranges) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        set.hash(&mut hasher);
        Shared {
            hash: hasher.finish(),
            set: Rc::new(set),
        }
    }
}

impl std::ops::Deref for Shared {
    type Target = Ranges;

    fn deref(&self) -> &Ranges {
        &self.set
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (Rc::ptr_eq(&self.set, &other.set) || self.set == other.set)
    }
}

impl Eq for Shared {}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn few() -> impl Strategy<Value = Ranges> {
        let value = prop_oneof![0u32..12, (u32::MAX - 5)..=u32::MAX];
        prop::collection::vec(value, 0..12).prop_map(Ranges::from_values)
    }

    const ALL: [u32; 20] = [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
        4_294_967_289,
        4_294_967_290,
        4_294_967_291,
        4_294_967_292,
        4_294_967_293,
        4_294_967_294,
        u32::MAX,
    ];

    fn contains(set: &Ranges, value: u32) -> bool {
        set.ranges()
            .iter()
            .any(|&(from, to)| (from..=to).contains(&value))
    }

    proptest! {
        #[test]
        fn sets_are_sets(a in few(), b in few(), greatest in prop_oneof![0u32..14, Just(u32::MAX)]) {
            for value in ALL {
                let (in_a, in_b) = (contains(&a, value), contains(&b, value));
                prop_assert_eq!(contains(&a.or(&b), value), in_a || in_b);
                prop_assert_eq!(contains(&a.and(&b), value), in_a && in_b);
                prop_assert_eq!(contains(&a.not(greatest), value), !in_a && value <= greatest);
            }
            prop_assert_eq!(a.not(u32::MAX).not(u32::MAX), a.clone());
            prop_assert_eq!(a.and(&b).and(&b), a.and(&b));
            for pair in a.or(&b).ranges().windows(2) {
                prop_assert!(u64::from(pair[0].1) + 1 < u64::from(pair[1].0));
            }
        }
    }
}
