//! A command that is started, but waits before it begins.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::process::in_path;
use crate::{Error, Result, errno};

const ANY_MAY_RUN: u32 = 0o111;

/// A child process that runs a command once it is released.
#[derive(Debug)]
pub struct HeldCommand {
    name: String,
    process: libc::pid_t,
    /// A byte here lets the command begin; `None` once it did.
    gate: Option<OwnedFd>,
    /// The number of the error if the command cannot run.
    refusal: OwnedFd,
    status: Option<ExitStatus>,
}

impl HeldCommand {
    /// Starts a child process that belongs to a cgroup, by the cgroup's file of processes. It is terminated when the starting
    /// thread ends. Must be called before threads are started.
    pub fn start(words: &[String], group: BorrowedFd<'_>) -> Result<Self> {
        let name = words.first().cloned().unwrap_or_default();
        let fail = |e| Error::os(format!("cannot run {name}"), e);
        find(&name)?;
        let words: Vec<CString> = words
            .iter()
            .map(|word| CString::new(word.as_str()))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| fail(e.into()))?;
        let mut pointers: Vec<*const libc::c_char> =
            words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let (watched, gate) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
        let (refusal, refuses) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
        let other_ends = [gate.as_raw_fd(), refusal.as_raw_fd()];
        let parent = std::process::id();
        // SAFETY: the child makes system calls alone, and then either runs the command or ends.
        match unsafe { libc::fork() } {
            -1 => Err(fail(io::Error::last_os_error())),
            0 => {
                let error = begin(&pointers, parent, group, &watched, other_ends);
                let _ = rustix::io::write(&refuses, &error.to_ne_bytes());
                // SAFETY: ends the child at once, without running the parent's exit handlers.
                unsafe { libc::_exit(127) }
            }
            process => Ok(Self {
                name,
                process,
                gate: Some(gate),
                refusal,
                status: None,
            }),
        }
    }

    /// Lets the command begin, unless it has begun.
    pub fn release(&mut self) -> Result<()> {
        let Some(gate) = self.gate.take() else {
            return Ok(());
        };
        let fail = |e| Error::os(format!("cannot run {}", self.name), e);
        rustix::io::write(&gate, b".").map_err(|e| fail(e.into()))?;
        let mut number = [0; size_of::<i32>()];
        match rustix::io::read(&self.refusal, &mut number) {
            Ok(0) => Ok(()),
            Ok(_) => Err(fail(io::Error::from_raw_os_error(i32::from_ne_bytes(
                number,
            )))),
            Err(error) => Err(fail(error.into())),
        }
    }

    /// Returns how the command ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            let mut status = 0;
            // SAFETY: asks for our own child without waiting; the status is on this stack.
            let found = unsafe { libc::waitpid(self.process, &raw mut status, libc::WNOHANG) };
            self.status = (found == self.process).then(|| ExitStatus::from_raw(status));
        }
        self.status
    }

    /// Asks the command to end, if it still runs.
    pub fn terminate(&mut self) {
        if self.ended().is_none() {
            // SAFETY: the child has not been waited for, so that the number is still its own.
            unsafe { libc::kill(self.process, libc::SIGTERM) };
        }
    }
}

/// Finds a command's file, as execvp(3) will.
fn find(name: &str) -> Result<()> {
    let may_run = |path: &PathBuf| {
        let about = path.metadata();
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & ANY_MAY_RUN != 0)
    };
    let found = match name.contains('/') {
        true => Some(Path::new(name).to_owned()).filter(may_run),
        false => in_path(name).into_iter().find(may_run),
    };
    let what = || format!("cannot run {name:?}");
    match found {
        Some(_) => Ok(()),
        None if name.contains('/') => Err(Error::failed(what(), "no program has this path")),
        None => Err(Error::failed(
            what(),
            "no directory of PATH has such a program",
        )),
    }
}

/// Waits in the child for its release, and runs the command. Returns the number of the error if that fails.
fn begin(
    words: &[*const libc::c_char],
    parent: u32,
    group: BorrowedFd<'_>,
    watched: &OwnedFd,
    other_ends: [RawFd; 2],
) -> i32 {
    for descriptor in other_ends {
        // SAFETY: the child does not use these copies, without which it notices the parent's end.
        unsafe { libc::close(descriptor) };
    }
    if let Err(error) = rustix::io::write(group, b"0") {
        return error.raw_os_error();
    }
    let own_error = || {
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(errno::EIO)
    };
    // SAFETY: the calls take numbers, and a set of signals on this stack that sigemptyset fills.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
            return own_error();
        }
        // The parent may have ended before.
        if u32::try_from(libc::getppid()) != Ok(parent) {
            return errno::ESRCH;
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    let mut byte = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(watched, &mut byte)) {
        Ok(1) => {}
        _ => return errno::ESRCH,
    }
    // SAFETY: the pointers lead to words that end in NUL, and the list ends in a null pointer.
    unsafe { libc::execvp(words[0], words.as_ptr()) };
    own_error()
}
