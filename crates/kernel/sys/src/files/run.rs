//! Trawl's own directory under /run: locks and changes that wait to be confirmed. Only root can access it, so no other
//! user can block a command or confirm a change.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::files::beneath::Directory;
use crate::words::path_word;
use crate::{Error, Result};

const DIRECTORY: &str = "/run/trawl";
/// The mode bits for writing by users other than the owner.
pub(crate) const OTHERS_WRITE: u32 = 0o022;
pub(crate) const STICKY: u32 = 0o1000;

/// Returns a directory below trawl's own, created if it is missing; `None` if this process is not root, and may not
/// create it.
pub fn directory(name: &str) -> Result<Option<PathBuf>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let below = Path::new(DIRECTORY).join(name);
    for path in [Path::new(DIRECTORY), &below] {
        if path.symlink_metadata().is_err() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|e| Error::os(format!("cannot make {}", path.display()), e))?;
        }
        check_owner(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(|e| Error::os(format!("cannot make {} private", path.display()), e))?;
    }
    Ok(Some(below))
}

/// Returns the user whose rights this process has.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn unusable(path: &Path) -> String {
    format!("cannot use {}", path.display())
}

/// Refuses a directory that another user owns or may write, or that is below such a directory: that user could move or
/// replace its contents, or the directory itself.
pub fn check_owner(path: &Path) -> Result<()> {
    Directory::open_own(path, false).map(drop)
}

/// Makes a directory for this user alone, if it is missing, and its parents; refuses it as [`check_owner`] does.
pub fn make_own(path: &Path) -> Result<()> {
    Directory::open_own(path, true).map(drop)
}

/// Refuses a directory, `path` or one above it, if another user could rename its contents.
pub(crate) fn refuse_others(path: &Path, directory: &Path, owner: u32, mode: u32) -> Result<()> {
    let shown = directory.display();
    if FileType::from_raw_mode(mode) != FileType::Directory {
        return Err(Error::failed(unusable(path), format!("{shown} is not a directory")));
    }
    let it = match directory == path {
        true => "it".to_owned(),
        false => shown.to_string(),
    };
    if owner != 0 && owner != own_user() {
        let why = format!("{it} belongs to user {owner}, who could move trawl's files in it");
        let error = Error::failed(unusable(path), why);
        return Err(match directory == path {
            true => error.fix(format!("mv {0} {0}.old, as root", path_word(directory))),
            false => error.fix("name another directory, whose parents are root's or this user's"),
        });
    }
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        let mode = mode & 0o7777;
        let why = format!("other users may write to {it} (mode {mode:04o}), and could move trawl's files in it");
        return Err(Error::failed(unusable(path), why).fix(format!("chmod go-w {}", path_word(directory))));
    }
    Ok(())
}

/// Refuses a link in `path` that another user could change.
pub(crate) fn refuse_link(path: &Path, link: &Path, owner: u32) -> Result<()> {
    if owner == 0 || owner == own_user() {
        return Ok(());
    }
    let why = format!("{} is a link of user {owner}", link.display());
    Err(Error::failed(unusable(path), why).fix("name the directory that it leads to"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn directories_of_others_are_refused() {
        let path = std::env::temp_dir().join(format!("trawl-run-{}", std::process::id()));
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        fs::create_dir(&path).unwrap();
        mode(0o755);
        assert!(check_owner(&path).is_ok());
        mode(0o777);
        let error = check_owner(&path).unwrap_err().to_string();
        assert!(error.contains("chmod go-w"), "{error}");
        mode(0o1777);
        assert!(check_owner(&path).is_ok(), "only owners move things there");
        mode(0o700);
        if crate::testing::root_or_skip() {
            chown(&path, Some(65534), None).unwrap();
            let error = check_owner(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
        fs::remove_dir(&path).unwrap();
    }
}
