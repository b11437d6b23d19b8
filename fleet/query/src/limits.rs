//! Limits of a query: half of the memory for sorting and grouping, and temporary files for the rest.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::error::Result as QueryResult;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use trawl_store::search::limits::{EXCEEDED, Ending, watch};
use trawl_sys::Result;

/// Maximum number of bytes of a query's temporary files.
const SPILL: u64 = 16 << 30;

/// Directory of the query's temporary files.
fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("trawl-query-{}", std::process::id()))
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
pub struct Spill(PathBuf);

impl Drop for Spill {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the environment of a query that may use this much memory.
pub fn environment(memory: u64) -> QueryResult<(Arc<RuntimeEnv>, Option<Spill>)> {
    let pool = FairSpillPool::new(usize::try_from(memory / 2).unwrap_or(usize::MAX));
    let path = directory();
    // The rows are private: another user's directory of this name is not used.
    let spill = DirBuilder::new().mode(0o700).create(&path).is_ok();
    let spill = spill.then_some(Spill(path));
    let mode = match &spill {
        Some(Spill(path)) => DiskManagerMode::Directories(vec![path.clone()]),
        None => DiskManagerMode::Disabled,
    };
    let disk = DiskManagerBuilder::default().with_mode(mode).with_max_temp_directory_size(SPILL);
    let environment =
        RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool)).with_disk_manager_builder(disk).build_arc()?;
    Ok((environment, spill))
}
