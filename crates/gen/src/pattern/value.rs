//! Values that follow from a frame's number.

use std::sync::Arc;

use trawl_bpf::layout::send::{SEND_MIX_1, SEND_MIX_2, SEND_MIX_ADD};
use trawl_sys::clock;

/// How a field's value comes about. `turn` is the frame's number, or that of its flow.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `first + (turn modulo count) * step`; a count of zero stands for 2^64.
    Step {
        first: u64,
        step: u64,
        count: u64,
    },
    /// One of `count` values from `first` on: a count of zero stands for 2^64, and one above 2^32 is a power of two.
    Random {
        first: u64,
        count: u64,
        seed: u64,
    },
    List(Arc<[u64]>),
    /// The frame's own number, whatever flow it is of, plus this.
    Number(u64),
    /// Nanoseconds of the steady clock at the moment the frame is made, plus this.
    Clock(u64),
}

impl Value {
    pub fn of(&self, number: u64, turn: u64) -> u64 {
        match self {
            Self::Step { first, step, count } => {
                first.wrapping_add(modulo(turn, *count).wrapping_mul(*step))
            }
            Self::Random { first, count, seed } => {
                let turn = turn.wrapping_add(1).wrapping_mul(SEND_MIX_ADD as u64);
                let random = mix(turn.wrapping_add(*seed));
                first.wrapping_add(if count & count.wrapping_sub(1) == 0 {
                    random & count.wrapping_sub(1)
                } else {
                    ((random >> 32) * count) >> 32
                })
            }
            Self::List(values) => values[(turn % values.len() as u64) as usize],
            Self::Number(first) => first.wrapping_add(number),
            Self::Clock(first) => first.wrapping_add(clock::monotonic()),
        }
    }
}

fn modulo(value: u64, count: u64) -> u64 {
    value.checked_rem(count).unwrap_or(value)
}

/// The last steps of splitmix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(SEND_MIX_1 as u64);
    let value = (value ^ value >> 27).wrapping_mul(SEND_MIX_2 as u64);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_go_round() {
        let ports = Value::Step {
            first: 1000,
            step: 2,
            count: 3,
        };
        let values: Vec<u64> = (0..5).map(|n| ports.of(n, n)).collect();
        assert_eq!(values, [1000, 1002, 1004, 1000, 1002]);
    }

    #[test]
    fn random_values_stay_in_their_range_and_reach_all_of_it() {
        let dice = Value::Random {
            first: 1,
            count: 6,
            seed: 7,
        };
        let mut seen = [0; 7];
        for n in 0..6000 {
            seen[dice.of(n, n) as usize] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(
            seen[1..].iter().all(|count| (800..1200).contains(count)),
            "{seen:?}"
        );
    }
}
