//! How files that are written are compressed and cut into series, as `capture` and `read` take it.

use std::path::Path;

use trawl_pipeline::plan::Compression;

use crate::units;

/// Programs that files are compressed for.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Packing {
    None,
    Zstd,
    Lz4,
    Gzip,
}

/// As asked for, or as the end of the file's name says.
pub fn compression(asked: Option<Packing>, path: &Path) -> Option<Compression> {
    match asked {
        Some(Packing::None) => None,
        Some(Packing::Zstd) => Some(Compression::Zstd),
        Some(Packing::Lz4) => Some(Compression::Lz4),
        Some(Packing::Gzip) => Some(Compression::Gzip),
        None => match path.extension()?.to_str()? {
            "zst" => Some(Compression::Zstd),
            "lz4" => Some(Compression::Lz4),
            "gz" => Some(Compression::Gzip),
            _ => None,
        },
    }
}

/// The smallest size of a file of a series.
pub const SMALLEST_FILE: u64 = 4096;

/// As tcpdump takes it, in millions of bytes, or with a unit.
pub fn file_size(text: &str) -> std::result::Result<u64, String> {
    let size = match text.parse::<f64>() {
        Ok(millions) => millions * 1e6,
        Err(_) => units::bytes(text)? as f64,
    };
    match size {
        _ if size < SMALLEST_FILE as f64 => Err("a file holds at least 4 KiB".to_owned()),
        _ if size < i64::MAX as f64 => Ok(size as u64),
        _ => Err("no file is as large as that".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_millions_or_have_a_unit() {
        for (text, size) in [
            ("5000", Some(5_000_000_000)),
            ("5000.0", Some(5_000_000_000)),
            ("0.5", Some(500_000)),
            ("64KiB", Some(65_536)),
            ("0", None),
            ("-1", None),
            ("1KiB", None),
            ("18446744073709551615", None),
            ("inf", None),
            ("nan", None),
            ("1x", None),
        ] {
            assert_eq!(file_size(text).ok(), size, "{text}");
        }
    }
}
