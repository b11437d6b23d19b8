//! Files that are created anew, so that trawl never writes to another user's file or through a planted link.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, renameat_with};

/// The mode of new files before the umask.
const READABLE: u32 = 0o666;

/// Creates a file that must not exist yet.
pub fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Opens an existing file, without following a link.
pub fn existing_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Makes new files and directories of this process private to its user.
pub fn private_umask() {
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
}

/// Creates a file without a name, which is gone when it is closed.
pub fn unnamed_in(directory: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(directory)
}

/// Gives a file without a name a name, in the place of a file that has it.
pub fn name(file: &File, path: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    by_draft(path, |draft| Ok(linkat(CWD, own, CWD, draft, AtFlags::SYMLINK_FOLLOW)?))
}

/// Opens the file of this name, so that its space is not freed before this is closed.
pub fn hold(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)
}

/// Replaces the content of a file atomically. A file planted under the draft's name is not written to, and a link under
/// the file's own name is replaced.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    by_draft(path, |draft| new_file(draft, READABLE)?.write_all(bytes))
}

/// Makes a draft, which does not exist yet, and gives it its name.
fn by_draft(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".draft");
    let draft = Path::new(&draft);
    // A command that was killed may have left its draft.
    match std::fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let done = make(draft).and_then(|()| std::fs::rename(draft, path));
    if done.is_err() {
        let _ = std::fs::remove_file(draft);
    }
    done
}

/// Exchanges the names of two files or directories of a file system, at once.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

/// Sets the mode of a file, whatever the umask.
pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// Returns the group that this process acts as.
pub fn own_group() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Returns the user that this process acts as.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_planted_under_the_drafts_name_is_not_written_to() {
        let directory = std::env::temp_dir().join(format!("trawl-create-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (victim, page) = (directory.join("victim"), directory.join("page.html"));
        std::fs::write(&victim, "precious").expect("a file");
        symlink(&victim, directory.join("page.html.draft")).expect("a link");
        symlink(&victim, &page).expect("a link");
        replace(&page, b"new").expect("it is written");
        assert_eq!(std::fs::read(&victim).expect("a file"), b"precious");
        assert_eq!(std::fs::read(&page).expect("a file"), b"new");
        assert!(!directory.join("page.html.draft").exists());
        std::fs::remove_dir_all(&directory).expect("it can be removed");
    }
}
