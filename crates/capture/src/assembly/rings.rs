//! The rings of a capture, written by BPF programs and by threads. They record nothing until the capture begins.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trawl_ring::producer::{Producer, Tickets};
use trawl_ring::{Consumer, Geometry, Rings};
use trawl_sys::clock::{self, ProgramClock};
use trawl_sys::{Result, events};

#[derive(Debug)]
pub struct RingSet {
    pub geometry: Geometry,
    pub clock: ProgramClock,
    /// Shared by all recorders, so that -c is exact over all of them.
    pub tickets: Arc<Tickets>,
    /// Maps that programs share besides their rings, for the first of these.
    pub others: Vec<(&'static str, OwnedFd)>,
    /// Consumers that no merge has yet.
    pub streams: Vec<Consumer>,
    /// Rings that BPF programs share, the first of those in maps.
    shared: Option<Arc<Rings>>,
    /// Rings to release when the capture begins.
    held: Vec<Arc<Rings>>,
    has_begun: bool,
}

impl RingSet {
    pub fn new(geometry: Geometry, clock: ProgramClock, count: Option<u64>) -> Self {
        Self {
            geometry,
            clock,
            tickets: Arc::new(Tickets::new(count)),
            others: Vec::new(),
            streams: Vec::new(),
            shared: None,
            held: Vec::new(),
            has_begun: false,
        }
    }

    /// Returns the rings that BPF programs share, created for the first tap that needs them.
    pub fn shared(&mut self, points: usize, recognizes_seen: bool) -> Result<Arc<Rings>> {
        if let Some(rings) = &self.shared {
            return Ok(Arc::clone(rings));
        }
        let rings = self.apart(events::cpu_count(), points, recognizes_seen)?;
        self.shared = Some(Arc::clone(&rings));
        Ok(rings)
    }

    /// Creates rings for programs that may interrupt the writers of the other rings and be interrupted by them: one for
    /// each CPU, or more if these programs interrupt each other.
    pub fn apart(&mut self, count: usize, points: usize, recognizes_seen: bool) -> Result<Arc<Rings>> {
        let rings = match &self.shared {
            Some(rings) => rings.further(count)?,
            None => {
                let others = std::mem::take(&mut self.others);
                Rings::in_maps(self.geometry, count, points, recognizes_seen, others)?
            }
        };
        rings.set_clock_offset(self.clock.offset_to_wall());
        self.streams.extend(Consumer::all(&rings));
        self.tickets.share_with(&rings);
        self.hold(&rings);
        Ok(rings)
    }

    /// Creates rings that threads of this process write to, with their producers.
    pub fn of_threads(&mut self, geometry: Geometry, count: usize) -> Result<(Arc<Rings>, Vec<Producer>)> {
        let rings = Rings::in_memory(geometry, count)?;
        self.streams.extend(Consumer::all(&rings));
        let producers = Producer::all(&rings, &self.tickets, clock::wall());
        self.hold(&rings);
        Ok((rings, producers))
    }

    fn hold(&mut self, rings: &Arc<Rings>) {
        if !self.has_begun {
            rings.hold();
            self.held.push(Arc::clone(rings));
        }
    }

    /// Starts counting at all points at once.
    pub fn begin(&mut self) {
        self.has_begun = true;
        for rings in self.held.drain(..) {
            rings.release();
        }
    }
}
