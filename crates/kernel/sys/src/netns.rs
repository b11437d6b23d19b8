//! Network namespaces: opened by name, path or process, entered on a thread of their own, created and deleted like
//! iproute2's.
//!
//! `ip netns exec` mounts a fresh /sys and so hides the bpffs. Nothing here touches mounts of the calling process: a
//! namespace is entered by its file descriptor, which changes the network only.

use std::array;
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::vec;

use rustix::fs::{AtFlags, fstatfs, statat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
    mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::lock::{Lock, Rank};
use crate::words::{path_word, word};
use crate::{files::mounts, netlink::socket_option};

/// iproute2's directory of named namespaces; /var/run is a link to /run on systems with systemd.
const NAMED: &str = "/run/netns";
/// Path that a person writes for the namespace of the command itself.
pub const CURRENT: &str = "/proc/self/ns/net";
const NAMED_OLD: &str = "/var/run/netns";
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// A network namespace held open: it stays usable after its name is deleted.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
    name: Option<String>,
    label: String,
    identity: (u64, u64),
    /// Never changes, and can be read only inside the namespace.
    cookie: Arc<OnceLock<u64>>,
}

impl Namespace {
    /// Opens a namespace as a person writes it: a name, a path, or a process id.
    pub fn open(text: &str) -> Result<Self> {
        if text == CURRENT {
            let here = Self::current()?;
            let mut named = list().into_iter().filter_map(|name| Self::by_name(&name).ok());
            let found = named.find(|one| one.identity == here.identity);
            return Ok(found.unwrap_or(here));
        }
        if text.contains('/') {
            return Self::from_path(Path::new(text));
        }
        if let Some(pid) = text.strip_prefix("pid:").and_then(|pid| pid.parse::<u32>().ok()) {
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

    /// Opens a namespace that `ip netns list` shows.
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
            format!("existing namespaces: {}; make it with: ip netns add {name}", known.join(", "))
        };
        Err(Error::failed(format!("namespace {name}"), "it does not exist").fix(fix))
    }

    /// Opens any file that stands for a network namespace, such as /proc/PID/ns/net.
    pub fn from_path(path: &Path) -> Result<Self> {
        let what = || cannot_open(path);
        let file = File::open(path).map_err(|e| Error::os(what(), e))?;
        let kind = fstatfs(&file).map_err(|e| Error::os(what(), e.into()))?;
        if u64::try_from(kind.f_type).ok() != Some(NSFS_MAGIC) {
            let error = Error::failed(what(), "it is not a namespace");
            // In these directories, a file that is not a namespace has no other use.
            let is_left = [NAMED, NAMED_OLD].map(Path::new).contains(&path.parent().unwrap_or(path));
            return Err(if is_left {
                error.fix(format!("if it was left behind by a crash: rm {}", path_word(path)))
            } else {
                error
            });
        }
        // The kernel's own name of a namespace begins with its kind.
        let named = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let named = named.unwrap_or_default().display().to_string();
        if named.contains(":[") && !named.starts_with("net:[") {
            return Err(Error::failed(what(), "it is a namespace, but not one of networks"));
        }
        Self::held(file, path)
    }

    /// Opens a path like [`Namespace::from_path`], if /proc says that it is a namespace.
    fn in_proc(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::os(cannot_open(path), e))?;
        Self::held(file, path)
    }

    fn held(file: File, path: &Path) -> Result<Self> {
        let meta = file.metadata().map_err(|e| Error::os(cannot_open(path), e))?;
        Ok(Self {
            file: Arc::new(file),
            name: None,
            label: path.display().to_string(),
            identity: (meta.dev(), meta.ino()),
            cookie: Arc::default(),
        })
    }

    /// Opens the namespace of a process.
    pub fn of_pid(pid: u32) -> Result<Self> {
        Self::in_proc(&PathBuf::from(format!("/proc/{pid}/ns/net"))).map_err(|error| {
            if Path::new(&format!("/proc/{pid}")).exists() {
                return error;
            }
            Error::failed(format!("namespace {pid}"), "no namespace has that name, and no process that id")
                .fix("ip netns list shows the names")
        })
    }

    /// Opens the machine's first namespace, if process 1 or the kernel's own threads may be inspected.
    pub fn first() -> Option<Self> {
        let first = Self::of_pid(1).ok();
        first.or_else(|| in_first_process_namespace().then(|| Self::of_pid(2).ok())?)
    }

    /// Opens the namespace of this thread.
    pub fn current() -> Result<Self> {
        let mut here = Self::in_proc(Path::new("/proc/thread-self/ns/net"))?;
        here.label = "the current namespace".to_owned();
        Ok(here)
    }

    /// Returns its name under /run/netns, if it was opened by name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns true if its name no longer stands for it: the name was deleted, and an open descriptor keeps the
    /// namespace.
    pub fn has_lost_its_name(&self) -> bool {
        let now = self.name.as_deref().map(identity_of);
        now.is_some_and(|identity| identity != Some(self.identity))
    }

    /// Returns its name for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns device and inode: equal for two handles of one namespace.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Returns `ip netns exec NAME ` for a command shown to a person, empty if no name is known.
    pub fn exec_prefix(&self) -> String {
        match &self.name {
            Some(name) => format!("ip netns exec {} ", word(name)),
            None if self.label.starts_with('/') => format!("nsenter --net={} ", word(&self.label)),
            None => String::new(),
        }
    }
}

/// Returns [`Namespace::exec_prefix`], and nothing for the namespace of this command.
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

/// Runs `work` inside the namespace and returns its result. In another namespace than this thread's, the work runs on a
/// new thread that enters the namespace and ends with the work, so no thread can be left behind in the wrong namespace.
/// Sockets opened in it stay in the namespace for their whole life.
pub fn run_in<R, F>(namespace: &Namespace, work: F) -> Result<R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    if is_here(namespace) {
        return Ok(work());
    }
    let enter = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| enter_error(namespace, e))?;
        Ok(work())
    };
    on_a_thread(enter)
}

fn is_here(namespace: &Namespace) -> bool {
    let here = fs::metadata("/proc/thread-self/ns/net");
    here.is_ok_and(|about| (about.dev(), about.ino()) == namespace.identity)
}

/// Runs `work` like [`run_in`], but `None` stays on this thread.
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

/// Runs `work` in a new, invisible namespace that ends with it; it has a loopback interface and nothing else.
pub fn run_in_scratch<R: Send>(work: impl FnOnce() -> R + Send) -> std::io::Result<R> {
    on_a_thread(|| {
        // SAFETY: only the network namespace is left, no file descriptor table or memory is unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        Ok(work())
    })
}

/// Splits `NAMESPACE:NAME`, or `NAME` in the default namespace. Alias interfaces have a colon too (eth0:1), and only a
/// look-up can distinguish them.
pub fn split_namespace<'t>(text: &'t str, default: Option<&'t str>) -> (Option<&'t str>, &'t str) {
    match text.split_once(':') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (default, text),
    }
}

/// Returns true if the kernel's own threads are visible, and so all processes are.
pub fn in_first_process_namespace() -> bool {
    fs::read("/proc/2/comm").is_ok_and(|name| name == b"kthreadd\n")
}

fn cannot_open(path: &Path) -> String {
    format!("cannot open the namespace {}", path.display())
}

fn enter_error(namespace: &Namespace, errno: rustix::io::Errno) -> Error {
    let error = Error::os(format!("cannot enter the namespace {}", namespace.label), errno.into());
    if errno == rustix::io::Errno::PERM {
        return error.fix("this requires root (CAP_SYS_ADMIN)");
    }
    error
}

/// Keeps other trawls from changing the attachments in a namespace, until it is dropped.
pub fn lock(namespace: Option<&Namespace>) -> Result<Lock> {
    let mark = Mark::of(namespace)?;
    Lock::acquire(Rank::Captures, &format!("captures-{mark}"))
}

fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panicked) => panic::resume_unwind(panicked),
    })
}

// A search for network namespaces: among their names, mounts, and the processes that live in them.

/// The namespaces that can be found, each once: first those with a name, then the namespace of the calling thread,
/// those kept by a mount elsewhere, and those of processes.
///
/// The search is lazy: no process is inspected if a name already leads to the wanted namespace. All found namespaces
/// are held open. A held inode's number is not reused, so the number identifies further links to the same namespace,
/// which are skipped. Namespaces created during the search may be missed.
#[derive(Debug)]
pub struct NamespaceSearch {
    found: Vec<Namespace>,
    numbers: HashSet<u64>,
    finders: vec::IntoIter<FoundBy>,
    later: array::IntoIter<Among, 4>,
    is_cut_short: bool,
}

/// The sources of namespaces, searched one after the other.
#[derive(Clone, Copy, Debug)]
enum Among {
    Names,
    Own,
    Mounts,
    Processes,
}

#[derive(Debug)]
enum FoundBy {
    Name(String),
    Own,
    Mount(mounts::Mount),
    Process(u32),
}

impl Default for NamespaceSearch {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            numbers: HashSet::new(),
            finders: Vec::new().into_iter(),
            later: [Among::Names, Among::Own, Among::Mounts, Among::Processes].into_iter(),
            is_cut_short: false,
        }
    }
}

impl NamespaceSearch {
    /// Returns the first namespace that fits.
    pub fn find(&mut self, mut fits: impl FnMut(&Namespace) -> bool) -> Option<&Namespace> {
        let mut at = 0;
        while at < self.found.len() || self.find_next() {
            if fits(&self.found[at]) {
                return self.found.get(at);
            }
            at += 1;
        }
        None
    }

    /// Returns the namespace whose inode has this number.
    pub fn numbered(&mut self, number: u64) -> Option<&Namespace> {
        self.find(|one| one.identity().1 == number)
    }

    /// Returns true if some links could not be opened for lack of descriptors or memory.
    fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// Finds one more; returns false at the end.
    fn find_next(&mut self) -> bool {
        loop {
            let Some(finder) = self.finders.next() else {
                let Some(among) = self.later.next() else {
                    return false;
                };
                self.finders = self.ok_or_note_shortage(among.finders()).unwrap_or_default().into_iter();
                continue;
            };
            let is_known = |number| self.numbers.contains(&number);
            let found = finder.open(is_known);
            if let Some(new) = self.ok_or_note_shortage(found).flatten()
                && self.numbers.insert(new.identity().1)
            {
                self.found.push(new);
                return true;
            }
        }
    }

    /// Returns the value, and notes a lack of descriptors or memory, which may hide namespaces. Other failures are
    /// harmless: a process that ended, a deleted name, a link that may not be read.
    fn ok_or_note_shortage<T>(&mut self, result: Result<T>) -> Option<T> {
        const SHORTAGES: [i32; 3] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
        let is_shortage = |e: &Error| e.errno().is_some_and(|errno| SHORTAGES.contains(&errno));
        self.is_cut_short |= result.as_ref().is_err_and(is_shortage);
        result.ok()
    }
}

impl Among {
    fn finders(self) -> Result<Vec<FoundBy>> {
        Ok(match self {
            Self::Names => list().into_iter().map(FoundBy::Name).collect(),
            Self::Own => vec![FoundBy::Own],
            Self::Mounts => mounts::of_kind("nsfs", "self").into_iter().map(FoundBy::Mount).collect(),
            Self::Processes => {
                let entries = fs::read_dir("/proc").map_err(|e| Error::os("cannot list the processes", e))?;
                let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                names.filter_map(|name| name.parse().ok().map(FoundBy::Process)).collect()
            }
        })
    }
}

impl FoundBy {
    /// Opens the namespace that this leads to, unless it is known.
    fn open(self, is_known: impl Fn(u64) -> bool) -> Result<Option<Namespace>> {
        match self {
            Self::Name(name) => Namespace::by_name(&name).map(Some),
            Self::Own => Namespace::current().map(Some),
            Self::Mount(mount) => match number(&mount.part) {
                Some(number) if !is_known(number) => Namespace::from_path(&mount.mount_point).map(Some),
                _ => Ok(None),
            },
            Self::Process(id) => {
                let path = PathBuf::from(format!("/proc/{id}/ns/net"));
                match number_at(&path)? {
                    Some(number) if !is_known(number) => Namespace::in_proc(&path).map(Some),
                    _ => Ok(None),
                }
            }
        }
    }
}

fn number_at(link: &Path) -> Result<Option<u64>> {
    let text = fs::read_link(link).map_err(|e| Error::os(format!("cannot read {}", link.display()), e))?;
    Ok(text.to_str().and_then(number))
}

/// Parses the kernel's own name of a network namespace.
fn number(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

// Named namespaces: created, deleted and listed like iproute2's.

/// Creates a named namespace, like `ip netns add NAME`.
pub fn create(name: &str) -> Result<Namespace> {
    check_name(name)?;
    let what = || format!("cannot make the namespace {name}");
    share_directory().map_err(|e| Error::os(what(), e).fix("this requires root"))?;
    let path = Path::new(NAMED).join(name);
    let reserved = fs::OpenOptions::new().write(true).create_new(true).mode(0o000).open(&path);
    if let Err(e) = reserved {
        let exists = e.kind() == std::io::ErrorKind::AlreadyExists;
        let error = Error::os(what(), e);
        return Err(if exists { error.fix(format!("ip netns del {name}")) } else { error });
    }
    let made = on_a_thread(|| {
        // SAFETY: only the network namespace is left, no file descriptor table or memory is unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        mount_bind("/proc/thread-self/ns/net", &path)
    });
    if let Err(e) = made {
        let _ = fs::remove_file(&path);
        return Err(Error::os(what(), e.into()).fix("this requires root (CAP_SYS_ADMIN)"));
    }
    Namespace::by_name(name)
}

/// Deletes a named namespace, like `ip netns del NAME`; it ends when its last user is gone.
pub fn delete(name: &str) -> Result<()> {
    check_name(name)?;
    let path = Path::new(NAMED).join(name);
    if !path.exists() {
        return Namespace::by_name(name).map(|_| ());
    }
    // The file may never have been mounted on (a crash between the two steps): unlink it in that case too.
    let _ = unmount(&path, UnmountFlags::DETACH);
    fs::remove_file(&path).map_err(|e| Error::os(format!("cannot delete the namespace {name}"), e))
}

/// Returns the current namespace of a name under /run/netns, as [`Namespace::identity`].
pub fn identity_of(name: &str) -> Option<(u64, u64)> {
    let meta = |directory: &&str| fs::metadata(Path::new(directory).join(name)).ok();
    let meta = [NAMED, NAMED_OLD].iter().find_map(meta)?;
    Some((meta.dev(), meta.ino()))
}

/// Returns the names under /run/netns, sorted.
pub fn list() -> Vec<String> {
    let mut names: Vec<String> = [NAMED, NAMED_OLD]
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > 255 {
        return Err(Error::usage(format!("namespace {name:?}"), "the name is not valid"));
    }
    Ok(())
}

/// Makes the directory a shared mount of itself, so that every mount namespace sees new mounts in /run/netns, and their
/// removal: otherwise the private copy of some service would keep a deleted namespace.
fn share_directory() -> std::io::Result<()> {
    fs::create_dir_all(NAMED)?;
    // Two commands at once would mount it twice; iproute2 uses the same lock.
    let _lock =
        Lock::shared_with_others(Rank::Names, Path::new(NAMED)).map_err(|e| std::io::Error::other(e.to_string()))?;
    let shared = || mount_change(NAMED, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    if shared() == Err(rustix::io::Errno::INVAL) {
        mount_bind_recursive(NAMED, NAMED)?;
        shared()?;
    }
    Ok(())
}

// Identity of a network namespace in notes that may outlive it.

/// An identity that no other namespace has, until the machine starts anew. The kernel reuses the inode number of a
/// deleted namespace, so that number alone identifies only namespaces that are held open. The cookie is never reused,
/// but it can be read only inside the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    inode: u64,
    cookie: u64,
}

impl Mark {
    /// Returns the mark of a namespace; `None` stands for the calling thread's.
    pub fn of(namespace: Option<&Namespace>) -> Result<Self> {
        let inode = match namespace {
            Some(namespace) => namespace.identity().1,
            None => Namespace::current()?.identity().1,
        };
        let cookie = cookie(namespace)?;
        Ok(Self { inode, cookie })
    }

    fn is_of(&self, namespace: &Namespace) -> bool {
        namespace.identity().1 == self.inode && cookie(Some(namespace)).is_ok_and(|cookie| cookie == self.cookie)
    }

    /// Returns the namespace, if it can be found.
    pub fn find(&self, search: &mut NamespaceSearch) -> Option<Namespace> {
        let one = search.numbered(self.inode)?;
        self.is_of(one).then(|| one.clone())
    }

    /// Returns true if the namespace certainly no longer exists: it is none of those that can be found, and nothing
    /// hides others. A container may see notes about namespaces that it does not see. The search must have begun after
    /// the note was made.
    pub fn is_gone(&self, search: &mut NamespaceSearch) -> bool {
        if let Some(one) = search.numbered(self.inode) {
            return cookie(Some(one)).is_ok_and(|cookie| cookie != self.cookie);
        }
        if search.is_cut_short() || !in_first_process_namespace() {
            return false;
        }
        // An unreachable mount keeps the namespace too, as does a mount created while processes were inspected.
        let mut mounts = ["self", "1"].into_iter().flat_map(|process| mounts::of_kind("nsfs", process));
        mounts.all(|mount| number(&mount.part) != Some(self.inode))
    }
}

/// Writes the mark with letters that the BPF file system accepts in a name.
impl fmt::Display for Mark {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}_{}", self.inode, self.cookie)
    }
}

/// The error for text that is not a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMark;

impl FromStr for Mark {
    type Err = NoMark;

    fn from_str(text: &str) -> std::result::Result<Self, NoMark> {
        let (inode, cookie) = text.split_once('_').ok_or(NoMark)?;
        let number = |text: &str| text.parse().map_err(|_| NoMark);
        Ok(Self { inode: number(inode)?, cookie: number(cookie)? })
    }
}

/// Returns a number for the namespace (`None`: the calling thread's) that is never reused: the kernel's own, or the
/// number of its loopback interface before Linux 5.14.
pub fn cookie(namespace: Option<&Namespace>) -> Result<u64> {
    const WHAT: &str = "cannot identify the network namespace";
    let known = namespace.map(|namespace| &*namespace.cookie);
    if let Some(cookie) = known.and_then(OnceLock::get) {
        return Ok(*cookie);
    }
    let ask = || {
        let socket =
            UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        socket_option::get(&socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0u64)
    };
    let asked = match run_maybe_in(namespace, ask)? {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let number = run_maybe_in(namespace, loopback_number)?;
            number.map_err(|e| match e.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    Error::os(WHAT, e).fix("before Linux 5.14 this requires root (CAP_SYS_ADMIN)")
                }
                _ => Error::os(WHAT, e),
            })?
        }
        asked => asked.map_err(|e: std::io::Error| Error::os(WHAT, e))?,
    };
    Ok(known.map_or(asked, |known| *known.get_or_init(|| asked)))
}

/// Returns the number by which sysfs knows the loopback interface of this thread's namespace. Every namespace has one
/// such interface, which cannot leave it, and sysfs gives no number twice.
fn loopback_number() -> std::io::Result<u64> {
    // A mounted sysfs shows the interfaces of one namespace, which may be another. This instance, mounted nowhere, is
    // for the namespace of this thread.
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    let loopback = statat(&root, "devices/virtual/net/lo", AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(loopback.st_ino)
}

#[cfg(test)]
mod tests {
    use rustix::mount::{UnmountFlags, mount_bind, unmount};

    use super::*;
    use crate::testing::{ScratchNamespace, root_or_skip};

    #[test]
    fn a_missing_name_shows_the_command_to_create_it() {
        let error = Namespace::open("trawl-no-such-namespace").unwrap_err().to_string();
        assert!(error.contains("namespace trawl-no-such-namespace: it does not exist"), "{error}");
        assert!(error.contains("ip netns add trawl-no-such-namespace"), "{error}");
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
        let error = Namespace::from_path(Path::new("/etc/passwd")).unwrap_err().to_string();
        assert!(error.contains("it is not a namespace"), "{error}");
        assert!(!error.contains("rm "), "{error}");
        let error = Namespace::open("/proc/self/ns/mnt").unwrap_err().to_string();
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
        assert_eq!(there, run_in(&scratch.namespace, || cookie(None)).unwrap().unwrap());
        for expected in [&scratch.namespace, &before] {
            let mut found = Vec::new();
            NamespaceSearch::default().find(|one| {
                found.push(one.clone());
                false
            });
            assert_eq!(found.iter().filter(|one| *one == expected).count(), 1);
        }
        assert_eq!(Namespace::of_pid(std::process::id()).unwrap(), before);
    }

    #[test]
    fn numbers_of_loopbacks_tell_namespaces_apart_also_those_deleted_before() {
        if !root_or_skip() {
            return;
        }
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let scratch = ScratchNamespace::create();
            let there = || run_in(&scratch.namespace, loopback_number).unwrap().unwrap();
            let number = there();
            assert_eq!(number, there());
            assert!(seen.insert(number), "{number} is used twice");
        }
        assert!(seen.insert(loopback_number().unwrap()));
    }

    /// Container runtimes keep namespaces this way.
    #[test]
    fn a_namespace_kept_only_by_a_mount_elsewhere_is_found() {
        if !root_or_skip() {
            return;
        }
        let scratch = ScratchNamespace::create();
        let file = std::env::temp_dir().join(format!("trawl netns {}", std::process::id()));
        fs::write(&file, "").unwrap();
        mount_bind(Path::new(NAMED).join(&scratch.name), &file).unwrap();
        delete(&scratch.name).unwrap();
        let is_found = || NamespaceSearch::default().find(|one| *one == scratch.namespace).is_some();
        let was_found = is_found();
        let there = Mark::of(Some(&scratch.namespace)).unwrap();
        assert!(!there.is_gone(&mut NamespaceSearch::default()));
        unmount(&file, UnmountFlags::DETACH).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(was_found);
        assert!(!is_found());
        assert!(there.is_gone(&mut NamespaceSearch::default()));
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
