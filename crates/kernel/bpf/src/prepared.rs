//! Programs prepared by libbpf but not loaded yet: maps created, references resolved, subprograms appended. This module
//! reads their instructions, measures them with the verifier, and replaces them, keeping function and line records in
//! step.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use libbpf_rs::{AsRawLibbpf, OpenObject};
use trawl_ebpf::{Edited, Insn};
use trawl_sys::{Error, Result};

use super::loader::{LOG_SIZE, LoadFailure, ObjectFile, collect_warnings, end_of_log};
use super::loading::try_load;
use super::program::{LoadOptions, Types};
use super::{check, tag, verifier_log};

/// Log level of the verifier's statistics alone.
const LOG_STATISTICS: u32 = 4;
/// Log level of all steps of the verifier.
const LOG_STEPS: u32 = 1;
const STATISTICS_SIZE: usize = 64 << 10;
/// Text before the stack depths of a program's functions in the verifier's statistics.
const STACK_DEPTH: &str = "stack depth ";
/// Position of the line's number in a line record, above the column's.
const LINE_SHIFT: u32 = 10;
const FRAGS_SECTION: &str = "xdp.frags";
const GPL: &str = "GPL";

/// An object file that libbpf has prepared.
#[derive(Debug)]
pub struct Prepared<'o> {
    open: &'o mut OpenObject,
    linear: &'o [String],
}

/// Function or line records for the kernel, each with the number of the instruction at which it begins.
#[derive(Clone, Debug, Default)]
struct Records<T>(Vec<T>);

/// Everything needed to load a program a second time, in addition to libbpf's load.
#[derive(Debug)]
pub struct Twin {
    name: String,
    kind: u32,
    attach_type: u32,
    flags: u32,
    btf: Option<OwnedFd>,
    instructions: Vec<Insn>,
    functions: Records<libbpf_sys::bpf_func_info>,
    lines: Records<libbpf_sys::bpf_line_info>,
}

/// A line of a program's source, from the object's line records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRecord {
    /// Number of the first instruction that was compiled from it.
    pub instruction: usize,
    pub file: String,
    pub line: u32,
    pub text: String,
}

impl ObjectFile {
    /// Runs libbpf's preparation for loading; [`Self::load`] continues from there.
    pub fn prepare(&mut self) -> Result<Prepared<'_>, LoadFailure> {
        self.adapt()?;
        let Self { open, linear, .. } = self;
        let (prepared, warnings) = collect_warnings(|| {
            // SAFETY: the object is live and not loaded, which its type stands for.
            check(unsafe { libbpf_sys::bpf_object__prepare(open.as_libbpf_object().as_ptr()) })
        });
        match prepared {
            Ok(_) => Ok(Prepared { open, linear }),
            Err(error) => Err(LoadFailure { error, log: String::new(), warnings }),
        }
    }
}

impl Prepared<'_> {
    fn find(&self, name: &str) -> Result<NonNull<libbpf_sys::bpf_program>> {
        let c_name = CString::new(name).unwrap_or_default();
        let object = self.open.as_libbpf_object().as_ptr();
        // SAFETY: the object is live and the name ends with a zero.
        let found = unsafe { libbpf_sys::bpf_object__find_program_by_name(object, c_name.as_ptr()) };
        NonNull::new(found)
            .ok_or_else(|| Error::failed(format!("cannot prepare the program {name}"), "it is not in the object"))
    }

    /// Returns the instructions of the program and then of its subprograms.
    pub fn instructions(&self, name: &str) -> Result<Vec<Insn>> {
        let program = self.find(name)?;
        Ok(instructions_of(program).to_vec())
    }

    /// Returns the lines of the source from which the program and its subprograms were compiled, in the order of their
    /// instructions; none if the object has no line records.
    pub fn lines(&self, name: &str) -> Result<Vec<LineRecord>> {
        let program = self.find(name)?;
        let record = |line: &mut libbpf_sys::bpf_line_info| LineRecord {
            instruction: line.insn_off as usize,
            file: self.string(line.file_name_off),
            line: line.line_col >> LINE_SHIFT,
            text: self.string(line.line_off).trim().to_owned(),
        };
        Ok(lines_of(program).iter_mut().map(record).collect())
    }

    /// Returns the first instruction and the name of each of the program's functions.
    pub fn functions(&self, name: &str) -> Result<Vec<(usize, String)>> {
        let program = self.find(name)?;
        let function = |one: &mut libbpf_sys::bpf_func_info| (one.insn_off as usize, self.type_name(one.type_id));
        Ok(functions_of(program).iter_mut().map(function).collect())
    }

    fn string(&self, offset: u32) -> String {
        self.text_of_types(|types| {
            // SAFETY: the types belong to the object, which is live.
            unsafe { libbpf_sys::btf__str_by_offset(types, offset) }
        })
    }

    fn type_name(&self, number: u32) -> String {
        self.text_of_types(|types| {
            // SAFETY: as above; a type that was found is a structure of libbpf's.
            unsafe {
                let found = libbpf_sys::btf__type_by_id(types, number);
                if found.is_null() {
                    std::ptr::null()
                } else {
                    libbpf_sys::btf__name_by_offset(types, (*found).name_off)
                }
            }
        })
    }

    /// Returns a text of the object's type information; empty if it has none.
    fn text_of_types(&self, find: impl FnOnce(*const libbpf_sys::btf) -> *const std::ffi::c_char) -> String {
        // SAFETY: the object is live; libbpf returns its own type information, or null.
        let types = unsafe { libbpf_sys::bpf_object__btf(self.open.as_libbpf_object().as_ptr()) };
        let text = if types.is_null() { std::ptr::null() } else { find(types) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: a C string of the type information, which lives as long as the object.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Returns the name of each map by the descriptor that instructions contain.
    pub fn map_names(&self) -> Vec<(i32, String)> {
        let name = |map: libbpf_rs::OpenMap<'_>| {
            // SAFETY: the map belongs to the object, which is live.
            let fd = unsafe { libbpf_sys::bpf_map__fd(map.as_libbpf_object().as_ptr()) };
            (fd, map.name().to_string_lossy().into_owned())
        };
        self.open.maps().map(name).collect()
    }

    /// Returns true if the object has a map of this name.
    pub fn has_map(&self, name: &str) -> bool {
        self.open.maps().any(|map| map.name() == name)
    }

    /// Returns the kernel's tag of the program in its present form; `None` if trawl cannot compute it, and only libbpf can
    /// load the program.
    pub fn tag(&self, name: &str) -> Option<String> {
        use std::os::fd::AsFd;
        let twin = self.twin_of(name).ok()?;
        tag::of(&twin.instructions).or_else(|| {
            // A tag depends on the instructions alone, not on the licence.
            let loaded = twin.try_load(GPL, None).ok()?;
            Some(super::info::program(loaded.as_fd()).ok()?.tag)
        })
    }

    /// Returns the stack depth of each of the program's functions, the main one first, as measured by the verifier.
    /// `None` if it does not report it; an error if it refuses the program.
    pub fn stack_depths(&self, name: &str) -> Result<Option<Vec<u32>>, LoadFailure> {
        let twin = self.twin_of(name).map_err(|e| LoadFailure {
            error: io::Error::other(e.to_string()),
            log: String::new(),
            warnings: Vec::new(),
        })?;
        let mut log = vec![0u8; STATISTICS_SIZE];
        // Only the measurement is used: the program's own licence is checked when it is loaded to run.
        twin.try_load(GPL, Some((&mut log, LOG_STATISTICS))).map_err(|e| twin.failure(e))?;
        Ok(stack_depths_in(&String::from_utf8_lossy(&log)))
    }

    /// Returns the program with other instructions, ready to be loaded in addition to libbpf's load.
    pub fn twin(&self, name: &str, edited: &Edited) -> Result<Twin> {
        let mut twin = self.twin_of(name)?;
        twin.instructions = edited.instructions.clone();
        twin.functions.move_by(&edited.moved);
        twin.lines.move_by(&edited.moved);
        Ok(twin)
    }

    /// Replaces the program's instructions before libbpf loads it.
    pub fn replace(&mut self, name: &str, edited: &Edited) -> Result<()> {
        let program = self.find(name)?;
        let mut instructions = edited.instructions.clone();
        // SAFETY: the program is live and not loaded; libbpf copies the instructions.
        let result = unsafe {
            libbpf_sys::bpf_program__set_insns(
                program.as_ptr(),
                instructions.as_mut_ptr().cast(),
                instructions.len() as libbpf_sys::size_t,
            )
        };
        check(result).map_err(|e| Error::os(format!("cannot replace the instructions of {name}"), e))?;
        for function in functions_of(program) {
            function.move_by(&edited.moved);
        }
        for line in lines_of(program) {
            line.move_by(&edited.moved);
        }
        Ok(())
    }

    fn twin_of(&self, name: &str) -> Result<Twin> {
        let program = self.find(name)?;
        let object = self.open.as_libbpf_object().as_ptr();
        // SAFETY: object and program are live; the section's name is a C string of the program's.
        let (btf, kind, attach_type, flags, section) = unsafe {
            (
                libbpf_sys::bpf_object__btf_fd(object),
                libbpf_sys::bpf_program__type(program.as_ptr()),
                libbpf_sys::bpf_program__expected_attach_type(program.as_ptr()),
                libbpf_sys::bpf_program__flags(program.as_ptr()),
                std::ffi::CStr::from_ptr(libbpf_sys::bpf_program__section_name(program.as_ptr())),
            )
        };
        // Flags that libbpf itself adds while loading.
        let linear = self.linear.iter().any(|one| one == name);
        let frags =
            if section.to_string_lossy().starts_with(FRAGS_SECTION) && !linear { super::program::HAS_FRAGS } else { 0 };
        let btf = match btf {
            ..0 => None,
            // SAFETY: the object holds the descriptor open while it is borrowed here.
            fd => Some(
                unsafe { BorrowedFd::borrow_raw(fd) }
                    .try_clone_to_owned()
                    .map_err(|e| Error::os("cannot hold the object's types", e))?,
            ),
        };
        Ok(Twin {
            name: name.to_owned(),
            kind,
            attach_type,
            flags: flags | frags,
            btf,
            instructions: instructions_of(program).to_vec(),
            functions: Records(functions_of(program).to_vec()),
            lines: Records(lines_of(program).to_vec()),
        })
    }
}

impl Twin {
    /// Loads it under the licence of the original, read from its loaded program.
    pub fn load(&self, original: BorrowedFd<'_>) -> Result<OwnedFd, LoadFailure> {
        let about = super::info::program(original).map_err(|e| self.failure(e))?;
        let license = if about.gpl_compatible { GPL } else { "Proprietary" };
        self.try_load(license, None).map_err(|e| self.failure(e))
    }

    /// Returns true if the verifier accepts it, without a log.
    pub fn is_accepted(&self) -> bool {
        self.try_load(GPL, None).is_ok()
    }

    /// Verifies it without keeping it loaded.
    pub fn verify(&self) -> Result<(), LoadFailure> {
        self.try_load(GPL, None).map(drop).map_err(|e| self.failure(e))
    }

    /// Verifies it once more to get the log.
    fn failure(&self, error: io::Error) -> LoadFailure {
        let mut log = vec![0u8; LOG_SIZE];
        let level = if verifier_log::is_kept() { verifier_log::WHOLE } else { LOG_STEPS };
        let _ = self.try_load(GPL, Some((&mut log, level)));
        verifier_log::add(&self.name, Some(&error), &log);
        LoadFailure { error, log: end_of_log(&log), warnings: Vec::new() }
    }

    fn try_load(&self, license: &str, log: Option<(&mut Vec<u8>, u32)>) -> io::Result<OwnedFd> {
        let types =
            self.btf.as_ref().map(|btf| Types { btf: btf.as_fd(), functions: &self.functions.0, lines: &self.lines.0 });
        let options = LoadOptions {
            license,
            expected_attach_type: self.attach_type,
            flags: self.flags,
            types,
            ..LoadOptions::new(&self.name, self.kind)
        };
        try_load(&self.instructions, &options, log)
    }
}

/// A record that begins with the number of an instruction.
trait AtInstruction {
    fn instruction(&mut self) -> &mut u32;

    /// Moves a record with its instruction. One at the program's start stays there, since the kernel requires a record
    /// there.
    fn move_by(&mut self, moved: &[u32]) {
        let at = self.instruction();
        if *at > 0
            && let Some(now) = moved.get(*at as usize)
        {
            *at = *now;
        }
    }
}

impl AtInstruction for libbpf_sys::bpf_func_info {
    fn instruction(&mut self) -> &mut u32 {
        &mut self.insn_off
    }
}

impl AtInstruction for libbpf_sys::bpf_line_info {
    fn instruction(&mut self) -> &mut u32 {
        &mut self.insn_off
    }
}

impl<T: AtInstruction> Records<T> {
    fn move_by(&mut self, moved: &[u32]) {
        self.0.iter_mut().for_each(|record| record.move_by(moved));
    }
}

fn instructions_of<'p>(program: NonNull<libbpf_sys::bpf_program>) -> &'p [Insn] {
    // SAFETY: callers hold the object that owns the program and its instructions, and copy what they need of them
    // before the object is changed.
    unsafe {
        let count = libbpf_sys::bpf_program__insn_cnt(program.as_ptr()) as usize;
        slice_of(libbpf_sys::bpf_program__insns(program.as_ptr()).cast_mut().cast(), count)
    }
}

fn functions_of<'p>(program: NonNull<libbpf_sys::bpf_program>) -> &'p mut [libbpf_sys::bpf_func_info] {
    // SAFETY: as for the instructions; the records belong to the object, and its users may change them.
    unsafe {
        let count = libbpf_sys::bpf_program__func_info_cnt(program.as_ptr()) as usize;
        slice_of(libbpf_sys::bpf_program__func_info(program.as_ptr()), count)
    }
}

fn lines_of<'p>(program: NonNull<libbpf_sys::bpf_program>) -> &'p mut [libbpf_sys::bpf_line_info] {
    // SAFETY: as for the functions.
    unsafe {
        let count = libbpf_sys::bpf_program__line_info_cnt(program.as_ptr()) as usize;
        slice_of(libbpf_sys::bpf_program__line_info(program.as_ptr()), count)
    }
}

/// # Safety
///
/// Unless it is null, the pointer leads to `count` items that nobody else changes meanwhile.
unsafe fn slice_of<'s, T>(items: *mut T, count: usize) -> &'s mut [T] {
    if items.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(items, count) }
}

fn stack_depths_in(log: &str) -> Option<Vec<u32>> {
    let line = log.lines().find_map(|line| line.strip_prefix(STACK_DEPTH))?;
    // Kernels since 6.15 may append text.
    let numbers = line.split_whitespace().next()?;
    numbers.split('+').map(|depth| depth.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_depths_are_found_in_the_statistics() {
        let log = "verification time 61 usec\nstack depth 64+0+128\nprocessed 12 insns (limit 1000000)\n";
        assert_eq!(stack_depths_in(log), Some(vec![64, 0, 128]));
        assert_eq!(stack_depths_in("stack depth 8 max 16\n"), Some(vec![8]));
        assert_eq!(stack_depths_in("stack depth 8+x\n"), None);
        assert_eq!(stack_depths_in(""), None);
    }

    #[test]
    fn records_follow_their_instructions() {
        let record = |insn_off| libbpf_sys::bpf_func_info { insn_off, type_id: 7 };
        let mut records = Records(vec![record(0), record(2), record(3)]);
        records.move_by(&[4, 5, 6, 20, 21]);
        let offsets: Vec<u32> = records.0.iter().map(|record| record.insn_off).collect();
        assert_eq!(offsets, [0, 6, 20]);
    }
}
