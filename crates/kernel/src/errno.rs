//! The errno values that callers tell apart.

pub use libc::{
    E2BIG, EACCES, EBUSY, EEXIST, EINVAL, ENODEV, ENOENT, ENOLINK, ENOSPC, EOPNOTSUPP, EPERM,
    EPIPE, ERANGE,
};
