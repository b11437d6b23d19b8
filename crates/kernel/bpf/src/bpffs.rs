//! The BPF file system: its mount points, and the objects pinned in it.
//!
//! A capture pins nothing; it looks for hook maps and for the owners of programs. Objects that outlive the command
//! (`trawl xdp load`) are pinned.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};
use rustix::process::{chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use trawl_sys::error::{Error, Result};
use trawl_sys::{files::mounts, process};

use crate::info;
use crate::owned;
use trawl_sys::words::path_word;

/// The usual mount point.
pub const USUAL: &str = "/sys/fs/bpf";
const MAP: &str = "bpf-map";
const PROGRAM: &str = "bpf-prog";
const LINK: &str = "bpf-link";
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Limits on a walk: deeper trees than any tool makes, and more entries than a user would read.
const DEEPEST: usize = 8;
const MOST: usize = 100_000;

/// Descriptor held by [`hold`].
static HELD: OnceLock<OwnedFd> = OnceLock::new();

/// The object behind a pinned file.
#[derive(Clone, Debug)]
pub enum Object {
    Map(info::MapInfo),
    Program(info::ProgramInfo),
    Link(info::LinkInfo),
}

/// A pinned object.
#[derive(Clone, Debug)]
pub struct Pinned {
    pub path: PathBuf,
    pub object: Object,
}

/// Returns the mount points of BPF file systems that this process sees, the usual one first.
pub fn mounts() -> Vec<PathBuf> {
    let all = mounts::of_kind("bpf", "self").into_iter();
    let mut found: Vec<PathBuf> = all.map(|mount| mount.mount_point).collect();
    found.sort_by_key(|path| path != Path::new(USUAL));
    found
}

/// Mounts a BPF file system at the usual mount point, for root alone.
fn mount_usual() -> Result<()> {
    mount("bpf", USUAL, "bpf", MountFlags::empty(), Some(c"mode=0700")).map_err(|e| {
        Error::os(format!("cannot mount a BPF file system on {USUAL}"), e.into())
            .fix(format!("this requires root (CAP_SYS_ADMIN): mount -t bpf -o mode=0700 bpf {USUAL}"))
    })
}

/// Returns the BPF file system for objects that outlive this process, if one is mounted: the one at the usual mount
/// point, by a path that leads there from this process.
///
/// `ip netns exec` mounts a /sys without it over the real one, for the process it starts. A file system mounted there
/// would end with that process, so the first process's is used or, if access to that is denied, one that an ancestor of
/// this process sees.
pub fn lasting() -> Option<PathBuf> {
    if is_on_bpffs(Path::new(USUAL)) {
        return Some(USUAL.into());
    }
    if let Some(held) = HELD.get() {
        return Some(format!("/proc/self/fd/{}", held.as_raw_fd()).into());
    }
    seen_by_ancestors().find(|path| is_on_bpffs(path))
}

/// Returns the BPF file systems that ancestors of this process see at the usual mount point, if this process sees
/// another one there.
pub fn outside() -> Vec<PathBuf> {
    let device = |path: &Path| fs::metadata(path).ok().map(|about| about.dev());
    let own = device(Path::new(USUAL));
    seen_by_ancestors().filter(|path| is_on_bpffs(path) && device(path) != own).collect()
}

/// Holds the file system open for a child process that outlives this one's ancestors, without which it could not find
/// the file system. The descriptor must stay open in the child; `None` if the usual path leads there.
pub fn hold() -> Option<RawFd> {
    if HELD.get().is_none() {
        let path = lasting().filter(|path| path != Path::new(USUAL))?;
        let directory = fs::File::open(path).ok()?;
        let _ = HELD.set(directory.into());
    }
    HELD.get().map(AsRawFd::as_raw_fd)
}

/// Returns the path that other processes use, for one that is valid only in this process.
pub fn usual_path(path: &Path) -> PathBuf {
    let rest = lasting().and_then(|mount| Some(path.strip_prefix(mount).ok()?.to_owned()));
    rest.map_or_else(|| path.to_owned(), |rest| Path::new(USUAL).join(rest))
}

/// Returns the path in this process for one that other processes use.
pub fn path_from_here(path: &Path) -> PathBuf {
    match (lasting(), path.strip_prefix(USUAL)) {
        (Some(mount), Ok(rest)) => mount.join(rest),
        _ => path.to_owned(),
    }
}

/// Like [`lasting`]; mounts the file system if none exists.
pub fn lasting_or_mounted() -> Result<PathBuf> {
    if let Some(found) = lasting() {
        return Ok(found);
    }
    match outer_mounts() {
        Some(outer) => inside_mounts(&outer, mount_usual)?,
        None => mount_usual()?,
    }
    lasting().ok_or_else(|| {
        Error::failed("no BPF file system is mounted", format!("{USUAL} is not one, although it could be mounted"))
            .fix(format!("mount -t bpf -o mode=0700 bpf {USUAL}"))
    })
}

/// Returns the usual mount point as each ancestor of this process sees it, the first ancestor first.
fn seen_by_ancestors() -> impl Iterator<Item = PathBuf> {
    let seen_by = |process: u32| PathBuf::from(format!("/proc/{process}/root{USUAL}"));
    ancestors().into_iter().map(seen_by)
}

/// Returns the ancestors of this process, the first one first.
fn ancestors() -> Vec<u32> {
    let mut found: Vec<u32> = process::ancestors().collect();
    if found.last() != Some(&1) {
        found.push(1);
    }
    found.reverse();
    found
}

/// Mounts that another process sees.
struct Mounts {
    namespace: fs::File,
    /// The root of that process, which may differ from the mounts' own.
    root: fs::File,
}

/// Returns the mounts of the most distant accessible ancestor that has a directory for a BPF file system, if these are
/// not the mounts of this process.
fn outer_mounts() -> Option<Mounts> {
    let namespace = |process: &str| fs::File::open(format!("/proc/{process}/ns/mnt")).ok();
    let number = |file: &fs::File| file.metadata().map(|meta| meta.ino()).ok();
    let own = namespace("self").as_ref().and_then(number);
    let seen_by = |process: u32| {
        let root = format!("/proc/{process}/root");
        Path::new(&format!("{root}{USUAL}")).is_dir().then_some(())?;
        Some(Mounts { namespace: namespace(&process.to_string())?, root: fs::File::open(root).ok()? })
    };
    ancestors().into_iter().find_map(seen_by).filter(|outer| number(&outer.namespace) != own)
}

/// Runs `work` inside other mounts, on a thread of its own, which ends with the work.
fn inside_mounts(outer: &Mounts, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let what = "cannot mount a persistent BPF file system";
    let fail = |e: rustix::io::Errno| Error::os(what, e.into()).fix(format!("mount -t bpf -o mode=0700 bpf {USUAL}"));
    let enter = move || {
        // SAFETY: only this thread's root and working directory become its own; it shares no other state by it.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.map_err(fail)?;
        move_into_link_name_space(outer.namespace.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(fail)?;
        fchdir(&outer.root).map_err(fail)?;
        chroot(".").map_err(fail)?;
        work()
    };
    thread::scope(|scope| scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Pins a map, program or link in the BPF file system, which keeps it alive.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let what = || format!("cannot pin {}", path.display());
    let text = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::failed(what(), "the path contains a zero byte"))?;
    // SAFETY: an open descriptor and a C string that outlives the call.
    let result = unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), text.as_ptr()) };
    crate::check(result).map(drop).map_err(|e| {
        let errno = e.raw_os_error();
        let error = Error::os(what(), e);
        match errno {
            Some(libc::EEXIST) => error.fix(format!("rm {}", path_word(path))),
            Some(libc::EPERM) if !path.parent().is_some_and(is_on_bpffs) => {
                Error::failed(what(), "its directory is not in a BPF file system")
                    .fix(format!("name a directory under {USUAL}"))
            }
            _ => error,
        }
    })
}

/// Opens a pinned link.
pub fn open_link(path: &Path) -> Result<OwnedFd> {
    open_kind(path, LINK, "link")
}

/// Opens a pinned program.
pub fn open_program(path: &Path) -> Result<OwnedFd> {
    open_kind(path, PROGRAM, "program")
}

fn open_kind(path: &Path, kind: &str, word: &str) -> Result<OwnedFd> {
    let what = || format!("cannot open the {word} {}", path.display());
    let fd = open(path).map_err(|e| explain(what(), path, e))?;
    match kind_of(&fd) {
        Some(found) if found == kind => Ok(fd),
        Some(PROGRAM) => Err(Error::failed(what(), format!("a program is pinned there, not a {word}"))),
        _ => Err(Error::failed(what(), format!("the pinned object is not a {word}"))),
    }
}

/// Opens a pinned map.
pub fn open_map(path: &Path) -> Result<OwnedFd> {
    open_kind(path, MAP, "map")
}

/// Returns the path at which a map is pinned, if it is.
pub fn path_of_map(id: u32) -> Option<PathBuf> {
    pinned().into_iter().find_map(|pin| match pin.object {
        Object::Map(map) if map.id == id => Some(pin.path),
        _ => None,
    })
}

/// Returns all objects pinned in the BPF file systems, by path; those that cannot be opened are left out.
pub fn pinned() -> Vec<Pinned> {
    let mut files = Vec::new();
    let mut paths = mounts();
    // The /sys of `ip netns exec` hides this one, although it is mounted.
    paths.extend(lasting().filter(|path| !paths.contains(path)));
    for mount in paths {
        walk(&mount, 0, &mut files);
    }
    files.sort();
    files.dedup();
    files.into_iter().filter_map(|path| identify(&path).map(|object| Pinned { path, object })).collect()
}

fn walk(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if files.len() >= MOST {
            return;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < DEEPEST => walk(&entry.path(), depth + 1, files),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

fn identify(path: &Path) -> Option<Object> {
    let fd = open(path).ok()?;
    match kind_of(&fd)? {
        MAP => info::map(fd.as_fd()).ok().map(Object::Map),
        PROGRAM => info::program(fd.as_fd()).ok().map(Object::Program),
        LINK => info::link(fd.as_fd()).ok().map(Object::Link),
        _ => None,
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that outlives the call.
    owned(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// Returns the kernel's name of the kind of a BPF descriptor, which the call that opens a pin does not report.
fn kind_of(fd: &OwnedFd) -> Option<&'static str> {
    let target = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    // The kernel has two spellings for links.
    let target = target.to_str()?.replace('_', "-");
    [MAP, PROGRAM, LINK].into_iter().find(|kind| target.contains(kind))
}

fn explain(what: String, path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            let error = Error::failed(what, "no such file");
            if mounts().is_empty() {
                error.fix(format!("no BPF file system is mounted: mount -t bpf -o mode=0700 bpf {USUAL}"))
            } else {
                error
            }
        }
        // The kernel says "not permitted" for files that are not pins.
        Some(libc::EPERM | libc::EACCES | libc::EINVAL) if !is_on_bpffs(path) => {
            Error::failed(what, "it is not a pinned BPF object, but a file of another file system")
                .fix(format!("name a pin under {USUAL}"))
        }
        Some(libc::EPERM) => Error::os(what, error).fix("this requires root (CAP_BPF)"),
        _ => Error::os(what, error),
    }
}

/// Returns true if a path is in a BPF file system.
pub fn is_on_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|about| u64::try_from(about.f_type).is_ok_and(|kind| kind == BPF_FS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn pinned_map_is_found_and_opened() {
        if !root_or_skip() {
            return;
        }
        let Some(mount) = mounts().into_iter().next() else {
            eprintln!("SKIPPED: no BPF file system is mounted");
            return;
        };
        let made = map::create_prog_array("trawl_test", 5).unwrap();
        let id = map::info(&made).unwrap().id;
        assert_eq!(path_of_map(id), None);
        let path = mount.join(format!("trawl-test-{}", std::process::id()));
        pin(made.as_fd(), &path).unwrap();
        let found = path_of_map(id);
        let opened = open_map(&path).and_then(|fd| map::info(fd).map_err(|e| Error::os("info", e)));
        fs::remove_file(&path).unwrap();
        assert_eq!(found.as_deref(), Some(path.as_path()));
        assert_eq!(opened.unwrap().id, id);
        assert!(open_map(&path).unwrap_err().to_string().contains("no such file"));
    }

    #[test]
    fn ordinary_files_are_not_pins() {
        if !root_or_skip() {
            return;
        }
        let error = open_map(Path::new("/etc/passwd")).unwrap_err().to_string();
        assert!(error.contains("not a pinned BPF object"), "{error}");
    }
}
