//! TCP segments that are retransmitted, out of order, or follow missing ones, classified by the rules of Wireshark's
//! analysis of sequence numbers.

use trawl_packet::build::flags;
use trawl_packet::walk::{Tcp, is_before};

/// A late segment is out of order if it arrives this soon after the one that should follow it, while the connection's
/// first round trip is not known.
const SOON_NS: u64 = 3_000_000;
/// A segment requested by duplicate acknowledgements is a fast retransmission within this time.
const FAST_NS: u64 = 20_000_000;
const MIN_REPETITIONS: u32 = 2;

/// Relation of a segment to the earlier ones of its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Next,
    /// No byte, or one, just before the next one.
    Probe,
    Retransmission,
    OutOfOrder,
    /// Segments before it are missing.
    AfterMissing,
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direction {
    /// The number after the highest byte sent, and when that was sent.
    next: Option<(u32, u64)>,
    /// The last acknowledgement, its window, the number of its repetitions, and its time.
    acknowledged: Option<u32>,
    window: u16,
    repeated: u32,
    repeated_ns: u64,
    syn_ns: Option<u64>,
    first_round_trip_ns: Option<u64>,
}

impl Direction {
    /// Classifies a segment of this direction and records it. `reverse` is the other direction as far as it is known.
    pub fn segment(&mut self, tcp: &Tcp, payload: u32, now: u64, reverse: impl FnOnce() -> Option<Self>) -> Standing {
        let has = |flag: u8| tcp.flags & flag != 0;
        let takes_one = has(flags::SYN | flags::FIN);
        let len = payload.wrapping_add(u32::from(takes_one));
        let end = tcp.seq.wrapping_add(len);
        let order = match self.next {
            _ if has(flags::RST) => Standing::Next,
            Some((next, at)) if len > 0 && is_before(tcp.seq, next) => {
                let keeps_alive = payload <= 1 && !takes_one && tcp.seq == next.wrapping_sub(1);
                if keeps_alive {
                    Standing::Probe
                } else {
                    self.classify_late(tcp.seq, end, next, now.saturating_sub(at), now, reverse())
                }
            }
            Some((next, _)) if is_before(next, tcp.seq) => Standing::AfterMissing,
            _ => Standing::Next,
        };
        self.acknowledgement(tcp, payload, now);
        if !has(flags::RST) && self.next.is_none_or(|(next, _)| is_before(next, end)) {
            self.next = Some((end, now));
        }
        order
    }

    fn classify_late(&self, seq: u32, end: u32, next: u32, late_ns: u64, now: u64, reverse: Option<Self>) -> Standing {
        let reverse = reverse.unwrap_or_default();
        let is_requested = reverse.repeated >= MIN_REPETITIONS
            && reverse.acknowledged == Some(seq)
            && now.saturating_sub(reverse.repeated_ns) < FAST_NS;
        let round_trip = self.first_round_trip_ns.or(reverse.first_round_trip_ns);
        let is_soon = late_ns < round_trip.unwrap_or(SOON_NS);
        if is_requested || !is_soon || end == next { Standing::Retransmission } else { Standing::OutOfOrder }
    }

    fn acknowledgement(&mut self, tcp: &Tcp, payload: u32, now: u64) {
        if tcp.flags & flags::SYN != 0 {
            if tcp.flags & flags::ACK == 0 {
                self.syn_ns = Some(now);
            }
        } else if tcp.flags & flags::ACK != 0
            && let Some(syn) = self.syn_ns.take()
        {
            self.first_round_trip_ns = Some(now.saturating_sub(syn));
        }
        if tcp.flags & flags::ACK == 0 {
            return;
        }
        let plain = tcp.flags & (flags::SYN | flags::FIN | flags::RST) == 0 && payload == 0;
        if self.acknowledged == Some(tcp.ack) {
            if plain && tcp.window == self.window {
                self.repeated += 1;
                self.repeated_ns = now;
            }
        } else {
            self.repeated = 0;
        }
        self.acknowledged = Some(tcp.ack);
        self.window = tcp.window;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn data(seq: u32) -> Tcp {
        Tcp { seq, ack: 1, flags: flags::ACK, window: 100 }
    }

    fn order(direction: &mut Direction, seq: u32, at_ms: u64) -> Standing {
        direction.segment(&data(seq), 100, at_ms * MS, || None)
    }

    #[test]
    fn segment_late_by_less_than_three_milliseconds_is_out_of_order() {
        let mut one = Direction::default();
        assert_eq!(order(&mut one, 0, 0), Standing::Next);
        assert_eq!(order(&mut one, 200, 1), Standing::AfterMissing);
        assert_eq!(order(&mut one, 100, 2), Standing::OutOfOrder);
        assert_eq!(order(&mut one, 300, 3), Standing::Next);
        assert_eq!(order(&mut one, 100, 9), Standing::Retransmission);
        // A repeated last segment is never out of order.
        assert_eq!(order(&mut one, 300, 4), Standing::Retransmission);
    }

    #[test]
    fn first_round_trip_replaces_the_three_milliseconds() {
        let mut one = Direction::default();
        let syn = Tcp { seq: 0xffff_ffff, ack: 0, flags: flags::SYN, window: 100 };
        one.segment(&syn, 0, 0, || None);
        assert_eq!(one.segment(&data(0), 0, 50 * MS, || None), Standing::Next);
        order(&mut one, 0, 60);
        order(&mut one, 200, 61);
        assert_eq!(order(&mut one, 100, 100), Standing::OutOfOrder);
        order(&mut one, 400, 101);
        assert_eq!(order(&mut one, 300, 160), Standing::Retransmission);
    }

    #[test]
    fn segment_requested_three_times_is_a_retransmission_however_soon() {
        let mut one = Direction::default();
        let mut other = Direction::default();
        order(&mut one, 0, 0);
        order(&mut one, 200, 1);
        for _ in 0..3 {
            let ask = Tcp { seq: 1, ack: 100, flags: flags::ACK, window: 7 };
            other.segment(&ask, 0, MS, || None);
        }
        let again = one.segment(&data(100), 100, 2 * MS, || Some(other));
        assert_eq!(again, Standing::Retransmission);
    }
}
