//! Adapts objects that libbpf loads to kernels without the features of newer ones: variables that select branches of
//! the programs, and flags of programs.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{DataSec, Var};
use libbpf_rs::{AsRawLibbpf as _, OpenObject, ProgramType};
use trawl_sys::{Error, Result};

use super::probe;

/// Part of the name of a section whose programs accept packets in several pieces.
const FRAGS: &str = ".frags";
/// The variable of bpf/lib/one_buffer.h.
const ONE_BUFFER: &str = "trawl_one_buffer";

/// Adapts all programs of an object. Called before it is loaded.
pub fn to_kernel(open: &mut OpenObject) -> Result<()> {
    if !probe::has_xdp_buffers() && find_variable(open, ONE_BUFFER).is_some() {
        set_variable(open, ONE_BUFFER, &1u32.to_ne_bytes())?;
    }
    if probe::has_xdp_frags() {
        return Ok(());
    }
    for mut one in open.progs_mut() {
        if is_xdp(&one) && one.section().to_string_lossy().contains(FRAGS) {
            make_linear(&mut one);
        }
    }
    Ok(())
}

/// Returns true for an XDP program. One that replaces a function of another (freplace) has another type, and libbpf
/// ignores the flag in its section's name.
fn is_xdp(program: &libbpf_rs::OpenProgramMut<'_>) -> bool {
    let pointer = program.as_libbpf_object().as_ptr();
    // SAFETY: the program belongs to an object that is borrowed for as long as this reference lives.
    unsafe { libbpf_sys::bpf_program__type(pointer) == libbpf_sys::BPF_PROG_TYPE_XDP }
}

/// Makes a program ignore the fragments flag in its section's name.
pub(crate) fn make_linear(program: &mut libbpf_rs::OpenProgramMut<'_>) {
    let pointer = program.as_libbpf_object().as_ptr();
    // SAFETY: the program belongs to an object that is borrowed for as long as this reference lives.
    let attach_type = unsafe { libbpf_sys::bpf_program__expected_attach_type(pointer) };
    // libbpf forgets the section when the type changes.
    program.set_prog_type(ProgramType::SocketFilter);
    program.set_prog_type(ProgramType::Xdp);
    // SAFETY: as above.
    unsafe { libbpf_sys::bpf_program__set_expected_attach_type(pointer, attach_type) };
}

/// Sets the initial value of a global variable or constant (`const volatile`), by its name in the source.
pub fn set_variable(open: &mut OpenObject, name: &str, value: &[u8]) -> Result<()> {
    let fail = |why: &str| Error::failed(format!("cannot set the variable {name}"), why);
    let (section, offset, size) = find_variable(open, name).ok_or_else(|| fail("it is not in the object"))?;
    if size != value.len() {
        return Err(fail(&format!("it has {size} bytes, and the value has {}", value.len())));
    }
    for mut map in open.maps_mut() {
        let is_section = map.name().to_string_lossy().ends_with(&section);
        if is_section && let Some(bytes) = map.initial_value_mut().and_then(|all| all.get_mut(offset..offset + size)) {
            bytes.copy_from_slice(value);
            return Ok(());
        }
    }
    Err(fail("its section has no contents"))
}

/// Returns a variable's section, offset and size, by the object's type information.
fn find_variable(open: &OpenObject, name: &str) -> Option<(String, usize, usize)> {
    // SAFETY: the object is alive for as long as the reference is used.
    let object = unsafe { open.as_libbpf_object().as_ref() };
    let types = Btf::from_bpf_object(object).ok()??;
    let sections: Vec<DataSec<'_>> = types.type_by_kind().collect();
    sections.iter().find_map(|section| {
        let entry = section.iter().find(|entry| {
            let variable: Option<Var<'_>> = types.type_by_id(entry.ty);
            variable.is_some_and(|variable| variable.name().is_some_and(|n| n == name))
        })?;
        let section = section.name()?.to_string_lossy().into_owned();
        Some((section, entry.offset as usize, entry.size))
    })
}
