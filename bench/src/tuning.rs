//! The best configuration of each program on this machine. Before its first measurement, a short round tries the
//! configurations of a small grid, and keeps the one with the highest rate. For a recorder, that is the rate at which
//! it records every packet.

use std::fmt;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use trawl_front::terminal;
use trawl_lab::LineOptions;

use crate::capture::{Choice, Recorder, Setting, capture};
use crate::study::{Bench, Measured, Stop};
use crate::traffic::{SENDER_CPU, Traffic, UNANSWERED};

/// Settings of a program that its user chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub options: &'static [&'static str],
    /// Receive offload of the interface. Only XDP programs in native mode need it; it takes the stack's time.
    pub gro: bool,
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.options {
            [] => f.write_str("defaults")?,
            options => f.write_str(&options.join(" "))?,
        }
        f.write_str(if self.gro { "" } else { ", GRO off" })
    }
}

impl From<Configuration> for LineOptions {
    fn from(Configuration { gro, .. }: Configuration) -> Self {
        Self { gro, ..Self::default() }
    }
}

impl Configuration {
    /// Returns the bytes below which xdpcap leaves packets in its buffer. It loses the rest when it ends, at any rate.
    fn held_back(self) -> u64 {
        let mut options = self.options.iter();
        let watermark = options.find(|option| **option == "-watermark");
        let bytes = watermark.and_then(|_| options.next());
        bytes.map_or(0, |bytes| bytes.parse().unwrap_or(0))
    }
}

pub const fn with_gro(options: &'static [&'static str]) -> Configuration {
    Configuration { options, gro: true }
}

const fn without_gro(options: &'static [&'static str]) -> Configuration {
    Configuration { options, gro: false }
}

/// Configuration without any option.
pub const DEFAULTS: Configuration = with_gro(&[]);

/// The grid of a program without options that matter.
pub const ONLY_DEFAULTS: [Configuration; 1] = [DEFAULTS];

/// Configurations of what handles packets in the network stack.
pub const IN_STACK: [Configuration; 2] = [DEFAULTS, without_gro(&[])];

impl Recorder {
    /// Returns the configurations to try, the defaults first.
    fn grid(self) -> Vec<Configuration> {
        match self {
            Self::TrawlHook(_) | Self::TrawlXdp | Self::TrawlTraced => {
                vec![DEFAULTS, with_gro(&["--ring-size", "256MiB"])]
            }
            Self::TrawlTc | Self::TrawlPacket => {
                vec![DEFAULTS, without_gro(&[]), without_gro(&["--ring-size", "256MiB"])]
            }
            Self::Recv => IN_STACK.to_vec(),
            Self::Xsk => ONLY_DEFAULTS.to_vec(),
            Self::Tcpdump | Self::Netmap | Self::PfRing => vec![
                DEFAULTS,
                with_gro(&["-B", "65536"]),
                without_gro(&["-B", "16384"]),
                without_gro(&["-B", "131072"]),
                without_gro(&["-B", "131072", "-s", "128"]),
            ],
            Self::Dumpcap | Self::Tshark => vec![
                DEFAULTS,
                without_gro(&["-B", "16"]),
                without_gro(&["-B", "128"]),
                without_gro(&["-B", "128", "-s", "128"]),
            ],
            Self::NetsniffNg => {
                vec![DEFAULTS, without_gro(&["--ring-size", "64MiB"]), without_gro(&["--ring-size", "256MiB"])]
            }
            Self::Xdpcap(_) => vec![
                DEFAULTS,
                with_gro(&["-buffer", "1048576", "-watermark", "65536"]),
                with_gro(&["-buffer", "4194304", "-watermark", "262144"]),
                with_gro(&["-buffer", "8388608", "-watermark", "2097152"]),
            ],
            Self::Xdpdump => {
                vec![DEFAULTS, with_gro(&["--perf-wakeup", "512"]), with_gro(&["--perf-wakeup", "512", "-s", "128"])]
            }
        }
    }
}

/// The choice for a program, and what it was chosen from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    pub program: String,
    pub best: String,
    pub tried: Vec<Tried>,
}

impl Tuning {
    /// Returns the choice and the rejected configurations, with their rates.
    pub fn text(&self) -> String {
        let rate = |one: &Tried| format!("{} {:.2}", one.configuration, one.mpps);
        let all: Vec<String> = self.tried.iter().map(rate).collect();
        format!("{}, the best of {} (Mpps)", self.best, all.join("; "))
    }
}

/// A configuration, and its rate in the short round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    pub configuration: String,
    pub mpps: f64,
}

/// The choices so far.
#[derive(Debug, Default)]
pub struct Tuned(Mutex<Vec<Tuning>>);

/// Size of the frames and duration of each burst of the short round.
const SIZE: usize = 64;
const SECONDS: f64 = 1.0;
const PROBES: u32 = 3;

impl Tuned {
    pub fn from(choices: Vec<Tuning>) -> Self {
        Self(Mutex::new(choices))
    }

    pub fn all(&self) -> Vec<Tuning> {
        self.0.lock().clone()
    }

    /// Returns the best configuration of a recorder; the first call measures it.
    pub fn best(&self, bench: &Bench, recorder: Recorder) -> Result<Configuration, Stop> {
        self.choose(recorder.name(), &recorder.grid(), |configuration| {
            let setting = Setting { configuration: Choice::Given(configuration), ..Setting::default() };
            Ok(complete(bench, recorder, &setting, SIZE, SECONDS, PROBES)?.mpps)
        })
    }

    /// Returns the configuration of a grid with the highest rate; the first call for a program measures them all.
    pub fn choose(
        &self,
        name: &str,
        grid: &[Configuration],
        mut rate: impl FnMut(Configuration) -> Result<f64, Stop>,
    ) -> Result<Configuration, Stop> {
        if let [only] = grid {
            return Ok(*only);
        }
        let known = |choices: &[Tuning]| {
            let choice = choices.iter().find(|one| one.program == name)?;
            let mut all = grid.iter();
            all.find(|one| one.to_string() == choice.best).copied()
        };
        if let Some(found) = known(&self.0.lock()) {
            return Ok(found);
        }
        let mut tried = Vec::new();
        for configuration in grid {
            tried.push((rate(*configuration)?, *configuration));
        }
        let (mpps, best) = best_of(&tried);
        terminal::say(&format!("{name}: {best} is the best of {} configurations ({mpps:.2} Mpps)", grid.len()));
        let tried =
            tried.iter().map(|(mpps, configuration)| Tried { configuration: configuration.to_string(), mpps: *mpps });
        self.0.lock().push(Tuning { program: name.to_owned(), best: best.to_string(), tried: tried.collect() });
        Ok(best)
    }
}

/// Least gain over a configuration before it: less is noise, and the defaults come first.
const GAIN: f64 = 1.1;

fn best_of(tried: &[(f64, Configuration)]) -> (f64, Configuration) {
    let better = |best: (f64, Configuration), one: &(f64, Configuration)| match one.0 > best.0 * GAIN {
        true => *one,
        false => best,
    };
    let first = tried.first().copied().unwrap_or((0.0, DEFAULTS));
    tried.iter().fold(first, better)
}

/// Rates between which a recorder ceases to be complete.
pub struct Complete {
    /// Highest rate of which it recorded every packet.
    pub mpps: f64,
    /// Lowest rate at which it lost packets; `None` if it was complete at the sender's full speed.
    pub first_loss_mpps: Option<f64>,
    /// The burst at full speed.
    pub flood: Measured,
}

/// Share of the packets that counts as all of them: one lost in a thousand may be the machine's doing.
pub const WHOLE: f64 = 0.999;
/// Ratio of the lowest rate with loss to the highest without at which the search ends.
const NARROW: f64 = 1.06;

/// Searches for the highest rate at which a recorder is complete: first at full speed, then in halves.
pub fn complete(
    bench: &Bench,
    recorder: Recorder,
    setting: &Setting,
    size: usize,
    seconds: f64,
    probes: u32,
) -> Result<Complete, Stop> {
    let held_back = setting.configuration.resolve(bench, recorder)?.held_back() / size as u64;
    let burst = |traffic: Traffic| -> Result<(f64, f64, Measured), Stop> {
        let measured = capture(bench, recorder, setting, &traffic.with(&UNANSWERED))?;
        let sent = measured.sent.unwrap_or(0) as f64;
        let rate = sent / measured.seconds.max(f64::EPSILON) / 1e6;
        let kept = (measured.recorded.unwrap_or(0) + held_back) as f64;
        let share = (kept / sent.max(1.0)).min(1.0);
        Ok((rate, share, measured))
    };
    let (rate, share, flood) = burst(Traffic::flood(size, seconds, &[SENDER_CPU]))?;
    let (mut low, mut high) = match share >= WHOLE {
        true => (rate, None),
        false => (0.0, Some(rate)),
    };
    let mut probe = rate * share;
    for _ in 0..probes {
        let Some(lossy) = high.filter(|lossy| *lossy > low * NARROW) else {
            break;
        };
        let traffic = Traffic::at(size, probe.min(lossy) * 1e6, seconds);
        let (rate, share, _) = burst(traffic)?;
        match share >= WHOLE {
            true => low = low.max(rate),
            false => high = Some(lossy.min(rate)),
        }
        probe = match low > 0.0 {
            true => (low * high.unwrap_or(low)).sqrt(),
            false => probe / 2.0,
        };
    }
    Ok(Complete { mpps: low, first_loss_mpps: high, flood })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::RECORDERS;

    #[test]
    fn each_grid_begins_with_the_defaults_and_has_distinct_names() {
        for (name, recorder) in RECORDERS {
            let mut names: Vec<String> = recorder.grid().iter().map(ToString::to_string).collect();
            assert_eq!(names[0], "defaults", "{name}");
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), recorder.grid().len(), "{name}");
        }
    }

    #[test]
    fn gains_within_noise_keep_the_earlier_configuration() {
        let large = without_gro(&["-B", "128"]);
        assert_eq!(best_of(&[(1.0, DEFAULTS), (1.08, large)]).1, DEFAULTS);
        assert_eq!(best_of(&[(1.0, DEFAULTS), (1.2, large)]).1, large);
        assert_eq!(best_of(&[(0.0, DEFAULTS), (0.0, large)]).1, DEFAULTS);
    }
}
