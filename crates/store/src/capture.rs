//! The writer of a capture into a store: one thread makes chunks from the blocks, a second one stores them. The capture waits for
//! neither the network nor the store.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use trawl_pipeline::account::Account;
use trawl_pipeline::plan::StorePlan;
use trawl_pipeline::{Blocks, Counts, Outcome, Pressure, Writer};
use trawl_sys::privilege::{self, Capabilities};
use trawl_sys::{Error, Result, clock};

use crate::chunker::{Bounds, Chunker};
use crate::key::Epoch;
use crate::manifest::{Begin, Clock, End, FORMAT, Fates, InterfaceEnd, Origin, State};
use crate::remote::Store;
use crate::spool::{Spool, Target, default_spool};
use crate::upload;

/// Most bytes queued for the chunker: more than accumulate during a disk's short pause.
const QUEUE_BYTES: usize = 64 << 20;

/// Capture and host that are stored.
#[derive(Clone, Debug)]
pub struct Config {
    pub plan: StorePlan,
    pub host: String,
    pub boot: String,
    pub options: Vec<String>,
    pub trawl: String,
}

enum Message {
    Blocks(Vec<u8>),
    Fates(HashMap<String, Fates>),
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
    fn receive(&self, until: Option<Instant>) -> Option<Message> {
        let mut queue = self.lock();
        loop {
            if let Some(message) = queue.messages.pop_front() {
                return Some(message);
            }
            let left = until.map_or(Duration::from_secs(3600), |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return None;
            }
            self.changed.wait_for(&mut queue, left);
        }
    }

    fn done(&self, length: usize, refusal: Option<Refusal>) {
        let mut queue = self.lock();
        queue.bytes -= length;
        if refusal.is_some() && queue.refused.is_none() {
            queue.refused = refusal;
        }
        self.changed.notify_all();
    }
}

/// The accounts of a capture by interface; each chunk's manifest reports a part.
#[derive(Clone)]
pub struct Accounts(Arc<Channel>);

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

impl Accounts {
    /// Updates the accounts; an interface may have several, one for each hook point.
    pub fn set<'a>(&self, accounts: impl Iterator<Item = (&'a str, &'a Account)>) {
        let mut fates: HashMap<String, Fates> = HashMap::new();
        for (interface, account) in accounts {
            fates.entry(interface.to_owned()).or_default().add(account);
        }
        let _ = self.0.send(Message::Fates(fates));
    }
}

/// Writes a capture's blocks into a store.
pub struct StoreWriter {
    channel: Arc<Channel>,
    chunker: Option<JoinHandle<(Vec<InterfaceEnd>, u64)>>,
    uploader: Option<JoinHandle<std::result::Result<(), String>>>,
    spool: Arc<Spool>,
    stop: Arc<AtomicBool>,
    patience: Duration,
    unwritten: Counts,
    taken: u64,
    size: Option<u64>,
    root: PathBuf,
    url: String,
}

impl std::fmt::Debug for StoreWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreWriter")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Result of a capture: recorded = stored + spooled + evicted.
#[derive(Clone, Debug, Serialize)]
pub struct StoredCapture {
    pub recorded: u64,
    pub stored: u64,
    pub spooled: u64,
    pub evicted: u64,
    pub chunks_spooled: u64,
    /// Reason why packets remain in the spool.
    pub trouble: Option<String>,
    pub spool: PathBuf,
}

impl StoreWriter {
    /// Opens store and spool and starts the threads. `complain` receives errors of the store.
    pub fn begin(
        config: &Config,
        interfaces: Vec<String>,
        complain: impl Fn(&str) + Send + 'static,
    ) -> Result<Self> {
        let plan = &config.plan;
        let spool_path = plan.spool.clone().unwrap_or_else(default_spool);
        let store = Store::open(&plan.url, true)?;
        let epoch = Epoch {
            capture: plan.name.clone(),
            host: config.host.clone(),
            boot: config.boot.clone(),
            epoch: clock::wall().to_string(),
        };
        let origin = Origin {
            options: config.options.clone(),
            trawl: config.trawl.clone(),
        };
        let begin = Begin {
            format: FORMAT,
            epoch: epoch.clone(),
            began_ns: clock::wall(),
            interfaces,
            clock: Clock::now(),
            origin: origin.clone(),
            seal: String::new(),
        };
        let url = store.url().to_owned();
        let target = Target {
            url: url.clone(),
            epoch,
            index: plan.index,
        };
        let spool = Arc::new(Spool::create(&spool_path, target, &begin)?);
        let bounds = Bounds {
            chunk_bytes: plan.chunk_bytes,
            chunk_time: plan.chunk_time,
            spool_bytes: plan.spool_bytes,
            full: plan.full,
        };
        let channel = Arc::new(Channel::default());
        let stop = Arc::new(AtomicBool::new(false));
        let fail = |e| Error::os("cannot start a thread", e);
        let chunker = {
            let chunker = Chunker::new(spool.clone(), origin, bounds);
            let channel = channel.clone();
            let thread = std::thread::Builder::new().name("chunks".into());
            thread
                .spawn(move || {
                    keep_rights_to_files();
                    make_chunks(chunker, &channel)
                })
                .map_err(fail)?
        };
        let uploader = {
            let (spool, stop) = (spool.clone(), stop.clone());
            let thread = std::thread::Builder::new().name("store".into());
            let give_up = move || stop.load(Ordering::Acquire);
            thread
                .spawn(move || {
                    keep_rights_to_files();
                    upload::run(&store, &spool, &give_up, &complain)
                })
                .map_err(fail)?
        };
        Ok(Self {
            channel,
            chunker: Some(chunker),
            uploader: Some(uploader),
            spool,
            stop,
            patience: plan.patience,
            unwritten: Counts::default(),
            taken: 0,
            size: plan.size,
            root: spool_path,
            url,
        })
    }

    fn refusal(&self, refusal: Refusal) -> Error {
        let root = self.root.display();
        match refusal {
            Refusal::SpoolFull => {
                let what = format!("cannot record more for {}", self.url);
                Error::failed(what, format!("the spool {root} is full"))
                    .fix("allow more with --spool-size, or --spool-full evict")
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

    pub fn accounts(&self) -> Accounts {
        Accounts(Arc::clone(&self.channel))
    }

    /// Seals the open chunks, writes the record of the end, and waits for a limited time until all is stored.
    pub fn end<'a>(
        mut self,
        accounts: impl Iterator<Item = (&'a str, &'a Account)> + Clone,
        reason: &str,
    ) -> Result<StoredCapture> {
        self.accounts().set(accounts.clone());
        let _ = self.channel.send(Message::End);
        let joined = self.chunker.take().map(JoinHandle::join);
        let Some(Ok((interfaces, untaken))) = joined else {
            return Err(Error::failed(
                "cannot make chunks",
                "the thread that does broke down",
            ));
        };
        let mut account = Fates::default();
        accounts.for_each(|(_, one)| account.add(one));
        let recorded = interfaces.iter().map(|row| row.recorded).sum();
        account.recorded = recorded;
        let end = End {
            format: FORMAT,
            epoch: self.spool.target.epoch.clone(),
            ended_ns: clock::wall(),
            reason: reason.to_owned(),
            account,
            interfaces,
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
        let spooled = count(&|state| state == State::Stored);
        let evicted = self.spool.evicted() + untaken;
        let trouble = trouble.or_else(|| finished.err().map(|error| error.to_string()));
        if trouble.is_none() && waiting.is_empty() {
            let _ = self.spool.remove();
        }
        Ok(StoredCapture {
            recorded,
            stored: recorded - spooled - evicted,
            spooled,
            evicted,
            chunks_spooled: waiting.len() as u64,
            trouble,
            spool: self.root,
        })
    }

    fn wait_for_store(&mut self) -> Option<String> {
        let uploader = self.uploader.take()?;
        let until = Instant::now() + self.patience;
        while !uploader.is_finished() && Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.stop.store(true, Ordering::Release);
        uploader.thread().unpark();
        // A call may still be in progress; it has limits of its own.
        let until = Instant::now() + Duration::from_secs(2);
        while !uploader.is_finished() && Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        match uploader.is_finished().then(|| uploader.join()) {
            Some(Ok(result)) => result.err(),
            Some(Err(_)) => Some("the thread that stores broke down".to_owned()),
            None => Some(format!("{} does not answer", self.url)),
        }
    }
}

fn make_chunks(mut chunker: Chunker, channel: &Channel) -> (Vec<InterfaceEnd>, u64) {
    loop {
        match channel.receive(chunker.due()) {
            Some(Message::Blocks(bytes)) => {
                chunker.take(&bytes);
                let refusal = match chunker.broken() {
                    Some(error) => Some(Refusal::Broken(error.raw_os_error(), error.to_string())),
                    None => chunker.is_full().then_some(Refusal::SpoolFull),
                };
                channel.done(bytes.len(), refusal);
            }
            Some(Message::Fates(fates)) => chunker.count(&fates),
            Some(Message::End) => return (chunker.finish(), chunker.untaken()),
            None => {}
        }
        chunker.seal_due();
    }
}

impl StoreWriter {
    fn pressure(&self) -> Pressure {
        match self.size.is_some_and(|size| self.taken >= size) {
            true => Pressure::Full,
            false => Pressure::Idle,
        }
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

    /// Returns at once, since the blocks are on their way; `end` returns the result.
    fn finish(&mut self) -> Outcome {
        Outcome {
            unwritten: self.unwritten.clone(),
            ..Outcome::default()
        }
    }
}

/// Drops all rights to BPF, packets and interfaces in a thread that makes chunks or uses the network.
fn keep_rights_to_files() {
    // A confined capture already has fewer.
    let _ = privilege::keep_only(Capabilities::DAC_OVERRIDE | Capabilities::DAC_READ_SEARCH);
}
