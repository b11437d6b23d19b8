//! Threads that read packets in user space: their share of the memory, their rings, and the failure that ended one.

use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use trawl_io::packet_socket;
use trawl_ring::{Geometry, Rings};
use trawl_sys::{Error, Result};

use crate::event::{Event, GoneReason, ReadFailure};

/// Size below which a thread's share is not split.
const UNSPLIT: usize = 512 << 10;
/// Most memory for the kernel's rings of a site. The kernel allocates them whole at the start, and threads that run first
/// empty them soon; memory of trawl's own is allocated as it is needed.
pub(crate) const KERNEL_MAX: usize = 16 << 20;

/// Division of a capture's memory between the kernel's rings and trawl's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub sockets: usize,
    /// Size of the kernel's ring of each socket.
    pub kernel: usize,
    /// Rings of all sockets together.
    pub own: Geometry,
}

impl Sharing {
    /// Divides the memory of `sites` sites. The rings that others write to have half of a site's memory or `others_max`.
    pub fn new(asked_for: Geometry, cpus: usize, sites: usize, others_max: usize) -> Self {
        let sockets = cpus.clamp(1, packet_socket::SOCKETS_MAX);
        let site = asked_for.pool_size / sites.max(1);
        let kernel = (site / 2).min(others_max) / sockets;
        // A smaller share is not split between the kernel and trawl: it could not hold a packet of 64 KiB.
        let own = (site - kernel * sockets).max(site.min(UNSPLIT * sockets)) as u64;
        Self { sockets, kernel, own: Geometry::for_total(own, sockets).unwrap_or(asked_for) }
    }
}

/// The threads of a tap.
#[derive(Debug)]
pub(crate) struct Threads {
    rings: Arc<Rings>,
    running: Vec<JoinHandle<()>>,
    failure: Failure,
}

/// The first failure of a tap's threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure(Arc<OnceLock<ReadFailure>>);

impl Failure {
    /// Records a failure; only the first one is reported.
    pub fn set(&self, why: ReadFailure) {
        let _ = self.0.set(why);
    }
}

impl Threads {
    pub fn new(rings: Arc<Rings>) -> Self {
        Self { rings, running: Vec::new(), failure: Failure::default() }
    }

    pub fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    /// Returns the failure, for a thread to set.
    pub fn failure(&self) -> Failure {
        self.failure.clone()
    }

    pub fn start(&mut self, name: &str, read: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new()
            .name(format!("trawl-{name}"))
            .spawn(read)
            .map_err(|e| Error::os("cannot start a thread that reads packets", e))?;
        self.running.push(thread);
        Ok(())
    }

    /// Tells the threads to stop.
    pub fn stop(&self) {
        self.rings.stop();
    }

    pub fn are_finished(&self) -> bool {
        self.running.iter().all(JoinHandle::is_finished)
    }

    /// Abandons threads that do not stop.
    pub fn abandon(&mut self) {
        self.running.clear();
    }

    /// Stops the threads and waits for them. Returns an event if one of them failed.
    pub fn join(&mut self) -> Option<Event> {
        self.stop();
        if self.running.is_empty() {
            return None;
        }
        for thread in self.running.drain(..) {
            if thread.join().is_err() {
                self.failure.set(ReadFailure::ThreadCrashed);
            }
        }
        self.failure.0.get().cloned().map(Event::ReadFailed)
    }

    /// Returns the reason for which no more packets are read, if a thread failed.
    pub fn ended(&self) -> Option<GoneReason> {
        self.failure.0.get().cloned().map(GoneReason::ReadFailed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_ring::{MEMORY_MAX, SHARE_MIN};

    const SLACK: usize = 32 << 20;

    #[test]
    fn total_memory_is_within_the_requested_size() {
        for share in [SHARE_MIN, 1 << 20, 4 << 20, 64 << 20, MEMORY_MAX] {
            for cpus in [1, 2, 7, 16, 17, 64, 256] {
                for sites in 1..=4 {
                    let Ok(asked_for) = Geometry::for_share(share, cpus) else {
                        continue;
                    };
                    let sharing = Sharing::new(asked_for, cpus, sites, KERNEL_MAX);
                    let sockets = sharing.kernel.max(1 << 20) * sharing.sockets;
                    let promised = asked_for.pool_size + SLACK * sites;
                    assert!(
                        (sharing.own.pool_size + sockets) * sites <= promised,
                        "{sharing:?} for {cpus} CPUs and {sites} sites"
                    );
                }
            }
        }
    }

    #[test]
    fn a_default_ring_holds_the_largest_segments() {
        let sharing = Sharing::new(Geometry::for_total(8 << 20, 2).unwrap(), 2, 1, KERNEL_MAX);
        assert_eq!((sharing.sockets, sharing.kernel), (2, 2 << 20));
        assert!(sharing.own.max_captured() > 200_000);
        let usual = Sharing::new(Geometry::for_total(256 << 20, 2).unwrap(), 2, 1, KERNEL_MAX);
        assert_eq!((usual.kernel, usual.own.pool_size), (8 << 20, 224 << 20));
    }
}
