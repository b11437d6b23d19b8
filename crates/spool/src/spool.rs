//! The spool, which holds chunks on this host until they are stored: a directory for each run of a capture, locked while the
//! run goes on. Another process stores the chunks and removes them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use trawl_sys::{Error, Result, create, run};

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
}

/// File that the capture locks while the run goes on.
pub const LOCK: &str = "lock";
/// File that a process locks while it stores the run's chunks.
pub const UPLOAD_LOCK: &str = "upload.lock";
pub const TARGET: &str = "target.json";
pub const BEGIN: &str = "begin.json";
pub const END: &str = "end.json";
/// Directory of a run's chunks.
pub const CHUNKS: &str = "chunks";
/// Extensions of a chunk's files: being made, sealed, and its manifest.
pub const PART: &str = "part";
pub const CHUNK: &str = "pcapng.zst";
pub const MANIFEST: &str = "json";

#[derive(Debug, Default)]
struct Waiting {
    /// Manifests of the chunks that are not stored yet.
    entries: Vec<Manifest>,
    evicted: u64,
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
        make_private(root).map_err(failed(root))?;
        run::check_owner(root)?;
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
        let lock = make().map_err(failed(&directory))?;
        Ok(Self {
            directory,
            target,
            waiting: Mutex::default(),
            news: None,
            _lock: lock,
        })
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
        let written = write_whole(&self.path(&manifest, MANIFEST), &manifest.to_bytes());
        self.waiting.lock().entries.push(manifest);
        // A full pipe has wakened its reader already.
        let _ = self.news.as_ref().map(|mut news| news.write(&[0]));
        written
    }

    /// Returns the bytes of the waiting chunks.
    pub fn used(&self) -> u64 {
        let waiting = self.waiting.lock();
        waiting.entries.iter().map(|entry| entry.bytes).sum()
    }

    /// Removes the oldest chunk that is not being stored, which its manifest records. Returns `false` if none exists.
    pub fn evict_oldest(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let held = waiting.entries.iter_mut().find_map(|entry| {
            // A chunk is locked while it is stored, and then removed.
            let chunk = File::open(self.path(entry, CHUNK)).ok()?;
            let is_free = entry.state == State::Stored && chunk.try_lock().is_ok();
            is_free.then_some((entry, chunk))
        });
        let Some((entry, _chunk)) = held else {
            return false;
        };
        entry.state = State::EvictedSpoolFull;
        entry.bytes = 0;
        let recorded = entry.recorded;
        // The manifest first: a chunk without one would be recovered.
        let _ = write_whole(&self.path(entry, MANIFEST), &entry.to_bytes());
        let _ = fs::remove_file(self.path(entry, CHUNK));
        waiting.evicted += recorded;
        true
    }

    /// Records the end of the capture, also for the process that stores the chunks.
    pub fn finish(&self, end: &End) -> io::Result<()> {
        for entry in &self.waiting.lock().entries {
            let manifest = self.path(entry, MANIFEST);
            // The disk was full when the chunk was sealed.
            if self.path(entry, CHUNK).exists() && !manifest.exists() {
                let _ = write_whole(&manifest, &entry.to_bytes());
            }
        }
        let written = write_whole(&self.directory.join(END), &end.to_bytes());
        let _ = (self.news.as_ref()).map(|news| news.shutdown(Shutdown::Both));
        written
    }

    /// Drops a chunk that has been stored and removed.
    pub fn stored(&self, key: &str) {
        let mut waiting = self.waiting.lock();
        waiting
            .entries
            .retain(|entry| entry.key().to_string() != key);
    }

    /// Returns the packets of the chunks removed from the full spool.
    pub fn evicted(&self) -> u64 {
        self.waiting.lock().evicted
    }

    /// Returns the manifests of the chunks in the directory.
    pub fn waiting(&self) -> Vec<Manifest> {
        let mut entries = self.waiting.lock().entries.clone();
        entries.retain(|entry| {
            [MANIFEST, CHUNK]
                .iter()
                .any(|end| self.path(entry, end).exists())
        });
        entries
    }

    /// Removes the directory once all is stored.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.directory)
    }
}

/// Makes a directory, and its parents, for this user alone.
fn make_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}
