//! Which bits a value can have: what the verifier knows of it beside its range, so that no test is left that one of the
//! two rules out and the other does not.

use super::ranges::Ranges;

/// All of `must` are set, and none outside of `may`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) must: u32,
    pub(super) may: u32,
}

impl Bits {
    pub(super) const ANY: Bits = Bits {
        must: 0,
        may: u32::MAX,
    };

    pub(super) fn of(number: u32) -> Self {
        Bits {
            must: number,
            may: number,
        }
    }

    pub(super) fn within(may: u32) -> Self {
        Bits { must: 0, may }
    }

    /// The least number of that kind that is not below another.
    fn at_least(self, from: u32) -> Option<u32> {
        let Bits { must, may } = self;
        if must & !may != 0 {
            return None;
        }
        if from & !may == 0 && from & must == must {
            return Some(from);
        }
        // It differs from the other in one bit first, which it has more; the further down, the less is added.
        (0..u32::BITS).find_map(|bit| {
            let (one, below) = (1u32 << bit, (1u32 << bit) - 1);
            let above = !(one | below);
            let is_like = from & above & !may == 0 && must & above & !from == 0;
            (is_like && from & one == 0 && may & one != 0)
                .then_some(from & above | one | must & below)
        })
    }

    /// The greatest number of that kind that is not above another.
    fn at_most(self, to: u32) -> Option<u32> {
        let turned = Bits {
            must: !self.may,
            may: !self.must,
        };
        turned.at_least(!to).map(|number| !number)
    }

    /// Ranges as they are for such numbers: without those that hold none, and each from one to one.
    pub(super) fn among(self, set: &Ranges) -> Ranges {
        let ends = set.ranges().iter().filter_map(|&(from, to)| {
            let (from, to) = (self.at_least(from)?, self.at_most(to)?);
            (from <= to).then_some((from, to))
        });
        Ranges::joined(ends.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ends_are_the_nearest_numbers(must in 0u32..64, may in 0u32..64, from in 0u32..70, length in 0u32..70) {
            let bits = Bits { must, may };
            let fits = |n: &u32| n & must == must && n & !may == 0;
            let range = Ranges::between(from, from + length);
            let numbers: Vec<u32> = (from..=from + length).filter(fits).collect();
            let left = bits.among(&range);
            match (numbers.first(), numbers.last()) {
                (Some(first), Some(last)) => prop_assert_eq!(left.ranges(), &[(*first, *last)]),
                _ => prop_assert!(left.is_empty()),
            }
        }
    }

    #[test]
    fn the_highest_bit_is_a_bit() {
        let top = Bits {
            must: 1 << 31,
            may: 1 << 31 | 1,
        };
        let all = top.among(&Ranges::up_to(u32::MAX));
        assert_eq!(all.ranges(), [(1 << 31, 1 << 31 | 1)]);
        assert!(top.among(&Ranges::up_to(7)).is_empty());
    }
}
