//! Where the kernel keeps memory, asked for once: what it takes to find the bytes of a packet's fragments from beside.

use std::sync::OnceLock;

use super::object::{self, Plain};
use super::test_run;
use crate::layout::KernelAddresses;

/// `None` where the kernel does not tell (before 5.16, which has no such packets), or nobody knows how to use it.
pub fn kernel_addresses() -> Option<KernelAddresses> {
    static FOUND: OnceLock<Option<KernelAddresses>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let plain = Plain::load(object::KERNEL_ADDRESSES, "trawl_addresses").ok()?;
        test_run::system(plain.program()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_sys::testing::root_or_skip;

    /// Both lie in the kernel's half; they are on pages' boundaries.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn they_are_the_kernels() {
        if !root_or_skip() {
            return;
        }
        let Some(found) = kernel_addresses() else {
            eprintln!("SKIPPED: the kernel does not tell its addresses");
            return;
        };
        for address in [found.first_address, found.first_page] {
            assert!(
                address >> 47 == 0x1ffff && address & 0xfff == 0,
                "{address:#x}"
            );
        }
    }
}
