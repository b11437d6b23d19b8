//! The warden: a child process that outlives a killed trawl for a moment, to undo state that the kernel would keep:
//! slots of foreign hook maps, clsact filters, chains of captures, and a block that was cut in the middle of a write.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::Mapping;
use crate::rights::privilege::{Capabilities, KeptPrivileges};
use crate::{Error, Result};

/// A task for the warden, defined by the owner of the state that it restores.
pub trait Undo: fmt::Debug + Send {
    /// Restores the state. The warden ignores the error.
    fn undo(&self) -> Result<()>;

    /// Returns true once nothing is left to undo: the warden drops the task.
    fn is_over(&self) -> bool {
        false
    }

    /// Lists the descriptors that stay open until the task is done: a lock, for one.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Returns the capabilities that the task needs: by default enough to change programs, pins and interfaces of any
    /// namespace, including those found through other processes.
    fn needed_capabilities(&self) -> Capabilities {
        Capabilities::BPF
            | Capabilities::NET_ADMIN
            | Capabilities::SYS_ADMIN
            | Capabilities::PERFMON
            | Capabilities::SYS_PTRACE
            | Capabilities::DAC_OVERRIDE
            | Capabilities::DAC_READ_SEARCH
    }

    /// Returns true if the task unmounts, which a confined process may not do.
    fn unmounts(&self) -> bool {
        false
    }
}

/// Number of bytes of a file that are whole blocks, shared with the warden by memory that both processes map.
#[derive(Clone, Debug)]
pub struct WholeBytes(Arc<Mapping>);

impl WholeBytes {
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(Mapping::anonymous(size_of::<u64>())?)))
    }

    /// Truncates a file after these bytes, and frees space that was reserved beyond its end.
    pub fn cut(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let about = rustix::fs::fstat(file)?;
        let end = self.get().min(about.st_size as u64);
        Ok(rustix::fs::ftruncate(file, end)?)
    }

    pub fn set(&self, bytes: u64) {
        self.word().store(bytes, Ordering::Release);
    }

    pub fn get(&self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping is page-aligned, at least eight bytes long and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.0.at(0).cast()) }
    }
}

/// Truncates a file after its last whole block.
#[derive(Debug)]
pub struct CutFile {
    pub file: OwnedFd,
    pub whole: WholeBytes,
}

impl Undo for CutFile {
    fn undo(&self) -> Result<()> {
        let cut = self.whole.cut(self.file.as_fd());
        cut.map_err(|e| Error::os("cannot cut a file after its last whole block", e))
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.file.as_raw_fd()]
    }

    fn needed_capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }
}

/// The tasks, and the child process that will carry them out.
#[derive(Debug, Default)]
pub struct Warden {
    tasks: Vec<Box<dyn Undo>>,
    child: Option<Child>,
}

#[derive(Debug)]
struct Child {
    process: libc::pid_t,
    /// Pipe that is closed when this process dies; a byte in it dismisses the child.
    lifeline: OwnedFd,
}

impl Warden {
    /// Adds tasks. The warden covers them from now on: call this before the actions that they undo.
    pub fn watch(&mut self, tasks: impl IntoIterator<Item = Box<dyn Undo>>) -> Result<()> {
        self.tasks.retain(|task| !task.is_over());
        self.tasks.extend(tasks);
        let before = self.child.take();
        self.child = Some(self.start().map_err(|e| Error::os("cannot start the process that cleans up", e))?);
        if let Some(before) = before {
            before.dismiss();
        }
        Ok(())
    }

    /// Makes the child undo all tasks now, and waits for it: it may still have rights that this process has given up.
    /// No task is left then.
    pub fn carry_out(&mut self) {
        if let Some(child) = self.child.take() {
            child.close_and_wait();
        }
        self.tasks.clear();
    }

    /// Starts another child if the old one was killed. Returns true if it was.
    pub fn renew(&mut self) -> Result<bool> {
        if self.child.as_ref().is_none_or(Child::is_alive) {
            return Ok(false);
        }
        self.child = None;
        self.watch([]).map(|()| true)
    }

    fn start(&self) -> io::Result<Child> {
        let (watched, lifeline) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut keep: Vec<RawFd> = self.tasks.iter().flat_map(|task| task.descriptors()).collect();
        keep.push(watched.as_raw_fd());
        // SAFETY: the child runs only the code below and never returns into the caller. trawl forks before it starts
        // threads of its own, except to replace a child that was killed: the calls below take no lock but the
        // allocator's, which fork(3) leaves usable in the child.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                stand_by(&watched, &mut keep, &self.tasks);
                // SAFETY: ends the child at once, without running the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            process => Ok(Child { process, lifeline }),
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            child.dismiss();
        }
    }
}

impl Child {
    fn is_alive(&self) -> bool {
        // SAFETY: asks for our own child without waiting, and takes no result. A child that ended is reaped by it.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), libc::WNOHANG) == 0 }
    }

    fn dismiss(self) {
        let _ = rustix::io::write(&self.lifeline, b".");
        self.close_and_wait();
    }

    /// Closes the lifeline, upon which a child that was not dismissed carries out its tasks, and waits for its end.
    fn close_and_wait(self) {
        drop(self.lifeline);
        // SAFETY: waits for our own child and takes no result.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// Runs the child's whole life: until trawl either reports success or is gone.
fn stand_by(watched: &OwnedFd, keep: &mut [RawFd], tasks: &[Box<dyn Undo>]) {
    // The name spares it from `pkill -9 trawl`.
    leave_terminal(c"warden", keep);
    if !tasks.iter().any(|task| task.unmounts()) {
        confine(tasks.iter().map(|task| task.needed_capabilities()).collect());
    }
    let mut byte = [0u8];
    let polled = loop {
        match rustix::io::read(watched, &mut byte) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result,
        }
    };
    if polled == Ok(0) {
        // The last task is undone first. No process is left to read a failure.
        for task in tasks.iter().rev() {
            let _ = task.undo();
        }
    }
}

/// Gives up privileges that a waiting process does not need. On failure it keeps them.
pub fn confine(capabilities: Capabilities) {
    let kept = KeptPrivileges { user: None, capabilities };
    let _ = kept.confine();
}

/// Detaches a child process from the terminal and from all descriptors but these.
pub(crate) fn leave_terminal(name: &CStr, keep: &mut [RawFd]) {
    crate::files::lock::forget_inherited();
    // SAFETY: plain calls on this process alone.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    close_all_but(keep);
}

/// Closes all descriptors but these.
pub(crate) fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    // SAFETY: plain calls on this process alone. Descriptors that are closed here are never used by it again.
    unsafe {
        let mut first = 0;
        for fd in keep.iter().map(|fd| *fd as u32) {
            if fd > first {
                libc::syscall(libc::SYS_close_range, first, fd - 1, 0);
            }
            first = first.max(fd + 1);
        }
        libc::syscall(libc::SYS_close_range, first, u32::MAX, 0);
    }
}

/// Duplicates a descriptor, for a task to hold.
pub fn hold(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    descriptor.try_clone_to_owned().map_err(|e| Error::os("cannot duplicate a descriptor", e))
}
