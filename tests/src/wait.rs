//! Waiting with a time limit; and packet counts scaled to the machine.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Multiple of the time limit on a machine where many processes wait for each CPU.
const BUSIEST: f64 = 8.0;

/// Returns the time limit, which exceeds every wait by far, and grows with the number of processes that wait for each
/// CPU now. For slow, emulated machines and tests of many packets, the variable TRAWL_TESTS_PATIENCE sets the seconds.
pub fn patience() -> Duration {
    static SECONDS: OnceLock<u64> = OnceLock::new();
    let configured = || std::env::var("TRAWL_TESTS_PATIENCE").ok()?.parse().ok();
    let seconds = *SECONDS.get_or_init(|| configured().unwrap_or(60));
    Duration::from_secs(seconds).mul_f64(processes_for_each_cpu().clamp(1.0, BUSIEST))
}

/// Returns the machine's load for each CPU: the average of the last minute.
fn processes_for_each_cpu() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().and_then(|load| load.parse::<f64>().ok());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    load.unwrap_or(0.0) / cpus as f64
}

/// Returns the number of packets to send in tests that need many. The variable TRAWL_TESTS_FEWER is a divisor for
/// emulated machines.
pub fn amount(packets: u64) -> u64 {
    let divisor = std::env::var("TRAWL_TESTS_FEWER").ok();
    packets / divisor.and_then(|divisor| divisor.parse().ok()).unwrap_or(1).max(1)
}

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Returns once `true_now` is true; fails the test with `what` after the time limit.
pub fn wait_until(what: &str, mut true_now: impl FnMut() -> bool) {
    let began = Instant::now();
    while !true_now() {
        // A machine that became busy after the start needs longer, so the time limit is calculated again.
        let is_over = began.elapsed() > patience();
        assert!(!is_over, "waited in vain: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
