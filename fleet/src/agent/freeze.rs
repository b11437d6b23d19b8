//! Freezes the packets of an incident: hard links protect the chunks of its window from removal. They are in a
//! directory of the spool that is laid out as a run, and `trawl store push` stores it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use trawl_spool::Target;
use trawl_spool::manifest::{self, Begin, Clock, End, FORMAT, Manifest, Sealed, State};
use trawl_spool::spool::{
    self, BEGIN, CHUNK, CHUNKS, END, INCIDENT, LOCK, MANIFEST, NEAR, PART, TARGET, UPLOAD_LOCK, write_whole,
};
use trawl_sys::{
    clock,
    files::{beneath, create},
};

use super::desired::Incident;
use super::report::Frozen;

/// Prefix of the names of these directories.
const PREFIX: &str = "incident~";
/// Time after the window in which its last packets reach their chunks.
const SETTLE_NS: u64 = 200_000_000;
/// Time that the captures have to seal their chunks.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which chunks are frozen before the window ends.
const FREEZE_EVERY: Duration = Duration::from_millis(500);
/// Interval at which open chunks are checked after the window.
const CHECK_EVERY: Duration = Duration::from_millis(100);

pub struct Freezer {
    root: PathBuf,
    pub incident: Incident,
    /// Maximum number of bytes of all incidents in the spool.
    most_bytes: u64,
    /// Manifests that were read, by the paths of their chunks.
    known: HashMap<PathBuf, Manifest>,
    checked: Option<Instant>,
    /// Chunks that were being made at the end of the window, and the time until which they are awaited.
    open: Option<(Vec<PathBuf>, Instant)>,
    is_full: bool,
}

/// Removes the unfinished incidents that a killed agent has left.
pub fn remove_unfinished(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let is_incident = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_incident && !entry.path().join(TARGET).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Freezer {
    pub fn new(root: &Path, incident: Incident, most_bytes: u64) -> Self {
        Self {
            root: root.to_owned(),
            incident,
            most_bytes,
            known: HashMap::new(),
            checked: None,
            open: None,
            is_full: false,
        }
    }

    /// Freezes the chunks that exist; returns the outcome once all packets of the window are frozen. `seal` asks the
    /// captures to seal their chunks.
    pub fn advance(&mut self, seal: &mut dyn FnMut()) -> Option<Result<Frozen, String>> {
        match &self.open {
            None if clock::wall() < self.incident.to_ns.saturating_add(SETTLE_NS) => {
                if self.checked.is_none_or(|checked| checked.elapsed() >= FREEZE_EVERY) {
                    self.freeze();
                    self.checked = Some(Instant::now());
                }
                None
            }
            None => {
                self.freeze();
                let open = self.runs().into_iter().filter(|(run, _)| is_running(run));
                let open = open.flat_map(|(run, _)| spool::files(&run, &[PART])).collect();
                seal();
                self.open = Some((open, Instant::now() + PATIENCE));
                None
            }
            Some((open, until)) => {
                let is_sealed = !open.iter().any(|path| path.exists());
                (is_sealed || Instant::now() >= *until).then(|| self.finish())
            }
        }
    }

    /// Returns the time until `advance` must be called again.
    pub fn rest(&self) -> Duration {
        if self.open.is_some() {
            return CHECK_EVERY;
        }
        let settled = self.incident.to_ns.saturating_add(SETTLE_NS);
        let until_settled = Duration::from_nanos(settled.saturating_sub(clock::wall()));
        let since = self.checked.map_or(FREEZE_EVERY, |checked| checked.elapsed());
        until_settled.min(FREEZE_EVERY.saturating_sub(since))
    }

    /// Returns the directories of runs whose chunks stay on this host.
    fn runs(&self) -> Vec<(PathBuf, Target)> {
        let mut runs = spool::runs(&self.root);
        runs.retain(|(_, target)| target.is_near());
        runs
    }

    fn staged(&self, run: &Path) -> PathBuf {
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        self.root.join(format!("{PREFIX}{}~{name}", self.incident.id))
    }

    fn freeze(&mut self) {
        for (run, _) in self.runs() {
            // A failure is not reported: a chunk that was removed meanwhile is missing from the account as well.
            let _ = self.freeze_run(&run);
        }
    }

    fn freeze_run(&mut self, run: &Path) -> io::Result<()> {
        let staged = self.staged(run);
        for path in spool::files(run, &[MANIFEST, NEAR]) {
            let (from_ns, to_ns) = (self.incident.from_ns, self.incident.to_ns);
            let (Some(manifest), Some(name)) = (self.manifest(run, &path), path.file_name()) else {
                continue;
            };
            let is_early = manifest.last_ns.is_none_or(|last| last < from_ns);
            let is_late = manifest.first_ns.is_none_or(|first| first > to_ns);
            let to = staged.join(CHUNKS).join(name);
            let is_there = to.with_extension(CHUNK).exists();
            if manifest.state != State::OnHost || is_early || is_late || is_there {
                continue;
            }
            let bytes = manifest.bytes;
            if frozen_bytes(&self.root) + bytes > self.most_bytes {
                self.is_full = true;
                continue;
            }
            prepare(run, &staged)?;
            fs::hard_link(path.with_extension(CHUNK), to.with_extension(CHUNK))?;
            let linked = fs::hard_link(&path, &to);
            if linked.is_err() {
                // The manifest was renamed meanwhile: the next check finds it.
                let _ = fs::remove_file(to.with_extension(CHUNK));
            }
        }
        Ok(())
    }

    fn manifest(&mut self, run: &Path, path: &Path) -> Option<&Manifest> {
        let chunk = path.with_extension(CHUNK);
        if !self.known.contains_key(&chunk) {
            let below = path.strip_prefix(run).ok()?;
            let manifest = Manifest::from_bytes(&beneath::read(run, below).ok()?).ok()?;
            self.known.insert(chunk.clone(), manifest);
        }
        self.known.get(&chunk)
    }

    fn finish(&mut self) -> Result<Frozen, String> {
        self.freeze();
        // A second pass finds chunks whose manifests were renamed during the first.
        self.freeze();
        let frozen_ns = clock::wall();
        let mut frozen = Frozen { frozen_ns, ..Frozen::default() };
        let mut takes_part = false;
        for (run, target) in self.runs() {
            if !self.staged(&run).exists() && !is_running(&run) {
                continue;
            }
            takes_part = true;
            let finished = self.finish_run(&run, &target, frozen_ns);
            let record = finished.map_err(|e| format!("cannot freeze in {}: {e}", self.root.display()))?;
            frozen.chunks += record.chunks;
            frozen.packets += record.recorded;
            frozen.bytes += record.bytes;
        }
        if self.is_full {
            Err(format!("more than {} bytes of incidents wait in {}", self.most_bytes, self.root.display()))
        } else if takes_part {
            Ok(frozen)
        } else {
            Err("no capture of this host keeps its packets (packets_at = \"host\")".to_owned())
        }
    }

    /// Writes the record of a run's part of the incident, and then the target, which marks the directory for storing.
    fn finish_run(&mut self, run: &Path, target: &Target, frozen_ns: u64) -> io::Result<manifest::Incident> {
        let staged = self.staged(run);
        prepare(run, &staged)?;
        let Incident { id, from_ns, to_ns, why, hosts } = self.incident.clone();
        let mut record = manifest::Incident {
            format: FORMAT,
            epoch: target.epoch.clone(),
            incident: id.clone(),
            why,
            from_ns,
            to_ns,
            hosts,
            frozen_ns,
            since_ns: self.since(run)?,
            until_ns: self.until(run).filter(|until| *until < to_ns),
            chunks: 0,
            bytes: 0,
            recorded: 0,
            lost: BTreeMap::new(),
            clock: Clock::now(),
            seal: String::new(),
        };
        for path in spool::files(&staged, &[MANIFEST, NEAR]) {
            let Some(manifest) = self.manifest(&staged, &path) else {
                continue;
            };
            record.chunks += 1;
            record.bytes += manifest.bytes;
            record.recorded += manifest.recorded;
            for (reason, count) in manifest.since_last.lost.iter().filter(|(_, count)| **count > 0) {
                *record.lost.entry(reason.clone()).or_default() += count;
            }
        }
        write_whole(&staged.join(INCIDENT), &record.to_bytes())?;
        let target = Target { incident: Some(id), index: true, ..target.clone() };
        let text = serde_json::to_vec(&target).map_err(io::Error::other)?;
        write_whole(&staged.join(TARGET), &text)?;
        Ok(record)
    }

    /// Returns the time since which a run's directory has all packets of the run.
    fn since(&mut self, run: &Path) -> io::Result<u64> {
        let begin = Begin::from_bytes(&beneath::read(run, Path::new(BEGIN))?);
        let began = begin.map_or(0, |begin| begin.began_ns);
        let oldest = spool::files(run, &[MANIFEST, NEAR]).into_iter().find(|path| path.with_extension(CHUNK).exists());
        let oldest = oldest.and_then(|path| self.manifest(run, &path).cloned());
        Ok(match oldest {
            Some(oldest) if oldest.in_all.recorded > oldest.recorded => oldest.time(),
            _ => began,
        })
    }

    /// Returns the time until which a run's chunks have its packets; `None` if the capture is still running, and has
    /// sealed its chunk.
    fn until(&mut self, run: &Path) -> Option<u64> {
        let mut open = self.open.iter().flat_map(|(open, _)| open);
        let is_unsealed = open.any(|path| path.starts_with(run) && path.exists());
        if is_running(run) && !is_unsealed {
            return None;
        }
        let read = |name: &str| beneath::read(run, Path::new(name)).ok();
        if let Some(Ok(end)) = read(END).map(|bytes| End::from_bytes(&bytes)) {
            return Some(end.ended_ns);
        }
        let last = spool::files(run, &[MANIFEST, NEAR]).pop();
        let last = last.and_then(|path| self.manifest(run, &path).cloned());
        // A recovered chunk was sealed later, by another process.
        let of_chunk = last.map(|last| if last.recovered { last.last_ns.unwrap_or(0) } else { last.sealed_ns });
        let began = || read(BEGIN).and_then(|bytes| Begin::from_bytes(&bytes).ok()).map(|begin| begin.began_ns);
        of_chunk.or_else(began)
    }
}

/// Makes the directory of a run's part if it does not exist.
fn prepare(run: &Path, staged: &Path) -> io::Result<()> {
    if staged.join(UPLOAD_LOCK).exists() {
        return Ok(());
    }
    spool::make_private(&staged.join(CHUNKS))?;
    create::new_file(&staged.join(LOCK), 0o600)?;
    fs::hard_link(run.join(BEGIN), staged.join(BEGIN))?;
    create::new_file(&staged.join(UPLOAD_LOCK), 0o600)?;
    Ok(())
}

/// Returns true if the capture of a run is still running: it holds the lock of the run.
fn is_running(run: &Path) -> bool {
    File::open(run.join(LOCK)).is_ok_and(|lock| lock.try_lock_shared().is_err())
}

/// Returns the bytes of all incidents' chunks in a spool.
fn frozen_bytes(root: &Path) -> u64 {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let incidents = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let files = incidents.flat_map(|entry| fs::read_dir(entry.path().join(CHUNKS)));
    let sizes = files.flatten().flatten().filter_map(|file| Some(file.metadata().ok()?.len()));
    sizes.sum()
}
