//! The packets in the records of a capture.

use trawl_capture::session::Attached;
use trawl_view::record::{BlockOrigin, RingPackets};

/// Returns the packets of a capture, by the interface blocks that it begins with.
pub fn packets_of(capture: &Attached) -> RingPackets {
    let origins = capture
        .interfaces()
        .iter()
        .zip(capture.hook_names())
        .map(|(interface, hook)| BlockOrigin::new(interface, hook))
        .collect();
    RingPackets::new(origins)
}
