//! A walk over the blocks of a file that is there: where the last whole one ends.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use trawl_kernel::writeback::forget;
use trawl_packet::pcapng::block::ENHANCED_PACKET;

/// Reads what the disk has: the page cache may have more.
fn open(path: &str) -> io::Result<BufReader<File>> {
    let file = File::open(path)?;
    forget(&file, 0, file.metadata()?.len());
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// The packets of a file's whole blocks before `end`, by interface block.
pub(crate) fn packets(path: &str, end: u64) -> io::Result<Vec<u64>> {
    let mut file = open(path)?;
    let mut counts = Vec::new();
    let mut at = 0;
    let mut front = [0; 12];
    while at + 12 <= end {
        file.read_exact(&mut front)?;
        let word = |from: usize| {
            let four = front
                .get(from..from + 4)
                .and_then(|four| four.first_chunk());
            four.map_or(0, |four| u32::from_le_bytes(*four))
        };
        let length = word(4);
        if length < 12 {
            break;
        }
        if word(0) == ENHANCED_PACKET {
            let interface = word(8) as usize;
            if counts.len() <= interface {
                counts.resize(interface + 1, 0);
            }
            counts[interface] += 1;
        }
        file.seek_relative(i64::from(length) - 12)?;
        at += u64::from(length);
    }
    Ok(counts)
}

/// How many whole records of a pcap file lie before `end`, and where the last of them ends.
pub(crate) fn records(path: &str, end: u64) -> io::Result<(u64, u64)> {
    const FILE_HEADER: u64 = 24;
    let mut file = open(path)?;
    if end < FILE_HEADER {
        return Ok((0, 0));
    }
    file.seek(SeekFrom::Start(FILE_HEADER))?;
    let (mut count, mut at) = (0, FILE_HEADER);
    let mut header = [0; 16];
    while at + header.len() as u64 <= end {
        file.read_exact(&mut header)?;
        let captured = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        // Room that was never written.
        if header[12..] == [0; 4] {
            break;
        }
        let next = at + header.len() as u64 + u64::from(captured);
        if next > end {
            break;
        }
        file.seek_relative(i64::from(captured))?;
        (count, at) = (count + 1, next);
    }
    Ok((count, at))
}

/// The end of the last whole block that lies before `end`.
pub(crate) fn last_boundary(path: &str, end: u64) -> io::Result<u64> {
    let mut file = open(path)?;
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
