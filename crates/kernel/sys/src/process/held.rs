//! A command that is started, but waits before it begins.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::process::{end_of, end_with_parent, is_program, unblock_signals};
use crate::rights::privilege::User;
use crate::{Error, Result, errno};

/// A child process that runs a command once it is released.
#[derive(Debug)]
pub struct HeldCommand {
    name: String,
    process: libc::pid_t,
    /// Pipe in which a byte lets the command begin; `None` once it did.
    gate: Option<OwnedFd>,
    /// Pipe from which the error's number is read if the command cannot run.
    refusal: OwnedFd,
    status: Option<ExitStatus>,
}

impl HeldCommand {
    /// Starts a child process that moves into a cgroup, of which `group` is the file of processes, and that runs the
    /// command as another user, if one is given. It is terminated when the starting thread ends. Must be called before
    /// threads are started.
    pub fn start(words: &[String], group: BorrowedFd<'_>, user: Option<&User>) -> Result<Self> {
        let name = words.first().cloned().unwrap_or_default();
        let fail = |e| Error::os(format!("cannot run {name}"), e);
        if !is_program(&name) {
            let why =
                if name.contains('/') { "no program has this path" } else { "no directory of PATH has such a program" };
            return Err(Error::failed(format!("cannot run {name:?}"), why));
        }
        let words: Vec<CString> = words
            .iter()
            .map(|word| CString::new(word.as_str()))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| fail(e.into()))?;
        let mut pointers: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let (watched, gate) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
        let (refusal, refuses) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
        let other_ends = [gate.as_raw_fd(), refusal.as_raw_fd()];
        let parent = std::process::id();
        // SAFETY: this process has one thread, so that the child may call what its parent may. It runs the command or
        // ends.
        match unsafe { libc::fork() } {
            -1 => Err(fail(io::Error::last_os_error())),
            0 => {
                let error = begin(&pointers, parent, group, user, &watched, other_ends);
                let _ = rustix::io::write(&refuses, &error.to_ne_bytes());
                // SAFETY: ends the child at once, without running the parent's exit handlers.
                unsafe { libc::_exit(127) }
            }
            process => Ok(Self { name, process, gate: Some(gate), refusal, status: None }),
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
            Ok(_) => Err(fail(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))),
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

    /// Returns a descriptor that becomes readable once the command has ended; `None` if the kernel refuses it.
    pub fn end(&self) -> Option<OwnedFd> {
        end_of(self.process.cast_unsigned())
    }

    /// Asks the command to end, if it still runs.
    pub fn terminate(&mut self) {
        if self.ended().is_none() {
            // SAFETY: the child has not been waited for, so that the number is still its own.
            unsafe { libc::kill(self.process, libc::SIGTERM) };
        }
    }
}

/// Waits in the child for its release, and runs the command. Returns the number of the error if that fails.
fn begin(
    words: &[*const libc::c_char],
    parent: u32,
    group: BorrowedFd<'_>,
    user: Option<&User>,
    watched: &OwnedFd,
    other_ends: [RawFd; 2],
) -> i32 {
    for descriptor in other_ends {
        // SAFETY: the child does not use these copies. Once they are closed, it notices the parent's end.
        unsafe { libc::close(descriptor) };
    }
    if let Err(error) = rustix::io::write(group, b"0") {
        return error.raw_os_error();
    }
    let number = |error: io::Error| error.raw_os_error().unwrap_or(errno::EIO);
    // A change of the user disarms the signal for the parent's end, so it has to come first.
    if let Some(Err(error)) = user.map(User::log_in) {
        return error.errno().unwrap_or(errno::EPERM);
    }
    if let Err(error) = end_with_parent(parent, libc::SIGTERM).and_then(|()| unblock_signals()) {
        return number(error);
    }
    // SAFETY: the call takes numbers; the runtime has made trawl ignore the signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut byte = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(watched, &mut byte)) {
        Ok(1) => {}
        _ => return errno::ESRCH,
    }
    // SAFETY: the pointers lead to words that end in NUL, and the list ends in a null pointer.
    unsafe { libc::execvp(words[0], words.as_ptr()) };
    number(io::Error::last_os_error())
}
