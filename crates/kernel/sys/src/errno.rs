//! The errno values that callers distinguish.

pub use libc::{
    E2BIG, EACCES, EBUSY, EDQUOT, EEXIST, EFBIG, EINVAL, EIO, ELOOP, ENODEV, ENOENT, ENOLINK, ENOSPC, EOPNOTSUPP,
    EPERM, EPIPE, ERANGE, ESRCH,
};

/// Returns the name of an error that the kernel's XDP code returns, and the number of any other error.
pub fn name(number: u32) -> String {
    let names = [
        (libc::ENXIO, "ENXIO"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EFAULT, "EFAULT"),
        (libc::EBUSY, "EBUSY"),
        (libc::ENODEV, "ENODEV"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ERANGE, "ERANGE"),
        (libc::EMSGSIZE, "EMSGSIZE"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ENETDOWN, "ENETDOWN"),
        (libc::ENOBUFS, "ENOBUFS"),
    ];
    let known = names.iter().find(|(error, _)| *error as u32 == number);
    known.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}
