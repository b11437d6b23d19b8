//! Rates and times as people write them.

use std::time::Duration;

/// The program tells sources apart up to this rate.
const FASTEST: u64 = 100_000_000;
/// A hundred years.
const LONGEST: u64 = 100 * 365 * 86_400;

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

/// Packets a second: a number, with k or M for thousands and millions.
pub fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit.trim_end_matches("pps") {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        _ => return Err(format!("'{unit}' is not a unit of rate; use k or M")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a rate; write for example 100 or 10k"))?;
    match number.checked_mul(factor) {
        Some(rate) if (1..=FASTEST).contains(&rate) => Ok(rate),
        _ => Err(format!(
            "'{text}' is out of range: a rate is 1 to {FASTEST} packets a second"
        )),
    }
}

/// How long a rule holds: a number with a unit, or several, as in 1h30m.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time; write for example 10m or 1h30m");
    let mut sum = 0.0;
    let mut rest = text;
    loop {
        let (number, behind) = split(rest);
        let end = behind
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(behind.len());
        let (unit, others) = (behind[..end].trim(), &behind[end..]);
        let seconds = match unit {
            // One number alone is in seconds.
            "" if rest.len() == text.len() => 1.0,
            "" => return Err(wrong()),
            "s" | "sec" => 1.0,
            "ms" => 1e-3,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 7.0 * 86_400.0,
            _ => {
                return Err(format!(
                    "'{unit}' is not a unit of time; use ms, s, m, h, d or w"
                ));
            }
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        sum += number * seconds;
        if others.is_empty() {
            break;
        }
        rest = others;
    }
    if sum > LONGEST as f64 {
        return Err(format!(
            "'{text}' is too long: a rule without a time has no end"
        ));
    }
    match Duration::try_from_secs_f64(sum) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("'{text}' is not a time above zero")),
    }
}

/// A time as a person would say it, in two units at most.
pub fn short_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{}s", time.as_secs_f64().ceil()),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, expected) in [
            ("1", 1),
            ("10k", 10_000),
            ("2M", 2_000_000),
            ("500pps", 500),
            ("3 kpps", 3_000),
        ] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "k",
            "1.5k",
            "1G",
            "101M",
            "99999999999999999999",
        ] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("10m", 600.0),
            ("1.5h", 5_400.0),
            ("250ms", 0.25),
            ("90", 90.0),
            ("2d", 172_800.0),
            ("1w", 604_800.0),
            ("1h30m", 5_400.0),
            ("1d 12h", 129_600.0),
            ("59m59s", 3_599.0),
        ] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_secs_f64(expected)),
                "{text}"
            );
        }
        for text in [
            "",
            "0",
            "-1s",
            "s",
            "10 fortnights",
            "nan",
            "inf",
            "0.0000000001ms",
            "9999999999d",
            "1h30",
            "1h-30m",
            "h30m",
            "1hm",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        for (seconds, text) in [
            (0.2, "1s"),
            (59.0, "59s"),
            (600.0, "10m0s"),
            (5_400.0, "1h30m"),
            (180_000.0, "2d2h"),
        ] {
            assert_eq!(short_duration(Duration::from_secs_f64(seconds)), text);
        }
    }
}
