//! The rules that turn measures into verdicts. A rule has a smallest count, so that a single event blames nobody, and
//! compares medians, because one stall would spoil a mean.

use std::iter::once;

use crate::histogram::Histogram;
use crate::measures::{Connection, Half, Handshake, HereDrop, Questions, Reset, Side};
use crate::verdict::{Cause, Level, Verdict};

const MS: u64 = 1_000_000;
/// Smallest number of lost, repeated or late segments, and their part of all segments.
const EVENTS: u64 = 3;
const EVENTS_PART: f64 = 0.001;
/// Part of the time from which one repetition after a silence counts.
pub(crate) const STALLED: f64 = 0.2;
/// Round trips that a distance may cost, and the part of the time that they take then.
const FAR_NS: u64 = 30 * MS;
const ROUNDS: u64 = 2;
const ROUNDS_SHARE: f64 = 0.3;
/// Round trips under load, and the delay in a queue.
const LOADED: u64 = 20;
const QUEUED_NS: u64 = 20 * MS;
/// Time with a closed window: its part of all, its length, and its length if it closed only once.
const CLOSED_SHARE: f64 = 0.1;
const CLOSED_NS: u64 = 200 * MS;
const CLOSED_ONCE_NS: u64 = 1000 * MS;
/// Answers that are slow, and the part of the time that they take. Who answers later waits for an event.
const ANSWERS: u64 = 3;
const ANSWER_NS: u64 = 20 * MS;
const ANSWER_MOST_NS: u64 = 5000 * MS;
/// Answers that are slow even on a connection that is idle most of the time.
const ANSWER_LONG_NS: u64 = 100 * MS;
const ANSWER_SHARE: f64 = 0.2;
/// Silences of a large segment: a second one rules out a single loss.
pub(crate) const LARGE_TIMEOUTS: u64 = 2;
/// Answers of a name server.
const NAMES: u64 = 3;
const NAMES_NS: u64 = 100 * MS;
const NAMES_SILENT: u64 = 2;
const NAMES_SILENT_PART: f64 = 0.1;

pub(crate) fn share_of(part_ns: u64, span_ns: u64) -> f64 {
    (part_ns as f64 / span_ns.max(1) as f64).min(1.0)
}

fn share(part_ns: u64, of: &Connection) -> f64 {
    share_of(part_ns, of.span_ns)
}

pub(crate) fn verdict(cause: Cause, level: Level, share: impl Into<Option<f64>>) -> Verdict {
    Verdict { cause, level, share: share.into() }
}

/// Returns why a connection is slow, the most important cause first.
pub fn judge(of: &Connection) -> Vec<Verdict> {
    let mut found: Vec<Verdict> = handshake(of).into_iter().collect();
    for side in Side::BOTH {
        let half = of.half(side);
        // A closed window delays acknowledgements, and has the sender repeat data as a question.
        found.extend(match slow_reader(of, side, half) {
            // A question is no repetition of a dropped segment.
            Some(verdict) => once(verdict).chain(loss(of, side, half).filter(is_here)).collect::<Vec<_>>(),
            None => [path(of, side, half), queue(side, half)].into_iter().flatten().collect(),
        });
    }
    found.extend(slow_answers(of));
    found.extend(distance(of));
    found.extend(reset(of));
    sort(&mut found);
    found
}

/// Sorts verdicts, the most important first.
pub(crate) fn sort(verdicts: &mut [Verdict]) {
    let by_share = |a: &Verdict, b: &Verdict| b.share.partial_cmp(&a.share).unwrap_or(std::cmp::Ordering::Equal);
    verdicts.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| by_share(a, b)));
}

fn handshake(of: &Connection) -> Option<Verdict> {
    if of.handshake.is_refused {
        return of.here.reset.is_none().then(|| verdict(Cause::Refused, Level::Certain, None));
    }
    let is_dropped = |side| greetings_dropped_here(of, side);
    is_dropped(Side::Client).or_else(|| is_dropped(Side::Server)).or_else(|| unexplained_handshake(of))
}

/// Returns the loss of requests for the connection, or of answers to them, by this host.
fn greetings_dropped_here(of: &Connection, side: Side) -> Option<Verdict> {
    let Handshake { requests, answers, answered_ns, is_complete, .. } = of.handshake;
    let (segments, has_passed) = match side {
        Side::Client => (requests, answered_ns.is_some()),
        Side::Server => (answers, is_complete),
    };
    let lost = segments.saturating_sub(u64::from(has_passed));
    let here = of.here.greetings[side as usize].as_ref().filter(|_| segments > 1)?;
    let share = answered_ns.filter(|_| side == Side::Client).map(|ns| share(ns, of));
    Some(verdict(loss_here(side, here, lost, segments)?, Level::Certain, share))
}

fn unexplained_handshake(of: &Connection) -> Option<Verdict> {
    let requests = of.handshake.requests;
    match of.handshake.answered_ns {
        None if requests > 1 && !of.handshake.is_complete => {
            Some(verdict(Cause::NoAnswer { requests }, Level::Likely, None))
        }
        Some(answered_ns) if requests > 1 => {
            Some(verdict(Cause::LateAnswer { requests, answered_ns }, Level::Likely, share(answered_ns, of)))
        }
        _ => None,
    }
}

/// Returns what happens to a side's segments on the way.
fn path(of: &Connection, side: Side, half: &Half) -> Option<Verdict> {
    let loss = loss(of, side, half);
    if loss.as_ref().is_some_and(is_here) {
        return loss;
    }
    large_segments(side, half).or_else(|| reordering(side, half)).or(loss)
}

fn is_here(verdict: &Verdict) -> bool {
    matches!(verdict.cause, Cause::LossHere { .. })
}

pub(crate) fn is_frequent(events: u64, segments: u64) -> bool {
    events >= EVENTS && events as f64 >= EVENTS_PART * segments as f64
}

/// Returns the loss by drops of this host, if they explain at least half of the repetitions.
pub(crate) fn loss_here(of: Side, here: &HereDrop, repeated: u64, segments: u64) -> Option<Cause> {
    let joined = here.joined.min(repeated);
    (joined > 0 && 2 * joined >= repeated).then(|| Cause::LossHere {
        of,
        joined,
        repeated,
        segments,
        drop: here.drop.clone(),
    })
}

fn loss(of: &Connection, side: Side, half: &Half) -> Option<Verdict> {
    let Half { segments, lost_before, timeouts, .. } = *half;
    let repeated = half.repeated.saturating_sub(half.needless);
    let share = share(half.missing_ns, of);
    let is_stalled = timeouts > 0 && share >= STALLED;
    if !is_frequent(repeated, segments) && (repeated == 0 || !is_stalled) {
        return None;
    }
    let here = of.here.data[side as usize].as_ref();
    // A repetition that follows a drop is not needless.
    let all = |here: &HereDrop| repeated.max(here.joined.min(half.repeated));
    Some(match here.and_then(|here| loss_here(side, here, all(here), segments)) {
        Some(cause) => verdict(cause, Level::Certain, share),
        None => {
            let lost_before = Some(lost_before);
            verdict(
                Cause::Loss { of: side, repeated, segments, lost_before, timeouts, place_unknown: false },
                Level::Likely,
                share,
            )
        }
    })
}

/// A needless repetition after a silence is due to a lost acknowledgement.
fn reordering(side: Side, half: &Half) -> Option<Verdict> {
    let Half { out_of_order, repeated, segments, .. } = *half;
    let needless = half.needless.saturating_sub(half.timeouts);
    let is_needless = is_frequent(needless, segments) && 2 * needless >= repeated;
    let is_late = is_frequent(out_of_order, segments) && out_of_order > repeated;
    (is_needless || is_late)
        .then(|| verdict(Cause::Reordering { of: side, needless, out_of_order, segments }, Level::Likely, None))
}

fn large_segments(side: Side, half: &Half) -> Option<Verdict> {
    let Half { full_size_timeouts: timeouts, largest: payload, largest_acknowledged: passed, .. } = *half;
    (timeouts >= LARGE_TIMEOUTS && passed < payload).then(|| {
        verdict(Cause::LargeSegments { of: side, timeouts, payload, passed: Some(passed) }, Level::Likely, None)
    })
}

/// Returns true if round trips under load are much longer than the shortest one.
pub(crate) fn is_queue(loaded: &Histogram, shortest_ns: u64) -> bool {
    let least = (shortest_ns + QUEUED_NS).max(2 * shortest_ns);
    loaded.count() >= LOADED && loaded.median_ns().is_some_and(|median| median >= least)
}

fn queue(side: Side, half: &Half) -> Option<Verdict> {
    let (shortest_ns, loaded_ns) = (half.shortest_ns?, half.loaded.median_ns()?);
    let is_queue = is_queue(&half.loaded, shortest_ns);
    let share = 1.0 - shortest_ns as f64 / loaded_ns.max(1) as f64;
    is_queue.then(|| verdict(Cause::Queue { of: side, shortest_ns, loaded_ns }, Level::Likely, share))
}

fn slow_reader(of: &Connection, sender: Side, half: &Half) -> Option<Verdict> {
    let Half { closed, closed_ns, is_closed: to_the_end, .. } = *half;
    closed_window(
        Cause::SlowReader { at: sender.other(), closed, closed_ns, to_the_end },
        (closed, closed_ns),
        of.span_ns,
    )
}

/// Returns the verdict about a reader if its window was closed for long: how often, and for how many ns.
pub(crate) fn closed_window(reader: Cause, (closed, closed_ns): (u64, u64), span_ns: u64) -> Option<Verdict> {
    let share = share_of(closed_ns, span_ns);
    let least = if closed > 1 { CLOSED_NS } else { CLOSED_ONCE_NS };
    (share >= CLOSED_SHARE && closed_ns >= least).then(|| verdict(reader, Level::Certain, share))
}

pub(crate) fn is_slow_answer(answers: u64, median_ns: u64, share: f64) -> bool {
    let is_much = share >= ANSWER_SHARE || median_ns >= ANSWER_LONG_NS;
    answers >= ANSWERS && (ANSWER_NS..ANSWER_MOST_NS).contains(&median_ns) && is_much
}

/// The client's answers are pauses of its own.
fn slow_answers(of: &Connection) -> Option<Verdict> {
    let half = of.half(Side::Server);
    let (answers, median_ns) = (half.answers.count(), half.answers.median_ns()?);
    let share = share(half.answers_ns, of);
    is_slow_answer(answers, median_ns, share)
        .then(|| verdict(Cause::SlowAnswer { by: Side::Server, answers, median_ns }, Level::Likely, share))
}

pub(crate) fn is_far(round_trip_ns: u64, rounds: u64, share: f64) -> bool {
    round_trip_ns >= FAR_NS && rounds >= ROUNDS && share >= ROUNDS_SHARE
}

fn distance(of: &Connection) -> Option<Verdict> {
    let round_trip_ns = of.round_trip_ns()?;
    let rounds = of.half(Side::Server).answers.count() + u64::from(of.handshake.answered_ns.is_some());
    let share = share(round_trip_ns * rounds, of);
    is_far(round_trip_ns, rounds, share)
        .then(|| verdict(Cause::Distance { round_trip_ns, rounds }, Level::Likely, share))
}

fn reset(of: &Connection) -> Option<Verdict> {
    judge_reset(of.reset, of.here.reset.as_deref())
}

/// Returns the verdict about a reset, which a rule here may have sent. A client that resets a connection has had enough of
/// it.
pub(crate) fn judge_reset(reset: Option<Reset>, by_rule: Option<&str>) -> Option<Verdict> {
    if let Some(drop) = by_rule {
        return Some(verdict(Cause::ResetHere { drop: drop.to_owned() }, Level::Certain, None));
    }
    let reset = reset.filter(|reset| reset.is_foreign || (reset.is_early && reset.by == Side::Server))?;
    Some(verdict(Cause::Reset { by: reset.by, is_foreign: reset.is_foreign }, Level::Likely, None))
}

/// Returns what is wrong with the answers of a name server to a host.
pub fn judge_names(of: &Questions) -> Vec<Verdict> {
    let Questions { asked, unanswered, answers, answers_ns } = of;
    let is_silent = *unanswered >= NAMES_SILENT && *unanswered as f64 >= NAMES_SILENT_PART * *asked as f64;
    let silent =
        is_silent.then(|| verdict(Cause::SilentNames { unanswered: *unanswered, asked: *asked }, Level::Certain, None));
    let median = answers
        .median_near(answers_ns / answers.count().max(1))
        .filter(|median| answers.count() >= NAMES && *median >= NAMES_NS);
    let slow =
        median.map(|median_ns| verdict(Cause::SlowNames { answers: answers.count(), median_ns }, Level::Certain, None));
    silent.into_iter().chain(slow).collect()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::measures::Here;

    fn connection(span_ms: u64) -> Connection {
        let address = |port| std::net::SocketAddr::from(([10, 0, 0, 1], port));
        Connection {
            client: address(40_000),
            server: address(80),
            span_ns: span_ms * MS,
            handshake: Handshake { requests: 1, answered_ns: Some(MS), is_complete: true, ..Handshake::default() },
            reset: None,
            halves: Default::default(),
            here: Here::default(),
            processes: [None, None],
        }
    }

    fn times(count: u64, ms: u64) -> Histogram {
        let mut histogram = Histogram::default();
        (0..count).for_each(|_| histogram.add(ms * MS));
        histogram
    }

    /// Returns the causes after a change of the client's half.
    fn causes(span_ms: u64, change: impl FnOnce(&mut Half)) -> Vec<Cow<'static, str>> {
        let mut one = connection(span_ms);
        one.halves[0] = Half { segments: 1000, largest: 1448, largest_acknowledged: 1448, ..Half::default() };
        change(&mut one.halves[0]);
        judge(&one).iter().map(|verdict| verdict.cause.why()).collect()
    }

    #[test]
    fn single_events_blame_nobody() {
        assert_eq!(causes(1000, |half| half.repeated = 2), [""; 0]);
        assert_eq!(causes(1000, |half| half.repeated = 3), ["loss behind this place"]);
        // One stall is a loss only if it takes a part of the time.
        let stall = |half: &mut Half| (half.repeated, half.timeouts, half.missing_ns) = (1, 1, 250 * MS);
        assert_eq!(causes(10_000, stall), [""; 0]);
        assert_eq!(causes(1000, stall), ["loss behind this place"]);
        assert_eq!(causes(1000, |half| (half.closed, half.closed_ns) = (1, 200 * MS)), [""; 0]);
        assert_eq!(causes(10, |half| (half.closed, half.closed_ns) = (20, 2 * MS)), [""; 0], "too short");
        assert_eq!(causes(1000, |half| half.full_size_timeouts = 3), [""; 0], "as large ones have passed");
    }

    #[test]
    fn place_of_a_loss_follows_from_what_was_seen() {
        let lost = |lost_before| causes(1000, |half| (half.repeated, half.lost_before) = (10, lost_before));
        assert_eq!(lost(10), ["loss before this place"]);
        assert_eq!(lost(4), ["loss on the path"]);
    }

    fn here(joined: u64) -> Option<HereDrop> {
        Some(HereDrop { joined, drop: "NETFILTER_DROP at input in web".to_owned() })
    }

    #[test]
    fn drops_are_the_cause_if_most_repetitions_follow_one() {
        let found = |repeated, joined| {
            let mut one = connection(1000);
            let segments = 1000;
            // Large segments alone were lost, and none of them passes.
            one.halves[1] = Half { segments, repeated, full_size_timeouts: 3, largest: 1448, ..Half::default() };
            one.here.data[1] = here(joined);
            let verdicts = judge(&one);
            (verdicts[0].cause.why().into_owned(), verdicts[0].cause.to_string(), verdicts.len())
        };
        let (why, evidence, count) = found(42, 42);
        assert_eq!(why, "loss here: NETFILTER_DROP at input in web");
        assert_eq!((evidence.as_str(), count), ("4.20 %, 42 of 42 joined", 1));
        assert_eq!(found(42, 21).1, "4.20 %, 21 of 42 joined");
        assert_eq!(found(42, 50).1, "4.20 %, 42 of 42 joined", "two places dropped the same segment");
        assert_eq!(found(42, 20).0, "large packets vanish (MTU)");
        let mut one = connection(1000);
        one.halves[0] = Half { segments: 1000, repeated: 20, closed: 9, closed_ns: 600 * MS, ..Half::default() };
        assert_eq!(judge(&one).len(), 1, "it reads slowly");
        one.here.data[0] = here(20);
        assert_eq!(judge(&one).len(), 2, "and drops");
        let mut one = connection(1000);
        one.halves[0] = Half { segments: 1000, repeated: 20, needless: 12, ..Half::default() };
        one.here.data[0] = here(10);
        assert_eq!(judge(&one)[0].cause.to_string(), "1.00 %, 10 of 10 joined", "the joined ones are not needless");
    }

    #[test]
    fn needless_repetitions_are_no_loss() {
        assert_eq!(causes(1000, |half| (half.repeated, half.needless) = (10, 6)), ["reordering on the path"]);
        assert_eq!(causes(1000, |half| (half.repeated, half.needless) = (40, 4)), ["loss behind this place"]);
        let acknowledgements = |half: &mut Half| (half.repeated, half.needless, half.timeouts) = (4, 4, 4);
        assert_eq!(causes(1000, acknowledgements), [""; 0], "the acknowledgements were lost");
        assert_eq!(causes(1000, |half| (half.repeated, half.out_of_order) = (2, 9)), ["reordering on the path"]);
    }

    #[test]
    fn closed_window_explains_what_follows_from_it() {
        let change = |half: &mut Half| {
            (half.closed, half.closed_ns, half.repeated, half.needless) = (9, 600 * MS, 9, 9);
            (half.shortest_ns, half.loaded) = (Some(MS), times(100, 80));
        };
        assert_eq!(causes(1000, change), ["reads slowly"]);
        assert_eq!(causes(1000, |half| half.is_closed = true), [""; 0]);
        let for_ever = |half: &mut Half| (half.closed, half.closed_ns, half.is_closed) = (1, 2000 * MS, true);
        assert_eq!(causes(3000, for_ever), ["does not read"]);
    }

    #[test]
    fn queue_is_a_delay_under_load_alone() {
        let queue = |shortest_ms: u64, loaded_ms, count| {
            causes(1000, |half| (half.shortest_ns, half.loaded) = (Some(shortest_ms * MS), times(count, loaded_ms)))
        };
        assert_eq!(queue(1, 100, 50), ["queue on the path"]);
        assert_eq!(queue(1, 100, 10), [""; 0], "too few");
        assert_eq!(queue(100, 120, 50), [""; 0], "mostly distance");
        assert_eq!(queue(1, 12, 50), [""; 0], "short");
    }

    #[test]
    fn answers_of_the_server_are_judged_and_pauses_of_the_client_are_not() {
        let found = |side: usize, count: u64, ms: u64| {
            let mut one = connection(10_000);
            one.halves[side].answers = times(count, ms);
            one.halves[side].answers_ns = count * ms * MS;
            judge(&one).iter().map(|verdict| verdict.cause.why()).collect::<Vec<_>>()
        };
        assert_eq!(found(1, 10, 300), ["answers slowly"]);
        assert_eq!(found(0, 10, 300), [""; 0]);
        assert_eq!(found(1, 2, 3000), [""; 0]);
        assert_eq!(found(1, 10, 30), [""; 0], "a small part of the time");
        assert_eq!(found(1, 3, 200), ["answers slowly"], "though the connection is idle for most of the time");
        assert_eq!(found(1, 3, 9000), [""; 0], "it waits for events");
    }

    #[test]
    fn distance_counts_if_round_trips_take_the_time() {
        let far = |span_ms, answers| {
            let mut one = connection(span_ms);
            one.halves[0].shortest_ns = Some(99 * MS);
            one.halves[1].shortest_ns = Some(MS);
            one.halves[1].answers = times(answers, 0);
            !judge(&one).is_empty()
        };
        assert!(far(1000, 5) && !far(100_000, 5) && !far(200, 0));
    }

    #[test]
    fn requests_for_connections_are_judged() {
        let found = |handshake: Handshake, reset: Option<Reset>| {
            let one = Connection { handshake, reset, ..connection(2000) };
            judge(&one).iter().map(|verdict| verdict.cause.why()).collect::<Vec<_>>()
        };
        let asked = |requests, answered: Option<u64>| Handshake {
            requests,
            answered_ns: answered.map(|ms| ms * MS),
            is_complete: answered.is_some(),
            ..Handshake::default()
        };
        assert_eq!(found(asked(1, None), None), [""; 0], "the capture may have ended");
        assert_eq!(found(asked(3, None), None), ["does not answer"]);
        assert_eq!(found(asked(2, Some(1000)), None), ["accepts connections late"]);
        assert_eq!(found(Handshake { is_refused: true, ..asked(1, None) }, None), ["refuses connections"]);
        let dropped = |handshake, side: Side, joined| {
            let mut one = Connection { handshake, ..connection(2000) };
            one.here.greetings[side as usize] = here(joined);
            judge(&one).iter().map(|verdict| verdict.cause.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(dropped(asked(3, None), Side::Client, 3), ["100.00 %, 3 of 3 joined"]);
        assert_eq!(dropped(asked(3, None), Side::Client, 1), ["3 requests"]);
        assert_eq!(dropped(asked(2, Some(1000)), Side::Client, 1), ["50.00 %, 1 of 1 joined"]);
        assert_eq!(dropped(asked(1, None), Side::Client, 1), [""; 0], "the capture may have ended");
        let answers = Handshake { answers: 3, is_complete: false, ..asked(3, Some(1)) };
        assert_eq!(dropped(answers, Side::Server, 3), ["100.00 %, 3 of 3 joined"]);
        for handshake in [Handshake { is_refused: true, ..asked(1, None) }, asked(1, Some(1))] {
            let mut one = Connection { handshake, ..connection(2000) };
            one.here.reset = Some("NETFILTER_DROP at input".to_owned());
            let found: Vec<_> = judge(&one).iter().map(|verdict| verdict.cause.why()).collect();
            assert_eq!(found, ["reset by a rule here: NETFILTER_DROP at input"]);
        }
        let reset = |by, is_foreign, is_early| Some(Reset { by, is_foreign, is_early });
        assert_eq!(found(asked(1, Some(1)), reset(Side::Server, false, true)), ["resets connections"]);
        assert_eq!(found(asked(1, Some(1)), reset(Side::Server, true, false)), ["reset on the path"]);
        assert_eq!(found(asked(1, Some(1)), reset(Side::Client, false, true)), [""; 0]);
    }

    #[test]
    fn name_servers_are_judged_by_median_and_silence() {
        let found = |asked, unanswered, ms| {
            let answers = times(asked - unanswered, ms);
            let verdicts = judge_names(&Questions { asked, unanswered, answers, answers_ns: 0 });
            verdicts.iter().map(|verdict| verdict.cause.why()).collect::<Vec<_>>()
        };
        assert_eq!(found(10, 0, 2), [""; 0]);
        assert_eq!(found(10, 0, 300), ["DNS slow"]);
        assert_eq!(found(10, 4, 2), ["DNS silent"]);
        assert_eq!(found(100, 2, 2), [""; 0]);
    }
}
