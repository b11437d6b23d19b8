//! The forms of time in front of a line, digit by digit: each packet has one.

use super::Precision;
use super::digits::decimal;

const SECOND: u64 = 1_000_000_000;
const DAY: i64 = 86_400;

pub fn time_of_day(out: &mut String, ns: u64, utc_offset: i32, precision: Precision) {
    let (seconds, fraction) = local(ns, utc_offset);
    clock(out, seconds.rem_euclid(DAY) as u64, fraction, precision);
}

pub fn epoch(out: &mut String, ns: u64, precision: Precision) {
    decimal(out, ns / SECOND, 1);
    fraction_of(out, ns % SECOND, precision);
}

pub fn delta(out: &mut String, ns: u64, since: u64, precision: Precision) {
    out.push(if ns < since { '-' } else { ' ' });
    let delta = match precision {
        Precision::Nano => ns.abs_diff(since),
        // Compares as if the time stamps had no digits after the microseconds.
        Precision::Micro => (ns / 1000).abs_diff(since / 1000) * 1000,
    };
    clock(out, delta / SECOND, delta % SECOND, precision);
}

/// Returns seconds in the largest units that they fill: `5m1s`.
pub fn span(mut seconds: u32) -> String {
    const UNITS: [(u32, &str); 6] =
        [(31_536_000, "y"), (604_800, "w"), (86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    if seconds == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (length, unit) in UNITS {
        if seconds >= length {
            text += &format!("{}{unit}", seconds / length);
            seconds %= length;
        }
    }
    text
}

pub fn date(out: &mut String, ns: u64, utc_offset: i32, precision: Precision) {
    let (seconds, fraction) = local(ns, utc_offset);
    let (year, month, day) = civil(seconds.div_euclid(DAY));
    decimal(out, year as u64, 4);
    out.push('-');
    decimal(out, month.into(), 2);
    out.push('-');
    decimal(out, day.into(), 2);
    out.push(' ');
    clock(out, seconds.rem_euclid(DAY) as u64, fraction, precision);
}

/// Formats seconds since 1970, or before it, as `2026-01-31T14:30:00`.
pub fn date_and_time(seconds: i64) -> String {
    let (year, month, day) = civil(seconds.div_euclid(DAY));
    let second = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

fn local(ns: u64, utc_offset: i32) -> (i64, u64) {
    ((ns / SECOND) as i64 + i64::from(utc_offset), ns % SECOND)
}

fn clock(out: &mut String, seconds: u64, fraction: u64, precision: Precision) {
    decimal(out, seconds / 3600, 2);
    out.push(':');
    decimal(out, seconds / 60 % 60, 2);
    out.push(':');
    decimal(out, seconds % 60, 2);
    fraction_of(out, fraction, precision);
}

fn fraction_of(out: &mut String, ns: u64, precision: Precision) {
    out.push('.');
    match precision {
        Precision::Nano => decimal(out, ns, 9),
        Precision::Micro => decimal(out, ns / 1000, 6),
    }
    out.push(' ');
}

/// Returns year, month and day of the days since 1970 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(show: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        show(&mut out);
        out
    }

    #[test]
    fn dates_over_leap_days_and_offsets() {
        let leap = 1_709_164_799_000_000_001; // 2024-02-28 23:59:59 UTC
        assert_eq!(text(|o| date(o, leap, 0, Precision::Nano)), "2024-02-28 23:59:59.000000001 ");
        assert_eq!(text(|o| date(o, leap, 3600, Precision::Nano)), "2024-02-29 00:59:59.000000001 ");
        assert_eq!(text(|o| date(o, 0, -3600, Precision::Nano)), "1969-12-31 23:00:00.000000000 ");
        assert_eq!(text(|o| time_of_day(o, leap, -86_400, Precision::Nano)), "23:59:59.000000001 ");
    }

    #[test]
    fn a_time_before_the_last_is_negative() {
        assert_eq!(text(|o| delta(o, 5, 1_500_000_005, Precision::Nano)), "-00:00:01.500000000 ");
        assert_eq!(text(|o| delta(o, 5, 5, Precision::Nano)), " 00:00:00.000000000 ");
    }
}
