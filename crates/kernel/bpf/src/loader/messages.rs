//! What libbpf says while it works.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

type Print = unsafe extern "C" fn(u32, *const c_char, *mut c_void) -> c_int;

unsafe extern "C" {
    fn vsnprintf(to: *mut c_char, size: usize, format: *const c_char, list: *mut c_void) -> c_int;
}

/// The longest message that is kept of libbpf.
const LONGEST_MESSAGE: usize = 4096;

/// Takes a message of libbpf's. libbpf-rs' own callback panics where a name in it is not UTF-8, and a panic may not
/// leave a function that C calls.
unsafe extern "C" fn collect(level: u32, format: *const c_char, list: *mut c_void) -> c_int {
    if level != libbpf_sys::LIBBPF_WARN {
        return 0;
    }
    let mut bytes = [0u8; LONGEST_MESSAGE];
    // SAFETY: libbpf gives a format with its arguments, and no more is written than there is room for.
    let length = unsafe { vsnprintf(bytes.as_mut_ptr().cast(), bytes.len(), format, list) };
    let length = usize::try_from(length).unwrap_or(0).min(bytes.len() - 1);
    let text = String::from_utf8_lossy(&bytes[..length])
        .trim_end()
        .to_owned();
    // A message that comes while another one is taken is left out.
    WARNINGS.with(|all| {
        if let Ok(mut all) = all.try_borrow_mut() {
            all.push(text);
        }
    });
    0
}

/// Collects what libbpf says on this thread, instead of letting it write to the terminal.
pub(crate) fn listen<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    // SAFETY: the two types differ in how the C compiler's list of arguments is called only: a pointer on all machines
    // that trawl is built for.
    let callback =
        unsafe { std::mem::transmute::<Print, libbpf_sys::libbpf_print_fn_t>(collect as Print) };
    // SAFETY: the callback is a function, which is always there.
    unsafe { libbpf_sys::libbpf_set_print(callback) };
    WARNINGS.with_borrow_mut(Vec::clear);
    let result = work();
    (result, WARNINGS.with_borrow_mut(std::mem::take))
}
