//! A filter expression in a file, as tcpdump's -F takes it: for lists longer than a command line.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use trawl_sys::{Error, Result};

/// A million IPv6 networks take less.
const MOST: u64 = 64 << 20;

/// The expression; what comes after a `#` is a comment up to the line's end.
pub fn read(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let source = match path.to_str() {
        Some("-") => Path::new("/dev/stdin"),
        _ => path,
    };
    let what = || format!("cannot read the filter in {name}");
    let mut text = String::new();
    File::open(source)
        .and_then(|file| file.take(MOST + 1).read_to_string(&mut text))
        .map_err(|e| Error::os(what(), e))?;
    if text.len() as u64 > MOST {
        return Err(Error::usage(
            what(),
            format!("it has more than {MOST} bytes"),
        ));
    }
    let without_comments = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(without_comments.collect::<Vec<_>>().join(" "))
}
