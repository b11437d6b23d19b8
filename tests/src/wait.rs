//! Waiting for something to become true, with an end.

use std::time::{Duration, Instant};

/// Nothing that is waited for takes nearly so long on a machine that works.
pub const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Returns once `true_now` is; fails the test with `what` if it never is.
pub fn wait_until(what: &str, mut true_now: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !true_now() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}
