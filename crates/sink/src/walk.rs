//! A walk over the blocks or records of a file that is there: what it holds, and where the last whole one ends.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use trawl_io::writeback::forget;
use trawl_packet::pcapng::block::ENHANCED_PACKET;

const SMALLEST_BLOCK: u64 = 12;

/// Reads what the disk has: the page cache may have more.
fn open(path: &str) -> io::Result<BufReader<File>> {
    let file = File::open(path)?;
    forget(&file, 0, file.metadata()?.len());
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// The packets of a pcapng file's whole blocks before `end`, by interface block, and where the last of the blocks ends.
pub(crate) fn packets(path: &str, end: u64) -> io::Result<(Vec<u64>, u64)> {
    let mut file = open(path)?;
    let mut counts = Vec::new();
    let mut at = 0;
    let (mut front, mut back) = ([0; 12], [0; 4]);
    while at + SMALLEST_BLOCK <= end {
        file.read_exact(&mut front)?;
        let [kind, length, interface] = words(front);
        let next = at + u64::from(length);
        if u64::from(length) < SMALLEST_BLOCK || !length.is_multiple_of(4) || next > end {
            break;
        }
        // To the length at its end, which the smallest block has in its front.
        file.seek_relative(i64::from(length) - (front.len() + back.len()) as i64)?;
        file.read_exact(&mut back)?;
        if u32::from_le_bytes(back) != length {
            break;
        }
        if kind == ENHANCED_PACKET {
            let interface = interface as usize;
            if counts.len() <= interface {
                counts.resize(interface + 1, 0);
            }
            counts[interface] += 1;
        }
        at = next;
    }
    Ok((counts, at))
}

fn words(front: [u8; 12]) -> [u32; 3] {
    [0, 4, 8].map(|at| u32::from_le_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]))
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
