//! Clocks: the wall clock, the clock that BPF programs read, and the offset between them.

use rustix::io::Errno;
use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

/// The clock that tap programs stamp records with before the offset is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramClock {
    /// International atomic time: a whole number of seconds ahead of the wall clock, whose steps it follows.
    Tai,
    /// Time since boot, for kernels older than 6.1; trawl must follow steps of the wall clock.
    Monotonic,
}

impl ProgramClock {
    /// Returns the number to add to this clock's time to get the wall clock's, modulo 2^64.
    pub fn offset_to_wall(self) -> u64 {
        match self {
            Self::Tai => {
                let (before, wall, after) = (tai(), wall(), tai());
                let difference = wall as i64 - (before / 2 + after / 2) as i64;
                let seconds = (difference as f64 / 1e9).round() as i64;
                (seconds * 1_000_000_000) as u64
            }
            Self::Monotonic => wall().wrapping_sub(now(ClockId::Monotonic)),
        }
    }
}

/// Returns nanoseconds of International Atomic Time: the clock of stamps in packets.
pub fn tai() -> u64 {
    clock_gettime_dynamic(DynamicClockId::Tai).map_or(0, nanoseconds)
}

/// Returns the number to add to [`monotonic`] to get [`tai`].
pub fn monotonic_to_tai() -> u64 {
    offset_from_monotonic(tai)
}

/// Returns the number to add to [`monotonic`] to get another clock's time.
fn offset_from_monotonic(other: impl Fn() -> u64) -> u64 {
    // The thread may be preempted between two readings: of a few pairs, the closest is the most accurate.
    let pair = |_| {
        let before = monotonic();
        let there = other();
        let width = monotonic() - before;
        (width, there.wrapping_sub(before + width / 2))
    };
    (0..5).map(pair).min().map_or(0, |(_, offset)| offset)
}

fn now(clock: ClockId) -> u64 {
    nanoseconds(clock_gettime(clock))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns nanoseconds since 1970.
pub fn wall() -> u64 {
    now(ClockId::Realtime)
}

/// Formats the day of a time in nanoseconds since 1970, in UTC: `2026-11-22`.
pub fn date_of(ns: u64) -> String {
    // Days since 1 March of the year 0, in which leap days come last.
    let days = (ns / 86_400_000_000_000) as i64 + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + next)
}

/// Returns nanoseconds of the monotonic clock, which steps of the wall clock do not change.
pub fn monotonic() -> u64 {
    now(ClockId::Monotonic)
}

/// Returns nanoseconds since the machine started, its sleep included.
pub fn since_boot() -> u64 {
    now(ClockId::Boottime)
}

/// A detector of steps of the wall clock, by jumps of its offset from the monotonic clock.
#[derive(Debug)]
pub struct StepDetector {
    offset: u64,
}

/// Smallest change of the offset that counts as a step.
const STEP_NS: i64 = 1_000_000;

impl StepDetector {
    pub fn new() -> Self {
        Self { offset: monotonic_to_wall() }
    }

    /// Returns true if the wall clock was stepped since the last call.
    pub fn stepped(&mut self) -> bool {
        let offset = monotonic_to_wall();
        let moved = offset.wrapping_sub(self.offset) as i64;
        self.offset = offset;
        moved.abs() > STEP_NS
    }

    /// Returns the number to add to [`monotonic`] to get [`wall`], modulo 2^64, as of the last call.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Default for StepDetector {
    fn default() -> Self {
        Self::new()
    }
}

fn monotonic_to_wall() -> u64 {
    offset_from_monotonic(wall)
}

/// Returns the local offset from UTC now, in seconds east of Greenwich.
pub fn utc_offset() -> i32 {
    utc_offset_at((wall() / 1_000_000_000) as i64)
}

/// Returns the offset at another time, in seconds since 1970: it changes with daylight saving.
fn utc_offset_at(seconds: i64) -> i32 {
    let then = seconds as libc::time_t;
    // SAFETY: `time` is plain memory that localtime_r fills; both pointers are valid for the call.
    unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&then, &mut time);
        time.tm_gmtoff as i32
    }
}

/// Returns `utc_offset_at`, after libc has read the zone's file, which the process may be unable to open later.
pub fn local_offset() -> fn(i64) -> i32 {
    utc_offset();
    utc_offset_at
}

/// Formats the local time now by strftime(3); returns the format itself if that fails.
pub fn strftime(format: &str) -> String {
    strftime_at(format, wall())
}

/// Formats a time in nanoseconds since 1970 like [`strftime`].
pub fn strftime_at(format: &str, time_ns: u64) -> String {
    let Ok(wanted) = std::ffi::CString::new(format) else {
        return format.to_owned();
    };
    let now = (time_ns / 1_000_000_000) as libc::time_t;
    let mut text = vec![0u8; 4096];
    // SAFETY: `time` is plain memory that localtime_r fills; the format ends with a zero, and the buffer has the given
    // length.
    let length = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut time);
        libc::strftime(text.as_mut_ptr().cast(), text.len(), wanted.as_ptr(), &time)
    };
    match length {
        0 => format.to_owned(),
        _ => String::from_utf8_lossy(&text[..length]).into_owned(),
    }
}

// State of the system's clock, as its NTP or PTP daemon reported it to the kernel.

/// The wall clock's state, from `adjtimex` and sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// The hardware that counts: `tsc`, `kvm-clock`.
    pub source: String,
    /// True if NTP or PTP keeps the clock synchronised.
    pub synchronised: bool,
    /// Upper bound of the clock's error, in nanoseconds; `None` if it is not known.
    pub error_bound_ns: Option<u64>,
    /// Seconds that International Atomic Time is ahead of the clock, if the kernel knows.
    pub tai_offset_s: Option<i32>,
}

/// Error above which the kernel itself calls the clock unsynchronised: 16 s.
const WORST_ERROR_US: i64 = 16_000_000;

impl ClockState {
    pub fn read() -> Self {
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let source = source.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
        let Ok((state, time)) = read_kernel_clock() else {
            return Self { source, ..Self::default() };
        };
        let synchronised = state != libc::TIME_ERROR && time.status & libc::STA_UNSYNC == 0;
        // phc2sys reports an error of zero, which is impossible.
        let known = synchronised && (1..WORST_ERROR_US).contains(&time.maxerror);
        Self {
            source,
            synchronised,
            error_bound_ns: known.then(|| time.maxerror as u64 * 1000),
            tai_offset_s: (time.tai != 0).then_some(time.tai),
        }
    }
}

fn read_kernel_clock() -> Result<(i32, libc::timex), Errno> {
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
    fn days_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_761_599, "2026-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date_of(seconds * 1_000_000_000), date);
        }
    }

    #[test]
    fn a_bound_is_only_claimed_for_a_synchronised_clock() {
        let state = ClockState::read();
        assert!(state.synchronised || state.error_bound_ns.is_none());
        assert!(!state.source.is_empty());
    }
}
