//! The spool, which holds chunks on this host until they are stored: a directory for each run of a capture, locked while the run
//! goes on. `push` stores the leftovers of a killed run.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use trawl_sys::{Error, Result, beneath, create, run};

use crate::chunk::OpenChunk;
use crate::key::{ChunkKey, Epoch, escaped};
use crate::manifest::{Begin, Clock, End, FORMAT, Fates, Manifest, Sealed, State};

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

const LOCK: &str = "lock";
const TARGET: &str = "target.json";
const BEGIN: &str = "begin.json";
const END: &str = "end.json";
const PART: &str = "part";
const CHUNK: &str = "pcapng.zst";

#[derive(Debug, Default)]
struct Waiting {
    entries: Vec<Manifest>,
    /// Chunk being stored, which cannot be evicted.
    uploading: Option<ChunkKey>,
    /// Set once the manifest of the end exists.
    end: bool,
    closed: bool,
    evicted: u64,
}

#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    pub target: Target,
    waiting: Mutex<Waiting>,
    news: Condvar,
    /// Lock on the directory, held for the lifetime of the spool.
    _lock: File,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = format!("cannot use the spool {}", path.display());
    move |error| Error::os(what, error).fix("name another directory with --spool")
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a file atomically, also across a loss of power.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let _ = fs::remove_file(&beside);
    let mut file = create::new_file(&beside, 0o600)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

impl Spool {
    /// Makes the directory of a new run, with the record of its start.
    pub fn create(root: &Path, target: Target, begin: &Begin) -> Result<Self> {
        let directory = root.join(target.epoch.prefix().replace('/', "~"));
        make_private(root).map_err(failed(root))?;
        run::check_owner(root)?;
        let make = || -> io::Result<File> {
            make_private(&directory)?;
            fs::set_permissions(&directory, private())?;
            let lock = create::new_file(&directory.join(LOCK), 0o600)?;
            lock.try_lock()?;
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
            news: Condvar::new(),
            _lock: lock,
        })
    }

    /// Returns the spools of ended runs; `None` for each run that goes on. Runs of other users are refused one by one: such a
    /// user could choose the files to read and their destination.
    pub fn leftovers(root: &Path) -> Result<Vec<Result<Option<Self>>>> {
        let list = match fs::read_dir(root) {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(root)(error)),
        };
        own(root, root)?;
        let mut spools = Vec::new();
        for entry in list {
            let directory = entry.map_err(failed(root))?.path();
            if !directory.join(TARGET).exists() {
                continue;
            }
            let open = || Self::open(&directory).map_err(failed(&directory));
            spools.push(own(&directory, root).and_then(|()| open()));
        }
        Ok(spools)
    }

    fn open(directory: &Path) -> io::Result<Option<Self>> {
        let lock = beneath::open(directory, Path::new(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let target: Target = serde_json::from_slice(&beneath::read(directory, Path::new(TARGET))?)?;
        let spool = Self {
            directory: directory.to_owned(),
            target,
            waiting: Mutex::default(),
            news: Condvar::new(),
            _lock: lock,
        };
        spool.recover()?;
        let mut waiting = spool.lock();
        waiting.entries = manifests(&spool.directory)?;
        waiting.end = spool.directory.join(END).exists();
        waiting.closed = true;
        drop(waiting);
        Ok(Some(spool))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }

    fn place(&self, interface: &str, sequence: u64, end: &str) -> PathBuf {
        self.directory.join(chunk_name(interface, sequence, end))
    }

    fn chunk_path(&self, manifest: &Manifest) -> PathBuf {
        self.place(&manifest.interface, manifest.sequence, CHUNK)
    }

    /// Returns the path of a chunk being made.
    pub fn part(&self, interface: &str, sequence: u64) -> io::Result<PathBuf> {
        let path = self.place(interface, sequence, PART);
        fs::create_dir_all(path.parent().unwrap_or(&self.directory))?;
        Ok(path)
    }

    /// Returns the path of a sealed chunk.
    pub fn whole(&self, interface: &str, sequence: u64) -> PathBuf {
        self.place(interface, sequence, CHUNK)
    }

    /// Adds the manifest of a sealed or lost chunk.
    pub fn add(&self, manifest: Manifest) -> io::Result<()> {
        let path = self.place(&manifest.interface, manifest.sequence, "json");
        let written = write_whole(&path, &manifest.to_bytes());
        // If the disk refused the manifest, it is stored from memory.
        self.lock().entries.push(manifest);
        self.news.notify_all();
        written
    }

    /// Returns the bytes of the waiting chunks.
    pub fn used(&self) -> u64 {
        let waiting = self.lock();
        waiting.entries.iter().map(|entry| entry.bytes).sum()
    }

    /// Removes the oldest chunk that is not being stored, which its manifest records. Returns `false` if none exists.
    pub fn evict_oldest(&self) -> bool {
        let mut waiting = self.lock();
        let uploading = waiting.uploading.clone();
        let oldest = waiting
            .entries
            .iter_mut()
            .find(|entry| entry.state == State::Stored && Some(entry.key()) != uploading);
        let Some(entry) = oldest else { return false };
        let chunk = self.chunk_path(entry);
        entry.state = State::EvictedSpoolFull;
        entry.bytes = 0;
        let recorded = entry.recorded;
        // The manifest first: a chunk without one would be recovered.
        let path = self.place(&entry.interface, entry.sequence, "json");
        let _ = write_whole(&path, &entry.to_bytes());
        let _ = fs::remove_file(chunk);
        waiting.evicted += recorded;
        true
    }

    pub fn begin(&self) -> io::Result<Option<Vec<u8>>> {
        read_if_there(&self.directory, BEGIN)
    }

    /// Records the end of the capture.
    pub fn finish(&self, end: &End) -> io::Result<()> {
        let written = write_whole(&self.directory.join(END), &end.to_bytes());
        let mut waiting = self.lock();
        waiting.end = written.is_ok();
        waiting.closed = true;
        self.news.notify_all();
        written
    }

    pub fn end(&self) -> io::Result<Option<Vec<u8>>> {
        match self.lock().end {
            true => read_if_there(&self.directory, END),
            false => Ok(None),
        }
    }

    /// Waits for a chunk to store; `false` once none can follow.
    pub fn wait(&self, longest: std::time::Duration) -> bool {
        let mut waiting = self.lock();
        let is_idle = |waiting: &mut Waiting| waiting.entries.is_empty() && !waiting.closed;
        self.news.wait_while_for(&mut waiting, is_idle, longest);
        !waiting.closed || !waiting.entries.is_empty() || waiting.end
    }

    /// Takes the next chunk to store; it is not evicted until `put_back` or `stored`.
    pub fn take(&self) -> Option<Manifest> {
        let mut waiting = self.lock();
        let manifest = waiting.entries.first()?.clone();
        waiting.uploading = Some(manifest.key());
        Some(manifest)
    }

    pub fn put_back(&self) {
        self.lock().uploading = None;
    }

    pub fn read_chunk(&self, manifest: &Manifest) -> io::Result<Vec<u8>> {
        let below = chunk_name(&manifest.interface, manifest.sequence, CHUNK);
        beneath::read(&self.directory, &below)
    }

    /// Drops a chunk that has been stored.
    pub fn stored(&self, manifest: &Manifest) {
        let key = manifest.key();
        let mut waiting = self.lock();
        waiting.uploading = None;
        waiting.entries.retain(|entry| entry.key() != key);
        // The chunk first: one without a manifest would be taken for an unfinished one.
        let _ = fs::remove_file(self.chunk_path(manifest));
        let _ = fs::remove_file(self.place(&manifest.interface, manifest.sequence, "json"));
    }

    /// Returns the packets of the chunks removed from the full spool.
    pub fn evicted(&self) -> u64 {
        self.lock().evicted
    }

    /// Returns the manifests of the waiting chunks.
    pub fn waiting(&self) -> Vec<Manifest> {
        let waiting = self.lock();
        waiting.entries.clone()
    }

    /// Removes the directory once all is stored.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.directory)
    }

    /// Seals the open chunks of a killed capture, up to their last whole block.
    fn recover(&self) -> io::Result<()> {
        let begin = beneath::read(&self.directory, Path::new(BEGIN))?;
        let begin = Begin::from_bytes(&begin)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "begin.json was changed"))?;
        let known = manifests(&self.directory)?;
        for interface in subdirectories(&self.directory)? {
            for path in files(&interface)? {
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                let is_open = name.ends_with(".part");
                let is_bare = name.ends_with(".pcapng.zst")
                    && !interface
                        .join(name.replace(".pcapng.zst", ".json"))
                        .exists();
                let number = name
                    .split('.')
                    .next()
                    .and_then(|text| text.parse::<u64>().ok());
                let (true, Some(sequence)) = (is_open || is_bare, number) else {
                    continue;
                };
                let directory = interface.file_name().unwrap_or_default().to_string_lossy();
                let Some(name) = begin
                    .interfaces
                    .iter()
                    .find(|name| escaped(name) == directory)
                    .cloned()
                else {
                    continue;
                };
                let before = known
                    .iter()
                    .filter(|manifest| manifest.interface == name && manifest.sequence < sequence)
                    .max_by_key(|manifest| manifest.sequence);
                self.reseal(&path, &begin, &name, sequence, before)?;
            }
        }
        Ok(())
    }

    fn zstd_reader(&self, path: &Path) -> io::Result<Box<dyn Read>> {
        let below = path
            .strip_prefix(&self.directory)
            .map_err(io::Error::other)?;
        let file = beneath::open(&self.directory, below)?;
        let (reader, _) = trawl_packet::read::compressed::open(file)?;
        Ok(reader)
    }

    fn reseal(
        &self,
        path: &Path,
        begin: &Begin,
        interface: &str,
        sequence: u64,
        before: Option<&Manifest>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        // The data ends at the moment of the kill.
        let _ = self.zstd_reader(path)?.read_to_end(&mut bytes);
        if bytes.is_empty() {
            // The first frame had not been written: its packets are unknown.
            return fs::remove_file(path);
        }
        let again = path.with_extension("again");
        let _ = fs::remove_file(&again);
        let mut chunk = OpenChunk::create(&again, &[])?;
        for block in trawl_packet::pcapng::block::blocks(&bytes) {
            match block.enhanced_packet() {
                Some(packet) => chunk.packet(block.bytes, packet.timestamp)?,
                None => chunk.other(block.bytes)?,
            }
        }
        let sealed = chunk.seal(&self.whole(interface, sequence))?;
        if path.extension().is_some_and(|end| end == PART) {
            fs::remove_file(path)?;
        }
        let mut in_all = before
            .map(|before| before.in_all.clone())
            .unwrap_or_default();
        in_all.recorded += sealed.recorded;
        let manifest = Manifest {
            format: FORMAT,
            epoch: self.target.epoch.clone(),
            interface: interface.to_owned(),
            sequence,
            state: State::Stored,
            sha256: sealed.sha256,
            bytes: sealed.bytes,
            uncompressed_bytes: sealed.uncompressed_bytes,
            first_ns: sealed.first_ns,
            last_ns: sealed.last_ns,
            sealed_ns: trawl_sys::clock::wall(),
            recorded: sealed.recorded,
            since_last: Fates {
                recorded: sealed.recorded,
                ..Fates::default()
            },
            in_all,
            clock: Clock::now(),
            origin: begin.origin.clone(),
            recovered: true,
            seal: String::new(),
        };
        write_whole(
            &self.place(interface, sequence, "json"),
            &manifest.to_bytes(),
        )
    }
}

/// Returns the path of a chunk's file, relative to the directory of its run.
fn chunk_name(interface: &str, sequence: u64, end: &str) -> PathBuf {
    Path::new(&escaped(interface)).join(format!("{sequence:010}.{end}"))
}

/// Refuses a directory that another user owns or may write to.
fn own(directory: &Path, root: &Path) -> Result<()> {
    let Err(error) = run::check_owner(directory) else {
        return Ok(());
    };
    let uid = fs::symlink_metadata(directory).map_or(0, |about| about.uid());
    let own = [0, run::own_user()].contains(&uid);
    Err(match own {
        true => error,
        false => Error::failed(
            format!("cannot store the contents of {}", directory.display()),
            format!("user {uid} owns it, and could choose its files and their destination"),
        )
        .fix(format!(
            "store it as that user: setpriv --reuid {uid} --clear-groups trawl store push --spool {}",
            root.display()
        )),
    })
}

/// Makes a directory, and its parents, for this user alone.
fn make_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

fn private() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o700)
}

fn read_if_there(directory: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    match beneath::read(directory, Path::new(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn sorted(directory: &Path, wanted: impl Fn(&fs::FileType) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if wanted(&entry.file_type()?) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn subdirectories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    sorted(directory, fs::FileType::is_dir)
}

fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    sorted(directory, fs::FileType::is_file)
}

/// Returns the manifests of a run's directory, in the order of sealing.
fn manifests(directory: &Path) -> io::Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for interface in subdirectories(directory)? {
        for path in files(&interface)? {
            if path.extension().is_some_and(|end| end == "json") {
                let below = path.strip_prefix(directory).map_err(io::Error::other)?;
                let manifest = Manifest::from_bytes(&beneath::read(directory, below)?);
                manifests.push(manifest.ok_or_else(|| {
                    let why = format!("{} was changed", path.display());
                    io::Error::new(io::ErrorKind::InvalidData, why)
                })?);
            }
        }
    }
    manifests.sort_by_key(|manifest| (manifest.sealed_ns, manifest.sequence));
    Ok(manifests)
}

/// This host's waiting chunks for a store.
#[derive(Debug, Default)]
pub struct Spooled {
    pub begins: Vec<Begin>,
    pub manifests: Vec<Manifest>,
    pub ends: Vec<End>,
}

/// Returns this host's waiting chunks for a store, including runs that go on.
pub fn waiting_for(root: &Path, url: &str) -> Spooled {
    let mut found = Spooled::default();
    for directory in subdirectories(root).unwrap_or_default() {
        let target = beneath::read(&directory, Path::new(TARGET)).ok();
        let target = target.and_then(|text| serde_json::from_slice::<Target>(&text).ok());
        if target.is_none_or(|target| target.url != url) {
            continue;
        }
        let read = |name| beneath::read(&directory, Path::new(name)).unwrap_or_default();
        found.begins.extend(Begin::from_bytes(&read(BEGIN)));
        found.ends.extend(End::from_bytes(&read(END)));
        let manifests = manifests(&directory).unwrap_or_default();
        found.manifests.extend(manifests);
    }
    found
}
