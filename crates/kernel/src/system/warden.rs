//! The warden: a child process that outlives a killed trawl for a moment, to undo what the kernel would keep: slots
//! of other people's hook maps, clsact filters, chains of captures, and a block that was cut in the middle of a write.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::bpf::{link, map, program};
use crate::memory::Mapping;
use crate::netlink::Netlink;
use crate::netlink::tc::FilterHandle;
use crate::netns::Namespace;
use crate::privilege::{Capabilities, Kept};
use crate::{Error, Result};

/// Where the program stands, if there is one, that takes over from the one that is gone.
#[derive(Debug)]
pub struct Successor {
    pub chain: OwnedFd,
    pub index: u32,
}

impl Successor {
    pub fn program(&self) -> Option<OwnedFd> {
        program_at(self.chain.as_fd(), self.index)
    }
}

fn program_at(chain: BorrowedFd<'_>, index: u32) -> Option<OwnedFd> {
    program::open_by_id(map::program_in(chain, index).ok()??).ok()
}

/// Something to undo.
#[derive(Debug)]
pub enum Task {
    /// Put a program array's slot back as it was, if it still holds our program.
    RestoreSlot {
        map: OwnedFd,
        slot: u32,
        own: u32,
        before: Option<OwnedFd>,
        successor: Successor,
    },
    /// Let the next program have our place in a chain.
    LeaveChain { own: u32, successor: Successor },
    /// Let the next program in the chain take over a link.
    HandOver {
        link: OwnedFd,
        own: OwnedFd,
        successor: Successor,
    },
    /// The same for one of many links with one program. What is held elsewhere is not held twice: the task is over
    /// when the link is let go of.
    HandOverOne {
        link: Weak<OwnedFd>,
        own: Weak<OwnedFd>,
        chain: Weak<OwnedFd>,
        index: u32,
    },
    /// Delete a clsact filter.
    RemoveFilter {
        namespace: Option<Namespace>,
        place: FilterHandle,
    },
    /// Take away a clsact qdisc that came with us, unless others use it by now.
    RemoveClsact {
        namespace: Option<Namespace>,
        interface: u32,
    },
    /// Cut a file after its last whole block.
    CutFile { file: OwnedFd, whole: WholeBytes },
    /// What those who ask for it know how to undo. It finds what it needs by itself.
    Other(Box<dyn Undo>),
}

pub trait Undo: fmt::Debug + Send {
    fn undo(&self) -> Result<()>;

    /// What stays open until it is done: a lock, for one.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// What it takes: by default what changing programs, pins and interfaces of any namespace does, which other
    /// processes lead to.
    fn takes(&self) -> Capabilities {
        Capabilities::BPF
            | Capabilities::NET_ADMIN
            | Capabilities::SYS_ADMIN
            | Capabilities::PERFMON
            | Capabilities::SYS_PTRACE
            | Capabilities::DAC_OVERRIDE
            | Capabilities::DAC_READ_SEARCH
    }
}

/// How many bytes of a file are whole blocks: told to the warden through memory that both processes see.
#[derive(Clone, Debug)]
pub struct WholeBytes(Arc<Mapping>);

impl WholeBytes {
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(Mapping::anonymous(size_of::<u64>())?)))
    }

    /// Cuts a file after these bytes, and gives back room that was reserved beyond its end.
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

impl Task {
    fn is_over(&self) -> bool {
        matches!(self, Self::HandOverOne { link, .. } if link.strong_count() == 0)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let mut all: Vec<BorrowedFd<'_>> = Vec::new();
        match self {
            Self::RestoreSlot {
                map,
                before,
                successor,
                slot: _,
                own: _,
            } => {
                all.extend([map.as_fd(), successor.chain.as_fd()]);
                all.extend(before.as_ref().map(AsFd::as_fd));
            }
            Self::LeaveChain { successor, own: _ } => all.push(successor.chain.as_fd()),
            Self::HandOver {
                link,
                own,
                successor,
            } => {
                all.extend([link.as_fd(), own.as_fd(), successor.chain.as_fd()]);
            }
            Self::HandOverOne {
                link,
                own,
                chain,
                index: _,
            } => {
                let held = [link, own, chain].into_iter().filter_map(Weak::upgrade);
                return held.map(|one| one.as_raw_fd()).collect();
            }
            Self::RemoveFilter {
                namespace,
                place: _,
            }
            | Self::RemoveClsact {
                namespace,
                interface: _,
            } => all.extend(namespace.as_ref().map(AsFd::as_fd)),
            Self::CutFile { file, whole: _ } => all.push(file.as_fd()),
            Self::Other(other) => return other.descriptors(),
        }
        all.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// The rights without which it cannot be carried out.
    fn takes(&self) -> Capabilities {
        match self {
            // Programs are found by their numbers, which takes the second.
            Self::RestoreSlot { .. }
            | Self::LeaveChain { .. }
            | Self::HandOver { .. }
            | Self::HandOverOne { .. } => Capabilities::BPF | Capabilities::SYS_ADMIN,
            Self::RemoveFilter { namespace, .. } | Self::RemoveClsact { namespace, .. } => {
                match namespace {
                    Some(_) => Capabilities::NET_ADMIN | Capabilities::SYS_ADMIN,
                    None => Capabilities::NET_ADMIN,
                }
            }
            Self::CutFile { .. } => Capabilities::empty(),
            Self::Other(other) => other.takes(),
        }
    }

    /// Nobody is there to be told of a failure, so the task does what it can.
    fn carry_out(&self) {
        let _ = self.try_out();
    }

    fn try_out(&self) -> io::Result<()> {
        match self {
            Self::RestoreSlot {
                map,
                slot,
                own,
                before,
                successor,
            } => {
                if map::program_in(map.as_fd(), *slot)? != Some(*own) {
                    return Ok(());
                }
                let next = successor.program();
                let program = next.as_ref().or(before.as_ref()).map(AsFd::as_fd);
                map::put_program(map.as_fd(), *slot, program)
            }
            Self::LeaveChain { own, successor } => {
                let next = successor.program();
                let next = next.as_ref().map(AsFd::as_fd);
                map::replace_program(successor.chain.as_fd(), *own, next)
            }
            Self::HandOver {
                link,
                own,
                successor,
            } => match successor.program() {
                Some(next) => link::replace_program(link.as_fd(), next.as_fd(), own.as_fd()),
                None => Ok(()),
            },
            Self::HandOverOne {
                link,
                own,
                chain,
                index,
            } => match (link.upgrade(), own.upgrade(), chain.upgrade()) {
                (Some(link), Some(own), Some(chain)) => match program_at(chain.as_fd(), *index) {
                    Some(next) => link::replace_program(link.as_fd(), next.as_fd(), own.as_fd()),
                    None => Ok(()),
                },
                _ => Ok(()),
            },
            Self::RemoveFilter { namespace, place } => Netlink::open(namespace.as_ref())
                .and_then(|mut netlink| netlink.del_filter(*place))
                .map_err(|e| io::Error::other(e.to_string())),
            Self::RemoveClsact {
                namespace,
                interface,
            } => Netlink::open(namespace.as_ref())
                .and_then(|mut netlink| netlink.del_unused_clsact(*interface))
                .map_err(|e| io::Error::other(e.to_string())),
            Self::Other(other) => other.undo().map_err(io::Error::other),
            Self::CutFile { file, whole } => whole.cut(file.as_fd()),
        }
    }
}

/// The tasks, and the process that stands by to carry them out.
#[derive(Debug, Default)]
pub struct Warden {
    tasks: Vec<Task>,
    child: Option<Child>,
}

#[derive(Debug)]
struct Child {
    process: libc::pid_t,
    /// Closed by our death; written to when all is well.
    lifeline: OwnedFd,
}

impl Warden {
    /// Takes on tasks. They are looked after from now on: call this before doing what they undo.
    pub fn watch(&mut self, tasks: impl IntoIterator<Item = Task>) -> Result<()> {
        self.tasks.retain(|task| !task.is_over());
        self.tasks.extend(tasks);
        let before = self.child.take();
        self.child = Some(
            self.start()
                .map_err(|e| Error::os("cannot start the process that cleans up", e))?,
        );
        if let Some(before) = before {
            before.dismiss();
        }
        Ok(())
    }

    /// Has the process that stands by undo all of it now, and waits until that is done: it may do what this one has given
    /// up the right to. Nothing is left to undo then.
    pub fn carry_out(&mut self) {
        if let Some(child) = self.child.take() {
            child.leave_to_it();
        }
        self.tasks.clear();
    }

    /// Starts another process where the one that stood by is gone: somebody killed it. Says whether that was so.
    pub fn renew(&mut self) -> Result<bool> {
        if self.child.as_ref().is_none_or(Child::is_alive) {
            return Ok(false);
        }
        self.child = None;
        self.watch([]).map(|()| true)
    }

    fn start(&self) -> io::Result<Child> {
        let (watched, lifeline) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut keep: Vec<RawFd> = self.tasks.iter().flat_map(Task::descriptors).collect();
        keep.push(watched.as_raw_fd());
        keep.extend(crate::bpffs::hold());
        // SAFETY: the child runs only the code below and never returns into the caller. trawl forks before it starts
        // threads of its own, except where it replaces a child that was killed: what the code below calls takes no lock
        // but the allocator's, which fork(3) leaves usable in the child.
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
        self.leave_to_it();
    }

    /// Closes the lifeline and waits for the child to end.
    fn leave_to_it(self) {
        drop(self.lifeline);
        // SAFETY: waits for our own child and takes no result.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// The child's whole life: until trawl either says that all is well or is gone.
fn stand_by(watched: &OwnedFd, keep: &mut [RawFd], tasks: &[Task]) {
    // The name spares it from `pkill -9 trawl`.
    leave_terminal(c"warden", keep);
    confine(tasks.iter().map(Task::takes).collect());
    let mut byte = [0u8];
    let told = loop {
        match rustix::io::read(watched, &mut byte) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result,
        }
    };
    if told == Ok(0) {
        // What was done last is undone first.
        tasks.iter().rev().for_each(Task::carry_out);
    }
}

/// Gives up what a process that only waits and undoes has no use for. Where that fails, it undoes with more rights.
pub(crate) fn confine(capabilities: Capabilities) {
    let kept = Kept {
        user: None,
        capabilities,
    };
    let _ = kept.confine();
}

/// Takes a child process away from the terminal and from all descriptors but these.
pub(crate) fn leave_terminal(name: &CStr, keep: &mut [RawFd]) {
    crate::lock::forget_inherited();
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

/// A second descriptor for the same thing, for a task to hold.
pub fn hold(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    descriptor
        .try_clone_to_owned()
        .map_err(|e| Error::os("cannot hold a descriptor twice", e))
}
