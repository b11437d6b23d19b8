//! Waiting for something to become true, with an end; and how much of a thing suffices.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nothing that is waited for takes nearly so long on a machine that works. On an emulated one, which is slow, and for
/// tests of a great many packets, the variable TRAWL_TESTS_PATIENCE tells the seconds.
pub fn patience() -> Duration {
    static SECONDS: OnceLock<u64> = OnceLock::new();
    let told = || std::env::var("TRAWL_TESTS_PATIENCE").ok()?.parse().ok();
    Duration::from_secs(*SECONDS.get_or_init(|| told().unwrap_or(20)))
}

/// How many packets to send where it takes many. On an emulated machine the variable TRAWL_TESTS_FEWER tells by what
/// they are divided.
pub fn amount(packets: u64) -> u64 {
    let told = std::env::var("TRAWL_TESTS_FEWER").ok();
    packets / told.and_then(|told| told.parse().ok()).unwrap_or(1).max(1)
}

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Returns once `true_now` is; fails the test with `what` if it never is.
pub fn wait_until(what: &str, mut true_now: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !true_now() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}
