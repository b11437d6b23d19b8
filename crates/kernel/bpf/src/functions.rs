//! The functions of a loaded program by their full names: the kernel's description of a program cuts its name at 15
//! characters, its type information does not.

use std::io;
use std::os::fd::BorrowedFd;

use libbpf_rs::btf::{Btf, BtfType};

use super::info::{self, fill};

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
    let types = Btf::from_prog_id(about.id).map_err(io::Error::other)?;
    let function = |record: &libbpf_sys::bpf_func_info| {
        let named: BtfType<'_> = types.type_by_id(record.type_id.into())?;
        Some(Function { name: named.name()?.to_string_lossy().into_owned(), type_id: record.type_id })
    };
    Ok(records.iter().filter_map(function).collect())
}

/// Returns the program's full name as far as it is known: the kernel gives type information only to privileged
/// processes.
pub fn name_of(program: BorrowedFd<'_>) -> io::Result<String> {
    let short = info::program(program)?.name;
    let whole = of(program).ok().and_then(|all| all.into_iter().next());
    Ok(match whole {
        // A program's name may differ from its function's.
        Some(function) if function.name.starts_with(&short) => function.name,
        _ => short,
    })
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
        let plain = Plain::load(object::LAB_XDP, "lab_drop_linear").unwrap();
        let functions = of(plain.program()).unwrap();
        assert_eq!(functions[0].name, "lab_drop_linear");
        let code = returning(2);
        let bare = LoadOptions::new("trawl_bare", XDP).load(&code).unwrap();
        assert_eq!(of(bare.as_fd()).unwrap(), []);
        assert_eq!(name_of(bare.as_fd()).unwrap(), "trawl_bare");
    }
}
