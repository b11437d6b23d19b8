//! The files of a series, from a process that keeps the right to create and remove them: it receives requests for the
//! next file and notices of finished ones, but never a name.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use trawl_sys::process::warden::WholeBytes;
use trawl_sys::rights::helper::{Duty, Helper, HelperAnswer};
use trawl_sys::rights::privilege::KeptPrivileges;
use trawl_sys::{Error, Result, events};

use crate::finished::{Finished, wait_for_commands};
use crate::series_plan::SeriesPlan;

/// Creates a file, or empties an existing one.
pub type Make = Box<dyn Fn(&Path) -> Result<File>>;

const NEXT: &[u8] = b"next";
const FINISHED: &[u8] = b"finished";
const RUNNING: &[u8] = b"running";

/// First byte of an answer; a name follows, or the error's subject, reason and fix.
const DONE: u8 = b'+';
const FAILED: u8 = b'-';
const BETWEEN: char = '\0';

#[derive(Debug)]
pub struct NextFiles(Helper);

impl NextFiles {
    /// Starts the process with the given rights to files, or else with all rights of this process.
    pub fn start(plan: SeriesPlan, make: Make, whole: WholeBytes, kept: Option<&KeptPrivileges>) -> Result<Self> {
        let mut maker =
            Maker { finished: Finished::of(plan.clone()), plan, make, whole, number: 0, last: None, begun: None };
        Helper::start(c"trawl-files", kept, &mut maker).map(Self)
    }

    /// Returns the next file, which begins at a time in nanoseconds since 1970, and its name.
    pub fn begin(&mut self, time_ns: u64) -> Result<(File, String)> {
        let (name, file) = self.ask(&[NEXT, &time_ns.to_le_bytes()].concat())?;
        let none =
            || Error::failed(format!("cannot write to {name}"), "the process that opens files returned no descriptor");
        Ok((file.map(File::from).ok_or_else(none)?, name.clone()))
    }

    /// Announces that the current file is finished.
    pub fn finished(&mut self) -> Result<()> {
        self.ask(FINISHED).map(|_| ())
    }

    /// Waits for the commands that were run with the names of finished files, until a signal arrives.
    pub fn wait(&mut self, report: impl Fn(usize)) -> Result<()> {
        let running =
            || if events::signal_is_pending() { Ok(0) } else { Ok(self.ask(RUNNING)?.0.parse().unwrap_or_default()) };
        wait_for_commands(running, report)
    }

    fn ask(&self, request: &[u8]) -> Result<(String, Option<OwnedFd>)> {
        // The errno is left out: EPIPE would be mistaken for a reader that closed the output.
        let gone = |e: std::io::Error| Error::failed("cannot reach the process that opens files", e.to_string());
        let HelperAnswer { bytes, file } = self.0.ask(request).map_err(gone)?;
        let text = String::from_utf8_lossy(bytes.get(1..).unwrap_or_default()).into_owned();
        if bytes.first() == Some(&DONE) {
            return Ok((text, file));
        }
        let mut parts = text.splitn(3, BETWEEN);
        let mut part = || parts.next().unwrap_or_default().to_owned();
        let (what, why, fix) = (part(), part(), part());
        let error = Error::failed(what, why);
        Err(if fix.is_empty() { error } else { error.fix(fix) })
    }
}

/// State of the process.
struct Maker {
    plan: SeriesPlan,
    make: Make,
    whole: WholeBytes,
    number: u64,
    /// Latest name without a number.
    last: Option<PathBuf>,
    begun: Option<Begun>,
    finished: Finished,
}

struct Begun {
    file: File,
    /// Present path, and the path once finished.
    path: PathBuf,
    final_path: PathBuf,
}

impl Duty for Maker {
    fn answer(&mut self, request: &[u8]) -> HelperAnswer {
        let time = request.strip_prefix(NEXT).and_then(|time| time.try_into().ok());
        let done = match time {
            Some(time) => self.begin(u64::from_le_bytes(time)),
            None if request == FINISHED => self.finish().map(|()| (String::new(), None)),
            None => self.finished.running().map(|count| (count.to_string(), None)),
        };
        let (mark, text, file) = match done {
            Ok((text, file)) => (DONE, text, file),
            Err(error) => {
                let fix = error.how_to_fix().unwrap_or_default();
                let text = format!("{}{BETWEEN}{}{BETWEEN}{fix}", error.what(), error.why());
                (FAILED, text, None)
            }
        };
        HelperAnswer { bytes: [&[mark], text.as_bytes()].concat(), file }
    }

    /// Cuts an unfinished file after its last whole block; a file without any is removed.
    fn end(&mut self) {
        if let Some(begun) = &self.begun {
            let _ = match self.whole.get() {
                0 => std::fs::remove_file(&begun.path),
                _ => self.whole.cut(begun.file.as_fd()),
            };
        }
    }
}

impl Maker {
    fn begin(&mut self, time_ns: u64) -> Result<(String, Option<OwnedFd>)> {
        self.finished.make_room();
        self.number += 1;
        let is_used = |path: &Path| self.finished.has(path);
        let final_path = self.plan.name(self.number, time_ns, &mut self.last, is_used);
        let path = if self.plan.rotation.sealed { with_suffix(&final_path, ".part") } else { final_path.clone() };
        self.whole.set(0);
        let file = (self.make)(&path)?;
        let name = path.display().to_string();
        let handed = file.try_clone().map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
        self.begun = Some(Begun { file, path, final_path });
        Ok((name, Some(handed.into())))
    }

    fn finish(&mut self) -> Result<()> {
        let Some(begun) = self.begun.take() else {
            return Ok(());
        };
        let size = begun.file.metadata().map_or(0, |about| about.len());
        if self.plan.rotation.sealed {
            seal(&begun)?;
        }
        self.finished.add(begun.final_path, size);
        Ok(())
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Syncs a file to the disk, and then renames it to its final name.
fn seal(begun: &Begun) -> Result<()> {
    let to = &begun.final_path;
    let fail = |e| {
        let fix = format!("the packets are in {}", begun.path.display());
        Error::os(format!("cannot finish {}", to.display()), e).fix(fix)
    };
    begun.file.sync_all().map_err(fail)?;
    std::fs::rename(&begun.path, to).map_err(fail)?;
    let directory = match to.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(fail)
}
