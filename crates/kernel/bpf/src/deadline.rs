//! A limit for the verifier's work, which otherwise takes minutes for programs with many branches: it stops when a
//! signal is pending for the loading thread. The limit is CPU time of a usual processor.

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use trawl_ebpf::op;

use crate::program::{self, LoadOptions};

thread_local! {
    static LIMIT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Interval between signals: libbpf tries again several times after a signal ended a load.
const AGAIN: Duration = Duration::from_millis(2);

/// Number of instructions of the program that measures a processor, and the time that a usual one takes to load it.
const MEASURED: usize = 4000;
const USUAL: Duration = Duration::from_micros(1000);

/// Runs `work` on this thread. Loading a program in it takes no longer than the limit, on a usual processor.
pub fn limited<T>(limit: Duration, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Duration>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(Some(limit)));
    work()
}

/// Returns the limit on this thread.
pub(super) fn limit() -> Option<Duration> {
    LIMIT.get()
}

/// Loads on a separate thread, so that signals disturb no other work; returns true if the time was up. The
/// limit is on the thread's own CPU time, so that other work on the machine does not count.
pub(super) fn within<T: Send>(limit: Duration, load: impl FnOnce() -> T + Send) -> (T, bool) {
    ignore_wakes();
    let (done, is_done) = channel();
    let (identify, identity) = channel();
    std::thread::scope(|scope| {
        let loader = scope.spawn(move || {
            allow_wakes();
            // SAFETY: the call takes no arguments and always succeeds.
            let _ = identify.send(unsafe { libc::pthread_self() });
            let loaded = load();
            // The receiver is gone if the time was up.
            let _ = done.send(());
            loaded
        });
        let thread = identity.recv();
        let mut wait = limit;
        let mut limit = limit;
        let mut is_slow_known = false;
        let mut is_late = false;
        while is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let used = thread.map_or(limit, |thread| time_of(thread).unwrap_or(limit));
            if used < limit {
                wait = limit - used;
                continue;
            }
            if !is_slow_known {
                is_slow_known = true;
                limit = limit.mul_f64(slowness());
                continue;
            }
            is_late = true;
            wait = AGAIN;
            if let Ok(thread) = thread {
                // SAFETY: the thread is joined after this loop only, so its identifier is valid.
                unsafe { libc::pthread_kill(thread, wake()) };
            }
        }
        match loader.join() {
            Ok(loaded) => (loaded, is_late),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the factor by which this processor is slower than a usual one, at least 1: an emulated one is far slower.
fn slowness() -> f64 {
    static FOUND: OnceLock<f64> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let mut instructions = vec![op::alu_imm(op::MOV, 0, 0); MEASURED];
        instructions.push(op::exit());
        let options = LoadOptions::new("trawl_measured", program::XDP);
        let measure = || {
            // SAFETY: the call takes no arguments and always succeeds.
            let own = unsafe { libc::pthread_self() };
            let before = time_of(own)?;
            options.load(&instructions).ok()?;
            Some(time_of(own)?.saturating_sub(before))
        };
        // The first load also fills caches that the others use.
        let fastest = (0..3).filter_map(|_| measure()).min();
        fastest.map_or(1.0, |time| (time.as_secs_f64() / USUAL.as_secs_f64()).max(1.0))
    })
}

/// Returns a signal that is otherwise unused in this program.
fn wake() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

extern "C" fn nothing(_: libc::c_int) {}

/// Returns the CPU time of a thread that is joined later.
fn time_of(thread: libc::pthread_t) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: the thread is not joined yet, so its identifier is valid; the clock's number has room.
    if unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time` alone, and returns an error for a clock that does not exist.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => None,
    }
}

/// Installs an empty handler for the signal.
fn ignore_wakes() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a whole structure, with a handler that touches nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(wake(), &action, std::ptr::null_mut());
        }
    });
}

/// Unblocks the signal on this thread, whatever its creator has blocked.
fn allow_wakes() {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, wake());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use trawl_sys::testing::root_or_skip;

    use super::*;

    #[test]
    fn work_in_time_is_not_disturbed() {
        assert_eq!(within(Duration::from_secs(60), || 5), (5, false));
    }

    #[test]
    fn signal_interrupts_work_that_takes_too_long() {
        let (error, is_late) = within(Duration::from_millis(5), || {
            // The thread uses time as long as no signal comes while it waits.
            // SAFETY: nothing is polled.
            while unsafe { libc::poll(std::ptr::null_mut(), 0, 1) } == 0 {
                for number in 0..100_000 {
                    std::hint::black_box(number);
                }
            }
            std::io::Error::last_os_error()
        });
        assert_eq!((error.raw_os_error(), is_late), (Some(libc::EINTR), true));
    }

    #[test]
    fn slow_processors_get_more_time() {
        if !root_or_skip() {
            return;
        }
        let slowness = slowness();
        assert!((1.0..1000.0).contains(&slowness), "{slowness}");
    }

    #[test]
    fn waiting_on_a_busy_machine_is_no_work() {
        let slept = || std::thread::sleep(Duration::from_millis(100));
        assert_eq!(within(Duration::from_millis(5), slept), ((), false));
    }

    #[test]
    fn limits_end_with_the_work() {
        limited(Duration::from_secs(1), || {
            assert_eq!(limit(), Some(Duration::from_secs(1)));
        });
        assert_eq!(limit(), None);
    }
}
