//! Experiments: one harness drives every mechanism over the same traffic, with the same accounting.
//!
//! The mechanisms take turns (A B C A B C …), so that what else happens on the machine falls on all of them, and a
//! mechanism is compared with what ran in the same turn. Each run is in a lab of its own.

pub mod capture_bandwidth;
pub mod capture_filtered;
mod clock;
mod count;
pub mod drop_reasons;
mod figures;
pub mod generate;
pub mod guard_rules;
mod leftovers;
mod mechanism;
mod peer;
pub mod study;
pub mod xdp_programs;

use std::path::PathBuf;

use serde::Serialize;
use trawl_kernel::host;

pub use clock::ClockCost;
pub use count::addressed_to;
pub use figures::{Findings, Median, Spread};
pub use leftovers::clean_up;
pub use mechanism::Run;
pub use peer::Memory;

use mechanism::{Mechanism, Setting};
use trawl_lab::PairOptions;

/// A run whose sender stayed further below the rate that was asked for says nothing about that rate.
const RATE_REACHED: f64 = 0.95;

/// What all capture experiments are told.
#[derive(Clone, Debug)]
pub struct Plan {
    pub frames: u64,
    pub frame_bytes: usize,
    /// Frames a second; `None`: as fast as they go.
    pub rate: Option<u64>,
    /// Where the captures are written; removed afterwards.
    pub directory: PathBuf,
    pub ring_size: String,
    pub repetitions: u32,
    /// The program to measure.
    pub trawl: PathBuf,
    pub sender_cpu: usize,
    pub capture_cpu: usize,
    pub with_tcpdump: bool,
}

/// All runs, and what follows from them.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub experiment: &'static str,
    pub conditions: Conditions,
    pub groups: Vec<Group>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockCost>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub long_expressions: Vec<capture_filtered::LongExpression>,
    /// Mechanisms that cannot run on this machine, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Why the experiment is not whole: mechanisms that did not run, files that hold nothing.
    pub failures: Vec<String>,
}

/// The runs over one kind of traffic, with one filter or none.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    pub traffic: String,
    pub runs: Vec<Run>,
    pub medians: Vec<Median>,
    pub findings: Findings,
}

/// Under what circumstances figures were taken: without these they mean nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    pub hardware: String,
    pub os: String,
    pub cpus: usize,
    pub clock_source: String,
    /// The load average before the first run: what else the machine was doing.
    pub load: String,
    /// What each CPU did.
    pub cpu_use: String,
    pub driver: String,
    pub xdp_mode: String,
    pub queues: u32,
    pub frame_bytes: usize,
    pub frames: u64,
    /// Frames a second that the sender was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    pub repetitions: u32,
    pub ring_size: String,
    /// What becomes of the frames, by mechanism.
    pub fates: Vec<String>,
}

impl Conditions {
    fn of(plan: &Plan, mechanisms: &[Mechanism]) -> Self {
        let host = host::describe();
        let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let read = |path| {
            std::fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        Self {
            hardware: host.hardware,
            os: host.os,
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            clock_source: read(clock),
            load: read("/proc/loadavg"),
            cpu_use: format!(
                "sender, veth and XDP program on CPU {}, capture on CPU {}",
                plan.sender_cpu, plan.capture_cpu
            ),
            driver: "veth".to_owned(),
            xdp_mode: "native".to_owned(),
            queues: PairOptions::default().queues,
            frame_bytes: plan.frame_bytes,
            frames: plan.frames,
            rate: plan.rate,
            repetitions: plan.repetitions,
            ring_size: plan.ring_size.clone(),
            fates: mechanisms
                .iter()
                .map(|one| format!("{}: {}", one.name(), one.fate()))
                .collect(),
        }
    }
}

/// Lets the mechanisms take turns over one kind of traffic.
fn take_turns(
    setting: &Setting<'_>,
    mechanisms: &[Mechanism],
    traffic: String,
    failures: &mut Vec<String>,
    progress: &mut dyn FnMut(&str),
) -> Group {
    let mut runs: Vec<Run> = Vec::new();
    for repetition in 1..=setting.plan.repetitions {
        for mechanism in mechanisms {
            progress(&format!("{}, repetition {repetition}", mechanism.name()));
            match mechanism.run(setting, repetition) {
                Ok(run) => {
                    if matches!(mechanism, Mechanism::Trawl | Mechanism::Traced)
                        && run.recorded == Some(0)
                    {
                        failures.push(format!(
                            "repetition {repetition}: trawl's file holds no packet ({})",
                            mechanism.name()
                        ));
                    }
                    let wanted = setting.plan.rate.unwrap_or(0) as f64;
                    if run.sent_per_second < wanted * RATE_REACHED {
                        failures.push(format!(
                            "repetition {repetition}: {}: the sender reached {:.0} of {wanted:.0} frames a second",
                            mechanism.name(),
                            run.sent_per_second
                        ));
                    }
                    runs.push(run);
                }
                Err(why) => failures.push(format!(
                    "repetition {repetition}: {} did not run: {why}",
                    mechanism.name()
                )),
            }
        }
    }
    figures::relate(&mut runs);
    let medians = mechanisms
        .iter()
        .filter_map(|one| Median::of(one.name(), &runs))
        .collect();
    let findings = Findings::of(&runs, setting.plan.rate.is_none());
    Group {
        filter: setting.filter.map(str::to_owned),
        traffic,
        runs,
        medians,
        findings,
    }
}
