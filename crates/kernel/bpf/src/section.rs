//! The variables in a map that holds a section of an object, by the map's own type information.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::info::fill;
use super::loader::Variable;

/// Position of a type's kind in its information, and the bits of the kind and of the number of its members.
const KIND_SHIFT: u32 = 24;
const KIND: u32 = 0x1f;
const MEMBERS: u32 = 0xffff;

/// Type information that libbpf has read from the kernel.
struct Types(NonNull<libbpf_sys::btf>);

impl Drop for Types {
    fn drop(&mut self) {
        // SAFETY: it was allocated by libbpf, and nothing refers to it any more.
        unsafe { libbpf_sys::btf__free(self.0.as_ptr()) };
    }
}

impl Types {
    fn of_kernel(id: u32) -> Option<Self> {
        // SAFETY: libbpf returns its own type information, or null.
        NonNull::new(unsafe { libbpf_sys::btf__load_from_kernel_by_id(id) }).map(Self)
    }

    fn find(&self, number: u32) -> Option<&libbpf_sys::btf_type> {
        // SAFETY: the type information is live; libbpf returns one of its types, or null.
        unsafe { libbpf_sys::btf__type_by_id(self.0.as_ptr(), number).as_ref() }
    }

    fn name(&self, found: &libbpf_sys::btf_type) -> Option<String> {
        // SAFETY: as for a type; a text ends with a zero.
        let text = unsafe { libbpf_sys::btf__name_by_offset(self.0.as_ptr(), found.name_off) };
        // SAFETY: the text lives as long as the type information.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    fn section(&self, number: u32) -> Option<&[libbpf_sys::btf_var_secinfo]> {
        let section = self.find(number)?;
        if section.info >> KIND_SHIFT & KIND != libbpf_sys::BTF_KIND_DATASEC {
            return None;
        }
        let count = (section.info & MEMBERS) as usize;
        // SAFETY: that many entries follow a section, which the kernel has checked.
        Some(unsafe { std::slice::from_raw_parts(std::ptr::from_ref(section).add(1).cast(), count) })
    }
}

/// Returns the variables of a section's map; `None` if the map has no type information.
pub fn variables_of_map(map: BorrowedFd<'_>) -> Option<Vec<Variable>> {
    let mut about = libbpf_sys::bpf_map_info::default();
    fill(map, &mut about).ok()?;
    let types = Types::of_kernel(about.btf_id)?;
    let variable = |entry: &libbpf_sys::btf_var_secinfo| {
        let name = types.name(types.find(entry.type_)?)?;
        Some((name, u64::from(entry.offset), entry.size as usize))
    };
    Some(types.section(about.btf_value_type_id)?.iter().filter_map(variable).collect())
}
