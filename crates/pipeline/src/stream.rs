//! A pipe, terminal or socket: writes never wait for the reader. Unread bytes are kept, with the packets they were made
//! from, so that these can be counted if never read.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use trawl_sys::files::outlet::Outlet;
use trawl_sys::{Error, Result};

use crate::{Patience, Pressure, Reader, WriteOutcome};

/// Bytes that are only useful as a whole: a block, a record or a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// End offset among the bytes written.
    pub end: usize,
    /// Interface block of its packet.
    pub interface: Option<u32>,
}

#[derive(Debug)]
pub struct Stream {
    outlet: Outlet,
    name: String,
    reader: Reader,
    /// Unread bytes, and their units.
    left: Vec<u8>,
    units: Vec<Unit>,
}

impl Stream {
    pub fn new(file: File, name: String) -> Self {
        let outlet = Outlet::new(file);
        // Without a descriptor, the stream is retried at intervals.
        let descriptor = outlet.as_fd().try_clone_to_owned().ok().map(Arc::new);
        Self { outlet, name, reader: Reader { outlet: descriptor, taken: 0 }, left: Vec::new(), units: Vec::new() }
    }

    /// Writes units. Bytes not accepted at once are kept.
    pub fn put(&mut self, bytes: &[u8], units: impl FnOnce() -> Vec<Unit>) -> Result<Pressure> {
        if !self.left.is_empty() {
            self.keep(bytes, units());
            return self.push();
        }
        let (done, result) = self.outlet.write(bytes);
        if done < bytes.len() {
            self.keep(bytes, units());
        }
        self.answer(done, result)
    }

    /// Retries to write the kept bytes.
    pub fn push(&mut self) -> Result<Pressure> {
        let (done, result) = self.outlet.write(&self.left);
        self.answer(done, result)
    }

    /// Waits for the reader as long as it makes progress. Unread packets count as unwritten.
    pub fn finish(&mut self) -> WriteOutcome {
        let mut outcome = WriteOutcome::default();
        let mut patience = Patience::begin();
        loop {
            match self.push() {
                Ok(Pressure::Blocked(reader)) if patience.is_over(&reader) => {
                    outcome.not_read = Some(self.name.clone());
                    break;
                }
                Ok(Pressure::Blocked(reader)) => {
                    // If the wait fails, the next attempt only comes sooner.
                    let _ = reader.wait();
                }
                Ok(_) => break,
                Err(error) => {
                    outcome.error = Some(error);
                    break;
                }
            }
        }
        let interfaces = self.units.iter().filter_map(|unit| unit.interface);
        interfaces.for_each(|interface| outcome.unwritten.add(interface, 1));
        outcome
    }

    fn keep(&mut self, bytes: &[u8], units: Vec<Unit>) {
        let before = self.left.len();
        self.left.extend_from_slice(bytes);
        self.units.extend(units.into_iter().map(|unit| Unit { end: before + unit.end, ..unit }));
    }

    /// Drops the kept units that were written whole; a partly written one is kept.
    fn answer(&mut self, done: usize, result: std::io::Result<()>) -> Result<Pressure> {
        self.reader.taken += done as u64;
        if !self.left.is_empty() {
            self.left.drain(..done);
            let whole = self.units.partition_point(|unit| unit.end <= done);
            self.units.drain(..whole);
            self.units.iter_mut().for_each(|unit| unit.end -= done);
        }
        result.map_err(|e| Error::os(format!("cannot write to {}", self.name), e))?;
        Ok(if self.left.is_empty() { Pressure::Idle } else { Pressure::Blocked(self.reader.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Writes units of 1000 bytes.
    fn put(stream: &mut Stream, count: usize, with: u8) -> Pressure {
        let bytes = vec![with; count * 1000];
        let units = || {
            let unit = |n| Unit { end: n * 1000, interface: Some(3) };
            (1..=count).map(unit).collect()
        };
        stream.put(&bytes, units).expect("a reader")
    }

    #[test]
    fn read_and_unread_units_add_up() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut stream = Stream::new(file, String::new());
        assert!(matches!(put(&mut stream, 50, 1), Pressure::Idle));
        put(&mut stream, 50, 2);
        assert!(matches!(put(&mut stream, 50, 3), Pressure::Blocked(_)));
        // The reader continues, and stops again in the middle of a unit.
        let mut taken = vec![0; 40_500];
        reader.read_exact(&mut taken).expect("bytes");
        stream.push().expect("a reader");
        let whole = stream.reader.taken / 1000;
        let outcome = stream.finish();
        assert!(outcome.not_read.is_some() && outcome.error.is_none());
        assert_eq!(outcome.unwritten.sum(&[3]), 150 - whole);
    }
}
