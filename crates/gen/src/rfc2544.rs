//! RFC 2544's measurements of a device between two interfaces: throughput and latency, frame loss, back-to-back frames.
//!
//! They are made in one direction. A trial sends stamped frames out of one interface, and counts them on the other.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netns::Namespace;
use trawl_sys::units::{rounded, rounded_option};
use trawl_sys::{Error, Result};

use crate::engine::{EngineOptions, open};
use crate::pace::Rate;
use crate::pattern::PatternSource;
use crate::receive::{FlowKey, FlowReport, Latency, ReceiveVerdict, Receiver, ReceiverOptions};
use crate::run::{End, Figures, Sending, run};
use crate::traffic::{Limits, Spec, pattern};
use crate::{Engine, Source};

/// Length of the frame check sequence: RFC 2544's sizes include it, trawl's do not.
pub const CHECKSUM: usize = 4;
/// Frame sizes that RFC 2544 requires on Ethernet.
pub const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
/// Longest probe for the fastest rate of the sender.
const PROBE: Duration = Duration::from_secs(1);
/// Maximum number of trials in a search, for any resolution.
const MOST_TRIALS: usize = 12;
/// Number of steps of the rate in frame loss measurements.
const STEPS: u32 = 10;
/// Flows of the receiver: more than the trials, each of which has a stream of its own.
const FLOWS: u32 = 1024;

/// One side of the measured device.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    pub namespace: Option<&'a Namespace>,
    pub interface: &'a Interface,
    /// Name for messages.
    pub label: &'a str,
}

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Rfc2544Options<'a> {
    pub tx: Side<'a>,
    pub rx: Side<'a>,
    /// Traffic to send; the size is set for each measurement.
    pub spec: Spec,
    /// Lengths including the checksum at the frame's end.
    pub sizes: Vec<usize>,
    /// Duration of a trial.
    pub duration: Duration,
    /// Share of frames, from 0 to 1, that may be lost at a good rate.
    pub loss: f64,
    /// Resolution of the search: a share of the fastest rate.
    pub resolution: f64,
    /// Upper limit in frames a second.
    pub most: Option<f64>,
    pub cpu: Option<usize>,
    pub engine: EngineOptions,
    pub frame_loss: bool,
    pub back_to_back: bool,
}

/// Results for one size.
#[derive(Clone, Debug)]
pub struct Rfc2544Results {
    /// Including the checksum.
    pub size: usize,
    /// Full speed of the sender in frames a second, regardless of loss: no higher rate was tried.
    pub fastest: f64,
    /// Trial with the highest good rate; its latencies are the ones at the throughput.
    pub throughput: Option<Trial>,
    /// All trials of the search, in order.
    pub trials: Vec<Trial>,
    /// Trials from the fastest on down, until two in a row lost nothing.
    pub frame_loss: Option<Vec<Trial>>,
    /// Longest burst at full speed without loss; 0 if every burst had losses.
    pub back_to_back: Option<u64>,
}

/// State of the current trial.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub size: usize,
    pub doing: &'static str,
    /// Rate of the trial, if limited.
    pub offered: Option<f64>,
    pub figures: &'a Figures,
}

/// Receives the progress about ten times a second, and returns false to stop the measurement.
pub type Watch<'a> = dyn FnMut(&Progress<'_>) -> bool + 'a;

/// The measurements: the receiver is attached from the beginning to the end.
#[derive(Debug)]
pub struct Measurement<'a> {
    options: Rfc2544Options<'a>,
    receiver: Receiver,
    streams: u16,
    engine: &'static str,
}

impl<'a> Measurement<'a> {
    /// Attaches the receiver, and checks that all sizes can be sent.
    pub fn new(options: Rfc2544Options<'a>) -> Result<Self> {
        if !(0.0..1.0).contains(&options.loss) {
            let what = format!("cannot accept a loss of {} %", options.loss * 100.0);
            return Err(Error::usage(what, "a loss is between 0 and 100 %"));
        }
        if !(options.resolution > 0.0 && options.resolution <= 0.5) {
            let what = format!("cannot search with a resolution of {} %", options.resolution * 100.0);
            return Err(Error::usage(what, "a resolution is above 0 and at most 50 %"));
        }
        if let Some(most) = options.most {
            Rate::Frames(most).check()?;
        }
        for size in &options.sizes {
            pattern_of_size(&options, *size, 0)?;
        }
        let receiver = Receiver::attach(&ReceiverOptions {
            namespace: options.rx.namespace,
            interface: &options.rx.interface.name,
            verdict: ReceiveVerdict::Drop,
            max_flows: FLOWS,
        })?;
        Ok(Self { options, receiver, streams: crate::stamp::new_stream(), engine: "none" })
    }

    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns the engine of the last trial.
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    /// Returns the upper bound of a measurement's duration.
    pub fn longest(&self) -> Duration {
        let mut trials = 1 + MOST_TRIALS as u32;
        trials += if self.options.frame_loss { STEPS } else { 0 };
        trials += if self.options.back_to_back { MOST_TRIALS as u32 } else { 0 };
        let one = self.options.duration + PATIENCE + OVERTIME;
        one * trials * self.options.sizes.len() as u32
    }

    /// Measures with frames of one size; `None` if it was stopped.
    pub fn measure(&mut self, size: usize, watch: &mut Watch<'_>) -> Result<Option<Rfc2544Results>> {
        let duration = self.options.duration.min(PROBE);
        let Some(probe) = self.trial(size, Offer::fastest(duration), watch)? else {
            return Ok(None);
        };
        let fastest = probe.rate();
        let limit = self.options.most.map_or(fastest, |most| most.min(fastest));
        let mut trials = Vec::new();
        let finest = limit * self.options.resolution;
        let mut search = Search::new(limit, finest, MOST_TRIALS);
        while let Some(rate) = search.next() {
            let offer = Offer::rate(rate, self.options.duration);
            let Some(trial) = self.trial(size, offer, watch)? else {
                return Ok(None);
            };
            search.answer(trial.is_good(self.options.loss));
            trials.push(trial);
        }
        let good = trials.iter().filter(|trial| trial.is_good(self.options.loss));
        let throughput = good.max_by(|a, b| a.rate().total_cmp(&b.rate())).cloned();
        let mut outcome = Rfc2544Results { size, fastest, throughput, trials, frame_loss: None, back_to_back: None };
        if self.options.frame_loss {
            outcome.frame_loss = self.frame_loss(size, limit, watch)?;
            if outcome.frame_loss.is_none() {
                return Ok(None);
            }
        }
        if self.options.back_to_back {
            outcome.back_to_back = self.back_to_back(size, fastest, watch)?;
            if outcome.back_to_back.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(outcome))
    }

    /// Measures the frame loss (RFC 2544, 26.3).
    fn frame_loss(&mut self, size: usize, limit: f64, watch: &mut Watch<'_>) -> Result<Option<Vec<Trial>>> {
        let mut trials: Vec<Trial> = Vec::new();
        for step in (1..=STEPS).rev() {
            let rate = limit * f64::from(step) / f64::from(STEPS);
            let offer = Offer::rate(rate, self.options.duration);
            let Some(trial) = self.trial(size, offer, watch)? else {
                return Ok(None);
            };
            trials.push(trial);
            if let [.., one, other] = trials.as_slice()
                && one.is_good(0.0)
                && other.is_good(0.0)
            {
                break;
            }
        }
        Ok(Some(trials))
    }

    /// Measures back-to-back frames (RFC 2544, 26.4).
    fn back_to_back(&mut self, size: usize, fastest: f64, watch: &mut Watch<'_>) -> Result<Option<u64>> {
        let most = (fastest * self.options.duration.as_secs_f64()).max(1.0);
        let mut search = Search::new(most, 1.0, MOST_TRIALS);
        let mut longest = 0;
        while let Some(count) = search.next() {
            let count = count.round().max(1.0) as u64;
            let Some(trial) = self.trial(size, Offer::burst(count), watch)? else {
                return Ok(None);
            };
            let good = trial.is_good(0.0);
            search.answer(good);
            if good {
                longest = longest.max(trial.in_time);
            }
        }
        Ok(Some(longest))
    }
}

/// Returns the frames of one size.
fn pattern_of_size(options: &Rfc2544Options<'_>, size: usize, stream: u16) -> Result<crate::pattern::Pattern> {
    let Some(length) = size.checked_sub(CHECKSUM) else {
        let what = format!("cannot measure with frames of {size} bytes");
        return Err(Error::usage(what, "the checksum alone has 4 bytes"));
    };
    let mut spec = options.spec.clone();
    spec.set("size", length.to_string())?;
    let limits = Limits { mtu: Some(options.tx.interface.mtu), seed: 1, stamp: Some(stream) };
    pattern(&[(spec, 1)], &limits).map_err(|(_, misfit)| {
        let what = format!("cannot measure with frames of {size} bytes");
        let why = format!("without the 4 bytes of the checksum, {}", Error::from(misfit));
        Error::usage(what, why)
    })
}

// Search for the highest good value, in a bounded number of steps.

/// A bisection that tries the highest value first.
#[derive(Clone, Debug)]
pub struct Search {
    /// Highest good value, or 0.
    good: f64,
    /// Lowest bad value.
    bad: Option<f64>,
    most: f64,
    finest: f64,
    left: usize,
}

impl Search {
    /// Searches up to `most`; ends when the bounds differ by no more than `finest`, or after this many steps.
    pub fn new(most: f64, finest: f64, steps: usize) -> Self {
        Self { good: 0.0, bad: None, most, finest, left: steps }
    }

    /// Returns the next value to try; `None` at the end.
    pub fn next(&self) -> Option<f64> {
        if self.left == 0 || self.most <= 0.0 {
            return None;
        }
        match self.bad {
            None => (self.good < self.most).then_some(self.most),
            Some(bad) => (bad - self.good > self.finest).then_some((self.good + bad) / 2.0),
        }
    }

    /// Records whether the last value of `next` was good.
    pub fn answer(&mut self, good: bool) {
        let Some(tried) = self.next() else { return };
        self.left -= 1;
        if good {
            self.good = tried;
        } else {
            self.bad = Some(tried);
        }
    }
}

// One trial: a number of frames at a rate, and the count of the ones that arrived.

/// Time after the last frame in which frames may still arrive; RFC 2544 requires two seconds.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Silence after which no more frames are expected, if any have arrived.
const QUIET: Duration = Duration::from_millis(300);
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// Time by which the sender may be late.
pub const OVERTIME: Duration = Duration::from_secs(4);

/// Offered load.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    doing: &'static str,
    rate: Rate,
    count: Option<u64>,
    duration: Option<Duration>,
}

impl Offer {
    pub fn fastest(duration: Duration) -> Self {
        Self { doing: "how fast the sender is", rate: Rate::Unlimited, count: None, duration: Some(duration) }
    }

    pub fn rate(rate: f64, duration: Duration) -> Self {
        let frames = (rate * duration.as_secs_f64()).round().max(1.0);
        Self { doing: "trial", rate: Rate::Frames(rate), count: Some(frames as u64), duration: Some(duration) }
    }

    pub fn burst(count: u64) -> Self {
        Self { doing: "burst", rate: Rate::Unlimited, count: Some(count), duration: None }
    }

    fn offered(&self) -> Option<f64> {
        match self.rate {
            Rate::Frames(rate) => Some(rate),
            _ => None,
        }
    }
}

/// Result of a trial.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// Requested frames a second.
    #[serde(rename = "offered_frames_per_second", serialize_with = "rounded_option")]
    pub offered: Option<f64>,
    /// Frames that the device accepted.
    pub sent: u64,
    /// Refusals by the device, which show that the device under test cannot keep up.
    pub refused: u64,
    /// Frames of `sent` in the measured time; the first ones only showed that the engine works.
    #[serde(skip)]
    pub in_time: u64,
    #[serde(serialize_with = "rounded")]
    pub seconds: f64,
    /// Different frames that arrived.
    pub received: u64,
    pub lost: u64,
    #[serde(serialize_with = "rounded")]
    pub loss_percent: f64,
    pub duplicates: u64,
    pub reordered: u64,
    #[serde(rename = "latency_ns")]
    pub latency: Latency,
}

impl Trial {
    /// Returns the frames a second as sent.
    pub fn rate(&self) -> f64 {
        self.in_time as f64 / self.seconds.max(f64::EPSILON)
    }

    /// Returns true if no more than that share was lost or refused.
    pub fn is_good(&self, loss: f64) -> bool {
        let allowed = loss * self.sent as f64;
        self.sent > 0 && self.lost as f64 <= allowed && self.refused as f64 <= allowed
    }
}

/// Sends the first frame before the clock runs: choosing an engine by trial is slow. Returns the number of frames sent.
fn warm_up(engine: &mut dyn Engine, source: &mut dyn Source) -> Result<u64> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let sent = engine.send(source, 0, 1)?;
        if sent.frames > 0 {
            return Ok(sent.frames);
        }
        std::thread::sleep(CHECK_EVERY);
    }
    let why = format!("the device accepts no frame: {}", engine.suspicion());
    Err(Error::failed("cannot measure", why))
}

impl Measurement<'_> {
    /// Runs a trial; `None` if it was stopped.
    fn trial(&mut self, size: usize, offer: Offer, watch: &mut Watch<'_>) -> Result<Option<Trial>> {
        self.streams = self.streams.wrapping_add(1);
        let stream = self.streams;
        let options = &self.options;
        let pattern = Arc::new(pattern_of_size(options, size, stream)?);
        let cpus = [options.cpu];
        let plan = Sending {
            namespace: options.tx.namespace,
            interface: options.tx.label,
            // The receiver verifies the frames.
            device: None,
            cpus: &cpus,
            rate: offer.rate,
            burst: 1,
            count: offer.count,
            duration: offer.duration,
            profile: None,
        };
        let first = AtomicU64::new(0);
        let start = |thread: usize| {
            let mut source: Box<dyn Source> = Box::new(PatternSource::new(Arc::clone(&pattern), thread, 1));
            let mut engine = open(&options.tx.interface.name, source.as_mut(), &options.engine)?;
            first.store(warm_up(engine.as_mut(), source.as_mut())?, Relaxed);
            Ok((engine, source))
        };
        let mut report_progress =
            |figures: &Figures| watch(&Progress { size, doing: offer.doing, offered: offer.offered(), figures });
        let report = run(&plan, &start, &mut report_progress)?;
        if let Some(failure) = report.failure {
            return Err(failure);
        }
        if report.end == End::Stopped {
            return Ok(None);
        }
        self.engine = report.engine;
        let figures = report.figures;
        let sent = figures.frames + first.into_inner();
        let flow = self.arrived(FlowKey { stream, flow: 0 }, sent)?;
        let received = flow.as_ref().map_or(0, distinct);
        let lost = sent.saturating_sub(received);
        Ok(Some(Trial {
            offered: offer.offered(),
            in_time: figures.frames,
            sent,
            refused: figures.refused,
            seconds: figures.elapsed.as_secs_f64(),
            received,
            lost,
            loss_percent: lost as f64 / sent.max(1) as f64 * 100.0,
            duplicates: flow.as_ref().map_or(0, |flow| flow.counts.duplicates),
            reordered: flow.as_ref().map_or(0, |flow| flow.counts.reordered),
            latency: flow.map_or_else(Latency::default, |flow| flow.latency),
        }))
    }

    /// Waits until this many frames have arrived, or no more do.
    fn arrived(&self, key: FlowKey, sent: u64) -> Result<Option<FlowReport>> {
        let end = Instant::now() + PATIENCE;
        let mut last = (Instant::now(), 0);
        loop {
            let flows = self.receiver.report()?.flows;
            let flow = flows.into_iter().find(|flow| flow.key == key);
            let received = flow.as_ref().map_or(0, distinct);
            if received != last.1 {
                last = (Instant::now(), received);
            }
            let quiet = received > 0 && last.0.elapsed() > QUIET;
            if received >= sent || quiet || Instant::now() >= end {
                return Ok(flow);
            }
            std::thread::sleep(CHECK_EVERY);
        }
    }
}

/// Counts different frames, including late ones.
fn distinct(flow: &FlowReport) -> u64 {
    flow.counts.expected - flow.counts.lost
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the best value found, and the number of trials.
    fn found(mut search: Search, limit: f64) -> (f64, usize) {
        let (mut best, mut tried) = (0.0f64, 0);
        while let Some(value) = search.next() {
            tried += 1;
            if value <= limit {
                best = best.max(value);
            }
            search.answer(value <= limit);
        }
        (best, tried)
    }

    #[test]
    fn search_stops_when_the_first_rate_passes() {
        assert_eq!(found(Search::new(100.0, 1.0, 12), 100.0), (100.0, 1));
        assert_eq!(found(Search::new(0.0, 1.0, 12), 100.0), (0.0, 0));
    }

    proptest! {
        #[test]
        fn result_is_within_the_resolution(limit in 0.0..1000.0f64) {
            let (best, tried) = found(Search::new(1000.0, 5.0, 20), limit);
            prop_assert!(best <= limit && limit - best <= 5.0, "{} of {}", best, limit);
            prop_assert!(tried <= 9);
        }

        #[test]
        fn search_ends(limit in 0.0..1000.0f64, steps in 0..10usize) {
            prop_assert!(found(Search::new(1000.0, 1e-9, steps), limit).1 <= steps);
        }
    }

    fn trial(sent: u64, received: u64, refused: u64) -> Trial {
        Trial {
            offered: None,
            sent,
            refused,
            in_time: sent,
            seconds: 2.0,
            received,
            lost: sent - received,
            loss_percent: 0.0,
            duplicates: 0,
            reordered: 0,
            latency: Latency::default(),
        }
    }

    #[test]
    fn trial_is_as_good_as_its_loss() {
        assert!(trial(1000, 1000, 0).is_good(0.0));
        assert!(!trial(1000, 999, 0).is_good(0.0));
        assert!(trial(1000, 999, 0).is_good(0.001));
        assert!(!trial(1000, 998, 0).is_good(0.001));
        assert!(!trial(1000, 1000, 5).is_good(0.0));
        assert!(!trial(0, 0, 0).is_good(0.5));
        assert_eq!(trial(1000, 900, 0).rate(), 500.0);
    }
}
