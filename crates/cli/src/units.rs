//! Sizes and times as people write them: 64MiB, 10s.

use trawl_gen::units::split;
pub use trawl_gen::units::{bandwidth, duration, frame_rate};

/// Bytes: a number with an optional unit. K, M, G and T are powers of 1024, with or without `iB` or `B`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: u64 = match unit
        .to_ascii_lowercase()
        .trim_end_matches('b')
        .trim_end_matches('i')
    {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => {
            return Err(format!(
                "'{unit}' is not a unit of size; use KiB, MiB or GiB"
            ));
        }
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a size; write for example 64MiB"))?;
    let total = number * factor as f64;
    if total < 0.0 || total > u64::MAX as f64 {
        return Err(format!("{text} is out of range"));
    }
    Ok(total as u64)
}

/// `1/N`, or N alone.
pub fn one_in(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("1/").unwrap_or(text);
    match number.parse() {
        Ok(0) | Err(_) => Err(format!("'{text}' is not a share; write for example 1/100")),
        Ok(n) => Ok(n),
    }
}

/// Permissions in octal, as chmod takes them.
pub fn file_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(format!(
            "'{text}' is not a file's mode; write for example 640"
        )),
    }
}

/// Packets a second: a number with an optional k, M or G (powers of 1000), with or without `pps` after it.
pub fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit.trim_end_matches("pps") {
        "" => 1.0,
        "k" | "K" => 1e3,
        "m" | "M" => 1e6,
        "g" | "G" => 1e9,
        _ => return Err(format!("'{unit}' is not a unit of rate; use k, M or G")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a rate; write for example 10k"))?;
    let total = number * factor;
    if !(1.0..=1e12).contains(&total) {
        return Err(format!("{text} is not a rate of one a second or more"));
    }
    Ok(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

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
