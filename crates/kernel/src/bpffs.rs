//! The file system that BPF objects are pinned in.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::bpf::info;
use crate::{Error, Result};

/// Where it is mounted by custom.
pub const USUAL_MOUNT: &str = "/sys/fs/bpf";

fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero and lives for the call.
    let fd = unsafe { libbpf_sys::bpf_obj_get(text.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a non-negative result is a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a pinned map.
pub fn open_map(path: &Path) -> Result<OwnedFd> {
    let what = || format!("cannot open {} as a pinned map", path.display());
    let fd = open_pinned(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => {
            Error::os(what(), e).mend(format!("look what is pinned: find {USUAL_MOUNT}"))
        }
        _ => Error::os(what(), e),
    })?;
    match info::map(fd.as_fd()) {
        Ok(about) if about.id != 0 => Ok(fd),
        _ => Err(Error::failed(
            what(),
            "something other than a map is pinned there",
        )),
    }
}

/// Where the map with this identifier is pinned, if it is.
pub fn path_of_map(id: u32) -> Option<PathBuf> {
    find_below(Path::new(USUAL_MOUNT), &mut |path| {
        open_pinned(path).is_ok_and(|fd| info::map(fd.as_fd()).is_ok_and(|about| about.id == id))
    })
}

fn find_below(directory: &Path, matches: &mut dyn FnMut(&Path) -> bool) -> Option<PathBuf> {
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if let Some(found) = find_below(&path, matches) {
                return Some(found);
            }
        } else if matches(&path) {
            return Some(path);
        }
    }
    None
}
