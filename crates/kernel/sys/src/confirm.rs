//! Changes that are reverted unless they are confirmed in time. A separate process waits; it needs neither the terminal
//! nor the command that made the change.
//!
//! A change has a file under /run/trawl/pending while it can still be reverted. Two processes may remove it: the
//! command that confirms the change, and the process that waits, once the time is over. The first to remove it decides.
//! A process that reverts a change leaves a file under /run/trawl/reverted, and writes to the terminal and the system's
//! log.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::files::changes::Changes;
use crate::files::run;
use crate::process::warden::{Undo, confine, leave_terminal};
use crate::{Error, Result, clock, events};

/// Time for which a reverted change is reported.
const REPORTED_FOR_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Interval at which the file of a change is checked if the kernel does not announce its removal.
const PAUSE: Duration = Duration::from_millis(100);
const APPLIED: u8 = b'a';
const DROPPED: u8 = b'.';

/// A change that is neither confirmed nor reverted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The command that made the change.
    pub command: String,
    /// Time until the change is reverted.
    pub left: Duration,
}

/// A change that was reverted, because it was not confirmed in time or the command that made it died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reverted {
    /// The command that made the change.
    pub command: String,
    /// Time of the reversal, in nanoseconds since 1970.
    pub at: u64,
    /// Reason why the state before the change could not be restored.
    pub error: Option<String>,
}

impl fmt::Display for Reverted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = clock::strftime_at("%H:%M:%S", self.at);
        match &self.error {
            None => write!(f, "'{}' was not confirmed and was reverted at {time}", self.command),
            Some(error) => {
                write!(f, "'{}' was not confirmed, and could not be reverted at {time}: {error}", self.command)
            }
        }
    }
}

/// A change in progress. If the command dies before [`Pending::applied`], the change is reverted at once. If the
/// command drops this, nothing is reverted: the change was refused, and the command itself undoes its parts.
#[derive(Debug)]
pub struct Pending {
    path: PathBuf,
    lifeline: Option<OwnedFd>,
}

/// Begins a change, before any part of it is applied. A `scope`, such as the guard of a namespace or the programs of an
/// interface, has one change at a time; its name is the name of a file. Call this before threads are started, like
/// [`crate::process::warden::Warden::watch`].
pub fn begin(scope: &str, command: &str, time: Duration, undo: &dyn Undo) -> Result<Pending> {
    let what = "cannot make a change that is to be confirmed";
    let path = path_of(scope)?
        .ok_or_else(|| Error::failed(what, "the process that reverts it requires root").fix("this requires root"))?;
    refuse_if_pending(scope)?;
    let report = Report::prepare(scope, command)?;
    let fail = |e: std::io::Error| Error::os(what, e);
    let deadline = clock::monotonic().saturating_add(time.as_nanos() as u64);
    let _ = fs::remove_file(&path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(fail)?;
    writeln!(file, "{deadline}\n{command}").map_err(fail)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| fail(e.into()))?;
    let (watched, lifeline) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
    let mut keep = undo.descriptors();
    keep.extend([watched.as_raw_fd(), file.as_raw_fd()]);
    keep.extend(report.terminal.iter().map(AsRawFd::as_raw_fd));
    // SAFETY: the child runs only the code below and never returns into the caller. No other thread holds a lock that
    // the child needs: trawl makes such changes before it starts threads.
    match unsafe { libc::fork() } {
        -1 => {
            let error = std::io::Error::last_os_error();
            let _ = fs::remove_file(&path);
            Err(fail(error))
        }
        0 => {
            if let Some(outcome) = stand_by(&path, watched.as_fd(), keep, time, undo) {
                report.publish(outcome);
            }
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(Pending { path, lifeline: Some(lifeline) }),
    }
}

impl Pending {
    /// Starts the change's time limit, once the change is made.
    pub fn applied(mut self) -> Result<()> {
        self.send(APPLIED).map_err(|e| Error::os("cannot reach the process that reverts the change", e))
    }

    fn send(&mut self, word: u8) -> std::io::Result<()> {
        match self.lifeline.take() {
            Some(lifeline) => Ok(rustix::io::write(&lifeline, &[word]).map(drop)?),
            None => Ok(()),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.lifeline.is_some() {
            let _ = fs::remove_file(&self.path);
            let _ = self.send(DROPPED);
        }
    }
}

/// The report of a reverted change. It is prepared while the process still has the terminal.
struct Report {
    path: PathBuf,
    command: String,
    terminal: Option<File>,
}

impl Report {
    fn prepare(scope: &str, command: &str) -> Result<Self> {
        let directory = run::directory("reverted")?.unwrap_or_default();
        for old in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let scope = old.file_name().to_string_lossy().into_owned();
            if reverted(&scope)?.is_none() {
                let _ = fs::remove_file(old.path());
            }
        }
        let path = directory.join(scope);
        let _ = fs::remove_file(&path);
        let terminal =
            fs::OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open("/dev/tty");
        Ok(Self { path, command: command.to_owned(), terminal: terminal.ok() })
    }

    /// Writes to the record, the terminal and the system's log; none of them needs to exist.
    fn publish(mut self, outcome: Result<()>) {
        let reverted =
            Reverted { command: self.command, at: clock::wall(), error: outcome.err().map(|error| error.to_string()) };
        let error = reverted.error.as_deref().unwrap_or_default();
        let record = format!("{}\n{}\n{}\n", reverted.at, error.replace('\n', " "), reverted.command);
        let _ = fs::write(&self.path, record);
        if let Some(terminal) = &mut self.terminal {
            let _ = write!(terminal, "\r\ntrawl: {reverted}\r\n");
        }
        // RFC 3164: facility daemon, severity warning.
        let line = format!("<28>trawl: {reverted}");
        let _ = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(line.as_bytes(), "/dev/log")
        });
    }
}

/// Removes the report of the last reverted change of a scope.
pub fn forget_reverted(scope: &str) -> Result<()> {
    let Some(directory) = run::directory("reverted")? else {
        return Ok(());
    };
    match fs::remove_file(directory.join(scope)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::os("cannot forget the change that was reverted", error))
        }
        _ => Ok(()),
    }
}

/// Returns the last change of a scope, if it was reverted within a day and no other change has followed.
pub fn reverted(scope: &str) -> Result<Option<Reverted>> {
    let Some(directory) = run::directory("reverted")? else {
        return Ok(None);
    };
    let Ok(text) = fs::read_to_string(directory.join(scope)) else {
        return Ok(None);
    };
    let mut lines = text.splitn(3, '\n');
    let at: u64 = lines.next().unwrap_or_default().parse().unwrap_or_default();
    let error = lines.next().unwrap_or_default();
    let command = lines.next().unwrap_or_default();
    let is_recent = clock::wall().saturating_sub(at) < REPORTED_FOR_NS;
    Ok(is_recent.then(|| Reverted {
        command: command.trim_end().to_owned(),
        at,
        error: (!error.is_empty()).then(|| error.to_owned()),
    }))
}

/// Waits until the change is confirmed or its time is over, and returns the outcome of reverting it.
fn stand_by(
    path: &Path,
    watched: BorrowedFd<'_>,
    mut keep: Vec<RawFd>,
    time: Duration,
    undo: &dyn Undo,
) -> Option<Result<()>> {
    leave_terminal(c"trawl-confirm", &mut keep);
    confine(undo.needed_capabilities());
    let mut word = [0u8];
    let polled = loop {
        match rustix::io::read(watched, &mut word) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result,
        }
    };
    match (polled, word[0]) {
        (Ok(1), DROPPED) => return None,
        (Ok(1), _) => {
            let deadline = clock::monotonic().saturating_add(time.as_nanos() as u64);
            // This process has the file open, so that its removal changes only its number of names.
            let removal = Changes::watch(path);
            while let Some(left @ 1..) = deadline.checked_sub(clock::monotonic()) {
                if !path.exists() {
                    return None;
                }
                let is_over = |removal| events::is_quiet(removal, Duration::from_nanos(left));
                if !removal.as_ref().is_ok_and(|removal| is_over(removal.as_fd())) {
                    std::thread::sleep(PAUSE);
                }
            }
        }
        // The command is dead, perhaps in the middle of the change.
        _ => {}
    }
    fs::remove_file(path).is_ok().then(|| undo.undo())
}

/// Returns the unconfirmed change of a scope.
pub fn pending(scope: &str) -> Result<Option<About>> {
    Ok(read_change(scope)?.filter(|(_, is_watched)| *is_watched).map(|(about, _)| about))
}

/// Returns every scope with an unconfirmed change.
pub fn all() -> Result<Vec<(String, About)>> {
    let Some(directory) = run::directory("pending")? else {
        return Ok(Vec::new());
    };
    let entries = fs::read_dir(&directory).map_err(|e| Error::os(format!("cannot read {}", directory.display()), e))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let scope = entry.file_name().to_string_lossy().into_owned();
        if let Some(about) = pending(&scope)? {
            found.push((scope, about));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// Refuses another change while one is unconfirmed: reverting the first would revert the second too.
pub fn refuse_if_pending(scope: &str) -> Result<()> {
    match pending(scope)? {
        Some(about) => Err(Error::failed(
            "cannot make another change",
            format!("'{}' is not confirmed; it is reverted in {} s", about.command, about.left.as_secs()),
        )
        .fix("confirm it first, or wait")),
        None => Ok(()),
    }
}

/// Confirms the change of a scope.
pub fn confirm(scope: &str) -> Result<About> {
    let none = || match reverted(scope) {
        Ok(Some(reverted)) => {
            Error::failed("cannot confirm", reverted.to_string()).fix("make the change again with a longer --confirm")
        }
        _ => Error::failed("cannot confirm", "no change is unconfirmed"),
    };
    let privileges = || Error::failed("cannot confirm", "unconfirmed changes belong to root").fix("this requires root");
    let path = path_of(scope)?.ok_or_else(privileges)?;
    let (about, is_watched) = read_change(scope)?.ok_or_else(none)?;
    // A missing file means that the waiting process has just reverted the change.
    fs::remove_file(&path).map_err(|_| none())?;
    if is_watched {
        Ok(about)
    } else {
        Err(Error::failed(
            format!("'{}' stays", about.command),
            "the process that would have reverted it is gone, so nothing was left to confirm",
        ))
    }
}

fn path_of(scope: &str) -> Result<Option<PathBuf>> {
    Ok(run::directory("pending")?.map(|directory| directory.join(scope)))
}

/// Returns the change, and true if the process that would revert it is alive: it holds the file's lock.
fn read_change(scope: &str) -> Result<Option<(About, bool)>> {
    let Some(path) = path_of(scope)? else {
        return Ok(None);
    };
    let (Ok(text), Ok(file)) = (fs::read_to_string(&path), File::open(&path)) else {
        return Ok(None);
    };
    let is_watched = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
    let (deadline, command) = text.split_once('\n').unwrap_or_default();
    let deadline: u64 = deadline.parse().unwrap_or_default();
    let left = Duration::from_nanos(deadline.saturating_sub(clock::monotonic()));
    let command = command.trim_end().to_owned();
    Ok(Some((About { command, left }, is_watched)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::root_or_skip;

    #[derive(Debug)]
    struct Touch(PathBuf);

    impl Undo for Touch {
        fn undo(&self) -> Result<()> {
            let _ = fs::write(&self.0, "");
            Ok(())
        }
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let end = clock::monotonic() + 60_000_000_000;
        while !is_so() {
            assert!(clock::monotonic() < end, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_change_is_reverted_unless_it_is_confirmed() {
        if !root_or_skip() {
            return;
        }
        let mark = std::env::temp_dir().join(format!("trawl-confirm-{}", std::process::id()));
        let touch = Touch(mark.clone());
        let scope = |name: &str| format!("test-{name}-{}", std::process::id());
        let short = Duration::from_millis(1);
        let long = Duration::from_secs(3600);

        let kept = scope("kept");
        begin(&kept, "kept", long, &touch).unwrap().applied().unwrap();
        assert_eq!(pending(&kept).unwrap().unwrap().command, "kept");
        let error = begin(&kept, "other", long, &touch).unwrap_err().to_string();
        assert!(error.contains("'kept' is not confirmed"), "{error}");
        assert!(all().unwrap().iter().any(|(scope, _)| *scope == kept));
        confirm(&kept).unwrap();
        assert_eq!(pending(&kept).unwrap(), None);
        assert!(confirm(&kept).is_err(), "once is enough");

        let refused = scope("refused");
        drop(begin(&refused, "refused", short, &touch).unwrap());
        assert_eq!(pending(&refused).unwrap(), None);
        assert!(!mark.exists());

        let late = scope("late");
        begin(&late, "late", short, &touch).unwrap().applied().unwrap();
        wait_until("the revert is recorded", || reverted(&late).unwrap().is_some());
        assert!(mark.exists());
        assert_eq!(pending(&late).unwrap(), None);
        let error = confirm(&late).unwrap_err().to_string();
        assert!(error.contains("'late' was not confirmed and was reverted at "), "{error}");
        assert_eq!(reverted(&kept).unwrap(), None);
        fs::remove_file(&mark).unwrap();
    }
}
