//! The errno values that callers tell apart.

pub use libc::{
    E2BIG, EACCES, EBUSY, EEXIST, EFBIG, EINVAL, ENODEV, ENOENT, ENOLINK, ENOSPC, EOPNOTSUPP,
    EPERM, EPIPE, ERANGE,
};
