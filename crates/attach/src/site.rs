//! The site of a program: an interface in a network namespace, and its directory of pins.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use trawl_bpf::bpffs;
use trawl_sys::errno::ENOENT;
use trawl_sys::files::lock::{self, Rank};
use trawl_sys::netlink::{LinkRecord, Netlink};
use trawl_sys::netns::{self, Mark, Namespace, NamespaceSearch};
use trawl_sys::{Error, Result, files::run};

/// Trawl's own directory in the BPF file system.
pub const DIRECTORY: &str = "trawl";
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// An interface in a network namespace.
#[derive(Clone, Debug)]
pub struct Site {
    namespace: Option<Namespace>,
    /// Identity of the namespace, the same in every process.
    mark: Mark,
    index: u32,
    name: String,
    label: String,
}

impl Site {
    /// Finds `NAME` in the given (or the current) namespace, or `NAMESPACE:NAME`.
    pub fn find(text: &str, default_namespace: Option<&str>) -> Result<Self> {
        let (namespace, name) = netns::split_namespace(text, default_namespace);
        if name.is_empty() {
            return Err(Error::usage(format!("cannot use the interface '{text}'"), "no interface is named"));
        }
        Self::named(namespace.map(Namespace::open).transpose()?, name)
    }

    /// Opens the interface of this name in a namespace.
    pub fn named(namespace: Option<Namespace>, name: &str) -> Result<Self> {
        let link = Netlink::open(namespace.as_ref())?.link(name)?;
        let mark = Mark::of(namespace.as_ref())?;
        Ok(Self::new(namespace, mark, &link))
    }

    /// Opens the interface with this index in a namespace.
    pub fn by_index(namespace: Option<Namespace>, index: u32) -> Result<Self> {
        let link = Netlink::open(namespace.as_ref())?.find_link_by_index(index)?;
        let mark = Mark::of(namespace.as_ref())?;
        let gone = || Error::failed(format!("interface {index}"), "it does not exist");
        Ok(Self::new(namespace, mark, &link.ok_or_else(gone)?))
    }

    /// Opens another interface of the same namespace.
    pub fn sibling(&self, name: &str) -> Result<Self> {
        Self::named(self.namespace.clone(), name)
    }

    /// Returns true if the other interface is in the same namespace.
    pub fn shares_namespace(&self, other: &Self) -> bool {
        self.mark == other.mark
    }

    /// Returns the interface that a directory of pins belongs to, if it still exists.
    pub fn of_directory(path: &Path) -> Option<Self> {
        let (_, index) = path.file_name()?.to_str()?.split_once('-')?;
        let mark = namespace_of(path)?;
        let namespace = match Mark::of(None) {
            Ok(here) if here == mark => None,
            _ => Some(mark.find(&mut NamespaceSearch::default())?),
        };
        let mut netlink = Netlink::open(namespace.as_ref()).ok()?;
        let link = netlink.find_link_by_index(index.parse().ok()?).ok()??;
        Some(Self::new(namespace, mark, &link))
    }

    /// Returns all interfaces of a namespace.
    pub fn all_in(namespace: Option<&Namespace>) -> Result<Vec<Self>> {
        let links = Netlink::open(namespace)?.links()?;
        let mark = Mark::of(namespace)?;
        let site = |link: &LinkRecord| Self::new(namespace.cloned(), mark, link);
        Ok(links.iter().map(site).collect())
    }

    fn new(namespace: Option<Namespace>, mark: Mark, link: &LinkRecord) -> Self {
        let label = match &namespace {
            Some(namespace) => format!("{}:{}", namespace.label(), link.name),
            None => link.name.clone(),
        };
        Self { namespace, mark, index: link.index, name: link.name.clone(), label }
    }

    /// Returns the namespace; `None` for the namespace of the process.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name in the syntax of `-i`: `veth0`, or `red:veth0`.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the prefix for a command that runs in the interface's namespace.
    pub fn prefix(&self) -> String {
        netns::exec_prefix(self.namespace.as_ref())
    }

    /// Returns the interface as the kernel describes it now.
    pub fn link(&self) -> Result<LinkRecord> {
        let found = Netlink::open(self.namespace())?.find_link_by_index(self.index)?;
        found.ok_or_else(|| Error::failed(format!("interface {}", self.label), "it is gone"))
    }

    /// Returns true if packets begin with an Ethernet header, as on the loopback interface, but not on an IP tunnel.
    pub fn has_ethernet(&self) -> Result<bool> {
        let kind = self.link()?.hardware_type;
        Ok([ARPHRD_ETHER, ARPHRD_LOOPBACK].contains(&kind))
    }

    /// Returns true if the interface no longer exists.
    pub fn is_gone(&self) -> bool {
        Netlink::open(self.namespace())
            .and_then(|mut netlink| netlink.find_link_by_index(self.index))
            .is_ok_and(|found| found.is_none())
    }

    /// Returns the directory of this interface's pins, existing or not; `None` without a BPF file system.
    pub fn directory(&self) -> Option<PathBuf> {
        Some(self.below(&bpffs::lasting()?))
    }

    fn below(&self, mount: &Path) -> PathBuf {
        mount.join(DIRECTORY).join(format!("{}-{}", self.mark, self.index))
    }

    /// Makes the directory of pins if it is missing, and locks it against other commands that load or unload. An empty
    /// directory is removed with the lock.
    pub fn lock(&self) -> Result<Lock> {
        make_locked(&self.below(&bpffs::lasting_or_mounted()?), Rank::Interface)
    }

    /// Like [`Self::lock`], for pins that interfaces of the namespace share. No interface has the number 0, so the
    /// directory is always empty and is cleared like an interface's after a command was killed.
    pub fn lock_namespace(&self) -> Result<Lock> {
        let name = format!("{}-0", self.mark);
        let path = bpffs::lasting_or_mounted()?.join(DIRECTORY).join(name);
        make_locked(&path, Rank::Router)
    }
}

/// Makes a directory in trawl's own if it is missing, and locks it. The lock is the directory's: a process with another
/// /run, such as a container that shares the BPF file system with its host, sees it too.
pub fn make_locked(path: &Path, rank: Rank) -> Result<Lock> {
    let lock = lock::Lock::of_directory(rank, path, || make_directories(path))?;
    Ok(Lock::new(path, lock))
}

/// Makes a directory and its parent, again if necessary: an ending command may be removing the parent, since it is
/// empty.
fn make_directories(path: &Path) -> Result<()> {
    loop {
        path.parent().map_or(Ok(()), make_directory)?;
        match make_directory(path) {
            Err(e) if e.errno() == Some(ENOENT) => {}
            result => return result,
        }
    }
}

/// Waits for the lock of a directory; `None` if the directory does not exist, or was removed meanwhile.
pub fn lock_existing(directory: &Path, rank: Rank) -> Result<Option<Lock>> {
    if !is_trusted(directory)? {
        return Ok(None);
    }
    let lock = lock::Lock::of_existing_directory(rank, directory)?;
    Ok(lock.map(|lock| Lock::new(directory, lock)))
}

/// Locks a directory if it exists and is not locked.
pub fn try_lock(directory: &Path, rank: Rank) -> Option<Lock> {
    if !is_trusted(directory).ok()? {
        return None;
    }
    let lock = lock::Lock::try_directory(rank, directory)?;
    Some(Lock::new(directory, lock))
}

/// Returns true if a directory exists. It and trawl's own above it must be owned by root: anyone who could move it away
/// could choose the rules and programs that trawl believes in force.
pub fn is_trusted(directory: &Path) -> Result<bool> {
    let parents = directory.ancestors().take(2);
    for path in parents.filter(|path| path.symlink_metadata().is_ok()) {
        run::check_owner(path)?;
    }
    match directory.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => {
            Err(Error::os(format!("cannot read the properties of {}", directory.display()), e)
                .fix("this requires root"))
        }
    }
}

/// Returns all interfaces' directories in trawl's own part of the BPF file system.
pub fn all_directories() -> Vec<PathBuf> {
    let Some(mount) = bpffs::lasting() else {
        return Vec::new();
    };
    let entries = fs::read_dir(mount.join(DIRECTORY)).into_iter().flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| namespace_of(path).is_some()).collect()
}

/// Returns the namespace of a directory's interface.
pub fn namespace_of(directory: &Path) -> Option<Mark> {
    let (namespace, _) = directory.file_name()?.to_str()?.split_once('-')?;
    namespace.parse().ok()
}

pub fn make_directory(path: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            let privileges = e.kind() == std::io::ErrorKind::PermissionDenied;
            let error = Error::os(format!("cannot make {}", path.display()), e);
            Err(if privileges { error.fix("this requires root") } else { error })
        }
        _ => run::check_owner(path),
    }
}

/// Lock that permits changes to an interface's pins.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    lock: lock::Lock,
    is_read_only: bool,
}

impl Lock {
    fn new(path: &Path, lock: lock::Lock) -> Self {
        Self { path: path.to_owned(), lock, is_read_only: false }
    }

    /// Keeps the directory, even if it is empty: for a command that only reads.
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in the locked one.
    pub fn make_inside(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        make_directory(&path).map(|()| path)
    }

    /// Returns the descriptor whose last copy holds the lock.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.lock.descriptor()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Only empty directories can be removed, as intended.
        if !self.is_read_only
            && fs::remove_dir(&self.path).is_ok()
            && let Some(parent) = self.path.parent()
        {
            let _ = fs::remove_dir(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_exclusive_and_removes_an_empty_directory() {
        if trawl_sys::files::create::own_user() != 0 {
            eprintln!("SKIPPED: locks require root");
            return;
        }
        let parent = std::env::temp_dir().join(format!("trawl-site-{}", std::process::id()));
        let path = parent.join(format!("test-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let held = try_lock(&path, Rank::Interface).expect("nobody has it");
        assert!(try_lock(&path, Rank::Interface).is_none(), "one at a time");
        drop(held);
        assert!(!path.exists(), "it was empty");
        assert!(lock_existing(&path, Rank::Interface).unwrap().is_none());
    }
}
