//! Segments of one direction that wait for an acknowledgement, and the round trips that acknowledgements show.

use std::collections::VecDeque;

use trawl_packet::walk::is_before;

/// A segment, with what the caller notes about it.
#[derive(Clone, Copy, Debug)]
pub struct Sent<T> {
    pub end: u32,
    pub ns: u64,
    /// Its acknowledgement may answer the first segment or the repetition (Karn).
    pub is_repeated: bool,
    pub note: T,
}

impl<T> Sent<T> {
    /// Returns the round trip to the host that acknowledges it now; `None` if it was repeated.
    pub fn round_trip(&self, now: u64) -> Option<u64> {
        (!self.is_repeated).then(|| now.saturating_sub(self.ns))
    }
}

/// The segments in the order of their numbers.
#[derive(Clone, Debug)]
pub struct Unacknowledged<T>(VecDeque<Sent<T>>);

impl<T> Default for Unacknowledged<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Unacknowledged<T> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sent<T>> {
        self.0.iter()
    }

    /// Adds a new segment. If there are `most` already, the oldest one is forgotten.
    pub fn push(&mut self, end: u32, ns: u64, note: T, most: usize) {
        if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(Sent { end, ns, is_repeated: false, note });
    }

    /// Marks the segments that a repetition has bytes of. Returns the first of them.
    pub fn repeat(&mut self, seq: u32, end: u32) -> Option<&mut Sent<T>> {
        self.0.iter_mut().filter(|sent| !is_before(end, sent.end)).for_each(|sent| sent.is_repeated = true);
        let first = self.0.iter_mut().find(|sent| is_before(seq, sent.end))?;
        first.is_repeated = true;
        Some(first)
    }

    /// Removes the first segment, if an acknowledgement covers it.
    pub fn acknowledged(&mut self, ack: u32) -> Option<Sent<T>> {
        self.0.front().filter(|sent| !is_before(ack, sent.end))?;
        self.0.pop_front()
    }
}
