//! A directory that is made or changed as a whole: its draft is complete before it takes the directory's name.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use trawl_sys::files::create;

use super::{NewFile, PRIVATE};

/// Mode of new directories.
const OWN: u32 = 0o700;

/// The draft, which is locked while its process lives, and removed with it. That of a killed process is reused.
pub struct Draft {
    directory: PathBuf,
    path: PathBuf,
    _lock: File,
}

fn make(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(OWN).create(path)
}

impl Draft {
    /// Begins an empty draft of a directory, below the same parent.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let mut name = directory.as_os_str().to_owned();
        name.push(".draft");
        let path = PathBuf::from(name);
        path.parent().map_or(Ok(()), make)?;
        let made = fs::DirBuilder::new().mode(OWN).create(&path);
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_own(&path)?,
            made => made?,
        }
        let lock = File::open(&path)?;
        let is_busy = |_| io::Error::other("another trawl fleet init is changing it");
        lock.try_lock().map_err(is_busy)?;
        let draft = Self { directory: directory.to_owned(), path, _lock: lock };
        draft.clear()?;
        Ok(draft)
    }

    /// Removes what a killed process left.
    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) }?;
        }
        Ok(())
    }

    /// Gives the directory's files, but these, a second name in the draft: what is in them, and who may read them, stays.
    pub fn keep(&self, without: &HashSet<&Path>) -> io::Result<()> {
        self.keep_below(Path::new(""), without)?;
        same_rights(&self.directory, &self.path)
    }

    fn keep_below(&self, below: &Path, without: &HashSet<&Path>) -> io::Result<()> {
        for entry in fs::read_dir(self.directory.join(below))? {
            let entry = entry?;
            let relative = below.join(entry.file_name());
            let copy = self.path.join(&relative);
            if entry.file_type()?.is_dir() {
                make(&copy)?;
                self.keep_below(&relative, without)?;
                same_rights(&entry.path(), &copy)?;
            } else if !without.contains(relative.as_path()) {
                fs::hard_link(entry.path(), copy)?;
            }
        }
        Ok(())
    }

    pub fn write(&self, file: &NewFile) -> io::Result<()> {
        let path = self.path.join(&file.path);
        path.parent().map_or(Ok(()), make)?;
        let mut opened = create::new_file(&path, PRIVATE)?;
        opened.write_all(file.text.as_bytes())?;
        create::set_mode(&opened, file.mode)
    }

    /// Gives the draft the name of a directory that does not exist.
    pub fn create(self) -> io::Result<()> {
        fs::rename(&self.path, &self.directory)
    }

    /// Replaces the directory by the draft.
    pub fn replace(self) -> io::Result<()> {
        create::exchange(&self.path, &self.directory)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Refuses a directory in which another user could read new keys.
fn check_own(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let is_own = found.is_dir() && found.uid() == create::own_user() && found.mode() & 0o077 == 0;
    let why = || io::Error::other(format!("{} is no directory of this user alone", path.display()));
    if is_own { Ok(()) } else { Err(why()) }
}

fn same_rights(of: &Path, to: &Path) -> io::Result<()> {
    let rights = fs::symlink_metadata(of)?;
    chown(to, Some(rights.uid()), Some(rights.gid()))?;
    fs::set_permissions(to, Permissions::from_mode(rights.mode() & 0o7777))
}
