//! Several sources as one, in the order of their packets' times.

use trawl_packet::read::{ReadError, Step};

use crate::record::PacketSource;

/// Sources merged by time: the one with the earliest packet is always the next.
#[derive(Debug)]
pub struct Merge<S> {
    streams: Vec<Stream<S>>,
    current: usize,
}

#[derive(Debug)]
struct Stream<S> {
    source: S,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Next step not read yet.
    Due,
    /// At a packet of this time, which has not been handed out.
    At(u64),
    Ended,
}

/// The next step, or the reason why a source has no more; its number is [`Merge::index`].
pub type Next = Result<Option<Step>, ReadError>;

impl<S: PacketSource> Merge<S> {
    pub fn new(sources: Vec<S>) -> Self {
        let stream = |source| Stream { source, state: State::Due };
        Self { streams: sources.into_iter().map(stream).collect(), current: 0 }
    }

    /// Returns the next packet of any source, or its next block of another type. After an error the other sources go
    /// on.
    pub fn step(&mut self) -> Next {
        if let [only] = &mut self.streams[..] {
            return only.source.step();
        }
        let due = |stream: &Stream<S>| stream.state == State::Due;
        while let Some(index) = self.streams.iter().position(due) {
            self.current = index;
            let stream = &mut self.streams[index];
            match stream.source.step() {
                Ok(Some(Step::Packet)) => stream.state = State::At(stream.source.time_ns()),
                Ok(Some(block)) => return Ok(Some(block)),
                Ok(None) => stream.state = State::Ended,
                Err(error) => {
                    if !error.would_block() {
                        stream.state = State::Ended;
                    }
                    return Err(error);
                }
            }
        }
        let times = self.streams.iter().enumerate();
        let earliest = times
            .filter_map(|(index, stream)| match stream.state {
                State::At(time) => Some((time, index)),
                _ => None,
            })
            .min();
        let Some((_, index)) = earliest else {
            return Ok(None);
        };
        self.current = index;
        self.streams[index].state = State::Due;
        Ok(Some(Step::Packet))
    }

    pub fn into_sources(self) -> impl Iterator<Item = S> {
        self.streams.into_iter().map(|stream| stream.source)
    }

    pub fn sources(&self) -> impl Iterator<Item = &S> {
        self.streams.iter().map(|stream| &stream.source)
    }

    /// Returns the number of the source of the last step.
    pub fn index(&self) -> usize {
        self.current
    }

    /// Returns the source of the last step.
    pub fn source(&self) -> Option<&S> {
        self.streams.get(self.current).map(|stream| &stream.source)
    }

    /// Returns the source of the last step, for a caller that replaces it by its successor.
    pub fn source_mut(&mut self) -> Option<&mut S> {
        let stream = self.streams.get_mut(self.current)?;
        stream.state = State::Due;
        Some(&mut stream.source)
    }
}
