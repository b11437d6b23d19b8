//! The hook points of a capture, and the ring slots that hold their counters. Slots of interfaces that left are reused.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use trawl_bpf::layout::{RecordConfig, VERDICT_NONE, VERDICT_TC, VERDICT_XDP, VERDICT_XDP_SEEN};
use trawl_ring::{RingAccount, Rings, account_offset, rejected_offset};

use crate::event::Event;
use crate::taps::facts::Facts;
use trawl_plan::options::Stamps;

/// A hook point with its own counters.
#[derive(Clone, Debug)]
pub struct Point {
    /// Slot of its counters in the rings.
    pub(crate) tenancy: Tenancy,
    /// Index of its site; `None` if the point belongs to no single site.
    pub site: Option<usize>,
    pub label: String,
    /// Name of its interface blocks, if not the label.
    pub(crate) block_name: Option<String>,
    /// Name of the hook in messages: `xdp exit`, `tc egress`.
    pub hook: String,
    pub tap: &'static Facts,
    /// Attach mode, once attached: `native`, `skb`, `tcx`, `clsact`.
    pub mode: &'static str,
    /// Link type of its packets, if not the interface's.
    pub(crate) link_type: Option<u16>,
    /// Remark on the time stamps, for the interface block.
    pub(crate) note: Option<String>,
    /// Description of the foreign program at which packets are seen, for the file.
    pub(crate) program: Option<String>,
    /// Interface blocks whose packets count here.
    pub interfaces: Vec<u32>,
    /// Source of its records' time stamps.
    pub stamps: Stamps,
    pub(crate) rings: Arc<Rings>,
}

impl Point {
    /// Returns the event which reports that packets are being recorded here.
    pub fn capturing(&self) -> Event {
        Event::Capturing { interface: self.label.clone(), hook: self.hook.clone(), mode: self.mode.to_owned() }
    }

    /// Returns the counters of this point's packets, as far as the rings know.
    pub(crate) fn account(&self) -> RingAccount {
        self.tenancy.account(&self.rings)
    }
}

/// Returns the end of an XDP program (entry or exit) that a hook stands for.
pub(crate) fn end_of(hook: &str) -> Option<&'static str> {
    let ends = ["xdp entry", "xdp exit"];
    ends.into_iter().find(|end| hook.starts_with(end))
}

/// The identifiers given to a new hook point.
#[derive(Clone, Copy, Debug)]
pub struct PointIds {
    /// Index in the list of points.
    pub point: u32,
    /// Slot of its counters in the rings.
    pub slot: u32,
    pub interface: u32,
    /// Interface block for packets stamped by the hardware, if requested.
    pub hardware_interface: u32,
    /// True if records carry the verdict.
    pub(crate) verdict: bool,
}

/// The verdict that a program's records carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    Nothing,
    Xdp(u32),
    /// The verdict that the XDP program returns.
    XdpAsSeen,
    Tc(i32),
}

impl PointIds {
    /// Returns the part of a program's configuration that makes records for this point.
    pub fn record(&self, direction: u32, carries: Carries) -> RecordConfig {
        let (kind, value) = match carries {
            _ if !self.verdict => (VERDICT_NONE, 0),
            Carries::Nothing => (VERDICT_NONE, 0),
            Carries::Xdp(action) => (VERDICT_XDP, u64::from(action)),
            Carries::XdpAsSeen => (VERDICT_XDP_SEEN, 0),
            Carries::Tc(action) => (VERDICT_TC, i64::from(action) as u64),
        };
        RecordConfig {
            account_offset: account_offset(self.slot),
            rejected_offset: rejected_offset(self.slot),
            point: self.slot,
            interface: self.interface,
            hardware_interface: self.hardware_interface,
            direction,
            verdict_kind: kind as u32,
            // One byte of kind, eight of value, three of padding.
            verdict_low: kind as u32 | (value as u32) << 8,
            verdict_middle: (value >> 24) as u32,
            verdict_high: (value >> 56) as u32,
            options_length: 0,
            fixed_length: 0,
        }
    }
}

/// Time after which programs and threads have finished with the packets of an interface that left.
const DRAINED_AFTER: Duration = Duration::from_secs(1);

/// The free slots.
#[derive(Debug, Default)]
pub(crate) struct Slots {
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
            row[row.len() - 1].0 - row[0].0 + 1 == count && row.iter().all(|(_, left)| left.elapsed() >= DRAINED_AFTER)
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
pub(crate) struct Tenancy {
    pub slot: u32,
    /// Counters of the previous owners.
    before: RingAccount,
    /// Counters of the point, once the slot has a new owner.
    ended: Arc<OnceLock<RingAccount>>,
}

impl Tenancy {
    pub fn new(slot: u32, is_used_again: bool, rings: &Rings) -> Self {
        let before = if is_used_again {
            rings.forget_unreported_losses(slot);
            rings.account(slot)
        } else {
            RingAccount::default()
        };
        Self { slot, before, ended: Arc::default() }
    }

    pub fn account(&self, rings: &Rings) -> RingAccount {
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
            *left = Instant::now().checked_sub(DRAINED_AFTER).expect("the machine runs longer");
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
