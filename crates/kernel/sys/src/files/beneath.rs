//! Files below a directory, opened without following links: another user who may write to the directory cannot redirect
//! them.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat, fstat, fstatfs, linkat, mkdirat,
    openat, openat2, readlinkat, renameat, statat, unlinkat,
};

use crate::files::owner;
use crate::{Error, Result, errno};

/// Maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// A regular file of a listing.
#[derive(Debug)]
pub struct Listed {
    pub path: PathBuf,
    pub bytes: u64,
    pub changed: SystemTime,
}

/// A directory held by its descriptor: names below it lead to the same files after it is moved, and links are not
/// followed.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory, following links to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, path, flags, Mode::empty())?))
    }

    /// Opens a directory that no other user can replace: it and all directories above it belong to this user or root,
    /// and others may not rename their contents. Links are followed if they belong to this user or root. With `create`,
    /// makes the missing directories, for this user alone. A link of /proc to a directory that a process has open, or
    /// sees as its root, leads to that directory itself: the directories above it are not checked.
    pub fn open_own(path: &Path, create: bool) -> Result<Self> {
        let failed = |e: io::Error| Error::os(owner::unusable(path), e);
        let whole = std::path::absolute(path).map_err(failed)?;
        let mut rest: VecDeque<OsString> = names(&whole);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = || -> Result<Self> {
            let root = Self::open(Path::new("/")).map_err(failed)?;
            let about = fstat(&root.0).map_err(|e| failed(e.into()))?;
            owner::refuse_others(path, Path::new("/"), about.st_uid, about.st_mode)?;
            Ok(root)
        };
        let (mut at, mut shown) = (root()?, PathBuf::from("/"));
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            let open = || openat(&at.0, &name, flags, Mode::empty());
            let opened = match open() {
                Err(error) if create && error == rustix::io::Errno::NOENT => match mkdirat(&at.0, &name, Mode::RWXU) {
                    Err(error) if error != rustix::io::Errno::EXIST => Err(error),
                    _ => open(),
                },
                opened => opened,
            };
            let entry = opened.map_err(|e| failed(e.into()))?;
            let about = fstat(&entry).map_err(|e| failed(e.into()))?;
            let is_link = FileType::from_raw_mode(about.st_mode) == FileType::Symlink;
            if is_link && is_kernels_link(&entry, &name) {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let reached = openat(&at.0, &name, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
                let about = fstat(&reached).map_err(|e| failed(e.into()))?;
                shown.push(&name);
                owner::refuse_others(path, &shown, about.st_uid, about.st_mode)?;
                at = Self(reached);
                continue;
            }
            if is_link {
                let link = shown.join(&name);
                owner::refuse_link(path, &link, about.st_uid)?;
                links += 1;
                if links > MAX_LINKS {
                    return Err(failed(io::Error::from_raw_os_error(errno::ELOOP)));
                }
                let target = readlinkat(&entry, "", Vec::new()).map_err(|e| failed(e.into()))?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    (at, shown) = (root()?, PathBuf::from("/"));
                }
                for name in names(&target).into_iter().rev() {
                    rest.push_front(name);
                }
                continue;
            }
            if name == ".." {
                let _ = shown.pop();
            } else {
                shown.push(&name)
            }
            owner::refuse_others(path, &shown, about.st_uid, about.st_mode)?;
            at = Self(entry);
        }
        Ok(at)
    }

    fn within(&self, below: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.0, below, flags | OFlags::CLOEXEC, mode, resolve).map_err(|error| {
            if error == rustix::io::Errno::LOOP {
                io::Error::new(io::ErrorKind::PermissionDenied, has_link(below))
            } else {
                error.into()
            }
        })
    }

    /// Opens a directory below this one.
    pub fn folder(&self, below: &Path) -> io::Result<Self> {
        if below.as_os_str().is_empty() {
            return Ok(Self(self.0.try_clone()?));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(Self(self.within(below, flags, Mode::empty())?))
    }

    /// Makes the missing directories of a path below this one; returns all of them, the last one first, and this one
    /// last.
    pub fn make_folders(&self, below: &Path) -> io::Result<Vec<Self>> {
        let mut folders = vec![self.folder(Path::new(""))?];
        for name in names(below) {
            let last = folders.last().unwrap_or(self);
            match mkdirat(&last.0, &name, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
                Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
                _ => {}
            }
            let next = last.folder(Path::new(&name))?;
            folders.push(next);
        }
        folders.reverse();
        Ok(folders)
    }

    /// Opens a regular file for reading.
    pub fn file(&self, below: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(self.within(below, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            let why = "it is not a regular file";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(file)
    }

    /// Creates a file in this directory, which must not exist yet.
    pub fn new_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_bits_truncate(0o666);
        Ok(File::from(self.within(Path::new(name), flags, mode)?))
    }

    /// Gives a file in this directory a second name, which must not exist yet.
    pub fn link(&self, name: &OsStr, second: &OsStr) -> io::Result<()> {
        Ok(linkat(&self.0, name, &self.0, second, AtFlags::empty())?)
    }

    /// Renames a file in this directory, and replaces another of the new name.
    pub fn rename(&self, name: &OsStr, new: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, name, &self.0, new)?)
    }

    /// Removes a file in this directory.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    fn readable(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.0, ".", flags, Mode::empty())?)
    }

    /// Writes the names of this directory to the disk.
    pub fn sync(&self) -> io::Result<()> {
        File::from(self.readable()?).sync_all()
    }

    /// Returns all regular files below a directory below this one, by their paths below this one. Files that are
    /// removed meanwhile are missing.
    pub fn files(&self, below: &Path) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        let mut open = vec![below.to_owned()];
        while let Some(directory) = open.pop() {
            let folder = match self.folder(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                folder => folder?,
            };
            for entry in Dir::new(folder.readable()?)? {
                let entry = entry?;
                let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                if name == "." || name == ".." {
                    continue;
                }
                let path = directory.join(&name);
                if entry.file_type() == FileType::Directory {
                    open.push(path);
                    continue;
                }
                let about = match statat(&folder.0, &name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(error) if error == rustix::io::Errno::NOENT => continue,
                    about => about?,
                };
                match FileType::from_raw_mode(about.st_mode) {
                    FileType::Directory => open.push(path),
                    FileType::Symlink => {
                        let kind = io::ErrorKind::PermissionDenied;
                        return Err(io::Error::new(kind, has_link(&path)));
                    }
                    FileType::RegularFile => found.push(listed(path, &about)),
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn listed(path: PathBuf, about: &Stat) -> Listed {
    let (seconds, ns) = (u64::try_from(about.st_mtime), u32::try_from(about.st_mtime_nsec));
    let since = Duration::new(seconds.unwrap_or(0), ns.unwrap_or(0));
    Listed { path, bytes: u64::try_from(about.st_size).unwrap_or(0), changed: SystemTime::UNIX_EPOCH + since }
}

fn has_link(path: &Path) -> String {
    format!("trawl follows no links here, and {} has one", path.display())
}

/// Returns true if a link is one of /proc to an object, not to a path: `root`, `cwd`, a descriptor.
fn is_kernels_link(link: &OwnedFd, name: &OsStr) -> bool {
    let is_path = ["self", "thread-self", "mounts", "net"].iter().any(|path| name == *path);
    !is_path && fstatfs(link).is_ok_and(|about| about.f_type == PROC_SUPER_MAGIC)
}

/// Returns the names in a path.
fn names(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// Opens a regular file that belongs to this user or root for reading, by its path below a directory.
pub fn open(directory: &Path, below: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = Directory(openat(CWD, directory, flags, Mode::empty())?);
    let file = from.file(below)?;
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&file.metadata()?.uid()) {
        let why = "it belongs to another user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(file)
}

/// Reads a file that [`open`] opens.
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

    #[test]
    fn links_of_others_in_the_path_to_a_directory_are_refused() {
        use std::os::unix::fs::{PermissionsExt, lchown};
        let directory = std::env::temp_dir().join(format!("trawl-own-{}", std::process::id()));
        fs::create_dir_all(directory.join("real/store")).unwrap();
        symlink(directory.join("real"), directory.join("link")).unwrap();
        symlink("../real/store", directory.join("real/inner")).unwrap();
        let open = |below: &str| Directory::open_own(&directory.join(below), false);
        for below in ["real/store", "link/store", "link/inner", "link/../real"] {
            open(below).unwrap();
        }
        assert!(open("real/absent").is_err());
        Directory::open_own(&directory.join("real/new/one"), true).unwrap();
        let mode = |mode| {
            fs::set_permissions(directory.join("real"), fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(0o777);
        let error = open("real/store").unwrap_err().to_string();
        assert!(error.contains("other users may write to"), "{error}");
        assert!(error.contains("real/store") && error.contains("go-w"), "{error}");
        mode(0o755);
        if crate::testing::root_or_skip() {
            lchown(directory.join("link"), Some(65_534), None).unwrap();
            let error = open("link/store").unwrap_err().to_string();
            assert!(error.contains("a link of user 65534"), "{error}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn held_directory_stays_when_its_name_leads_elsewhere() {
        let base = std::env::temp_dir().join(format!("trawl-held-{}", std::process::id()));
        fs::create_dir_all(base.join("store")).unwrap();
        fs::create_dir_all(base.join("victim")).unwrap();
        let held = Directory::open_own(&base.join("store"), false).unwrap();
        fs::rename(base.join("store"), base.join("moved")).unwrap();
        symlink(base.join("victim"), base.join("store")).unwrap();
        let folders = held.make_folders(Path::new("a/b")).unwrap();
        assert_eq!(folders.len(), 3);
        folders[0].new_file(OsStr::new("file")).unwrap();
        assert!(base.join("moved/a/b/file").exists());
        assert_eq!(held.files(Path::new("")).unwrap()[0].path, Path::new("a/b/file"));
        assert_eq!(fs::read_dir(base.join("victim")).unwrap().count(), 0);
        symlink(base.join("victim"), base.join("moved/c")).unwrap();
        assert!(held.make_folders(Path::new("c/d")).is_err());
        assert!(held.files(Path::new("")).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
