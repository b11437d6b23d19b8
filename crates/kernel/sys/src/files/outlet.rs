//! A pipe, terminal or socket that is written to without waiting for its reader.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Number of bytes that a pipe accepts without blocking if poll(2) reports it as writable.
const PIPE_BUF: usize = 4096;

#[derive(Debug)]
pub struct Outlet {
    file: File,
    /// Set if a write may block because other processes share the descriptor's flags: readiness is checked first.
    may_block: bool,
}

impl Outlet {
    pub fn new(file: File) -> Self {
        let kind = file.metadata().map(|about| about.file_type());
        if kind.as_ref().is_ok_and(|kind| kind.is_file()) {
            return Self { file, may_block: false };
        }
        // A reopened descriptor has flags of its own. Sockets cannot be reopened; other users' pipes may not be.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = kind
            .is_ok_and(|kind| kind.is_fifo() || kind.is_char_device())
            .then(|| OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok())
            .flatten();
        match again {
            Some(file) => Self { file, may_block: false },
            None => Self { file, may_block: true },
        }
    }

    /// Writes as many bytes as fit at once, and returns their number. An error applies to the bytes after them.
    pub fn write(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut done = 0;
        while done < bytes.len() {
            if self.may_block && !self.is_ready() {
                break;
            }
            let most = if self.may_block { PIPE_BUF } else { usize::MAX };
            let end = bytes.len().min(done.saturating_add(most));
            match self.file.write(&bytes[done..end]) {
                Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    /// Returns true if a write would not block, whether it succeeds or fails.
    fn is_ready(&self) -> bool {
        let mut set = [PollFd::new(&self.file, PollFlags::OUT)];
        poll(&mut set, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A writer that waits for its reader, even if another process made the shared descriptor non-blocking.
#[derive(Debug)]
pub struct Patient<W>(pub W);

impl<W: AsFd> Patient<W> {
    fn retry_when_writable<T>(&mut self, mut attempt: impl FnMut(&mut W) -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt(&mut self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            let mut set = [PollFd::new(&self.0, PollFlags::OUT)];
            match poll(&mut set, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl<W: Write + AsFd> Write for Patient<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry_when_writable(|writer| writer.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.retry_when_writable(W::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_pipe_accepts_part_of_a_write() {
        for shared_flags in [false, true] {
            let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
            let mut outlet = Outlet::new(File::from(writer));
            outlet.may_block = shared_flags;
            let much = vec![7; 1 << 20];
            let (done, result) = outlet.write(&much);
            assert!(result.is_ok() && done > 0 && done < much.len(), "{done}");
            assert_eq!(outlet.write(&much).0, 0);
            let mut taken = vec![0; done];
            io::Read::read_exact(&mut File::from(reader), &mut taken).expect("what was written");
        }
    }

    #[test]
    fn closed_reader_is_an_error() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let mut outlet = Outlet::new(File::from(writer));
        drop(reader);
        let (done, result) = outlet.write(b"x");
        let error = result.expect_err("nobody reads");
        assert_eq!((done, error.raw_os_error()), (0, Some(libc::EPIPE)));
    }
}
