//! The measures of a socket as `crates/slow` judges them.

use trawl_bpf::layout::slow::{
    SLOW_CLIENT, SLOW_CLOSED, SLOW_FIRST_BITS, SLOW_FIXED_BUFFER, SLOW_RESET_BY_PEER, SLOW_RESET_EARLY,
    SLOW_RESET_HERE, SlowRow,
};
use trawl_slow::histogram::Histogram;
use trawl_slow::measures::{Reset, Side};
use trawl_slow::socket::{Closed, Queues, Received, Sent, Socket, SocketDrops, Stage};

use super::segments::{Ends, ends_of};

pub(super) const MICROSECOND: u64 = 1000;
/// States of TCP.
const SYN_SENT: u32 = 2;
pub(super) const LISTENING: u32 = 10;

pub(super) fn queues_of(row: &SlowRow) -> Queues {
    Queues {
        dropped: u64::from(row.dropped.wrapping_sub(row.measures.first_segments)),
        waiting: row.backlog.into(),
        requests: row.requests.into(),
        limit: row.backlog_limit.into(),
    }
}

/// Returns the kernel's measures of a socket. `hertz` is the frequency of its clock.
pub(super) fn socket_of(row: &SlowRow, hertz: u64) -> Socket {
    let Ends { local, remote, netns } = ends_of(&row.ends);
    let measures = &row.measures;
    let has = |flag: usize| usize::from(measures.flags) & flag != 0;
    let is_over = row.kind as usize == SLOW_CLOSED;
    let side = if has(SLOW_CLIENT) { Side::Client } else { Side::Server };
    let ticks = |count: u32| u64::from(count) * 1_000_000_000 / hertz;
    let stage = match row.state {
        SYN_SENT if is_over => Stage::Failed { error: row.error },
        SYN_SENT => Stage::Connecting,
        LISTENING => Stage::Listening(queues_of(row)),
        _ => Stage::Open,
    };
    let window = |times: u16, before: u32, now: u32| Closed {
        times: u64::from(times) + u64::from(now > 0),
        ns: ticks(before) + ticks(now),
        is_now: now > 0,
    };
    let times =
        |buckets: &[u8]| Histogram::from_buckets(SLOW_FIRST_BITS, buckets.iter().map(|count| u64::from(*count)));
    let low = |now: u32, first: u16| u64::from((now as u16).wrapping_sub(first));
    Socket {
        local,
        remote,
        netns,
        side,
        span_ns: row.time.saturating_sub(measures.begun),
        stage,
        retries: u64::from(measures.retries).max(if row.state == SYN_SENT { row.retries.into() } else { 0 }),
        handshake_ns: (measures.handshake_us > 0).then_some(u64::from(measures.handshake_us) * MICROSECOND),
        reset: (has(SLOW_RESET_BY_PEER) || has(SLOW_RESET_HERE)).then_some(Reset {
            by: if has(SLOW_RESET_BY_PEER) { side.other() } else { side },
            is_foreign: has(SLOW_RESET_BY_PEER)
                && measures.ttl != 0
                && measures.reset_ttl != 0
                && measures.ttl != measures.reset_ttl,
            is_early: has(SLOW_RESET_EARLY),
        }),
        sent: Sent {
            segments: u64::from(row.segments.wrapping_sub(measures.first_segments)),
            fast: measures.fast.into(),
            timeouts: measures.timeouts.into(),
            probes: measures.probes.into(),
            repeated: u64::from(row.repeated.wrapping_sub(measures.first_repeated)),
            again: 0,
            needless: low(row.needless, measures.first_needless),
            late: low(row.reordered, measures.first_reordered),
            large_timeouts: measures.large_timeouts.into(),
            size: row.mss,
            has_passed_large: row.acknowledged > u64::from(row.delivered) * u64::from(row.mss) / 2
                && row.acknowledged > u64::from(row.mss),
        },
        received: Received {
            segments: u64::from(row.received.wrapping_sub(measures.first_received)),
            lost: measures.lost.into(),
            late: measures.late.into(),
            needless: measures.duplicates.into(),
        },
        closed_by_peer: window(measures.closures_out, measures.closed_out, row.closed_out),
        closed_here: window(measures.closures_in, measures.closed_in, row.closed_in),
        acknowledgements: measures.acks.into(),
        full: measures.full.into(),
        has_fixed_buffer: has(SLOW_FIXED_BUFFER),
        shortest_ns: (row.shortest_us != 0 && row.shortest_us != u32::MAX)
            .then_some(u64::from(row.shortest_us) * MICROSECOND),
        round_trips: times(&measures.round_trips),
        queue: times(&measures.queue),
        turn_times: times(&measures.turn_times),
        turns: measures.turns.into(),
        turns_ns: u64::from(measures.turns_us) * MICROSECOND,
        waiting_ns: u64::from(measures.waiting_us) * MICROSECOND,
        throttled_ns: u64::from(measures.throttled_us) * MICROSECOND,
        here: SocketDrops::default(),
    }
}
