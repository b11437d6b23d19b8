//! BPF programs as people write them, compiled from tests/programs and tests/objects: the names of the files with the
//! objects.

use crate::Lab;

include!(concat!(env!("OUT_DIR"), "/programs.rs"));
include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// The object compiled from the file of that name.
#[track_caller]
pub fn object(name: &str) -> &'static [u8] {
    let mut all = PROGRAMS.iter().chain(OBJECTS);
    let found = all.find(|(file, _)| *file == name);
    found
        .unwrap_or_else(|| panic!("there is no source {name}.bpf.c for tests"))
        .1
}

/// The object as a file of the test's, `NAME.o`.
#[track_caller]
pub fn object_file(lab: &Lab, name: &str) -> String {
    let path = lab.file(&format!("{name}.o"));
    std::fs::write(&path, object(name)).expect("a file for the test");
    path
}
