//! How files that are written are compressed and cut into series, as `capture` and `read` take it.

use std::path::Path;

use trawl_sink::Compression;

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

/// As tcpdump takes it, in millions of bytes, or with a unit.
pub fn file_size(text: &str) -> std::result::Result<u64, String> {
    let size = match text.parse::<u64>() {
        Ok(millions) => millions.saturating_mul(1_000_000),
        Err(_) => units::bytes(text)?,
    };
    match size {
        0..4096 => Err("a file holds at least 4 KiB".to_owned()),
        _ => Ok(size),
    }
}
