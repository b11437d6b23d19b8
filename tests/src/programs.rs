//! BPF programs as people write them, compiled from tests/programs: the names of the files with the objects.

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// The object compiled from the file of that name.
#[track_caller]
pub fn object(name: &str) -> &'static [u8] {
    let found = PROGRAMS.iter().find(|(file, _)| *file == name);
    found
        .unwrap_or_else(|| panic!("there is no tests/programs/{name}.bpf.c"))
        .1
}
