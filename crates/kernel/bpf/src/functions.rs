//! The functions of a loaded program by their full names: the kernel's description of a program cuts its name at 15
//! characters, its type information does not.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::check;

/// A function of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Its number in the program's type information, by which other programs attach to it.
    pub type_id: u32,
}

/// Returns the functions of a program, the main one first; empty for a program without type information.
pub fn of(program: BorrowedFd<'_>) -> io::Result<Vec<Function>> {
    let mut about = libbpf_sys::bpf_prog_info::default();
    fill(program, &mut about)?;
    if about.btf_id == 0 || about.nr_func_info == 0 {
        return Ok(Vec::new());
    }
    let size = size_of::<libbpf_sys::bpf_func_info>();
    let mut records = vec![libbpf_sys::bpf_func_info::default(); about.nr_func_info as usize];
    let mut again = libbpf_sys::bpf_prog_info {
        nr_func_info: about.nr_func_info,
        func_info_rec_size: size as u32,
        func_info: records.as_mut_ptr() as u64,
        ..Default::default()
    };
    fill(program, &mut again)?;
    records.truncate(again.nr_func_info as usize);
    let types = Types::load(about.btf_id)?;
    Ok(records
        .iter()
        .filter_map(|record| {
            Some(Function {
                name: types.name(record.type_id)?,
                type_id: record.type_id,
            })
        })
        .collect())
}

/// Returns the program's full name as far as it is known: the kernel gives type information only to privileged
/// processes.
pub fn name_of(program: BorrowedFd<'_>) -> io::Result<String> {
    let short = super::info::program(program)?.name;
    let whole = of(program).ok().and_then(|all| all.into_iter().next());
    Ok(match whole {
        // A program's name may differ from its function's.
        Some(function) if function.name.starts_with(&short) => function.name,
        _ => short,
    })
}

fn fill(program: BorrowedFd<'_>, info: &mut libbpf_sys::bpf_prog_info) -> io::Result<()> {
    let mut length = size_of_val(info) as u32;
    // SAFETY: the kernel writes at most `length` bytes into `info`, and as many records as it says it has room for.
    let result = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            std::ptr::from_mut(info).cast(),
            &mut length,
        )
    };
    check(result).map(drop)
}

/// Type information held by the kernel.
#[derive(Debug)]
struct Types(NonNull<libbpf_sys::btf>);

impl Types {
    fn load(id: u32) -> io::Result<Self> {
        // SAFETY: the call takes a number.
        let types = unsafe { libbpf_sys::btf__load_from_kernel_by_id(id) };
        NonNull::new(types)
            .map(Self)
            .ok_or_else(io::Error::last_os_error)
    }

    fn name(&self, id: u32) -> Option<String> {
        // SAFETY: the types are live; a number that is out of range gives null.
        let name = unsafe {
            let kind = libbpf_sys::btf__type_by_id(self.0.as_ptr(), id);
            if kind.is_null() {
                return None;
            }
            libbpf_sys::btf__name_by_offset(self.0.as_ptr(), (*kind).name_off)
        };
        if name.is_null() {
            return None;
        }
        // SAFETY: a C string that belongs to the types, which are live.
        let name = unsafe { CStr::from_ptr(name) };
        Some(name.to_string_lossy().into_owned())
    }
}

impl Drop for Types {
    fn drop(&mut self) {
        // SAFETY: the types are ours alone and are not used after this.
        unsafe { libbpf_sys::btf__free(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::object::{self, Plain};
    use crate::program::{LoadOptions, XDP, returning};
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn names_are_complete_and_missing_ones_no_error() {
        if !root_or_skip() {
            return;
        }
        let plain = Plain::load(object::LAB, "lab_drop_linear").unwrap();
        let functions = of(plain.program()).unwrap();
        assert_eq!(functions[0].name, "lab_drop_linear");
        let code = returning(2);
        let bare = LoadOptions::new("trawl_bare", XDP).load(&code).unwrap();
        assert_eq!(of(bare.as_fd()).unwrap(), []);
        assert_eq!(name_of(bare.as_fd()).unwrap(), "trawl_bare");
    }
}
