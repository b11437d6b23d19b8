//! Network namespaces: opened by name, path or process, entered on a thread of their own, made and
//! deleted the way iproute2 does it.
//!
//! `ip netns exec` mounts a fresh /sys and so hides the bpffs. Nothing here touches mounts of the
//! calling process: a namespace is entered by its file descriptor, which changes the network and
//! nothing else.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::fs::fstatfs;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::{Error, Result};
use crate::lock::{Lock, Rank};

mod look;
mod mark;
mod named;

pub use look::Look;
pub use mark::{Mark, cookie};
use named::check_name;
pub use named::{create, delete, identity_of, list};

/// Where iproute2 keeps named namespaces; /var/run is a link to /run wherever systemd runs.
pub const NAMED: &str = "/run/netns";
/// Stands for the namespace of the caller where a namespace is given as text.
pub const CURRENT: &str = "/proc/self/ns/net";
const NAMED_OLD: &str = "/var/run/netns";
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// A network namespace held open: it stays usable when its name is deleted.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
    name: Option<String>,
    label: String,
    identity: (u64, u64),
    /// Stays the same, and takes entering the namespace to be asked for.
    cookie: Arc<OnceLock<u64>>,
}

impl Namespace {
    /// A namespace as a person writes it: a name, a path, or a process id.
    pub fn open(text: &str) -> Result<Self> {
        if text == CURRENT {
            let here = Self::current()?;
            let mut named = list()
                .into_iter()
                .filter_map(|name| Self::by_name(&name).ok());
            let found = named.find(|one| one.identity == here.identity);
            return Ok(found.unwrap_or(here));
        }
        if text.contains('/') {
            return Self::from_path(Path::new(text));
        }
        if let Some(pid) = text
            .strip_prefix("pid:")
            .and_then(|pid| pid.parse::<u32>().ok())
        {
            return Err(Error::usage(
                format!("namespace {text}"),
                "the namespace of a process is named by the process id alone",
            )
            .fix(format!("write {pid}")));
        }
        let named = Self::by_name(text);
        match (named, text.parse::<u32>()) {
            // A name wins over a process id that happens to be spelled the same.
            (Err(_), Ok(pid)) => Self::of_pid(pid),
            (result, _) => result,
        }
    }

    /// One of those that `ip netns list` shows.
    pub fn by_name(name: &str) -> Result<Self> {
        check_name(name)?;
        for directory in [NAMED, NAMED_OLD] {
            let path = Path::new(directory).join(name);
            if path.exists() {
                let mut found = Self::from_path(&path)?;
                found.name = Some(name.to_owned());
                found.label = name.to_owned();
                return Ok(found);
            }
        }
        let known = list();
        let fix = if known.is_empty() {
            format!("make it with: ip netns add {name}")
        } else {
            format!(
                "those that exist: {}; make it with: ip netns add {name}",
                known.join(", ")
            )
        };
        Err(Error::failed(format!("namespace {name}"), "it does not exist").fix(fix))
    }

    /// Any file that stands for a network namespace, such as /proc/PID/ns/net.
    pub fn from_path(path: &Path) -> Result<Self> {
        let what = || cannot_open(path);
        let file = File::open(path).map_err(|e| Error::os(what(), e))?;
        let kind = fstatfs(&file).map_err(|e| Error::os(what(), e.into()))?;
        if u64::try_from(kind.f_type).ok() != Some(NSFS_MAGIC) {
            let error = Error::failed(what(), "it is not a namespace");
            // Only there a file stands for nothing else.
            let is_left = [NAMED, NAMED_OLD]
                .map(Path::new)
                .contains(&path.parent().unwrap_or(path));
            return Err(match is_left {
                true => error.fix(format!(
                    "if it was left behind by a crash: rm {}",
                    path.display()
                )),
                false => error,
            });
        }
        // The kernel's own name of one begins with its kind.
        let named = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let named = named.unwrap_or_default().display().to_string();
        if named.contains(":[") && !named.starts_with("net:[") {
            return Err(Error::failed(
                what(),
                "it is a namespace, but not one of networks",
            ));
        }
        Self::held(file, path)
    }

    /// As [`Namespace::from_path`], where /proc says that it is one.
    fn in_proc(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::os(cannot_open(path), e))?;
        Self::held(file, path)
    }

    fn held(file: File, path: &Path) -> Result<Self> {
        let meta = file.metadata();
        let meta = meta.map_err(|e| Error::os(cannot_open(path), e))?;
        Ok(Self {
            file: Arc::new(file),
            name: None,
            label: path.display().to_string(),
            identity: (meta.dev(), meta.ino()),
            cookie: Arc::default(),
        })
    }

    /// The namespace a process lives in.
    pub fn of_pid(pid: u32) -> Result<Self> {
        Self::in_proc(&PathBuf::from(format!("/proc/{pid}/ns/net"))).map_err(|error| {
            if Path::new(&format!("/proc/{pid}")).exists() {
                return error;
            }
            Error::failed(
                format!("namespace {pid}"),
                "there is neither a namespace of that name nor a process of that id",
            )
            .fix("ip netns list shows the names")
        })
    }

    /// The one that the machine started in, where process 1 or the kernel's own threads may be asked for it.
    pub fn first() -> Option<Self> {
        let first = Self::of_pid(1).ok();
        first.or_else(|| in_first_process_namespace().then(|| Self::of_pid(2).ok())?)
    }

    /// The one this thread is in.
    pub fn current() -> Result<Self> {
        let mut here = Self::in_proc(Path::new("/proc/thread-self/ns/net"))?;
        here.label = "the current namespace".to_owned();
        Ok(here)
    }

    /// Its name under /run/netns, when it was opened by it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether its name stands for it no more: it was deleted, and lives on as long as somebody holds it.
    pub fn has_lost_its_name(&self) -> bool {
        let now = self.name.as_deref().map(identity_of);
        now.is_some_and(|identity| identity != Some(self.identity))
    }

    /// How to call it in a message.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Device and inode: equal for two handles of one namespace.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// `ip netns exec NAME ` for a command shown to a person, empty where no name is known.
    pub fn exec_prefix(&self) -> String {
        match &self.name {
            Some(name) => format!("ip netns exec {name} "),
            None if self.label.starts_with('/') => format!("nsenter --net={} ", self.label),
            None => String::new(),
        }
    }
}

/// [`Namespace::exec_prefix`], and nothing for the one that the command is in.
pub fn exec_prefix(namespace: Option<&Namespace>) -> String {
    namespace.map_or_else(String::new, Namespace::exec_prefix)
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for Namespace {}

/// Runs `work` inside the namespace and hands back what it returns.
///
/// It runs on a thread that entered the namespace and ends with the work, so no thread can be left
/// behind in the wrong place. Sockets opened there stay in the namespace for their whole life.
pub fn run_in<R, F>(namespace: &Namespace, work: F) -> Result<R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    let enter = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| enter_error(namespace, e))?;
        Ok(work())
    };
    on_a_thread(enter)
}

/// As [`run_in`], but `None` means: stay here, on this thread.
pub fn run_maybe_in<R, F>(namespace: Option<&Namespace>, work: F) -> Result<R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    match namespace {
        Some(namespace) => run_in(namespace, work),
        None => Ok(work()),
    }
}

/// Runs `work` in a new namespace that nobody can see and that ends with it; it has a loopback interface
/// and nothing else.
pub fn run_in_scratch<R: Send>(work: impl FnOnce() -> R + Send) -> std::io::Result<R> {
    on_a_thread(|| {
        // SAFETY: only the network namespace is left, no file descriptor table or memory is unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        Ok(work())
    })
}

/// Namespace and name of an interface as people write it: `NAMESPACE:NAME`, or `NAME` in the default one.
/// Alias interfaces have a colon too (eth0:1), but a namespace cannot be told from them without looking.
pub fn split_place<'t>(text: &'t str, default: Option<&'t str>) -> (Option<&'t str>, &'t str) {
    match text.split_once(':') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (default, text),
    }
}

/// Where the kernel's own threads are seen, all processes are.
fn in_first_process_namespace() -> bool {
    fs::read("/proc/2/comm").is_ok_and(|name| name == b"kthreadd\n")
}

fn cannot_open(path: &Path) -> String {
    format!("cannot open the namespace {}", path.display())
}

fn enter_error(namespace: &Namespace, errno: rustix::io::Errno) -> Error {
    let error = Error::os(
        format!("cannot enter the namespace {}", namespace.label),
        errno.into(),
    );
    if errno == rustix::io::Errno::PERM {
        return error.fix("this requires root (CAP_SYS_ADMIN)");
    }
    error
}

/// Keeps other trawls from changing what is attached in a namespace, until it is dropped.
pub fn lock(namespace: Option<&Namespace>) -> Result<Lock> {
    let mark = Mark::of(namespace)?;
    Lock::take(Rank::Captures, &format!("captures-{mark}"))
}

fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panicked) => panic::resume_unwind(panicked),
    })
}

#[cfg(test)]
mod tests {
    use rustix::mount::{UnmountFlags, mount_bind, unmount};

    use super::*;
    use crate::testing::{ScratchNamespace, root_or_skip};

    #[test]
    fn a_missing_name_says_how_to_make_it() {
        let error = Namespace::open("trawl-no-such-namespace")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("namespace trawl-no-such-namespace: it does not exist"),
            "{error}"
        );
        assert!(
            error.contains("ip netns add trawl-no-such-namespace"),
            "{error}"
        );
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in ["", ".", "..", "a/b"] {
            assert!(create(name).is_err(), "{name:?}");
            assert!(delete(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn an_ordinary_file_is_not_a_namespace() {
        let error = Namespace::from_path(Path::new("/etc/passwd"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("it is not a namespace"), "{error}");
        assert!(!error.contains("rm "), "{error}");
        let error = Namespace::open("/proc/self/ns/mnt")
            .unwrap_err()
            .to_string();
        assert!(error.contains("not one of networks"), "{error}");
        assert!(Namespace::open("/proc/self/ns/net").is_ok());
    }

    #[test]
    fn work_runs_inside_and_the_caller_stays_outside() {
        if !root_or_skip() {
            return;
        }
        let scratch = ScratchNamespace::create();
        let before = Namespace::current().unwrap();
        let inside = run_in(&scratch.namespace, || Namespace::current().unwrap()).unwrap();
        assert_eq!(inside, scratch.namespace);
        assert_ne!(inside, before);
        assert_eq!(Namespace::current().unwrap(), before);
        assert!(list().contains(&scratch.name));
        let there = cookie(Some(&scratch.namespace)).unwrap();
        assert_ne!(there, cookie(None).unwrap());
        assert_eq!(
            there,
            run_in(&scratch.namespace, || cookie(None))
                .unwrap()
                .unwrap()
        );
        for expected in [&scratch.namespace, &before] {
            let mut found = Vec::new();
            Look::default().find(|one| {
                found.push(one.clone());
                false
            });
            assert_eq!(found.iter().filter(|one| *one == expected).count(), 1);
        }
        assert_eq!(Namespace::of_pid(std::process::id()).unwrap(), before);
    }

    /// As containers' runtimes keep theirs.
    #[test]
    fn one_that_only_a_mount_elsewhere_keeps_is_found() {
        if !root_or_skip() {
            return;
        }
        let scratch = ScratchNamespace::create();
        let file = std::env::temp_dir().join(format!("trawl netns {}", std::process::id()));
        fs::write(&file, "").unwrap();
        mount_bind(Path::new(NAMED).join(&scratch.name), &file).unwrap();
        delete(&scratch.name).unwrap();
        let is_found = || {
            Look::default()
                .find(|one| *one == scratch.namespace)
                .is_some()
        };
        let was_found = is_found();
        let there = Mark::of(Some(&scratch.namespace)).unwrap();
        assert!(!there.is_gone(&mut Look::default()));
        unmount(&file, UnmountFlags::DETACH).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(was_found);
        assert!(!is_found());
        assert!(there.is_gone(&mut Look::default()));
    }

    #[test]
    fn a_name_is_made_once_and_gone_after_delete() {
        if !root_or_skip() {
            return;
        }
        let scratch = ScratchNamespace::create();
        let error = create(&scratch.name).unwrap_err().to_string();
        assert!(error.contains("ip netns del"), "{error}");
        let name = scratch.name.clone();
        drop(scratch);
        assert!(Namespace::by_name(&name).is_err());
        assert!(delete(&name).is_err());
    }
}
