//! The packets in the records of a capture.

use trawl_capture::session::Session;
use trawl_view::record::{BlockOrigin, RingPackets};

/// Returns the packets of a capture, by the interface blocks that it begins with.
pub fn packets_of(session: &Session) -> RingPackets {
    let origins = session
        .interfaces()
        .iter()
        .zip(session.hook_names())
        .map(|(interface, hook)| BlockOrigin::new(interface, hook))
        .collect();
    RingPackets::new(origins)
}
