//! Limits of the commands that query a store: their memory, and the signals that end them at once.

use std::fs::{self, DirBuilder};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use datafusion::error::Result as QueryResult;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use trawl_front::end;
use trawl_sys::events::{self, Signals};
use trawl_sys::{Error, Result};

/// The failed action in the errors of a query.
pub(crate) const WHAT: &str = "cannot answer the query";
/// Memory limit of a command without --memory.
const MEMORY: u64 = 1 << 30;
/// Interval at which the memory is compared with its limit: a query allocates at most about 100 MB in this time.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Maximum number of bytes of a query's temporary files.
const SPILL: u64 = 16 << 30;
/// Exit status of a process that a signal ends: 128 and the signal's number.
const INTERRUPTED: i32 = 130;
const TERMINATED: i32 = 143;

/// The memory that the running command may use.
static LIMIT: OnceLock<u64> = OnceLock::new();

/// Directory of the query's temporary files.
fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("trawl-query-{}", std::process::id()))
}

/// Watches the process from now on: ends it if it needs more memory than `memory`, or at a signal, even in the middle
/// of a call. Must be called before threads are started.
pub fn watch(memory: Option<u64>) -> Result<()> {
    let memory = *LIMIT.get_or_init(|| memory.unwrap_or(MEMORY));
    let signals = Signals::watch()?;
    thread::spawn(move || {
        loop {
            let _ = events::wait(&[signals.as_fd()], CHECK_EVERY);
            let status = match signals.next().filter(|signal| signal.ends()) {
                Some(events::Signal::Interrupt) => INTERRUPTED,
                Some(_) => TERMINATED,
                None if used().is_some_and(|used| used > memory) => {
                    let why = format!("it needs more than --memory allows ({} MiB)", memory >> 20);
                    let error = Error::failed(WHAT, why);
                    let _ = end(Err(error.fix(
                        "raise --memory, select fewer rows, or print --csv, whose rows are written as they are found",
                    )));
                    1
                }
                None => continue,
            };
            let _ = fs::remove_dir_all(directory());
            std::process::exit(status);
        }
    });
    Ok(())
}

/// Returns the bytes of memory that this process uses, without pages of files.
fn used() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// The directory of a query's temporary files, removed after the query.
#[derive(Debug)]
pub struct Spill(PathBuf);

impl Drop for Spill {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the environment of a query: half of the memory for sorting and grouping, and temporary files for the rest.
pub fn environment() -> QueryResult<(Arc<RuntimeEnv>, Option<Spill>)> {
    let memory = LIMIT.get().copied().unwrap_or(MEMORY);
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
