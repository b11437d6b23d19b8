//! The rings of a capture, written by BPF programs and by threads. They record nothing until the capture begins.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use trawl_bpf::doorbell::Doorbell;
use trawl_ring::producer::{Producer, Tickets};
use trawl_ring::{Bell, Consumer, Geometry, Rings};
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
    /// All rings.
    all: Vec<Arc<Rings>>,
    /// The doorbell that all programs share.
    doorbell: Option<Doorbell>,
    /// The event that wakes the reader now.
    bell: Bell,
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
            all: Vec::new(),
            doorbell: None,
            bell: Bell::Silent,
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
        if self.doorbell.is_none() {
            self.doorbell = rings.doorbell()?;
        }
        self.add(&rings);
        Ok(rings)
    }

    /// Creates rings that threads of this process write to, with their producers.
    pub fn of_threads(&mut self, geometry: Geometry, count: usize) -> Result<(Arc<Rings>, Vec<Producer>)> {
        let rings = Rings::in_memory(geometry, count)?;
        self.streams.extend(Consumer::all(&rings));
        let producers = Producer::all(&rings, &self.tickets, clock::wall());
        self.add(&rings);
        Ok((rings, producers))
    }

    fn add(&mut self, rings: &Arc<Rings>) {
        self.all.push(Arc::clone(rings));
        rings.set_bell(self.bell);
        if !self.has_begun {
            rings.hold();
            self.held.push(Arc::clone(rings));
        }
    }

    /// Returns true if a bell has rung; none rings then until another is set.
    pub fn has_rung(&mut self) -> bool {
        let has_rung = self.bell != Bell::Silent && self.hush();
        if has_rung {
            self.set_bell(Bell::Silent);
        }
        has_rung
    }

    fn hush(&self) -> bool {
        let by_program = self.doorbell.as_ref().is_some_and(Doorbell::hush);
        self.all.iter().fold(by_program, |has_rung, rings| rings.hush() || has_rung)
    }

    /// Returns, once, the reason for which programs get no more memory for records, and advice.
    pub fn refused_memory(&self) -> Option<(String, String)> {
        self.shared.as_ref()?.refused_memory()
    }

    /// Gives back memory that is not needed any more.
    pub fn tend_pool(&self) {
        self.pools().for_each(|rings| rings.tend_pool());
    }

    /// Returns the number of bytes that programs and threads have for records.
    pub fn memory(&self) -> usize {
        self.pools().map(|rings| rings.pool_size()).sum()
    }

    /// Returns rings for each pool: all programs share one.
    fn pools(&self) -> impl Iterator<Item = &Arc<Rings>> {
        let of_threads = self.all.iter().filter(|rings| rings.maps().is_none());
        self.shared.iter().chain(of_threads)
    }

    /// Sets what wakes the reader, who sleeps unless it is [`Bell::Silent`].
    pub fn set_bell(&mut self, bell: Bell) {
        let before = std::mem::replace(&mut self.bell, bell);
        if before == Bell::Silent && bell != before {
            // A program may have rung late.
            self.hush();
        }
        if before != bell {
            self.all.iter().for_each(|rings| rings.set_bell(bell));
        }
    }

    /// Returns the descriptors that wake the reader while it sleeps.
    pub fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sleeps = self.bell != Bell::Silent;
        let programs = self.doorbell.as_ref().map(|doorbell| doorbell.as_fd());
        let threads = self.all.iter().filter_map(|rings| rings.wake_of_reader());
        programs.into_iter().chain(threads).filter(move |_| sleeps)
    }

    /// Starts counting at all points at once.
    pub fn begin(&mut self) {
        self.has_begun = true;
        for rings in self.held.drain(..) {
            rings.release();
        }
    }
}
