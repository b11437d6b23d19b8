//! Trawl's own directory under /run: locks and changes that wait to be confirmed. Only root can access it, so no other user
//! can block a command or confirm a change.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

const DIRECTORY: &str = "/run/trawl";
/// The mode bits for writing by users other than the owner.
pub(super) const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Returns a directory below trawl's own, created if it is missing; `None` if this process is not root, and may not create
/// it.
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

/// Refuses a directory that another user owns or may write: that user could move or replace its contents.
pub fn check_owner(path: &Path) -> Result<()> {
    let what = || format!("cannot use {}", path.display());
    let about = fs::symlink_metadata(path).map_err(|e| Error::os(what(), e))?;
    if !about.is_dir() {
        return Err(
            Error::failed(what(), "it is not a directory").fix(format!("rm {}", path.display()))
        );
    }
    if about.uid() != 0 && about.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::failed(
            what(),
            format!(
                "it belongs to user {}, who could remove trawl's files in it",
                about.uid()
            ),
        )
        .fix(format!("mv {0} {0}.old, as root", path.display())));
    }
    if about.mode() & OTHERS_WRITE != 0 && about.mode() & STICKY == 0 {
        return Err(Error::failed(
            what(),
            format!(
                "other users may write to it (mode {:04o}), and could remove trawl's files in it",
                about.mode() & 0o7777
            ),
        )
        .fix(format!("chmod go-w {}", path.display())));
    }
    Ok(())
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
