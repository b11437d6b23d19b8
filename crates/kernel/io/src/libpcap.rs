//! libpcap, loaded at run time: the system's, or any build of it that a person names.
//!
//! A capture uses a library's own devices through [`Handle`], and filters are compiled by one. Nothing of libpcap is
//! linked, so that the library may be netmap's or PF_RING's build, or a newer one than the distribution's, and need not be
//! there where no filter is asked for.

mod elf;
mod filters;
mod handle;
mod reader;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trawl_sys::{Error, Result};

pub use filters::{
    CompiledFilter, FilterRequest, choose_for_filters, compile_filter, compile_filters,
};
pub use handle::{CaptureDirection, Figures, Handle, Opened, PcapFilter, Request, Rest};
pub use reader::{Packet, Precision};

/// The names under which systems have it: its own, and Debian's.
const NAMES: [&str; 2] = ["libpcap.so.1", "libpcap.so.0.8"];

pub(crate) enum PcapT {}

/// libpcap's `struct bpf_program`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct BpfProgram {
    length: c_uint,
    instructions: *mut libc::sock_filter,
}

/// libpcap's `struct pcap_pkthdr`.
#[repr(C)]
pub(crate) struct PacketHeader {
    seconds: libc::time_t,
    /// Micro- or nanoseconds, as the handle's precision has it.
    fraction: libc::suseconds_t,
    captured: u32,
    original: u32,
}

/// libpcap's `struct pcap_stat`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Statistics {
    received: c_uint,
    dropped: c_uint,
    dropped_by_interface: c_uint,
}

pub(crate) type Callback =
    unsafe extern "C" fn(user: *mut c_void, header: *const PacketHeader, bytes: *const u8);

/// Declares the functions that are taken from the library: those that must be there, and those that need not.
macro_rules! functions {
    (
        needed { $($name:ident: $kind:ty = $symbol:literal;)* }
        optional { $($other:ident: $other_kind:ty = $other_symbol:literal;)* }
    ) => {
        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $name: $kind,)*
            $(pub(crate) $other: Option<$other_kind>,)*
        }

        impl Functions {
            fn find(open: &Open, missing: &mut Vec<&'static str>) -> Option<Self> {
                $(let $name = open.symbol($symbol);
                if $name.is_none() {
                    missing.push($symbol);
                })*
                Some(Self {
                    // SAFETY: the symbol is libpcap's function of that name, whose C declaration the type repeats; a
                    // pointer to a function has the size of a pointer.
                    $($name: unsafe { std::mem::transmute::<*mut c_void, $kind>($name?) },)*
                    $($other: open.symbol($other_symbol).map(|found| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, $other_kind>(found) }
                    }),)*
                })
            }
        }
    };
}

type SetNumber = unsafe extern "C" fn(*mut PcapT, c_int) -> c_int;
type GetNumber = unsafe extern "C" fn(*mut PcapT) -> c_int;

functions! {
    needed {
        create: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut PcapT = "pcap_create";
        set_snaplen: SetNumber = "pcap_set_snaplen";
        set_promisc: SetNumber = "pcap_set_promisc";
        set_timeout: SetNumber = "pcap_set_timeout";
        set_buffer_size: SetNumber = "pcap_set_buffer_size";
        set_tstamp_precision: SetNumber = "pcap_set_tstamp_precision";
        set_immediate_mode: SetNumber = "pcap_set_immediate_mode";
        activate: GetNumber = "pcap_activate";
        datalink: GetNumber = "pcap_datalink";
        get_tstamp_precision: GetNumber = "pcap_get_tstamp_precision";
        setnonblock: unsafe extern "C" fn(*mut PcapT, c_int, *mut c_char) -> c_int = "pcap_setnonblock";
        get_selectable_fd: GetNumber = "pcap_get_selectable_fd";
        dispatch: unsafe extern "C" fn(*mut PcapT, c_int, Callback, *mut c_void) -> c_int = "pcap_dispatch";
        stats: unsafe extern "C" fn(*mut PcapT, *mut Statistics) -> c_int = "pcap_stats";
        compile: unsafe extern "C" fn(*mut PcapT, *mut BpfProgram, *const c_char, c_int, u32) -> c_int = "pcap_compile";
        setfilter: unsafe extern "C" fn(*mut PcapT, *mut BpfProgram) -> c_int = "pcap_setfilter";
        setdirection: SetNumber = "pcap_setdirection";
        geterr: unsafe extern "C" fn(*mut PcapT) -> *const c_char = "pcap_geterr";
        statustostr: unsafe extern "C" fn(c_int) -> *const c_char = "pcap_statustostr";
        breakloop: unsafe extern "C" fn(*mut PcapT) = "pcap_breakloop";
        close: unsafe extern "C" fn(*mut PcapT) = "pcap_close";
        lib_version: unsafe extern "C" fn() -> *const c_char = "pcap_lib_version";
    }
    optional {
        set_tstamp_type: SetNumber = "pcap_set_tstamp_type";
        open_dead: unsafe extern "C" fn(c_int, c_int) -> *mut PcapT = "pcap_open_dead";
        fopen_offline: unsafe extern "C" fn(*mut libc::FILE, *mut c_char) -> *mut PcapT = "pcap_fopen_offline";
        offline_filter: unsafe extern "C" fn(*const BpfProgram, *const PacketHeader, *const u8) -> c_int = "pcap_offline_filter";
        freecode: unsafe extern "C" fn(*mut BpfProgram) = "pcap_freecode";
    }
}

/// A library in this process's memory, until it is dropped.
#[derive(Debug)]
struct Open(*mut c_void);

impl Open {
    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is open, and the name is a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: dlopen gave it, and nobody has a pointer into it any more: handles hold the library.
        unsafe { libc::dlclose(self.0) };
    }
}

/// A loaded libpcap.
#[derive(Debug)]
pub struct Library {
    functions: Functions,
    version: String,
    _open: Open,
}

// SAFETY: the handle of dlopen and pointers to functions may be used from any thread. libpcap's functions that are used
// here keep no state outside the handle that they are given.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The library at the path, or the system's.
    pub fn load(path: Option<&Path>) -> Result<Arc<Self>> {
        let (open, name) = match path {
            Some(path) => (open_named(path)?, path.to_owned()),
            None => open_of_system()?,
        };
        let mut missing = Vec::new();
        let functions = Functions::find(&open, &mut missing).ok_or_else(|| {
            let why = match missing.contains(&"pcap_create") {
                true => "it is not libpcap: it has none of its functions".to_owned(),
                false => format!("it lacks {}", missing.join(", ")),
            };
            Error::failed(format!("cannot use {}", name.display()), why)
                .fix("libpcap has them all since version 1.5: name a newer one with --libpcap PATH")
        })?;
        // SAFETY: the function takes nothing and gives a string of the library's, or nothing.
        let version = unsafe { text((functions.lib_version)()) };
        Ok(Arc::new(Self {
            functions,
            version: version.unwrap_or_else(|| format!("libpcap at {}", name.display())),
            _open: open,
        }))
    }

    /// What it says of itself: `libpcap version 1.10.3 (with TPACKET_V3)`.
    pub fn version(&self) -> &str {
        &self.version
    }
}

fn open_of_system() -> Result<(Open, PathBuf)> {
    let mut why = String::new();
    for name in NAMES {
        match open(Path::new(name)) {
            Ok(open) => return Ok((open, name.into())),
            Err(said) => why = said,
        }
    }
    Err(Error::failed("cannot load libpcap", why)
        .fix("apt install libpcap0.8, or name a library with --libpcap PATH"))
}

fn open_named(path: &Path) -> Result<Open> {
    let what = || format!("cannot load libpcap from {}", path.display());
    // A name without a slash is looked for where the system has its libraries.
    if path.as_os_str().as_encoded_bytes().contains(&b'/') {
        elf::check(path).map_err(|(why, fix)| Error::failed(what(), why).fix(fix))?;
    }
    open(path)
        .map_err(|why| Error::failed(what(), why).fix("ldd tells which libraries it needs itself"))
}

fn open(path: &Path) -> Result<Open, String> {
    let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else {
        return Err("its name has a zero byte".to_owned());
    };
    // Its own functions come first where it calls itself: another libpcap may be in this process already.
    let how = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
    // SAFETY: the name is a C string. What the library does when it is loaded is its own affair: who names one trusts
    // it as the system's.
    let handle = unsafe { libc::dlopen(name.as_ptr(), how) };
    if handle.is_null() {
        // SAFETY: dlerror gives the text of this thread's last failure, or nothing.
        let why = unsafe { text(libc::dlerror()) };
        return Err(why.unwrap_or_else(|| "the dynamic linker gave no reason".to_owned()));
    }
    Ok(Open(handle))
}

/// A C string of somebody else's, with nothing in it that a terminal would obey.
///
/// # Safety
/// The pointer is null or that of a string that ends with a zero byte.
unsafe fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: not null, and a C string as the caller says.
    let text = unsafe { CStr::from_ptr(from) }.to_string_lossy();
    let plain: String = text.chars().filter(|one| !one.is_control()).collect();
    (!plain.is_empty()).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_library_is_found() {
        let library = Library::load(None).unwrap();
        assert!(library.version().starts_with("libpcap version "));
    }

    #[test]
    fn library_without_pcap_symbols_is_refused() {
        let path = Path::new("libm.so.6");
        let error = Library::load(Some(path)).unwrap_err().to_string();
        assert!(error.contains("it is not libpcap"), "{error}");
    }

    #[test]
    fn a_missing_file_and_another_kind_of_file_are_named() {
        for (path, why) in [
            ("/nowhere/libpcap.so", "there is no such file"),
            ("/etc/passwd", "it is not a shared library"),
            ("/", "it is a directory"),
        ] {
            let error = Library::load(Some(Path::new(path)))
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
