//! One thread of a run.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trawl_io::send::pin_to_cpu;
use trawl_sys::events::precise_sleeps;
use trawl_sys::{Error, Result};

use super::{Gaps, Open, Sending, Shared};
use crate::engine::{Engine, Sent};
use crate::pace::{Pacer, Rate};
use crate::source::Source;

/// So long without one frame taken, and the other side is taken to be stuck.
const PATIENCE: Duration = Duration::from_secs(3);
/// With a rate and a time, the last frames that are due may be this much late.
const LATENESS: Duration = Duration::from_millis(200);
/// A sleep may end this much late; the rest of a wait is spent looking at the clock.
const SLEEP_MARGIN: u64 = 80_000;
/// Nobody waits longer than this without looking whether the run is over.
const LONGEST_SLEEP: u64 = 20_000_000;
/// What a frame is taken to be long before one was sent.
const FIRST_GUESS: f64 = 64.0;

/// What became of one thread.
pub(super) struct LaneEnd {
    pub engine: &'static str,
    pub elapsed: Duration,
    pub gaps: Option<Gaps>,
    pub failure: Option<Error>,
}

pub(super) fn drive(
    plan: &Sending<'_>,
    shared: &Shared,
    number: usize,
    open: &Open<'_>,
) -> Result<LaneEnd> {
    let opened = plan.cpus[number]
        .map_or(Ok(()), pin_to_cpu)
        .and_then(|()| open(number))
        .and_then(|(mut engine, mut source)| {
            let early = if share(total(plan), number, plan.cpus.len()) > 0 {
                engine.prepare(source.as_mut())?
            } else {
                Sent::default()
            };
            Ok((engine, source, early))
        });
    if opened.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
    }
    shared.ready.wait();
    let (mut engine, mut source, early) = opened?;
    precise_sleeps();
    let mut lane = Lane::new(plan, shared, number);
    lane.pacer.took(early.frames, early.bytes);
    lane.note(&early);
    if !shared.failed.load(Ordering::Relaxed) {
        lane.failure = lane.send_all(engine.as_mut(), source.as_mut()).err();
        match engine.finish() {
            Ok(sent) => lane.note(&sent),
            Err(error) => lane.failure = lane.failure.or(Some(error)),
        }
    }
    if lane.failure.is_some() {
        // The others would go on without an end in sight.
        shared.stop.store(true, Ordering::Relaxed);
    }
    Ok(LaneEnd {
        engine: engine.name(),
        elapsed: lane.start.elapsed(),
        gaps: lane.gaps,
        failure: lane.failure,
    })
}

struct Lane<'a> {
    plan: &'a Sending<'a>,
    shared: &'a Shared,
    number: usize,
    start: Instant,
    pacer: Pacer,
    /// This thread's part of all frames.
    count: u64,
    frames: u64,
    bytes: u64,
    gaps: Option<Gaps>,
    failure: Option<Error>,
}

impl<'a> Lane<'a> {
    fn new(plan: &'a Sending<'a>, shared: &'a Shared, number: usize) -> Self {
        let threads = plan.cpus.len();
        let pacer = match plan.profile {
            Some(profile) => Pacer::phased(profile.divided_by(threads), plan.burst),
            None => {
                let rate = plan.rate.divided_by(threads);
                // The first frames of all threads are spread over the time between two of one.
                let gap = Pacer::new(rate, 1, 0.0).gap(0, FIRST_GUESS).unwrap_or(0.0);
                let between = gap * plan.burst.max(1) as f64;
                Pacer::new(rate, plan.burst, between * number as f64 / threads as f64)
            }
        };
        Self {
            plan,
            shared,
            number,
            start: Instant::now(),
            pacer,
            count: share(total(plan), number, threads),
            frames: 0,
            bytes: 0,
            gaps: (plan.rate != Rate::Unlimited || plan.profile.is_some()).then(Gaps::new),
            failure: None,
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// About how long a frame is.
    fn mean(&self) -> f64 {
        if self.frames == 0 {
            FIRST_GUESS
        } else {
            self.bytes as f64 / self.frames as f64
        }
    }

    fn send_all(&mut self, engine: &mut dyn Engine, source: &mut dyn Source) -> Result<()> {
        let deadline = time(self.plan).map(|d| d.as_nanos() as u64);
        let mut last_progress = 0;
        while self.frames < self.count && !self.shared.stop.load(Ordering::Relaxed) {
            let now = self.now();
            // With a rate the number of frames is the measure, and the last ones may be a little late.
            let grace = match self.count {
                u64::MAX => 0,
                _ => LATENESS.as_nanos() as u64,
            };
            if deadline.is_some_and(|deadline| now >= deadline + grace) {
                break;
            }
            let due = self.pacer.due(now, self.mean());
            if due == 0 {
                self.wait_until(self.pacer.next_due().unwrap_or(now));
                last_progress = self.now();
                continue;
            }
            let want = due.min(self.count - self.frames).min(engine.most());
            let sent = engine.send(source, now, want)?;
            self.account(now, &sent);
            if sent.ended {
                break;
            }
            if let Some(later) = sent.later.filter(|_| sent.frames == 0) {
                self.wait_until(later.min(deadline.unwrap_or(u64::MAX)));
                last_progress = self.now();
            } else if sent.frames > 0 {
                last_progress = now;
            } else if now.saturating_sub(last_progress) > PATIENCE.as_nanos() as u64 {
                return Err(Error::failed(
                    format!("stopped sending out of {}", self.plan.interface),
                    format!(
                        "the device took no frame for {} seconds: {}",
                        PATIENCE.as_secs(),
                        engine.suspicion()
                    ),
                ));
            }
        }
        self.sit_out(deadline);
        Ok(())
    }

    /// A time that was asked for is kept to its end: the last frame's gap belongs to it.
    fn sit_out(&self, deadline: Option<u64>) {
        let Some(deadline) = deadline else { return };
        let asked_for = self.plan.count.is_none() && self.count != u64::MAX;
        while asked_for && self.frames >= self.count && self.now() < deadline {
            if self.shared.stop.load(Ordering::Relaxed) {
                return;
            }
            self.wait_until(deadline);
        }
    }

    fn account(&mut self, at: u64, sent: &Sent) {
        let gap = self.pacer.gap(at, self.mean());
        if let (Some(gaps), Some(gap)) = (&mut self.gaps, gap) {
            let due = self.pacer.next_due().unwrap_or(at);
            gaps.note(at, due, gap, sent.frames);
        }
        self.pacer.took(sent.frames, sent.bytes);
        self.note(sent);
    }

    fn note(&mut self, sent: &Sent) {
        self.frames += sent.frames;
        self.bytes += sent.bytes;
        let shown = &self.shared.shown[self.number];
        shown.frames.fetch_add(sent.frames, Ordering::Relaxed);
        shown.bytes.fetch_add(sent.bytes, Ordering::Relaxed);
        shown.refused.fetch_add(sent.refused, Ordering::Relaxed);
    }

    /// Sleeps as long as that is sure to end in time, and looks at the clock for the rest. Returns early now and
    /// then, so that the end of the run is noticed.
    fn wait_until(&self, time: u64) {
        let wait = time.saturating_sub(self.now());
        if wait > SLEEP_MARGIN {
            let sleep = (wait - SLEEP_MARGIN).min(LONGEST_SLEEP);
            std::thread::sleep(Duration::from_nanos(sleep));
            return;
        }
        while self.now() < time {
            std::hint::spin_loop();
        }
    }
}

/// When the run is over at the latest: the time given, or that of all phases.
fn time(plan: &Sending<'_>) -> Option<Duration> {
    let phases = plan
        .profile
        .map(|profile| Duration::from_secs_f64(profile.seconds()));
    match (plan.duration, phases) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// How many frames all threads together send: the count, or what the rate makes of the time.
fn total(plan: &Sending<'_>) -> u64 {
    let whole = |frames: f64| frames.round().max(1.0) as u64;
    let by_time = match (plan.profile, plan.rate, plan.duration) {
        (Some(profile), _, None) if profile.overhead.is_none() => whole(profile.total()),
        (None, Rate::Frames(rate), Some(time)) => whole(rate * time.as_secs_f64()),
        _ => u64::MAX,
    };
    plan.count.unwrap_or(u64::MAX).min(by_time)
}

/// The frames of a run with a rate and a time.
pub(super) fn asked(plan: &Sending<'_>) -> Option<u64> {
    Some(total(plan)).filter(|&frames| frames != u64::MAX)
}

/// One thread's part. The parts differ by one at most, and a total without an end is one for each.
fn share(total: u64, number: usize, threads: usize) -> u64 {
    if total == u64::MAX {
        return total;
    }
    let (total, number, threads) = (u128::from(total), number as u128, threads as u128);
    (total * (number + 1) / threads - total * number / threads) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole() {
        for (total, threads) in [(1, 3), (100, 7), (u64::MAX - 1, 4)] {
            let sum: u128 = (0..threads)
                .map(|n| u128::from(share(total, n, threads)))
                .sum();
            assert_eq!(sum, u128::from(total));
        }
        assert_eq!(share(u64::MAX, 1, 2), u64::MAX);
    }
}
