//! The version of this kernel, the numbers of its functions, and the features that the user disabled.

use std::io;

use crate::kernel_types;

/// Returns true if the user disabled a feature that has a fallback: `TRAWL_WITHOUT=tcx`, several separated by commas.
/// This is for kernels on which the feature is broken, and for testing the fallbacks.
pub fn is_unwanted(feature: &str) -> bool {
    std::env::var("TRAWL_WITHOUT").is_ok_and(|list| list.split(',').any(|one| one.trim() == feature))
}

/// Compares the kernel's version, for bugs of some versions that no probe would reveal.
pub fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    version_of(&trawl_sys::host::kernel_release()) >= Some((major, minor))
}

/// Returns the first two numbers of a release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Returns the number of a kernel function's type.
pub fn kernel_function(name: &str) -> io::Result<u32> {
    let found = kernel_types::find(kernel_types::FUNCTION, name)?;
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_a_release() {
        assert_eq!(version_of("6.1.0-56-amd64"), Some((6, 1)));
        assert_eq!(version_of("6.18.5"), Some((6, 18)));
        assert_eq!(version_of("7.0-rc1"), Some((7, 0)));
        assert_eq!(version_of("unknown"), None);
        assert!(version_of("6.2") < version_of("6.15"));
    }
}
