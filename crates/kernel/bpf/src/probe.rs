//! What this kernel and these privileges allow, found out by trying.
//!
//! Versions tell little: features are ported back, compiled out, or forbidden by a policy. So each one
//! is tried, once in the life of the process, and the answer says which of the three it was.

pub mod attached;
mod attempt;
mod btf;
mod feature;
mod privilege;

pub use btf::kernel_function;
pub use feature::Feature;
pub use privilege::{Capability, has_capability, lack_of, missing_capabilities};

use std::io;

/// What came of trying a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Supported,
    /// The kernel does not have it.
    NotSupported {
        why: String,
    },
    /// The kernel may have it, but said no: privileges or a policy.
    Refused {
        errno: i32,
        why: String,
    },
}

impl Answer {
    pub fn is_supported(&self) -> bool {
        *self == Self::Supported
    }

    /// The reason, if it was not "yes".
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Supported => None,
            Self::NotSupported { why } | Self::Refused { why, .. } => Some(why),
        }
    }

    fn lacking(why: impl Into<String>) -> Self {
        Self::NotSupported { why: why.into() }
    }

    /// Reads a failed attempt: permission errors are refusals, the rest means there is no such thing.
    fn from_error(error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        match errno {
            libc::EPERM | libc::EACCES => Self::Refused {
                errno,
                why: refusal(),
            },
            libc::ENOSYS => Self::lacking("the kernel has no such system call"),
            libc::EAFNOSUPPORT => Self::lacking("the kernel has no such sockets"),
            _ => Self::lacking(format!("the kernel does not know it ({})", words(errno))),
        }
    }

    fn from_result<T>(result: io::Result<T>) -> Self {
        result.map_or_else(|e| Self::from_error(&e), |_| Self::Supported)
    }
}

fn words(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Why something was not permitted: a missing capability, or a policy that stands above them.
fn refusal() -> String {
    let missing: Vec<_> = missing_capabilities(&Capability::FOR_BPF)
        .into_iter()
        .map(Capability::name)
        .collect();
    if missing.is_empty() {
        "not permitted, although no capability is missing: a security policy of this host forbids it".to_owned()
    } else {
        format!("not permitted: {} missing", missing.join(", "))
    }
}

/// Whether XDP programs may read the wall clock: `bpf_ktime_get_tai_ns`, since 6.1.
pub fn has_tai_helper() -> bool {
    Feature::TaiClock.probe().is_supported()
}

/// Whether jumps of 32 bits are there, since 6.6.
pub fn has_far_jumps() -> bool {
    !is_unwanted("far-jumps") && Feature::FarJumps.probe().is_supported()
}

/// Whether the person wants trawl to do without a feature that has a fall-back, although the kernel has it:
/// `TRAWL_WITHOUT=tcx`, several with commas between them. For kernels where it does not work as it should, and to try
/// the fall-backs.
pub fn is_unwanted(feature: &str) -> bool {
    std::env::var("TRAWL_WITHOUT")
        .is_ok_and(|list| list.split(',').any(|one| one.trim() == feature))
}

/// For what the kernel does wrong in some versions, which no question to it would bring to light.
pub fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    version_of(&kernel_release()) >= Some((major, minor))
}

/// The first two numbers of a release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The running kernel's release, as `uname -r` shows it.
pub fn kernel_release() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    read.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn a_release_begins_with_two_numbers() {
        assert_eq!(version_of("6.1.0-56-amd64"), Some((6, 1)));
        assert_eq!(version_of("6.18.5"), Some((6, 18)));
        assert_eq!(version_of("7.0-rc1"), Some((7, 0)));
        assert_eq!(version_of("unknown"), None);
        assert!(version_of("6.2") < version_of("6.15"));
    }
}
