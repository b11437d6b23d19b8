//! Other processes: their CPU, their CPU time, and signals that end them.

pub mod cgroup;
pub mod heap;
pub mod held;
pub mod session;
pub mod socket_owners;
pub mod ssh;
pub mod warden;

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open, setpriority_process, setrlimit,
};
use rustix::thread::{CpuSet, MembarrierCommand, membarrier, sched_getcpu, sched_setaffinity};

use crate::files::owner::{OTHERS_WRITE, STICKY};
use crate::{Error, Result};

/// The nice value of the highest priority.
const FIRST: i32 = -20;
/// The mode bits of files that anyone may run.
const ANY_MAY_RUN: u32 = 0o111;

fn pid(process: u32) -> Result<Pid> {
    i32::try_from(process)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| Error::failed(format!("cannot find process {process}"), "it is not a process id"))
}

/// Returns the binary that this process runs.
pub fn own_binary() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::os("cannot find trawl's own binary", e))
}

/// Returns the binary of `trawl` itself, for a helper of trawl's.
pub fn trawl_binary() -> Result<PathBuf> {
    companion("trawl")?.ok_or_else(|| {
        let why = "it is neither next to this program nor in the directory bin above it";
        Error::failed("cannot find trawl", why).fix("make build, or make install")
    })
}

/// Finds another program of trawl's: next to this one, or in the directories of packages. As root, refuses a program
/// that another user could have planted.
pub fn companion(name: &str) -> Result<Option<PathBuf>> {
    let own = own_binary()?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    // The directory of test programs is one level further down, helpers are in libexec/trawl.
    let found = ["", "../libexec/trawl", "../../bin", ".."]
        .into_iter()
        .map(|relative| directory.join(relative).join(name))
        .find_map(|path| path.canonicalize().ok().filter(|path| path.is_file()));
    if let Some(path) = &found
        && rustix::process::geteuid().is_root()
    {
        refuse_planted(path, &own)?;
    }
    Ok(found)
}

/// Refuses a program that anyone but root and the owner of trawl's own binary may write or replace. The path has no
/// links.
fn refuse_planted(program: &Path, own: &Path) -> Result<()> {
    let what = || format!("cannot run {}", program.display());
    let about = |path: &Path| std::fs::metadata(path).map_err(|e| Error::os(what(), e));
    let owner = about(own)?.uid();
    for (above, path) in program.ancestors().enumerate() {
        let about = about(path)?;
        // In a sticky directory further up, others cannot rename what root and the owner have there.
        let is_sticky = above > 1 && about.mode() & STICKY != 0;
        let why = match about.uid() {
            uid if uid != 0 && uid != owner => format!("{} belongs to user {uid}", path.display()),
            _ if about.mode() & OTHERS_WRITE != 0 && !is_sticky => {
                format!("others may write {}", path.display())
            }
            _ => continue,
        };
        return Err(Error::failed(what(), why)
            .fix("install trawl and its programs in a directory that only root may write (make install)"));
    }
    Ok(())
}

/// Keeps a process on one CPU.
pub fn pin(process: u32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(Some(pid(process)?), &set)
        .map_err(|e| Error::os(format!("cannot keep process {process} on CPU {cpu}"), e.into()))
}

/// Keeps the calling thread on one CPU.
pub fn pin_thread(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| Error::os(format!("cannot keep a thread on CPU {cpu}"), e.into()))
}

/// Keeps the calling thread on the CPU that it runs on.
pub fn stay_on_this_cpu() -> Result<()> {
    pin_thread(sched_getcpu())
}

/// Interrupts a process, like the interrupt key.
pub fn interrupt(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::INT)
        .map_err(|e| Error::os(format!("cannot interrupt process {process}"), e.into()))
}

/// Returns a descriptor that becomes readable once a child process has ended; `None` if the kernel refuses it.
pub fn end_of(child: u32) -> Option<OwnedFd> {
    pidfd_open(pid(child).ok()?, PidfdFlags::empty()).ok()
}

/// Sends a process the signal of triggers.
pub fn trigger(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::USR2)
        .map_err(|e| Error::os(format!("cannot signal process {process}"), e.into()))
}

/// Iterates over the processes that started this one, the nearest first.
pub fn ancestors() -> impl Iterator<Item = u32> {
    std::iter::successors(parent_of(std::process::id()), |one| parent_of(*one))
}

fn parent_of(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().filter(|parent| *parent != 0)
}

/// Returns a variable from a process's initial environment; `None` also if that may not be read.
pub fn variable_of(process: u32, name: &str) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut all = environment.split(|byte| *byte == 0);
    all.find_map(|one| {
        let value = std::str::from_utf8(one).ok()?.strip_prefix(name)?;
        value.strip_prefix('=').map(str::to_owned)
    })
}

/// Returns the CPU time of a process, in user space and in the kernel.
pub fn cpu_seconds(process: u32) -> f64 {
    ticks(process, 11) + ticks(process, 12)
}

/// Returns the CPU time of this process's children that have ended and were waited for.
pub fn children_cpu_seconds() -> f64 {
    let own = std::process::id();
    ticks(own, 13) + ticks(own, 14)
}

/// Returns how often the threads of a process have waited so far; each wait ended with a wake-up.
pub fn wake_ups(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let waits = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    threads.into_iter().flatten().flatten().filter_map(waits).sum()
}

/// Returns the start of a process, in clock ticks since the machine started; `None` if it does not exist.
pub fn started(process: u32) -> Option<u64> {
    stat_number(process, 19)
}

/// Converts clock ticks to nanoseconds.
pub fn nanoseconds_of(ticks: u64) -> u64 {
    ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Returns a time of a process in seconds, by its index among the numbers.
fn ticks(process: u32, index: usize) -> f64 {
    let ticks = stat_number(process, index).unwrap_or(0);
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns a number of a process, by its index in `/proc/PID/stat` after the name.
fn stat_number(process: u32, index: usize) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in the second field may contain anything; the fields after its bracket are numbers.
    let fields = stat.rsplit(')').next()?;
    fields.split_whitespace().nth(index)?.parse().ok()
}

/// Returns the possible paths of a program, by PATH.
pub fn in_path(name: &str) -> Vec<std::path::PathBuf> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&directories);
    directories.map(|directory| directory.join(name)).collect()
}

/// Returns true if a command's name, or its path, leads to a program.
pub fn is_program(command: &str) -> bool {
    let may_run = |path: &Path| {
        let about = path.metadata();
        about.is_ok_and(|about| about.is_file() && about.mode() & ANY_MAY_RUN != 0)
    };
    if command.contains('/') { may_run(Path::new(command)) } else { in_path(command).iter().any(|path| may_run(path)) }
}

/// Unblocks all signals of this process, which has just been forked: signals that a thread blocks stay blocked in its
/// children, and a program unaware of that could not be interrupted.
pub(crate) fn unblock_signals() -> std::io::Result<()> {
    change_mask(libc::SIG_SETMASK, &[])
}

fn block_trigger() -> std::io::Result<()> {
    change_mask(libc::SIG_BLOCK, &[libc::SIGUSR2])
}

/// Changes the blocked signals of a process that has just been forked.
fn change_mask(how: libc::c_int, signals: &[libc::c_int]) -> std::io::Result<()> {
    // SAFETY: the set is plain memory that sigemptyset fills before it is read; all calls are safe between fork and
    // exec.
    let result = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::sigprocmask(how, &set, std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Makes this process, which has just been forked, get a signal when the parent's starting thread ends, for any reason.
/// This persists in a program that gives up privileges later.
pub(crate) fn end_with_parent(parent: u32, signal: libc::c_int) -> std::io::Result<()> {
    // SAFETY: the call takes numbers only, and a system call is safe between fork and exec.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the call has no arguments and cannot fail.
    if u32::try_from(unsafe { libc::getppid() }) == Ok(parent) {
        Ok(())
    } else {
        // The parent ended before it could be watched.
        Err(std::io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Unblocks all signals in the program that a command starts.
pub fn with_signals(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: the function only makes calls that are async-signal-safe, and allocates nothing.
    unsafe { command.pre_exec(unblock_signals) }
}

/// Holds the signal of triggers until the program that a command starts watches for it: before that, the signal would
/// end the program.
pub fn holds_triggers(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: the function only makes calls that are async-signal-safe, and allocates nothing.
    unsafe { command.pre_exec(block_trigger) }
}

/// Interrupts the program that a command starts when the starting thread ends.
pub fn ends_with_parent(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    let parent = std::process::id();
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(move || end_with_parent(parent, libc::SIGINT)) }
}

/// Stops a process until [`resume`] is called.
pub fn stop(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::STOP).map_err(|e| Error::os(format!("cannot stop process {process}"), e.into()))
}

/// Resumes a stopped process.
pub fn resume(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::CONT)
        .map_err(|e| Error::os(format!("cannot continue process {process}"), e.into()))
}

/// Ends a process at once.
pub fn kill(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::KILL).map_err(|e| Error::os(format!("cannot kill process {process}"), e.into()))
}

/// Waits until all code that the kernel ran without blocking when this was called has ended: BPF programs, above all.
pub fn wait_for_kernel_readers() -> Result<()> {
    membarrier(MembarrierCommand::Global).map_err(|e| Error::os("cannot wait for running BPF programs", e.into()))
}

/// Gives a process or thread priority over others on its CPU.
pub fn prefer(process: u32) -> Result<()> {
    setpriority_process(Some(pid(process)?), FIRST)
        .map_err(|e| Error::os(format!("cannot raise the priority of process {process}"), e.into()))
}

/// Gives the calling thread priority over others on its CPU.
pub fn prefer_thread() -> Result<()> {
    setpriority_process(Some(rustix::thread::gettid()), FIRST)
        .map_err(|e| Error::os("cannot raise the priority of a thread", e.into()))
}

/// Lets this process have as many files and connections open at once as it may choose to: services start with 1,024.
pub fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // With the lower limit, it works for fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The right of this process's threads to call [`run_first`], whatever other rights the process gives up. It ends when
/// this is dropped.
#[derive(Debug)]
pub struct MayRunFirst(Rlimit);

impl MayRunFirst {
    /// Without the right to give it, threads run like others.
    pub fn new() -> Self {
        let before = getrlimit(Resource::Rtprio);
        let raised = |limit: Option<u64>| limit.map(|limit| limit.max(1));
        let wanted = Rlimit { current: raised(before.current), maximum: raised(before.maximum) };
        let _ = setrlimit(Resource::Rtprio, wanted);
        Self(before)
    }
}

impl Default for MayRunFirst {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MayRunFirst {
    fn drop(&mut self) {
        // A limit can always be lowered.
        let _ = setrlimit(Resource::Rtprio, self.0);
    }
}

/// Lets this thread run before all others on its CPU (SCHED_FIFO), if it has the right to. It must sleep most of the time.
pub fn run_first() {
    let least = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are on this stack. Without the right, the thread runs like others.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const least) };
}

/// Runs the program that a command starts only while its CPU is idle (SCHED_IDLE): any other process goes first.
pub fn lower_priority(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    let idle = || {
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameters are on this stack, and a system call is safe between fork and exec.
        match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(idle) }
}
