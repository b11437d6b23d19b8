//! What a sink puts into a pipe, terminal or socket: nothing waits for the reader, and what it has not taken yet is
//! kept together with the blocks that it was made from, so that it can be counted if it is never taken.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use trawl_io::outlet::Outlet;
use trawl_sys::{Error, Result};

/// The end of a unit that only makes sense whole: in the bytes that go out, and in the blocks they were made from.
pub type End = (usize, usize);

#[derive(Debug)]
pub struct Stream {
    outlet: Outlet,
    name: String,
    /// How many bytes the reader took.
    taken: u64,
    /// What it has not taken yet.
    left: Vec<u8>,
    /// The blocks after that.
    blocks: Vec<u8>,
    ends: Vec<End>,
}

impl Stream {
    pub fn new(file: File, name: String) -> Self {
        Self {
            outlet: Outlet::new(file),
            name,
            taken: 0,
            left: Vec::new(),
            blocks: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Puts out what was made from these blocks. What is not taken at once is kept.
    pub fn put(
        &mut self,
        bytes: &[u8],
        blocks: &[u8],
        ends: impl FnOnce() -> Vec<End>,
    ) -> Result<()> {
        if self.is_behind() {
            let (before, blocks_before) = (self.left.len(), self.blocks.len());
            self.left.extend_from_slice(bytes);
            self.blocks.extend_from_slice(blocks);
            let later = ends().into_iter();
            self.ends
                .extend(later.map(|(end, block)| (before + end, blocks_before + block)));
            return self.push();
        }
        let (done, result) = self.outlet.write(bytes);
        self.taken += done as u64;
        if done < bytes.len() {
            self.left.extend_from_slice(bytes);
            self.blocks.extend_from_slice(blocks);
            self.ends = ends();
            self.pass(done);
        }
        result.map_err(|error| self.failure(error))
    }

    /// Tries to hand over what is left.
    pub fn push(&mut self) -> Result<()> {
        if !self.is_behind() {
            return Ok(());
        }
        let (done, result) = self.outlet.write(&self.left);
        self.taken += done as u64;
        self.pass(done);
        result.map_err(|error| self.failure(error))
    }

    /// Forgets the units that went out whole. Of one that did not, the blocks stay.
    fn pass(&mut self, done: usize) {
        self.left.drain(..done);
        let whole = self.ends.partition_point(|(end, _)| *end <= done);
        let passed = self.ends[..whole].last().map_or(0, |(_, block)| *block);
        self.blocks.drain(..passed);
        self.ends.drain(..whole);
        for (end, block) in &mut self.ends {
            *end -= done;
            *block -= passed;
        }
    }

    /// Whether the reader has not taken all that was put out.
    pub fn is_behind(&self) -> bool {
        !self.left.is_empty()
    }

    pub fn taken(&self) -> u64 {
        self.taken
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The blocks of all that was not taken whole.
    pub fn take_unwritten(&mut self) -> Vec<u8> {
        self.left.clear();
        self.ends.clear();
        std::mem::take(&mut self.blocks)
    }

    fn failure(&self, error: std::io::Error) -> Error {
        Error::os(format!("cannot write to {}", self.name), error)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outlet.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Units of 1000 bytes, each made from a block of 10.
    fn put(stream: &mut Stream, units: usize, with: u8) {
        let bytes = vec![with; units * 1000];
        let blocks = vec![with; units * 10];
        let ends = || (1..=units).map(|n| (n * 1000, n * 10)).collect();
        stream
            .put(&bytes, &blocks, ends)
            .expect("there is a reader");
    }

    #[test]
    fn what_is_taken_and_what_is_not_make_up_the_whole() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut reader = reader;
        let mut stream = Stream::new(
            File::from(std::os::fd::OwnedFd::from(writer)),
            String::new(),
        );
        put(&mut stream, 50, 1);
        assert!(!stream.is_behind());
        put(&mut stream, 50, 2);
        put(&mut stream, 50, 3);
        assert!(stream.is_behind());
        // The reader goes on, and stops again in the middle of a unit.
        let mut taken = vec![0; 40_500];
        reader.read_exact(&mut taken).expect("bytes");
        stream.push().expect("there is a reader");
        let whole = stream.taken() / 1000;
        let unwritten = stream.take_unwritten();
        assert_eq!(unwritten.len() as u64, (150 - whole) * 10);
        assert!(unwritten.ends_with(&[3; 100]) && !stream.is_behind());
    }
}
