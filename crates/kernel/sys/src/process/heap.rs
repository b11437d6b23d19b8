//! The heap of this process.

/// Returns the memory of freed blocks to the system. The C library keeps it for later otherwise.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number, may be made by any thread, and frees nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
