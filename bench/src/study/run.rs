//! Executes the cases of experiments: repetitions are interleaved, so that other work on the machine affects all
//! series; results are saved at once; failures are recorded once and not tried again.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use trawl_sys::{Error, Result};

use super::catalogue::{self, Entry};
use super::definition::Profile;
use super::{Bench, Case, Measured, Stop};
use crate::machine::{self, Sample};
use crate::model::{Experiment, Failure, Finding, Report, Request, Run, SCHEMA};
use crate::peers::Peers;
use crate::results;

/// Progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    pub experiment: String,
    pub series: String,
    pub x: f64,
    pub repetition: u32,
    pub done: usize,
    pub total: usize,
    pub left: Option<Duration>,
}

/// Runs the request, or the rest of it if `before` holds a part. `watch` returns false to end the run.
pub fn run(
    request: &Request,
    bench: &Bench,
    directory: &Path,
    before: Option<Report>,
    watch: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Report> {
    let plan = |name: &String| Planned::new(catalogue::find(name)?, request);
    let plans = request.experiments.iter().map(plan);
    let plans = plans.collect::<Result<Vec<_>>>()?;
    std::fs::create_dir_all(directory).map_err(|e| Error::os(format!("cannot make {}", directory.display()), e))?;
    let began = SystemTime::UNIX_EPOCH.elapsed();
    let report = before.unwrap_or_else(|| Report {
        schema: SCHEMA.to_owned(),
        trawl: env!("CARGO_PKG_VERSION").to_owned(),
        started_unix: began.map_or(0, |since| since.as_secs()),
        request: request.clone(),
        conditions: machine::conditions(trawl_lab::PairOptions::default().queues),
        peers: bench.peers.records().to_vec(),
        configurations: Vec::new(),
        experiments: Vec::new(),
        complete: false,
    });
    results::save(directory, &report)?;
    let most = plans.iter().map(|plan| plan.repetitions).max().unwrap_or(0);
    let mut runner =
        Runner { bench, directory, clock: Clock::new(plans.iter().map(Planned::total).sum(), request), report, watch };
    // One repetition of every experiment before the next: other work on the machine affects all of them.
    for repetition in 1..=most {
        for plan in plans.iter().filter(|plan| repetition <= plan.repetitions) {
            if !runner.repeat(plan, repetition)? {
                return Ok(runner.report);
            }
        }
    }
    runner.report.complete = true;
    results::save(directory, &runner.report)?;
    Ok(runner.report)
}

fn finish(entry: &Entry, experiment: &mut Experiment) {
    experiment.summarise();
    experiment.finding = if experiment.points.is_empty() {
        Finding { shows: "nothing was measured".to_owned(), ..Finding::default() }
    } else {
        (entry.judge)(experiment)
    };
    // Without a comparison, the reason is the result.
    if experiment.finding.sentence.is_empty() {
        let why: BTreeSet<String> =
            experiment.failures.iter().map(|one| format!("{}.", one.message.trim_end_matches('.'))).collect();
        experiment.finding.sentence = why.into_iter().collect::<Vec<_>>().join(" ");
    }
}

/// Budget of a quick run, which ends within 15 minutes: no repetition begins that would end later than this; the rest
/// is for cases that are slower than before, and for the report.
const QUICK: Duration = Duration::from_secs(13 * 60);

/// The progress of a run, and an estimate of the remaining time.
struct Clock {
    total: usize,
    done: usize,
    measured: usize,
    began: Instant,
    /// Limit of the run's duration; `None`: unlimited.
    budget: Option<Duration>,
}

impl Clock {
    fn new(total: usize, request: &Request) -> Self {
        let is_short = request.profile == Profile::Quick && request.repeat.is_none();
        Self { total, done: 0, measured: 0, began: Instant::now(), budget: is_short.then_some(QUICK) }
    }

    /// Returns whether a repetition of this duration ends within the budget.
    fn has_time_for(&self, seconds: f64) -> bool {
        self.budget.is_none_or(|budget| self.began.elapsed().as_secs_f64() + seconds < budget.as_secs_f64())
    }

    fn remaining(&self) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        let each = elapsed.checked_div(u32::try_from(self.measured).ok()?)?;
        let left = each.checked_mul(u32::try_from(self.total.saturating_sub(self.done)).ok()?)?;
        let until = self.budget.map(|budget| budget.saturating_sub(elapsed));
        Some(until.map_or(left, |until| until.min(left)))
    }
}

/// One experiment's cases.
struct Planned {
    entry: &'static Entry,
    cases: Vec<Case>,
    repetitions: u32,
    empty: Experiment,
}

impl Planned {
    fn new(entry: &'static Entry, request: &Request) -> Result<Self> {
        let definition = entry.definition()?;
        let space = definition.space(request.profile, &request.set)?;
        let repetitions = match request.repeat {
            Some(count) => count,
            None => space.number("repeat")? as u32,
        };
        let names_a_tap = |series: &str| {
            let mut parts = series.split([' ', ',']);
            parts.any(|word| request.taps.iter().any(|tap| tap == word))
        };
        let wanted = |case: &Case| match Peers::of_series(&case.series) {
            Some(_) if request.no_peers => false,
            Some(peer) => request.peers.is_empty() || request.peers.iter().any(|one| one == peer),
            None if request.taps.is_empty() || !case.series.starts_with("trawl") => true,
            None => names_a_tap(&case.series),
        };
        let mut cases = (entry.cases)(&space)?;
        cases.retain(wanted);
        let empty = Experiment {
            command: command(&definition.name, request),
            definition,
            parameters: space.as_text(),
            ..Experiment::default()
        };
        Ok(Self { entry, cases, repetitions, empty })
    }

    fn total(&self) -> usize {
        self.cases.len() * self.repetitions as usize
    }

    /// Returns the index of the experiment in the report; a new one is appended.
    fn index_in(&self, report: &mut Report) -> usize {
        let name = &self.empty.definition.name;
        let mut all = report.experiments.iter();
        let found = all.position(|one| one.definition.name == *name);
        found.unwrap_or_else(|| {
            report.experiments.push(self.empty.clone());
            report.experiments.len() - 1
        })
    }
}

/// A run in progress.
struct Runner<'a> {
    bench: &'a Bench,
    directory: &'a Path,
    clock: Clock,
    report: Report,
    watch: &'a mut dyn FnMut(&Progress) -> bool,
}

impl Runner<'_> {
    /// Runs one repetition of an experiment, if there is time; false if it was interrupted.
    fn repeat(&mut self, plan: &Planned, repetition: u32) -> Result<bool> {
        let at = plan.index_in(&mut self.report);
        let experiment = &mut self.report.experiments[at];
        let each = experiment.seconds / f64::from((repetition - 1).max(1));
        if repetition > 1 && !self.clock.has_time_for(each) {
            experiment.repetitions_left_out += 1;
            self.clock.done += plan.cases.len();
            return Ok(true);
        }
        let began = Instant::now();
        let whole = self.run_cases(plan, repetition, at)?;
        let experiment = &mut self.report.experiments[at];
        experiment.seconds += began.elapsed().as_secs_f64();
        finish(plan.entry, experiment);
        results::save(self.directory, &self.report)?;
        results::save_csv(self.directory, &self.report)?;
        Ok(whole)
    }

    fn run_cases(&mut self, plan: &Planned, repetition: u32, at: usize) -> Result<bool> {
        let earlier = &self.report.experiments[at];
        let has_worked = |series: &str| earlier.runs.iter().any(|run| run.series == series);
        let failed = earlier.failures.iter().map(|failure| &failure.series);
        let mut given_up: BTreeSet<String> = failed.filter(|series| !has_worked(series)).cloned().collect();
        // The order alternates, so that no case has an advantage from being first.
        let mut order: Vec<&Case> = plan.cases.iter().collect();
        if repetition.is_multiple_of(2) {
            order.reverse();
        }
        for case in order {
            let progress = Progress {
                experiment: plan.entry.name.to_owned(),
                series: case.series.clone(),
                x: case.x,
                repetition,
                done: self.clock.done,
                total: self.clock.total,
                left: self.clock.remaining(),
            };
            if !(self.watch)(&progress) {
                return Ok(false);
            }
            self.clock.done += 1;
            let key = (case.series.as_str(), case.x, repetition);
            let mut done = self.report.experiments[at].runs.iter();
            let is_done = done.any(|run| (run.series.as_str(), run.x, run.repetition) == key);
            if is_done || given_up.contains(&case.series) {
                continue;
            }
            let result = measure(case, repetition, self.bench);
            // An interruption also reaches the measured programs: their results do not count.
            if !(self.watch)(&progress) {
                return Ok(false);
            }
            let experiment = &mut self.report.experiments[at];
            match result {
                Ok(run) => {
                    self.clock.measured += 1;
                    experiment.runs.push(run);
                }
                Err(stop) => {
                    if !experiment.runs.iter().any(|run| run.series == case.series) {
                        given_up.insert(case.series.clone());
                    }
                    note(experiment, &case.series, stop);
                }
            }
            experiment.summarise();
            self.report.configurations = self.bench.tuned.all();
            results::save(self.directory, &self.report)?;
        }
        Ok(true)
    }
}

/// Number of times that a case is measured if other work disturbs it.
const ATTEMPTS: u32 = 3;

/// Measures a case until no other work disturbs it; the last attempt counts in any case.
fn measure(case: &Case, repetition: u32, bench: &Bench) -> std::result::Result<Run, Stop> {
    let attempt = || -> std::result::Result<Run, Stop> {
        let sample = Sample::now();
        let measured = (case.run)(bench)?;
        Ok(as_run(case, repetition, measured, &sample))
    };
    let mut run = attempt()?;
    for _ in 1..ATTEMPTS {
        if run.disturbed.is_none() {
            break;
        }
        run = attempt()?;
    }
    Ok(run)
}

fn as_run(case: &Case, repetition: u32, measured: Measured, sample: &Sample) -> Run {
    let (cpus, disturbed) = measured.cpus.unwrap_or_else(|| sample.until_now());
    let expected = measured.expected.or(measured.sent);
    let mut claim = measured.claim;
    if let Some(claim) = &mut claim {
        claim.wrong = is_wrong(claim, expected, measured.recorded);
    }
    Run {
        series: case.series.clone(),
        x: case.x,
        repetition,
        // JSON has only finite numbers, and the median of no values is not finite.
        values: (measured.values.into_iter())
            .filter(|(_, value)| value.is_finite())
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        sent: measured.sent,
        expected,
        recorded: measured.recorded,
        lost: expected.zip(measured.recorded).map(|(expected, recorded)| expected.saturating_sub(recorded)),
        claim,
        seconds: measured.seconds,
        cpus,
        memory_bytes: measured.memory_bytes,
        disturbed,
    }
}

/// Returns whether a claim is wrong: the file holds another number, or more than one in a thousand lost packets are not
/// admitted.
fn is_wrong(claim: &crate::model::Claim, expected: Option<u64>, recorded: Option<u64>) -> bool {
    let (Some(expected), Some(recorded)) = (expected, recorded) else {
        return false;
    };
    let off = |claimed: u64, counted: u64| claimed.abs_diff(counted) * 1000 > expected.max(1000);
    claim.recorded.is_some_and(|claimed| off(claimed, recorded))
        || claim.lost.is_some_and(|claimed| off(claimed, expected.saturating_sub(recorded)))
}

fn note(experiment: &mut Experiment, series: &str, stop: Stop) {
    let (message, expected) = match stop {
        Stop::NotHere(message) => (message, true),
        Stop::Failed(message) => (message, false),
    };
    let known = experiment.failures.iter_mut().find(|one| one.series == series && one.message == message);
    match known {
        Some(one) => one.runs += 1,
        None => experiment.failures.push(Failure { series: series.to_owned(), message, runs: 1, expected }),
    }
}

/// Returns the command that runs just this experiment again.
fn command(name: &str, request: &Request) -> String {
    let mut parts = vec![format!("trawl bench run {name} --{}", request.profile.name())];
    parts.extend(request.repeat.map(|count| format!("--repeat {count}")));
    for (option, pairs) in [("set", &request.set), ("peer", &request.peer_paths)] {
        parts.extend(pairs.iter().map(|(key, value)| format!("--{option} {key}={value}")));
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Claim;

    #[test]
    fn quick_run_has_time_for_cases_within_its_budget() {
        let quick = Request::default();
        let whole = QUICK.as_secs_f64();
        let clock = Clock::new(100, &quick);
        assert!(clock.has_time_for(whole / 2.0) && !clock.has_time_for(whole));
        let repeat = Some(3);
        let asked = Request { repeat, ..quick.clone() };
        assert!(Clock::new(100, &asked).has_time_for(whole));
        let profile = Profile::Full;
        assert!(Clock::new(100, &Request { profile, ..quick }).has_time_for(whole));
    }

    #[test]
    fn claim_that_hides_losses_is_wrong() {
        let claim = |recorded, lost| Claim { recorded, lost, wrong: false };
        let wrong = |one: &Claim| is_wrong(one, Some(100_000), Some(60_000));
        assert!(!wrong(&claim(Some(60_000), Some(40_000))));
        assert!(wrong(&claim(Some(60_000), Some(0))));
        assert!(wrong(&claim(Some(100_000), None)));
        assert!(!wrong(&claim(None, None)));
        assert!(!is_wrong(&claim(Some(1), Some(1)), None, None));
    }

    #[test]
    fn figure_of_nothing_is_left_out() {
        let case = Case::new("a", 1.0, |_| Ok(Measured::default()));
        let measured = Measured { values: [("mpps", 1.0), ("delay_p50_us", f64::NAN)].into(), ..Measured::default() };
        let run = as_run(&case, 1, measured, &Sample::now());
        assert_eq!(run.values.into_keys().collect::<Vec<_>>(), ["mpps"]);
    }

    #[test]
    fn a_failure_is_recorded_once() {
        let mut experiment = Experiment::default();
        for _ in 0..3 {
            note(&mut experiment, "a", Stop::Failed("why".to_owned()));
        }
        note(&mut experiment, "b", Stop::NotHere("why".to_owned()));
        let found: Vec<_> = experiment.failures.iter().map(|one| (one.runs, one.expected)).collect();
        assert_eq!(found, [(3, false), (1, true)]);
    }
}
