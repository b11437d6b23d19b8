//! Files that are written: what a stranger may have put in their place.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use trawl_kernel::{Error, Result, create};

const WRITABLE_BY_OTHERS: u32 = 0o002;

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn is_everybodys(path: &Path) -> bool {
    let about = directory_of(path).metadata();
    about.is_ok_and(|directory| directory.mode() & WRITABLE_BY_OTHERS != 0)
}

/// In a directory that anybody may write to, such as /tmp, a symbolic link of that name may lead to a file that only
/// this user may write.
pub fn refuse_planted_link(path: &Path) -> Result<()> {
    let Ok(link) = path.symlink_metadata() else {
        return Ok(());
    };
    let directory = directory_of(path);
    if link.file_type().is_symlink() && is_everybodys(path) {
        let what = format!("cannot write to {}", path.display());
        let why = format!(
            "it is a symbolic link in {}, where anybody can put one",
            directory.display()
        );
        return Err(Error::failed(what, why).fix("name the file that it leads to"));
    }
    Ok(())
}

/// What captured packets are written with, if nobody says otherwise: they are nobody else's business.
pub const PRIVATE: u32 = 0o600;

/// A file for writing, and whether it was made now. One that is there is left as it is. Where anybody can put files, one
/// that is there must be this user's own.
pub fn open(path: &Path, mode: Option<u32>) -> Result<(File, bool)> {
    let fail = |e| Error::os(format!("cannot write to {}", path.display()), e);
    refuse_planted_link(path)?;
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
    if !is_everybodys(path) {
        let file = File::options().write(true).open(path).map_err(fail)?;
        return Ok((file, false));
    }
    let file = create::existing_file(path).map_err(fail)?;
    let about = file.metadata().map_err(fail)?;
    if about.uid() != create::own_user() || (about.is_file() && about.nlink() > 1) {
        let what = format!("cannot write to {}", path.display());
        let why = "it is there already, is not this user's own, and anybody can put files there";
        return Err(Error::failed(what, why).fix("remove it, or write to another directory"));
    }
    Ok((file, false))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_links_where_anybody_writes_are_refused() {
        let scratch = std::env::temp_dir().join(format!("trawl-outfile-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).expect("a directory");
        let link = scratch.join("link");
        symlink(scratch.join("target"), &link).expect("a link");
        let allow =
            |mode| std::fs::set_permissions(&scratch, std::fs::Permissions::from_mode(mode));
        allow(0o755).expect("its owner may");
        assert!(refuse_planted_link(&link).is_ok());
        allow(0o1777).expect("its owner may");
        assert!(refuse_planted_link(&link).is_err());
        assert!(refuse_planted_link(&scratch.join("new")).is_ok());
        std::fs::remove_dir_all(&scratch).expect("it can be removed");
    }
}
