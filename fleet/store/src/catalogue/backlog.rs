//! The part of a store that the catalogue does not have yet, for the service that keeps the store.

use trawl_sys::Result;

use super::Catalogue;
use super::new_records::Marks;
use crate::object::remote::Store;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Stored chunks that the catalogue does not have.
    pub chunks: u64,
    /// Time since which the oldest of them waits, by the store's clock, in nanoseconds since 1970.
    pub since_ns: Option<u64>,
    /// Time at which the newest chunk of the store was stored, or time of its last packet, if the catalogue has it.
    pub newest_ns: Option<u64>,
}

impl Backlog {
    pub fn read(store: &Store) -> Result<Self> {
        let marks = Marks::list(store)?;
        let known = Catalogue::read(store)?.runs(store)?;
        let waiting = marks.waiting(&known);
        let times = || waiting.iter().map(|(_, marked_ns)| *marked_ns);
        let packets = known.0.values().filter_map(|run| run.total().last_ns);
        Ok(Self { chunks: waiting.len() as u64, since_ns: times().min(), newest_ns: times().chain(packets).max() })
    }
}
