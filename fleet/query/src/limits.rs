//! Limits of a query: three eighths of the memory for sorting and grouping, and temporary files for the rest.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::error::Result as QueryResult;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use trawl_store::search::limits::{EXCEEDED, Ending, watch};
use trawl_sys::Result;

use crate::pool::Pool;

/// Maximum number of bytes of a query's temporary files.
const SPILL: u64 = 16 << 30;

/// Beginning of the names of directories of temporary files.
const NAME: &str = "trawl-query-";

/// Directory of the query's temporary files.
fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("{NAME}{}", std::process::id()))
}

/// Ends the process if it needs more memory than it may, or at a signal. trawl-fleet reports the reason.
pub fn watch_over(memory: u64) -> Result<()> {
    watch(memory, |ending| {
        let _ = fs::remove_dir_all(directory());
        match ending {
            Ending::Signal(status) => status,
            Ending::Memory => EXCEEDED,
        }
    })
}

/// The directory of a query's temporary files, removed after the query.
#[derive(Debug)]
pub struct Spill {
    path: PathBuf,
    /// The directory, locked: the kernel unlocks it when the process ends, even if it is killed.
    _lock: File,
}

impl Spill {
    /// Creates the directory; returns `None` if that is impossible.
    fn create(path: PathBuf) -> Option<Self> {
        // Other queries remove unlocked directories of its final name.
        let new = path.with_file_name(format!("new-{NAME}{}", std::process::id()));
        let _ = fs::remove_dir(&new);
        // The rows are private: another user's directory of this name is not used.
        DirBuilder::new().mode(0o700).create(&new).ok()?;
        let lock = File::open(&new).ok()?;
        lock.try_lock().ok()?;
        fs::rename(&new, &path).ok()?;
        Some(Self { path, _lock: lock })
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories that this user's killed queries left in a directory.
fn remove_left(parent: &Path) {
    let Ok(own) = fs::metadata("/proc/self").map(|process| process.uid()) else { return };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_spill = entry.file_name().to_string_lossy().starts_with(NAME);
        // The type and the owner are those of a link itself, which another user may have made.
        if is_spill && entry.metadata().is_ok_and(|entry| entry.is_dir() && entry.uid() == own) {
            let is_left = File::open(entry.path()).is_ok_and(|directory| directory.try_lock().is_ok());
            if is_left {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Returns the environment of a query that may use this much memory.
pub fn environment(memory: u64) -> QueryResult<(Arc<RuntimeEnv>, Option<Spill>)> {
    // Operators use more than they count, such as the batches on their way between them.
    let pool = Pool::new(usize::try_from(memory / 8 * 3).unwrap_or(usize::MAX));
    remove_left(&std::env::temp_dir());
    let spill = Spill::create(directory());
    let mode = match &spill {
        Some(Spill { path, .. }) => DiskManagerMode::Directories(vec![path.clone()]),
        None => DiskManagerMode::Disabled,
    };
    let disk = DiskManagerBuilder::default().with_mode(mode).with_max_temp_directory_size(SPILL);
    let environment =
        RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool)).with_disk_manager_builder(disk).build_arc()?;
    Ok((environment, spill))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_killed_queries_are_removed() {
        let parent = std::env::temp_dir().join(format!("test-of-{NAME}{}", std::process::id()));
        let (left, other) = (parent.join(format!("{NAME}1")), parent.join("other"));
        for directory in [&left, &other] {
            fs::create_dir_all(directory).expect("a directory");
            fs::write(directory.join("rows"), "rows").expect("a file");
        }
        let running = parent.join(format!("{NAME}2"));
        let spill = Spill::create(running.clone()).expect("a directory");
        remove_left(&parent);
        assert_eq!([&left, &other, &running].map(|path| path.exists()), [false, true, true]);
        drop(spill);
        assert!(!running.exists());
        fs::remove_dir_all(parent).expect("ours");
    }
}
