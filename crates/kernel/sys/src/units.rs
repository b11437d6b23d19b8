//! Rates, times and sizes in text form: 1.5Mpps, 500Mbit, 10s, 64MiB.

use std::time::Duration;

use serde::Serializer;

/// Longest time in seconds: 31 years.
const LONGEST: f64 = 1e9;

/// Parses a time: seconds, or a number with a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "" | "s" | "sec" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return Err(format!("'{unit}' is not a unit of time; use ms, s, m, h, d or w")),
    };
    let number: f64 = number.parse().map_err(|_| format!("'{text}' is not a time; write for example 10s"))?;
    let total = number * seconds;
    if total > LONGEST {
        return Err(format!("{text} is longer than {LONGEST} s"));
    }
    if total.is_nan() || total <= 0.0 {
        return Err(format!("{text} is not a time above zero"));
    }
    Ok(Duration::from_secs_f64(total))
}

/// Parses frames a second, for example 1.5Mpps or 0.5.
pub fn frame_rate(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text);
    let unit = unit.strip_suffix("pps").unwrap_or(unit);
    let why = || format!("'{text}' is not a rate; write for example 1.5Mpps");
    above_zero(number, unit, text, why)
}

/// Parses bits a second: a number with a unit such as Mbit, or M alone.
pub fn bandwidth(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text);
    let why = || format!("'{text}' is not a bandwidth; write for example 500Mbit");
    let unit = unit
        .strip_suffix("bit/s")
        .or_else(|| unit.strip_suffix("bps"))
        .or_else(|| unit.strip_suffix("bit"))
        .unwrap_or(unit);
    above_zero(number, unit, text, why)
}

fn above_zero(number: &str, unit: &str, text: &str, why: impl Fn() -> String) -> Result<f64, String> {
    let factor = match unit {
        "" => 1.0,
        "k" | "K" => 1e3,
        "m" | "M" => 1e6,
        "g" | "G" => 1e9,
        _ => return Err(why()),
    };
    let total = number.parse::<f64>().map_err(|_| why())? * factor;
    if total > 0.0 && total <= 1e15 { Ok(total) } else { Err(format!("{text} is not above zero, or above 1e15")) }
}

/// Splits a text into the number and its unit.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

/// Parses bytes: a number with an optional unit. K, M, G and T are powers of 1024, with or without `iB` or `B`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => {
            return Err(format!("'{unit}' is not a unit of size; use KiB, MiB or GiB"));
        }
    };
    let number: f64 = number.parse().map_err(|_| format!("'{text}' is not a size; write for example 64MiB"))?;
    let total = number * factor as f64;
    if total < 0.0 || total > u64::MAX as f64 {
        return Err(format!("{text} is out of range"));
    }
    Ok(total as u64)
}

/// Parses `1/N`, or N alone.
pub fn one_in(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("1/").unwrap_or(text);
    match number.parse() {
        Ok(0) | Err(_) => Err(format!("'{text}' is not a share; write for example 1/100")),
        Ok(n) => Ok(n),
    }
}

/// Parses permissions in octal, like chmod.
pub fn file_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(format!("'{text}' is not a file's mode; write for example 640")),
    }
}

/// Parses packets a second, as a whole number: 10k, 1Mpps.
pub fn rate(text: &str) -> Result<u64, String> {
    let total = frame_rate(text)?;
    if !(1.0..=1e12).contains(&total) {
        return Err(format!("{text} is not a rate of one a second or more"));
    }
    Ok(total as u64)
}

// Numbers in JSON documents.

/// Finer than any clock in these documents.
const DECIMALS: i32 = 9;
/// More digits than any number in these documents.
const DIGITS: i32 = 12;

/// Serializes a computed number without spurious digits: 2.927498895, not 2.9274988950000003. Large numbers have fewer
/// decimals.
pub fn rounded<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let before_point = value.abs().max(1.0).log10() as i32 + 1;
    let factor = 10f64.powi((DIGITS - before_point).clamp(0, DECIMALS));
    serializer.serialize_f64((value * factor).round() / factor)
}

/// Serializes an optional number like [`rounded`].
pub fn rounded_option<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => rounded(value, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_weeks_or_shorter() {
        for (text, seconds) in [("2w", 1_209_600), ("7d", 604_800), ("1h", 3600), ("10s", 10), ("10", 10)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["d", "0s", "1y", "99999999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_and_bandwidths() {
        assert_eq!(frame_rate("1.5Mpps"), Ok(1.5e6));
        assert_eq!(frame_rate("0.5"), Ok(0.5));
        assert_eq!(frame_rate("10kpps"), Ok(1e4));
        assert_eq!(bandwidth("500Mbit"), Ok(5e8));
        assert_eq!(bandwidth("1Gbit/s"), Ok(1e9));
        assert_eq!(bandwidth("64kbps"), Ok(64e3));
        for text in ["", "0", "-1", "pps", "1 parsec", "inf", "nan", "1e300"] {
            assert!(frame_rate(text).is_err(), "{text}");
            assert!(bandwidth(&format!("{text}bit")).is_err(), "{text}");
        }
        // Short form that --rate also accepts.
        assert_eq!(bandwidth("1G"), Ok(1e9));
        assert!(bandwidth("1Gbyte").is_err());
    }

    #[test]
    fn times() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["", "0", "-1s", "s", "1 fortnight", "inf", "nan"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64M", 64 << 20),
            ("1TiB", 1 << 40),
            ("1.5k", 1536),
            ("2gb", 2 << 30),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "MiB", "-1", "64 bananas", "1e400"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
