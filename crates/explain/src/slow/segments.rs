//! Segments that the measures of sockets note, as `crates/slow` joins them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use trawl_bpf::layout::slow::{SlowDropped, SlowEnds, SlowSegment};
use trawl_slow::drops::{Direction, Dropped, Repetition};

/// Bytes that a peer may have acknowledged since it sent a segment.
const SENT_SINCE: u32 = 1 << 20;

/// The ends of a socket's connection, and its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub netns: u32,
}

impl Ends {
    /// Returns the direction of segments that the local end sends.
    pub fn sent(&self) -> Direction {
        Direction { sender: self.local, receiver: self.remote }
    }
}

pub(super) fn address(words: [u32; 4]) -> IpAddr {
    let mut bytes = [0; 16];
    for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    Ipv6Addr::from(bytes).to_canonical()
}

pub(super) fn ends_of(ends: &SlowEnds) -> Ends {
    let of = |words, port: u32| SocketAddr::new(address(words), port as u16);
    Ends { local: of(ends.local, ends.local_port), remote: of(ends.remote, ends.remote_port), netns: ends.netns }
}

/// Returns a segment that was repeated or was missing. `offset` is the difference of the clocks.
pub(super) fn repetition(segment: &SlowSegment, offset: u64) -> Repetition {
    Repetition {
        from: segment.from,
        to: segment.to,
        time_ns: segment.time + offset,
        since_ns: None,
        acks: Some((segment.acknowledgement.wrapping_sub(SENT_SINCE), segment.acknowledgement)),
    }
}

/// Returns a dropped segment with the name of its namespace and the number of its cause.
pub(super) fn dropped<'p>(segment: &SlowDropped, place: &'p str, cause: u32) -> Dropped<'p> {
    Dropped {
        direction: ends_of(&segment.ends).sent(),
        seq: segment.from,
        length: segment.to.wrapping_sub(segment.from),
        ack: (segment.acknowledges != 0).then_some(segment.acknowledgement),
        time_ns: segment.time,
        place,
        cause,
        is_filtered: false,
    }
}

/// Names of the reasons of dropped segments, by numbers.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    /// By the kernel's number and the place.
    numbers: HashMap<(u32, u64), u32>,
    names: Vec<String>,
}

impl Reasons {
    /// Returns the number of a segment's reason. `name` returns the name of a reason at a place.
    pub fn number(&mut self, segment: &SlowDropped, name: impl FnOnce(u32, u64) -> String) -> u32 {
        *self.numbers.entry((segment.reason, segment.location)).or_insert_with(|| {
            self.names.push(name(segment.reason, segment.location));
            self.names.len() as u32 - 1
        })
    }

    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }
}
