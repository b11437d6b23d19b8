//! The finished files of a series: a program is run with the name of each, and the oldest are removed.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use trawl_sys::{Error, Result, create, process};

use crate::series_plan::SeriesPlan;

/// How many removed files may wait until the disk has freed their room, which takes a second a GB on some.
const BEING_FREED: usize = 2;
/// How often it is asked whether commands still run.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Somebody who waits longer than this is told what for.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// By anybody.
const EXECUTABLE: u32 = 0o111;

#[derive(Debug)]
pub struct Finished {
    plan: SeriesPlan,
    /// Those that are there, the oldest first, and how large they are.
    past: VecDeque<(PathBuf, u64)>,
    /// Takes files that have lost their names: the last one who has a file open waits until its room is free.
    freed: Option<SyncSender<File>>,
    children: Vec<Child>,
    /// Why the first command that could not be run was not.
    not_run: Option<io::Error>,
}

impl Finished {
    pub fn of(plan: SeriesPlan) -> Self {
        Self {
            plan,
            past: VecDeque::new(),
            freed: None,
            children: Vec::new(),
            not_run: None,
        }
    }

    /// Whether one has this name.
    pub fn has(&self, path: &Path) -> bool {
        self.past.iter().any(|(one, _)| one == path)
    }

    /// Takes one in, and runs the command with it.
    pub fn add(&mut self, path: PathBuf, size: u64) {
        if let Some(command) = &self.plan.rotation.command {
            // Its name is an argument: no shell looks at it.
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

    /// Removes the oldest that are too many, with room for the one that comes next.
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
            // Somebody else may have taken it away.
            let _ = std::fs::remove_file(path);
            if let Ok(file) = file {
                self.free(file);
            }
        }
    }

    /// Lets go of a removed file beside what comes next. Waits where many are on their way.
    fn free(&mut self, file: File) {
        let freed = self.freed.get_or_insert_with(|| {
            let (freed, files) = sync_channel::<File>(BEING_FREED);
            let close = move || files.into_iter().for_each(drop);
            // Where no thread can be had, files are closed here.
            let _ = std::thread::Builder::new().spawn(close);
            freed
        });
        let _ = freed.send(file);
    }

    /// Their own failures are their own affair.
    fn forget_ended(&mut self) {
        self.children
            .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    }

    /// How many commands still run.
    pub fn running(&mut self) -> Result<usize> {
        self.forget_ended();
        match (
            self.children.len(),
            self.not_run.take(),
            &self.plan.rotation.command,
        ) {
            (0, Some(error), Some(command)) => {
                Err(Error::os(format!("cannot run {command} for -z"), error))
            }
            (count, not_run, _) => {
                self.not_run = not_run;
                Ok(count)
            }
        }
    }
}

/// Waits until no command runs any more, and tells somebody who waits for long how many do.
pub fn wait_for_commands(
    mut running: impl FnMut() -> Result<usize>,
    tell: impl Fn(usize),
) -> Result<()> {
    let began = Instant::now();
    let mut is_told = false;
    loop {
        let count = running()?;
        if count == 0 {
            return Ok(());
        }
        if !is_told && began.elapsed() >= SAID_AFTER {
            tell(count);
            is_told = true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Refuses a command for finished files that is no program.
pub fn check_command(command: &str) -> Result<()> {
    let is_program = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|about| about.is_file() && about.permissions().mode() & EXECUTABLE != 0)
    };
    let is_there = match command.contains('/') {
        true => is_program(Path::new(command)),
        false => process::in_path(command)
            .iter()
            .any(|path| is_program(path)),
    };
    match is_there {
        true => Ok(()),
        false => {
            let what = format!("cannot run '{command}' for -z");
            let fix = "-z takes a program alone, without arguments: write a script of them";
            Err(Error::usage(what, "there is no such program").fix(fix))
        }
    }
}
