//! Refusal of directories and links that belong to other users, who could move or replace files there.

use std::path::Path;

use rustix::fs::FileType;

use crate::files::create::own_user;
use crate::words::path_word;
use crate::{Error, Result};

/// The mode bits for writing by users other than the owner.
pub(crate) const OTHERS_WRITE: u32 = 0o022;
pub(crate) const STICKY: u32 = 0o1000;

pub(crate) fn unusable(path: &Path) -> String {
    format!("cannot use {}", path.display())
}

/// Refuses a directory (`path` itself, or one above it) if another user could rename its contents.
pub(crate) fn refuse_others(path: &Path, directory: &Path, owner: u32, mode: u32) -> Result<()> {
    let shown = directory.display();
    if FileType::from_raw_mode(mode) != FileType::Directory {
        return Err(Error::failed(unusable(path), format!("{shown} is not a directory")));
    }
    let it = if directory == path { "it".to_owned() } else { shown.to_string() };
    if owner != 0 && owner != own_user() {
        let why = format!("{it} belongs to user {owner}, who could move trawl's files in it");
        let error = Error::failed(unusable(path), why);
        return Err(if directory == path {
            error.fix(format!("mv {0} {0}.old, as root", path_word(directory)))
        } else {
            error.fix("name another directory, whose parents are root's or this user's")
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
