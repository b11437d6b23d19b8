//! The time that programs need for packets, without probes and with the kernel's own clocks.
//!
//! The kernel measures a run in steps of 10 ns and adds the time of reading its clock. A path's time is therefore the
//! median of many runs, less the median of a program that does nothing. Runs of all programs alternate, so that what
//! slows the machine down slows all of them.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use trawl_bpf::program::{LoadOptions, SCHED_CLS, XDP, returning};
use trawl_bpf::test_run::{self, Arrival, Outcome, Runner};
use trawl_packet::verdict::VerdictKind;
use trawl_sys::{Error, Result};

use crate::clock::Moment;
use crate::coverage::Path;
use crate::report::{Method, PathTiming, SourceLine, Timing};
use crate::samples::{Sample, Samples};
use crate::side::Side;

/// Rounds of runs of a packet, from whose differences the noise is computed.
const ROUNDS: usize = 8;
/// Runs of each program in a round.
const RUNS: usize = 192;
/// Runs that precede the measured ones.
const WARM_UP: usize = 16;
/// Runs in one call of the kernel, and such calls for each program.
const REPEATS: u32 = 10_000;
const REPEATED_ROUNDS: usize = 3;
/// Time for calls with many runs, each of which takes 15 ms more than its runs.
const REPEATED_TIME: Duration = Duration::from_secs(2);
/// Time for all paths.
const TIME: Duration = Duration::from_secs(15);
/// Standard errors beyond which a difference is not noise.
const SURE: f64 = 3.0;
/// Verdicts of the program that does nothing: `XDP_PASS` and `TC_ACT_OK`.
pub(crate) const PASS: i32 = 2;
const OK: i32 = 0;

/// Positions of the times of one path: the program that does nothing, the tested program, the same program loaded again,
/// and the other program.
const EMPTY: usize = 0;
const TESTED: usize = 1;
const TWIN: usize = 2;
const OTHER: usize = 3;

/// Programs without probes, ready to be timed.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    kind: VerdictKind,
    empty: OwnedFd,
    runner: Runner,
    /// The tested program, the same program loaded again, and the other program.
    sides: Vec<Side>,
    begun: Instant,
    /// Time that calls with many runs took.
    repeated: Duration,
}

/// The times of a path in nanoseconds, one for each round.
#[derive(Clone, Debug, Default, PartialEq)]
struct Times {
    rounds: Vec<Vec<f64>>,
    method: Method,
}

/// The path of a packet from the maps' first state, and the last line that ran.
pub(crate) type Trace = (Path, Option<SourceLine>);

impl Stopwatch {
    /// Prepares the tested program, the same program loaded again, and the other program if there is one.
    pub fn new(kind: VerdictKind, sides: Vec<Side>) -> Result<Self> {
        let (program_type, verdict) = match kind {
            VerdictKind::Xdp => (XDP, PASS),
            VerdictKind::Tc => (SCHED_CLS, OK),
        };
        let empty = LoadOptions::new("trawl_nothing", program_type)
            .load(&returning(verdict))
            .map_err(|e| Error::os("cannot load a program that does nothing", e))?;
        Ok(Self { kind, empty, runner: Runner::default(), sides, begun: Instant::now(), repeated: Duration::ZERO })
    }

    /// Times the paths, the most frequent first. `trace` runs a packet from the maps' first state under coverage.
    pub fn measure(
        mut self,
        samples: &Samples,
        mut trace: impl FnMut(&Sample) -> Result<Trace>,
        mut progress: impl FnMut(&str),
    ) -> Result<Timing> {
        let paths = samples.sorted();
        self.forget_unchanged(paths.iter().filter_map(|(_, one)| one.samples.first()))?;
        let mut timing = Timing { not_timed: samples.others, ..Timing::default() };
        let mut all = Vec::new();
        for (number, (path, one)) in paths.iter().enumerate() {
            progress(&format!("timing path {} of {}", number + 1, paths.len()));
            let timed = if self.begun.elapsed() < TIME { self.path(*path, &one.samples, &mut trace)? } else { None };
            let Some((line, verdict, times)) = timed else {
                timing.not_timed += one.packets;
                continue;
            };
            timing.paths.push(PathTiming {
                packets: one.packets,
                verdict: crate::trial::name_of(self.kind, verdict),
                line,
                ns: times.above_empty(TESTED),
                against_ns: (self.sides.len() >= OTHER).then(|| times.above_empty(OTHER)),
                method: times.method,
            });
            all.push((one.packets, times));
        }
        weigh(&mut timing, &all);
        Ok(timing)
    }

    /// Runs packets to learn which maps programs change, since the others need not be brought back.
    fn forget_unchanged<'s>(&mut self, samples: impl Iterator<Item = &'s Sample>) -> Result<()> {
        for sample in samples {
            for side in &mut self.sides {
                run_plain(side, &sample.packet.bytes)?;
            }
        }
        self.sides.iter_mut().try_for_each(|side| side.maps.forget_unchanged())
    }

    /// Times the first sample that has the path from the maps' first state. Returns none if there is no such sample, or
    /// if its verdict changes from run to run.
    fn path(
        &mut self,
        path: Path,
        samples: &[Sample],
        trace: &mut impl FnMut(&Sample) -> Result<Trace>,
    ) -> Result<Option<(Option<SourceLine>, u32, Times)>> {
        for sample in samples {
            let (found, line) = trace(sample)?;
            if found != path {
                continue;
            }
            let packet = &sample.packet.bytes;
            let Some((verdict, mut times)) = self.single(packet)? else {
                continue;
            };
            if let Some(repeated) = self.repeated(packet)? {
                times = repeated;
            }
            return Ok(Some((line, verdict, times)));
        }
        Ok(None)
    }

    fn reset(&self) -> Result<()> {
        self.sides.iter().try_for_each(|side| side.maps.reset())
    }

    /// Times single runs, each with the packet as it was recorded. Runs with another verdict than the first do not count;
    /// if they are the most, there is no result.
    fn single(&mut self, packet: &[u8]) -> Result<Option<(u32, Times)>> {
        self.reset()?;
        let programs = self.sides.len() + 1;
        let mut verdicts = vec![None; programs];
        let mut rounds = Vec::new();
        for round in 0..=ROUNDS {
            let mut durations: Vec<Vec<u64>> = vec![Vec::with_capacity(RUNS); programs];
            for run in 0..if round == 0 { WARM_UP } else { RUNS } {
                // No program always follows the same one.
                for program in (0..programs).map(|one| (one + run) % programs) {
                    let (verdict, duration) = self.run(program, packet)?;
                    if *verdicts[program].get_or_insert(verdict) == verdict {
                        durations[program].push(duration.as_nanos() as u64);
                    }
                }
            }
            if round == 0 {
                continue;
            }
            if durations.iter().any(|one| one.len() * 2 < RUNS) {
                return Ok(None);
            }
            rounds.push(durations.iter_mut().map(|one| median(one)).collect());
        }
        let verdict = verdicts[TESTED].unwrap_or_default();
        Ok(Some((verdict, Times { rounds, method: Method::Single })))
    }

    fn run(&mut self, program: usize, packet: &[u8]) -> Result<(u32, Duration)> {
        match program.checked_sub(1) {
            Some(side) => run_plain(&mut self.sides[side], packet),
            None => {
                let empty = self.empty.as_fd();
                let outcome = match self.kind {
                    VerdictKind::Xdp => self.runner.xdp(empty, packet, Arrival::default()),
                    VerdictKind::Tc => self.runner.tc(empty, packet, 0).map(|(outcome, _)| outcome),
                };
                let Outcome { value, duration, .. } =
                    outcome.map_err(|e| Error::os("cannot run a program that does nothing", e))?;
                Ok((value, duration))
            }
        }
    }

    /// Times many runs in one call, if all programs leave the packet as it is and the time suffices: a rewritten packet
    /// would be what the next run sees.
    fn repeated(&mut self, packet: &[u8]) -> Result<Option<Times>> {
        let begun = Instant::now();
        let mut rounds = Vec::new();
        for _ in 0..REPEATED_ROUNDS {
            let mut round = Vec::new();
            for program in 0..=self.sides.len() {
                if self.repeated + begun.elapsed() > REPEATED_TIME {
                    return Ok(None);
                }
                match self.run_often(program, packet)? {
                    Some(duration) => round.push(duration),
                    None => return Ok(None),
                }
            }
            rounds.push(round);
        }
        self.repeated += begun.elapsed();
        Ok(Some(Times { rounds, method: Method::Repeated }))
    }

    /// Returns the average of many runs; none if the packet changes, or if the last verdict is not the first.
    fn run_often(&mut self, program: usize, packet: &[u8]) -> Result<Option<f64>> {
        if let Some(side) = program.checked_sub(1).map(|side| &mut self.sides[side]) {
            side.maps.reset()?;
            run_plain(side, packet)?;
            if side.left.bytes != packet {
                return Ok(None);
            }
        }
        let side = program.checked_sub(1).map(|side| &self.sides[side]);
        let fd = side.map_or_else(|| self.empty.as_fd(), AsFd::as_fd);
        let answer = match self.kind {
            VerdictKind::Xdp => test_run::xdp(fd, packet, None, REPEATS),
            VerdictKind::Tc => test_run::tc(fd, packet, REPEATS),
        };
        let answer = answer.map_err(|e| Error::os("cannot time a program", e))?;
        let is_steady = side.is_none_or(|side| side.left.verdict == answer.value);
        Ok(is_steady.then_some(answer.duration.as_nanos() as f64))
    }
}

/// Runs a program once. Returns its verdict and the duration, in which the kernel read its clock twice.
fn run_plain(side: &mut Side, packet: &[u8]) -> Result<(u32, Duration)> {
    let duration = side.run(packet, Arrival::default(), Moment::default())?;
    Ok((side.left.verdict, duration))
}

impl Times {
    /// Returns a program's time in each round, less the empty program's.
    fn rounds_above_empty(&self, program: usize) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(move |round| round[program] - round[EMPTY])
    }

    /// Returns a program's time, less the empty program's. Of rounds with many runs in one call, the fastest is the
    /// one that nothing interrupted.
    fn above_empty(&self, program: usize) -> f64 {
        match self.method {
            Method::Single => middle(self.rounds_above_empty(program).collect()).max(0.0),
            Method::Repeated => (self.sorted(program)[0] - self.sorted(EMPTY)[0]).max(0.0),
        }
    }

    fn sorted(&self, program: usize) -> Vec<f64> {
        let mut sorted: Vec<f64> = self.rounds.iter().map(|round| round[program]).collect();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Returns the square of the error of the difference between the tested program and another one: the standard error
    /// of the rounds' differences, or the distance of the two fastest rounds.
    fn variance(&self, other: usize) -> f64 {
        if self.method == Method::Repeated {
            let fastest = [TESTED, other].map(|program| self.sorted(program));
            return fastest.iter().map(|rounds| (rounds[1] - rounds[0]).powi(2)).sum();
        }
        let differences: Vec<f64> = self.rounds.iter().map(|round| round[TESTED] - round[other]).collect();
        let count = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / count;
        let squares: f64 = differences.iter().map(|one| (one - mean).powi(2)).sum();
        squares / (count - 1.0) / count
    }
}

/// Returns the median of numbers, of which there is at least one.
fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let upper = numbers.len() / 2;
    let lower = if numbers.len().is_multiple_of(2) { upper - 1 } else { upper };
    f64::midpoint(numbers[lower], numbers[upper])
}

/// Computes the averages over all packets, and the noise of the difference: the larger of its standard error and of the
/// difference between the tested program and the same program loaded again.
fn weigh(timing: &mut Timing, all: &[(u64, Times)]) {
    timing.packets = all.iter().map(|(packets, _)| packets).sum();
    if timing.packets == 0 {
        return;
    }
    let share = |packets: u64| packets as f64 / timing.packets as f64;
    let average = |program: usize| all.iter().map(|(packets, one)| share(*packets) * one.above_empty(program)).sum();
    let is_compared = all.iter().all(|(_, one)| one.rounds.iter().all(|round| round.len() > OTHER));
    let (tested, twin): (f64, f64) = (average(TESTED), average(TWIN));
    let other = if is_compared { OTHER } else { TWIN };
    let variance: f64 = all.iter().map(|(packets, one)| share(*packets).powi(2) * one.variance(other)).sum();
    timing.noise_ns = (variance.sqrt() * SURE).max((tested - twin).abs());
    timing.against_ns = is_compared.then(|| average(OTHER));
    timing.ns = tested;
}

/// Returns the median of durations that a clock with coarse steps measured: the equal durations in the middle stand for
/// durations that are evenly spread over one step.
fn median(durations: &mut [u64]) -> f64 {
    durations.sort_unstable();
    let Some(middle) = durations.get(durations.len() / 2).copied() else {
        return 0.0;
    };
    let step = durations.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| *step > 0).min().unwrap_or(0) as f64;
    let below = durations.partition_point(|one| *one < middle);
    let equal = durations.partition_point(|one| *one <= middle) - below;
    let share = (durations.len() as f64 / 2.0 - below as f64) / equal as f64;
    middle as f64 + (share - 0.5) * step
}

/// Returns the limit that was missed, if the tested program is slower by more than a share, in percent, and by more than
/// the noise.
pub(crate) fn missed(timing: &Timing, limit: f64) -> Option<String> {
    let Timing { ns, noise_ns, against_ns, .. } = timing;
    let against = (*against_ns)?;
    let slower = ns - against;
    (slower > against * limit / 100.0 && slower > *noise_ns).then(|| {
        format!(
            "{ns:.1} ns a packet are {:.1} % more than the {against:.1} ns of the other program, by more than the noise \
             ({noise_ns:.1} ns), and --slower allows {limit} %",
            slower * 100.0 / against
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_resolves_steps_of_the_clock() {
        assert_eq!(median(&mut [100, 100, 100, 110]), 100.0 + 10.0 / 6.0);
        assert_eq!(median(&mut [90, 100, 100, 110]), 100.0);
        assert_eq!(median(&mut [70, 70, 70]), 70.0);
        assert_eq!(median(&mut [70, 80, 9000]), 80.0);
        assert_eq!(median(&mut []), 0.0);
    }

    fn times(method: Method, rounds: &[[f64; 4]]) -> Times {
        Times { rounds: rounds.iter().map(|round| round.to_vec()).collect(), method }
    }

    #[test]
    fn paths_count_by_their_packets() {
        let often = times(Method::Repeated, &[[10.0, 110.0, 112.0, 60.0]; 3]);
        let rare = times(Method::Single, &[[100.0, 140.0, 142.0, 150.0]; 8]);
        let mut timing = Timing::default();
        weigh(&mut timing, &[(30, often), (10, rare)]);
        assert_eq!((timing.ns, timing.against_ns, timing.packets), (85.0, Some(50.0), 40));
        assert_eq!(timing.noise_ns, 2.0);
    }

    #[test]
    fn difference_within_the_noise_misses_no_limit() {
        let timing = |noise_ns| Timing { ns: 110.0, against_ns: Some(100.0), noise_ns, ..Timing::default() };
        assert!(missed(&timing(1.0), 5.0).is_some());
        assert_eq!(missed(&timing(11.0), 5.0), None);
        assert_eq!(missed(&timing(1.0), 10.0), None);
    }
}
