//! Named namespaces: made, deleted and listed the way iproute2 does it.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::{NAMED, NAMED_OLD, Namespace, on_a_thread};
use crate::error::{Error, Result};
use crate::lock::{Lock, Rank};

/// Makes a named namespace, as `ip netns add NAME` does.
pub fn create(name: &str) -> Result<Namespace> {
    check_name(name)?;
    let what = || format!("cannot make the namespace {name}");
    share_directory().map_err(|e| Error::os(what(), e).fix("this requires root"))?;
    let path = Path::new(NAMED).join(name);
    let reserved = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o000)
        .open(&path);
    if let Err(e) = reserved {
        let exists = e.kind() == std::io::ErrorKind::AlreadyExists;
        let error = Error::os(what(), e);
        return Err(if exists {
            error.fix(format!("ip netns del {name}"))
        } else {
            error
        });
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

/// Deletes a named namespace, as `ip netns del NAME` does; it ends when its last user is gone.
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

/// What a name under /run/netns stands for now, as [`Namespace::identity`].
pub fn identity_of(name: &str) -> Option<(u64, u64)> {
    let meta = |directory: &&str| fs::metadata(Path::new(directory).join(name)).ok();
    let meta = [NAMED, NAMED_OLD].iter().find_map(meta)?;
    Some((meta.dev(), meta.ino()))
}

/// The names under /run/netns, sorted.
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

pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty()
        || name == "."
        || name == ".."
        || name.contains(['/', '\0'])
        || name.len() > 255
    {
        return Err(Error::usage(
            format!("namespace {name:?}"),
            "that is not a name a namespace can have",
        ));
    }
    Ok(())
}

/// A mount made in /run/netns has to be seen in every mount namespace, and a deletion as well, or a
/// namespace would live on in some service's private copy: the directory is a shared mount of itself.
fn share_directory() -> std::io::Result<()> {
    fs::create_dir_all(NAMED)?;
    // Two at once would mount it twice; iproute2 takes the same lock.
    let _lock = Lock::shared_with_others(Rank::Names, Path::new(NAMED))
        .map_err(|e| std::io::Error::other(e.to_string()))?;
    let shared = || {
        mount_change(
            NAMED,
            MountPropagationFlags::SHARED | MountPropagationFlags::REC,
        )
    };
    if shared() == Err(rustix::io::Errno::INVAL) {
        mount_bind_recursive(NAMED, NAMED)?;
        shared()?;
    }
    Ok(())
}
