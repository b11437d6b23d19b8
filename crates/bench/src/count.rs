//! Counts packets in the files that were written: what a capture says of itself is not taken for it.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::leftovers::file_prefix;
use trawl_kernel::{Error, Result, create};
use trawl_packet::pcapng::block::blocks;
use trawl_packet::read::CaptureReader;

/// The packets of a file that trawl wrote.
pub fn pcapng(path: &Path) -> Result<u64> {
    let fail = |e| Error::os(format!("cannot read {}", path.display()), e);
    let mut file = File::open(path).map_err(fail)?;
    let mut buffer = vec![0u8; 4 << 20];
    let mut held = 0;
    let mut count = 0;
    loop {
        let read = file.read(&mut buffer[held..]).map_err(fail)?;
        held += read;
        let mut whole = 0;
        for block in blocks(&buffer[..held]) {
            whole += block.bytes.len();
            count += u64::from(block.enhanced_packet().is_some());
        }
        if read == 0 || whole == 0 {
            let what = || format!("cannot count the packets of {}", path.display());
            return if held == whole {
                Ok(count)
            } else {
                Err(Error::failed(what(), "it does not end with a whole block"))
            };
        }
        buffer.copy_within(whole..held, 0);
        held -= whole;
    }
}

/// The packets in any capture file that are addressed to this MAC: not the answers that the host gave.
pub fn addressed_to(path: &Path, mac: [u8; 6]) -> Result<u64> {
    let what = || format!("cannot count the packets of {}", path.display());
    let file = File::open(path).map_err(|e| Error::os(what(), e))?;
    let fail = |e| Error::failed(what(), e);
    let mut reader = CaptureReader::new(BufReader::with_capacity(1 << 20, file)).map_err(fail)?;
    let mut count = 0;
    while let Some(packet) = reader.next_packet().map_err(fail)? {
        count += u64::from(packet.captured.starts_with(&mac));
    }
    Ok(count)
}

/// A file that is gone when the run is over. It is made anew: what others put there under such a name is not written to.
#[derive(Debug)]
pub struct Scratch(PathBuf);

/// Names that are tried where others have put files.
const ATTEMPTS: u32 = 100;
const PRIVATE: u32 = 0o600;

impl Scratch {
    pub fn new(directory: &Path, name: &str) -> Result<Self> {
        let prefix = file_prefix(std::process::id());
        let mut number = 0;
        loop {
            let path = directory.join(format!("{prefix}{number}-{name}"));
            match create::new_file(&path, PRIVATE) {
                Ok(_) => return Ok(Self(path)),
                Err(e) if e.kind() == ErrorKind::AlreadyExists && number < ATTEMPTS => number += 1,
                Err(e) => return Err(Error::os(format!("cannot make {}", path.display()), e)),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    /// Issue 12 item 26.
    #[test]
    fn a_planted_link_is_not_followed() {
        let directory = std::env::temp_dir().join(format!("trawl-scratch-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let victim = directory.join("victim");
        std::fs::write(&victim, "precious").expect("a file");
        let first = Scratch::new(&directory, "capture").expect("a file");
        let planted = first.path().to_owned();
        drop(first);
        symlink(&victim, &planted).expect("a link");
        let scratch = Scratch::new(&directory, "capture").expect("a file");
        let about = scratch.path().symlink_metadata().expect("it is there");
        assert!(about.is_file() && about.mode() & 0o777 == PRIVATE);
        assert_ne!(scratch.path(), planted);
        assert_eq!(
            std::fs::read_to_string(&victim).expect("a file"),
            "precious"
        );
        std::fs::remove_dir_all(&directory).expect("it can be removed");
    }
}
