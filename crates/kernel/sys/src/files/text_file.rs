//! Files written by people, read as a whole: an endless device, or a huge file given by mistake, does not fill memory.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::{Error, Result};

/// Larger than any file a person writes.
const LARGEST: u64 = 64 << 20;

/// Returns the text of a file, or of a pipe.
pub fn read(path: &Path) -> Result<String> {
    let what = format!("cannot read {}", path.display());
    let file = File::open(path).map_err(|e| Error::os(&what, e))?;
    read_from(file, &what)
}

/// Reads a text to its end; an error names `what` as the failed action.
pub fn read_from(source: impl Read, what: &str) -> Result<String> {
    let mut text = String::new();
    source.take(LARGEST + 1).read_to_string(&mut text).map_err(|e| match e.kind() {
        ErrorKind::InvalidData => Error::failed(what, "it is not text"),
        _ => Error::os(what, e),
    })?;
    if text.len() as u64 > LARGEST {
        Err(Error::failed(what, format!("it is larger than {} MiB", LARGEST >> 20)))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_refused() {
        let error = read(Path::new("/dev/zero")).expect_err("it has no end");
        assert!(error.to_string().contains("larger than 64 MiB"), "{error}");
        assert!(read(Path::new("/nonexistent")).is_err());
        assert!(read(Path::new("/etc/hostname")).is_ok());
    }
}
