//! One trial: a number of frames at a rate, and what of them arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use trawl_sys::{Error, Result};

use super::{Measurement, Progress, Watch, made};
use crate::engine::open;
use crate::pace::Rate;
use crate::pattern::PatternSource;
use crate::receive::{FlowKey, FlowReport, Latency};
use crate::run::{End, Figures, Sending, run};
use crate::{Engine, Source};

/// So long after the last frame was sent it may still arrive; RFC 2544 asks for two seconds.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Nothing came for so long: nothing more will, where something came before.
const QUIET: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// What the sender may be late.
pub const OVERTIME: Duration = Duration::from_secs(4);

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    doing: &'static str,
    rate: Rate,
    count: Option<u64>,
    duration: Option<Duration>,
}

impl Offer {
    pub fn fastest(duration: Duration) -> Self {
        Self {
            doing: "how fast the sender is",
            rate: Rate::Unlimited,
            count: None,
            duration: Some(duration),
        }
    }

    pub fn rate(rate: f64, duration: Duration) -> Self {
        let frames = (rate * duration.as_secs_f64()).round().max(1.0);
        Self {
            doing: "trial",
            rate: Rate::Frames(rate),
            count: Some(frames as u64),
            duration: Some(duration),
        }
    }

    pub fn burst(count: u64) -> Self {
        Self {
            doing: "burst",
            rate: Rate::Unlimited,
            count: Some(count),
            duration: None,
        }
    }

    fn offered(&self) -> Option<f64> {
        match self.rate {
            Rate::Frames(rate) => Some(rate),
            _ => None,
        }
    }
}

/// What became of what was offered.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Frames a second, as asked for.
    pub offered: Option<f64>,
    /// What the device took, and how often it had no room: what is between the two cannot keep up, then.
    pub sent: u64,
    pub refused: u64,
    /// How many of them went in the time that the trial took; the first ones only showed that the engine works.
    pub in_time: u64,
    pub took: Duration,
    /// Different frames that arrived.
    pub received: u64,
    pub duplicates: u64,
    pub reordered: u64,
    pub latency: Latency,
}

impl Trial {
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// The share that was lost.
    pub fn loss(&self) -> f64 {
        self.lost() as f64 / self.sent.max(1) as f64
    }

    /// Frames a second as they were sent.
    pub fn rate(&self) -> f64 {
        self.in_time as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    /// No more was lost, or refused, than that share.
    pub fn is_good(&self, loss: f64) -> bool {
        let allowed = loss * self.sent as f64;
        self.sent > 0 && self.lost() as f64 <= allowed && self.refused as f64 <= allowed
    }
}

/// Sends the first frame before the clock runs: an engine that is chosen by trying takes its time. Returns how many
/// frames it sent.
fn warm_up(engine: &mut dyn Engine, source: &mut dyn Source) -> Result<u64> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let sent = engine.send(source, 0, 1)?;
        if sent.frames > 0 {
            return Ok(sent.frames);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let why = format!("the device takes no frame: {}", engine.suspicion());
    Err(Error::failed("cannot measure", why))
}

impl Measurement<'_> {
    /// `None` if it was stopped.
    pub(super) fn trial(
        &mut self,
        size: usize,
        offer: Offer,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Trial>> {
        self.streams = self.streams.wrapping_add(1);
        let stream = self.streams;
        let options = &self.options;
        let pattern = Arc::new(made(options, size, stream)?);
        let cpus = [options.cpu];
        let plan = Sending {
            namespace: options.tx.namespace,
            interface: options.tx.label,
            cpus: &cpus,
            rate: offer.rate,
            burst: 1,
            count: offer.count,
            duration: offer.duration,
            profile: None,
        };
        let first = AtomicU64::new(0);
        let start = |thread: usize| {
            let mut source: Box<dyn Source> =
                Box::new(PatternSource::new(Arc::clone(&pattern), thread, 1));
            let mut engine = open(&options.tx.interface.name, source.as_mut(), &options.wish)?;
            first.store(warm_up(engine.as_mut(), source.as_mut())?, Relaxed);
            Ok((engine, source))
        };
        let mut look = |figures: &Figures| {
            watch(&Progress {
                size,
                doing: offer.doing,
                offered: offer.offered(),
                figures,
            })
        };
        let report = run(&plan, &start, &mut look)?;
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
        Ok(Some(Trial {
            offered: offer.offered(),
            in_time: figures.frames,
            sent,
            refused: figures.refused,
            took: figures.elapsed,
            received: flow.as_ref().map_or(0, distinct),
            duplicates: flow.as_ref().map_or(0, |flow| flow.duplicates),
            reordered: flow.as_ref().map_or(0, |flow| flow.reordered),
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
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Late ones among them, each counted once.
fn distinct(flow: &FlowReport) -> u64 {
    flow.expected - flow.lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(sent: u64, received: u64, refused: u64) -> Trial {
        Trial {
            offered: None,
            sent,
            refused,
            in_time: sent,
            took: Duration::from_secs(2),
            received,
            duplicates: 0,
            reordered: 0,
            latency: Latency::default(),
        }
    }

    #[test]
    fn a_trial_is_as_good_as_its_loss() {
        assert!(trial(1000, 1000, 0).is_good(0.0));
        assert!(!trial(1000, 999, 0).is_good(0.0));
        assert!(trial(1000, 999, 0).is_good(0.001));
        assert!(!trial(1000, 998, 0).is_good(0.001));
        assert!(!trial(1000, 1000, 5).is_good(0.0));
        assert!(!trial(0, 0, 0).is_good(0.5));
        assert_eq!(trial(1000, 900, 0).loss(), 0.1);
        assert_eq!(trial(1000, 900, 0).rate(), 500.0);
    }
}
