//! Objects that others compiled: with hooks, their programs behave as before, or trawl refuses with a reason.
//!
//! TRAWL_TESTS_OBJECTS names directories of objects, separated by colons, besides those of Debian's xdp-tools
//! (scripts/test-programs). Each program prints a line: the object, the program, `accepted` or `refused: REASON`, and
//! `unloadable` if the kernel refuses it without hooks, too.

use std::fs;
use std::path::{Path, PathBuf};

use trawl_program::load::Source;
use trawl_tests::{root_or_skip, skip};

use super::{assert_same, load};

/// Directories where Debian's packages have objects.
const INSTALLED: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/bpf",
    "/usr/lib/aarch64-linux-gnu/bpf",
];

/// Returns the objects in these directories and below them.
fn objects_in(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => objects_in(&path, found),
            Ok(_)
                if path
                    .extension()
                    .is_some_and(|one| one == "o" || one == "elf") =>
            {
                found.push(path)
            }
            _ => {}
        }
    }
}

/// Returns the XDP programs of an object; none if it is no BPF object, or has programs of other kinds only.
fn programs_in(name: &str, bytes: &[u8]) -> Vec<String> {
    let source = Source::embedded(name, bytes);
    source.map_or_else(
        |_| Vec::new(),
        |source| source.programs().into_iter().map(|one| one.name).collect(),
    )
}

/// Loads a program with and without hooks, and compares them; returns the outcome as text.
fn outcome(name: &str, bytes: &[u8], program: &str) -> String {
    let original = match load(name, bytes, program, false) {
        Ok(original) => original,
        Err(error) => return format!("unloadable: {error}"),
    };
    match load(name, bytes, program, true) {
        Ok(tappable) => {
            assert_same(&format!("{program} of {name}"), &original, &tappable);
            "accepted".to_owned()
        }
        Err(error) => {
            assert!(
                error.how_to_fix().is_some(),
                "{program} of {name}: a refusal without advice: {error}"
            );
            format!("refused: {error}")
        }
    }
}

#[test]
fn programs_of_others_behave_as_before() {
    if !root_or_skip() {
        return;
    }
    let named = std::env::var("TRAWL_TESTS_OBJECTS").unwrap_or_default();
    let mut objects = Vec::new();
    for directory in INSTALLED
        .iter()
        .copied()
        .chain(named.split(':').filter(|one| !one.is_empty()))
    {
        objects_in(Path::new(directory), &mut objects);
    }
    objects.sort();
    let mut accepted = 0;
    for object in &objects {
        let name = object.display().to_string();
        let bytes = fs::read(object).unwrap_or_else(|e| panic!("{name}: {e}"));
        for program in programs_in(&name, &bytes) {
            let outcome = outcome(&name, &bytes, &program);
            accepted += usize::from(outcome == "accepted");
            println!("{name}\t{program}\t{}", outcome.replace(['\n', '\t'], " "));
        }
    }
    match objects.is_empty() {
        true => skip("no objects of others are installed (the package xdp-tools has some)"),
        false => assert!(
            accepted > 0,
            "none of {} objects has a program that takes hooks",
            objects.len()
        ),
    }
}
