//! RFC 2544's measurements of what is between two interfaces: throughput and latency, frame loss, back-to-back frames.
//!
//! One way only. A trial sends stamped frames out of one interface, and counts them on the other.

mod search;
mod trial;

use std::time::Duration;

use trawl_sys::interface::Interface;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};

use crate::engine::Wish;
use crate::pace::Rate;
use crate::receive::{self, Receiver, Verdict};
use crate::run::Figures;
use crate::traffic::{Limits, Spec, pattern};

pub use trial::Trial;

/// The frame check sequence: RFC 2544's sizes count it, trawl's do not.
pub const CHECKSUM: usize = 4;
/// The sizes that RFC 2544 asks for on Ethernet.
pub const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
/// The share of a trial's time that looking for the fastest the sender can do takes, and no more than this.
const PROBE: Duration = Duration::from_secs(1);
/// A search is over after this many trials, however fine it was to be.
const MOST_TRIALS: usize = 12;
/// In frame loss measurements the rate goes down by a tenth each time.
const STEPS: u32 = 10;
/// One for each trial's stream, and more than there are trials.
const FLOWS: u32 = 1024;

/// One side of what is measured.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    pub namespace: Option<&'a Namespace>,
    pub interface: &'a Interface,
    /// For messages.
    pub label: &'a str,
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    pub tx: Side<'a>,
    pub rx: Side<'a>,
    /// What is sent; the size is set for each measurement.
    pub spec: Spec,
    /// Lengths with the checksum at the frame's end.
    pub sizes: Vec<usize>,
    /// How long a trial sends.
    pub duration: Duration,
    /// The share of frames that may be lost where a rate is still good: 0 to 1.
    pub loss: f64,
    /// How finely the rate is looked for: a share of the fastest.
    pub resolution: f64,
    /// Frames a second that are not exceeded.
    pub most: Option<f64>,
    pub cpu: Option<usize>,
    pub wish: Wish,
    pub frame_loss: bool,
    pub back_to_back: bool,
}

/// What was found for one size.
#[derive(Clone, Debug)]
pub struct Rfc2544Results {
    /// With the checksum.
    pub size: usize,
    /// What the sender did by itself, in frames a second, lost or not: no rate above it was tried.
    pub fastest: f64,
    /// The trial with the highest rate that was good; its latencies are those at the throughput.
    pub throughput: Option<Trial>,
    /// All trials of the search, in their order.
    pub trials: Vec<Trial>,
    /// From the fastest on down, until two in a row lost nothing.
    pub frame_loss: Option<Vec<Trial>>,
    /// The longest burst, as fast as it went, of which nothing was lost; 0: there is none.
    pub back_to_back: Option<u64>,
}

/// What goes on at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub size: usize,
    pub doing: &'static str,
    /// The rate that is tried, where there is one.
    pub offered: Option<f64>,
    pub figures: &'a Figures,
}

/// Sees what goes on about ten times a second, and says whether to go on.
pub type Watch<'a> = dyn FnMut(&Progress<'_>) -> bool + 'a;

/// The measurements: the receiver is in its place from the beginning to the end.
#[derive(Debug)]
pub struct Measurement<'a> {
    options: Options<'a>,
    receiver: Receiver,
    streams: u16,
    engine: &'static str,
}

impl<'a> Measurement<'a> {
    /// Attaches the receiver, and finds out whether all sizes can be sent.
    pub fn new(options: Options<'a>) -> Result<Self> {
        if !(0.0..1.0).contains(&options.loss) {
            let what = format!("cannot accept a loss of {} %", options.loss * 100.0);
            return Err(Error::usage(what, "it is between 0 and 100 %"));
        }
        if !(options.resolution > 0.0 && options.resolution <= 0.5) {
            let what = format!("cannot search to {} %", options.resolution * 100.0);
            return Err(Error::usage(what, "it is above 0 and at most 50 %"));
        }
        if let Some(most) = options.most {
            Rate::Frames(most).check()?;
        }
        for size in &options.sizes {
            made(&options, *size, 0)?;
        }
        let receiver = Receiver::attach(&receive::Options {
            namespace: options.rx.namespace,
            interface: &options.rx.interface.name,
            verdict: Verdict::Drop,
            max_flows: FLOWS,
        })?;
        Ok(Self {
            options,
            receiver,
            streams: crate::stamp::new_stream(),
            engine: "none",
        })
    }

    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// The engine that the last trial was sent by.
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    /// No measurement takes longer than this, whatever it finds.
    pub fn longest(&self) -> Duration {
        let mut trials = 1 + MOST_TRIALS as u32;
        trials += if self.options.frame_loss { STEPS } else { 0 };
        trials += if self.options.back_to_back {
            MOST_TRIALS as u32
        } else {
            0
        };
        let one = self.options.duration + trial::PATIENCE + trial::OVERTIME;
        one * trials * self.options.sizes.len() as u32
    }

    /// Measures with frames of one size; `None` if it was stopped.
    pub fn measure(
        &mut self,
        size: usize,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Rfc2544Results>> {
        let duration = self.options.duration.min(PROBE);
        let Some(probe) = self.trial(size, trial::Offer::fastest(duration), watch)? else {
            return Ok(None);
        };
        let fastest = probe.rate();
        let limit = self.options.most.map_or(fastest, |most| most.min(fastest));
        let mut trials = Vec::new();
        let finest = limit * self.options.resolution;
        let mut search = search::Search::new(limit, finest, MOST_TRIALS);
        while let Some(rate) = search.next() {
            let offer = trial::Offer::rate(rate, self.options.duration);
            let Some(trial) = self.trial(size, offer, watch)? else {
                return Ok(None);
            };
            search.answer(trial.is_good(self.options.loss));
            trials.push(trial);
        }
        let good = trials
            .iter()
            .filter(|trial| trial.is_good(self.options.loss));
        let throughput = good.max_by(|a, b| a.rate().total_cmp(&b.rate())).cloned();
        let mut outcome = Rfc2544Results {
            size,
            fastest,
            throughput,
            trials,
            frame_loss: None,
            back_to_back: None,
        };
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

    /// RFC 2544, 26.3.
    fn frame_loss(
        &mut self,
        size: usize,
        limit: f64,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Vec<Trial>>> {
        let mut trials: Vec<Trial> = Vec::new();
        for step in (1..=STEPS).rev() {
            let rate = limit * f64::from(step) / f64::from(STEPS);
            let offer = trial::Offer::rate(rate, self.options.duration);
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

    /// RFC 2544, 26.4.
    fn back_to_back(
        &mut self,
        size: usize,
        fastest: f64,
        watch: &mut Watch<'_>,
    ) -> Result<Option<u64>> {
        let most = (fastest * self.options.duration.as_secs_f64()).max(1.0);
        let mut search = search::Search::new(most, 1.0, MOST_TRIALS);
        let mut longest = 0;
        while let Some(count) = search.next() {
            let count = count.round().max(1.0) as u64;
            let Some(trial) = self.trial(size, trial::Offer::burst(count), watch)? else {
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

/// The frames of one size.
fn made(options: &Options<'_>, size: usize, stream: u16) -> Result<crate::pattern::Pattern> {
    let Some(length) = size.checked_sub(CHECKSUM) else {
        let what = format!("cannot measure with frames of {size} bytes");
        return Err(Error::usage(what, "their checksum alone takes four"));
    };
    let mut spec = options.spec.clone();
    spec.set("size", length.to_string())?;
    let limits = Limits {
        mtu: Some(options.tx.interface.mtu),
        seed: 1,
        stamp: Some(stream),
    };
    pattern(&[(spec, 1)], &limits).map_err(|(_, misfit)| {
        let what = format!("cannot measure with frames of {size} bytes");
        let why = format!(
            "without the four of their checksum, {}",
            Error::from(misfit)
        );
        Error::usage(what, why)
    })
}
