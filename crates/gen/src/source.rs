//! Where frames come from.

use trawl_sys::Result;

use crate::pattern::PatternSource;

/// What a source has to say when it is asked for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame of this many bytes was written.
    Frame(usize),
    /// None yet: the next one is due at this time, in nanoseconds since the start of the run.
    Later(u64),
    /// There are no more.
    End,
}

/// Frames, one after the other. Each thread of a run has a source of its own.
pub trait Source: Send {
    /// Writes the next frame to the beginning of `room`. `now` is the time since the start of the run in
    /// nanoseconds: sources that have a timing of their own, such as a recording, compare it with the frame's.
    fn next(&mut self, now: u64, room: &mut [u8]) -> Result<Next>;

    /// The longest frame there will be: engines make that much room.
    fn longest(&self) -> usize;

    /// The pattern that the frames follow, if they do: then they can be made in the kernel.
    fn pattern(&mut self) -> Option<&mut PatternSource> {
        None
    }
}

/// Ready-made frames, in turn, from the first again after the last.
#[derive(Clone, Debug)]
pub struct InTurn {
    frames: Vec<Vec<u8>>,
    next: usize,
}

impl InTurn {
    /// Without any frame the source is at its end from the beginning.
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
        assert_eq!(
            InTurn::new(Vec::new()).next(0, &mut room).unwrap(),
            Next::End
        );
    }
}
