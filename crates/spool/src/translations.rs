//! Translated connections of the capture's network namespaces: read before the packets, and repeated in each chunk.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use trawl_packet::pcapng::note::{Translation, TranslationNews};
use trawl_sys::netlink::{Translated, TranslationEvent, Translations as Watch};
use trawl_sys::netns::Namespace;
use trawl_sys::{clock, events};

/// Maximum number of connections; further ones are left out.
const MOST: usize = 65_536;
/// Number of bytes of unread events above which the thread stops reading.
const MOST_WAITING: usize = 64 << 20;
/// Interval at which the thread checks whether the capture has ended.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// The watched namespaces that have translated connections, and news of these that no chunk has yet.
#[derive(Debug, Default)]
pub struct Watched {
    watches: Vec<Watch>,
    /// News as blocks.
    waiting: Vec<u8>,
}

impl Watched {
    /// Starts to watch while the capture still has its rights. Namespaces that cannot be watched are left out.
    pub fn begin<'a>(namespaces: impl Iterator<Item = Option<&'a Namespace>>) -> Self {
        let mut all = Self::default();
        for (watch, known) in namespaces.filter_map(|space| Watch::watch(space).ok().flatten()) {
            all.watches.push(watch);
            let begun = known.into_iter().map(TranslationEvent::Begun);
            all.waiting.extend(blocks(begun));
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Returns all news until now. The kernel announces a connection before its first packet leaves the host.
    pub fn take(&mut self) -> Vec<u8> {
        self.collect();
        std::mem::take(&mut self.waiting)
    }

    fn collect(&mut self) {
        for watch in &mut self.watches {
            while self.waiting.len() < MOST_WAITING
                && let Ok(events) = watch.events(Duration::ZERO)
                && !events.is_empty()
            {
                self.waiting.extend(blocks(events.into_iter()));
            }
        }
    }
}

/// Reads events as they arrive until the capture is over, because the kernel's buffer holds few of them.
pub fn collect_until(watched: &Mutex<Watched>, is_over: &AtomicBool) {
    let arrivals = watched
        .lock()
        .watches
        .iter()
        .map(AsFd::as_fd)
        .map(|fd| fd.try_clone_to_owned())
        .collect::<io::Result<Vec<OwnedFd>>>();
    let arrivals = match arrivals {
        Ok(arrivals) => arrivals,
        // The chunker still reads the events before each message.
        Err(_) => return,
    };
    let arrivals: Vec<BorrowedFd<'_>> = arrivals.iter().map(AsFd::as_fd).collect();
    while !is_over.load(Ordering::Acquire) {
        let mut now = watched.lock();
        now.collect();
        let is_full = now.waiting.len() >= MOST_WAITING;
        drop(now);
        if is_full {
            std::thread::park_timeout(POLL_EVERY)
        } else if events::wait(&arrivals, POLL_EVERY).is_err() {
            return;
        }
    }
}

fn blocks(events: impl Iterator<Item = TranslationEvent>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let time_ns = clock::wall();
    for event in events {
        let (of, ended) = match event {
            TranslationEvent::Begun(of) => (of, false),
            TranslationEvent::Ended(of) => (of, true),
        };
        let Translated { protocol, original, reply } = of;
        let translation = Translation { protocol, original, reply };
        let news = TranslationNews { translation, time_ns, ended };
        news.append(&mut bytes);
    }
    bytes
}

/// The connections of the current chunk, as blocks.
#[derive(Debug, Default)]
pub struct Current {
    blocks: HashMap<Translation, Vec<u8>>,
    /// Connections that have ended: later chunks lack them.
    ended: Vec<Translation>,
}

impl Current {
    /// Adds an event, and returns true if the open chunk lacks it.
    pub fn add(&mut self, news: &TranslationNews, block: &[u8]) -> bool {
        if news.ended {
            self.ended.push(news.translation);
            return false;
        }
        let has_room = self.blocks.len() < MOST;
        if has_room {
            self.blocks.insert(news.translation, block.to_vec());
        }
        has_room
    }

    /// Forgets the ended connections, whose packets are in the last chunk, and returns the blocks of the others.
    pub fn begin_chunk(&mut self) -> impl Iterator<Item = &Vec<u8>> {
        for ended in self.ended.drain(..) {
            self.blocks.remove(&ended);
        }
        self.blocks.values()
    }
}
