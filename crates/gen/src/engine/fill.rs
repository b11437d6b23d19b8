//! Filling the slots that a device and its engine share, for the engines that have such slots.

use std::collections::VecDeque;

use trawl_kernel::Result;

use super::Sent;
use crate::source::{Next, Source};

/// Writes a frame into the room that it is given, and tells its length, if there is one.
type Write<'w> = dyn FnMut(&mut [u8]) -> Result<Option<usize>> + 'w;

/// Has `queue` put frames of the source into free slots until `want` of them wait, whose lengths are kept oldest
/// first. Returns whether the source is at its end.
pub(super) fn fill(
    source: &mut dyn Source,
    now: u64,
    want: u64,
    lengths: &mut VecDeque<usize>,
    sent: &mut Sent,
    mut queue: impl FnMut(&mut Write<'_>) -> Result<Option<usize>>,
) -> Result<bool> {
    while (lengths.len() as u64) < want {
        let mut answer = None;
        let queued = queue(&mut |room| {
            let next = source.next(now, room)?;
            answer = Some(next);
            Ok(match next {
                Next::Frame(length) => Some(length),
                _ => None,
            })
        })?;
        match (queued, answer) {
            (Some(length), _) => {
                lengths.push_back(length);
                continue;
            }
            (None, Some(Next::Later(time))) => sent.later = Some(time),
            (None, Some(_)) => return Ok(true),
            // No slot is free.
            (None, None) => {}
        }
        break;
    }
    Ok(false)
}
