//! Several outputs of one capture: each but the first has a thread and a queue of its own, so that a slow one does not
//! delay the others. Packets that exceed an output's queue are lost to that output alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trawl_packet::pcapng::block::{blocks, push_cut};
use trawl_pipeline::{Blocks, Counts, Loss, Patience, Pressure, UNWATCHED, WriteOutcome, Writer, reason_of_failure};
use trawl_sys::{Error, Result, errno};

/// Maximum size of an output's queue.
const WAITING_MAX: usize = 32 << 20;
const CHECK_EVERY: Duration = Duration::from_millis(2);
/// Interval at which an output that has failed reports its losses.
const FLUSH_EVERY: Duration = Duration::from_millis(20);
/// Longest sleep of an output that has nothing to write.
const REST: Duration = Duration::from_millis(500);

/// An output with a thread of its own.
#[derive(Debug)]
pub struct ThreadedOutput {
    name: String,
    jobs: Option<Sender<Arc<[u8]>>>,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<WriteOutcome>>,
    /// Packets that found its queue full.
    lost: Counts,
    /// Time for which blocks may wait for more of them.
    delay: Duration,
}

/// State shared between an output and its thread.
#[derive(Debug, Default)]
struct Queue {
    /// True if packets wait for the output instead of being lost.
    patient: bool,
    /// Bytes not yet written.
    waiting: AtomicUsize,
    /// True once the capture is over: readers that do not read are no longer waited for.
    is_ending: AtomicBool,
    /// Packets that the output lacks: set once the capture is over and all other packets are written.
    missing: Mutex<Option<Counts>>,
}

/// Outcome of an output.
#[derive(Debug)]
pub struct OutputFate {
    pub name: String,
    pub recorded: u64,
    /// Packets that arrived while no reader was connected.
    pub not_kept: u64,
    pub lost: u64,
    pub error: Option<Error>,
    /// True if it failed for another reason than a reader that closed the pipe.
    pub failed: bool,
    /// True if its losses are packets that could not be compressed in time.
    pub compresses_too_slowly: bool,
}

impl OutputFate {
    fn new(name: &str, handed: u64, lost_before: u64, outcome: WriteOutcome) -> Self {
        let compressing: u64 = outcome.lost.iter().map(|loss| loss.packets).sum();
        let lost = match &outcome.left {
            Some(left) => handed - left.total().min(handed),
            None => lost_before + outcome.unwritten.total() + compressing,
        };
        let error = outcome.error.or_else(|| {
            let name = outcome.not_read.as_ref()?;
            let what = format!("cannot write to {name}");
            Some(Error::failed(what, "its reader does not read"))
        });
        let is_broken = |error: &Error| error.errno() != Some(errno::EPIPE);
        Self {
            name: name.to_owned(),
            recorded: handed.saturating_sub(lost + outcome.not_kept.total()),
            not_kept: outcome.not_kept.total(),
            lost,
            failed: outcome.not_read.is_none() && error.as_ref().is_some_and(is_broken),
            compresses_too_slowly: error.is_none() && compressing > 0,
            error,
        }
    }
}

impl ThreadedOutput {
    /// Starts an output; packets are cut to `snaplen` bytes, if given.
    ///
    /// A `patient` one never loses any: its caller waits.
    pub fn start(
        name: String,
        mut writer: Box<dyn Writer + Send>,
        snaplen: Option<u32>,
        patient: bool,
    ) -> Result<Self> {
        let (jobs, to_write) = channel::<Arc<[u8]>>();
        let queue = Arc::new(Queue { patient, ..Queue::default() });
        let shared = Arc::clone(&queue);
        let delay = writer.delay();
        let thread = std::thread::Builder::new()
            .name("trawl-output".to_owned())
            .spawn(move || {
                let writer = writer.as_mut();
                let written = write_all(writer, snaplen, &to_write, &shared);
                let mut outcome = writer.finish();
                outcome.error = written.err().or(outcome.error);
                // Blocks still arrive after an error, or with a reader that does not read.
                loop {
                    match to_write.recv_timeout(FLUSH_EVERY) {
                        Ok(bytes) => {
                            outcome.unwritten.add_blocks(&bytes);
                            shared.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
                        }
                        Err(RecvTimeoutError::Timeout) => shared.publish(|| outcome.clone()),
                        Err(RecvTimeoutError::Disconnected) => break outcome,
                    }
                }
            })
            .map_err(|e| Error::os("cannot start the thread of an output", e))?;
        Ok(Self { name, jobs: Some(jobs), queue, thread: Some(thread), lost: Counts::default(), delay })
    }

    fn enqueue(&mut self, bytes: &Arc<[u8]>, packets: &Counts) {
        let waiting = &self.queue.waiting;
        let fits = waiting.load(Ordering::Acquire) + bytes.len() <= WAITING_MAX;
        waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        let jobs = self.jobs.as_ref().filter(|_| fits);
        if jobs.is_none_or(|jobs| jobs.send(Arc::clone(bytes)).is_err()) {
            waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
            self.lost.add_all(packets);
        }
    }

    /// Waits until all is written after the capture's end, and returns the packets that the output lacks.
    fn missing(&self, handed: &Counts) -> Counts {
        loop {
            if let Some(missing) = &*self.queue.missing.lock() {
                let mut missing = missing.clone();
                missing.add_all(&self.lost);
                return missing;
            }
            let thread = self.thread.as_ref();
            if thread.is_none_or(JoinHandle::is_finished) {
                return handed.clone();
            }
            std::thread::sleep(CHECK_EVERY);
        }
    }

    fn waiting(&self) -> usize {
        self.queue.waiting.load(Ordering::Acquire)
    }

    fn is_busy(&self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_some_and(|thread| !thread.is_finished()) && self.waiting() > 0
    }

    /// Ends the output once all is written. `handed` is the number of packets that it received.
    fn end(mut self, handed: u64) -> OutputFate {
        self.jobs = None;
        // A crashed thread has written nothing reliable.
        let outcome = match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            _ => WriteOutcome {
                left: Some(Counts::default()),
                error: Some(Error::failed("cannot write", "the output's thread crashed")),
                ..WriteOutcome::default()
            },
        };
        OutputFate::new(&self.name, handed, self.lost.total(), outcome)
    }
}

impl Queue {
    /// Publishes the packets that the output lacks, once the capture is over and the queue is empty.
    fn publish(&self, outcome: impl FnOnce() -> WriteOutcome) {
        if self.is_ending.load(Ordering::Acquire) && self.waiting.load(Ordering::Acquire) == 0 {
            let mut missing = self.missing.lock();
            if missing.is_none() {
                *missing = Some(missing_of(&outcome()));
            }
        }
    }
}

/// Returns the packets of an outcome that did not reach their output.
fn missing_of(outcome: &WriteOutcome) -> Counts {
    let mut missing = outcome.unwritten.clone();
    missing.add_all(&outcome.not_kept);
    for loss in &outcome.lost {
        missing.add(loss.interface, loss.packets);
    }
    missing
}

/// Writes blocks until the queue is closed, or until the capture is over and the reader has stopped reading.
fn write_all(
    writer: &mut dyn Writer,
    snaplen: Option<u32>,
    to_write: &Receiver<Arc<[u8]>>,
    queue: &Queue,
) -> Result<()> {
    loop {
        let due = writer.due().map(|due| due.saturating_duration_since(Instant::now()).max(CHECK_EVERY));
        match to_write.recv_timeout(due.unwrap_or(REST)) {
            Ok(bytes) if !bytes.is_empty() => {
                let written = write_cut(writer, Blocks::Bytes(&bytes), snaplen);
                let written = written.and_then(|pressure| wait_for_reader(writer, pressure, queue));
                queue.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
                if !written? {
                    return Ok(());
                }
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {
                writer.flush()?;
                queue.publish(|| writer.finish());
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        writer.flush()?;
    }
}

/// Waits for a reader, without a limit until the capture is over. Returns false if the reader has stopped reading.
fn wait_for_reader(writer: &mut dyn Writer, mut pressure: Pressure, queue: &Queue) -> Result<bool> {
    let mut patience = None;
    loop {
        let reader = match &pressure {
            Pressure::Blocked(reader) => reader,
            Pressure::Busy { .. } if queue.patient => {
                std::thread::sleep(CHECK_EVERY);
                pressure = writer.flush()?;
                continue;
            }
            _ => return Ok(true),
        };
        if queue.is_ending.load(Ordering::Acquire) && patience.get_or_insert_with(Patience::begin).is_over(reader) {
            return Ok(false);
        }
        reader.wait()?;
        pressure = writer.flush()?;
    }
}

/// Writes blocks, with packets cut to the snap length, if any.
fn write_cut(writer: &mut dyn Writer, blocks: Blocks<'_>, snaplen: Option<u32>) -> Result<Pressure> {
    match snaplen {
        Some(snaplen) if !blocks.bytes().is_empty() => writer.write(Blocks::Bytes(&cut(blocks.bytes(), snaplen))),
        _ => writer.write(blocks),
    }
}

/// Returns the blocks with at most this many bytes of each packet.
fn cut(bytes: &[u8], snaplen: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for block in blocks(bytes) {
        match block.enhanced_packet() {
            Some(_) => push_cut(block.bytes, snaplen, &mut out),
            None => out.extend_from_slice(block.bytes),
        }
    }
    out
}

/// The first output, and additional ones. With others, the first one's failure does not end the capture.
pub struct Several {
    name: String,
    first: Box<dyn Writer>,
    /// Snap length of the first output.
    snaplen: Option<u32>,
    others: Vec<ThreadedOutput>,
    /// True if packets wait for the outputs instead of being lost.
    patient: bool,
    /// Packets handed to the first output.
    handed: Counts,
    /// Failure of the first output, which receives nothing from then on, and the packets that it does not have.
    failure: Option<(OutputFate, Counts)>,
}

impl std::fmt::Debug for Several {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Several").field("others", &self.others).finish_non_exhaustive()
    }
}

impl Several {
    pub fn new(
        name: String,
        first: Box<dyn Writer>,
        snaplen: Option<u32>,
        others: Vec<ThreadedOutput>,
        patient: bool,
    ) -> Self {
        Self { name, first, snaplen, others, patient, handed: Counts::default(), failure: None }
    }

    /// Ends the others, and returns their outcomes, and the first one's if it failed.
    pub fn end(self) -> Vec<OutputFate> {
        let handed = self.handed.total();
        let others = self.others.into_iter().map(|one| one.end(handed));
        let failure = self.failure.map(|(fate, _)| fate);
        failure.into_iter().chain(others).collect()
    }

    fn enqueue(&mut self, bytes: &[u8]) {
        if self.others.is_empty() || bytes.is_empty() {
            return;
        }
        let packets = Counts::of(bytes);
        self.handed.add_all(&packets);
        if let Some((fate, missing)) = &mut self.failure {
            fate.lost += packets.total();
            missing.add_all(&packets);
        }
        let shared: Arc<[u8]> = Arc::from(bytes);
        self.others.iter_mut().for_each(|one| one.enqueue(&shared, &packets));
    }

    /// Returns the pressure of all outputs, which are busy with more than `most` waiting bytes.
    fn answer(&mut self, answered: Result<Pressure>, most: usize) -> Result<Pressure> {
        let pressure = match answered {
            Err(error) if !self.others.is_empty() => {
                let mut outcome = self.first.finish();
                outcome.error = Some(error);
                self.fail(outcome);
                Pressure::Idle
            }
            // Packets are cut one by one.
            answered if self.snaplen.is_some() => answered?.without_segments(),
            answered => answered?,
        };
        let is_full = |one: &ThreadedOutput| one.waiting() > most;
        let wants_segments = matches!(pressure, Pressure::WantsSegments);
        Ok(match pressure {
            Pressure::Idle | Pressure::WantsSegments if self.others.iter().any(is_full) => {
                Pressure::Busy { wants_segments }
            }
            pressure => pressure,
        })
    }

    fn fail(&mut self, outcome: WriteOutcome) {
        let missing = match &outcome.left {
            Some(left) => {
                let mut missing = self.handed.clone();
                missing.subtract(left);
                missing
            }
            None => missing_of(&outcome),
        };
        let fate = OutputFate { failed: true, ..OutputFate::new(&self.name, self.handed.total(), 0, outcome) };
        self.failure = Some((fate, missing));
    }

    /// Returns the outcome after the failure of the first output: only packets that no other output has either are
    /// lost. `None` if the first output did not fail.
    fn after_failure(&self) -> Option<WriteOutcome> {
        let (fate, missing) = self.failure.as_ref()?;
        let others = self.others.iter().map(|one| one.missing(&self.handed));
        let missing = others.fold(missing.clone(), |min, one| min.min(&one));
        let reason = fate.error.as_ref().map_or("not_read", reason_of_failure);
        let lost = missing.iter().map(|(interface, packets)| Loss { interface, reason, packets });
        Some(WriteOutcome { lost: lost.collect(), ..WriteOutcome::default() })
    }
}

impl Writer for Several {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        self.enqueue(blocks.bytes());
        let answered = match self.failure {
            Some(_) => Ok(Pressure::Idle),
            None => write_cut(self.first.as_mut(), blocks, self.snaplen),
        };
        self.answer(answered, WAITING_MAX / 2)
    }

    fn flush(&mut self) -> Result<Pressure> {
        let answered = match self.failure {
            Some(_) => Ok(Pressure::Idle),
            None => self.first.flush(),
        };
        // A source that waits for patient outputs waits until all is written.
        self.answer(answered, if self.patient { 0 } else { WAITING_MAX / 2 })
    }

    /// The others have threads of their own.
    fn due(&self) -> Option<Instant> {
        self.failure.is_none().then(|| self.first.due()).flatten()
    }

    fn delay(&self) -> Duration {
        let first = self.failure.is_none().then(|| self.first.delay());
        first.into_iter().chain(self.others.iter().map(|one| one.delay)).min().unwrap_or(UNWATCHED)
    }

    fn finish(&mut self) -> WriteOutcome {
        for one in &self.others {
            one.queue.is_ending.store(true, Ordering::Release);
            // Wakes its thread.
            one.jobs.as_ref().map(|jobs| jobs.send(Arc::new([])));
        }
        while self.others.iter().any(ThreadedOutput::is_busy) {
            std::thread::sleep(CHECK_EVERY);
        }
        if self.failure.is_none() {
            let outcome = self.first.finish();
            if outcome.error.is_none() || self.others.is_empty() {
                return outcome;
            }
            self.fail(outcome);
        }
        self.after_failure().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_packet::pcapng::write::{EnhancedPacket, enhanced_packet};

    #[test]
    fn cut_packets_keep_their_metadata() {
        let mut bytes = Vec::new();
        for length in [10, 64, 65] {
            enhanced_packet(
                &mut bytes,
                &EnhancedPacket {
                    captured: &vec![length as u8; length],
                    original_len: 100,
                    packet_id: Some(7),
                    ..EnhancedPacket::default()
                },
            );
        }
        let short = cut(&bytes, 62);
        let packets: Vec<_> = blocks(&short).filter_map(|block| block.enhanced_packet()).collect();
        let lengths: Vec<usize> = packets.iter().map(|packet| packet.captured.len()).collect();
        assert_eq!(lengths, [10, 62, 62]);
        assert!(packets.iter().all(|packet| packet.original_len == 100));
        assert_eq!(cut(&bytes, 1000), bytes);
    }
}
