//! A walk over the blocks of a file that is there: where the last whole one ends.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

/// The end of the last whole block that lies before `end`.
pub(crate) fn last_boundary(path: &str, end: u64) -> io::Result<u64> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut at = 0;
    let mut header = [0; 8];
    while at + 12 <= end {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut header)?;
        let length = u64::from(u32::from_le_bytes([
            header[4], header[5], header[6], header[7],
        ]));
        if length < 12 || !length.is_multiple_of(4) || at + length > end {
            break;
        }
        let mut trailer = [0; 4];
        file.seek(SeekFrom::Start(at + length - 4))?;
        file.read_exact(&mut trailer)?;
        if trailer != header[4..] {
            break;
        }
        at += length;
    }
    Ok(at)
}
