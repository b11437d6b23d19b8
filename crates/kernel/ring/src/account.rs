//! What the rings and what lies beside them know of the fates of packets.

use std::sync::atomic::Ordering;

use trawl_bpf::layout::{CaptureShared, PointCounters, RING_MAX_POINTS, Rejections, RingControl};

use super::Rings;
use super::words::{atomic64, load};

/// Where in a control block the account of a hook point stands.
pub fn account_offset(point: u32) -> u32 {
    let index = point as usize % RING_MAX_POINTS;
    (std::mem::offset_of!(RingControl, points) + size_of::<PointCounters>() * index) as u32
}

/// Where among a CPU's rejections those of a hook point stand.
pub fn rejected_offset(point: u32) -> u32 {
    let index = point as usize % RING_MAX_POINTS;
    (std::mem::offset_of!(Rejections, points) + size_of::<u64>() * index) as u32
}

/// What became of the packets that one hook point saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    pub lost_ring_full: u64,
    pub lost_copy_failed: u64,
    pub lost_rate_limit: u64,
    /// Seen on a CPU that came up after the capture began.
    pub lost_no_ring: u64,
    pub hardware_stamped: u64,
    pub truncated: u64,
}

impl Account {
    /// What was counted since the account stood like this.
    pub fn since(self, before: &Self) -> Self {
        Self {
            seen: self.seen - before.seen,
            filtered_out: self.filtered_out - before.filtered_out,
            recorded: self.recorded - before.recorded,
            lost_ring_full: self.lost_ring_full - before.lost_ring_full,
            lost_copy_failed: self.lost_copy_failed - before.lost_copy_failed,
            lost_rate_limit: self.lost_rate_limit - before.lost_rate_limit,
            lost_no_ring: self.lost_no_ring - before.lost_no_ring,
            hardware_stamped: self.hardware_stamped - before.hardware_stamped,
            truncated: self.truncated - before.truncated,
        }
    }
}

impl Rings {
    /// A hook point that counts where another one did has no losses yet to tell of.
    pub fn forget_untold_losses(&self, point: u32) {
        for ring in 0..self.count {
            self.control(ring)
                .losses_untold(point as usize)
                .store(0, Ordering::Relaxed);
        }
    }

    /// The sum over all rings of one hook point's accounts.
    pub fn account(&self, point: u32) -> Account {
        let mut sum = Account::default();
        for ring in 0..self.count {
            let counters = self.control(ring).counters(point as usize);
            sum.filtered_out += counters.filtered_out;
            sum.recorded += counters.recorded;
            sum.lost_ring_full += counters.lost_ring_full;
            sum.lost_copy_failed += counters.lost_copy_failed;
            sum.lost_rate_limit += counters.lost_rate_limit;
            sum.hardware_stamped += counters.hardware_stamped;
            sum.truncated += counters.truncated;
        }
        if let Some(programs) = &self.programs {
            let offset = std::mem::offset_of!(CaptureShared, no_ring)
                + 8 * (point as usize % RING_MAX_POINTS);
            sum.lost_no_ring = load(atomic64(programs.shared.at(offset)));
            for cpu in 0..programs.cpus {
                let at = size_of::<Rejections>() * cpu + rejected_offset(point) as usize;
                let before = programs.rejected_before.get();
                let before = before.map_or(0, |before| before[at / size_of::<u64>()]);
                sum.filtered_out += load(atomic64(programs.rejections.at(at))) - before;
            }
        }
        sum.seen = sum.filtered_out
            + sum.recorded
            + sum.lost_ring_full
            + sum.lost_copy_failed
            + sum.lost_rate_limit
            + sum.lost_no_ring;
        sum
    }
}
