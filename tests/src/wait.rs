//! Waiting for something to become true, with an end.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nothing that is waited for takes nearly so long on a machine that works. On an emulated one, which is slow, the
/// variable TRAWL_TESTS_PATIENCE tells the seconds.
pub fn patience() -> Duration {
    static SECONDS: OnceLock<u64> = OnceLock::new();
    let told = || std::env::var("TRAWL_TESTS_PATIENCE").ok()?.parse().ok();
    Duration::from_secs(*SECONDS.get_or_init(|| told().unwrap_or(20)))
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
