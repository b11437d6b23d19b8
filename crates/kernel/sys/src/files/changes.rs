//! Changes of files, as the kernel announces them (inotify).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// A descriptor that becomes readable once a file, or one in a directory, is written, created, renamed or removed on this
/// machine.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// Watches a file or a directory from now on.
    pub fn watch(path: &Path) -> io::Result<Self> {
        let kinds =
            WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&descriptor, path, kinds)?;
        Ok(Self(descriptor))
    }

    /// Forgets the changes so far.
    pub fn clear(&self) {
        let mut room = [0; 4096];
        while rustix::io::read(&self.0, &mut room).is_ok_and(|length| length > 0) {}
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
