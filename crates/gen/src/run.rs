//! Runs threads, each on its CPU, from the first frame to the last one, the deadline or the caller's stop, and makes
//! the account.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use trawl_io::send::pin_to_cpu;
use trawl_sys::events::precise_sleeps;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::{Error, Result};

use crate::engine::{Device, Engine, Reading, Sent, Verified};
use crate::pace::{Pacer, Profile, Rate};
use crate::source::Source;

/// Interval at which the caller receives the counts, and may stop the run.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// Parameters common to all threads.
#[derive(Clone, Debug)]
pub struct Sending<'a> {
    pub namespace: Option<&'a Namespace>,
    /// Name for messages.
    pub interface: &'a str,
    /// Device whose counters are compared with the result, and its name; `None`: the caller verifies the result.
    pub device: Option<(&'a Device, &'a str)>,
    /// CPU of each thread; the number of entries is the number of threads. `None`: chosen by the kernel.
    pub cpus: &'a [Option<usize>],
    pub rate: Rate,
    /// A rate that changes over time, instead of `rate`; the run ends when it does.
    pub profile: Option<&'a Profile>,
    /// Number of frames sent together.
    pub burst: u64,
    /// Total number of frames; `None`: until the source or the time ends.
    pub count: Option<u64>,
    pub duration: Option<Duration>,
}

/// Counts of a run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub frames: u64,
    pub bytes: u64,
    pub refused: u64,
    pub elapsed: Duration,
}

impl Figures {
    pub fn frames_per_second(&self) -> f64 {
        self.frames as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    /// Returns the bits a second, with this many additional bytes for each frame.
    pub fn bits_per_second(&self, overhead: u32) -> f64 {
        let bytes = self.bytes + self.frames * u64::from(overhead);
        bytes as f64 * 8.0 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The count or the time was reached, or the source ended.
    Done,
    /// The caller stopped the run.
    Stopped,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub figures: Figures,
    pub engine: &'static str,
    pub end: End,
    /// Number of frames that the rate and the time require; `None` if one of the two was not given.
    pub asked: Option<u64>,
    /// Errors of the gaps between frames, relative to the requested ones; `None` without a rate.
    pub gaps: Option<Gaps>,
    /// Reason why the device's counters do not verify the number of frames.
    pub unverified: Option<&'static str>,
    /// Error that ended the run early, or counters of the device that contradict the result; the frames are those
    /// reported by the engine.
    pub failure: Option<Error>,
}

/// Counts of one thread that the others read, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct SharedCounts {
    frames: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

/// Opens a thread's engine and source. Called on that thread, in the namespace and on its CPU, with the thread's
/// number.
pub type Open<'a> = dyn Fn(usize) -> Result<(Box<dyn Engine>, Box<dyn Source>)> + Sync + 'a;

/// Sends the frames. `watch` receives the counts about ten times a second, and returns false to stop the run.
pub fn run(plan: &Sending<'_>, open: &Open<'_>, watch: &mut dyn FnMut(&Figures) -> bool) -> Result<RunReport> {
    plan.rate.check()?;
    if plan.cpus.is_empty() {
        return Err(Error::usage("cannot send", "no thread is left to send from"));
    }
    let shared = Shared {
        stop: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        ready: Barrier::new(plan.cpus.len() + 1),
        go: Barrier::new(plan.cpus.len() + 1),
        verified: Mutex::new(()),
        counts: plan.cpus.iter().map(|_| SharedCounts::default()).collect(),
    };
    std::thread::scope(|scope| {
        let unverified = shared.verified.lock();
        let (done, finished) = mpsc::channel();
        let lanes: Vec<_> = (0..plan.cpus.len())
            .map(|number| {
                let (shared, done) = (&shared, Done(done.clone()));
                scope.spawn(move || {
                    let lane = || run_thread(plan, shared, number, open, done);
                    run_maybe_in(plan.namespace, lane).and_then(|result| result)
                })
            })
            .collect();
        drop(done);
        shared.ready.wait();
        let before = read_counters(plan);
        let early = shared.figures(Duration::ZERO).frames;
        shared.go.wait();
        let start = Instant::now();
        let mut stopped = false;
        // The channel closes after the last thread's end.
        loop {
            match finished.recv_timeout(WATCH_EVERY) {
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if !stopped && !watch(&shared.figures(start.elapsed())) {
                        stopped = true;
                        shared.stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
        let reported = shared.figures(Duration::ZERO).frames - early;
        let verified = before.and_then(|before| verify(plan, before, reported));
        drop(unverified);
        let mut outcomes = Vec::new();
        for lane in lanes {
            match lane.join() {
                Ok(outcome) => outcomes.push(outcome?),
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        }
        let elapsed = outcomes.iter().map(|one| one.elapsed).max();
        let mut gaps: Option<Gaps> = None;
        for one in &outcomes {
            match (&mut gaps, &one.gaps) {
                (Some(all), Some(own)) => all.add(own),
                (None, Some(own)) => gaps = Some(own.clone()),
                _ => {}
            }
        }
        let figures = shared.figures(elapsed.unwrap_or_default());
        let why_unverified = match verified {
            Ok(Some(Verified::Unknown(why))) => Some(why),
            _ => None,
        };
        let failure = outcomes.iter().find_map(|one| one.failure.clone());
        Ok(RunReport {
            figures,
            engine: outcomes.first().map_or("", |one| one.engine),
            end: if stopped { End::Stopped } else { End::Done },
            asked: asked(plan),
            gaps,
            unverified: why_unverified,
            failure: failure.or(verified.err()),
        })
    })
}

/// Reads the device's counters, if they are to be compared.
fn read_counters(plan: &Sending<'_>) -> Result<Option<Reading>> {
    let Some((_, name)) = plan.device else {
        return Ok(None);
    };
    run_maybe_in(plan.namespace, || Reading::now(name))?.map(Some)
}

/// Compares the number of frames with the device's counters.
fn verify(plan: &Sending<'_>, before: Option<Reading>, frames: u64) -> Result<Option<Verified>> {
    let (Some((device, name)), Some(before)) = (plan.device, before) else {
        return Ok(None);
    };
    run_maybe_in(plan.namespace, || device.verify(name, &before, frames))?.map(Some)
}

/// State shared by the threads of a run.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Set if a thread could not open its engine: then no thread starts.
    failed: AtomicBool,
    ready: Barrier,
    /// Passed once the device's counters are read.
    go: Barrier,
    /// Locked until the result is compared with the device's counters: a driver may reset them when an engine is
    /// closed.
    verified: Mutex<()>,
    counts: Vec<SharedCounts>,
}

impl Shared {
    /// Adds to the counts of a thread.
    fn add_counts(&self, number: usize, sent: &Sent) {
        let counts = &self.counts[number];
        counts.frames.fetch_add(sent.frames, Ordering::Relaxed);
        counts.bytes.fetch_add(sent.bytes, Ordering::Relaxed);
        counts.refused.fetch_add(sent.refused, Ordering::Relaxed);
    }

    fn figures(&self, elapsed: Duration) -> Figures {
        let sum = |of: fn(&SharedCounts) -> &AtomicU64| {
            let each = self.counts.iter().map(|one| of(one).load(Ordering::Relaxed));
            each.sum()
        };
        Figures {
            frames: sum(|one| &one.frames),
            bytes: sum(|one| &one.bytes),
            refused: sum(|one| &one.refused),
            elapsed,
        }
    }
}

// Errors of the gaps between frames.

/// Larger errors count as this: a stall of the whole machine.
const LONGEST: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

/// Differences between each gap and the one required by the rate, in nanoseconds.
///
/// Frames that are handed over in one call leave at the same time: their gaps count as zero, so their error is the full
/// gap.
#[derive(Clone, Debug)]
pub struct Gaps {
    errors: Histogram<u64>,
    /// Lateness of the previous frame.
    late: Option<i64>,
}

/// Percentiles of the gap errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

impl Gaps {
    pub(crate) fn new() -> Self {
        Self {
            errors: Histogram::new_with_max(LONGEST, DIGITS)
                .unwrap_or_else(|_| unreachable!("the bounds are constants that make a histogram")),
            late: None,
        }
    }

    /// Notes `frames` frames sent at one time; the first was due at `due`, each next one `gap` later.
    pub(crate) fn note(&mut self, at: u64, due: u64, gap: f64, frames: u64) {
        if frames == 0 {
            return;
        }
        let late = at as i64 - due as i64;
        if let Some(before) = self.late {
            self.errors.saturating_record((late - before).unsigned_abs());
        }
        let together = frames - 1;
        if together > 0 {
            self.errors.saturating_record_n(gap as u64, together);
        }
        self.late = Some(late - (together as f64 * gap) as i64);
    }

    fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.errors.add(&other.errors);
    }

    pub fn percentiles(&self) -> Percentiles {
        let at = |share| self.errors.value_at_quantile(share);
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999), max: self.errors.max() }
    }
}

// One thread of a run.

/// Time without an accepted frame after which the other side counts as stuck.
const PATIENCE: Duration = Duration::from_secs(3);
/// With a rate and a time, lateness allowed for the last frames.
const LATENESS: Duration = Duration::from_millis(200);
/// Lateness of a sleep; the rest of a wait polls the clock.
const SLEEP_MARGIN: u64 = 80_000;
/// Longest sleep between two checks for the end of the run.
const LONGEST_SLEEP: u64 = 20_000_000;
/// Assumed length of a frame before the first one was sent.
const FIRST_GUESS: f64 = 64.0;

/// Result of one thread.
struct LaneEnd {
    pub engine: &'static str,
    pub elapsed: Duration,
    pub gaps: Option<Gaps>,
    pub failure: Option<Error>,
}

/// Held by a thread until it has sent its frames; never used to send anything.
struct Done(#[expect(dead_code, reason = "the channel's end is the message")] mpsc::Sender<()>);

fn run_thread(plan: &Sending<'_>, shared: &Shared, number: usize, open: &Open<'_>, done: Done) -> Result<LaneEnd> {
    let opened = plan.cpus[number].map_or(Ok(()), pin_to_cpu).and_then(|()| open(number)).and_then(
        |(mut engine, mut source)| {
            let early = if share(total(plan), number, plan.cpus.len()) > 0 {
                engine.prepare(source.as_mut())?
            } else {
                Sent::default()
            };
            Ok((engine, source, early))
        },
    );
    if opened.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
    }
    if let Ok((_, _, early)) = &opened {
        shared.add_counts(number, early);
    }
    shared.ready.wait();
    shared.go.wait();
    let (mut engine, mut source, early) = opened?;
    precise_sleeps();
    let mut lane = Lane::new(plan, shared, number);
    lane.pacer.record(early.frames, early.bytes);
    lane.count(&early);
    if !shared.failed.load(Ordering::Relaxed) {
        lane.failure = lane.send_all(engine.as_mut(), source.as_mut()).err();
        match engine.finish() {
            Ok(sent) => lane.note(&sent),
            Err(error) => lane.failure = lane.failure.or(Some(error)),
        }
    }
    if lane.failure.is_some() {
        // Without this, the other threads would never end.
        shared.stop.store(true, Ordering::Relaxed);
    }
    let elapsed = lane.start.elapsed();
    drop(done);
    drop(shared.verified.lock());
    Ok(LaneEnd { engine: engine.name(), elapsed, gaps: lane.gaps, failure: lane.failure })
}

struct Lane<'a> {
    plan: &'a Sending<'a>,
    shared: &'a Shared,
    number: usize,
    start: Instant,
    pacer: Pacer,
    /// Number of frames of this thread.
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
                // The threads' first frames are spread over the gap between two frames of one thread.
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

    /// Returns the approximate length of a frame.
    fn mean(&self) -> f64 {
        if self.frames == 0 { FIRST_GUESS } else { self.bytes as f64 / self.frames as f64 }
    }

    fn send_all(&mut self, engine: &mut dyn Engine, source: &mut dyn Source) -> Result<()> {
        let deadline = time(self.plan).map(|d| d.as_nanos() as u64);
        let mut last_progress = 0;
        while self.frames < self.count && !self.shared.stop.load(Ordering::Relaxed) {
            let now = self.now();
            // With a rate, the number of frames decides, and the last ones may be a little late.
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
                    format!("the device accepted no frame for {} seconds: {}", PATIENCE.as_secs(), engine.suspicion()),
                ));
            }
        }
        self.wait_for_end(deadline);
        Ok(())
    }

    /// Waits until the end of the requested time, which includes the last frame's gap.
    fn wait_for_end(&self, deadline: Option<u64>) {
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
        self.pacer.record(sent.frames, sent.bytes);
        self.note(sent);
    }

    fn note(&mut self, sent: &Sent) {
        self.count(sent);
        self.shared.add_counts(self.number, sent);
    }

    fn count(&mut self, sent: &Sent) {
        self.frames += sent.frames;
        self.bytes += sent.bytes;
    }

    /// Sleeps while the sleep is sure to end in time, and polls the clock for the rest. Returns early now and then, so
    /// that the end of the run is noticed.
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

/// Returns the latest end of the run: the given time, or the sum of the phases.
fn time(plan: &Sending<'_>) -> Option<Duration> {
    let phases = plan.profile.map(|profile| Duration::from_secs_f64(profile.seconds()));
    match (plan.duration, phases) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Returns the total number of frames of all threads: the count, or the product of rate and time.
fn total(plan: &Sending<'_>) -> u64 {
    let whole = |frames: f64| frames.round().max(1.0) as u64;
    let by_time = match (plan.profile, plan.rate, plan.duration) {
        (Some(profile), _, None) if profile.overhead.is_none() => whole(profile.total()),
        (None, Rate::Frames(rate), Some(time)) => whole(rate * time.as_secs_f64()),
        _ => u64::MAX,
    };
    plan.count.unwrap_or(u64::MAX).min(by_time)
}

/// Returns the number of frames in a run with a rate and a time.
fn asked(plan: &Sending<'_>) -> Option<u64> {
    Some(total(plan)).filter(|&frames| frames != u64::MAX)
}

/// Returns one thread's share. Shares differ by one at most, and each share of an endless total is endless.
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
    use crate::engine::Sent;
    use crate::pace::Phase;
    use crate::source::{InTurn, Next};

    /// An engine that accepts every other frame.
    #[derive(Debug)]
    struct Half {
        waiting: Option<usize>,
        offered: u64,
    }

    impl Engine for Half {
        fn name(&self) -> &'static str {
            "half"
        }

        fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
            let mut sent = Sent::default();
            let mut room = [0; 64];
            for _ in 0..want {
                if self.waiting.is_none() {
                    match source.next(now, &mut room)? {
                        Next::Frame(length) => self.waiting = Some(length),
                        Next::Later(time) => sent.later = Some(time),
                        Next::End => sent.ended = true,
                    }
                }
                let Some(length) = self.waiting else { break };
                self.offered += 1;
                if self.offered.is_multiple_of(2) {
                    sent.refused += 1;
                } else {
                    sent.frames += 1;
                    sent.bytes += length as u64;
                    self.waiting = None;
                }
            }
            Ok(sent)
        }

        fn most(&self) -> u64 {
            16
        }
    }

    fn plan(cpus: &[Option<usize>]) -> Sending<'_> {
        Sending {
            namespace: None,
            interface: "x",
            device: None,
            cpus,
            rate: Rate::Unlimited,
            profile: None,
            burst: 1,
            count: None,
            duration: None,
        }
    }

    fn half(frame: usize) -> Result<(Box<dyn Engine>, Box<dyn Source>)> {
        let engine = Half { waiting: None, offered: 0 };
        Ok((Box::new(engine), Box::new(InTurn::new(vec![vec![0; frame]]))))
    }

    #[test]
    fn count_is_exact_over_all_threads_despite_refusals() {
        let plan = Sending { count: Some(1001), ..plan(&[None, None, None]) };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!((report.figures.frames, report.figures.bytes), (1001, 60_060));
        assert!(report.figures.refused > 0);
        assert_eq!((report.end, report.engine), (End::Done, "half"));
    }

    #[test]
    fn rate_and_time_give_a_count() {
        let plan =
            Sending { rate: Rate::Frames(10_000.0), duration: Some(Duration::from_millis(300)), ..plan(&[None, None]) };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!(report.figures.frames, 3000);
        assert!(report.figures.elapsed >= Duration::from_millis(300));
        assert!(report.gaps.is_some());
    }

    /// A rate beyond the possible does not prolong the run.
    #[test]
    fn time_ends_a_run_whose_rate_is_not_reached() {
        let plan = Sending { rate: Rate::Frames(1e12), duration: Some(Duration::from_millis(100)), ..plan(&[None]) };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!((report.end, report.asked), (End::Done, Some(100_000_000_000)));
        assert!(report.figures.frames < 100_000_000_000);
    }

    #[test]
    fn phases_give_a_count_and_a_time() {
        let phase = |seconds, from, to| Phase { seconds, from, to, steps: 0, burst: 0 };
        let phases = [phase(0.1, 1000.0, 1000.0), phase(0.2, 1000.0, 3000.0)];
        let profile = Profile::new(&phases, 1, None).unwrap();
        let plan = Sending { profile: Some(&profile), ..plan(&[None, None]) };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!(report.figures.frames, 500);
        assert!(report.figures.elapsed >= Duration::from_millis(300));
    }

    const SLOW: Duration = Duration::from_millis(100);

    /// An engine that is slow to prepare, and sends a frame meanwhile.
    #[derive(Debug)]
    struct Slow(Half);

    impl Engine for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn prepare(&mut self, source: &mut dyn Source) -> Result<Sent> {
            std::thread::sleep(SLOW);
            self.0.send(source, 0, 1)
        }

        fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
            self.0.send(source, now, want)
        }

        fn most(&self) -> u64 {
            self.0.most()
        }
    }

    #[test]
    fn preparation_counts_in_frames_but_not_in_time() {
        let open = |_| {
            let engine = Half { waiting: None, offered: 0 };
            let source: Box<dyn Source> = Box::new(InTurn::new(vec![vec![0; 60]]));
            Ok((Box::new(Slow(engine)) as Box<dyn Engine>, source))
        };
        let plan = Sending { count: Some(1), ..plan(&[None, None]) };
        let start = Instant::now();
        let report = run(&plan, &open, &mut |_| true).unwrap();
        assert_eq!(report.figures.frames, 1);
        assert!(report.figures.elapsed + SLOW <= start.elapsed());
    }

    #[test]
    fn caller_can_stop_the_run() {
        let mut calls = 0;
        let report = run(&plan(&[None]), &|_| half(60), &mut |figures| {
            calls += 1;
            figures.frames == 0
        });
        assert_eq!(report.unwrap().end, End::Stopped);
        assert!(calls >= 1);
    }

    #[test]
    fn engine_that_does_not_open_ends_all_threads() {
        let open = |number| match number {
            1 => Err(Error::failed("cannot open", "a test")),
            _ => half(60),
        };
        let error = run(&plan(&[None, None]), &open, &mut |_| true).unwrap_err();
        assert!(error.to_string().contains("a test"));
    }

    #[test]
    fn end_of_the_source_ends_the_run() {
        let open = |_| {
            let (engine, _) = half(0)?;
            let source: Box<dyn Source> = Box::new(InTurn::new(Vec::new()));
            Ok((engine, source))
        };
        let report = run(&plan(&[None]), &open, &mut |_| true).unwrap();
        assert_eq!((report.figures.frames, report.end), (0, End::Done));
    }

    #[test]
    fn even_frames_have_no_error_and_bursts_have() {
        let mut gaps = Gaps::new();
        for n in 0..100 {
            gaps.note(n * 1000, n * 1000, 1000.0, 1);
        }
        assert_eq!(gaps.percentiles().max, 0);
        gaps.note(100_500, 100_000, 1000.0, 1);
        assert_eq!(gaps.percentiles().max, 500);
        let mut bursts = Gaps::new();
        bursts.note(0, 0, 1000.0, 4);
        bursts.note(4000, 4000, 1000.0, 4);
        let errors = bursts.percentiles();
        assert_eq!(errors.p50, 1000);
        assert!((3000..=3010).contains(&errors.max), "{errors:?}");
    }

    #[test]
    fn shares_add_up_to_the_total() {
        for (total, threads) in [(1, 3), (100, 7), (u64::MAX - 1, 4)] {
            let sum: u128 = (0..threads).map(|n| u128::from(share(total, n, threads))).sum();
            assert_eq!(sum, u128::from(total));
        }
        assert_eq!(share(u64::MAX, 1, 2), u64::MAX);
    }
}
