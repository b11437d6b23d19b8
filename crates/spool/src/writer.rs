//! The writer of a capture into a spool: a thread makes chunks from the blocks, and another process stores them. The
//! capture waits for neither the network nor the store.

use std::collections::VecDeque;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Counts, Pressure, UNWATCHED, WriteOutcome, Writer};
use trawl_plan::outputs::{FullSpool, Kept, PacketsAt, StorePlan};
use trawl_sys::rights::privilege::{self, Capabilities};
use trawl_sys::{Error, Result, clock, process};

use crate::chunker::{Bounds, Chunker, Totals};
use crate::key::Epoch;
use crate::manifest::{Begin, Clock, End, FORMAT, Fates, Origin, State};
use crate::spool::{Spool, Target, default_spool};
use crate::translations::{Watched, collect_until};
use crate::uploader::Uploader;

/// Maximum number of bytes queued for the chunker: more than accumulate while a disk pauses briefly.
const QUEUE_BYTES: usize = 64 << 20;
/// Maximum time of a chunk: a year, so that no sum of times overflows.
const LONGEST_CHUNK: Duration = Duration::from_secs(365 * 86_400);
/// Additional time in which the process that stores chunks may finish its last request.
const GRACE: Duration = Duration::from_secs(2);

/// Capture and host that are stored.
#[derive(Clone, Debug)]
pub struct Config {
    pub plan: StorePlan,
    pub host: String,
    pub boot: String,
    pub options: Vec<String>,
    pub trawl: String,
}

impl Config {
    fn spool(&self) -> PathBuf {
        self.plan.spool.clone().unwrap_or_else(default_spool)
    }

    fn origin(&self) -> Origin {
        Origin { options: self.options.clone(), trawl: self.trawl.clone() }
    }

    /// Makes the spool of a new run.
    pub fn open(&self, interfaces: Vec<String>) -> Result<Spool> {
        let began_ns = clock::wall();
        let epoch = Epoch {
            capture: self.plan.name.clone(),
            host: self.host.clone(),
            boot: self.boot.clone(),
            epoch: began_ns.to_string(),
        };
        let begin = Begin {
            format: FORMAT,
            epoch: epoch.clone(),
            began_ns,
            began_boot_ns: Some(clock::since_boot()),
            interfaces,
            continues: self.plan.kept == Some(Kept::Again),
            clock: Clock::now(),
            origin: self.origin(),
            seal: String::new(),
        };
        let target = Target {
            url: self.plan.url.clone(),
            epoch,
            index: self.plan.index,
            packets: self.plan.packets,
            incident: None,
        };
        Spool::create(&self.spool(), target, &begin)
    }
}

enum Message {
    Blocks(Vec<u8>),
    Fates(Fates),
    Seal,
    End,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    bytes: usize,
    /// Reason why no more blocks are accepted.
    refused: Option<Refusal>,
}

#[derive(Clone, Debug)]
enum Refusal {
    SpoolFull,
    Broken(Option<i32>, String),
}

#[derive(Default)]
struct Channel {
    queue: Mutex<Queue>,
    changed: Condvar,
    news: Mutex<Watched>,
    /// The account that was sent last: the same one does not wake the thread.
    fates: Mutex<Fates>,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn send(&self, message: Message) -> std::result::Result<(), Refusal> {
        let length = match &message {
            Message::Blocks(bytes) => bytes.len(),
            _ => 0,
        };
        let mut queue = self.lock();
        while queue.bytes >= QUEUE_BYTES && queue.refused.is_none() {
            self.changed.wait(&mut queue);
        }
        if let (Some(refusal), Message::Blocks(_)) = (&queue.refused, &message) {
            return Err(refusal.clone());
        }
        queue.bytes += length;
        queue.messages.push_back(message);
        self.changed.notify_all();
        Ok(())
    }

    /// Returns the next message, or `None` once `until` has passed.
    fn receive(&self, until: Instant) -> Option<Message> {
        let mut queue = self.lock();
        loop {
            if let Some(message) = queue.messages.pop_front() {
                return Some(message);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.changed.wait_for(&mut queue, left);
        }
    }

    fn mark_done(&self, length: usize, refusal: Option<Refusal>) {
        let mut queue = self.lock();
        queue.bytes -= length;
        if refusal.is_some() && queue.refused.is_none() {
            queue.refused = refusal;
        }
        self.changed.notify_all();
    }
}

/// Messages of a capture to the thread that makes its chunks, apart from blocks.
#[derive(Clone)]
pub struct Control(Arc<Channel>);

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// Updates the account, of which each chunk's manifest reports a part: the sum of these, one for each hook point of
    /// an interface.
    pub fn account<'a>(&self, accounts: impl Iterator<Item = (&'a str, &'a PacketAccount)>) {
        let mut fates = Fates::default();
        accounts.for_each(|(_, account)| fates.add(account));
        let mut last = self.0.fates.lock();
        if *last != fates {
            last.clone_from(&fates);
            let _ = self.0.send(Message::Fates(fates));
        }
    }

    /// Seals the open chunk.
    pub fn seal(&self) {
        let _ = self.0.send(Message::Seal);
    }
}

/// Writes a capture's blocks into a spool.
pub struct StoreWriter {
    channel: Arc<Channel>,
    chunker: Option<JoinHandle<Totals>>,
    /// The process that stores the chunks, and the thread that follows it.
    uploader: Option<(u32, JoinHandle<Option<String>>)>,
    spool: Arc<Spool>,
    patience: Duration,
    unwritten: Counts,
    taken: u64,
    size: Option<u64>,
    root: PathBuf,
    url: String,
    /// The agent that keeps the capture running, if it has one.
    keeper: Option<u32>,
    /// The thread that reads the news of translations, and its end.
    translations: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl std::fmt::Debug for StoreWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreWriter").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Result of a capture: recorded = stored + on_host + spooled + evicted.
#[derive(Clone, Debug, Serialize)]
pub struct StoredCapture {
    pub recorded: u64,
    pub stored: u64,
    /// Indexed in the store; the packets stay on this host until newer ones need the room.
    pub on_host: u64,
    pub spooled: u64,
    pub evicted: u64,
    pub chunks_spooled: u64,
    /// Reason why packets remain in the spool.
    pub trouble: Option<String>,
    pub spool: PathBuf,
}

impl StoreWriter {
    /// Starts the threads. Without a process that stores them, chunks stay in the spool. `complain` receives errors of
    /// the store.
    pub fn new(
        config: &Config,
        spool: Spool,
        uploader: Option<Uploader>,
        complain: impl Fn(&str) + Send + 'static,
    ) -> Result<Self> {
        let plan = &config.plan;
        let spool = Arc::new(spool);
        let bounds = Bounds {
            chunk_bytes: plan.chunk_bytes,
            chunk_time: plan.chunk_time.min(LONGEST_CHUNK),
            spool_bytes: plan.spool_bytes,
            full: match plan.packets {
                PacketsAt::Store => plan.full,
                PacketsAt::Host => FullSpool::Evict,
            },
        };
        let channel = Arc::new(Channel::default());
        let fail = |e| Error::os("cannot start a thread", e);
        let chunker = {
            let chunker = Chunker::new(spool.clone(), config.origin(), bounds);
            let channel = channel.clone();
            let thread = std::thread::Builder::new().name("chunks".into());
            thread
                .spawn(move || {
                    keep_rights_to_files();
                    make_chunks(chunker, &channel)
                })
                .map_err(fail)?
        };
        let follow = |uploader: Uploader| {
            let (id, spool) = (uploader.id(), spool.clone());
            let thread = std::thread::Builder::new().name("store".into());
            let thread = thread.spawn(move || {
                keep_rights_to_files();
                uploader.follow(&spool, &complain)
            });
            thread.map(|thread| (id, thread)).map_err(fail)
        };
        Ok(Self {
            channel,
            chunker: Some(chunker),
            uploader: uploader.map(follow).transpose()?,
            spool,
            patience: plan.patience,
            unwritten: Counts::default(),
            taken: 0,
            size: plan.size,
            root: config.spool(),
            keeper: plan.kept.map(|_| parent_id()),
            url: plan.url.clone(),
            translations: None,
        })
    }

    /// Starts a thread that reads the news of translated connections.
    pub fn translate(&mut self, watched: Watched) -> Result<()> {
        if watched.is_empty() {
            return Ok(());
        }
        *self.channel.news.lock() = watched;
        let (channel, is_over) = (self.channel.clone(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::Builder::new().name("translations".into());
        let until = is_over.clone();
        let thread = thread.spawn(move || {
            keep_rights_to_files();
            collect_until(&channel.news, &until);
        });
        let thread = thread.map_err(|e| Error::os("cannot start a thread", e))?;
        self.translations = Some((is_over, thread));
        Ok(())
    }

    fn refusal(&self, refusal: Refusal) -> Error {
        let root = self.root.display();
        match refusal {
            Refusal::SpoolFull => {
                let what = format!("cannot record more for {}", self.url);
                Error::failed(what, format!("the spool {root} is full"))
                    .fix("raise --spool-size, or use --spool-full evict")
            }
            Refusal::Broken(errno, why) => {
                let what = format!("cannot write to the spool {root}");
                match errno {
                    Some(errno) => Error::os(what, std::io::Error::from_raw_os_error(errno)),
                    None => Error::failed(what, why),
                }
            }
        }
    }

    pub fn control(&self) -> Control {
        Control(Arc::clone(&self.channel))
    }

    /// Seals the open chunks, writes the record of the end, and waits for a limited time until all is stored.
    pub fn end<'a>(
        mut self,
        accounts: impl Iterator<Item = (&'a str, &'a PacketAccount)> + Clone,
        reason: &str,
    ) -> Result<StoredCapture> {
        self.control().account(accounts.clone());
        if let Some((is_over, thread)) = self.translations.take() {
            is_over.store(true, Ordering::Release);
            let _ = thread.join();
        }
        let _ = self.channel.send(Message::End);
        let joined = self.chunker.take().map(JoinHandle::join);
        let Some(Ok(totals)) = joined else {
            return Err(Error::failed("cannot make chunks", "the thread that makes chunks crashed"));
        };
        let mut account = Fates::default();
        accounts.for_each(|(_, one)| account.add(one));
        let recorded = totals.recorded;
        account.recorded = recorded;
        let end = End {
            format: FORMAT,
            epoch: self.spool.target.epoch.clone(),
            ended_ns: clock::wall(),
            ended_boot_ns: Some(clock::since_boot()),
            reason: reason.to_owned(),
            orphaned: self.keeper.is_some_and(|keeper| keeper != parent_id()),
            account,
            chunks: totals.chunks,
            interfaces: totals.interfaces,
            clock: Clock::now(),
            seal: String::new(),
        };
        let finished = self.spool.finish(&end);
        let trouble = self.wait_for_store();
        let waiting = self.spool.waiting();
        let count = |wanted: &dyn Fn(State) -> bool| -> u64 {
            let chunks = waiting.iter().filter(|chunk| wanted(chunk.state));
            chunks.map(|chunk| chunk.recorded).sum()
        };
        let spooled = count(&|state| matches!(state, State::Stored | State::OnHost));
        let evicted = self.spool.evicted() + totals.refused;
        let trouble = trouble.or_else(|| finished.err().map(|error| error.to_string()));
        if trouble.is_none() && waiting.is_empty() {
            let _ = self.spool.close();
        }
        let done = recorded - spooled - evicted;
        let (stored, on_host) = match self.spool.target.packets {
            PacketsAt::Store => (done, 0),
            PacketsAt::Host => (0, done),
        };
        Ok(StoredCapture {
            recorded,
            stored,
            on_host,
            spooled,
            evicted,
            chunks_spooled: waiting.len() as u64,
            trouble,
            spool: self.root,
        })
    }

    /// Waits for the process that stores the chunks. It ends on its own unless a call does not return.
    fn wait_for_store(&mut self) -> Option<String> {
        let (process, thread) = self.uploader.take()?;
        let until = Instant::now() + self.patience + GRACE;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        if !thread.is_finished() {
            let _ = process::kill(process);
            return Some(format!("{} does not answer", self.url));
        }
        let joined = thread.join();
        joined.unwrap_or_else(|_| Some("the thread that queries the store crashed".to_owned()))
    }
}

fn make_chunks(mut chunker: Chunker, channel: &Channel) -> Totals {
    loop {
        let message = channel.receive(chunker.due());
        // Translations are added first, so that even a chunk that this message fills has those of its packets.
        chunker.add_blocks(&channel.news.lock().take());
        match message {
            Some(Message::Blocks(bytes)) => {
                chunker.add_blocks(&bytes);
                let refusal = match chunker.broken() {
                    Some(error) => Some(Refusal::Broken(error.raw_os_error(), error.to_string())),
                    None => chunker.is_full().then_some(Refusal::SpoolFull),
                };
                channel.mark_done(bytes.len(), refusal);
            }
            Some(Message::Fates(fates)) => chunker.set_counts(fates),
            Some(Message::Seal) => chunker.seal_open(),
            Some(Message::End) => return chunker.finish(),
            None => {}
        }
        chunker.seal_due();
    }
}

impl StoreWriter {
    fn pressure(&self) -> Pressure {
        if self.size.is_some_and(|size| self.taken >= size) { Pressure::Full } else { Pressure::Idle }
    }
}

impl Writer for StoreWriter {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let bytes = blocks.bytes();
        self.taken += bytes.len() as u64;
        let sent = self.channel.send(Message::Blocks(bytes.to_vec()));
        sent.map_err(|refusal| {
            self.unwritten.add_blocks(bytes);
            self.refusal(refusal)
        })?;
        Ok(self.pressure())
    }

    /// Ends the capture at once if the spool accepts no more, rather than with the next packet.
    fn flush(&mut self) -> Result<Pressure> {
        let refused = self.channel.lock().refused.clone();
        refused.map_or(Ok(()), |refusal| Err(self.refusal(refusal)))?;
        Ok(self.pressure())
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    /// Returns at once, because the chunker still receives the queued blocks; `end` returns the result.
    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome { unwritten: self.unwritten.clone(), ..WriteOutcome::default() }
    }
}

/// Drops all rights to BPF, packets and interfaces in a thread that makes chunks or uses the network.
fn keep_rights_to_files() {
    // A confined capture already has fewer.
    let _ = privilege::keep_only(Capabilities::DAC_OVERRIDE | Capabilities::DAC_READ_SEARCH);
}
