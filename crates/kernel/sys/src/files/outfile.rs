//! Output files, protected against files planted by other users.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result, files::create};

const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const ROOT: u32 = 0;

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns true if a user other than this one and root can put files into the path's directory.
fn others_can_write_beside(path: &Path) -> bool {
    directory_of(path).metadata().is_ok_and(|directory| {
        let mode = directory.mode();
        let by_group = mode & WRITABLE_BY_GROUP != 0 && directory.gid() != create::own_group();
        mode & WRITABLE_BY_OTHERS != 0 || by_group || !is_trusted(directory.uid())
    })
}

fn is_trusted(user: u32) -> bool {
    user == ROOT || user == create::own_user()
}

/// Maximum number of links in a path, as in the kernel: more are a cycle.
const MOST_LINKS: u32 = 40;

/// Returns the file that a path leads to. In a directory that others may write to, such as /tmp, they could plant a
/// symbolic link to a file that only this user may write. There, a link at the end of the path is refused, and a link
/// on the way is followed only if it belongs to this user or root.
fn resolve(path: &Path) -> Result<PathBuf> {
    let refused = |link: &Path| {
        let what = format!("cannot write to {}", path.display());
        let directory = directory_of(link).display();
        let why = if link == path {
            format!("it is a symbolic link in {directory}, where others can put one")
        } else {
            format!("{} is a symbolic link in {directory}, where others can put one", link.display())
        };
        Error::failed(what, why).fix("name the file that it leads to")
    };
    let mut resolved = if path.is_absolute() { PathBuf::new() } else { PathBuf::from(".") };
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().map(|part| part.as_os_str().to_owned());
        parts.rev().collect()
    };
    let mut left = parts(path);
    let mut links = 0;
    while let Some(part) = left.pop() {
        let next = resolved.join(part);
        let target = match next.symlink_metadata() {
            Ok(about) if about.is_symlink() => about,
            _ => {
                resolved = next;
                continue;
            }
        };
        if others_can_write_beside(&next) && (left.is_empty() || !is_trusted(target.uid())) {
            return Err(refused(next.strip_prefix("./").unwrap_or(&next)));
        }
        links += 1;
        // Links in /proc lead to open files, whose names may meanwhile belong to other files.
        match std::fs::read_link(&next) {
            Ok(to) if links <= MOST_LINKS && !next.starts_with("/proc") => {
                left.extend(parts(&to));
                resolved = if to.is_absolute() { PathBuf::new() } else { resolved };
            }
            _ => return Ok(path.to_owned()),
        }
    }
    Ok(match resolved.strip_prefix(".") {
        Ok(relative) => relative.to_owned(),
        Err(_) => resolved,
    })
}

/// Default mode of files with captured packets: they are private.
pub const PRIVATE: u32 = 0o600;

/// Opens a file for writing; returns true if it was created now. An existing file is not truncated. In a directory that
/// others can write to, an existing file must belong to this user, or to the directory's owner if only a group may
/// write.
pub fn open(path: &Path, mode: Option<u32>) -> Result<(File, bool)> {
    let fail = |e| cannot_open(path, e);
    let leads_to = resolve(path)?;
    if others_can_write_beside(&leads_to) && path.is_symlink() {
        let what = format!("cannot write to {}", path.display());
        let directory = directory_of(&leads_to).display();
        let why = format!("it is a symbolic link into {directory}, where others can put files");
        return Err(Error::failed(what, why).fix("name the file that it leads to"));
    }
    // A file in a directory that a link leads to is treated like one in that directory.
    let path = if others_can_write_beside(&leads_to) { leads_to.as_path() } else { path };
    match create::new_file(path, mode.unwrap_or(PRIVATE)) {
        Ok(file) => {
            if let Some(mode) = mode {
                create::set_mode(&file, mode).map_err(fail)?;
            }
            return Ok((file, true));
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(fail(error)),
    }
    if !others_can_write_beside(path) {
        let file = File::options().write(true).open(path).map_err(fail)?;
        return Ok((file, false));
    }
    let file = create::existing_file(path).map_err(fail)?;
    let about = file.metadata().map_err(fail)?;
    let directory = directory_of(path).metadata().map_err(fail)?;
    let is_known = about.uid() == create::own_user()
        || (directory.mode() & WRITABLE_BY_OTHERS == 0 && about.uid() == directory.uid());
    if !is_known || (about.is_file() && about.nlink() > 1) {
        let what = format!("cannot write to {}", path.display());
        let why = "the file exists, belongs to another user, and others can write to its directory";
        return Err(Error::failed(what, why).fix("remove it, or write to another directory"));
    }
    Ok((file, false))
}

/// Returns the error for a file that cannot be opened, with the command to type.
fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    let directory = directory_of(path);
    let fix = match error.kind() {
        ErrorKind::IsADirectory => format!("name a file in it: {}/FILE", path.display()),
        ErrorKind::NotFound if !directory.exists() => {
            format!("make its directory: mkdir -p {}", directory.display())
        }
        _ => String::new(),
    };
    let error = Error::os(format!("cannot write to {}", path.display()), error);
    if fix.is_empty() { error } else { error.fix(fix) }
}

/// Refuses a path that cannot be one of a series of files.
pub fn check_regular(path: &Path) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        let what = format!("cannot write to {}", path.display());
        let error = Error::failed(what, "it exists and is not a regular file");
        return Err(error.fix("remove it, or name other files"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Creates a directory of the user's own, and a world-writable one below it.
    fn scratch(name: &str) -> (PathBuf, PathBuf) {
        let own = std::env::temp_dir().join(format!("trawl-outfile-{name}-{}", std::process::id()));
        let shared = own.join("shared");
        std::fs::create_dir_all(&shared).expect("a directory");
        let mode = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(&shared, mode).expect("its owner may");
        (own, shared)
    }

    #[test]
    fn only_links_where_others_write_are_refused() {
        let (own, shared) = scratch("links");
        symlink(own.join("target"), own.join("link")).expect("a link");
        symlink(own.join("target"), shared.join("link")).expect("a link");
        symlink(shared.join("link"), own.join("chain")).expect("a link");
        assert_eq!(resolve(&own.join("link")).expect("it is one's own"), own.join("target"));
        for refused in [shared.join("link"), own.join("chain")] {
            let error = open(&refused, None).expect_err("others may have put it there");
            assert!(error.to_string().contains("symbolic link in"), "{error}");
        }
        assert!(!own.join("target").exists());
        assert!(resolve(&shared.join("new")).is_ok());
        // A directory that a group may write to, and one of another user's.
        let mode = std::fs::Permissions::from_mode(0o770);
        std::fs::set_permissions(&shared, mode).expect("its owner may");
        assert!(open(&shared.join("file"), None).is_ok());
        if create::own_user() == ROOT {
            for (user, group) in [(0, 1), (65534, 0)] {
                std::os::unix::fs::chown(&shared, Some(user), Some(group)).expect("root may");
                assert!(open(&shared.join("link"), None).is_err());
                assert!(open(&shared.join("file"), None).is_ok());
            }
        }
        std::fs::remove_dir_all(&own).expect("it can be removed");
    }

    /// Guards against this user's own links to a directory in which others may have planted a file, and against own
    /// links on the way.
    #[test]
    fn no_link_leads_into_a_shared_directory() {
        let (own, shared) = scratch("chain");
        symlink(shared.join("file"), own.join("link")).expect("a link");
        let error = open(&own.join("link"), None).expect_err("others can put files there");
        assert!(error.to_string().contains("symbolic link into"), "{error}");
        assert!(!shared.join("file").exists());
        let (_, is_new) = open(&shared.join("file"), None).expect("it is made there");
        assert!(is_new);
        std::fs::hard_link(shared.join("file"), shared.join("again")).expect("a second name");
        assert!(open(&shared.join("file"), None).is_err());
        symlink(&own, shared.join("way")).expect("a link");
        assert!(open(&shared.join("way/below"), None).is_ok());
        assert!(own.join("below").is_file());
        symlink("circle", own.join("circle")).expect("a link");
        assert!(open(&own.join("circle"), None).is_err());
        std::fs::remove_dir_all(&own).expect("it can be removed");
    }
}
