//! The hierarchy of cgroups of version 2, wherever it is mounted.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{files::mounts, netns};

/// The root of the hierarchy, as the first process sees it if this one may find out.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens the root by a mount of its own, which no other process sees, since `ip netns exec` hides the host's mount.
    /// A service that may not mount uses the host's.
    pub fn open() -> io::Result<Self> {
        Self::mount().or_else(|error| {
            let mounts = mounts::of_kind("cgroup2", "self");
            let root = mounts.iter().find(|mount| mount.part == "/");
            let root = File::open(&root.ok_or(error)?.mount_point)?;
            Ok(Self(root.into()))
        })
    }

    fn mount() -> io::Result<Self> {
        let mount = in_first_namespace(|| -> io::Result<OwnedFd> {
            let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(context.as_fd())?;
            let flags = FsMountFlags::FSMOUNT_CLOEXEC;
            let mount = fsmount(context.as_fd(), flags, MountAttrFlags::empty())?;
            Ok(mount)
        })?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(&mount, ".", flags, Mode::empty())?))
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Opens the cgroup of a process.
    pub fn of_process(&self, process: u32) -> io::Result<File> {
        let path = path_of(process)?;
        File::open(self.path().join(path.trim_start_matches('/')))
    }

    /// Opens the cgroup with the kernel's number.
    pub fn numbered(&self, number: u64) -> io::Result<File> {
        let paths = self.paths();
        let path = paths.get(&number).ok_or(io::ErrorKind::NotFound)?;
        File::open(self.path().join(path.trim_start_matches('/')))
    }

    /// Opens all cgroups.
    pub fn directories(&self) -> Vec<File> {
        let all = directories(&self.path());
        all.into_iter().filter_map(|path| File::open(path).ok()).collect()
    }

    /// Returns the paths of all cgroups below the root, by the kernel's numbers.
    pub fn paths(&self) -> HashMap<u64, String> {
        let root = self.path();
        let numbered = |directory: PathBuf| {
            // A cgroup may go away meanwhile.
            let number = fs::metadata(&directory).ok()?.ino();
            let below = directory.strip_prefix(&root).ok()?;
            Some((number, format!("/{}", below.to_string_lossy())))
        };
        directories(&root).into_iter().filter_map(numbered).collect()
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Runs a function on a thread in the cgroup namespace of the first process, if this one may enter it: a container's
/// own one has only the container's cgroups.
fn in_first_namespace<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let open = |process: u32| File::open(format!("/proc/{process}/ns/cgroup")).ok();
    let inside = || {
        // Process 2 is a thread of the kernel, unless this is a container.
        let kernel = || netns::in_first_process_namespace().then(|| open(2))?;
        if let Some(first) = open(1).or_else(kernel) {
            let kind = Some(LinkNameSpaceType::ControlGroup);
            let _ = move_into_link_name_space(first.as_fd(), kind);
        }
        run()
    };
    let done = std::thread::scope(|scope| scope.spawn(inside).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the path of a process's cgroup, below [`Root`].
pub fn path_of(process: u32) -> io::Result<String> {
    let path = format!("/proc/{process}/cgroup");
    let text = in_first_namespace(|| fs::read_to_string(path))?;
    path_in(&text, "").map(str::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns the lowest memory limit of this process's cgroups, of either version, in bytes.
pub fn memory_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let versions = [("cgroup2", "", "memory.max"), ("cgroup", "memory", "memory.limit_in_bytes")];
    let limits = versions.map(|(version, controller, file)| {
        let below = path_in(&own, controller)?;
        let mounts = mounts::of_kind(version, "self");
        mounts.iter().filter_map(|mount| lowest_limit(&mount.mount_point, below.strip_prefix(&mount.part)?, file)).min()
    });
    limits.into_iter().flatten().min()
}

/// Finds the path of the cgroup of a controller in a list of a process's cgroups; version 2 names no controller.
fn path_in<'a>(list: &'a str, controller: &str) -> Option<&'a str> {
    list.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(path)
    })
}

/// Returns the lowest limit of a cgroup and those above, up to the root or to the part that a container sees.
fn lowest_limit(root: &Path, below: &str, file: &str) -> Option<u64> {
    let own = root.join(below.trim_start_matches('/'));
    let groups = own.ancestors().take_while(|group| group.starts_with(root));
    // Unlimited is the word "max" in version 2, and more bytes than any machine has in version 1.
    let limit = |group: &Path| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    groups.filter_map(limit).filter(|limit| *limit < UNLIMITED).min()
}

const UNLIMITED: u64 = 1 << 60;

/// Name of the file with a cgroup's processes; a process that writes its number, or zero, moves there.
const PROCESSES: &str = "cgroup.procs";
/// Time in which processes that end leave their cgroup, on a busy machine too.
const TO_LEAVE: Duration = Duration::from_secs(5);
/// Number of names that are tried for a cgroup.
const MOST_LEFT: u32 = 100;

/// A cgroup that trawl makes for a command, below its own.
#[derive(Debug)]
pub struct Group {
    root: OwnedFd,
    /// Path below the root.
    name: String,
    number: u64,
}

impl Group {
    pub fn make(root: &Root) -> io::Result<Self> {
        let process = std::process::id();
        let own = path_of(process)?;
        let own = own.trim_matches('/');
        let mut made = Self { root: root.0.try_clone()?, name: format!("{own}/trawl-{process}"), number: 0 };
        // An earlier process with this number may have left one, if its warden was killed as well.
        for other in 2..=MOST_LEFT {
            match fs::create_dir(made.path()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    made.name = format!("{own}/trawl-{process}-{other}");
                }
                done => {
                    done?;
                    break;
                }
            }
        }
        let number = fs::metadata(made.path())?.ino();
        Ok(Self { number, ..made })
    }

    /// Returns the path by the descriptor of the root, which a forked process has too.
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/{}", self.root.as_raw_fd(), self.name).into()
    }

    /// Returns the kernel's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Opens the file by which a process moves into the cgroup.
    pub fn entrance(&self) -> io::Result<OwnedFd> {
        let path = self.path().join(PROCESSES);
        Ok(fs::OpenOptions::new().write(true).open(path)?.into())
    }

    /// Returns the processes in it and below.
    pub fn processes(&self) -> Vec<u32> {
        let mut found = Vec::new();
        for directory in directories(&self.path()) {
            found.extend(processes_in(&directory));
        }
        found
    }

    /// Returns the CPU time of all its processes so far, in microseconds.
    pub fn cpu_time(&self) -> Option<u64> {
        let text = fs::read_to_string(self.path().join("cpu.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.parse().ok()
    }

    /// Removes it. Processes that still run move to trawl's own cgroup.
    pub fn remove(&self) -> io::Result<()> {
        let path = self.path();
        let began = Instant::now();
        loop {
            for process in self.processes() {
                let _ = process::resume(process);
                let _ = fs::write(path.join("..").join(PROCESSES), process.to_string());
            }
            // Lower directories have to be removed first.
            let removed = directories(&path).iter().rev().try_for_each(fs::remove_dir);
            match removed {
                // A process that has ended stays in its cgroup for a moment.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && began.elapsed() < TO_LEAVE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return other,
            }
        }
    }

    /// Returns the descriptor that a process needs to remove it.
    pub fn root(&self) -> i32 {
        self.root.as_raw_fd()
    }
}

fn processes_in(directory: &Path) -> Vec<u32> {
    let text = fs::read_to_string(directory.join(PROCESSES)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns a cgroup's directory and those below it, the upper ones first.
fn directories(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_owned()];
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    found.extend(below.flat_map(|entry| directories(&entry.path())));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_that_limits_memory_is_found_in_both_versions() {
        let list = "12:cpu,cpuacct:/cpu\n4:memory:/pods/a:b\n1:name=systemd:/init\n0::/unified\n";
        assert_eq!(path_in(list, ""), Some("/unified"));
        assert_eq!(path_in(list, "memory"), Some("/pods/a:b"));
        assert_eq!(path_in("0::/only\n", "memory"), None);
    }

    #[test]
    fn lowest_limit_of_the_groups_above_counts() {
        let root = std::env::temp_dir().join(format!("trawl-limits-{}", std::process::id()));
        let own = root.join("pods/one");
        fs::create_dir_all(&own).expect("a directory");
        let write = |group: &Path, limit: &str| fs::write(group.join("memory.max"), limit).expect("a file");
        write(&own, "max\n");
        assert_eq!(lowest_limit(&root, "/pods/one", "memory.max"), None);
        write(&root.join("pods"), "67108864\n");
        write(&own, "9223372036854771712\n");
        assert_eq!(lowest_limit(&root, "/pods/one", "memory.max"), Some(64 << 20));
        write(&own, "1048576\n");
        assert_eq!(lowest_limit(&root, "/pods/one", "memory.max"), Some(1 << 20));
        assert_eq!(lowest_limit(&root, "/pods", "memory.max"), Some(64 << 20));
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn a_left_cgroup_of_this_number_does_not_hinder() {
        if !crate::testing::root_or_skip() {
            return;
        }
        let root = Root::open().expect("cgroups of version 2");
        let groups = [(); 3].map(|()| Group::make(&root).expect("a cgroup"));
        assert_ne!(groups[0].number(), groups[1].number());
        assert_ne!(groups[1].number(), groups[2].number());
        for group in groups {
            group.remove().expect("removed");
        }
    }
}
