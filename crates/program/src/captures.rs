//! The captures at a hook: one is in its slots; the others follow in an array of programs that each one jumps on into
//! (filled by `capture_chain.rs` of crates/capture).

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::info::{self, MapInfo};
use trawl_bpf::{map, program};
use trawl_sys::{Error, Result};

/// Name of the array in the BPF source and in the kernel, by which another trawl's array is recognized.
pub const MAP_NAME: &str = "trawl_chain";
/// Name of an array that serves many interfaces with one program.
pub const SHARED_MAP_NAME: &str = "trawl_chain_all";
/// Name of the one-program array that a capture at a hook holds while it runs.
const ALIVE_MAP_NAME: &str = "trawl_alive";
/// Prefix of the names of captures' programs.
const PROGRAM_NAME: &str = "trawl_xdp";

/// Number of seats in a chain. A program's jump is fixed, so a capture that joins others moves from seat to seat: the
/// seats far outnumber concurrent captures.
pub const SEATS: u32 = 256;
/// The seats, and a row for the hook's content before the first capture.
pub const ROWS: u32 = SEATS + 1;

/// Returns true if a program belongs to a capture.
pub fn is_member(name: &str) -> bool {
    name.starts_with(PROGRAM_NAME)
}

/// Counts the captures in a hook's first slots, of which each capture uses `stride`.
pub fn count_captures(hook: BorrowedFd<'_>, stride: u32) -> Result<u32> {
    let fail = |e| Error::os("cannot read a hook map", e);
    for slot in 0..stride {
        if let Some(first) = map::program_in(hook, slot).map_err(fail)? {
            let seats = array_of(first, stride)?;
            let seated = seats.map(|map| seated(map.as_fd(), stride));
            // No program follows one of another tool.
            return Ok(seated.transpose().map_err(fail)?.unwrap_or(1));
        }
    }
    Ok(0)
}

/// Opens the array that a capture's program jumps into; `None` if the program is not a capture's.
pub fn array_of(attached: u32, stride: u32) -> Result<Option<OwnedFd>> {
    map_of(attached, |map| [MAP_NAME, SHARED_MAP_NAME].contains(&map.name.as_str()) && map.max_entries == ROWS * stride)
}

/// Marks a capture as running: its programs name an array with one of them in it, which the kernel empties when no
/// process holds it any more.
pub fn show_alive(programs: &[OwnedFd]) -> Result<OwnedFd> {
    let alive = map::create_prog_array(ALIVE_MAP_NAME, 1)?;
    let fail = |e| Error::os("cannot tie a capture's programs to its process", e);
    for program in programs {
        program::bind_map(program, &alive).map_err(fail)?;
        // Any of the programs will do.
        map::set_program(alive.as_fd(), 0, program.as_fd()).map_err(fail)?;
    }
    Ok(alive)
}

/// Returns true if a program belongs to a capture that ended without removing it.
pub fn is_left_behind(program: u32) -> Result<bool> {
    let alive = map_of(program, |map| map.name == ALIVE_MAP_NAME)?;
    let holds = alive.map(|alive| map::program_in(alive.as_fd(), 0)).transpose().map_err(cannot_read_properties)?;
    Ok(holds == Some(None))
}

/// Finds a map of a capture's program by a condition.
fn map_of(program: u32, fits: impl Fn(&MapInfo) -> bool) -> Result<Option<OwnedFd>> {
    let Ok(program) = program::open_by_id(program) else {
        return Ok(None);
    };
    let about = info::program(program.as_fd()).map_err(cannot_read_properties)?;
    if !is_member(&about.name) {
        return Ok(None);
    }
    for id in about.map_ids {
        let map = map::open_by_id(id).map_err(cannot_read_properties)?;
        if fits(&map::info(&map).map_err(cannot_read_properties)?) {
            return Ok(Some(map));
        }
    }
    Ok(None)
}

fn cannot_read_properties(error: io::Error) -> Error {
    Error::os("cannot read the attached program's properties", error)
}

/// Returns the last occupied seat in such an array.
pub fn last_taken(map: BorrowedFd<'_>, stride: u32) -> io::Result<u32> {
    let mut last = 0;
    for slot in 0..SEATS {
        if map::program_in(map, slot * stride)?.is_some() {
            last = slot;
        }
    }
    Ok(last)
}

/// Returns the last seat of a program in such an array. A program that took over from others has their seats in front
/// as well.
pub fn row_of(map: BorrowedFd<'_>, stride: u32, program: u32) -> io::Result<Option<u32>> {
    let mut last = None;
    for slot in 0..SEATS * stride {
        if map::program_in(map, slot)? == Some(program) {
            last = Some(slot / stride);
        }
    }
    Ok(last)
}

/// Counts the captures in such an array.
pub fn seated(map: BorrowedFd<'_>, stride: u32) -> io::Result<u32> {
    let mut seen = HashSet::new();
    for row in 0..SEATS {
        seen.extend(map::program_in(map, row * stride)?);
    }
    Ok(seen.len() as u32)
}
