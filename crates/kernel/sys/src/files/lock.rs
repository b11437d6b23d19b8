//! Locks between trawl's commands, on files that only root can open, and the one order in which they are taken.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::events::signal_is_pending;
use crate::{Error, Result, files::run};

/// The object of a lock, in the order of locking: a thread that holds one waits only for later ones. All commands keep
/// to this order, so no two wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The chain slots of captures at the programs of a namespace.
    Captures,
    /// The ports of a namespace's router.
    Router,
    /// The rules of a namespace's guard.
    Guard,
    /// A program's needs on interfaces other than its own: one command at a time prepares them.
    Readiness,
    /// The programs of an interface, and their pins. No thread holds several.
    Interface,
    /// libxdp's dispatchers, which libxdp's tools lock too.
    Dispatchers,
    /// The features of drivers.
    Features,
    /// The names of network namespaces, which iproute2 locks too.
    Names,
}

/// Time after which the holder of the lock is reported.
const SILENCE: Duration = Duration::from_secs(2);
/// Pause between attempts: short, so that a waiting command gets its turn among frequent ones.
const PAUSE: Duration = Duration::from_millis(1);
/// Pause once the holder has been reported.
const LONG_PAUSE: Duration = Duration::from_millis(20);

thread_local! {
    /// Ranks that this thread holds. Locks may be dropped in any order.
    static HELD: RefCell<Vec<Weak<Rank>>> = const { RefCell::new(Vec::new()) };
}

/// A lock that is held until it is dropped or, if its process is killed, until the last process that inherited its
/// descriptor ends.
#[derive(Debug)]
pub struct Lock {
    /// `None` if the user may create no files under /run, and so coordinates with no other command.
    file: Option<File>,
    /// File that is removed with the lock, if it is trawl's own.
    path: Option<PathBuf>,
    _rank: Arc<Rank>,
}

impl Lock {
    /// Waits for the lock of this name, which a message about a long wait shows.
    pub fn acquire(rank: Rank, name: &str) -> Result<Self> {
        assert_order(rank);
        let Some(path) = path_of(name)? else {
            return Ok(Self::new(rank, None, None));
        };
        loop {
            let file = open(&path)?;
            wait_for(&file, &path)?;
            if is_at(&file, &path) {
                return Ok(Self::new(rank, Some(file), Some(path)));
            }
        }
    }

    /// Takes the lock of this name if it is free.
    pub fn try_take(rank: Rank, name: &str) -> Option<Self> {
        let Some(path) = path_of(name).ok()? else {
            return Some(Self::new(rank, None, None));
        };
        let file = open(&path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        is_at(&file, &path).then(|| Self::new(rank, Some(file), Some(path)))
    }

    /// Waits for a lock that other tools use too, on their own file or directory, which stays.
    pub fn shared_with_others(rank: Rank, path: &Path) -> Result<Self> {
        assert_order(rank);
        let file = File::open(path).map_err(|e| cannot_lock(path, e))?;
        wait_for(&file, path)?;
        Ok(Self::new(rank, Some(file), None))
    }

    /// Waits for the lock of a directory that exists only while a command needs it; `make` makes it if it is missing.
    /// All processes that see the directory see the lock, whatever their /run is.
    pub fn of_directory(rank: Rank, path: &Path, make: impl Fn() -> Result<()>) -> Result<Self> {
        assert_order(rank);
        loop {
            make()?;
            let file = match File::open(path) {
                Ok(file) => file,
                // The command that held the lock removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(cannot_lock(path, error)),
            };
            wait_for(&file, path)?;
            if is_at(&file, path) {
                return Ok(Self::new(rank, Some(file), None));
            }
        }
    }

    /// Waits for the lock of a directory; `None` if it does not exist, or was removed meanwhile.
    pub fn of_existing_directory(rank: Rank, path: &Path) -> Result<Option<Self>> {
        assert_order(rank);
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot_lock(path, error)),
        };
        wait_for(&file, path)?;
        Ok(is_at(&file, path).then(|| Self::new(rank, Some(file), None)))
    }

    /// Takes the lock of a directory if it exists and is free.
    pub fn try_directory(rank: Rank, path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        is_at(&file, path).then(|| Self::new(rank, Some(file), None))
    }

    fn new(rank: Rank, mut file: Option<File>, path: Option<PathBuf>) -> Self {
        if let (Some(file), Some(_)) = (&mut file, &path) {
            // The process id is for people who read the file; the lock does not depend on it.
            let _ = file.set_len(0);
            let _ = writeln!(file, "{}", std::process::id());
        }
        let rank = Arc::new(rank);
        HELD.with_borrow_mut(|all| {
            all.retain(|one| one.strong_count() > 0);
            all.push(Arc::downgrade(&rank));
        });
        Self { file, path, _rank: rank }
    }

    /// Returns the descriptor that a process must keep open to hold the lock.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        match (&self.path, &self.file) {
            // The file is removed while the lock is held: waiting commands then notice that it has changed.
            (Some(path), _) => {
                let _ = fs::remove_file(path);
            }
            // A child process may have inherited the descriptor.
            (None, Some(file)) => {
                let _ = flock(file, FlockOperation::Unlock);
            }
            (None, None) => {}
        }
    }
}

/// Forgets the parent's locks in a child process.
pub(crate) fn forget_inherited() {
    HELD.with_borrow_mut(Vec::clear);
}

fn assert_order(rank: Rank) {
    let held: Vec<Rank> = HELD.with_borrow(|all| {
        let alive = all.iter().filter_map(Weak::upgrade);
        alive.map(|one| *one).collect()
    });
    debug_assert!(held.iter().all(|one| *one < rank), "the order of locks: {rank:?} is taken while {held:?} are held");
}

fn path_of(name: &str) -> Result<Option<PathBuf>> {
    Ok(run::directory("lock")?.map(|directory| directory.join(name)))
}

fn open(path: &Path) -> Result<File> {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .map_err(|e| cannot_lock(path, e))
}

fn cannot_lock(path: &Path, error: io::Error) -> Error {
    let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
    let error = Error::os(format!("cannot lock {}", path.display()), error);
    if is_refused { error.fix("this requires root") } else { error }
}

/// Waits until the lock of an opened file is free; reports its holder after a while, and ends on a signal.
fn wait_for(file: &File, path: &Path) -> Result<()> {
    let began = Instant::now();
    let mut is_reported = false;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(cannot_lock(path, errno.into())),
        }
        // Commands that read their signals from a descriptor block them; in others a signal ends the process.
        if signal_is_pending() {
            return Err(Error::failed(
                format!("cannot lock {}", path.display()),
                format!("interrupted while {}", holder(file)),
            ));
        }
        if !is_reported && began.elapsed() >= SILENCE {
            is_reported = true;
            let _ = writeln!(io::stderr().lock(), "trawl: waiting for the lock {}: {}", path.display(), holder(file));
        }
        std::thread::sleep(if is_reported { LONG_PAUSE } else { PAUSE });
    }
}

/// Describes the process that holds the lock.
fn holder(file: &File) -> String {
    let found = file.metadata().ok().and_then(|about| {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        holder_in(&locks, about.dev(), about.ino())
    });
    let Some(process) = found else {
        return "another process holds it".to_owned();
    };
    let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let arguments: Vec<String> = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).escape_debug().to_string())
        .collect();
    if arguments.is_empty() {
        // The process has ended, and a child of it still holds the lock.
        format!("process {process}, or a child of it, holds it")
    } else {
        format!("process {process} ({}) holds it", arguments.join(" "))
    }
}

/// Finds the process that holds a lock of this file, not one that waits for it, in lines such as
/// `1: FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF`.
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, file_id, ..] = fields.as_slice() else {
            return None;
        };
        let mut parts = file_id.split(':');
        let major = u64::from_str_radix(parts.next()?, 16).ok()?;
        let minor = u64::from_str_radix(parts.next()?, 16).ok()?;
        let is_same_file = (major, minor) == (u64::from(libc::major(device)), u64::from(libc::minor(device)))
            && parts.next()?.parse() == Ok(inode);
        is_same_file.then(|| process.parse().ok()).flatten()
    })
}

/// Returns true if the opened file is still the file at the path. The holder of the lock removes it, and another
/// command may have created a new one.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |about: fs::Metadata| (about.dev(), about.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(opened), Ok(there)) => identity(opened) == identity(there),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::testing::root_or_skip;

    #[test]
    fn one_at_a_time_and_nothing_stays() {
        if !root_or_skip() {
            return;
        }
        let name = format!("test-{}", std::process::id());
        let path = path_of(&name).unwrap().expect("root has one");
        let held = Lock::acquire(Rank::Guard, &name).unwrap();
        assert!(Lock::try_take(Rank::Guard, &name).is_none());
        let text = holder(held.file.as_ref().unwrap());
        assert!(text.starts_with(&format!("process {} (", std::process::id())), "{text}");
        drop(held);
        assert!(!path.exists());
        assert!(Lock::try_take(Rank::Guard, &name).is_some());
    }

    #[test]
    fn directory_is_locked_again_after_its_removal() {
        let path = std::env::temp_dir().join(format!("trawl-lock-{}", std::process::id()));
        let make = || match fs::create_dir(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => panic!("{e}"),
            _ => Ok(()),
        };
        let held = Lock::of_directory(Rank::Guard, &path, make).unwrap();
        assert!(Lock::try_directory(Rank::Guard, &path).is_none());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| Lock::of_directory(Rank::Guard, &path, make).unwrap());
            while !is_awaited(&path) {
                thread::yield_now();
            }
            fs::remove_dir(&path).unwrap();
            drop(held);
            let again = waiting.join().unwrap();
            assert!(is_at(again.file.as_ref().unwrap(), &path));
        });
        fs::remove_dir(&path).unwrap();
        assert!(Lock::of_existing_directory(Rank::Guard, &path).unwrap().is_none());
    }

    /// Returns true if a thread has opened the directory a second time.
    fn is_awaited(path: &Path) -> bool {
        let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.filter(|target| target == path).count() > 1
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the order of locks")]
    fn the_order_is_asserted() {
        let _late = Lock::new(Rank::Features, None, None);
        let _ = Lock::acquire(Rank::Guard, "never");
    }

    #[test]
    fn the_holder_is_found_among_waiting_processes() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:1a:9 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 42 00:1a:9 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 43 00:1a:9 0 EOF\n";
        assert_eq!(holder_in(locks, libc::makedev(0, 0x1a), 9), Some(42));
        assert_eq!(holder_in(locks, libc::makedev(0, 0x1b), 9), None);
    }
}
