//! The ring slots that hold the counters of hook points. Slots of interfaces that left are reused.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use trawl_ring::{Account, Rings};

/// Time after which programs and threads have finished with the packets of an interface that left.
const DRAINED_AFTER: Duration = Duration::from_secs(1);

/// The free slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The first slot that was never used.
    next: u32,
    /// Slots of interfaces that left, with the time, in order of slots.
    left: Vec<(u32, Instant)>,
    /// Slots reserved for the next points, in reverse order.
    reserved: Vec<u32>,
}

impl Slots {
    /// Reserves adjacent slots: programs that serve many interfaces expect the counters of the second point after the
    /// first's. Returns false if none are free.
    pub fn reserve(&mut self, count: u32, max: u32) -> bool {
        let Some(first) = self.find(count, max) else {
            return false;
        };
        self.reserved = (first..first + count).rev().collect();
        true
    }

    /// Returns true if `reserve` would find slots.
    pub fn has(&self, count: u32, max: u32) -> bool {
        self.find(count, max).is_some()
    }

    fn find(&self, count: u32, max: u32) -> Option<u32> {
        if self.next + count <= max {
            return Some(self.next);
        }
        let is_row = |row: &&[(u32, Instant)]| {
            row[row.len() - 1].0 - row[0].0 + 1 == count
                && row.iter().all(|(_, left)| left.elapsed() >= DRAINED_AFTER)
        };
        let row = self.left.windows(count as usize).find(is_row)?;
        Some(row[0].0)
    }

    /// Returns the slot of the next point, and true if another point had it before.
    pub fn take(&mut self, max: u32) -> Option<(u32, bool)> {
        if self.reserved.is_empty() && !self.reserve(1, max) {
            return None;
        }
        let slot = self.reserved.pop()?;
        self.left.retain(|(one, _)| *one != slot);
        let is_used_again = slot < self.next;
        self.next = self.next.max(slot + 1);
        Some((slot, is_used_again))
    }

    /// Frees the slot of a point whose interface left.
    pub fn give_back(&mut self, slot: u32) {
        let at = self.left.partition_point(|(one, _)| *one < slot);
        self.left.insert(at, (slot, Instant::now()));
    }
}

/// A point's use of its slot, which belonged to other points before and may after.
#[derive(Clone, Debug)]
pub(super) struct Tenancy {
    pub slot: u32,
    /// Counters of the previous owners.
    before: Account,
    /// Counters of the point, once the slot has a new owner.
    ended: Arc<OnceLock<Account>>,
}

impl Tenancy {
    pub fn new(slot: u32, is_used_again: bool, rings: &Rings) -> Self {
        let before = match is_used_again {
            true => {
                rings.forget_untold_losses(slot);
                rings.account(slot)
            }
            false => Account::default(),
        };
        Self {
            slot,
            before,
            ended: Arc::default(),
        }
    }

    pub fn account(&self, rings: &Rings) -> Account {
        match self.ended.get() {
            Some(account) => *account,
            None => rings.account(self.slot).since(&self.before),
        }
    }

    /// Freezes the counters, if this slot is the one being reused.
    pub fn end(&self, slot: u32, rings: &Rings) {
        if self.slot == slot {
            self.ended.get_or_init(|| self.account(rings));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aged(slots: &mut Slots) {
        for (_, left) in &mut slots.left {
            *left = Instant::now()
                .checked_sub(DRAINED_AFTER)
                .expect("the machine runs longer");
        }
    }

    #[test]
    fn slots_are_used_again_once_drained() {
        let mut slots = Slots::default();
        for slot in 0..4 {
            assert_eq!(slots.take(4), Some((slot, false)));
        }
        slots.give_back(2);
        assert!(!slots.has(1, 4), "it left just now");
        aged(&mut slots);
        assert_eq!(slots.take(4), Some((2, true)));
        assert_eq!(slots.take(4), None);
    }

    #[test]
    fn two_points_of_an_interface_have_slots_in_a_row() {
        let mut slots = Slots::default();
        (0..6).for_each(|_| assert!(slots.take(6).is_some()));
        [5, 1, 3].into_iter().for_each(|slot| slots.give_back(slot));
        aged(&mut slots);
        assert!(!slots.reserve(2, 6));
        slots.give_back(4);
        aged(&mut slots);
        assert!(slots.reserve(2, 6));
        assert_eq!(slots.take(6), Some((3, true)));
        assert_eq!(slots.take(6), Some((4, true)));
        assert_eq!(slots.take(6), Some((1, true)));
    }
}
