//! Files that are written: what a stranger may have put in their place.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use trawl_kernel::{Error, Result};

const WRITABLE_BY_OTHERS: u32 = 0o002;

/// In a directory that anybody may write to, such as /tmp, a symbolic link of that name may lead to a file that only
/// this user may write.
pub fn refuse_planted_link(path: &Path) -> Result<()> {
    let Ok(link) = path.symlink_metadata() else {
        return Ok(());
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let everybodys = directory
        .metadata()
        .is_ok_and(|directory| directory.mode() & WRITABLE_BY_OTHERS != 0);
    if link.file_type().is_symlink() && everybodys {
        let what = format!("cannot write to {}", path.display());
        let why = format!(
            "it is a symbolic link in {}, where anybody can put one",
            directory.display()
        );
        return Err(Error::failed(what, why).mend("name the file that it leads to"));
    }
    Ok(())
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
