//! Tap programs from the compiled objects: configuration and shared maps are filled in, each program's instructions are
//! relocated, and trawl itself loads them, so that it controls the flags and can splice in instructions.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use libbpf_rs::AsRawLibbpf as _;
use libbpf_rs::{MapCore, ObjectBuilder, OpenObject};

use trawl_ebpf::op::{self, LOAD_IMMEDIATE};
use trawl_ebpf::splice::{self, Unfit};
use trawl_ebpf::{Insn, helper, simplify, starts};
use trawl_sys::error::Refusal;
use trawl_sys::{Error, Result};

use super::kernel_types;
use super::program::LoadOptions;
use crate::layout::{
    COUNT_LENGTH, END_OF_OPTIONS_LENGTH, FLAGS_LENGTH, QUEUE_LENGTH, RECORD_FRAME_LENGTH, RecordConfig, Shared,
    TapConfig, VERDICT_LENGTH, VERDICT_NONE,
};
use crate::{adapt, loading, probe};

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// An object with tap programs.
#[derive(Clone, Copy, Debug)]
pub struct Taps {
    object: &'static [u8],
    reads_kernel: bool,
}

impl Taps {
    pub fn of(object: &'static [u8]) -> Self {
        Self { object, reads_kernel: false }
    }

    /// Lets the programs read the kernel's own structures, listed in bpf/lib/kernel_types.h.
    pub fn reading_kernel(object: &'static [u8]) -> Self {
        Self { object, reads_kernel: true }
    }
}

/// One tap program, ready to be loaded with different flags.
#[derive(Debug)]
pub struct TapProgram {
    object: OpenObject,
    instructions: Vec<Insn>,
    /// Insertion points for filters that no packet reaches with this configuration, for example because none of its
    /// verdicts is wanted.
    unreachable: Vec<i32>,
}

impl TapProgram {
    /// Prepares `program` of a compiled object with this configuration, and with these maps under their names.
    pub fn prepare(taps: Taps, program: &str, config: &TapConfig, maps: &[(&str, BorrowedFd<'_>)]) -> Result<Self> {
        let what = || format!("cannot prepare the program {program}");
        let fail = |why: libbpf_rs::Error| explained(what(), why);
        quiet_libbpf();
        let mut builder = ObjectBuilder::default();
        let mut redirect_info = None;
        if taps.reads_kernel {
            let types =
                kernel_types::for_programs().map_err(|e| Error::os("cannot read the kernel's type information", e))?;
            builder.btf_custom_path(&types.path).map_err(fail)?;
            redirect_info = types.redirect_info;
        }
        let mut open = builder.open_memory(taps.object).map_err(fail)?;
        let names_processes = maps.iter().any(|(name, _)| *name == OWNERS_MAP) || taps.object == OWNERS;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some((_, fd)) = maps.iter().find(|(wanted, _)| *wanted == name) {
                map.reuse_fd(*fd).map_err(|e| explained(format!("{}: map {name}", what()), e))?;
            } else if name == DROPPERS_MAP
                || name == CAPTURE_LOCK
                || SEGMENT_MAPS.contains(&name.as_str())
                || !names_processes && (OWNERS_MAPS.contains(&name.as_str()) || OF_TAP.contains(&name.as_str()))
            {
                // The instructions that use it are removed below.
                map.set_autocreate(false).map_err(|e| explained(format!("{}: map {name}", what()), e))?;
            }
        }
        for mut one in open.progs_mut() {
            let wanted = one.name() == program;
            one.set_autoload(wanted);
        }
        let mut prepared = Self::relocate(open, program)?;
        write_config(&mut prepared.instructions, config);
        let mut marks = vec![splice::FILTER, splice::QUICK_FILTER, splice::FRAME_FILTER];
        marks.retain(|mark| splice::has_mark(&prepared.instructions, *mark));
        simplify(&mut prepared.instructions);
        marks.retain(|mark| !splice::has_mark(&prepared.instructions, *mark));
        prepared.unreachable = marks;
        if let Some((_, fd)) = maps.iter().find(|(name, _)| *name == REJECTIONS) {
            write_address(&mut prepared.instructions, *fd);
        }
        for (mark, function) in MARKED_CALLS {
            write_call(&mut prepared.instructions, mark, function);
        }
        write_helper(&mut prepared.instructions);
        write_variable(&mut prepared.instructions, redirect_info);
        Ok(prepared)
    }

    fn relocate(open: OpenObject, program: &str) -> Result<Self> {
        let what = || format!("cannot prepare the program {program}");
        // SAFETY: the object is live and not loaded.
        let result = unsafe { libbpf_sys::bpf_object__prepare(open.as_libbpf_object().as_ptr()) };
        super::check(result).map_err(|e| Error::os(what(), e))?;
        let prepared = open.progs().find(|one| one.name() == program);
        let Some(prepared) = prepared.map(|one| one.insns()) else {
            return Err(Error::failed(what(), "it is not in the object"));
        };
        // SAFETY: both types of an instruction have the kernel's layout.
        let instructions = unsafe { std::slice::from_raw_parts(prepared.as_ptr().cast(), prepared.len()) };
        Ok(Self { instructions: instructions.to_vec(), object: open, unreachable: Vec::new() })
    }

    /// Inserts a filter into the program.
    pub fn filter(&mut self, block: &[Insn]) -> Result<()> {
        self.splice(splice::FILTER, block)
    }

    /// Inserts a filter's quick version into a program with an insertion point for it.
    pub fn quick_filter(&mut self, block: &[Insn]) -> Result<()> {
        self.splice(splice::QUICK_FILTER, block)
    }

    /// Returns true if the program runs the version of a filter that reads a copy of a frame.
    pub fn has_frame_filter(&self) -> bool {
        splice::has_mark(&self.instructions, splice::FRAME_FILTER)
    }

    /// Inserts the version of a filter that reads a copy of a frame.
    pub fn frame_filter(&mut self, block: &[Insn]) -> Result<()> {
        self.splice(splice::FRAME_FILTER, block)
    }

    fn splice(&mut self, mark: i32, block: &[Insn]) -> Result<()> {
        if self.unreachable.contains(&mark) {
            return Ok(());
        }
        let far_jumps = probe::has_far_jumps();
        self.instructions = splice::splice(&self.instructions, mark, block, far_jumps).map_err(unfit)?;
        Ok(())
    }

    pub fn instructions(&self) -> &[Insn] {
        &self.instructions
    }

    pub fn load(&self, options: &LoadOptions<'_>) -> Result<OwnedFd> {
        loading::load(&self.instructions, options)
    }

    /// Returns the descriptor of one of the object's own maps; valid as long as this program is.
    pub fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let name = std::ffi::CString::new(name).ok()?;
        // SAFETY: the object is live; the descriptor stays open while it is, which the returned borrow ensures.
        unsafe {
            let object = self.object.as_libbpf_object().as_ptr();
            let fd = libbpf_sys::bpf_object__find_map_fd_by_name(object, name.as_ptr());
            (fd >= 0).then(|| BorrowedFd::borrow_raw(fd))
        }
    }
}

/// Map of the lock under which programs change shared values, if the kernel lacks atomic operations for that.
pub const CAPTURE_LOCK: &str = "capture_lock";

/// Name of the map by which the tap at drops learns what dropped a packet.
pub const DROPPERS_MAP: &str = "latest_drops";
/// Maps of bpf/slow/events.h, which the measures of connections share with the counter of drops.
pub const SEGMENT_MAPS: [&str; 3] = ["slow_events", "slow_counts", "slow_senders"];
/// Maps of bpf/process/owners.h, which the programs that find processes share with the taps.
pub const OWNERS_MAPS: [&str; 12] = [
    OWNERS_MAP,
    "socket_owners",
    "known_processes",
    "untold_processes",
    "process_events",
    "process_settings",
    "process_counts",
    "soft_interrupts",
    "epochs",
    "askers",
    "wanted_flows",
    "known_namespaces",
];
pub const OWNERS_MAP: &str = "owners";
/// Maps of a tap's own, for captures that name processes.
const OF_TAP: [&str; 4] = ["socket_starts", "owned_flows", "flow_lookups", "noted_socket"];

/// The mark of CONFIG() in bpf/lib/ring.h: the upper half of the number to be replaced.
const CONFIG_MARK: i32 = 0x7477;
/// Sets a 32-bit register to a number.
const MOVE_IMMEDIATE: u8 = op::ALU | op::MOV | op::K;

fn unfit(why: Unfit) -> Error {
    let fail = |why: String| Error::failed("cannot insert the filter into the program", why);
    match why {
        Unfit::NoMark => fail("it has no insertion point for one".to_owned()),
        Unfit::TooLong { instructions } => {
            fail(format!("its {instructions} instructions are more than a jump can pass over"))
                .fix("use a shorter expression, or --tap packet")
                .refused(Refusal::TooLong)
        }
    }
}

/// Computes the lengths of a record's constant parts.
fn with_lengths(record: RecordConfig, config: &TapConfig) -> RecordConfig {
    let options = [
        (config.write_flags != 0, FLAGS_LENGTH),
        (config.write_id != 0, COUNT_LENGTH),
        (config.write_queue != 0, QUEUE_LENGTH),
        (record.verdict_kind != VERDICT_NONE as u32, VERDICT_LENGTH),
    ];
    let written = options.iter().filter(|(is_written, _)| *is_written);
    let options_length: usize = written.map(|(_, length)| length).sum();
    let end = match options_length {
        0 => 0,
        _ => END_OF_OPTIONS_LENGTH,
    };
    RecordConfig {
        options_length: options_length as u32,
        fixed_length: (RECORD_FRAME_LENGTH + options_length + end) as u32,
        ..record
    }
}

/// Writes a configuration's fields into the instructions that name them.
fn write_config(instructions: &mut [Insn], config: &TapConfig) {
    let config =
        TapConfig { first: with_lengths(config.first, config), second: with_lengths(config.second, config), ..*config };
    let bytes = config.to_bytes();
    let mut is_upper_half = false;
    for instruction in instructions {
        let loads = instruction.code == LOAD_IMMEDIATE && instruction.src() == 0;
        let holds_number = instruction.code == MOVE_IMMEDIATE || loads || is_upper_half;
        if holds_number && instruction.imm >> 16 == CONFIG_MARK {
            let offset = (instruction.imm & 0xffff) as usize;
            if let Some(field) = bytes.get(offset..).and_then(|rest| rest.first_chunk()) {
                instruction.imm = i32::from_le_bytes(*field);
            }
        }
        is_upper_half = loads;
    }
}

/// Name of the map that counts rejected packets. No object declares it: its address is written directly into the
/// instructions.
pub const REJECTIONS: &str = "rejections";
/// Mark of its address: REJECTIONS_MARK in bpf/lib/filter.h.
const REJECTIONS_MARK: i32 = 0x7477_fffd;

/// Writes the address of a map's value into the marked instructions. The upper half, which the configuration has filled
/// in, holds the offset in the value.
fn write_address(instructions: &mut [Insn], map: BorrowedFd<'_>) {
    for instruction in instructions {
        if instruction.code == LOAD_IMMEDIATE && instruction.src() == 0 && instruction.imm == REJECTIONS_MARK {
            *instruction = instruction.with_src(op::MAP_VALUE);
            instruction.imm = map.as_raw_fd();
        }
    }
}

/// Marks of calls of the kernel's functions: the function that asks a driver for its time stamp, HARDWARE_TIME_MARK in
/// bpf/tap/tap_xdp.bpf.c, and the function that returns the kernel's own structure of a packet, CAST_MARK in
/// bpf/lib/ring.h.
const MARKED_CALLS: [(i32, &str); 2] = [(0x7477_fffb, "bpf_xdp_metadata_rx_timestamp"), (0x7477_fff9, CAST_FUNCTION)];
const CAST_FUNCTION: &str = "bpf_cast_to_kern_ctx";

/// Returns true if programs at XDP and tc can read the kernel's own structure of a packet: since 6.2.
pub fn can_cast() -> bool {
    // The search takes time, and each program of each interface needs the answer.
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| probe::kernel_function(CAST_FUNCTION).is_ok())
}

/// Turns a marked call into one of the kernel's function. Programs with such a call are loaded only if the kernel has
/// the function.
fn write_call(instructions: &mut [Insn], mark: i32, function: &str) {
    let is_marked = |one: &&mut Insn| one.code == op::CALL_CODE && one.imm == mark;
    let mut marked = instructions.iter_mut().filter(is_marked).peekable();
    if marked.peek().is_none() {
        return;
    }
    let number = probe::kernel_function(function).unwrap_or(0);
    for instruction in marked {
        *instruction = instruction.with_src(op::KERNEL_FUNCTION);
        instruction.imm = number as i32;
    }
}

/// Mark of the helper that reads a process's memory: bpf/process/owners.bpf.c.
const READ_USER_MARK: i32 = 0x7477_fff7;

fn write_helper(instructions: &mut [Insn]) {
    for instruction in instructions {
        if instruction.code == op::CALL_CODE && instruction.imm == READ_USER_MARK {
            instruction.imm = helper::PROBE_READ_USER;
        }
    }
}

/// Mark of the address of the kernel's redirect record: REDIRECT_INFO_MARK in bpf/tap/redirect.h.
const REDIRECT_INFO_MARK: i32 = 0x7477_fffa;

/// Writes the number of a kernel variable, which the kernel turns into its address; or zero if it has none.
fn write_variable(instructions: &mut [Insn], variable: Option<u32>) {
    for at in starts(instructions).collect::<Vec<_>>() {
        let first = &mut instructions[at];
        if first.code != LOAD_IMMEDIATE || first.src() != 0 || first.imm != REDIRECT_INFO_MARK {
            continue;
        }
        first.imm = variable.unwrap_or(0) as i32;
        if variable.is_some() {
            *first = first.with_src(op::KERNEL_VARIABLE);
        }
        instructions[at + 1].imm = 0;
    }
}

/// Silences libbpf's own messages, which would repeat trawl's in other terms.
pub fn quiet_libbpf() {
    libbpf_rs::set_print(None);
}

/// Suffix of programs that are loaded without an expected attach type, as older loaders do.
const WITHOUT_ATTACH_TYPE: &str = "_old";

/// Returns an error of libbpf as the error of the system call that failed, if one did. Only the text contains its errno.
pub(crate) fn explained(what: String, why: libbpf_rs::Error) -> Error {
    let text = format!("{why:#}");
    let number = text.rsplit_once("(os error ").and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok());
    match number {
        Some(errno) => Error::os(what, std::io::Error::from_raw_os_error(errno)),
        None => Error::failed(what, text),
    }
}

/// A program that needs no configuration, loaded by libbpf as it is.
pub struct Plain {
    object: libbpf_rs::Object,
    program: OwnedFd,
}

impl Plain {
    pub fn load(object: &[u8], program: &str) -> Result<Self> {
        let fail = |why: libbpf_rs::Error| explained(format!("cannot load the program {program}"), why);
        quiet_libbpf();
        let mut open = ObjectBuilder::default().open_memory(object).map_err(fail)?;
        adapt::to_kernel(&mut open)?;
        for mut one in open.progs_mut() {
            let wanted = one.name() == program;
            one.set_autoload(wanted);
            if wanted && program.ends_with(WITHOUT_ATTACH_TYPE) {
                // SAFETY: the program belongs to `open`, which is alive and not loaded yet.
                unsafe {
                    libbpf_sys::bpf_program__set_expected_attach_type(one.as_libbpf_object().as_ptr(), 0);
                }
            }
        }
        let object = open.load().map_err(fail)?;
        let program = object
            .progs()
            .find(|one| one.name() == program)
            .ok_or_else(|| Error::failed(format!("cannot load the program {program}"), "it is not in the object"))?
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::os("cannot hold a program", e))?;
        Ok(Self { object, program })
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    pub fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let map = self.object.maps().find(|map| map.name() == name)?;
        // SAFETY: the descriptor belongs to the object, which the returned borrow keeps alive.
        Some(unsafe { BorrowedFd::borrow_raw(map.as_fd().as_raw_fd()) })
    }
}

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").field("program", &self.program).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod licences;
