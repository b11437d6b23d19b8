//! Sources whose blocks arrive already finished: from other hosts, from files.

use trawl_sys::Result;

use crate::{Counts, Feed, Pressure, WriteOutcome, write_later};

/// State of a source after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// More blocks may be available at once.
    Moved,
    /// Nothing more is available for now.
    Idle,
    /// All blocks were moved.
    Ended,
}

/// Origin of a source's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// They arrive once: outputs that are too slow lose some, and incomplete files are kept.
    Live,
    /// They can be read again: outputs hold the source back, series end files by the packets' time, and a file that
    /// cannot hold a packet is removed.
    Files,
    /// The same, and the blocks are [`Blocks::Stored`](crate::Blocks::Stored).
    FilesAsStored,
}

impl Origin {
    pub fn is_live(self) -> bool {
        self == Self::Live
    }
}

/// A source of blocks. The first write begins with the section header and holds no packet; the last one holds only the
/// statistics of the interfaces.
pub trait Source {
    fn origin(&self) -> Origin {
        Origin::Live
    }

    /// Called before the first poll, once the outputs are open: threads may be started from now on.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the link type of the packets, once it is known.
    fn link_type(&mut self) -> Result<u16>;

    /// Writes blocks that are available to the feed, without waiting; none while the feed is blocked.
    fn poll(&mut self, feed: &mut Feed<'_>) -> Result<SourceState>;

    /// Waits until more blocks may be available, or the reader of a blocked feed continues.
    fn wait(&mut self, feed: &Feed<'_>) -> Result<()>;

    /// Called once no more packets are wanted, as the output is full or has failed.
    fn stop(&mut self);
}

/// Moves all blocks of a source to the feed, and returns the outcome of its packets. `between` is called between polls.
/// After an error of the output, the source is read to its end, and its packets count as unwritten.
pub fn carry(source: &mut dyn Source, feed: &mut Feed<'_>, between: &mut dyn FnMut()) -> Result<WriteOutcome> {
    let mut failure = None;
    let mut unwritten = Counts::default();
    loop {
        between();
        let polled = match &failure {
            None => source.poll(feed),
            Some(_) => {
                let mut rest = Feed::new(Vec::new(), &mut unwritten);
                match source.poll(&mut rest)? {
                    SourceState::Idle => source.wait(&rest).map(|()| SourceState::Moved),
                    state => Ok(state),
                }
            }
        };
        let advanced = polled.and_then(|state| {
            if state == SourceState::Ended || failure.is_some() {
                return Ok(state);
            }
            if state == SourceState::Idle || !matches!(feed.pressure, Pressure::Idle | Pressure::WantsSegments) {
                feed.flush()?;
            }
            match &feed.pressure {
                Pressure::Full => source.stop(),
                Pressure::Busy { .. } => write_later(),
                Pressure::Blocked(_) => source.wait(feed)?,
                Pressure::Idle | Pressure::WantsSegments if state == SourceState::Idle => source.wait(feed)?,
                Pressure::Idle | Pressure::WantsSegments => {}
            }
            Ok(state)
        });
        match advanced {
            Ok(SourceState::Ended) => break,
            Ok(_) => {}
            Err(error) if failure.is_none() => {
                failure = Some(error);
                source.stop();
            }
            Err(error) => return Err(error),
        }
    }
    let mut outcome = feed.finish();
    outcome.unwritten.add_all(&unwritten);
    outcome.error = failure.or(outcome.error);
    Ok(outcome)
}
