//! The finished files of a series: a command is run with the name of each, and the oldest files are removed.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use trawl_sys::{Error, Result, files::create, process};

use crate::series_plan::SeriesPlan;

/// Maximum number of removed files whose space the disk has not freed; some disks need a second a GB.
const BEING_FREED: usize = 2;
/// Interval between checks for running commands.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Waiting time after which the number of running commands is reported.
const REPORT_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Finished {
    plan: SeriesPlan,
    /// Existing files, the oldest first, with their sizes.
    past: VecDeque<(PathBuf, u64)>,
    /// Channel to a thread that closes removed files: the last close waits until the space is free.
    freed: Option<SyncSender<File>>,
    children: Vec<Child>,
    /// Reason why the first failed command could not be run.
    not_run: Option<io::Error>,
}

impl Finished {
    pub fn of(plan: SeriesPlan) -> Self {
        Self { plan, past: VecDeque::new(), freed: None, children: Vec::new(), not_run: None }
    }

    /// Returns true if a finished file has this name.
    pub fn has(&self, path: &Path) -> bool {
        self.past.iter().any(|(one, _)| one == path)
    }

    /// Adds a finished file, and runs the command with it.
    pub fn add(&mut self, path: PathBuf, size: u64) {
        if let Some(command) = &self.plan.rotation.command {
            // The name is an argument, not interpreted by a shell.
            let mut started = Command::new(command);
            started.arg(&path).stdin(Stdio::null());
            match process::with_signals(&mut started).spawn() {
                Ok(child) => self.children.push(child),
                // The other files are still written; the error is reported at the end.
                Err(error) => {
                    self.not_run.get_or_insert(error);
                }
            }
        }
        self.forget_ended();
        self.past.push_back((path, size));
    }

    /// Removes the oldest files beyond the limits, with space for the next one.
    pub fn make_room(&mut self) {
        let files = self.plan.rotation.files.unwrap_or(usize::MAX).max(1);
        let total = self.plan.rotation.total.unwrap_or(u64::MAX);
        let next = self.plan.largest().unwrap_or(0);
        loop {
            let sum: u64 = self.past.iter().map(|(_, size)| size).sum();
            if self.past.len() < files && sum.saturating_add(next) <= total {
                return;
            }
            let Some((path, _)) = self.past.pop_front() else {
                return;
            };
            let file = create::hold(&path);
            // Another process may have removed it.
            let _ = std::fs::remove_file(path);
            if let Ok(file) = file {
                self.free(file);
            }
        }
    }

    /// Closes a removed file in another thread. Waits while many are pending, since new files need their space.
    fn free(&mut self, file: File) {
        let freed = self.freed.get_or_insert_with(|| {
            let (freed, files) = sync_channel::<File>(BEING_FREED);
            let close = move || files.into_iter().for_each(drop);
            // If the thread cannot be started, the send below fails and drops the file.
            let _ = std::thread::Builder::new().spawn(close);
            freed
        });
        let _ = freed.send(file);
    }

    /// Forgets ended commands; their failures are not reported.
    fn forget_ended(&mut self) {
        self.children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    }

    /// Returns the number of running commands.
    pub fn running(&mut self) -> Result<usize> {
        self.forget_ended();
        match (self.children.len(), self.not_run.take(), &self.plan.rotation.command) {
            (0, Some(error), Some(command)) => Err(Error::os(format!("cannot run {command} for -z"), error)),
            (count, not_run, _) => {
                self.not_run = not_run;
                Ok(count)
            }
        }
    }
}

/// Waits until all commands have ended, and reports their number if the wait is long.
pub fn wait_for_commands(mut running: impl FnMut() -> Result<usize>, report: impl Fn(usize)) -> Result<()> {
    let began = Instant::now();
    let mut is_reported = false;
    loop {
        let count = running()?;
        if count == 0 {
            return Ok(());
        }
        if !is_reported && began.elapsed() >= REPORT_AFTER {
            report(count);
            is_reported = true;
        }
        std::thread::sleep(CHECK_EVERY);
    }
}
