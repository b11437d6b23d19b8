//! Times as people give them: of day, with a date, since 1970, or relative to the first packet or to now.

use crate::units;

const SECOND: u64 = 1_000_000_000;
const DAY: i64 = 86_400;

/// A time that a packet is to be before or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Nanoseconds since 1970.
    Absolute(u64),
    /// Nanoseconds since 1970 as a clock on the wall shows them here.
    Local(i64),
    /// Nanoseconds since midnight, of the day of the first packet.
    TimeOfDay(u64),
    AfterFirst(u64),
    BeforeNow(u64),
}

impl Bound {
    /// In nanoseconds since 1970; `first` is the first packet's time.
    pub fn absolute(self, first: u64, now: u64, utc_offset: i32) -> u64 {
        let offset = i64::from(utc_offset) * SECOND as i64;
        match self {
            Self::Absolute(ns) => ns,
            Self::Local(ns) => ns.saturating_sub(offset).max(0) as u64,
            Self::TimeOfDay(ns) => {
                let local = (first.min(i64::MAX as u64) as i64).saturating_add(offset);
                let midnight = local - local.rem_euclid(DAY * SECOND as i64);
                midnight
                    .saturating_add(ns as i64)
                    .saturating_sub(offset)
                    .max(0) as u64
            }
            Self::AfterFirst(ns) => first.saturating_add(ns),
            Self::BeforeNow(ns) => now.saturating_sub(ns),
        }
    }
}

pub(crate) fn parse(text: &str) -> Result<Bound, String> {
    let wrong = || {
        format!(
            "'{text}' is not a time; write 14:30:00, '2026-01-31 14:30:00', seconds since 1970, +10s or -1h"
        )
    };
    let span = |text: &str| {
        let span = units::duration(text).map_err(|_| wrong())?;
        u64::try_from(span.as_nanos()).map_err(|_| wrong())
    };
    if let Some(rest) = text.strip_prefix('+') {
        return span(rest).map(Bound::AfterFirst);
    }
    if let Some(rest) = text.strip_prefix('-') {
        return span(rest).map(Bound::BeforeNow);
    }
    if let Some((date, clock)) = text.split_once([' ', 'T']) {
        return with_date(date, clock).ok_or_else(wrong);
    }
    if text.contains(':') {
        return time_of_day(text).map(Bound::TimeOfDay).ok_or_else(wrong);
    }
    if text.contains('-') {
        return with_date(text, "00:00").ok_or_else(wrong);
    }
    seconds(text).map(Bound::Absolute).ok_or_else(wrong)
}

fn with_date(date: &str, clock: &str) -> Option<Bound> {
    let mut parts = date.splitn(3, '-');
    let year: i64 = parts.next()?.parse().ok()?;
    let month: u8 = parts.next()?.parse().ok()?;
    let day: u8 = parts.next()?.parse().ok()?;
    if !(1970..=2554).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (clock, is_utc) = match clock.strip_suffix('Z') {
        Some(clock) => (clock, true),
        None => (clock, false),
    };
    let days = days_since_1970(year, month.into(), day.into());
    let ns = days
        .checked_mul(DAY * SECOND as i64)?
        .checked_add(time_of_day(clock)? as i64)?;
    Some(if is_utc {
        Bound::Absolute(ns as u64)
    } else {
        Bound::Local(ns)
    })
}

/// `HH:MM`, `HH:MM:SS` or `HH:MM:SS.fraction`, in nanoseconds.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.splitn(3, ':');
    let hours: u64 = parts.next()?.parse().ok()?;
    let minutes: u64 = parts.next()?.parse().ok()?;
    let rest = parts.next().map_or(Some(0), seconds)?;
    let fits = hours < 24 && minutes < 60 && rest < 61 * SECOND;
    fits.then_some((hours * 3600 + minutes * 60) * SECOND + rest)
}

/// Seconds with or without a fraction, in nanoseconds.
fn seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(SECOND)?
        .checked_add(fraction)
}

/// Howard Hinnant's `days_from_civil`.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_time() {
        let noon = 1_700_049_600 * SECOND; // 2023-11-15 12:00:00 UTC
        let at = |text: &str| parse(text).unwrap().absolute(noon + 5, noon + SECOND, 3600);
        assert_eq!(at("1700049600"), noon);
        assert_eq!(at("1700049600.25"), noon + SECOND / 4);
        assert_eq!(at("2023-11-15T12:00:00Z"), noon);
        assert_eq!(at("2023-11-15 13:00:00"), noon);
        assert_eq!(at("2023-11-15"), noon - 13 * 3600 * SECOND);
        assert_eq!(at("13:00"), noon);
        assert_eq!(at("13:00:01.5"), noon + 3 * SECOND / 2);
        assert_eq!(at("+10ms"), noon + 10_000_005);
        assert_eq!(at("-1s"), noon);
        for wrong in [
            "",
            "noon",
            "25:00",
            "12:61",
            "2023-13-01",
            "1e9",
            "+x",
            "-",
            "12:",
            "2023-11-15 12",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
