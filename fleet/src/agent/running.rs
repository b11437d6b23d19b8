//! A running capture, as its agent sees it: a process of `trawl capture` that follows a plan.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use trawl_front::published::COUNTS;
use trawl_front::terminal;
use trawl_plan::CapturePlan;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, Drops, Memory, Recording, TapChoice, Taps};
use trawl_plan::outputs::{Kept, StorePlan};
use trawl_plan::sources::Sources;
use trawl_sys::process::{self, own_binary, trawl_binary};
use trawl_sys::{Error, Result};

use super::{Capture, Counts, End, Event};

/// A capture's message with its counts.
#[derive(Deserialize)]
struct CountsMessage {
    #[serde(flatten)]
    counts: Counts,
    over_ns: u64,
}

/// Prefix of the sd_notify message that a capture sends once it is attached.
const READY: &[u8] = b"READY=1";
/// Maximum length of a message: counts with every reason of a loss.
const MESSAGE: usize = 16 << 10;
/// Longest time until the last message of a capture that has failed is read.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Name of the host, and the agent's directories: its memory, and the spool.
pub struct Place {
    pub host: String,
    pub directory: PathBuf,
    pub spool: PathBuf,
}

pub struct Running {
    pub run: u64,
    child: Child,
    /// Becomes readable once the child has ended.
    end: Option<OwnedFd>,
    /// Socket on which the capture reports that it is attached, and its counts.
    notices: UnixDatagram,
    _socket: OwnFile,
    is_ready: bool,
    summary: OwnFile,
    _plan: OwnFile,
    last_message: Arc<Mutex<String>>,
    /// The thread that reads the capture's messages.
    relay: Option<JoinHandle<()>>,
}

/// A file of one start, which is removed after it.
struct OwnFile(PathBuf);

impl OwnFile {
    /// Removes a file of an earlier start.
    fn new(path: PathBuf) -> Self {
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reasons why a capture could not be started.
pub enum Refused {
    /// An earlier process still holds the lock of this capture.
    Held,
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Locks a capture. The process inherits the lock as its standard input, so that it is held as long as any process of
/// that capture lives, with or without its agent.
fn lock(directory: &Path, name: &str) -> std::result::Result<File, Refused> {
    let path = directory.join(format!("{name}.lock"));
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = opened.map_err(|e| Error::os(format!("cannot open {}", path.display()), e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(Refused::Held),
    }
}

impl Running {
    pub fn start(run: u64, capture: &Capture, kept: Kept, place: &Place) -> std::result::Result<Self, Refused> {
        let directory = place.directory.as_path();
        let lock = lock(directory, &capture.name)?;
        let summary = OwnFile::new(directory.join(format!("{}.summary", capture.name)));
        let what = || format!("cannot start the capture '{}'", capture.name);
        // The socket is a file in a directory of this user's alone, because any user may bind an abstract name.
        let socket = OwnFile::new(directory.join(format!("notify-{run}")));
        let notices = UnixDatagram::bind(&socket.0).map_err(|e| Error::os(what(), e))?;
        let made = notices.set_nonblocking(true);
        made.map_err(|e| Error::os(what(), e))?;
        let plan_file = OwnFile::new(directory.join(format!("{}.plan", capture.name)));
        let plan = plan(capture, kept, place, &summary.0)?;
        let text = serde_json::to_string(&plan).map_err(|e| Error::failed(what(), e))?;
        std::fs::write(&plan_file.0, text).map_err(|e| Error::os(what(), e))?;
        let mut command = Command::new(trawl_binary()?);
        command
            .args(["capture", "-q", "--plan"])
            .arg(&plan_file.0)
            .env("NOTIFY_SOCKET", &socket.0)
            .stdin(Stdio::from(lock))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        process::with_signals(&mut command);
        // An incident may be frozen at any time.
        process::holds_triggers(&mut command);
        process::ends_with_parent(&mut command);
        let mut child = command.spawn().map_err(|e| Error::os(what(), e))?;
        let last_message = Arc::default();
        let relay = child.stderr.take().map(|stderr| {
            let (name, last) = (capture.name.clone(), Arc::clone(&last_message));
            std::thread::spawn(move || relay(&name, BufReader::new(stderr), &last))
        });
        Ok(Self {
            run,
            end: process::end_of(child.id()),
            child,
            notices,
            _socket: socket,
            is_ready: false,
            summary,
            _plan: plan_file,
            last_message,
            relay,
        })
    }

    /// Reads the capture's reports: that it is attached, and its counts.
    pub fn events(&mut self) -> Vec<Event> {
        let run = self.run;
        let mut events = Vec::new();
        let mut message = [0; MESSAGE];
        while let Ok(length) = self.notices.recv(&mut message) {
            let text = &message[..length];
            let counts = text.strip_prefix(COUNTS.as_bytes());
            if let Some(counts) = counts.and_then(|text| serde_json::from_slice(text).ok()) {
                let CountsMessage { counts, over_ns } = counts;
                events.push(Event::Counted { run, counts: with_losses(counts), over_ns });
            } else if text.starts_with(READY) && !self.is_ready {
                self.is_ready = true;
                events.push(Event::Ready { run });
            }
        }
        events
    }

    /// Returns the descriptors that become readable once there are reports, or the capture has ended.
    pub fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.notices.as_fd()].into_iter().chain(self.end.as_ref().map(AsFd::as_fd))
    }

    /// Asks the capture to seal its chunk.
    pub fn seal(&self) {
        let _ = process::trigger(self.child.id());
    }

    pub fn stop(&self, force: bool) {
        // The capture may have ended already.
        let _ = if force { process::kill(self.child.id()) } else { process::interrupt(self.child.id()) };
    }

    /// Returns the outcome, once the capture has ended.
    pub fn ended(&mut self) -> Option<(End, Counts)> {
        let status = self.child.try_wait().ok().flatten()?;
        let counts = self.counted_at_end().unwrap_or_default();
        let end = if status.success() { End::Well } else { End::Failed(self.why(status)) };
        Some((end, counts))
    }

    fn why(&self, status: ExitStatus) -> String {
        // The end of the process may be known before its last words have been read. Processes of the capture that
        // outlive it keep their standard error open.
        let begun = Instant::now();
        while self.relay.as_ref().is_some_and(|relay| !relay.is_finished()) && begun.elapsed() < LAST_WORDS {
            std::thread::sleep(LAST_WORDS / 100);
        }
        let message = self.last_message.lock().clone();
        if message.is_empty() || status.code().is_none() { format!("the capture ended: {status}") } else { message }
    }

    fn counted_at_end(&self) -> Option<Counts> {
        let text = std::fs::read(&self.summary.0).ok()?;
        serde_json::from_slice(&text).ok().map(with_losses)
    }
}

/// Leaves out reasons without losses.
fn with_losses(mut counts: Counts) -> Counts {
    counts.lost.retain(|_, count| *count > 0);
    counts
}

/// Passes the capture's messages on to the agent's own output, prefixed by the capture's name.
fn relay(name: &str, from: impl BufRead, last: &Mutex<String>) {
    for line in from.lines().map_while(std::result::Result::ok) {
        let line = line.strip_prefix("trawl: ").unwrap_or(&line);
        terminal::say(&format!("{name}: {line}"));
        *last.lock() = line.to_owned();
    }
}

/// Returns the taps of these names, as `--tap` has them.
fn taps(names: &[String]) -> Result<Taps> {
    let named = |name: &String| {
        serde_json::from_value::<TapChoice>(name.as_str().into())
            .map_err(|why| Error::usage(format!("cannot use the tap '{name}'"), why))
    };
    Taps::of(&names.iter().map(named).collect::<Result<Vec<_>>>()?)
}

/// Makes the plan of a desired capture.
fn plan(capture: &Capture, kept: Kept, place: &Place, summary: &Path) -> Result<CapturePlan> {
    let usual = taps(&capture.taps)?.usual();
    let memory = capture.memory_bytes.map_or(Memory::Usual, Memory::Total);
    let expression = capture.filter.trim();
    let options = CaptureOptions {
        memory,
        filter: (!expression.is_empty()).then(|| Filter::Expression(expression.to_owned())),
        snaplen: capture.snaplen.map_or(usual.snaplen, |most| most.min(usual.snaplen)),
        count: capture.packets,
        duration: capture.duration_seconds.map(Duration::from_secs),
        verdicts: (capture.verdict_set()).map_err(|why| Error::usage("cannot select verdicts", why))?,
        drops: usual
            .drops
            .clone()
            .map(|drops| Drops { reasons: (!capture.reasons.is_empty()).then(|| capture.reasons.clone()), ..drops }),
        process: capture.process_plan(),
        recording: Recording { segments: true, ..usual.recording },
        ..usual
    };
    let store = StorePlan {
        host: Some(place.host.clone()),
        kept: Some(kept),
        spool: Some(place.spool.clone()),
        spool_bytes: capture.spool_bytes.unwrap_or(StorePlan::SPOOL_BYTES),
        chunk_bytes: capture.chunk_bytes.unwrap_or(StorePlan::CHUNK_BYTES),
        chunk_time: capture.chunk_seconds.map_or(StorePlan::CHUNK_TIME, Duration::from_secs),
        size: capture.size_bytes,
        index: capture.index,
        packets: capture.packets_at,
        ..StorePlan::new(capture.store.clone(), capture.name.clone())
    };
    let sources = Sources {
        names: capture.interfaces.clone(),
        pods: capture.pods.clone(),
        awaits_pods: true,
        ..Sources::default()
    };
    Ok(CapturePlan { store: Some(store), summary: Some(summary.to_owned()), ..CapturePlan::new(sources, options) })
}

/// A process that stores the chunks that captures left in the spool, as captures have one.
pub struct Push {
    child: Child,
    /// Becomes readable once the child has ended.
    end: Option<OwnedFd>,
}

impl Push {
    pub fn start(spool: &Path) -> Result<Self> {
        let what = "cannot store the contents of the spool";
        let own = own_binary()?;
        let mut command = Command::new(own);
        command
            .args(["store", "push", "--json", "--spool"])
            .arg(spool)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        process::with_signals(&mut command);
        process::ends_with_parent(&mut command);
        let child = command.spawn().map_err(|e| Error::os(what, e))?;
        Ok(Self { end: process::end_of(child.id()), child })
    }

    /// Returns true if everything was stored, once the process has ended.
    pub fn ended(&mut self) -> Option<bool> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(status.success())
    }

    pub fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(AsFd::as_fd)
    }
}
