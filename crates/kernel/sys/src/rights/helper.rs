//! A child process that keeps privileges which this one gives up: it carries out requests, and ends with this one.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::thread::set_name;

use crate::events::is_readable;
use crate::process::warden::close_all_but;
use crate::rights::privilege::KeptPrivileges;
use crate::{Error, Result};

/// Maximum size of requests and answers.
const MAX_MESSAGE: usize = 8192;

/// An answer: some bytes, and a file if the request asked for one.
#[derive(Debug, Default)]
pub struct HelperAnswer {
    pub bytes: Vec<u8>,
    pub file: Option<OwnedFd>,
}

impl HelperAnswer {
    /// Returns an answer of any length, in a file.
    pub fn long(bytes: &[u8]) -> io::Result<Self> {
        let file = memfd_create("answer", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(bytes)?;
        file.rewind()?;
        Ok(Self { bytes: b"long".to_vec(), file: Some(file.into()) })
    }

    /// Returns the bytes of a long answer.
    pub fn read(self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.file.ok_or(io::ErrorKind::InvalidData)?;
        File::from(file).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The work of a helper.
pub trait Duty {
    fn answer(&mut self, request: &[u8]) -> HelperAnswer;

    /// Called once the process that sends requests is gone, for any reason.
    fn end(&mut self) {}
}

#[derive(Debug)]
pub struct Helper {
    process: libc::pid_t,
    socket: Option<OwnedFd>,
}

impl Helper {
    /// Starts a helper with the privileges to keep, or with all of this process. It keeps the standard descriptors and
    /// no others; no other thread may be running.
    pub fn start(name: &CStr, kept: Option<&KeptPrivileges>, duty: &mut dyn Duty) -> Result<Self> {
        Self::run(name, kept, &[], |socket| serve(socket, duty))
    }

    /// Starts a helper that sends files without requests. It keeps these descriptors too.
    pub fn run(
        name: &CStr,
        kept: Option<&KeptPrivileges>,
        descriptors: &[BorrowedFd<'_>],
        run: impl FnOnce(&OwnedFd),
    ) -> Result<Self> {
        let fail = |e| Error::os(format!("cannot start {}", name.to_string_lossy()), e);
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|e| fail(e.into()))?;
        // SAFETY: the child runs only the code below and never returns into the caller. No other thread runs that could
        // hold a lock.
        match unsafe { libc::fork() } {
            -1 => Err(fail(io::Error::last_os_error())),
            0 => {
                let mut keep: Vec<RawFd> = vec![0, 1, 2, other.as_raw_fd()];
                keep.extend(descriptors.iter().map(AsRawFd::as_raw_fd));
                crate::files::lock::forget_inherited();
                close_all_but(&mut keep);
                let _ = set_name(name);
                // A helper that cannot give up the other privileges ends, and the first request fails.
                if kept.is_none_or(|kept| kept.give_up_others().is_ok()) {
                    run(&other);
                }
                // SAFETY: ends the child at once, without running the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            process => Ok(Self { process, socket: Some(own) }),
        }
    }

    /// Sends a request and waits for the answer.
    pub fn ask(&self, request: &[u8]) -> io::Result<HelperAnswer> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(socket, request, None)?;
        receive(socket)?.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
    }

    /// Sends a request whose answer [`Self::answer`] returns later.
    pub fn request(&self, request: &[u8]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(socket, request, None)
    }

    /// Returns the answer to a request, if it has arrived.
    pub fn answer(&self) -> io::Result<Option<HelperAnswer>> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        if is_readable(socket.as_fd()) {
            Ok(Some(receive(socket)?.ok_or(io::ErrorKind::BrokenPipe)?))
        } else {
            Ok(None)
        }
    }

    /// Waits for what the helper sends next without a request.
    pub fn receive(&self) -> io::Result<HelperAnswer> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        receive(socket)?.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.socket.take());
        // SAFETY: waits for our own child and takes no result.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

fn serve(socket: &OwnedFd, duty: &mut dyn Duty) {
    while let Ok(Some(request)) = receive(socket) {
        let answer = duty.answer(&request.bytes);
        if send(socket, &answer.bytes, answer.file.as_ref()).is_err() {
            break;
        }
    }
    duty.end();
}

pub fn send(socket: &OwnedFd, bytes: &[u8], file: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    let bytes = &bytes[..bytes.len().min(MAX_MESSAGE)];
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives an answer; `None` once the other end is closed.
fn receive(socket: &OwnedFd) -> io::Result<Option<HelperAnswer>> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(got.bytes);
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(Some(HelperAnswer { bytes, file }))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Opens;

    impl Duty for Opens {
        fn answer(&mut self, request: &[u8]) -> HelperAnswer {
            let file = rustix::fs::memfd_create("made", rustix::fs::MemfdFlags::empty());
            let file = file.ok().and_then(|file| {
                rustix::io::write(&file, request).ok()?;
                Some(file)
            });
            HelperAnswer { bytes: b"made".to_vec(), file }
        }
    }

    #[test]
    fn files_are_passed_and_the_helper_ends_with_its_owner() {
        let helper = Helper::start(c"trawl-test", None, &mut Opens).expect("it starts");
        for text in [&b"one"[..], b"two"] {
            let answer = helper.ask(text).expect("it answers");
            assert_eq!(answer.bytes, b"made");
            let mut file = std::fs::File::from(answer.file.expect("a file"));
            let mut read = Vec::new();
            file.rewind().expect("it can be read again");
            file.read_to_end(&mut read).expect("it can be read");
            assert_eq!(read, text);
        }
        // Dropping waits for the helper's end.
        drop(helper);
    }

    struct Repeats;

    impl Duty for Repeats {
        fn answer(&mut self, request: &[u8]) -> HelperAnswer {
            HelperAnswer::long(&request.repeat(MAX_MESSAGE)).expect("memory")
        }
    }

    #[test]
    fn long_answers_arrive_later() {
        let helper = Helper::start(c"trawl-test", None, &mut Repeats).expect("it starts");
        helper.request(b"one").expect("it runs");
        let answer = loop {
            match helper.answer().expect("it runs") {
                Some(answer) => break answer,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(answer.read().expect("a file"), b"one".repeat(MAX_MESSAGE));
    }
}
