//! Captures to a file, over rates, sizes, buffers, filters and amounts (studies A and C).

use trawl_sys::Result;

use super::definition::Space;
use super::{Bench, Case, Outcome, Stop};
use crate::capture::capture;
use crate::model::{Agreement, Experiment, Finding};
use crate::recorder::{Choice, Recorder, Setting};
use crate::traffic::{Amount, Traffic, UNANSWERED, frames_per_second};

/// Share in per cent that counts as complete: all but one in a thousand. Studies give whole per cents.
const COMPLETE: f64 = 99.9;
const ONE_IN: u64 = 1000;
/// Suffix of the series that the study measured: a recorder with its defaults.
pub const AS_PUBLISHED: &str = ", as published";

pub fn rates(space: &Space) -> Result<Vec<Case>> {
    by_rate(space, &Setting::default(), &UNANSWERED)
}

pub fn filtered(space: &Space) -> Result<Vec<Case>> {
    let setting = Setting { filter: Some("ether proto 0x1111".to_owned()), one_in: Some(ONE_IN), ..Setting::default() };
    let frames = ["--ethertype", "0x1234", "--every", "1000:ethertype=0x1111"];
    by_rate(space, &setting, &frames)
}

fn by_rate(space: &Space, setting: &Setting, frames: &[&str]) -> Result<Vec<Case>> {
    let (size, seconds) = (space.number("size")? as usize, space.number("seconds")?);
    Case::each(space, "rates", |series, megabits| {
        let rate = frames_per_second(megabits, size);
        let traffic = Traffic::at(size, rate, seconds).with(frames);
        measuring(series, setting.clone(), traffic)
    })
}

/// Returns the cases by packets per second, for several sizes.
pub fn sizes(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    let mut cases = Vec::new();
    for series in space.names("series")? {
        for size in space.numbers("sizes")? {
            for millions in space.numbers("mpps")? {
                let traffic = Traffic::at(size as usize, millions * 1e6, seconds).with(&UNANSWERED);
                let run = measuring(&series, Setting::default(), traffic)?;
                cases.push(Case::new(&format!("{series}, {size} B"), millions, run));
            }
        }
    }
    Ok(cases)
}

/// Returns the cases by rate, each of a fixed time.
pub fn efficiency(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "rates", |series, rate| {
        let traffic = Traffic::at(64, rate, seconds).with(&UNANSWERED);
        measuring(series, Setting::default(), traffic)
    })
}

fn measuring(recorder: &str, setting: Setting, traffic: Traffic) -> Result<impl Fn(&Bench) -> Outcome + use<>> {
    let (recorder, configuration) = configured(recorder)?;
    let setting = Setting { configuration, ..setting };
    Ok(move |bench: &Bench| capture(bench, recorder, &setting, &traffic))
}

/// Splits the name of a series into the recorder and its configuration: the best one, or the study's.
pub fn configured(series: &str) -> Result<(Recorder, Choice)> {
    match series.strip_suffix(AS_PUBLISHED) {
        Some(recorder) => Ok((Recorder::find(recorder)?, Choice::Published)),
        None => Ok((Recorder::find(series)?, Choice::Best)),
    }
}

/// Returns the cases by rate, for several buffers and watermarks.
pub fn buffers(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    let mut cases = Vec::new();
    for megabits in space.numbers("rates")? {
        let traffic = Traffic::at(64, frames_per_second(megabits, 64), seconds).with(&UNANSWERED);
        let mut add = |name: &str, recorder: &str, setting: Setting| -> Result<()> {
            let (recorder, traffic) = (Recorder::find(recorder)?, traffic.clone());
            let run = move |bench: &Bench| capture(bench, recorder, &setting, &traffic);
            cases.push(Case::new(name, megabits, run));
            Ok(())
        };
        for buffer in space.numbers("buffers")? {
            for percent in space.numbers("watermarks")? {
                let buffer = buffer as usize;
                // 0 means the watermark of one byte: every packet wakes the reader.
                let (watermark, label) = match percent {
                    0.0 => (1, "watermark 1".to_owned()),
                    percent => ((buffer as f64 * percent / 100.0) as usize, format!("watermark {percent} %")),
                };
                let options = format!("-buffer {buffer} -watermark {watermark}");
                let setting = given(&options);
                let name = format!("xdpcap, {buffer} B, {label}");
                add(&name, "xdpcap, drop", setting)?;
            }
        }
        for ring in space.names("rings")? {
            let name = format!("trawl hook, ring {ring}");
            let setting = given(&format!("--ring-size {ring}"));
            add(&name, "trawl hook, drop", setting)?;
        }
    }
    Ok(cases)
}

/// Returns the setting of these options alone.
pub fn given(options: &str) -> Setting {
    Setting {
        configuration: Choice::Published,
        options: options.split(' ').map(str::to_owned).collect(),
        ..Setting::default()
    }
}

/// Returns the cases that measure the time for a number of packets.
pub fn elapsed(space: &Space) -> Result<Vec<Case>> {
    let rate = space.number("rate")?;
    Case::each(space, "packets", |series, count| {
        let recorder = Recorder::find(series)?;
        // Mechanisms that lose packets need more of them until they have recorded the number.
        let mut traffic = Traffic::at(64, rate, count / rate).with(&UNANSWERED);
        traffic.amount = Amount::Frames((count * 1.5) as u64);
        Ok(move |bench: &Bench| {
            let mut measured = capture(bench, recorder, &Setting::default(), &traffic)?;
            let recorded = measured.recorded.unwrap_or(0) as f64;
            if recorded < count {
                return Err(Stop::Failed(format!(
                    "it recorded {recorded} packets of {}, fewer than the {count} to be timed",
                    measured.sent.unwrap_or(0)
                )));
            }
            // This is the time that recording all packets would need at the rate of the recorded ones.
            let milliseconds = count / recorded * measured.seconds * 1e3;
            measured.values.insert("elapsed_ms", milliseconds);
            Ok(measured)
        })
    })
}

/// Returns the highest rate or size up to which a series recorded everything, and all of it was sent; `None` if it lost
/// packets at the lowest.
fn complete_up_to(experiment: &Experiment, series: &str) -> Option<f64> {
    let offered = experiment.line(series, "offered_percent");
    let is_offered = |x: f64| {
        let point = offered.iter().find(|point| point.x == x);
        point.is_none_or(|point| point.value.median >= COMPLETE)
    };
    let line = experiment.line(series, "recorded_percent");
    let whole = line.iter().take_while(|point| point.value.median >= COMPLETE && is_offered(point.x));
    whole.last().map(|point| point.x)
}

pub fn judge_complete(experiment: &Experiment) -> Finding {
    let unit = &experiment.definition.x.unit;
    let mut limits: Vec<(String, f64)> = experiment
        .series()
        .into_iter()
        .map(|series| {
            let limit = complete_up_to(experiment, &series).unwrap_or(0.0);
            (series, limit)
        })
        .collect();
    limits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shows: Vec<String> = limits
        .iter()
        .map(|(series, limit)| match *limit {
            0.0 => format!("{series} loses packets at every rate tried"),
            limit => format!("{series} to {limit} {unit}"),
        })
        .collect();
    let best = |is: &dyn Fn(&str) -> bool| {
        let own = limits.iter().filter(|(series, _)| is(series));
        own.map(|(_, limit)| *limit).reduce(f64::max)
    };
    let ours = best(&|series| series.starts_with("trawl"));
    let best_other = limits.iter().find(|(series, _)| !series.starts_with("trawl"));
    let theirs = best_other.map(|(_, limit)| *limit);
    let tcpdump = best(&|series| series.starts_with("tcpdump"));
    let xdpcap = best(&|series| series.starts_with("xdpcap"));
    let agrees = match (tcpdump, xdpcap) {
        (Some(tcpdump), Some(xdpcap)) if tcpdump > xdpcap => Agreement::Yes,
        (Some(tcpdump), Some(xdpcap)) if tcpdump == xdpcap => Agreement::Partly,
        (Some(_), Some(_)) => Agreement::No,
        _ if theirs.is_some() => Agreement::Partly,
        _ => Agreement::NotMeasured,
    };
    let order = match (agrees, tcpdump.zip(xdpcap)) {
        (Agreement::Yes, _) => "tcpdump stays complete longer than xdpcap, as published".to_owned(),
        (Agreement::No, Some((tcpdump, xdpcap))) => format!(
            "here xdpcap (to {xdpcap} {unit}) is ahead of tcpdump (to {tcpdump} {unit}), other than published: both ends share two CPUs, \
             and every packet of tcpdump's goes up the stack on the sender's"
        ),
        (_, Some(_)) => "tcpdump and xdpcap stop being complete at the same x value".to_owned(),
        _ => "the study's peers are not all measured here".to_owned(),
    };
    let ahead = match ours.zip(theirs) {
        Some((ours, theirs)) if theirs > 0.0 => {
            format!("; trawl is complete to {ours} {unit}, {:.1} times the best other's {theirs} {unit}", ours / theirs)
        }
        Some((ours, _)) => format!("; trawl is complete to {ours} {unit}, no other at any rate"),
        None => String::new(),
    };
    let ceiling = match best_other {
        Some((series, limit)) if limited_by_sender(experiment, series, *limit) => format!(
            "; above {limit} {unit} the sender cannot offer the rate and {series} loses nothing of what is sent"
        ),
        _ => String::new(),
    };
    Finding {
        agrees,
        shows: format!("no packet lost: {}", shows.join(", ")),
        sentence: format!("{order}{ahead}{ceiling}."),
    }
}

/// Returns whether a series stops being complete because the sender fell short, not because frames were lost.
fn limited_by_sender(experiment: &Experiment, series: &str, limit: f64) -> bool {
    let after = |metric| {
        let line = experiment.line(series, metric);
        let next = line.iter().find(|point| point.x > limit)?;
        Some(next.value.median)
    };
    matches!(after("recorded_percent").zip(after("offered_percent")),
        Some((recorded, offered)) if offered < COMPLETE && recorded >= COMPLETE)
}

pub fn judge_buffers(experiment: &Experiment) -> Finding {
    let (low, high) = experiment.ends();
    let best_at = |x: f64, is: &dyn Fn(&str) -> bool| {
        let own = experiment
            .points
            .iter()
            .filter(|point| point.metric == "recorded_percent" && point.x == x && is(&point.series));
        own.max_by(|a, b| a.value.median.total_cmp(&b.value.median))
    };
    let xdpcap = |series: &str| series.starts_with("xdpcap");
    let share = |x: f64, is: &dyn Fn(&str) -> bool| best_at(x, is).map_or(0.0, |point| point.value.median);
    let Some((at_low, at_high)) = best_at(low, &xdpcap).zip(best_at(high, &xdpcap)) else {
        return Finding {
            shows: "xdpcap was not measured".to_owned(),
            sentence: "The study compares xdpcap's buffers; without xdpcap there is nothing to compare.".to_owned(),
            ..Finding::default()
        };
    };
    let large = |series: &str| xdpcap(series) && series.contains("65536");
    let small = |series: &str| xdpcap(series) && series.contains(" 8192");
    let gain = share(high, &large) - share(high, &small);
    let eager_wins = at_high.series.ends_with("watermark 1");
    let agrees = match (eager_wins, gain > 0.0) {
        (true, true) => Agreement::Yes,
        (false, false) => Agreement::No,
        _ => Agreement::Partly,
    };
    Finding {
        agrees,
        shows: format!(
            "at {low} Mbit/s {} is best ({:.1} %), at {high} Mbit/s {} ({:.1} %)",
            at_low.series, at_low.value.median, at_high.series, at_high.value.median
        ),
        sentence: format!(
            "The larger buffer changes the recorded share by {gain:+.1} points at {high} Mbit/s (published: about +10); \
             trawl records {:.1} % there at its best ring.",
            share(high, &|series| series.starts_with("trawl"))
        ),
    }
}

pub fn judge_elapsed(experiment: &Experiment) -> Finding {
    let (_, largest) = experiment.ends();
    let time = |series: String| {
        let median = experiment.median(&series, "elapsed_ms", largest)?;
        Some((series, median))
    };
    let mut times: Vec<(String, f64)> = experiment.series().into_iter().filter_map(time).collect();
    times.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some((first, least)) = times.first().cloned() else {
        return Finding::default();
    };
    let shows: Vec<String> = times.iter().map(|(series, ms)| format!("{series} {ms:.1} ms")).collect();
    let spread = times.last().map_or(1.0, |(_, most)| most / least);
    Finding {
        agrees: if spread > 1.5 { Agreement::Yes } else { Agreement::Partly },
        shows: format!("{largest} packets: {}", shows.join(", ")),
        sentence: format!(
            "{first} is first; the slowest takes {spread:.1} times as long. A mechanism that loses nothing takes what the \
             sender takes, so times differ only where packets are lost."
        ),
    }
}
