//! Times on the command line that bound the packets to read.

use trawl_sys::{clock, units};

const SECOND: u64 = 1_000_000_000;
const DAY: i64 = 86_400;

/// A bound on packets' times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Nanoseconds since 1970.
    Absolute(u64),
    /// Local time, as nanoseconds since 1970 in the local zone.
    Local(i64),
    /// Nanoseconds since midnight, on the day of the first packet.
    TimeOfDay(u64),
    AfterFirst(u64),
    BeforeNow(u64),
}

impl Bound {
    /// Returns the bound in nanoseconds since 1970; `first` is the first packet's time, `utc_offset` returns the
    /// seconds east of Greenwich at a time in seconds since 1970.
    pub fn absolute(self, first: u64, now: u64, utc_offset: fn(i64) -> i32) -> u64 {
        let offset_at = |ns: i64| i64::from(utc_offset(ns.div_euclid(SECOND as i64))) * SECOND as i64;
        let of_local = |local: i64| {
            // The offset belongs to the result, which is not known yet: the second guess is right unless the clock is
            // changed in this very hour.
            let guess = local.saturating_sub(offset_at(local));
            local.saturating_sub(offset_at(guess)).max(0) as u64
        };
        match self {
            Self::Absolute(ns) => ns,
            Self::Local(ns) => of_local(ns),
            Self::TimeOfDay(ns) => {
                let first = first.min(i64::MAX as u64) as i64;
                let local = first.saturating_add(offset_at(first));
                let midnight = local - local.rem_euclid(DAY * SECOND as i64);
                of_local(midnight.saturating_add(ns as i64))
            }
            Self::AfterFirst(ns) => first.saturating_add(ns),
            Self::BeforeNow(ns) => now.saturating_sub(ns),
        }
    }

    /// Returns true if this time does not exist on the local clock, because the clock is set forward over it.
    fn is_skipped(self, utc_offset: fn(i64) -> i32) -> bool {
        let Self::Local(local) = self else {
            return false;
        };
        let seconds = |ns: i64| ns.div_euclid(SECOND as i64);
        let shown = |utc: i64| utc + i64::from(utc_offset(utc));
        // A time that exists is valid under the offset of the day before or after, or both.
        let wanted = seconds(local);
        ![wanted - DAY, wanted + DAY].into_iter().any(|near| shown(wanted - i64::from(utc_offset(near))) == wanted)
    }
}

/// Parses a time as it is written on a command line.
pub fn parse_bound(text: &str) -> Result<Bound, String> {
    let bound = parse_form(text)?;
    if bound.is_skipped(clock::local_offset()) {
        Err(format!(
            "'{text}' does not exist in the local time zone: the clock is set forward over it; write the offset from UTC, as in \
             2026-01-31T14:30:00+02:00"
        ))
    } else {
        Ok(bound)
    }
}

/// Parses a time, whether it exists on the local clock or not.
fn parse_form(text: &str) -> Result<Bound, String> {
    let wrong = || {
        format!(
            "'{text}' is not a time; write 14:30:00, '2026-01-31 14:30:00', 2026-01-31T14:30:00+02:00, seconds since 1970, \
             +10s or -1h"
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
    if !(1970..=2554).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let days = days_since_1970(year, month.into(), day.into());
    let (next_year, next_month) = match month {
        12 => (year + 1, 1),
        month => (year, i64::from(month) + 1),
    };
    if days >= days_since_1970(next_year, next_month, 1) {
        return None;
    }
    let (clock, offset) = match clock.find(['Z', 'z', '+', '-']) {
        Some(at) => (clock[..at].trim_end(), Some(offset(&clock[at..])?)),
        None => (clock, None),
    };
    let ns = days.checked_mul(DAY * SECOND as i64)?.checked_add(time_of_day(clock)? as i64)?;
    Some(match offset {
        Some(seconds) => {
            let ns = ns.checked_sub(seconds * SECOND as i64)?;
            Bound::Absolute(u64::try_from(ns).ok()?)
        }
        None => Bound::Local(ns),
    })
}

/// Parses `Z`, `+02:00`, `-0330` or `+02` into seconds east of Greenwich.
fn offset(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return (text.len() == 1).then_some(0),
    };
    let digits: String = text[1..].split(':').collect();
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let (hours, minutes) = match (is_number, digits.len(), text.len()) {
        (true, 2, 3) => (&digits[..], "0"),
        (true, 4, 5 | 6) => digits.split_at(2),
        _ => return None,
    };
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Parses `HH:MM`, `HH:MM:SS` or `HH:MM:SS.fraction` into nanoseconds.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.splitn(3, ':');
    let hours: u64 = parts.next()?.parse().ok()?;
    let minutes: u64 = parts.next()?.parse().ok()?;
    let rest = parts.next().map_or(Some(0), seconds)?;
    let fits = hours < 24 && minutes < 60 && rest < 61 * SECOND;
    fits.then_some((hours * 3600 + minutes * 60) * SECOND + rest)
}

/// Parses seconds with or without a fraction into nanoseconds.
fn seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(SECOND)?.checked_add(fraction)
}

/// Returns days since 1970 (Howard Hinnant's `days_from_civil`).
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
        let at = |text: &str| parse_bound(text).unwrap().absolute(noon + 5, noon + SECOND, |_| 3600);
        assert_eq!(at("1700049600"), noon);
        assert_eq!(at("1700049600.25"), noon + SECOND / 4);
        assert_eq!(at("2023-11-15T12:00:00Z"), noon);
        assert_eq!(at("2023-11-15 13:00:00"), noon);
        for same in ["2023-11-15T14:00:00+02:00", "2023-11-15 08:30-0330", "2023-11-15T13:00+01"] {
            assert_eq!(at(same), noon, "{same}");
        }
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
            "2023-11-15T12:00+2",
            "2023-11-15T12:00+24:00",
            "2023-11-15T12:00Zulu",
            "2026-02-29",
            "2026-02-31",
            "2026-04-31",
            "2026-01-00",
        ] {
            assert!(parse_bound(wrong).is_err(), "{wrong}");
        }
        assert!(parse_bound("2024-02-29").is_ok() && parse_bound("2026-12-31").is_ok());
    }

    /// Returns the offset of a zone that is one hour ahead in winter, and two from 2023-03-26 01:00 UTC to 2023-10-29
    /// 01:00 UTC.
    #[test]
    fn summer_time_depends_on_the_given_time() {
        fn berlin(seconds: i64) -> i32 {
            if (1_679_792_400..1_698_541_200).contains(&seconds) { 7200 } else { 3600 }
        }
        let at = |text: &str, first: u64| parse_bound(text).unwrap().absolute(first, 0, berlin) / SECOND;
        let (winter, summer) = (1_700_049_600, 1_688_212_800); // 12:00 UTC on 2023-11-15 and 2023-07-01
        assert_eq!(at("2023-07-01 14:00", winter * SECOND), summer);
        assert_eq!(at("2023-11-15 13:00", summer * SECOND), winter);
        assert_eq!(at("14:00", summer * SECOND), summer);
        assert_eq!(at("13:00", winter * SECOND), winter);
        // Midnight and noon of the day on which the clock changes.
        assert_eq!(at("2023-03-26 12:00", 0), 1_679_824_800);
        assert_eq!(at("2023-03-26", 0), 1_679_785_200);
        // Skipped times, and times before and after; the last occurs twice.
        let skipped = |text: &str| parse_form(text).unwrap().is_skipped(berlin);
        assert!(skipped("2023-03-26 02:00") && skipped("2023-03-26 02:59:59.5"));
        for shown in ["2023-03-26 01:59:59", "2023-03-26 03:00", "2023-10-29 02:30"] {
            assert!(!skipped(shown), "{shown}");
        }
    }
}
