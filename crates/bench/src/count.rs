//! Counts packets in the files that were written: what a capture says of itself is not taken for it.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::leftovers::file_prefix;
use trawl_kernel::{Error, Result};
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

/// A file that is gone when the run is over.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(directory: &Path, name: &str) -> Result<Self> {
        let path = directory.join(file_prefix(std::process::id()) + name);
        File::create(&path)
            .map_err(|e| Error::os(format!("cannot write to {}", path.display()), e))?;
        Ok(Self(path))
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
