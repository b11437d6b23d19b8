//! The spool, which holds chunks on this host until they are stored: a directory for each run of a capture, locked
//! while the run goes on. Another process stores the chunks and removes them. A capture whose packets stay on the host
//! keeps its newest chunks here: a ring across all its runs.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use trawl_plan::outputs::PacketsAt;
use trawl_sys::{
    Error, Result,
    files::{beneath, create, run},
};

use crate::key::Epoch;
use crate::manifest::{Begin, End, Manifest, Sealed, State};

pub fn default_spool() -> PathBuf {
    PathBuf::from("/var/lib/trawl/spool")
}

/// Origin and destination of a directory's chunks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub url: String,
    #[serde(flatten)]
    pub epoch: Epoch,
    /// Set if each chunk is indexed when it is stored.
    #[serde(default)]
    pub index: bool,
    #[serde(default)]
    pub packets: PacketsAt,
    /// The incident that the chunks belong to, which are stored with their packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident: Option<String>,
}

impl Target {
    /// Returns the state of a new chunk's packets.
    pub fn state(&self) -> State {
        match self.packets {
            PacketsAt::Store => State::Stored,
            PacketsAt::Host => State::OnHost,
        }
    }

    /// Returns true if the chunks stay in this directory after they are indexed in the store.
    pub fn is_near(&self) -> bool {
        self.packets == PacketsAt::Host && self.incident.is_none()
    }
}

/// File that the capture locks while the run goes on.
pub const LOCK: &str = "lock";
/// File that a process locks while it stores the run's chunks.
pub const UPLOAD_LOCK: &str = "upload.lock";
pub const TARGET: &str = "target.json";
pub const BEGIN: &str = "begin.json";
pub const END: &str = "end.json";
/// Record of an incident, in a directory with its chunks.
pub const INCIDENT: &str = "incident.json";
/// Directory of a run's chunks.
pub const CHUNKS: &str = "chunks";
/// File that keeps some of the disk free for the last records of the run.
const RESERVE: &str = "reserve";
/// Its size: the record of the end and some manifests.
const RESERVE_BYTES: usize = 32 << 10;
/// Extensions of a chunk's files: being made, sealed, and its manifest.
pub const PART: &str = "part";
pub const CHUNK: &str = "pcapng.zst";
pub const MANIFEST: &str = "json";
/// Manifest of a chunk that stays here, and is indexed in the store.
pub const NEAR: &str = "near";
/// File that shows that the store has all records of the run. Only chunks that stay here are left.
pub const STORED: &str = "stored";

#[derive(Debug, Default)]
struct Waiting {
    /// Manifests of the chunks that are not stored yet.
    entries: Vec<Manifest>,
    /// Numbers of the chunks whose manifests the disk refused.
    refused: Vec<u64>,
    evicted: u64,
    /// Chunks that stay here, of this run and of earlier ones, the oldest first.
    near: VecDeque<Near>,
    earlier: VecDeque<Near>,
}

/// A chunk that stays here.
#[derive(Debug)]
struct Near {
    manifest: PathBuf,
    bytes: u64,
}

impl Near {
    /// Removes the chunk, and the directory of an ended run without others.
    fn remove(&self) {
        let _ = fs::remove_file(self.manifest.with_extension(CHUNK));
        let _ = fs::remove_file(&self.manifest);
        if let Some(directory) = self.manifest.parent().and_then(Path::parent)
            && directory.join(STORED).exists()
            && !has_near(directory)
        {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Returns the files of a run's chunks with these extensions, the oldest chunk first.
pub fn files(directory: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join(CHUNKS)).into_iter().flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let is_meant = |path: &PathBuf| {
        let end = path.extension();
        end.is_some_and(|end| ends.iter().any(|one| end == *one))
    };
    let mut files: Vec<PathBuf> = paths.filter(is_meant).collect();
    files.sort();
    files
}

fn has_near(directory: &Path) -> bool {
    !files(directory, &[NEAR]).is_empty()
}

/// Closes a run's directory once all its records are stored: removes it, or marks it as stored while chunks stay in it.
pub fn close(directory: &Path) -> io::Result<()> {
    if !has_near(directory) {
        return fs::remove_dir_all(directory);
    }
    // A killed run has not used it.
    let _ = fs::remove_file(directory.join(RESERVE));
    File::create(directory.join(STORED)).map(drop)
}

/// Time for which the chunks of an ended run stay, unless a newer run of the capture needs the space before.
const STAY: Duration = Duration::from_secs(86_400);

/// Removes the directories of runs that ended long ago, and whose records are all stored.
pub fn remove_old(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let ended = fs::metadata(entry.path().join(STORED)).and_then(|about| about.modified());
        let is_old = ended.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= STAY));
        if is_old {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the directories of the runs in a spool, with their targets.
pub fn runs(root: &Path) -> Vec<(PathBuf, Target)> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let directory = entry.path();
        let target = beneath::read(&directory, Path::new(TARGET)).ok()?;
        Some((directory, serde_json::from_slice(&target).ok()?))
    });
    found.collect()
}

/// The directory of a run, as the capture sees it.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    pub target: Target,
    waiting: Mutex<Waiting>,
    /// Connection to the process that stores the chunks.
    pub(crate) news: Option<UnixStream>,
    /// Lock on the directory, held for the lifetime of the spool.
    _lock: File,
}

/// Makes the error about an unusable spool.
pub fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = format!("cannot use the spool {}", path.display());
    move |error| Error::os(what, error).fix("name another directory with --spool")
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a file atomically, also across a loss of power.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let staged = path.with_extension("new");
    let _ = fs::remove_file(&staged);
    let mut file = create::new_file(&staged, 0o600)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&staged, path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Returns the path of a chunk's file, relative to the directory of its run.
pub fn chunk_name(sequence: u64, end: &str) -> PathBuf {
    Path::new(CHUNKS).join(format!("{sequence:010}.{end}"))
}

impl Spool {
    /// Makes the directory of a new run, with the record of its start.
    pub fn create(root: &Path, target: Target, begin: &Begin) -> Result<Self> {
        let directory = root.join(target.epoch.prefix().replace('/', "~"));
        run::make_own(root)?;
        let make = || -> io::Result<File> {
            make_private(&directory.join(CHUNKS))?;
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
            let lock = create::new_file(&directory.join(LOCK), 0o600)?;
            lock.try_lock()?;
            create::new_file(&directory.join(UPLOAD_LOCK), 0o600)?;
            let text = serde_json::to_vec(&target).map_err(io::Error::other)?;
            write_whole(&directory.join(TARGET), &text)?;
            write_whole(&directory.join(BEGIN), &begin.to_bytes())?;
            sync_directory(root)?;
            Ok(lock)
        };
        let made = make().inspect_err(|_| {
            let _ = fs::remove_dir_all(&directory);
        });
        let lock = made.map_err(failed(&directory))?;
        let reserve = directory.join(RESERVE);
        // On a disk without space for it, the capture may still end well.
        if fs::write(&reserve, [0; RESERVE_BYTES]).is_err() {
            let _ = fs::remove_file(&reserve);
        }
        let spool = Self { directory, target, waiting: Mutex::default(), news: None, _lock: lock };
        spool.waiting.lock().earlier = spool.earlier();
        Ok(spool)
    }

    /// Returns the chunks that earlier runs of the capture keep here.
    fn earlier(&self) -> VecDeque<Near> {
        if !self.target.is_near() {
            return VecDeque::new();
        }
        let own = &self.target.epoch;
        let root = self.directory.parent().unwrap_or(Path::new("."));
        let mut runs = runs(root);
        runs.retain(|(directory, target)| {
            let is_same = (&target.epoch.capture, &target.epoch.host) == (&own.capture, &own.host);
            is_same && target.is_near() && *directory != self.directory
        });
        runs.sort_by_key(|(_, target)| target.epoch.epoch.parse::<u64>().unwrap_or(0));
        let manifests = runs.iter().flat_map(|(run, _)| files(run, &[NEAR]));
        let sized = manifests.map(|manifest| Near {
            bytes: fs::metadata(manifest.with_extension(CHUNK)).map_or(0, |about| about.len()),
            manifest,
        });
        sized.collect()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, manifest: &Manifest, end: &str) -> PathBuf {
        self.directory.join(chunk_name(manifest.sequence, end))
    }

    /// Returns the path of a chunk being made.
    pub fn part(&self, sequence: u64) -> PathBuf {
        self.directory.join(chunk_name(sequence, PART))
    }

    /// Returns the path of a sealed chunk.
    pub fn whole(&self, sequence: u64) -> PathBuf {
        self.directory.join(chunk_name(sequence, CHUNK))
    }

    /// Adds the manifest of a sealed or lost chunk.
    pub fn add(&self, manifest: Manifest) -> io::Result<()> {
        let (path, bytes) = (self.path(&manifest, MANIFEST), manifest.to_bytes());
        let written = write_whole(&path, &bytes);
        let is_refused = written.is_err() && self.write_into_reserve(&path, &bytes).is_err();
        let mut waiting = self.waiting.lock();
        waiting.refused.extend(is_refused.then_some(manifest.sequence));
        waiting.entries.push(manifest);
        // Chunks that were recovered from a killed run join the ring later.
        waiting.earlier = self.earlier();
        drop(waiting);
        // If the socket is full, its reader has been woken already.
        let _ = self.news.as_ref().map(|mut news| news.write(&[0]));
        written
    }

    /// Writes a file in the space that is kept for the last records.
    fn write_into_reserve(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let _ = fs::remove_file(self.directory.join(RESERVE));
        write_whole(path, bytes)
    }

    /// Returns the bytes of the chunks that wait or stay here.
    pub fn used(&self) -> u64 {
        let waiting = self.waiting.lock();
        let entries = waiting.entries.iter().map(|entry| entry.bytes);
        let near = waiting.earlier.iter().chain(&waiting.near);
        entries.chain(near.map(|near| near.bytes)).sum()
    }

    /// Removes the oldest chunk: one that stays here, or else one that is not being stored, whose manifest records the
    /// removal. Returns `false` if none exists.
    pub fn evict_oldest(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let near = waiting.earlier.pop_front();
        if let Some(near) = near.or_else(|| waiting.near.pop_front()) {
            near.remove();
            return true;
        }
        let held = waiting.entries.iter_mut().find_map(|entry| {
            // A chunk is locked while it is stored, and then removed.
            let chunk = File::open(self.path(entry, CHUNK)).ok()?;
            let has_packets = matches!(entry.state, State::Stored | State::OnHost);
            let is_free = has_packets && chunk.try_lock().is_ok();
            is_free.then_some((entry, chunk))
        });
        let Some((entry, _chunk)) = held else {
            return false;
        };
        let removed = Manifest { state: State::EvictedSpoolFull, bytes: 0, ..entry.clone() };
        let (path, bytes) = (self.path(entry, MANIFEST), removed.to_bytes());
        // The manifest is written first: a chunk without one would be recovered.
        if write_whole(&path, &bytes).is_err() && self.write_into_reserve(&path, &bytes).is_err() {
            return false;
        }
        let _ = fs::remove_file(self.path(entry, CHUNK));
        let recorded = entry.recorded;
        *entry = removed;
        waiting.evicted += recorded;
        true
    }

    /// Records the end of the capture, also for the process that stores the chunks.
    pub fn finish(&self, end: &End) -> io::Result<()> {
        let _ = fs::remove_file(self.directory.join(RESERVE));
        let waiting = self.waiting.lock();
        for entry in waiting.entries.iter().filter(|entry| waiting.refused.contains(&entry.sequence)) {
            let _ = write_whole(&self.path(entry, MANIFEST), &entry.to_bytes());
        }
        drop(waiting);
        let written = write_whole(&self.directory.join(END), &end.to_bytes());
        let _ = (self.news.as_ref()).map(|news| news.shutdown(Shutdown::Both));
        written
    }

    /// Drops a chunk that has been stored and removed, or is indexed and stays here.
    pub fn stored(&self, key: &str) {
        let mut waiting = self.waiting.lock();
        let is_meant = |entry: &Manifest| entry.key().to_string() == key;
        let Some(at) = waiting.entries.iter().position(is_meant) else {
            return;
        };
        let entry = waiting.entries.remove(at);
        if entry.state == State::OnHost {
            waiting.near.push_back(Near { manifest: self.path(&entry, NEAR), bytes: entry.bytes });
        }
    }

    /// Returns the number of packets in the chunks that were removed from the full spool.
    pub fn evicted(&self) -> u64 {
        self.waiting.lock().evicted
    }

    /// Returns the manifests of the chunks in the directory.
    pub fn waiting(&self) -> Vec<Manifest> {
        let mut entries = self.waiting.lock().entries.clone();
        entries.retain(|entry| [MANIFEST, CHUNK].iter().any(|end| self.path(entry, end).exists()));
        entries
    }

    /// Closes the directory once all its records are stored.
    pub fn close(&self) -> io::Result<()> {
        close(&self.directory)
    }
}

/// Makes a directory, and its parents, for this user alone.
pub fn make_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}
