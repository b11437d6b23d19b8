//! Reasons and locations of lost packets: the records of the tap at drops, and losses that only counters show.

pub mod advice;
mod blame;
mod bridge;
mod command;
pub mod counted;
pub(crate) mod culprits;
pub mod drops;
mod noted;
pub mod notice;
pub mod record;
pub mod report;
mod ruleset;
mod search;
mod socket_drops;
mod traced;

use std::time::Duration;

use trawl_capture::memory;
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, Drops};
use trawl_sys::events;

pub use notice::Notice;
pub use search::{Audience, Scope, Search};

/// Bytes of a packet that contain its addresses and ports, even through tunnels.
pub const SNAPLEN: u32 = 256;
/// Memory for records, for each CPU.
const RING_SIZE: u64 = 4 << 20;

/// Returns the options of a capture at drops whose records this process reads itself.
pub fn watching_drops(drops: Drops, expression: &[String], duration: Option<Duration>) -> CaptureOptions {
    let expression = expression.join(" ");
    let memory = memory::at_most(RING_SIZE * events::cpu_count() as u64);
    CaptureOptions {
        drops: Some(drops),
        filter: (!expression.is_empty()).then_some(Filter::Expression(expression)),
        snaplen: SNAPLEN,
        duration,
        ..CaptureOptions::new(TapChoice::Drop, memory)
    }
}
