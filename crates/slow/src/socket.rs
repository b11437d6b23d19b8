//! The measures of a TCP socket, which the kernel of its host takes, and the rules that turn them into verdicts. One end
//! knows more about itself than packets show, and less about the path.

use std::net::SocketAddr;

use crate::histogram::Histogram;
use crate::judge::{self, share_of, verdict};
use crate::measures::{HereDrop, Reset, Side};
use crate::verdict::{Cause, Level, Verdict};

const MS: u64 = 1_000_000;
/// Shortest time after which a segment without an acknowledgement is repeated.
const TIMEOUT_NS: u64 = 200 * MS;
/// Acknowledgements at which the send buffer was full: the smallest number of samples, the part of them, and the
/// shortest round trip at which a buffer can matter.
const SAMPLES: u64 = 20;
const FULL_PART: f64 = 0.5;
const FULL_ROUND_TRIP_NS: u64 = MS;
/// Part of the segments that the sender repeats without need. Processors of a host overtake each other now and then.
const REORDERED_PART: f64 = 0.005;
/// Part of the time of answers in which the thread has waited for a CPU.
const WAITING_PART: f64 = 0.5;
/// Part of the round trip's delay that the queue of this host has.
const LOCAL_PART: f64 = 0.5;
/// Errors of a connection that failed.
const REFUSED: u32 = 111;

/// A socket, from the beginning of its measures on.
#[derive(Clone, Debug)]
pub struct Socket {
    pub local: SocketAddr,
    /// Without a meaning for a listening socket.
    pub remote: SocketAddr,
    /// Number of the network namespace.
    pub netns: u32,
    /// The end of the connection that this socket is.
    pub side: Side,
    pub span_ns: u64,
    pub stage: Stage,
    /// Requests for the connection after the first.
    pub retries: u64,
    /// Time from the first request to the connection, if this end requested it meanwhile.
    pub handshake_ns: Option<u64>,
    pub reset: Option<Reset>,
    pub sent: Sent,
    pub received: Received,
    /// Times at which the peer's window was closed, and at which this end's was.
    pub closed_by_peer: Closed,
    pub closed_here: Closed,
    /// Acknowledgements, and those at which the send buffer was full and nothing else held data back.
    pub acknowledgements: u64,
    pub full: u64,
    /// The process has chosen the size of its send buffer, which does not grow then.
    pub has_fixed_buffer: bool,
    /// The shortest round trip, and those while data was on its way.
    pub shortest_ns: Option<u64>,
    pub round_trips: Histogram,
    /// Delays in the queue of this host's interface.
    pub queue: Histogram,
    /// Times until an answer: of the peer at a client, of the process at a server; their number and their sum.
    pub turn_times: Histogram,
    pub turns: u64,
    pub turns_ns: u64,
    /// The part of them in which the thread waited for a CPU, and for its cgroup's quota.
    pub waiting_ns: u64,
    pub throttled_ns: u64,
    pub here: SocketDrops,
}

/// Drops at this host that explain what happened to a connection.
#[derive(Clone, Debug, Default)]
pub struct SocketDrops {
    /// Drops of this end's segments, and of the peer's.
    pub sent: Option<HereDrop>,
    pub received: Option<HereDrop>,
    /// The drop of the packet that a reset answers, by a rule.
    pub reset: Option<String>,
    /// Some drops are not known.
    pub are_incomplete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Connecting,
    /// The request for a connection ended with this error; 0 if the process gave up.
    Failed {
        error: u32,
    },
    Open,
    Listening(Queues),
}

/// The queues of a listening socket, and the connections that it dropped meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    pub dropped: u64,
    /// Connections that wait for the process, and open requests.
    pub waiting: u64,
    pub requests: u64,
    pub limit: u64,
}

/// The segments with data that this end has sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    pub segments: u64,
    /// Repetitions: after a hint of the receiver, after a timeout, and to probe a silent path.
    pub fast: u64,
    pub timeouts: u64,
    pub probes: u64,
    /// Segments in all repetitions, of which one may have many, and those that the receiver had already.
    pub repeated: u64,
    pub needless: u64,
    /// Segments that were repeated more than once, without the first repetition.
    pub again: u64,
    /// Segments that were acknowledged after later ones, without a repetition.
    pub late: u64,
    /// Timeouts of a segment of the full size after another one.
    pub large_timeouts: u64,
    pub size: u32,
    /// Segments of the full size have been acknowledged.
    pub has_passed_large: bool,
}

impl Sent {
    fn repetitions(&self) -> u64 {
        self.fast + self.timeouts + self.probes
    }

    /// Returns the number of repetitions that were not needless. The receiver reports several repetitions of the same
    /// segment at once.
    fn lost(&self) -> u64 {
        self.repeated.saturating_sub(self.needless + self.again.min(self.needless))
    }
}

/// The peer's segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    pub segments: u64,
    /// Gaps that a repetition filled, and gaps that a late segment filled.
    pub lost: u64,
    pub late: u64,
    /// Segments that had already arrived.
    pub needless: u64,
}

/// A window that was closed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Closed {
    pub times: u64,
    pub ns: u64,
    /// True if it still is.
    pub is_now: bool,
}

impl Socket {
    fn share(&self, part_ns: u64) -> f64 {
        share_of(part_ns, self.span_ns)
    }
}

/// Returns the verdict about segments of a side that a rule dropped, of a connection that shows nothing. `rejects` says
/// that the rule answers them.
pub fn judge_filtered(of: Side, dropped: &HereDrop, rejects: bool) -> Option<Verdict> {
    let HereDrop { joined, drop } = dropped;
    if rejects {
        return Some(verdict(Cause::ResetHere { drop: drop.clone() }, Level::Certain, None));
    }
    let cause = Cause::LossHere { of, joined: *joined, repeated: *joined, segments: 0, drop: drop.clone() };
    judge::is_frequent(*joined, *joined).then(|| verdict(cause, Level::Certain, None))
}

/// Returns why a socket's connection is slow, the most important cause first.
pub fn judge(of: &Socket) -> Vec<Verdict> {
    let mut found: Vec<Verdict> = match of.stage {
        Stage::Listening(queues) => listening(queues).into_iter().collect(),
        Stage::Connecting | Stage::Failed { .. } => not_connected(of).into_iter().collect(),
        Stage::Open => {
            let sending = match slow_reader(of, of.side.other(), of.closed_by_peer) {
                Some(verdict) => vec![verdict],
                None => [path(of), delay(of), send_buffer(of)].into_iter().flatten().collect(),
            };
            let receiving = slow_reader(of, of.side, of.closed_here).or_else(|| arrivals(of));
            let rest = [receiving, late_answer(of), answers(of), distance(of), reset(of)];
            sending.into_iter().chain(rest.into_iter().flatten()).collect()
        }
    };
    judge::sort(&mut found);
    found
}

fn listening(of: Queues) -> Option<Verdict> {
    let Queues { dropped: overflows, waiting, requests, limit } = of;
    let cause = match waiting > limit || requests < limit {
        true => Cause::ListenQueueFull { overflows, length: waiting, limit },
        false => Cause::SynQueueFull { overflows, length: requests, limit },
    };
    let is_seen = waiting > limit || requests >= limit;
    (overflows > 0).then(|| verdict(cause, if is_seen { Level::Certain } else { Level::Likely }, None))
}

fn not_connected(of: &Socket) -> Option<Verdict> {
    let requests = of.retries + 1;
    if let Some(drop) = &of.here.reset {
        return Some(verdict(Cause::ResetHere { drop: drop.clone() }, Level::Certain, None));
    }
    if let Some(cause) = requests_dropped_here(of, of.retries, requests) {
        return Some(verdict(cause, Level::Certain, 1.0));
    }
    match of.stage {
        Stage::Failed { error: REFUSED } => Some(verdict(Cause::Refused, Level::Certain, None)),
        _ => (of.retries > 0).then(|| verdict(Cause::NoAnswer { requests }, Level::Likely, 1.0)),
    }
}

/// Returns the loss of requests for the connection by this host.
fn requests_dropped_here(of: &Socket, lost: u64, requests: u64) -> Option<Cause> {
    judge::loss_here(of.side, of.here.sent.as_ref().filter(|_| lost > 0)?, lost, requests)
}

fn late_answer(of: &Socket) -> Option<Verdict> {
    let answered_ns = of.handshake_ns.filter(|_| of.retries > 0)?;
    let requests = of.retries + 1;
    let share = of.share(answered_ns);
    Some(match requests_dropped_here(of, of.retries, requests) {
        Some(cause) => verdict(cause, Level::Certain, share),
        None => verdict(Cause::LateAnswer { requests, answered_ns }, Level::Likely, share),
    })
}

/// Returns what happens to this end's segments on the way.
fn path(of: &Socket) -> Option<Verdict> {
    let Sent { segments, timeouts, probes, needless, late, .. } = of.sent;
    let lost = of.sent.lost();
    let timeout_ns = TIMEOUT_NS.max(2 * of.shortest_ns.unwrap_or(0));
    let share = (timeouts > 0).then(|| of.share(timeouts * timeout_ns));
    let is_stalled = share >= Some(judge::STALLED);
    if let Some(here) = &of.here.sent
        && (judge::is_frequent(here.joined, segments) || here.joined > 0 && is_stalled)
        && let Some(cause) = judge::loss_here(of.side, here, of.sent.repetitions(), segments)
    {
        return Some(verdict(cause, Level::Certain, share));
    }
    if of.sent.large_timeouts >= judge::LARGE_TIMEOUTS && !of.sent.has_passed_large {
        let (timeouts, payload) = (of.sent.large_timeouts, of.sent.size);
        let cause = Cause::LargeSegments { of: of.side, timeouts, payload, passed: None };
        return Some(verdict(cause, Level::Likely, None));
    }
    // A needless repetition after a silence is due to a lost acknowledgement, or to a delayed one.
    let is_needless = needless.saturating_sub(timeouts + probes);
    // One repetition of dozens of segments is one event.
    let reordered = is_needless.min(of.sent.fast);
    let is_often = judge::is_frequent(reordered, 0) && reordered as f64 >= REORDERED_PART * segments as f64;
    let is_reordered = is_often && is_needless >= lost || judge::is_frequent(late, segments) && late > lost;
    if is_reordered {
        let cause = Cause::Reordering { of: of.side, needless, out_of_order: late, segments };
        return Some(verdict(cause, Level::Likely, None));
    }
    let place_unknown = of.here.are_incomplete;
    let cause = Cause::Loss { of: of.side, repeated: lost, segments, lost_before: None, timeouts, place_unknown };
    let is_frequent =
        has_many(of.sent.repetitions()) && judge::is_frequent(lost, segments) && !is_slight_reordering(of);
    let is_loss = is_frequent || lost > 0 && is_stalled;
    is_loss.then(|| verdict(cause, Level::Likely, share))
}

/// Returns true if segments out of order explain a few repetitions of many segments. On a host, a thread that moves to
/// another CPU overtakes its own segments; receivers do not report each needless repetition.
fn is_slight_reordering(of: &Socket) -> bool {
    let Sent { segments, fast, probes, timeouts, late, .. } = of.sent;
    timeouts == 0 && late > 0 && !judge::is_frequent(fast + probes, segments)
}

/// Returns true for enough repetitions: a single one may have dozens of segments.
fn has_many(repetitions: u64) -> bool {
    judge::is_frequent(repetitions, 0)
}

/// Returns what happens to the peer's segments on the way.
fn arrivals(of: &Socket) -> Option<Verdict> {
    let Received { segments, lost, late, needless } = of.received;
    let side = of.side.other();
    let here = of.here.received.as_ref().and_then(|here| judge::loss_here(side, here, lost, segments));
    if let Some(cause) = here.filter(|_| judge::is_frequent(lost, segments)) {
        return Some(verdict(cause, Level::Certain, None));
    }
    let is_reordered = judge::is_frequent(late, segments) && late > lost;
    if is_reordered {
        let cause = Cause::Reordering { of: side, needless, out_of_order: late, segments };
        return Some(verdict(cause, Level::Likely, None));
    }
    let place_unknown = of.here.are_incomplete;
    let cause = Cause::Loss { of: side, repeated: lost, segments, lost_before: Some(lost), timeouts: 0, place_unknown };
    judge::is_frequent(lost, segments).then(|| verdict(cause, Level::Likely, None))
}

fn slow_reader(of: &Socket, at: Side, window: Closed) -> Option<Verdict> {
    let Closed { times, ns, is_now } = window;
    let cause = Cause::SlowReader { at, closed: times.max(1), closed_ns: ns, to_the_end: is_now };
    judge::closed_window(cause, (times, ns), of.span_ns)
}

/// Returns where data waits: in this host's queue, or in one on the path.
fn delay(of: &Socket) -> Option<Verdict> {
    let (shortest_ns, loaded_ns) = (of.shortest_ns?, of.round_trips.median_ns()?);
    if !judge::is_queue(&of.round_trips, shortest_ns) {
        return None;
    }
    let share = 1.0 - shortest_ns as f64 / loaded_ns.max(1) as f64;
    let local = of.queue.median_ns().filter(|ns| *ns as f64 >= LOCAL_PART * (loaded_ns - shortest_ns) as f64);
    let cause = match local {
        Some(delay_ns) => Cause::LocalQueue { delay_ns, round_trip_ns: loaded_ns },
        None => Cause::Queue { of: of.side, shortest_ns, loaded_ns },
    };
    Some(verdict(cause, Level::Likely, share))
}

fn send_buffer(of: &Socket) -> Option<Verdict> {
    let (full, acks) = (of.full, of.acknowledgements);
    let share = full as f64 / acks.max(1) as f64;
    let is_far = of.shortest_ns.is_some_and(|ns| ns >= FULL_ROUND_TRIP_NS);
    let is_limit = of.has_fixed_buffer && is_far && acks >= SAMPLES && share >= FULL_PART;
    is_limit.then(|| verdict(Cause::SendBuffer { full, acks }, Level::Certain, share))
}

/// Returns who answers slowly. The client has no say in how long the process of a server works or waits for a CPU.
fn answers(of: &Socket) -> Option<Verdict> {
    let path_ns = match of.side {
        Side::Client => of.shortest_ns.unwrap_or(0),
        Side::Server => 0,
    };
    let answers = of.turns;
    let median_ns = of.turn_times.median_near(of.turns_ns / answers.max(1))?.saturating_sub(path_ns);
    let share = of.share(of.turns_ns.saturating_sub(answers * path_ns));
    if !judge::is_slow_answer(answers, median_ns, share) {
        return None;
    }
    let (waiting_ns, throttled_ns) = (of.waiting_ns, of.throttled_ns);
    if of.side == Side::Server && waiting_ns as f64 >= WAITING_PART * of.turns_ns as f64 {
        let cause = Cause::CpuStarvation { answers, median_ns, waiting_ns, throttled_ns };
        return Some(verdict(cause, Level::Certain, share));
    }
    Some(verdict(Cause::SlowAnswer { by: Side::Server, answers, median_ns }, Level::Likely, share))
}

fn distance(of: &Socket) -> Option<Verdict> {
    let round_trip_ns = of.shortest_ns?;
    let rounds = of.turns + u64::from(of.handshake_ns.is_some());
    let share = of.share(round_trip_ns * rounds);
    judge::is_far(round_trip_ns, rounds, share)
        .then(|| verdict(Cause::Distance { round_trip_ns, rounds }, Level::Likely, share))
}

fn reset(of: &Socket) -> Option<Verdict> {
    // A socket that was not reset has no drop for it.
    judge::judge_reset(of.reset, of.here.reset.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(side: Side) -> Socket {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Socket {
            local: address(40_000),
            remote: address(80),
            netns: 1,
            side,
            span_ns: 1000 * MS,
            stage: Stage::Open,
            retries: 0,
            handshake_ns: None,
            reset: None,
            sent: Sent { segments: 1000, ..Sent::default() },
            received: Received { segments: 1000, ..Received::default() },
            closed_by_peer: Closed::default(),
            closed_here: Closed::default(),
            acknowledgements: 0,
            full: 0,
            has_fixed_buffer: false,
            shortest_ns: Some(MS),
            round_trips: Histogram::default(),
            queue: Histogram::default(),
            turn_times: Histogram::default(),
            turns: 0,
            turns_ns: 0,
            waiting_ns: 0,
            throttled_ns: 0,
            here: SocketDrops::default(),
        }
    }

    fn times(count: u64, ms: u64) -> Histogram {
        let mut histogram = Histogram::default();
        (0..count).for_each(|_| histogram.add(ms * MS));
        histogram
    }

    /// Returns the causes after a change of a client's socket.
    fn causes(change: impl FnOnce(&mut Socket)) -> Vec<String> {
        let mut one = socket(Side::Client);
        change(&mut one);
        judge(&one).iter().map(|verdict| verdict.cause.why().into_owned()).collect()
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn loss_needs_several_repetitions_and_a_known_place() {
        assert_eq!(causes(|one| (one.sent.fast, one.sent.repeated) = (2, 90)), NOTHING);
        assert_eq!(causes(|one| (one.sent.fast, one.sent.repeated) = (3, 3)), ["loss on the path"]);
        assert_eq!(causes(|one| one.received.lost = 3), ["loss before this place"]);
        assert_eq!(
            causes(|one| (one.sent.fast, one.sent.repeated, one.here.are_incomplete) = (3, 3, true)),
            ["loss, place unknown"]
        );
        assert_eq!(
            causes(|one| (one.sent.probes, one.sent.repeated, one.sent.needless) = (4, 4, 4)),
            NOTHING,
            "nothing was lost"
        );
        assert_eq!(
            causes(|one| (one.sent.fast, one.sent.repeated, one.sent.needless) = (9, 9, 8)),
            ["reordering on the path"]
        );
        let joined = |one: &mut Socket| {
            (one.sent.fast, one.sent.repeated, one.sent.needless, one.sent.segments) = (14, 271, 271, 12_030);
        };
        assert_eq!(causes(joined), NOTHING, "few packets of many segments");
        let overtaken = |late| {
            causes(|one| {
                (one.sent.fast, one.sent.repeated, one.sent.late, one.sent.segments) = (4, 90, late, 23_759);
            })
        };
        assert_eq!((overtaken(0), overtaken(1)), (vec!["loss on the path".to_owned()], vec![]));
        let again = |count| {
            causes(|one| {
                (one.sent.probes, one.sent.repeated, one.sent.needless, one.sent.again) = (7, 70, 40, count);
            })
        };
        assert_eq!(again(0), ["loss on the path"]);
        assert_eq!(again(30), NOTHING);
        assert_eq!(causes(|one| one.received.late = 9), ["reordering on the path"]);
    }

    #[test]
    fn drops_here_explain_repetitions_requests_and_resets() {
        let dropped = |joined| Some(HereDrop { joined, drop: "NETFILTER_DROP in web".to_owned() });
        let sent = |joined| causes(|one| (one.sent.fast, one.sent.repeated, one.here.sent) = (9, 90, dropped(joined)));
        assert_eq!(
            (sent(9), sent(2)),
            (vec!["loss here: NETFILTER_DROP in web".to_owned()], vec!["loss on the path".to_owned()])
        );
        let received = causes(|one| (one.received.lost, one.here.received) = (9, dropped(9)));
        assert_eq!(received, ["loss here: NETFILTER_DROP in web"]);
        let request =
            |stage, joined| causes(|one| (one.stage, one.retries, one.here.sent) = (stage, 2, dropped(joined)));
        assert_eq!(request(Stage::Connecting, 2), ["loss here: NETFILTER_DROP in web"]);
        assert_eq!(request(Stage::Connecting, 0), ["does not answer"]);
        let rule = |stage| causes(|one| (one.stage, one.here.reset) = (stage, Some("NETFILTER_DROP".to_owned())));
        assert_eq!(rule(Stage::Failed { error: REFUSED }), ["reset by a rule here: NETFILTER_DROP"]);
        let count =
            |joined, rejects| judge_filtered(Side::Client, &dropped(joined).expect("a drop"), rejects).is_some();
        assert_eq!((count(2, false), count(3, false), count(1, true)), (false, true, true));
    }

    #[test]
    fn requests_for_connections_are_judged() {
        let stage = |stage, retries| causes(|one| (one.stage, one.retries) = (stage, retries));
        assert_eq!(stage(Stage::Connecting, 0), NOTHING);
        assert_eq!(stage(Stage::Failed { error: REFUSED }, 0), ["refuses connections"]);
        assert_eq!(stage(Stage::Failed { error: 110 }, 3), ["does not answer"]);
        assert_eq!(causes(|one| (one.retries, one.handshake_ns) = (1, Some(900 * MS))), ["accepts connections late"]);
    }

    #[test]
    fn queues_of_a_listening_socket_are_told_apart() {
        let full = |waiting, requests, dropped| {
            causes(|one| one.stage = Stage::Listening(Queues { dropped, waiting, requests, limit: 1 }))
        };
        assert_eq!(full(2, 0, 3), ["listen queue full"]);
        assert_eq!(full(0, 1, 3), ["SYN queue full"]);
        assert_eq!(full(2, 0, 0), NOTHING, "nothing was dropped");
    }

    #[test]
    fn delay_is_in_the_queue_that_has_most_of_it() {
        let delay = |loaded, local| causes(|one| (one.round_trips, one.queue) = (times(50, loaded), times(50, local)));
        assert_eq!(delay(100, 0), ["queue on the path"]);
        assert_eq!(delay(100, 90), ["queue of this host's interface"]);
        assert_eq!(delay(3, 3), NOTHING);
    }

    #[test]
    fn full_send_buffer_matters_far_away_and_if_its_size_is_fixed() {
        let full = |fixed, shortest_ms| {
            causes(|one| {
                (one.acknowledgements, one.full, one.has_fixed_buffer) = (100, 90, fixed);
                one.shortest_ns = Some(shortest_ms * MS / 10);
            })
        };
        assert_eq!(
            (full(true, 200), full(false, 200), full(true, 5)),
            (vec!["send buffer too small".to_owned()], vec![], vec![])
        );
    }

    #[test]
    fn closed_window_of_either_end_names_its_reader() {
        let closed = Closed { times: 9, ns: 600 * MS, is_now: false };
        assert_eq!(causes(|one| (one.closed_by_peer, one.sent.repeated) = (closed, 9)), ["reads slowly"]);
        assert_eq!(causes(|one| one.closed_here = Closed { is_now: true, ..closed }), ["does not read"]);
        assert_eq!(causes(|one| one.closed_here = Closed { ns: 9 * MS, ..closed }), NOTHING);
        let paced =
            |ns| causes(|one| (one.span_ns, one.closed_here) = (120 * MS, Closed { times: 54, ns, is_now: false }));
        assert_eq!((paced(32 * MS), paced(250 * MS)), (vec![], vec!["reads slowly".to_owned()]));
    }

    #[test]
    fn server_that_waits_for_a_cpu_is_starved_and_the_client_cannot_know() {
        let found = |side, waiting_ms| {
            let mut one = socket(side);
            (one.turns, one.turn_times, one.turns_ns, one.waiting_ns) = (10, times(10, 50), 500 * MS, waiting_ms * MS);
            judge(&one).iter().map(|verdict| verdict.cause.why().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found(Side::Server, 400), ["CPU starvation here"]);
        assert_eq!(found(Side::Server, 40), ["answers slowly"]);
        assert_eq!(found(Side::Client, 400), ["answers slowly"]);
    }

    #[test]
    fn resets_count_if_the_server_or_a_device_sends_them_early() {
        let reset = |by_peer, is_foreign, is_early| {
            causes(|one| {
                one.reset = Some(Reset { by: if by_peer { Side::Server } else { Side::Client }, is_foreign, is_early })
            })
        };
        assert_eq!(reset(true, false, true), ["resets connections"]);
        assert_eq!(reset(true, true, false), ["reset on the path"]);
        assert_eq!((reset(true, false, false), reset(false, false, true)), (vec![], vec![]));
    }
}
