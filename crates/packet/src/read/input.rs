//! A buffered source that hands out whole records and knows their place in the file.

use std::io::{ErrorKind, Read};

use super::ReadError;

/// Bytes asked of the source at once. Room grows only as bytes arrive, so that a damaged length
/// never makes an allocation of its size.
const CHUNK: usize = 256 << 10;

pub(crate) struct Input<R> {
    source: R,
    /// Room for bytes, of which those from `start` to `end` are read and not yet consumed.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Where in the file the byte at `start` is.
    offset: u64,
}

impl<R: Read> Input<R> {
    pub fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            offset: 0,
        }
    }

    /// The next `len` bytes; fewer only if the file ends.
    pub fn fill(&mut self, len: usize) -> Result<&[u8], ReadError> {
        while self.end - self.start < len {
            if self.end == self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
                if self.end + CHUNK > self.buffer.len() {
                    self.buffer.resize(self.end + CHUNK, 0);
                }
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(ReadError::Io {
                        offset: self.offset,
                        source,
                    });
                }
            }
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + len)])
    }

    /// The next `len` bytes, all of them; `what` names them in the error.
    pub fn whole(&mut self, what: &'static str, len: usize) -> Result<&[u8], ReadError> {
        let offset = self.offset;
        let bytes = self.fill(len)?;
        if bytes.len() < len {
            return Err(ReadError::Truncated {
                offset,
                what,
                expected: len,
                found: bytes.len(),
            });
        }
        Ok(bytes)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ReadError> {
        let offset = self.offset;
        let bytes = self.fill(N)?;
        let cut = ReadError::Truncated {
            offset,
            what,
            expected: N,
            found: bytes.len(),
        };
        bytes.first_chunk().copied().ok_or(cut)
    }
}

impl<R> Input<R> {
    /// Ends a record of `len` bytes, which were filled before.
    pub fn consume(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    /// Where the record being read begins in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The record being read, from its first byte to what is buffered after it.
    pub fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }
}
