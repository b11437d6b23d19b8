//! A run from its first frame to its last: threads on their CPUs, the account, the deadline, the end.

mod gaps;
mod lane;

pub use gaps::{Gaps, Percentiles};

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::{Error, Result};

use crate::engine::Engine;
use crate::pace::{Profile, Rate};
use crate::source::Source;

/// How often the caller is shown the figures, and asked whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is the same for all threads.
#[derive(Clone, Debug)]
pub struct Sending<'a> {
    pub namespace: Option<&'a Namespace>,
    /// For messages.
    pub interface: &'a str,
    /// The CPU of each thread; there are as many threads as entries. `None`: wherever the kernel puts it.
    pub cpus: &'a [Option<usize>],
    pub rate: Rate,
    /// A rate that changes over time, instead of `rate`; the run ends when it does.
    pub profile: Option<&'a Profile>,
    /// Frames that go together.
    pub burst: u64,
    /// How many frames in all; `None`: until the source or the time ends.
    pub count: Option<u64>,
    pub duration: Option<Duration>,
}

/// What there is to see of a run while it goes on.
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

    /// Bits a second, each frame with this many bytes beside its own.
    pub fn bits_per_second(&self, overhead: u32) -> f64 {
        let bytes = self.bytes + self.frames * u64::from(overhead);
        bytes as f64 * 8.0 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All was sent that was to be sent, or the time was over.
    Done,
    /// The caller wished so.
    Stopped,
}

/// What was sent.
#[derive(Clone, Debug)]
pub struct Report {
    pub figures: Figures,
    pub engine: &'static str,
    pub end: End,
    /// How many frames the rate and the time asked for; `None` where one of the two was not given.
    pub asked: Option<u64>,
    /// How far the gaps between frames were from those asked for; `None` without a rate.
    pub gaps: Option<Gaps>,
    /// What ended the run early, where something did: what was sent until then is counted.
    pub failure: Option<Error>,
}

/// What one thread shows to the others: on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shown {
    frames: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

/// Opens what a thread sends with. It is called on that thread, in the namespace and on its CPU, with the thread's
/// number.
pub type Open<'a> = dyn Fn(usize) -> Result<(Box<dyn Engine>, Box<dyn Source>)> + Sync + 'a;

/// Sends. `watch` sees the figures about ten times a second and says whether to go on.
pub fn run(
    plan: &Sending<'_>,
    open: &Open<'_>,
    watch: &mut dyn FnMut(&Figures) -> bool,
) -> Result<Report> {
    plan.rate.check()?;
    if plan.cpus.is_empty() {
        return Err(Error::usage(
            "cannot send",
            "there is no thread to send from",
        ));
    }
    let shared = Shared {
        stop: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        ready: Barrier::new(plan.cpus.len() + 1),
        shown: plan.cpus.iter().map(|_| Shown::default()).collect(),
    };
    std::thread::scope(|scope| {
        let (done, finished) = mpsc::channel();
        let lanes: Vec<_> = (0..plan.cpus.len())
            .map(|number| {
                let (shared, done) = (&shared, done.clone());
                scope.spawn(move || {
                    let lane = || lane::drive(plan, shared, number, open);
                    let result = run_maybe_in(plan.namespace, lane).and_then(|result| result);
                    // The main thread waits for it as long as there are threads: it cannot be gone.
                    let _ = done.send(());
                    result
                })
            })
            .collect();
        drop(done);
        shared.ready.wait();
        let start = Instant::now();
        let mut stopped = false;
        // Each thread says that it is done; the channel ends when the last one has.
        loop {
            match finished.recv_timeout(LOOK_EVERY) {
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(()) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if !stopped && !watch(&shared.figures(start.elapsed())) {
                        stopped = true;
                        shared.stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
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
        Ok(Report {
            figures: shared.figures(elapsed.unwrap_or_default()),
            engine: outcomes.first().map_or("", |one| one.engine),
            end: if stopped { End::Stopped } else { End::Done },
            asked: lane::asked(plan),
            gaps,
            failure: outcomes.into_iter().find_map(|one| one.failure),
        })
    })
}

/// What the threads of a run share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Some thread could not open its engine: none is to start.
    failed: AtomicBool,
    ready: Barrier,
    shown: Vec<Shown>,
}

impl Shared {
    fn figures(&self, elapsed: Duration) -> Figures {
        let sum = |of: fn(&Shown) -> &AtomicU64| {
            let each = self.shown.iter().map(|one| of(one).load(Ordering::Relaxed));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Sent;
    use crate::pace::Phase;
    use crate::source::{InTurn, Next};

    /// Takes every other frame that it is offered.
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
            cpus,
            rate: Rate::Unlimited,
            profile: None,
            burst: 1,
            count: None,
            duration: None,
        }
    }

    fn half(frame: usize) -> Result<(Box<dyn Engine>, Box<dyn Source>)> {
        let engine = Half {
            waiting: None,
            offered: 0,
        };
        Ok((
            Box::new(engine),
            Box::new(InTurn::new(vec![vec![0; frame]])),
        ))
    }

    #[test]
    fn a_count_is_exact_over_all_threads_in_spite_of_refusals() {
        let plan = Sending {
            count: Some(1001),
            ..plan(&[None, None, None])
        };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!(
            (report.figures.frames, report.figures.bytes),
            (1001, 60_060)
        );
        assert!(report.figures.refused > 0);
        assert_eq!((report.end, report.engine), (End::Done, "half"));
    }

    #[test]
    fn a_rate_and_a_time_make_a_count() {
        let plan = Sending {
            rate: Rate::Frames(10_000.0),
            duration: Some(Duration::from_millis(300)),
            ..plan(&[None, None])
        };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!(report.figures.frames, 3000);
        assert!(report.figures.elapsed >= Duration::from_millis(300));
        assert!(report.gaps.is_some());
    }

    /// A rate beyond what is possible does not prolong the run.
    #[test]
    fn a_time_ends_a_run_whose_rate_is_not_reached() {
        let plan = Sending {
            rate: Rate::Frames(1e12),
            duration: Some(Duration::from_millis(100)),
            ..plan(&[None])
        };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!(
            (report.end, report.asked),
            (End::Done, Some(100_000_000_000))
        );
        assert!(report.figures.frames < 100_000_000_000);
    }

    #[test]
    fn phases_make_a_count_and_a_time() {
        let phase = |seconds, from, to| Phase {
            seconds,
            from,
            to,
            steps: 0,
            burst: 0,
        };
        let phases = [phase(0.1, 1000.0, 1000.0), phase(0.2, 1000.0, 3000.0)];
        let profile = Profile::new(&phases, 1, None).unwrap();
        let plan = Sending {
            profile: Some(&profile),
            ..plan(&[None, None])
        };
        let report = run(&plan, &|_| half(60), &mut |_| true).unwrap();
        assert_eq!(report.figures.frames, 500);
        assert!(report.figures.elapsed >= Duration::from_millis(300));
    }

    const SLOW: Duration = Duration::from_millis(100);

    /// Takes its time before the run, and sends a frame meanwhile.
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
    fn what_comes_before_the_run_counts_in_frames_and_not_in_time() {
        let open = |_| {
            let engine = Half {
                waiting: None,
                offered: 0,
            };
            let source: Box<dyn Source> = Box::new(InTurn::new(vec![vec![0; 60]]));
            Ok((Box::new(Slow(engine)) as Box<dyn Engine>, source))
        };
        let plan = Sending {
            count: Some(1),
            ..plan(&[None, None])
        };
        let start = Instant::now();
        let report = run(&plan, &open, &mut |_| true).unwrap();
        assert_eq!(report.figures.frames, 1);
        assert!(report.figures.elapsed + SLOW <= start.elapsed());
    }

    #[test]
    fn the_caller_can_stop_it() {
        let mut looks = 0;
        let report = run(&plan(&[None]), &|_| half(60), &mut |figures| {
            looks += 1;
            figures.frames == 0
        });
        assert_eq!(report.unwrap().end, End::Stopped);
        assert!(looks >= 1);
    }

    #[test]
    fn an_engine_that_does_not_open_ends_all_threads() {
        let open = |number| match number {
            1 => Err(Error::failed("cannot open", "a test")),
            _ => half(60),
        };
        let error = run(&plan(&[None, None]), &open, &mut |_| true).unwrap_err();
        assert!(error.to_string().contains("a test"));
    }

    #[test]
    fn a_source_that_ends_ends_the_run() {
        let open = |_| {
            let (engine, _) = half(0)?;
            let source: Box<dyn Source> = Box::new(InTurn::new(Vec::new()));
            Ok((engine, source))
        };
        let report = run(&plan(&[None]), &open, &mut |_| true).unwrap();
        assert_eq!((report.figures.frames, report.end), (0, End::Done));
    }
}
