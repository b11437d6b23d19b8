//! Files below a directory, opened without following links: another user who may write to the directory cannot redirect them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// Opens a regular file of this user's or root's for reading, by its path below a directory.
pub fn open(directory: &Path, below: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let from = openat(
        CWD,
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(&from, below, flags, Mode::empty(), resolve)?);
    let about = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !about.is_file() || (about.uid() != own && about.uid() != 0) {
        let why = "it is not a regular file of this user's";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(file)
}

/// Reads such a file.
pub fn read(directory: &Path, below: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(directory, below)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_and_other_kinds_of_files_are_refused() {
        let directory = std::env::temp_dir().join(format!("trawl-beneath-{}", std::process::id()));
        fs::create_dir_all(directory.join("in")).unwrap();
        fs::write(directory.join("in/plain"), "x").unwrap();
        symlink("plain", directory.join("in/link")).unwrap();
        symlink("in", directory.join("way")).unwrap();
        let read = |below: &str| read(&directory, Path::new(below));
        assert_eq!(read("in/plain").unwrap(), b"x");
        for below in ["in/link", "way/plain", "../plain", "/etc/passwd", "in"] {
            assert!(read(below).is_err(), "{below}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
