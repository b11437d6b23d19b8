//! The BPF file system: where it is mounted, and what is pinned in it.
//!
//! trawl pins nothing of its own; it looks for hook maps and for the owners of programs.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};

use crate::bpf::info;
use crate::error::{Error, Result};
use crate::probe::insn::owned;

/// Where everyone expects it.
pub const USUAL: &str = "/sys/fs/bpf";
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Deeper trees than any tool makes are not walked, nor more entries than a person would look at.
const DEEPEST: usize = 8;
const MOST: usize = 100_000;

/// What a pinned file stands for.
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

/// The mount points of BPF file systems that this process sees, the usual one first.
pub fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found = parse_mounts(&table);
    found.sort_by_key(|path| path != Path::new(USUAL));
    found
}

fn parse_mounts(table: &str) -> Vec<PathBuf> {
    table
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let kind = after.split(' ').next()?;
            let place = before.split(' ').nth(4)?;
            (kind == "bpf").then(|| PathBuf::from(unescape(place)))
        })
        .collect()
}

/// Blanks and backslashes are written as octal numbers there.
fn unescape(text: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (code, plain)| {
        text.replace(code, plain)
    })
}

/// Mounts a BPF file system at the usual place; nothing does so unasked.
pub fn mount_usual() -> Result<()> {
    mount("bpf", USUAL, "bpf", MountFlags::empty(), None).map_err(|e| {
        Error::os(
            format!("cannot mount a BPF file system on {USUAL}"),
            e.into(),
        )
        .mend("it takes root (CAP_SYS_ADMIN)")
    })
}

/// Opens a pinned map.
pub fn open_map(path: &Path) -> Result<OwnedFd> {
    let what = || format!("cannot open the map {}", path.display());
    let fd = open(path).map_err(|e| explain(what(), path, e))?;
    match kind_of(&fd) {
        Some("bpf-map") => Ok(fd),
        Some("bpf-prog") => Err(Error::failed(
            what(),
            "a program is pinned there, not a map",
        )),
        _ => Err(Error::failed(what(), "what is pinned there is not a map")),
    }
}

/// Where that map is pinned, if it is.
pub fn path_of_map(id: u32) -> Option<PathBuf> {
    pinned().into_iter().find_map(|pin| match pin.object {
        Object::Map(map) if map.id == id => Some(pin.path),
        _ => None,
    })
}

/// All that is pinned in the BPF file systems, by path; what cannot be opened is left out.
pub fn pinned() -> Vec<Pinned> {
    let mut files = Vec::new();
    for mount in mounts() {
        walk(&mount, 0, &mut files);
    }
    files.sort();
    files.dedup();
    files
        .into_iter()
        .filter_map(|path| identify(&path).map(|object| Pinned { path, object }))
        .collect()
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
        "bpf-map" => info::map(fd.as_fd()).ok().map(Object::Map),
        "bpf-prog" => info::program(fd.as_fd()).ok().map(Object::Program),
        "bpf_link" => info::link(fd.as_fd()).ok().map(Object::Link),
        _ => None,
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that outlives the call.
    owned(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// The kernel's word for what a descriptor of BPF is; the call that opens a pin does not tell.
fn kind_of(fd: &OwnedFd) -> Option<&'static str> {
    let target = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let target = target.to_str()?;
    ["bpf-map", "bpf-prog", "bpf_link"]
        .into_iter()
        .find(|kind| target.contains(kind))
}

fn explain(what: String, path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            let error = Error::failed(what, "there is no such file");
            match mounts().is_empty() {
                true => error.mend(format!(
                    "no BPF file system is mounted: mount -t bpf bpf {USUAL}"
                )),
                false => error,
            }
        }
        // The kernel says "not permitted" of files that are no pins.
        Some(libc::EPERM | libc::EACCES | libc::EINVAL) if !is_on_bpffs(path) => Error::failed(
            what,
            "it is not a pinned BPF object, but a file of another file system",
        )
        .mend("name a pin under /sys/fs/bpf"),
        Some(libc::EPERM) => Error::os(what, error).mend("it takes root (CAP_BPF)"),
        _ => Error::os(what, error),
    }
}

fn is_on_bpffs(path: &Path) -> bool {
    statfs(path)
        .is_ok_and(|about| u64::try_from(about.f_type).is_ok_and(|kind| kind == BPF_FS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::map;
    use crate::testing::root_or_skip;

    #[test]
    fn mounts_are_read_from_the_table() {
        let table = "30 24 0:27 / /sys/fs/bpf rw - bpf bpf rw,mode=700\n\
                     31 24 0:28 / /proc rw - proc proc rw\n\
                     32 24 0:29 / /mnt/a\\040b rw shared:1 - bpf none rw\n\
                     garbage\n";
        assert_eq!(
            parse_mounts(table),
            [Path::new("/sys/fs/bpf"), Path::new("/mnt/a b")]
        );
    }

    #[test]
    fn a_pinned_map_is_found_and_opened() {
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
        pin(&made, &path);
        let found = path_of_map(id);
        let opened = open_map(&path).and_then(|fd| map::info(fd).map_err(|e| Error::os("info", e)));
        fs::remove_file(&path).unwrap();
        assert_eq!(found.as_deref(), Some(path.as_path()));
        assert_eq!(opened.unwrap().id, id);
        assert!(
            open_map(&path)
                .unwrap_err()
                .to_string()
                .contains("no such file")
        );
    }

    #[test]
    fn ordinary_files_are_not_pins() {
        if !root_or_skip() {
            return;
        }
        let error = open_map(Path::new("/etc/passwd")).unwrap_err().to_string();
        assert!(error.contains("not a pinned BPF object"), "{error}");
    }

    fn pin(map: &OwnedFd, path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: an open descriptor and a C string that outlives the call.
        let result = unsafe { libbpf_sys::bpf_obj_pin(map.as_raw_fd(), path.as_ptr()) };
        assert_eq!(result, 0);
    }
}
