//! Other processes: their CPU, their time, and asking them to end.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::run::OTHERS_WRITE;
use crate::{Error, Result};

/// The nice value that is served first.
const FIRST: i32 = -20;

fn pid(process: u32) -> Result<Pid> {
    i32::try_from(process)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| {
            Error::failed(
                format!("cannot find process {process}"),
                "that is no process id",
            )
        })
}

/// The binary that this process runs.
pub fn own_binary() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::os("cannot find trawl's own binary", e))
}

/// Finds another program of trawl's: next to this one, or where packages put it. Root gets none that another user could
/// have put there.
pub fn companion(name: &str) -> Result<Option<PathBuf>> {
    let own = own_binary()?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    // A test program's directory is one further down.
    let found = ["", "../libexec/trawl", ".."]
        .into_iter()
        .map(|place| directory.join(place).join(name))
        .find_map(|path| path.canonicalize().ok().filter(|path| path.is_file()));
    if let Some(path) = &found
        && rustix::process::geteuid().is_root()
    {
        refuse_planted(path, &own)?;
    }
    Ok(found)
}

/// Who owns trawl's own binary is trusted, whoever else may write here is not.
fn refuse_planted(program: &Path, own: &Path) -> Result<()> {
    let what = || format!("cannot run {}", program.display());
    let about = |path: &Path| std::fs::metadata(path).map_err(|e| Error::os(what(), e));
    let owner = about(own)?.uid();
    for path in [program, program.parent().unwrap_or(Path::new("/"))] {
        let about = about(path)?;
        let why = match about.uid() {
            uid if uid != 0 && uid != owner => format!("{} belongs to user {uid}", path.display()),
            _ if about.mode() & OTHERS_WRITE != 0 => format!("others may write {}", path.display()),
            _ => continue,
        };
        return Err(Error::failed(what(), why).fix(
            "install trawl and its programs in a directory that only root may write (make install)",
        ));
    }
    Ok(())
}

/// Keeps a process on one CPU.
pub fn pin(process: u32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(Some(pid(process)?), &set).map_err(|e| {
        Error::os(
            format!("cannot keep process {process} on CPU {cpu}"),
            e.into(),
        )
    })
}

/// Keeps the calling thread on one CPU.
pub fn pin_thread(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|e| Error::os(format!("cannot keep a thread on CPU {cpu}"), e.into()))
}

/// Asks a process to end, as the interrupt key does.
pub fn interrupt(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::INT)
        .map_err(|e| Error::os(format!("cannot interrupt process {process}"), e.into()))
}

/// The processes that started this one, the nearest first.
pub fn ancestors() -> impl Iterator<Item = u32> {
    std::iter::successors(parent_of(std::process::id()), |one| parent_of(*one))
}

fn parent_of(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().filter(|parent| *parent != 0)
}

/// A variable that a process was started with; `None` too where its environment may not be read.
pub fn variable_of(process: u32, name: &str) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut all = environment.split(|byte| *byte == 0);
    all.find_map(|one| {
        let value = std::str::from_utf8(one).ok()?.strip_prefix(name)?;
        value.strip_prefix('=').map(str::to_owned)
    })
}

/// The CPU time a process has used, in user space and in the kernel.
pub fn cpu_seconds(process: u32) -> f64 {
    ticks(process, 11) + ticks(process, 12)
}

/// The CPU time of this process's children that have ended and were waited for.
pub fn children_cpu_seconds() -> f64 {
    let own = std::process::id();
    ticks(own, 13) + ticks(own, 14)
}

/// A time of a process, by its place in `/proc/PID/stat` after the name.
fn ticks(process: u32, index: usize) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name in the second field may hold anything; the fields after its bracket are numbers.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().nth(index);
    ticks
        .and_then(|text| text.parse::<f64>().ok())
        .unwrap_or(0.0)
        / rustix::param::clock_ticks_per_second() as f64
}

/// Where a program of that name may be, by PATH.
pub fn in_path(name: &str) -> Vec<std::path::PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&places);
    places.map(|place| place.join(name)).collect()
}

/// Lets the program that a command starts receive every signal, whatever this thread has blocked for itself: a blocked
/// signal stays blocked in all that is started, and a program that knows nothing of that cannot be interrupted.
pub fn with_signals(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    let unblock = || {
        // SAFETY: the set is plain memory that sigemptyset fills before it is read; both calls are safe between fork
        // and exec.
        let result = unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
        };
        if result == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: the closure only makes the two calls above, which are async-signal-safe, and allocates nothing.
    unsafe { command.pre_exec(unblock) }
}

/// Interrupts what a command starts when the thread that starts it ends, whichever way. A program that holds rights which it
/// gives up later keeps this.
pub fn ends_with_parent(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    let parent = std::process::id();
    let arm = move || {
        // SAFETY: the call takes numbers only, and a system call is safe between fork and exec.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: it takes nothing and cannot fail.
        match u32::try_from(unsafe { libc::getppid() }) == Ok(parent) {
            true => Ok(()),
            // It ended before it could be watched.
            false => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: the closure makes the two system calls above and allocates nothing.
    unsafe { command.pre_exec(arm) }
}

/// Ends a process at once.
pub fn kill(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::KILL)
        .map_err(|e| Error::os(format!("cannot kill process {process}"), e.into()))
}

/// Lets a process or thread go before others on its CPU.
pub fn prefer(process: u32) -> Result<()> {
    setpriority_process(Some(pid(process)?), FIRST)
        .map_err(|e| Error::os(format!("cannot prefer process {process}"), e.into()))
}

/// Lets the calling thread go before others on its CPU.
pub fn prefer_thread() -> Result<()> {
    setpriority_process(Some(rustix::thread::gettid()), FIRST)
        .map_err(|e| Error::os("cannot prefer a thread", e.into()))
}

/// Lets what a command starts run only where nothing else wants its CPU (SCHED_IDLE): whatever wakes up goes first.
pub fn give_way(command: &mut std::process::Command) -> &mut std::process::Command {
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
