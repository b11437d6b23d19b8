//! Statistics that running captures and generators publish: for `trawl serve` in one file each below /run/trawl, for
//! the agent of a capture on the agent's socket.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trawl_pipeline::account::PacketAccount;
use trawl_sys::files::{create, run};

/// The summary of another command's capture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunningCapture {
    pub pid: u32,
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    pub lost: BTreeMap<Cow<'static, str>, u64>,
    #[serde(default)]
    pub memory_bytes: u64,
}

impl RunningCapture {
    pub fn new(total: &PacketAccount, memory_bytes: u64) -> Self {
        Self {
            pid: std::process::id(),
            seen: total.seen,
            filtered_out: total.filtered_out,
            recorded: total.recorded,
            lost: total.lost.clone(),
            memory_bytes,
        }
    }
}

/// The summary of a running generator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunningGenerator {
    pub pid: u32,
    pub interface: String,
    pub frames: u64,
    pub bytes: u64,
    pub refused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publisher {
    Capture,
    Generator,
}

impl Publisher {
    fn directory(self) -> Option<PathBuf> {
        let name = match self {
            Self::Capture => "captures",
            Self::Generator => "generators",
        };
        run::directory(name).ok().flatten()
    }
}

/// Interval at which statistics are published. A capture without packets checks them twice a second: its second check is
/// a little early.
const PUBLISH_EVERY: Duration = Duration::from_millis(900);
const PRIVATE: u32 = 0o600;
/// Maximum size of a file; a longer one is damaged.
const MOST: u64 = 65_536;

/// Prefix of the message that reports the counts of a capture to its agent; the counts follow in JSON, with `over_ns`:
/// the nanoseconds in which the packets since the last message came.
pub const COUNTS: &str = "X_TRAWL_COUNTS=";

/// The file of this process, or the socket of its agent. They are opened before privileges are given up. A process that
/// may not remove its file at the end leaves that to the next reader.
#[derive(Debug)]
pub struct Published {
    to: To,
    /// The statistics that were published last.
    last: Vec<u8>,
    /// Time at which the statistics were the last ones.
    checked: Option<Instant>,
}

/// Statistics for an agent. It gets changes only, so it cannot know in which time the latest packets came.
#[derive(Serialize)]
struct ForAgent<'a, T> {
    #[serde(flatten)]
    figures: &'a T,
    over_ns: u64,
}

#[derive(Debug)]
enum To {
    File(File, PathBuf),
    Agent(UnixDatagram),
}

impl Published {
    /// Begins to publish; returns `None` if only root may.
    pub fn begin(kind: Publisher) -> Option<Self> {
        let directory = kind.directory()?;
        remove_stale(&directory);
        let path = directory.join(std::process::id().to_string());
        // An earlier process with this number may have left a file.
        let _ = std::fs::remove_file(&path);
        let file = create::new_file(&path, PRIVATE).ok()?;
        Some(Self { to: To::File(file, path), last: Vec::new(), checked: None })
    }

    /// Begins to report to the agent that started this process; returns `None` without one.
    pub fn to_agent() -> Option<Self> {
        let address = notify_address()?.ok()?;
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect_addr(&address).ok()?;
        // An agent that does not read must not stop the capture.
        socket.set_nonblocking(true).ok()?;
        Some(Self { to: To::Agent(socket), last: Vec::new(), checked: None })
    }

    /// Returns true once the published statistics are old.
    pub fn is_due(&self) -> bool {
        self.checked.is_none_or(|checked| checked.elapsed() >= PUBLISH_EVERY)
    }

    /// Publishes the statistics if they have changed.
    pub fn publish(&mut self, figures: &impl Serialize) {
        let Ok(text) = serde_json::to_vec(figures) else {
            return;
        };
        if text == self.last {
            self.checked = Some(Instant::now());
            return;
        }
        let is_published = match &self.to {
            // Readers lock the file too, so that none sees half of it. While a reader holds the lock, an update is left
            // out.
            To::File(file, _) => {
                let is_locked = file.try_lock().is_ok();
                if is_locked {
                    let _ = file.set_len(text.len() as u64);
                    let _ = file.write_all_at(&text, 0);
                    let _ = file.unlock();
                }
                is_locked
            }
            To::Agent(socket) => {
                let over_ns = self.checked.map_or(0, |checked| checked.elapsed().as_nanos() as u64);
                let text = serde_json::to_vec(&ForAgent { figures, over_ns }).unwrap_or_default();
                socket.send(&[COUNTS.as_bytes(), &text].concat()).is_ok()
            }
        };
        if is_published {
            self.last = text;
            self.checked = Some(Instant::now());
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if let To::File(_, path) = &self.to {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the files in the directory, by the numbers of their processes.
fn entries(directory: &Path) -> Vec<(u32, PathBuf)> {
    let entries = directory.read_dir().into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let process = entry.file_name().to_string_lossy().parse().ok()?;
        Some((process, entry.path()))
    });
    numbered.collect()
}

/// Removes the files of processes that were killed, or had no right to remove their own.
fn remove_stale(directory: &Path) {
    for (process, path) in entries(directory) {
        if !Path::new(&format!("/proc/{process}")).exists() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the statistics of all running commands, ordered by process.
pub fn all<T: DeserializeOwned>(kind: Publisher) -> Vec<T> {
    let Some(directory) = kind.directory() else {
        return Vec::new();
    };
    remove_stale(&directory);
    let mut found: Vec<(u32, T)> =
        entries(&directory).into_iter().filter_map(|(process, path)| Some((process, read(&path)?))).collect();
    found.sort_by_key(|(pid, _)| *pid);
    found.into_iter().map(|(_, one)| one).collect()
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let file = File::open(path).ok()?;
    file.lock_shared().ok()?;
    let mut text = Vec::new();
    (&file).take(MOST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Reports the end of the set-up to the service manager, with the current activity.
pub fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={status}"));
}

/// Reports to the service manager that the command is stopping.
pub fn stopping() {
    notify("STOPPING=1");
}

/// Returns the address of the socket on which the service manager or an agent listens.
fn notify_address() -> Option<io::Result<SocketAddr>> {
    let path = std::env::var_os("NOTIFY_SOCKET")?;
    Some(match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    })
}

fn notify(text: &str) {
    let Some(address) = notify_address() else {
        return;
    };
    let send = |address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address);
    // A manager that does not listen does not end the command.
    let _sent: io::Result<usize> = address.and_then(send);
}
