//! The file that is replayed.

use std::io::Write;

use trawl_gen::pattern::Pattern;
use trawl_packet::pcap::{file_header, record};
use trawl_sys::{Error, Result, create};

use super::super::count::Scratch;
use super::{GenerateBench, Sender, turn};

const LINKTYPE_ETHERNET: u16 = 1;
/// So much is written at once.
const PIECE: usize = 1 << 20;
/// The recorded gap, in nanoseconds.
const GAP: u64 = 1000;

/// Writes the frames that the packet engine sends with varying ports to a file of the length that is asked for.
pub(super) fn write(plan: &GenerateBench) -> Result<Scratch> {
    let scratch = Scratch::new(&plan.directory, "replay.pcap")?;
    let fail = |e| Error::os(format!("cannot write to {}", scratch.path().display()), e);
    let mut file = create::existing_file(scratch.path()).map_err(fail)?;
    let pattern: Pattern = turn::frames(Sender::Replay, plan.frame_bytes)?;
    let mut piece = Vec::with_capacity(PIECE + plan.frame_bytes);
    file_header(&mut piece, LINKTYPE_ETHERNET, 0);
    let (mut written, mut number) = (0, 0);
    while written < plan.file_bytes {
        while piece.len() < PIECE {
            let frame = pattern.frame(number);
            record(&mut piece, number * GAP, &frame, frame.len() as u32);
            number += 1;
        }
        file.write_all(&piece).map_err(fail)?;
        written += piece.len() as u64;
        piece.clear();
    }
    // Else it is still being written to the disk while the first senders have their turns.
    file.sync_all().map_err(fail)?;
    Ok(scratch)
}
