//! Checks classic programs by attaching them to a socket that receives nothing.

use std::io;
use std::os::fd::OwnedFd;

use trawl_sys::{Error, Result, netlink::socket_option};

/// One instruction of a classic program.
pub type Instruction = libc::sock_filter;

/// A socket to try classic programs on. It requires no privileges.
#[derive(Debug)]
pub struct ClassicChecker {
    socket: OwnedFd,
}

impl ClassicChecker {
    pub fn new() -> Result<Self> {
        use rustix::net::{AddressFamily, SocketType, socket};
        let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)
            .map_err(|e| Error::os("cannot open a socket to try a filter on", e.into()))?;
        Ok(Self { socket })
    }

    /// Asks the kernel to accept the program; the error is its errno.
    pub fn check(&self, program: &[Instruction]) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
            filter: program.as_ptr().cast_mut(),
        };
        socket_option::set(&self.socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checker_applies_the_kernels_rules() {
        let checker = ClassicChecker::new().expect("a socket");
        let one = |code, k| Instruction { code, jt: 0, jf: 0, k };
        let good = [one(0x06, 65535)];
        let endless = [one(0x05, u32::MAX), one(0x06, 0)];
        let unfinished = [one(0x20, 0)];
        checker.check(&good).expect("a return is a program");
        for bad in [&endless[..], &unfinished[..], &[]] {
            let error = checker.check(bad).expect_err("not a program");
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
    }
}
