//! Limits of the commands that search a store: their memory, and the signals that end them at once.

use std::fs;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use trawl_sys::events::{self, Signals};
use trawl_sys::{Error, Result};

/// The failed action in the errors of a query.
pub const WHAT: &str = "cannot answer the query";
/// Memory limit of a command without --memory.
pub const MEMORY: u64 = 1 << 30;
/// Exit status of trawl-query if it needs more memory than it may.
pub const EXCEEDED: i32 = 3;
/// Interval at which the memory is compared with its limit: a query allocates at most about 100 MB in this time.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Exit status of a process that a signal ends: 128 and the signal's number.
const INTERRUPTED: i32 = 130;
const TERMINATED: i32 = 143;

/// Reason why a watched process ends.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// A signal, which stands for this exit status.
    Signal(i32),
    Memory,
}

/// Watches the process from now on: ends it if it needs more memory than `memory`, or at a signal, even in the middle
/// of a call, with the exit status that `last` returns. Must be called before threads are started.
pub fn watch(memory: u64, last: impl Fn(Ending) -> i32 + Send + 'static) -> Result<()> {
    let signals = Signals::watch()?;
    thread::spawn(move || {
        loop {
            let _ = events::wait(&[signals.as_fd()], CHECK_EVERY);
            let ending = match signals.next().filter(|signal| signal.ends()) {
                Some(events::Signal::Interrupt) => Ending::Signal(INTERRUPTED),
                Some(_) => Ending::Signal(TERMINATED),
                None if used().is_some_and(|used| used > memory) => Ending::Memory,
                None => continue,
            };
            std::process::exit(last(ending));
        }
    });
    Ok(())
}

/// Returns the error of a command that needs more memory than it may.
pub fn exceeded(memory: u64) -> Error {
    let why = format!("it needs more than --memory allows ({} MiB)", memory >> 20);
    let fix = "raise --memory, select fewer rows, or print --csv or --json, whose rows are written as they are found";
    Error::failed(WHAT, why).fix(fix)
}

/// Returns the bytes of memory that this process uses, without pages of files.
fn used() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}
