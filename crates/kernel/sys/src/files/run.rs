//! Trawl's own directory under /run: locks and changes that wait to be confirmed. Only root can access it, so no other
//! user can block a command or confirm a change.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::files::beneath::Directory;
use crate::{Error, Result};

const DIRECTORY: &str = "/run/trawl";

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

/// Refuses a directory that another user owns or may write, or that is below such a directory: that user could move or
/// replace its contents, or the directory itself.
pub fn check_owner(path: &Path) -> Result<()> {
    Directory::open_own(path, false).map(drop)
}

/// Makes a directory for this user alone, if it is missing, and its parents; refuses it as [`check_owner`] does.
pub fn make_own(path: &Path) -> Result<()> {
    Directory::open_own(path, true).map(drop)
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
