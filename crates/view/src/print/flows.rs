//! State from earlier packets: the first sequence numbers of TCP conversations, so that later ones can be shown
//! relative, and calls of NFS, which determine how their replies are read.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Maximum number of remembered conversations. When it is reached, all are forgotten: the next packet of each is shown
/// with absolute numbers, and memory stays bounded under a flood.
const MAX_FLOWS: usize = 65_536;

/// One end of a conversation.
pub type End = (IpAddr, u16);

#[derive(Debug, Clone, Copy)]
struct Start {
    /// First sequence number from the end that sorts lower.
    low: u32,
    /// First sequence number from the other end.
    high: u32,
}

/// Numbers to subtract from a segment's numbers before they are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Base {
    pub seq: u32,
    pub ack: u32,
    /// For selective acknowledgements, which are relative from a conversation's first segment on.
    pub sack: u32,
}

/// Maximum number of calls whose replies are awaited, the same as in tcpdump.
const MAX_CALLS: usize = 64;

/// A call of NFS.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub client: IpAddr,
    pub server: IpAddr,
    pub id: u32,
    pub version: u32,
    pub procedure: u32,
}

#[derive(Debug, Default)]
pub struct Flows {
    starts: HashMap<(End, End), Start>,
    calls: VecDeque<Call>,
}

impl Flows {
    pub fn add_call(&mut self, call: Call) {
        self.calls.truncate(MAX_CALLS - 1);
        self.calls.push_front(call);
    }

    /// Returns version and procedure of the latest call with this number.
    pub fn find_call(&self, client: IpAddr, server: IpAddr, id: u32) -> Option<(u32, u32)> {
        let mut calls = self.calls.iter();
        let call = calls.find(|call| call.id == id && call.client == client && call.server == server)?;
        Some((call.version, call.procedure))
    }

    /// Returns the bases for a segment with an acknowledgement. The first one seen of a conversation, and every SYN, is
    /// shown absolute and sets the bases for the others.
    pub fn base(&mut self, src: End, dst: End, seq: u32, ack: u32, syn: bool) -> Base {
        let forward = src <= dst;
        let key = if forward { (src, dst) } else { (dst, src) };
        let known = self.starts.get(&key).copied().filter(|_| !syn);
        let start = known.unwrap_or({
            let peer = ack.wrapping_sub(1);
            if forward { Start { low: seq, high: peer } } else { Start { low: peer, high: seq } }
        });
        let (own, peer) = if forward { (start.low, start.high) } else { (start.high, start.low) };
        if known.is_some() {
            return Base { seq: own, ack: peer, sack: peer };
        }
        if self.starts.len() >= MAX_FLOWS {
            self.starts.clear();
        }
        self.starts.insert(key, start);
        Base { seq: 0, ack: 0, sack: peer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(last: u8, port: u16) -> End {
        ([10, 0, 0, last].into(), port)
    }

    #[test]
    fn both_directions_become_relative_after_the_first() {
        let (a, b) = (end(1, 1000), end(2, 80));
        for (client, server) in [(a, b), (b, a)] {
            let mut flows = Flows::default();
            let first = flows.base(server, client, 500, 101, true);
            assert_eq!((first.seq, first.ack), (0, 0));
            let next = flows.base(client, server, 101, 501, false);
            assert_eq!(next, Base { seq: 100, ack: 500, sack: 500 });
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut flows = Flows::default();
        for n in 0..(MAX_FLOWS as u32 + 10) {
            let [a, b, c, d] = n.to_be_bytes();
            flows.base(([a, b, c, d].into(), 1), end(1, 2), 1, 1, false);
        }
        assert!(flows.starts.len() <= MAX_FLOWS);
    }
}
