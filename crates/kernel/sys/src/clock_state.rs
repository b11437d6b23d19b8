//! How far the system's clock can be trusted: what the daemon that disciplines it told the kernel.

use rustix::io::Errno;

/// What `adjtimex` and sysfs say of the wall clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// The hardware that counts: `tsc`, `kvm-clock`.
    pub source: String,
    /// Whether somebody (NTP, PTP) keeps it in step.
    pub synchronised: bool,
    /// How wrong it is at most, in nanoseconds; `None` where nobody knows.
    pub error_bound_ns: Option<u64>,
    /// Seconds that International Atomic Time is ahead of it, where the kernel was told.
    pub tai_offset_s: Option<i32>,
}

/// Above this (16 s) the kernel itself no longer calls the clock synchronised.
const WORST_ERROR_US: i64 = 16_000_000;

impl ClockState {
    pub fn read() -> Self {
        let source = std::fs::read_to_string(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        );
        let source = source.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
        let Ok((state, time)) = ask() else {
            return Self {
                source,
                ..Self::default()
            };
        };
        let synchronised = state != libc::TIME_ERROR && time.status & libc::STA_UNSYNC == 0;
        // phc2sys sets the error to zero, which no clock has.
        let known = synchronised && (1..WORST_ERROR_US).contains(&time.maxerror);
        Self {
            source,
            synchronised,
            error_bound_ns: known.then(|| time.maxerror as u64 * 1000),
            tai_offset_s: (time.tai != 0).then_some(time.tai),
        }
    }
}

fn ask() -> Result<(i32, libc::timex), Errno> {
    // SAFETY: all of its fields are numbers, for which zero is a value; with no modes set the call only reads.
    let mut time: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `time` is a valid structure that outlives the call.
    match unsafe { libc::adjtimex(&raw mut time) } {
        state if state >= 0 => Ok((state, time)),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_only_claimed_for_a_synchronised_clock() {
        let state = ClockState::read();
        assert!(state.synchronised || state.error_bound_ns.is_none());
        assert!(!state.source.is_empty());
    }
}
