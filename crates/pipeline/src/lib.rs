//! The contract between a capture and the outputs of its packets: blocks pass stages, which change or hold them back,
//! to a writer, which answers how much it can accept next and at the end reports the outcome of every packet.
//!
//! ```text
//! rings ─Blocks─▶ Stage ─Blocks─▶ … ─Blocks─▶ Writer ─▶ file, pipe, view, spool
//!              ◀─Pressure─       ◀─Pressure─        Outcome at the end
//! ```

pub mod account;
mod counts;
pub mod report;
mod source;
mod stage;
mod stream;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trawl_sys::{Error, Result, errno, events};

pub use counts::Counts;
pub use source::{Origin, Source, SourceState, carry};
pub use stage::{Feed, Stage};
pub use stream::{Stream, Unit};

/// Memory with whole blocks that a writer may hold, and write without a copy. Dropping it frees the memory for new
/// blocks.
pub trait Leased: std::fmt::Debug + Send {
    fn bytes(&self) -> &[u8];

    /// Pads the memory to a multiple of `unit`: `fill` writes the padding after the blocks, if any is needed.
    fn fill_up(&mut self, unit: usize, fill: fn(&mut [u8]));
}

/// Bytes of a file in its own format, which is the format of the only output.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'b> {
    pub bytes: &'b [u8],
    /// The blocks or records in the order of their ends.
    pub parts: &'b [StoredPart],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPart {
    /// End offset among the bytes.
    pub end: usize,
    pub kind: PartKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// The header of a pcap file, or of a section.
    Header,
    /// A block that packets refer to.
    Description,
    /// A packet of this time in nanoseconds since 1970.
    Packet(u64),
    Other,
}

/// Whole pcapng blocks, little-endian and with times in nanoseconds, or a mark between blocks.
#[derive(Debug)]
pub enum Blocks<'b> {
    Bytes(&'b [u8]),
    /// Bytes of a file as they are.
    Stored(Stored<'b>),
    /// A whole segment of a ring.
    Segment(Box<dyn Leased>),
    /// The blocks from here to `EventEnd` belong to an event: a series gives them a file of their own.
    EventBegin,
    EventEnd,
    /// A packet cannot be written in the file's format: the file at hand is incomplete for good.
    Refused,
}

impl Blocks<'_> {
    /// Returns the bytes of the blocks; a mark has none.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Stored(stored) => stored.bytes,
            Self::Segment(segment) => segment.bytes(),
            Self::EventBegin | Self::EventEnd | Self::Refused => &[],
        }
    }
}

/// A writer's answer: its capacity for further blocks.
#[derive(Clone, Debug, Default)]
pub enum Pressure {
    #[default]
    Idle,
    /// Like `Idle`; in addition, whole segments save the writer a copy and are worth a short wait.
    WantsSegments,
    /// The queue is filling: packets that can wait should.
    Busy { wants_segments: bool },
    /// The reader of a pipe has not read all bytes: packets stay in their rings until it has.
    Blocked(Reader),
    /// The output reached its size limit: the capture ends.
    Full,
}

impl Pressure {
    /// Returns the answer of a writer that does not receive segments as they are.
    pub fn without_segments(self) -> Self {
        match self {
            Self::WantsSegments => Self::Idle,
            Self::Busy { .. } => Self::Busy { wants_segments: false },
            other => other,
        }
    }
}

/// The reader at the other end of a pipe, terminal or socket.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Becomes writable once the reader continues.
    outlet: Option<Arc<OwnedFd>>,
    /// Number of bytes read so far.
    taken: u64,
}

impl Reader {
    /// Longest sleep while the reader does not read.
    pub const SLEEP: Duration = Duration::from_millis(50);

    /// Waits until the reader continues, or for a short time.
    pub fn wait(&self) -> Result<()> {
        events::wait_also(&[], self.outlet(), Self::SLEEP)
    }

    pub fn outlet(&self) -> Option<BorrowedFd<'_>> {
        self.outlet.as_ref().map(|outlet| outlet.as_fd())
    }
}

/// Patience with a reader that stops reading at the end of a capture.
#[derive(Debug)]
pub struct Patience {
    since: Instant,
    taken: u64,
}

impl Patience {
    const TIME: Duration = Duration::from_millis(500);
    /// Minimum progress of a reader in that time.
    const MIN_PROGRESS: u64 = 64 << 10;

    pub fn begin() -> Self {
        Self { since: Instant::now(), taken: 0 }
    }

    /// Returns true if the reader read too little for too long, or another signal requests the end.
    pub fn is_over(&mut self, reader: &Reader) -> bool {
        self.is_over_at(reader.taken)
    }

    /// Does the same as [`Self::is_over`] for a reader that has read this number of bytes.
    pub fn is_over_at(&mut self, taken: u64) -> bool {
        if taken.saturating_sub(self.taken) >= Self::MIN_PROGRESS {
            (self.since, self.taken) = (Instant::now(), taken);
        }
        self.since.elapsed() >= Self::TIME || events::signal_is_pending()
    }
}

/// Longest time for which records may wait if somebody watches the output.
pub const LIVE: Duration = Duration::from_millis(5);
/// Longest time for which records may wait on their way to a file.
pub const UNWATCHED: Duration = Duration::from_millis(500);

/// The end of a pipeline. After an error it is not written to, and `finish` reports the missing packets.
pub trait Writer {
    /// Writes blocks, or queues them. The outcome counts the blocks that could not be written because of an error.
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure>;

    /// Called when no more blocks are available for now, after records as well as in every round without any, so that
    /// viewers see all packets so far. Also called to retry while the writer is blocked.
    fn flush(&mut self) -> Result<Pressure>;

    /// Waits until all packets reached their destination, and returns the outcome of all packets so far. Called again
    /// if a trailer is written after the packets.
    fn finish(&mut self) -> WriteOutcome;

    /// Returns the time at which `flush` has work to do although no blocks came.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Returns how long the source may let blocks wait for more of them.
    fn delay(&self) -> Duration {
        LIVE
    }
}

impl<W: Writer + ?Sized> Writer for &mut W {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        (**self).write(blocks)
    }

    fn flush(&mut self) -> Result<Pressure> {
        (**self).flush()
    }

    fn finish(&mut self) -> WriteOutcome {
        (**self).finish()
    }

    fn due(&self) -> Option<Instant> {
        (**self).due()
    }

    fn delay(&self) -> Duration {
        (**self).delay()
    }
}

/// Waits a moment for a busy writer.
fn write_later() {
    const BUSY_SLEEP: Duration = Duration::from_millis(1);
    std::thread::sleep(BUSY_SLEEP);
}

/// Writes blocks and waits until the writer accepts more, without a limit on its reader.
pub fn write_patiently(writer: &mut dyn Writer, blocks: Blocks<'_>) -> Result<()> {
    let mut pressure = writer.write(blocks)?;
    loop {
        match &pressure {
            Pressure::Busy { .. } => write_later(),
            Pressure::Blocked(reader) => reader.wait()?,
            _ => return Ok(()),
        }
        pressure = writer.flush()?;
    }
}

/// A writer into a file whose length matters, since a series of files limits it.
pub trait FileWriter: Writer + Send {
    /// Returns the upper bound of the file's length.
    fn length(&self) -> u64;

    /// Waits until the length is exact, and returns true if it is less than the last `length`.
    fn compact(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Returns the upper bound of padding that the file gets with `bytes`.
    fn filling(&self, _bytes: usize) -> u64 {
        0
    }
}

/// The outcome of the packets that a writer received. Packets not listed here reached their destination.
#[derive(Clone, Debug, Default)]
pub struct WriteOutcome {
    /// Packets lost while others were written.
    pub lost: Vec<Loss>,
    /// Packets not written because of an error, or of a reader that does not read.
    pub unwritten: Counts,
    /// Packets that arrived while no reader was connected.
    pub not_kept: Counts,
    /// Packets still in the file, if the disk or another process removed some.
    pub left: Option<Counts>,
    /// Interface blocks added after the first ones of the file, and the number of packets of each.
    pub added: Vec<(u32, u64)>,
    /// The output whose reader stopped reading.
    pub not_read: Option<String>,
    /// Reason why the last packets could not be written. Errors of `write` and `flush` are not repeated.
    pub error: Option<Error>,
}

impl WriteOutcome {
    /// Returns the outcome of packets of which none is known to have been written.
    pub fn failed(error: Error) -> Self {
        Self { left: Some(Counts::default()), error: Some(error), ..Self::default() }
    }
}

/// Returns the loss reason of packets that could not be written because an output failed.
pub fn reason_of_failure(error: &Error) -> &'static str {
    match error.errno() {
        Some(errno::ENOSPC | errno::EDQUOT) => "disk_full",
        Some(errno::EPIPE) => "pipe_closed",
        Some(errno::EFBIG) => "file_too_large",
        _ => "write_error",
    }
}

/// Packets of an interface block that were lost for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub interface: u32,
    pub reason: &'static str,
    pub packets: u64,
}
