//! Runs of captures whose chunks wait in a spool, as the process that stores them sees it.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::note::TranslationNews;
use trawl_packet::read::compressed;
use trawl_spool::Target;
use trawl_spool::chunk::OpenChunk;
use trawl_spool::figures::Uploads;
use trawl_spool::manifest::{Begin, End, Manifest, Sealed, Unreadable};
use trawl_spool::processes::Descriptions;
use trawl_spool::spool::{
    self, BEGIN, CHUNK, CHUNKS, END, INCIDENT, LOCK, MANIFEST, NEAR, PART, STORED, TARGET, UPLOAD_LOCK, chunk_name,
    failed, write_whole,
};
use trawl_sys::{
    Error, Result,
    files::{beneath, create, run},
};

use crate::object::remote::canonical;

/// The directory of a run, locked against other processes that store its chunks.
#[derive(Debug)]
pub struct Run {
    directory: PathBuf,
    pub target: Target,
    _locks: Vec<fs::File>,
}

/// A chunk in the spool, locked against its eviction.
#[derive(Debug)]
pub struct Waiting {
    name: PathBuf,
    pub manifest: Manifest,
    chunk: io::Result<fs::File>,
}

impl Waiting {
    /// Returns true if the chunk was indexed before it was frozen.
    pub fn is_indexed(&self) -> bool {
        self.name.extension().is_some_and(|end| end == NEAR)
    }

    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match &mut self.chunk {
            Ok(chunk) => chunk.read_to_end(&mut bytes).map(|_| bytes),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}

impl Run {
    /// Opens a run; waits for another process that stores its chunks.
    pub fn open(directory: &Path) -> Result<Self> {
        let open = || {
            let lock = beneath::open(directory, Path::new(UPLOAD_LOCK))?;
            lock.lock()?;
            Self::locked(directory, vec![lock])
        };
        open().map_err(failed(directory))
    }

    fn locked(directory: &Path, locks: Vec<fs::File>) -> io::Result<Self> {
        let target = beneath::read(directory, Path::new(TARGET))?;
        Ok(Self { directory: directory.to_owned(), target: serde_json::from_slice(&target)?, _locks: locks })
    }

    /// Opens a run that has ended, and seals the chunks that a killed capture left open; returns `None` if it is still
    /// running.
    fn ended(directory: &Path) -> io::Result<Option<Self>> {
        let lock = beneath::open(directory, Path::new(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // A process that still stores the chunks of a killed capture ends soon.
        let uploads = beneath::open(directory, Path::new(UPLOAD_LOCK))?;
        uploads.lock()?;
        let run = Self::locked(directory, vec![lock, uploads])?;
        run.recover()?;
        Ok(Some(run))
    }

    /// Returns the ended runs in a spool; `None` for each run that is still running. Runs of other users are refused
    /// one by one: such a user could choose the files to read and their destination.
    pub fn leftovers(root: &Path) -> Result<Vec<Result<Option<Self>>>> {
        let list = match fs::read_dir(root) {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(root)(error)),
        };
        check_owner(root, root)?;
        let mut runs = Vec::new();
        for entry in list {
            let directory = entry.map_err(failed(root))?.path();
            if !directory.join(TARGET).exists() || directory.join(STORED).exists() {
                continue;
            }
            let open = || Self::ended(&directory).map_err(failed(&directory));
            runs.push(check_owner(&directory, root).and_then(|()| open()));
        }
        Ok(runs)
    }

    /// Returns the names of the waiting manifests, the oldest first.
    pub fn manifests(&self) -> io::Result<Vec<PathBuf>> {
        let kinds: &[&str] = match self.target.incident {
            Some(_) => &[MANIFEST, NEAR],
            None => &[MANIFEST],
        };
        manifests(&self.directory, kinds)
    }

    pub fn chunk(&self, name: PathBuf) -> io::Result<Waiting> {
        let chunk = beneath::open(&self.directory, &name.with_extension(CHUNK));
        let chunk = chunk.and_then(|file| file.lock().map(|()| file));
        // The manifest is read once the chunk is locked, because the chunk may have been evicted before.
        let manifest = read_manifest(&self.directory, &name)?;
        Ok(Waiting { name, manifest, chunk })
    }

    /// Removes a chunk that has been stored.
    pub fn stored(&self, chunk: &Waiting) {
        let manifest = self.directory.join(&chunk.name);
        // The chunk is removed first: without a manifest, it would count as unfinished.
        let _ = fs::remove_file(manifest.with_extension(CHUNK));
        let _ = fs::remove_file(manifest);
    }

    /// Notes the uploads of the run.
    pub fn note(&self, uploads: &Uploads) {
        uploads.note(&self.directory);
    }

    /// Marks a chunk as one that is indexed and stays here.
    pub fn mark_kept(&self, chunk: &Waiting) {
        let manifest = self.directory.join(&chunk.name);
        let _ = fs::rename(&manifest, manifest.with_extension(NEAR));
    }

    pub fn begin(&self) -> io::Result<Option<Vec<u8>>> {
        self.read_if_present(BEGIN)
    }

    /// Returns the record of an incident, if this is the directory of its chunks.
    pub fn incident(&self) -> io::Result<Option<Vec<u8>>> {
        self.read_if_present(INCIDENT)
    }

    /// Returns the record of the end, once a capture that was not killed has ended.
    pub fn end(&self) -> io::Result<Option<Vec<u8>>> {
        self.read_if_present(END)
    }

    fn read_if_present(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match beneath::read(&self.directory, Path::new(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends the use of the directory, once all chunks and records are stored.
    pub fn close(&self) -> io::Result<()> {
        spool::close(&self.directory)
    }

    /// Seals the open chunks of a killed capture, up to their last whole block.
    fn recover(&self) -> io::Result<()> {
        let begin = beneath::read(&self.directory, Path::new(BEGIN))?;
        let begin = Begin::from_bytes(&begin).map_err(unreadable(Path::new(BEGIN)))?;
        let known = read_manifests(&self.directory, &[MANIFEST, NEAR])?;
        for path in files(&self.directory.join(CHUNKS))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let (number, end) = name.split_once('.').unwrap_or_default();
            let has = |end| path.with_file_name(format!("{number}.{end}")).exists();
            let is_unsealed = end == PART || (end == CHUNK && !has(MANIFEST) && !has(NEAR));
            let (true, Ok(sequence)) = (is_unsealed, number.parse()) else {
                continue;
            };
            let before =
                known.iter().filter(|manifest| manifest.sequence < sequence).max_by_key(|manifest| manifest.sequence);
            self.reseal(&path, &begin, sequence, before)?;
        }
        Ok(())
    }

    fn reseal(&self, path: &Path, begin: &Begin, sequence: u64, before: Option<&Manifest>) -> io::Result<()> {
        let below = path.strip_prefix(&self.directory);
        let file = beneath::open(&self.directory, below.map_err(io::Error::other)?)?;
        let mut bytes = Vec::new();
        // The data ends at the moment of the kill.
        let _ = compressed::open(file)?.0.read_to_end(&mut bytes);
        if bytes.is_empty() {
            // The first frame had not been written: its packets are unknown.
            return fs::remove_file(path);
        }
        let again = path.with_extension("again");
        let _ = fs::remove_file(&again);
        let mut chunk = OpenChunk::create(&again)?;
        let mut processes = Descriptions::default();
        for block in blocks(&bytes) {
            match block.enhanced_packet() {
                Some(packet) => chunk.add_packet(block.bytes, &packet, &processes)?,
                None if processes.add(&block).is_some() => {}
                None if TranslationNews::from_block(&block).is_some() => {
                    chunk.add_translation(block.bytes)?;
                }
                None => chunk.add_other(&block)?,
            }
        }
        let at = |end| self.directory.join(chunk_name(sequence, end));
        let sealed = chunk.seal(&at(CHUNK))?;
        if path.extension().is_some_and(|end| end == PART) {
            fs::remove_file(path)?;
        }
        let mut in_all = before.map(|before| before.in_all.clone()).unwrap_or_default();
        in_all.recorded += sealed.recorded;
        let (epoch, origin) = (self.target.epoch.clone(), begin.origin.clone());
        let manifest = Manifest {
            state: self.target.state(),
            in_all,
            recovered: true,
            ..sealed.manifest(epoch, sequence, origin)
        };
        write_whole(&at(MANIFEST), &manifest.to_bytes())
    }
}

fn unreadable(path: &Path) -> impl Fn(Unreadable) -> io::Error {
    move |why| {
        let why = format!("{}: {why}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, why)
    }
}

/// Refuses a directory that another user owns or may write to.
fn check_owner(directory: &Path, root: &Path) -> Result<()> {
    let Err(error) = run::check_owner(directory) else {
        return Ok(());
    };
    let uid = fs::symlink_metadata(directory).map_or(0, |about| about.uid());
    let own = [0, create::own_user()].contains(&uid);
    Err(if own {
        error
    } else {
        Error::failed(
            format!("cannot store the contents of {}", directory.display()),
            format!("user {uid} owns it, and could choose its files and their destination"),
        )
        .fix(format!(
            "store it as that user: setpriv --reuid {uid} --clear-groups trawl store push --spool {}",
            root.display()
        ))
    })
}

fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the names of the manifests in a run's directory.
fn manifests(directory: &Path, kinds: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for path in files(&directory.join(CHUNKS))? {
        if path.extension().is_some_and(|end| kinds.iter().any(|kind| end == *kind)) {
            let below = path.strip_prefix(directory).map_err(io::Error::other)?;
            names.push(below.to_owned());
        }
    }
    Ok(names)
}

fn read_manifest(directory: &Path, name: &Path) -> io::Result<Manifest> {
    let manifest = Manifest::from_bytes(&beneath::read(directory, name)?);
    manifest.map_err(unreadable(&directory.join(name)))
}

/// Reads the manifests of a run's directory, without the ones that are stored and removed meanwhile.
fn read_manifests(directory: &Path, kinds: &[&str]) -> io::Result<Vec<Manifest>> {
    let names = manifests(directory, kinds)?;
    let read = names.iter().map(|name| read_manifest(directory, name));
    read.filter(|one| !matches!(one, Err(e) if e.kind() == io::ErrorKind::NotFound)).collect()
}

/// This host's waiting chunks for a store.
#[derive(Debug, Default)]
pub struct Spooled {
    pub begins: Vec<Begin>,
    pub manifests: Vec<Manifest>,
    pub ends: Vec<End>,
}

/// Returns this host's waiting chunks for a store, including runs that are still running.
pub fn waiting_for(root: &Path, url: &str) -> Spooled {
    let mut found = Spooled::default();
    for (directory, target) in spool::runs(root) {
        if canonical(&target.url) != url || target.incident.is_some() {
            continue;
        }
        let read = |name| beneath::read(&directory, Path::new(name)).unwrap_or_default();
        found.begins.extend(Begin::from_bytes(&read(BEGIN)));
        found.ends.extend(End::from_bytes(&read(END)));
        found.manifests.extend(read_manifests(&directory, &[MANIFEST]).unwrap_or_default());
    }
    found
}
