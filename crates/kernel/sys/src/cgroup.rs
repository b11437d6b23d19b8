//! The hierarchy of cgroups of version 2, wherever it is mounted.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::mounts;

/// The root of the hierarchy, as this process's cgroup namespace sees it.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens the root by a mount of its own, which nobody else sees: `ip netns exec` hides the host's. A service that may not
    /// mount uses the host's.
    pub fn open() -> io::Result<Self> {
        Self::mount().or_else(|error| {
            let mounts = mounts::of_kind("cgroup2", "self");
            let root = mounts.iter().find(|mount| mount.part == "/");
            let root = File::open(&root.ok_or(error)?.mount_point)?;
            Ok(Self(root.into()))
        })
    }

    fn mount() -> io::Result<Self> {
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let mount = fsmount(
            context.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(&mount, ".", flags, Mode::empty())?))
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Returns the paths of all cgroups below the root, by the kernel's numbers.
    pub fn paths(&self) -> HashMap<u64, String> {
        let mut found = HashMap::new();
        add(&self.path(), "/", &mut found);
        found
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn add(directory: &Path, name: &str, found: &mut HashMap<u64, String>) {
    if let Ok(about) = fs::metadata(directory) {
        found.insert(about.ino(), name.to_owned());
    }
    // A cgroup may go away meanwhile.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let below = format!(
                "{}/{}",
                name.trim_end_matches('/'),
                entry.file_name().to_string_lossy()
            );
            add(&entry.path(), &below, found);
        }
    }
}
