//! The configuration and the maps that all tap programs share.

use std::os::fd::BorrowedFd;

use trawl_bpf::layout::drop::{LINKS_FOLLOWED, LINKS_NONE, LINKS_POINTS};
use trawl_bpf::layout::{ALL, HOLD_NOTHING, TapConfig};
use trawl_bpf::{kernel_types, object};
use trawl_ring::Rings;
use trawl_sys::clock::ProgramClock;

use super::{Assembly, Carries, PointIds};
use crate::options::{Direction, Options, Sample};

impl Assembly {
    /// The part of a program's configuration that all taps share.
    pub fn config(&self, rings: &Rings) -> TapConfig {
        let geometry = rings.geometry();
        let limit = self.options.count.unwrap_or(0);
        let (interval, tolerance) = self.options.rate_limit.map_or((0, 0), rate_times);
        let nowhere = PointIds {
            point: 0,
            slot: 0,
            interface: 0,
            hardware_interface: 0,
            verdict: false,
        };
        let meta = self.options.recording.meta;
        let record = nowhere.record(0, Carries::Nothing);
        TapConfig {
            first: record,
            second: record,
            record_limit_low: limit as u32,
            record_limit_high: (limit >> 32) as u32,
            snaplen: self.snaplen(),
            segment_size: geometry.segment_size as u32,
            segment_room: geometry.segment_room() as u32,
            bank_mask: geometry.bank_size() as u32 - 1,
            bank_shift: (geometry.bank_size() / geometry.segment_size).ilog2(),
            clock_first: 0,
            clock_mask: 0,
            clock_follows: 0,
            write_flags: u32::from(meta.flags),
            write_queue: u32::from(meta.queue),
            write_id: u32::from(meta.id),
            write_comment: u32::from(meta.verdict),
            cpu_mask: rings.cpu_mask(),
            verdict: 0,
            unwanted: 0,
            hold: HOLD_NOTHING as u32,
            only_ifindex: 0,
            only_queue: self.options.queue.unwrap_or(ALL as u32),
            queue_offset: 0,
            only_cpu: self.options.cpu.unwrap_or(ALL as u32),
            sample: match self.options.sample {
                Some(Sample::Every(number)) => number,
                _ => 0,
            },
            sample_below: match self.options.sample {
                // One in one is all.
                Some(Sample::Random(number @ 2..)) => ((1u64 << 32) / u64::from(number)) as u32,
                _ => 0,
            },
            rate_interval_low: interval as u32,
            rate_interval_high: (interval >> 32) as u32,
            rate_tolerance_low: tolerance as u32,
            rate_tolerance_high: (tolerance >> 32) as u32,
            chain_next: 0,
            clock_is_tai: u32::from(self.clock == ProgramClock::Tai),
            onward: ALL as u32,
            silent: 0,
            only_namespace: 0,
            wanted_verdicts: ALL as u32,
            shared_id: 0,
            first_address_low: 0,
            first_address_high: 0,
            first_page_low: 0,
            first_page_high: 0,
            names_receiver: 0,
            with_stack: 0,
            segments_for_entries: 0,
            links: self.links,
            head_offset: self.offset("xdp_buff", "data_hard_start"),
            flags_offset: flags_offset(),
            step: 0,
            grows: u32::from(geometry.grows_from.is_some()),
            by_namespace: 0,
            queue_info_offset: 0,
            device_offset: 0,
            device_namespace_offset: 0,
            namespace_number_offset: 0,
        }
    }
}

/// Where the kernel lets programs look at its own structure of an XDP packet.
fn flags_offset() -> u32 {
    object::can_cast()
        .then(|| kernel_types::offset("xdp_buff", "flags").ok().flatten())
        .flatten()
        .unwrap_or(0)
}

/// Packets are known again where they can be seen at several points of a capture, and their identifiers are recorded.
pub(super) fn links(options: &Options, sites: usize) -> u32 {
    let beside = options.drops.is_some() && options.tap != crate::Choice::Drop;
    let several =
        sites > 1 || beside || options.with_tc || options.direction == Some(Direction::Both);
    let links = match (options.follows(), several && options.recording.meta.id) {
        (true, _) => LINKS_FOLLOWED,
        (false, true) => LINKS_POINTS,
        (false, false) => LINKS_NONE,
    };
    match object::can_cast() {
        true => links as u32,
        false => LINKS_NONE as u32,
    }
}

/// The time between records at a rate, and how far they may run ahead of it: a hundredth of a second, or one record.
/// In 1/64 ns, so that high rates are kept to exactly enough.
pub(crate) fn rate_times(per_second: u64) -> (u64, u64) {
    const SECOND: u64 = 1_000_000_000 << 6;
    let interval = (SECOND / per_second.max(1)).max(1);
    (interval, (SECOND / 100).saturating_sub(interval))
}

/// The maps a tap program is loaded with, under the names its source gives them.
pub fn program_maps<'r>(
    rings: &'r Rings,
    chain: Option<BorrowedFd<'r>>,
) -> Vec<(&'static str, BorrowedFd<'r>)> {
    let mut maps: Vec<_> = rings.maps().map(|maps| maps.by_name()).unwrap_or_default();
    maps.extend(chain.map(|chain| (crate::capture_chain::MAP_NAME, chain)));
    maps
}
