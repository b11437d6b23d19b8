//! Waiting with a time limit; and packet counts scaled to the machine.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the time limit, which exceeds every wait on a busy machine by far. For slow, emulated machines and tests of many
/// packets, the variable TRAWL_TESTS_PATIENCE sets the seconds.
pub fn patience() -> Duration {
    static SECONDS: OnceLock<u64> = OnceLock::new();
    let told = || std::env::var("TRAWL_TESTS_PATIENCE").ok()?.parse().ok();
    Duration::from_secs(*SECONDS.get_or_init(|| told().unwrap_or(60)))
}

/// Returns the number of packets to send in tests that need many. The variable TRAWL_TESTS_FEWER is a divisor for emulated
/// machines.
pub fn amount(packets: u64) -> u64 {
    let told = std::env::var("TRAWL_TESTS_FEWER").ok();
    packets / told.and_then(|told| told.parse().ok()).unwrap_or(1).max(1)
}

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Returns once `true_now` is true; fails the test with `what` after the time limit.
pub fn wait_until(what: &str, mut true_now: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !true_now() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}
