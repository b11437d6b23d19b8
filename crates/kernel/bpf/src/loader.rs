//! Object files, trawl's own and others': opened, set up, and loaded by libbpf; a failure includes all messages about
//! it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libbpf_rs::btf::types::{Array, DataSec, Func, Ptr, Struct, StructMember, Var};
use libbpf_rs::btf::{Btf, ReferencesType};
use libbpf_rs::{AsRawLibbpf, MapCore, OpenObject, OpenProgramMut, ProgramAttachType, ProgramType};
use trawl_sys::{Error, Result};

use super::program::HAS_FRAGS;
use super::{adapt, c_name, check, opts, probe, verifier_log};

/// Size of the buffer for the verifier's log. Kernels before 6.4 keep the beginning of a longer log, but its end is
/// needed; memory is used only where they write.
pub(super) const LOG_SIZE: usize = 256 << 20;
/// Number of bytes of the log to keep.
const LOG_END: usize = 1 << 20;

/// Returns the end of a log, starting at the beginning of a line.
pub(super) fn end_of_log(log: &[u8]) -> String {
    // The verifier leaves zeroes where it removes lines of its log, and old text after them.
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let log = &log[..end];
    let cut = log.len().saturating_sub(LOG_END);
    let line = match cut {
        0 => Some(0),
        _ => log[cut..].iter().position(|byte| *byte == b'\n'),
    };
    String::from_utf8_lossy(&log[cut + line.unwrap_or(0)..]).into_owned()
}

/// Makes programs in sections such as `tcx/ingress/NAME` tc programs: other loaders know these names, and libbpf does not.
fn name_tc_programs(object: &mut OpenObject) {
    const SECTIONS: [&str; 4] = ["tc/", "tcx/", "classifier/", "netkit/"];
    for mut one in object.progs_mut() {
        let section = one.section().to_string_lossy();
        let is_tc = SECTIONS.iter().any(|begin| section.trim_start_matches('?').starts_with(begin));
        if is_tc && one.prog_type() == ProgramType::Unspec {
            one.set_prog_type(ProgramType::SchedCls);
        }
    }
}

/// A program in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramEntry {
    pub name: String,
    pub section: String,
    /// `BPF_PROG_TYPE_…`; 0 if the section's name implies none.
    pub kind: u32,
    /// True if it is loaded by default: a question mark before the section's name prevents it.
    pub is_automatic: bool,
}

impl ProgramEntry {
    /// Returns the kind of map that sends packets to the program; `None` if an interface does. The section's name ends
    /// with the kind, or begins with it in the convention of libbpf's first versions (`xdp_devmap/egress`).
    pub fn fed_by(&self) -> Option<&'static str> {
        ["devmap", "cpumap"]
            .into_iter()
            .find(|map| self.section.ends_with(&format!("/{map}")) || self.section.starts_with(&format!("xdp_{map}/")))
    }
}

/// A map in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    pub name: String,
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    /// Set if it holds the program's variables and constants.
    pub is_data: bool,
}

/// A variable in a section of an object: its name, its offset and its size.
pub type Variable = (String, u64, usize);

/// An object file before it is loaded.
#[derive(Debug)]
pub struct ObjectFile {
    pub(super) open: OpenObject,
    wanted: Vec<String>,
    /// Programs to be loaded without support for fragments, whatever their section says.
    pub(super) linear: Vec<String>,
    is_adapted: bool,
}

/// A loaded object file; its programs and maps live as long as this, or as long as their pins and attachments.
#[derive(Debug)]
pub struct LoadedFile {
    object: libbpf_rs::Object,
}

/// Everything known about a failed load.
#[derive(Debug)]
pub struct LoadFailure {
    pub error: io::Error,
    /// The verifier's log of the program that it refused; empty if none was verified.
    pub log: String,
    /// libbpf's own messages.
    pub warnings: Vec<String>,
}

impl ObjectFile {
    /// Opens an ELF file written by a BPF compiler. The error is libbpf's reason. `name` becomes the prefix of the
    /// names of maps that hold variables.
    pub fn open(name: &str, bytes: &[u8]) -> Result<Self, LoadFailure> {
        let name = c_name(name);
        let mut opts = opts!(libbpf_sys::bpf_object_open_opts);
        opts.object_name = name.as_ptr();
        let (open, warnings) = collect_warnings(|| {
            // SAFETY: libbpf copies what it needs of name and bytes, which are given with their length.
            let object = unsafe {
                libbpf_sys::bpf_object__open_mem(
                    bytes.as_ptr().cast(),
                    bytes.len() as libbpf_sys::size_t,
                    &raw const opts,
                )
            };
            NonNull::new(object).ok_or_else(io::Error::last_os_error)
        });
        match open {
            Ok(object) => {
                // SAFETY: a new object that nobody else owns, opened and not loaded.
                let mut open = unsafe { OpenObject::from_ptr(object) };
                name_tc_programs(&mut open);
                Ok(Self { open, wanted: Vec::new(), linear: Vec::new(), is_adapted: false })
            }
            Err(error) => Err(LoadFailure { error, log: String::new(), warnings }),
        }
    }

    pub fn programs(&self) -> Vec<ProgramEntry> {
        let entry = |one: libbpf_rs::OpenProgram<'_>| ProgramEntry {
            name: one.name().to_string_lossy().into_owned(),
            section: one.section().to_string_lossy().into_owned(),
            kind: one.prog_type() as u32,
            is_automatic: one.autoload(),
        };
        self.open.progs().map(entry).collect()
    }

    pub fn maps(&self) -> Vec<MapEntry> {
        let entry = |one: libbpf_rs::OpenMap<'_>| MapEntry {
            name: one.name().to_string_lossy().into_owned(),
            kind: one.map_type() as u32,
            key_size: one.key_size(),
            value_size: one.value_size(),
            max_entries: one.max_entries(),
            is_data: one.initial_value().is_some(),
        };
        self.open.maps().map(entry).collect()
    }

    /// Selects the programs to load; all others are left out.
    pub fn want(&mut self, names: &[&str]) {
        self.wanted = names.iter().map(|name| (*name).to_owned()).collect();
        for mut one in self.open.progs_mut() {
            let wanted = names.iter().any(|name| one.name() == *name);
            one.set_autoload(wanted);
        }
    }

    fn program(&mut self, name: &str) -> Option<OpenProgramMut<'_>> {
        self.open.progs_mut().find(|one| one.name() == name)
    }

    /// Makes a program an XDP program if its section does not.
    pub fn set_xdp(&mut self, name: &str) {
        if let Some(mut one) = self.program(name) {
            one.set_prog_type(ProgramType::Xdp);
            one.set_attach_type(ProgramAttachType::Xdp);
        }
    }

    /// Ignores the fragments flag in the section's name.
    pub fn set_linear(&mut self, name: &str) {
        self.linear.push(name.to_owned());
        if let Some(mut one) = self.program(name) {
            adapt::make_linear(&mut one);
        }
    }

    /// Adds `BPF_F_…` flags to those implied by the section's name.
    pub fn set_flags(&mut self, name: &str, flags: u32) {
        let flags = if probe::has_xdp_frags() { flags } else { flags & !HAS_FRAGS };
        if let Some(mut one) = self.program(name) {
            one.set_flags(flags);
        }
    }

    /// Binds a program and all maps to one device, whose card runs the program.
    pub fn offload_to(&mut self, name: &str, ifindex: u32) {
        if let Some(mut one) = self.program(name) {
            one.set_ifindex(ifindex);
        }
        for mut map in self.open.maps_mut() {
            map.set_map_ifindex(ifindex);
        }
    }

    /// Makes the program a replacement for a function of a loaded one (freplace).
    pub fn replace_function(&mut self, name: &str, target: BorrowedFd<'_>, function: &str) -> io::Result<()> {
        let Some(mut one) = self.program(name) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        one.set_prog_type(ProgramType::Ext);
        // Extensions carry no attach type of their own.
        without_attach_type(&one)?;
        let function = CString::new(function)?;
        // SAFETY: as above; the name outlives the call, and the descriptor is used by the load, which borrows it too.
        check(unsafe {
            libbpf_sys::bpf_program__set_attach_target(
                one.as_libbpf_object().as_ptr(),
                target.as_raw_fd(),
                function.as_ptr(),
            )
        })
        .map(drop)
    }

    /// Loads the program without an attach type, as required if an extension jumps to it.
    pub fn drop_attach_type(&mut self, name: &str) -> io::Result<()> {
        match self.program(name) {
            Some(one) => without_attach_type(&one),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Sets the number of a map's entries.
    pub fn set_entries(&mut self, map: &str, entries: u32) -> Result<()> {
        let mut found = self.map(map)?;
        found
            .set_max_entries(entries)
            .map_err(|e| Error::failed(format!("cannot give the map {map} {entries} entries"), e))
    }

    /// Lets a map's memory be mapped, if it is an array with one value for all CPUs.
    pub fn make_mappable(&mut self, map: &str) -> Result<()> {
        let mut found = self.map(map)?;
        if found.map_type() != libbpf_rs::MapType::Array {
            return Ok(());
        }
        // SAFETY: the map belongs to the object that is borrowed here.
        let flags = unsafe { libbpf_sys::bpf_map__map_flags(found.as_libbpf_object().as_ptr()) };
        found
            .set_map_flags(flags | libbpf_sys::BPF_F_MMAPABLE)
            .map_err(|e| Error::failed(format!("cannot make the map {map} mappable"), e))
    }

    /// Uses an existing map instead of the file's own.
    pub fn reuse(&mut self, map: &str, existing: BorrowedFd<'_>) -> Result<()> {
        let mut found = self.map(map)?;
        found.reuse_fd(existing).map_err(|e| Error::failed(format!("cannot use an existing map for {map}"), e))
    }

    /// Pins a map at this path when it is loaded, or uses the map already pinned there.
    pub fn pin_at(&mut self, map: &str, path: &Path) -> Result<()> {
        let mut found = self.map(map)?;
        found.set_pin_path(path).map_err(|e| Error::failed(format!("cannot pin the map {map}"), e))
    }

    /// Returns the path at which the file itself pins a map (`LIBBPF_PIN_BY_NAME`).
    pub fn pin_path(&self, map: &str) -> Option<PathBuf> {
        let found = self.open.maps().find(|one| one.name() == map)?;
        // SAFETY: the map belongs to the object that is borrowed here; the path is copied before anything changes it.
        let path = unsafe { libbpf_sys::bpf_map__pin_path(found.as_libbpf_object().as_ptr()) };
        if path.is_null() {
            return None;
        }
        // SAFETY: libbpf keeps it as a C string.
        let path = unsafe { std::ffi::CStr::from_ptr(path) };
        Some(path.to_string_lossy().into_owned().into())
    }

    /// Makes no map use or create a pin, whatever the file says.
    pub fn ignore_pins(&mut self) {
        for map in self.open.maps_mut() {
            // SAFETY: the map belongs to the object that is borrowed here, and is not loaded; null removes the path.
            unsafe { libbpf_sys::bpf_map__set_pin_path(map.as_libbpf_object().as_ptr(), std::ptr::null()) };
        }
    }

    fn map(&mut self, name: &str) -> Result<libbpf_rs::OpenMapMut<'_>> {
        let missing = || Error::failed(format!("cannot set up the map {name}"), "it is not in the object");
        let found = self.open.maps_mut().find(|one| one.name() == name);
        found.ok_or_else(missing)
    }

    /// Adapts the programs to the kernel, once: libbpf refuses changes after it has prepared the object.
    pub(super) fn adapt(&mut self) -> Result<(), LoadFailure> {
        if std::mem::replace(&mut self.is_adapted, true) {
            return Ok(());
        }
        adapt::to_kernel(&mut self.open).map_err(|e| LoadFailure {
            error: io::Error::other(e.to_string()),
            log: String::new(),
            warnings: Vec::new(),
        })
    }

    /// Loads the selected programs with their maps. On failure all of them are unloaded again.
    pub fn load(mut self) -> Result<LoadedFile, LoadFailure> {
        self.adapt()?;
        // The next program must not overwrite a log that is to be kept.
        let wanted = self.wanted.clone();
        let kept = verifier_log::is_kept();
        let count = if kept { wanted.len().max(1) } else { 1 };
        let mut logs = Vec::from_iter((0..count).map(|_| vec![0u8; LOG_SIZE]));
        for (number, name) in wanted.iter().enumerate() {
            let Some(one) = self.program(name) else {
                continue;
            };
            let program = one.as_libbpf_object().as_ptr();
            let log = &mut logs[number.min(count - 1)];
            // SAFETY: the buffer outlives the load below, which is the last that libbpf does to this program with it:
            // a program that has been loaded is not verified again.
            let mut result = unsafe {
                libbpf_sys::bpf_program__set_log_buf(program, log.as_mut_ptr().cast(), log.len() as libbpf_sys::size_t)
            };
            if kept && result == 0 {
                // SAFETY: the program is live and not loaded.
                result = unsafe { libbpf_sys::bpf_program__set_log_level(program, verifier_log::WHOLE) };
            }
            check(result).map_err(|error| LoadFailure { error, log: String::new(), warnings: Vec::new() })?;
        }
        let object = self.open.take_ptr();
        // SAFETY: the object is ours alone.
        let (loaded, warnings) = collect_warnings(|| check(unsafe { libbpf_sys::bpf_object__load(object.as_ptr()) }));
        // The programs after the refused one were not verified.
        let last = logs.iter().rposition(|log| log[0] != 0).unwrap_or(0);
        for (number, name) in wanted.iter().enumerate().take(last + 1) {
            let refusal = loaded.as_ref().err().filter(|_| number == last);
            verifier_log::add(name, refusal, &logs[number.min(count - 1)]);
        }
        match loaded {
            Ok(_) => Ok(LoadedFile {
                // SAFETY: it has just been loaded, and nobody else owns it.
                object: unsafe { libbpf_rs::Object::from_ptr(object) },
            }),
            Err(error) => {
                // SAFETY: the object is ours alone and is not used after this.
                unsafe { libbpf_sys::bpf_object__close(object.as_ptr()) };
                Err(LoadFailure { error, log: end_of_log(&logs[last]), warnings })
            }
        }
    }
}

fn without_attach_type(program: &OpenProgramMut<'_>) -> io::Result<()> {
    // SAFETY: the program belongs to an object that is borrowed for as long as this reference lives.
    check(unsafe { libbpf_sys::bpf_program__set_expected_attach_type(program.as_libbpf_object().as_ptr(), 0) })
        .map(drop)
}

impl LoadedFile {
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let mut loaded = self.programs().into_iter();
        loaded.find_map(|(found, fd)| (found == name).then_some(fd))
    }

    /// Returns all loaded programs, by their names in the source.
    pub fn programs(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let loaded = |one: libbpf_rs::Program<'_>| {
            // SAFETY: the program belongs to the object, which lives.
            let fd = unsafe { libbpf_sys::bpf_program__fd(one.as_libbpf_object().as_ptr()) };
            // SAFETY: the descriptor belongs to the object, which the returned borrow keeps alive.
            let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
            Some((one.name().to_string_lossy().into_owned(), fd))
        };
        self.object.progs().filter_map(loaded).collect()
    }

    pub fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps().into_iter().find_map(|(found, fd)| (found == name).then_some(fd))
    }

    /// Returns all maps, by their names in the source.
    pub fn maps(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let named = |one: libbpf_rs::Map<'_>| {
            let name = one.name().to_string_lossy().into_owned();
            // SAFETY: the descriptor belongs to the object, which the returned borrow keeps alive.
            (name, unsafe { BorrowedFd::borrow_raw(one.as_fd().as_raw_fd()) })
        };
        self.object.maps().map(named).collect()
    }
}

// Variables and other definitions of an object file, by its type information.

impl ObjectFile {
    /// Sets the initial value of a global variable or constant (`const volatile`), by its name in the source.
    pub fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<()> {
        adapt::set_variable(&mut self.open, name, value)
    }

    /// Returns the first contents of a map with variables or constants.
    pub fn initial_value(&self, map: &str) -> Option<Vec<u8>> {
        let found = self.open.maps().find(|one| one.name() == map)?;
        found.initial_value().map(<[u8]>::to_vec)
    }

    /// Sets the first contents of a map with variables or constants.
    pub fn set_initial_value(&mut self, map: &str, bytes: &[u8]) -> Result<()> {
        let mut found = self.map(map)?;
        match found.initial_value_mut().filter(|value| value.len() == bytes.len()) {
            Some(value) => {
                value.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(Error::failed(format!("cannot set the contents of {map}"), "it has another size")),
        }
    }

    /// Returns the functions of the kernel and of its modules (kfuncs) that the file's programs call.
    pub fn kernel_functions(&self) -> Vec<String> {
        const EXTERNAL_SYMBOLS: &str = ".ksyms";
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        let Ok(Some(types)) = Btf::from_bpf_object(object) else {
            return Vec::new();
        };
        let sections: Vec<DataSec<'_>> = types.type_by_kind().collect();
        let external = sections.iter().filter(|one| one.name().is_some_and(|name| name == EXTERNAL_SYMBOLS));
        let name = |number| {
            let function: Func<'_> = types.type_by_id(number)?;
            Some(function.name()?.to_string_lossy().into_owned())
        };
        external.flat_map(|section| section.iter()).filter_map(|entry| name(entry.ty)).collect()
    }

    /// Returns numbers that the source attaches to a program: the members, by their names, of the structure `_PROGRAM`
    /// in this section, written as libbpf's `__uint(name, number)`.
    pub fn numbers_beside(&self, program: &str, section: &str) -> Vec<(String, u32)> {
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        let Ok(Some(types)) = Btf::from_bpf_object(object) else {
            return Vec::new();
        };
        let wanted = format!("_{program}");
        let sections: Vec<DataSec<'_>> =
            types.type_by_kind().filter(|one: &DataSec<'_>| one.name().is_some_and(|name| name == section)).collect();
        let variable = sections.iter().flat_map(|one| one.iter()).find_map(|entry| {
            let found: Var<'_> = types.type_by_id(entry.ty)?;
            (found.name()? == wanted.as_str()).then_some(found)
        });
        let Some(numbers) = variable.and_then(|one| Struct::try_from(one.referenced_type()).ok()) else {
            return Vec::new();
        };
        // The number is the length of an array that the member points to.
        let number = |member: StructMember<'_>| {
            let pointer: Ptr<'_> = types.type_by_id(member.ty)?;
            let array = Array::try_from(pointer.referenced_type()).ok()?;
            let value = u32::try_from(array.capacity()).ok()?;
            Some((member.name?.to_string_lossy().into_owned(), value))
        };
        numbers.iter().filter_map(number).collect()
    }

    /// Returns the variables of a section, by the file's type information; `None` if that does not describe the
    /// section.
    pub fn variables(&self, section: &str) -> Option<Vec<Variable>> {
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        variables_in(&Btf::from_bpf_object(object).ok()??, section)
    }

    /// Returns true if the source gives a map's initial content (`.values = …`), with which libbpf fills it when it is
    /// loaded.
    pub fn is_filled_by_source(&self, map: &str) -> bool {
        const MAPS: &str = ".maps";
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        let Ok(Some(types)) = Btf::from_bpf_object(object) else {
            return false;
        };
        let sections: Vec<DataSec<'_>> = types.type_by_kind().collect();
        let mut entries =
            sections.iter().filter(|one| one.name().is_some_and(|name| name == MAPS)).flat_map(|one| one.iter());
        entries.any(|entry| {
            let variable: Option<Var<'_>> = types.type_by_id(entry.ty);
            variable
                .filter(|found| found.name().is_some_and(|name| name == map))
                .and_then(|found| Struct::try_from(found.referenced_type()).ok())
                .is_some_and(|definition| {
                    let mut members = definition.iter();
                    members.any(|member| member.name.is_some_and(|name| name == "values"))
                })
        })
    }
}

/// Returns the variables of a section of a loaded program; `None` if its type information does not describe the
/// section.
pub fn variables_of(program: u32, section: &str) -> Option<Vec<Variable>> {
    variables_in(&Btf::from_prog_id(program).ok()?, section)
}

fn variables_in(types: &Btf<'_>, section: &str) -> Option<Vec<Variable>> {
    let mut sections = types.type_by_kind();
    let found = sections.find(|one: &DataSec<'_>| one.name().is_some_and(|name| name == section))?;
    let entries = found.iter().filter_map(|entry| {
        let variable: Var<'_> = types.type_by_id(entry.ty)?;
        let name = variable.name()?.to_string_lossy().into_owned();
        Some((name, u64::from(entry.offset), entry.size))
    });
    Some(entries.collect())
}

// Messages of libbpf.

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

type Print = unsafe extern "C" fn(u32, *const c_char, *mut c_void) -> c_int;

unsafe extern "C" {
    fn vsnprintf(to: *mut c_char, size: usize, format: *const c_char, list: *mut c_void) -> c_int;
}

/// Length of the longest libbpf message that is kept.
const LONGEST_MESSAGE: usize = 4096;

/// Receives a message of libbpf. libbpf-rs' own callback panics if a name in it is not UTF-8, and a panic may not leave
/// a function called by C.
unsafe extern "C" fn collect(level: u32, format: *const c_char, list: *mut c_void) -> c_int {
    if level != libbpf_sys::LIBBPF_WARN {
        return 0;
    }
    let mut bytes = [0u8; LONGEST_MESSAGE];
    // SAFETY: libbpf gives a format with its arguments, and no more is written than there is room for.
    let length = unsafe { vsnprintf(bytes.as_mut_ptr().cast(), bytes.len(), format, list) };
    let length = usize::try_from(length).unwrap_or(0).min(bytes.len() - 1);
    let text = String::from_utf8_lossy(&bytes[..length]).trim_end().to_owned();
    // A message that arrives while another one is being stored is dropped.
    WARNINGS.with(|all| {
        if let Ok(mut all) = all.try_borrow_mut() {
            all.push(text);
        }
    });
    0
}

/// Collects libbpf's messages on this thread, instead of letting it write to the terminal.
pub(crate) fn collect_warnings<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    // SAFETY: the two types differ in how the C compiler's list of arguments is called only: a pointer on all machines
    // that trawl is built for.
    let callback = unsafe { std::mem::transmute::<Print, libbpf_sys::libbpf_print_fn_t>(collect as Print) };
    // SAFETY: the callback is a function, which lives as long as the process.
    unsafe { libbpf_sys::libbpf_set_print(callback) };
    WARNINGS.with_borrow_mut(Vec::clear);
    let result = work();
    (result, WARNINGS.with_borrow_mut(std::mem::take))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_long_log_is_kept_in_complete_lines() {
        let mut log = "a line of the log\n".repeat(100_000).into_bytes();
        log.extend_from_slice(b"the reason\n\0\0old text");
        let kept = end_of_log(&log);
        assert!(kept.len() <= LOG_END && kept.ends_with("a line of the log\nthe reason\n"));
        assert!(kept.trim_start().starts_with("a line"));
        assert_eq!(end_of_log(b"short\n\0"), "short\n");
        assert_eq!(end_of_log(b""), "");
    }
}
