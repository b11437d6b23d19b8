//! A capture that the agent has started: a process of the same program, which ends with the agent.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use trawl_agent::{Capture, Counts, End};
use trawl_pipeline::plan::StorePlan;
use trawl_sys::process::own_binary;
use trawl_sys::{Error, Result, process};
use trawl_tap::filter::Filter;
use trawl_tap::options::{Memory, MemorySize, Options};
use trawl_tap::plan::CapturePlan;
use trawl_tap::sources::Sources;

use crate::capture::args::{self, TapName, Taps};
use crate::capture::recording;
use crate::published::{self, Kind, RunningCapture};
use crate::terminal;

/// What a sd_notify message begins with once a capture is attached.
const READY: &[u8] = b"READY=1";

pub(super) struct Running {
    pub run: u64,
    child: Child,
    /// Where the capture says that it is attached.
    notices: UnixDatagram,
    _socket: NoticeSocket,
    is_ready: bool,
    summary: OwnFile,
    _plan: OwnFile,
    last_words: Arc<Mutex<String>>,
}

/// A file of one start, which is removed after it.
struct OwnFile(PathBuf);

impl OwnFile {
    /// One of an earlier start is none of this one's.
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

/// The name of a socket, which goes with it.
struct NoticeSocket(PathBuf);

impl Drop for NoticeSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What could not be started.
pub(super) enum Refused {
    /// An earlier process has the lock of this capture still.
    Held,
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The lock of a capture. The process inherits it as its standard input, so that it is held as long as anything of that
/// capture is alive, whether its agent is or not.
fn lock(directory: &Path, name: &str) -> std::result::Result<File, Refused> {
    let path = directory.join(format!("{name}.lock"));
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = opened.map_err(|e| Error::os(format!("cannot open {}", path.display()), e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(Refused::Held),
    }
}

impl Running {
    pub fn start(
        run: u64,
        capture: &Capture,
        directory: &Path,
        spool: &Path,
    ) -> std::result::Result<Self, Refused> {
        let lock = lock(directory, &capture.name)?;
        let summary = OwnFile::new(directory.join(format!("{}.summary", capture.name)));
        let what = || format!("cannot start the capture '{}'", capture.name);
        // In a directory of this user's alone: anybody may bind a name without a file.
        let socket = NoticeSocket(directory.join(format!("notify-{run}")));
        let _ = std::fs::remove_file(&socket.0);
        let notices = UnixDatagram::bind(&socket.0).map_err(|e| Error::os(what(), e))?;
        let made = notices.set_nonblocking(true);
        made.map_err(|e| Error::os(what(), e))?;
        let plan_file = OwnFile::new(directory.join(format!("{}.plan", capture.name)));
        let plan = plan(capture, &summary.0, spool)?;
        let text = serde_json::to_string(&plan).map_err(|e| Error::failed(what(), e))?;
        std::fs::write(&plan_file.0, text).map_err(|e| Error::os(what(), e))?;
        let own = own_binary()?;
        let mut command = Command::new(own);
        command
            .args(["capture", "-q", "--plan"])
            .arg(&plan_file.0)
            .env("NOTIFY_SOCKET", &socket.0)
            .stdin(Stdio::from(lock))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        process::with_signals(&mut command);
        process::ends_with_parent(&mut command);
        let mut child = command.spawn().map_err(|e| Error::os(what(), e))?;
        let last_words = Arc::default();
        if let Some(stderr) = child.stderr.take() {
            let (name, last) = (capture.name.clone(), Arc::clone(&last_words));
            std::thread::spawn(move || relay(&name, BufReader::new(stderr), &last));
        }
        Ok(Self {
            run,
            child,
            notices,
            _socket: socket,
            is_ready: false,
            summary,
            _plan: plan_file,
            last_words,
        })
    }

    /// Whether it says for the first time that it is attached.
    pub fn became_ready(&mut self) -> bool {
        let mut message = [0; 4096];
        let mut told = false;
        while let Ok(length) = self.notices.recv(&mut message) {
            told |= message[..length].starts_with(READY);
        }
        let news = told && !self.is_ready;
        self.is_ready |= told;
        news
    }

    pub fn stop(&self, force: bool) {
        // It may have ended by itself.
        let _ = match force {
            true => process::kill(self.child.id()),
            false => process::interrupt(self.child.id()),
        };
    }

    pub fn counts(&self) -> Option<Counts> {
        let told: RunningCapture = published::of(Kind::Capture, self.child.id())?;
        Some(Counts {
            seen: told.seen,
            filtered_out: told.filtered_out,
            recorded: told.recorded,
            lost: named(told.lost),
        })
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> Option<(End, Counts)> {
        let status = self.child.try_wait().ok().flatten()?;
        let counts = self.counted_at_end().unwrap_or_default();
        let end = match status.success() {
            true => End::Well,
            false => End::Failed(self.why(status)),
        };
        Some((end, counts))
    }

    fn why(&self, status: ExitStatus) -> String {
        let words = self.last_words.lock();
        let words = words.unwrap_or_else(PoisonError::into_inner).clone();
        match words.is_empty() || status.code().is_none() {
            true => format!("the capture ended: {status}"),
            false => words,
        }
    }

    fn counted_at_end(&self) -> Option<Counts> {
        #[derive(Deserialize)]
        struct Summary {
            #[serde(flatten)]
            total: trawl_pipeline::account::Account,
        }
        let text = std::fs::read(&self.summary.0).ok()?;
        let Summary { total } = serde_json::from_slice(&text).ok()?;
        Some(Counts {
            seen: total.seen,
            filtered_out: total.filtered_out,
            recorded: total.recorded,
            lost: named(total.lost),
        })
    }
}

fn named(
    lost: std::collections::BTreeMap<std::borrow::Cow<'static, str>, u64>,
) -> std::collections::BTreeMap<String, u64> {
    let named = lost.into_iter().filter(|(_, count)| *count > 0);
    named
        .map(|(reason, count)| (reason.into_owned(), count))
        .collect()
}

/// Its words go on to the agent's own, with its name before them.
fn relay(name: &str, from: impl BufRead, last: &Mutex<String>) {
    for line in from.lines().map_while(std::result::Result::ok) {
        let line = line.strip_prefix("trawl: ").unwrap_or(&line);
        terminal::say(&format!("{name}: {line}"));
        *last.lock().unwrap_or_else(PoisonError::into_inner) = line.to_owned();
    }
}

/// Makes the plan of a capture that is desired.
fn plan(capture: &Capture, summary: &Path, spool: &Path) -> Result<CapturePlan> {
    let names = capture.taps.iter().map(|name| {
        TapName::from_str(name, false)
            .map_err(|why| Error::usage(format!("cannot use the tap '{name}'"), why))
    });
    let names = names.collect::<Result<Vec<_>>>()?;
    let taps = match names.is_empty() {
        true => Taps::of(&[TapName::Auto])?,
        false => Taps::of(&names)?,
    };
    let usual = args::usual(&taps);
    let expression = capture.filter.trim();
    let options = Options {
        filter: (!expression.is_empty()).then(|| Filter::Expression(expression.to_owned())),
        snaplen: match capture.snaplen {
            Some(bytes) => recording::snaplen(bytes.into())?,
            None => usual.snaplen,
        },
        count: capture.packets,
        duration: capture.duration_seconds.map(Duration::from_secs),
        memory: Memory {
            size: capture
                .memory_bytes
                .map_or(MemorySize::Usual, MemorySize::Total),
            at_first: None,
        },
        ..usual
    };
    let store = StorePlan {
        spool: Some(spool.to_owned()),
        spool_bytes: capture.spool_bytes.unwrap_or(StorePlan::SPOOL_BYTES),
        size: capture.size_bytes,
        index: capture.index,
        ..StorePlan::new(capture.store.clone(), capture.name.clone())
    };
    let sources = Sources {
        names: capture.interfaces.clone(),
        ..Sources::default()
    };
    Ok(CapturePlan {
        store: Some(store),
        summary: Some(summary.to_owned()),
        ..CapturePlan::new(sources, options)
    })
}

/// Stores what captures left in the spool; a process of its own, as they are.
pub(super) fn push(spool: &Path) -> Result<Child> {
    let what = "cannot store what is in the spool";
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
    command.spawn().map_err(|e| Error::os(what, e))
}
