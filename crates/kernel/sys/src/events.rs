//! Waiting: signals as a descriptor to poll, and a sleep that descriptors can cut short.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::{Error, Result};

/// Signals that end a capture, or request its statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
    Hangup,
    Report,
    /// An event that a capture waits for.
    Trigger,
}

impl Signal {
    pub fn ends(self) -> bool {
        !matches!(self, Self::Report | Self::Trigger)
    }
}

const WATCHED: [(i32, Signal); 4] = [
    (libc::SIGINT, Signal::Interrupt),
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGHUP, Signal::Hangup),
    (libc::SIGUSR1, Signal::Report),
];
const TRIGGER: (i32, Signal) = (libc::SIGUSR2, Signal::Trigger);

/// A descriptor from which watched signals are read. Their default action is blocked, for this thread and all threads
/// that it starts later.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

impl Signals {
    pub fn watch() -> Result<Self> {
        Self::watch_all(&WATCHED)
    }

    /// Watches the signal of triggers too, which otherwise ends the process without a summary.
    pub fn watch_with_trigger() -> Result<Self> {
        Self::watch_all(&[&WATCHED[..], &[TRIGGER]].concat())
    }

    fn watch_all(watched: &[(i32, Signal)]) -> Result<Self> {
        let fail = |e| Error::os("cannot watch for signals", e);
        // SAFETY: a plain call. A write beyond the limit of file sizes then fails, instead of ending the process.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        // SAFETY: the set is plain memory that sigemptyset fills before it is read.
        let descriptor = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for &(number, _) in watched {
                // `nohup` deliberately ignores the hang-up before it starts a program. Shells ignore interrupts for
                // jobs in the background, but `kill -INT` must end those too, as it ends tcpdump.
                if number != libc::SIGHUP || !is_ignored(number) {
                    libc::sigaddset(&mut set, number);
                }
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(fail(io::Error::last_os_error()));
            }
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if descriptor < 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        // SAFETY: signalfd just gave us this descriptor.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor })
    }

    /// Returns the next signal that arrived, without waiting.
    pub fn next(&self) -> Option<Signal> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.descriptor, &mut info).ok()?;
        let number = i32::try_from(u32::from_ne_bytes(*info.get(..read)?.first_chunk()?)).ok()?;
        WATCHED.iter().chain([&TRIGGER]).find(|(n, _)| *n == number).map(|(_, signal)| *signal)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Returns true if a watched signal has arrived and was not read yet.
pub fn signal_is_pending() -> bool {
    // SAFETY: sigpending fills the set, which is plain memory, before it is read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut set) == 0
            && WATCHED.iter().any(|(number, signal)| signal.ends() && libc::sigismember(&set, *number) == 1)
    }
}

/// Wakes a thread that waits; clones wake the same one.
#[derive(Clone, Debug)]
pub struct Wake(Arc<OwnedFd>);

impl Wake {
    pub fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor =
            eventfd(0, flags).map_err(|e| Error::os("cannot make an event that wakes a thread", e.into()))?;
        Ok(Self(Arc::new(descriptor)))
    }

    /// Wakes the waiting thread, now and in all later waits.
    pub fn ring(&self) {
        // The write fails only if the counter is full after many wake-ups, and the thread is awake then.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Clears all wake-ups until now, and returns whether there were any.
    pub fn clear(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: with a null new action the call only reads the present one into `old`.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Sleeps until the time is over or one of the descriptors is readable.
pub fn wait(descriptors: &[BorrowedFd<'_>], at_most: Duration) -> Result<()> {
    wait_also(descriptors, None, at_most)
}

/// Returns true if the descriptor is readable now, or cannot be polled.
pub fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    !matches!(poll(&mut set, Some(&Timespec::default())), Ok(0))
}

/// Waits like [`wait`], but also ends once `outlet` is writable.
pub fn wait_also(descriptors: &[BorrowedFd<'_>], outlet: Option<BorrowedFd<'_>>, at_most: Duration) -> Result<()> {
    let written = outlet.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT));
    wait_for(descriptors, written, at_most)
}

/// Waits like [`wait`], but also ends once the connection has failed, whatever can be read from it.
pub fn wait_or_failure(descriptors: &[BorrowedFd<'_>], connection: BorrowedFd<'_>, at_most: Duration) -> Result<()> {
    wait_for(descriptors, [PollFd::from_borrowed_fd(connection, PollFlags::empty())], at_most)
}

fn wait_for<'a>(
    read: &[BorrowedFd<'a>],
    others: impl IntoIterator<Item = PollFd<'a>>,
    at_most: Duration,
) -> Result<()> {
    let read = read.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut set: Vec<PollFd<'_>> = read.chain(others).collect();
    let timeout = Timespec::try_from(at_most).ok();
    match poll(&mut set, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(Error::os("cannot wait for packets", e.into())),
    }
}

/// Waits for the duration. Returns false if the descriptor becomes readable meanwhile, or its other end was closed.
pub fn is_quiet(descriptor: BorrowedFd<'_>, duration: Duration) -> bool {
    let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let timeout = Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) as _ };
    matches!(poll(&mut set, Some(&timeout)), Ok(0) | Err(rustix::io::Errno::INTR))
}

/// Lets sleeps of this thread end on time instead of up to 50 microseconds late.
pub fn precise_sleeps() {
    // SAFETY: the call takes plain numbers and affects this thread's timers only. A refusal does no harm.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000usize) };
}

/// Waits until every BPF program that was running at the time of the call has finished.
pub fn wait_for_running_programs() {
    // SAFETY: a plain system call. If it is not available, a pause far longer than any program runs replaces it.
    let done = unsafe {
        libc::syscall(libc::SYS_membarrier, 1 /* MEMBARRIER_CMD_GLOBAL */, 0, 0)
    };
    if done != 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of CPUs that may run programs: one more than the highest that is online.
pub fn cpu_count() -> usize {
    pretended_cpus().unwrap_or_else(|| one_past_the_last("online"))
}

/// Reads TRAWL_CPUS, which overrides the number of CPUs for tests.
fn pretended_cpus() -> Option<usize> {
    std::env::var("TRAWL_CPUS").ok()?.parse().ok()
}

/// Returns one more than the highest number that a CPU of this machine can have.
pub fn possible_cpus() -> usize {
    one_past_the_last("possible")
}

/// Returns one more than the highest number in a list of CPUs in sysfs.
pub(crate) fn one_past_the_last(list: &str) -> usize {
    let highest = std::fs::read_to_string(format!("/sys/devices/system/cpu/{list}"))
        .ok()
        .and_then(|text| text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok()));
    match highest {
        Some(last) => last + 1,
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    }
}
