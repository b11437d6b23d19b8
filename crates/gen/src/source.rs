//! Sources of frames.

use trawl_sys::Result;

use crate::pattern::PatternSource;

/// A source's answer to a request for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame of this many bytes was written.
    Frame(usize),
    /// No frame yet: the next one is due at this time, in nanoseconds since the start of the run.
    Later(u64),
    /// The source is at its end.
    End,
}

/// A sequence of frames. Each thread of a run has its own source.
pub trait Source: Send {
    /// Writes the next frame to the beginning of `room`. `now` is the time since the start of the run in nanoseconds:
    /// sources with their own timing, such as a recording, compare it with the frame's.
    fn next(&mut self, now: u64, room: &mut [u8]) -> Result<Next>;

    /// Returns the length of the longest frame: engines make that much room.
    fn longest(&self) -> usize;

    /// Returns the pattern of the frames, if any: then they can be made in the kernel.
    fn pattern(&mut self) -> Option<&mut PatternSource> {
        None
    }
}

impl Source for PatternSource {
    fn next(&mut self, _now: u64, room: &mut [u8]) -> Result<Next> {
        Ok(Next::Frame(self.write(room)))
    }

    fn longest(&self) -> usize {
        self.frames().longest()
    }

    fn pattern(&mut self) -> Option<&mut PatternSource> {
        Some(self)
    }
}

/// A cycle of ready-made frames.
#[derive(Clone, Debug)]
pub struct InTurn {
    frames: Vec<Vec<u8>>,
    next: usize,
}

impl InTurn {
    /// Creates the source. Without frames it is at its end from the beginning.
    pub fn new(frames: Vec<Vec<u8>>) -> Self {
        Self { frames, next: 0 }
    }
}

impl Source for InTurn {
    fn next(&mut self, _now: u64, room: &mut [u8]) -> Result<Next> {
        let Some(frame) = self.frames.get(self.next) else {
            return Ok(Next::End);
        };
        room[..frame.len()].copy_from_slice(frame);
        self.next = (self.next + 1) % self.frames.len();
        Ok(Next::Frame(frame.len()))
    }

    fn longest(&self) -> usize {
        self.frames.iter().map(Vec::len).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_in_turn() {
        let mut source = InTurn::new(vec![vec![1], vec![2, 2], vec![3]]);
        let mut room = vec![0; source.longest()];
        let lengths: Vec<Next> = (0..4).map(|_| source.next(0, &mut room).unwrap()).collect();
        assert_eq!(lengths, [1, 2, 1, 1].map(Next::Frame));
        assert_eq!(room[0], 1);
        assert_eq!(InTurn::new(Vec::new()).next(0, &mut room).unwrap(), Next::End);
    }
}
