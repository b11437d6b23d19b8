//! Experiments: one harness drives every mechanism over the same traffic, with the same accounting.

pub mod capture_bandwidth;
mod peer;

use serde::Serialize;
use trawl_kernel::host;

/// Under what circumstances figures were taken: without these they mean nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    pub hardware: String,
    pub os: String,
    pub cpus: usize,
    pub clock_source: String,
    /// What each CPU did.
    pub cpu_use: String,
    pub driver: String,
    pub xdp_mode: String,
    pub queues: u32,
    pub frame_bytes: usize,
    pub frames: u64,
    pub ring_size: String,
}

impl Conditions {
    fn here() -> Self {
        let host = host::describe();
        let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        Self {
            hardware: host.hardware,
            os: host.os,
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            clock_source: std::fs::read_to_string(clock)
                .unwrap_or_default()
                .trim()
                .to_owned(),
            cpu_use: String::new(),
            driver: "veth".to_owned(),
            xdp_mode: "native".to_owned(),
            queues: 0,
            frame_bytes: 0,
            frames: 0,
            ring_size: String::new(),
        }
    }
}
