//! Repetitions of one direction, and the drops that caused them.

use crate::drops::{Direction, Drops, Repetition};

/// Maximum number of repetitions that wait: the drops of older ones were read meanwhile.
const WAITING: usize = 256;

/// The drops that caused repetitions of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Repetitions that follow a drop.
    pub joined: u64,
    /// The most frequent cause of the drops.
    pub cause: u32,
}

/// Repetitions without their drops yet, and the number of repetitions by place and cause of the drop.
#[derive(Clone, Debug, Default)]
pub struct Joins {
    waiting: Vec<Repetition>,
    found: Vec<(String, u32, u64)>,
}

impl Joins {
    pub fn push(&mut self, repetition: Repetition) {
        self.waiting.push(repetition);
    }

    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING
    }

    pub fn join(&mut self, drops: &mut Drops, direction: Direction) {
        for repetition in self.waiting.drain(..) {
            for joined in drops.find(direction, &repetition) {
                let is_same =
                    |(place, cause, _): &&mut (String, u32, u64)| *place == joined.place && *cause == joined.cause;
                match self.found.iter_mut().find(is_same) {
                    Some((.., count)) => *count += 1,
                    None => self.found.push((joined.place.to_owned(), joined.cause, 1)),
                }
            }
        }
    }

    /// Returns the drops that are the cause, given the highest number that the receiver has acknowledged.
    pub fn end(mut self, drops: &mut Drops, direction: Direction, acknowledged: Option<u32>) -> Option<Found> {
        self.join(drops, direction);
        self.found.retain(|(place, ..)| !drops.are_copies(direction, place, acknowledged));
        let (_, cause, _) = *self.found.iter().max_by_key(|(.., count)| *count)?;
        Some(Found { joined: self.found.iter().map(|(.., count)| count).sum(), cause })
    }
}
