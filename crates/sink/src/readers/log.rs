//! The record of an output's readers, for messages and the summary.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of readers in the summary, and of messages: readers that come and go for weeks must not fill the
/// memory.
const MOST_LISTED: usize = 1000;

/// An event of a reader.
#[derive(Clone, Debug)]
pub enum ReaderNews {
    Joined(SocketAddr),
    Left(ReaderFate),
    Refused { reader: SocketAddr, why: String },
}

/// A reader's packets.
#[derive(Clone, Debug)]
pub struct ReaderFate {
    pub reader: SocketAddr,
    pub sent: u64,
    /// Packets that arrived while the reader was connected, and were not sent to it.
    pub lost: u64,
    /// Reason why it left before the end.
    pub left: Option<String>,
}

/// Events and outcomes of an output's readers; clones share them.
#[derive(Clone, Debug, Default)]
pub struct ReaderLog(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    news: Vec<ReaderNews>,
    /// Number of events that were reported; later ones are not.
    reported: usize,
    fates: VecDeque<ReaderFate>,
}

impl ReaderLog {
    /// Returns the events since the last call.
    pub fn new_events(&self) -> Vec<ReaderNews> {
        std::mem::take(&mut self.0.lock().news)
    }

    /// Returns the latest readers whose connection has ended.
    pub fn fates(&self) -> Vec<ReaderFate> {
        self.0.lock().fates.iter().cloned().collect()
    }

    pub(super) fn join(&self, reader: SocketAddr) {
        self.0.lock().add(ReaderNews::Joined(reader));
    }

    pub(super) fn refuse(&self, reader: SocketAddr, why: String) {
        self.0.lock().add(ReaderNews::Refused { reader, why });
    }

    /// Records a reader whose connection has ended; `is_news` if the capture goes on.
    pub(super) fn leave(&self, fate: ReaderFate, is_news: bool) {
        let mut entries = self.0.lock();
        if is_news {
            entries.add(ReaderNews::Left(fate.clone()));
        }
        if entries.fates.len() == MOST_LISTED {
            entries.fates.pop_front();
        }
        entries.fates.push_back(fate);
    }
}

impl Entries {
    fn add(&mut self, news: ReaderNews) {
        if self.reported < MOST_LISTED {
            self.reported += 1;
            self.news.push(news);
        }
    }
}
