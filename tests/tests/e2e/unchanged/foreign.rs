//! Objects that others compiled: with hooks, their programs behave as before, or trawl refuses with a reason.
//!
//! TRAWL_TESTS_OBJECTS names directories of objects, separated by colons, besides those of Debian's xdp-tools
//! (scripts/test-programs). Each program prints a line: the object, the program, `accepted` or `refused: REASON`, and
//! `unloadable` if the kernel refuses it without hooks, too. `varies by itself` says that two copies of the original
//! differ.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use trawl_bpf::test_run;
use trawl_program::load::{Program, Source};
use trawl_tests::{root_or_skip, skip};

use super::{Numbers, PACKETS, frame, load};

/// Directories where Debian's packages have objects.
const INSTALLED: &[&str] = &["/usr/lib/x86_64-linux-gnu/bpf", "/usr/lib/aarch64-linux-gnu/bpf"];

/// Returns the objects in these directories and below them.
fn objects_in(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => objects_in(&path, found),
            Ok(_) if path.extension().is_some_and(|one| one == "o" || one == "elf" || one == "bpf") => found.push(path),
            _ => {}
        }
    }
}

/// Returns the XDP programs of an object. Returns none if the file is not a BPF object, or has only programs of other
/// kinds.
fn programs_in(name: &str, bytes: &[u8]) -> Vec<String> {
    let source = Source::embedded(name, bytes);
    source.map_or_else(|_| Vec::new(), |source| source.programs().into_iter().map(|one| one.name).collect())
}

/// Size of a value that a program reads from the clock.
const WORD: usize = 8;

/// Runs a program, a second copy of it and the one with hooks over the same packets. Bytes that differ between the
/// copies depend on the time or on chance, and are not compared. Returns true if any bytes differ.
fn compare(what: &str, [original, copy, tappable]: [&Program; 3]) -> bool {
    let mut numbers = Numbers(0x7472_6177_6c21);
    let mut varying = BTreeSet::new();
    for packet in 0..PACKETS {
        let frame = frame(&mut numbers);
        let [expected, copied, found] = [original, copy, tappable]
            .map(|program| test_run::xdp_outcome(program.as_fd(), &frame).map_err(|e| e.raw_os_error()));
        let (Ok(expected), Ok(copied), Ok(found)) = (&expected, &copied, &found) else {
            assert_eq!(found, expected, "{what}, packet {packet}: {frame:02x?}");
            continue;
        };
        if (copied.value, copied.bytes.len()) != (expected.value, expected.bytes.len()) {
            return true;
        }
        let words = || expected.bytes.chunks(WORD).enumerate();
        let changed = words().zip(copied.bytes.chunks(WORD));
        varying.extend(changed.filter(|((_, word), copied)| word != copied).map(|((at, _), _)| at));
        assert_eq!(
            (found.value, found.bytes.len()),
            (expected.value, expected.bytes.len()),
            "{what}, packet {packet}: {frame:02x?}"
        );
        for ((at, word), found) in words().zip(found.bytes.chunks(WORD)) {
            assert!(
                word == found || varying.contains(&at),
                "{what}, packet {packet}, byte {}: {found:02x?} instead of {word:02x?}: {frame:02x?}",
                at * WORD
            );
        }
    }
    !varying.is_empty()
}

/// Loads a program with and without hooks, and compares them; returns the outcome as text.
fn outcome(name: &str, bytes: &[u8], program: &str) -> String {
    let loaded =
        load(name, bytes, program, false).and_then(|original| Ok((original, load(name, bytes, program, false)?)));
    let (original, copy) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return format!("unloadable: {error}"),
    };
    match load(name, bytes, program, true) {
        Ok(tappable) => {
            let what = format!("{program} of {name}");
            let varies = compare(&what, [&original, &copy, &tappable]);
            if varies { "accepted, varies by itself".to_owned() } else { "accepted".to_owned() }
        }
        Err(error) => {
            assert!(error.how_to_fix().is_some(), "{program} of {name}: a refusal without advice: {error}");
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
    for directory in INSTALLED.iter().copied().chain(named.split(':').filter(|one| !one.is_empty())) {
        objects_in(Path::new(directory), &mut objects);
    }
    objects.sort();
    let mut accepted = 0;
    for object in &objects {
        let name = object.display().to_string();
        let bytes = fs::read(object).unwrap_or_else(|e| panic!("{name}: {e}"));
        for program in programs_in(&name, &bytes) {
            let outcome = outcome(&name, &bytes, &program);
            accepted += usize::from(outcome.starts_with("accepted"));
            println!("{name}\t{program}\t{}", outcome.replace(['\n', '\t'], " "));
        }
    }
    if objects.is_empty() {
        skip("no objects of others are installed (the package xdp-tools has some)");
    } else {
        assert!(accepted > 0, "none of {} objects has a program that accepts hooks", objects.len());
    }
}
