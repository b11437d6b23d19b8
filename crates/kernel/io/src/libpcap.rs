//! libpcap, loaded at run time: the system's library, or any build that the user names.
//!
//! A capture uses a library's own devices through [`Handle`], and filters are compiled by a library. Nothing of libpcap
//! is linked, so that the library may be netmap's or PF_RING's build, or newer than the distribution's, and is not
//! required without a filter.

mod filters;
mod handle;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trawl_filter::Instruction;
use trawl_sys::{Error, Result};

pub use filters::{CompiledFilter, FilterRequest, choose_for_filters, compile_filter, compile_filters};
pub use handle::{CaptureDirection, Handle, Opened, PcapFigures, PcapFilter, PcapRequest, Rest};
pub use handle::{Packet, Precision};

/// Names of the library on common systems: its own, and Debian's.
#[cfg(not(feature = "static"))]
const NAMES: [&str; 2] = ["libpcap.so.1", "libpcap.so.0.8"];

pub(crate) enum PcapT {}

/// libpcap's `struct bpf_program`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct BpfProgram {
    length: c_uint,
    instructions: *mut Instruction,
}

/// libpcap's `struct pcap_pkthdr`.
#[repr(C)]
pub(crate) struct PacketHeader {
    seconds: libc::time_t,
    /// Micro- or nanoseconds, according to the handle's precision.
    fraction: libc::suseconds_t,
    captured: u32,
    original: u32,
}

/// libpcap's `struct pcap_stat`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PcapStatistics {
    received: c_uint,
    dropped: c_uint,
    dropped_by_interface: c_uint,
}

pub(crate) type Callback = unsafe extern "C" fn(user: *mut c_void, header: *const PacketHeader, bytes: *const u8);

/// Declares the library's functions: required and optional ones.
macro_rules! functions {
    (
        needed { $($name:ident: $kind:ty = $symbol:ident;)* }
        optional { $($other:ident: $other_kind:ty = $other_symbol:ident;)* }
    ) => {
        /// Addresses of the functions of the libpcap inside a static binary.
        #[cfg(feature = "static")]
        mod linked {
            unsafe extern "C" {
                $(pub(super) fn $symbol();)*
                $(pub(super) fn $other_symbol();)*
            }

            pub(super) fn symbol(name: &str) -> Option<*mut std::ffi::c_void> {
                $(if name == stringify!($symbol) {
                    return Some($symbol as *mut _);
                })*
                $(if name == stringify!($other_symbol) {
                    return Some($other_symbol as *mut _);
                })*
                None
            }
        }

        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $name: $kind,)*
            $(pub(crate) $other: Option<$other_kind>,)*
        }

        impl Functions {
            fn find(open: &Open, missing: &mut Vec<&'static str>) -> Option<Self> {
                $(let $name = open.symbol(stringify!($symbol));
                if $name.is_none() {
                    missing.push(stringify!($symbol));
                })*
                Some(Self {
                    // SAFETY: the symbol is libpcap's function of that name, whose C declaration the type repeats; a
                    // pointer to a function has the size of a pointer.
                    $($name: unsafe { std::mem::transmute::<*mut c_void, $kind>($name?) },)*
                    $($other: open.symbol(stringify!($other_symbol)).map(|found| {
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
        create: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut PcapT = pcap_create;
        set_snaplen: SetNumber = pcap_set_snaplen;
        set_promisc: SetNumber = pcap_set_promisc;
        set_timeout: SetNumber = pcap_set_timeout;
        set_buffer_size: SetNumber = pcap_set_buffer_size;
        set_tstamp_precision: SetNumber = pcap_set_tstamp_precision;
        set_immediate_mode: SetNumber = pcap_set_immediate_mode;
        activate: GetNumber = pcap_activate;
        datalink: GetNumber = pcap_datalink;
        get_tstamp_precision: GetNumber = pcap_get_tstamp_precision;
        setnonblock: unsafe extern "C" fn(*mut PcapT, c_int, *mut c_char) -> c_int = pcap_setnonblock;
        get_selectable_fd: GetNumber = pcap_get_selectable_fd;
        dispatch: unsafe extern "C" fn(*mut PcapT, c_int, Callback, *mut c_void) -> c_int = pcap_dispatch;
        stats: unsafe extern "C" fn(*mut PcapT, *mut PcapStatistics) -> c_int = pcap_stats;
        compile: unsafe extern "C" fn(*mut PcapT, *mut BpfProgram, *const c_char, c_int, u32) -> c_int = pcap_compile;
        setfilter: unsafe extern "C" fn(*mut PcapT, *mut BpfProgram) -> c_int = pcap_setfilter;
        setdirection: SetNumber = pcap_setdirection;
        geterr: unsafe extern "C" fn(*mut PcapT) -> *const c_char = pcap_geterr;
        statustostr: unsafe extern "C" fn(c_int) -> *const c_char = pcap_statustostr;
        breakloop: unsafe extern "C" fn(*mut PcapT) = pcap_breakloop;
        close: unsafe extern "C" fn(*mut PcapT) = pcap_close;
        lib_version: unsafe extern "C" fn() -> *const c_char = pcap_lib_version;
    }
    optional {
        set_tstamp_type: SetNumber = pcap_set_tstamp_type;
        set_datalink: SetNumber = pcap_set_datalink;
        open_dead: unsafe extern "C" fn(c_int, c_int) -> *mut PcapT = pcap_open_dead;
        fopen_offline: unsafe extern "C" fn(*mut libc::FILE, *mut c_char) -> *mut PcapT = pcap_fopen_offline;
        offline_filter: unsafe extern "C" fn(*const BpfProgram, *const PacketHeader, *const u8) -> c_int = pcap_offline_filter;
        freecode: unsafe extern "C" fn(*mut BpfProgram) = pcap_freecode;
    }
}

/// A library in this process's memory, closed on drop; null for the library that is a part of this binary.
#[derive(Debug)]
struct Open(*mut c_void);

impl Open {
    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        #[cfg(feature = "static")]
        if self.0.is_null() {
            return linked::symbol(name);
        }
        let name = CString::new(name).ok()?;
        // SAFETY: the library is open, and the name is a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: dlopen returned it, and no pointer into it is left: handles keep the library alive.
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

// SAFETY: the handle of dlopen and pointers to functions may be used from any thread. The libpcap functions used here
// keep no state outside the handle that they receive.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library at the path, or the system's.
    pub fn load(path: Option<&Path>) -> Result<Arc<Self>> {
        let (open, name) = match path {
            Some(path) => (open_named(path)?, path.to_owned()),
            None => open_of_system()?,
        };
        let mut missing = Vec::new();
        let functions = Functions::find(&open, &mut missing).ok_or_else(|| {
            let why = if missing.contains(&"pcap_create") {
                "it is not libpcap: it has none of libpcap's functions".to_owned()
            } else {
                format!("it lacks {}", missing.join(", "))
            };
            Error::failed(format!("cannot use {}", name.display()), why)
                .fix("libpcap 1.5 and later have all of them: name a newer one with --libpcap PATH")
        })?;
        // SAFETY: the function has no parameters and returns a string of the library's, or null.
        let version = unsafe { text((functions.lib_version)()) };
        Ok(Arc::new(Self {
            functions,
            version: version.unwrap_or_else(|| format!("libpcap at {}", name.display())),
            _open: open,
        }))
    }

    /// Returns the library's own version text: `libpcap version 1.10.3 (with TPACKET_V3)`.
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// Returns the library that is a part of this binary: the dynamic linker of a static one loads no other.
#[cfg(feature = "static")]
fn open_of_system() -> Result<(Open, PathBuf)> {
    Ok((Open(std::ptr::null_mut()), "the built-in libpcap".into()))
}

/// Makes glibc look up names in files and DNS only: for other services it would load the host's libraries, which belong
/// to another glibc.
#[cfg(feature = "static")]
fn look_up_in_files() {
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
    for (database, services) in [
        (c"hosts", c"files dns"),
        (c"passwd", c"files"),
        (c"group", c"files"),
        (c"initgroups", c"files"),
        (c"networks", c"files"),
        (c"protocols", c"files"),
        (c"services", c"files"),
        (c"ethers", c"files"),
    ] {
        // SAFETY: C strings. No other thread runs yet.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

#[cfg(not(feature = "static"))]
fn open_of_system() -> Result<(Open, PathBuf)> {
    let mut why = String::new();
    for name in NAMES {
        match open(Path::new(name)) {
            Ok(open) => return Ok((open, name.into())),
            Err(said) => why = said,
        }
    }
    Err(Error::failed("cannot load libpcap", why).fix("apt install libpcap0.8, or name a library with --libpcap PATH"))
}

fn open_named(path: &Path) -> Result<Open> {
    let what = || format!("cannot load libpcap from {}", path.display());
    if cfg!(feature = "static") {
        let why = "this trawl is a static binary, which has its own libpcap and loads no other";
        return Err(Error::failed(what(), why).fix("install the package, or build trawl on this machine"));
    }
    // The linker searches its directories for a name without a slash.
    if path.as_os_str().as_encoded_bytes().contains(&b'/') {
        check(path).map_err(|(why, fix)| Error::failed(what(), why).fix(fix))?;
    }
    open(path).map_err(|why| Error::failed(what(), why).fix("ldd lists the libraries that it needs"))
}

fn open(path: &Path) -> Result<Open, String> {
    let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else {
        return Err("its name has a zero byte".to_owned());
    };
    // RTLD_DEEPBIND makes the library call its own functions, even if the process already has another libpcap.
    let how = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
    // SAFETY: the name is a C string. The library's initialisers run: a library that the user names is trusted like the
    // system's.
    let handle = unsafe { libc::dlopen(name.as_ptr(), how) };
    if handle.is_null() {
        // SAFETY: dlerror returns the text of this thread's last failure, or null.
        let why = unsafe { text(libc::dlerror()) };
        return Err(why.unwrap_or_else(|| "the dynamic linker gave no reason".to_owned()));
    }
    Ok(Open(handle))
}

/// Copies a foreign C string, without control characters.
///
/// # Safety
/// The pointer is null or points to a string that ends with a zero byte.
unsafe fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: not null, and a C string by the caller's contract.
    let text = unsafe { CStr::from_ptr(from) }.to_string_lossy();
    let plain: String = text.chars().filter(|one| !one.is_control()).collect();
    (!plain.is_empty()).then_some(plain)
}

// Checks that a file can be a shared library for this machine, so that an error names the reason: the dynamic linker
// reports a library for another processor as a missing file.

/// Length of the header up to the machine: magic, class, byte order and the rest of the identification; type; machine.
const HEADER: usize = 20;
const MAGIC: &[u8] = b"\x7fELF";
const CLASS: usize = 4;
const ORDER: usize = 5;
const TYPE: usize = 16;
const MACHINE: usize = 18;
const SHARED: u16 = 3;
/// Offsets in a 64-bit file: the position, size and number of the program headers; in each, the part of the file that
/// it loads.
const PARTS: u64 = 32;
const PART_SIZE: u64 = 54;
const PART_OFFSET: u64 = 8;
const PART_BYTES: u64 = 32;
const PART_LOADED: u32 = 1;

const FIX: &str = "name a libpcap.so that was built for this machine";

/// Checks that a file can be the library; an error contains the reason and the fix.
pub fn check(path: &Path) -> Result<(), (String, &'static str)> {
    let unreadable = |e: io::Error| match e.kind() {
        ErrorKind::NotFound => ("there is no such file".to_owned(), "ldconfig -p | grep libpcap lists the system's"),
        _ => (Error::os("", e).why().to_owned(), FIX),
    };
    // The kind is checked before the file is opened, since opening a FIFO would block.
    match std::fs::metadata(path).map_err(unreadable)? {
        data if data.is_dir() => return Err(("it is a directory".to_owned(), FIX)),
        data if !data.is_file() => return Err(("it is not a regular file".to_owned(), FIX)),
        _ => {}
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut header = [0; HEADER];
    let own = own_header();
    if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(MAGIC) {
        return Err(("it is not a shared library".to_owned(), FIX));
    }
    let machine = u16::from_ne_bytes([header[MACHINE], header[MACHINE + 1]]);
    if (header[CLASS], header[ORDER], machine) != (own.class, own.order, own.machine) {
        let other = architecture(&header, &own);
        return Err((format!("it is for {other}, and trawl is for {}", own.name), FIX));
    }
    if u16::from_ne_bytes([header[TYPE], header[TYPE + 1]]) != SHARED {
        return Err(("it is not a shared library".to_owned(), FIX));
    }
    if is_cut_off(&file) { Err(("it is cut off: a loadable part is missing".to_owned(), FIX)) } else { Ok(()) }
}

/// Returns true if the file ends before its last part; loading it would end the process by a signal.
fn is_cut_off(file: &File) -> bool {
    let Ok(length) = file.metadata().map(|data| data.len()) else {
        return false;
    };
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let part_is_missing = |part: u64| {
        let kind = word(part)? as u32;
        let end = word(part + PART_OFFSET)?.checked_add(word(part + PART_BYTES)?)?;
        Some(kind == PART_LOADED && end > length)
    };
    let missing = || {
        let first = word(PARTS)?;
        let sizes = word(PART_SIZE)?.to_ne_bytes();
        let [size, count] = [0, 2].map(|at| u64::from(u16::from_ne_bytes([sizes[at], sizes[at + 1]])));
        let mut parts = (0..count).map(|number| first.checked_add(number * size));
        // A header that cannot be read counts as a missing part.
        Some(parts.any(|part| part.and_then(part_is_missing).unwrap_or(true)))
    };
    // The offsets are those of 64-bit files, which all supported machines use.
    usize::BITS == 64 && missing().unwrap_or(true)
}

struct OwnHeader {
    class: u8,
    order: u8,
    machine: u16,
    name: &'static str,
}

/// Returns this program's own header.
fn own_header() -> OwnHeader {
    let machine = match std::env::consts::ARCH {
        "x86" => 3,
        "powerpc64" => 21,
        "s390x" => 22,
        "arm" => 40,
        "x86_64" => 62,
        "aarch64" => 183,
        "riscv64" => 243,
        _ => 0,
    };
    OwnHeader {
        class: if usize::BITS == 64 { 2 } else { 1 },
        order: if cfg!(target_endian = "little") { 1 } else { 2 },
        machine,
        name: machine_name(machine).unwrap_or(std::env::consts::ARCH),
    }
}

/// Returns the name of an ELF machine.
fn machine_name(machine: u16) -> Option<&'static str> {
    match machine {
        3 => Some("32-bit x86"),
        21 => Some("64-bit PowerPC"),
        22 => Some("S/390"),
        40 => Some("32-bit ARM"),
        62 => Some("x86-64"),
        183 => Some("64-bit ARM"),
        243 => Some("RISC-V"),
        _ => None,
    }
}

/// Describes the architecture of a file that is not for this machine.
fn architecture(header: &[u8; HEADER], own: &OwnHeader) -> String {
    let bytes = [header[MACHINE], header[MACHINE + 1]];
    let machine = match header[ORDER] {
        2 => u16::from_be_bytes(bytes),
        _ => u16::from_le_bytes(bytes),
    };
    let name = match machine_name(machine) {
        Some(name) => name.to_owned(),
        None => format!("another processor (ELF machine {machine})"),
    };
    if machine != own.machine {
        return name;
    }
    match (header[CLASS] == own.class, header[CLASS]) {
        (true, _) => format!("{name} with another order of bytes"),
        (false, 1) => format!("{name} with 32-bit pointers"),
        (false, _) => format!("{name} with 64-bit pointers"),
    }
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
    fn missing_file_and_non_library_are_named() {
        for (path, why) in [
            ("/nowhere/libpcap.so", "there is no such file"),
            ("/etc/passwd", "it is not a shared library"),
            ("/", "it is a directory"),
        ] {
            let error = Library::load(Some(Path::new(path))).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    /// Opening a FIFO would block, and no signal ends that.
    #[test]
    fn non_file_is_refused_before_it_is_opened() {
        let path = std::env::temp_dir().join(format!("trawl-elf-{}-fifo", std::process::id()));
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let why = check(&path).err().map(|(why, _)| why);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(why.as_deref(), Some("it is not a regular file"));
    }

    fn refusal(name: &str, change: impl Fn(&mut [u8])) -> Option<String> {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap()[..64].to_vec();
        bytes[TYPE] = SHARED as u8;
        // The copied bytes do not reach the headers of the parts, so the file is given none.
        bytes[PART_SIZE as usize + 2..][..2].fill(0);
        change(&mut bytes);
        let path = std::env::temp_dir().join(format!("trawl-elf-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let answer = check(&path).err().map(|(why, _)| why);
        std::fs::remove_file(&path).unwrap();
        answer
    }

    #[test]
    fn other_processors_are_named() {
        assert_eq!(refusal("own", |_| ()), None);
        let arm = refusal("arm", |bytes| bytes[MACHINE] = if cfg!(target_arch = "aarch64") { 62 } else { 183 });
        assert!(arm.unwrap().starts_with("it is for "));
        let small = refusal("small", |bytes| (bytes[CLASS], bytes[MACHINE]) = (1, 3));
        assert!(small.unwrap().starts_with("it is for 32-bit x86, and trawl is for "));
        let same = refusal("same", |bytes| bytes[CLASS] = 1);
        assert!(same.unwrap().contains(" with 32-bit pointers, and trawl"));
        let order = refusal("order", |bytes| {
            bytes[ORDER] = 3 - bytes[ORDER];
            bytes.swap(MACHINE, MACHINE + 1);
        });
        assert!(order.unwrap().contains(" with another order of bytes"));
        let cut = refusal("cut", |bytes| bytes[PART_SIZE as usize + 2] = 3);
        assert!(cut.unwrap().starts_with("it is cut off"));
        let object = refusal("object", |bytes| bytes[TYPE] = 1);
        assert_eq!(object.as_deref(), Some("it is not a shared library"));
    }
}
