//! Captures that stand in a hook's slots: one is in the slots themselves, the others after it, in an array of programs
//! that each one jumps on into (see `capture_chain.rs` of crates/tap, which puts them there).

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_kernel::bpf::info::{self, MapInfo};
use trawl_kernel::bpf::{map, program};
use trawl_kernel::{Error, Result};

/// What the array is called, in the BPF source and in the kernel: how another trawl's is known.
pub const MAP_NAME: &str = "trawl_chain";
/// The same of an array that serves many interfaces with one program.
pub const SHARED_MAP_NAME: &str = "trawl_chain_all";
/// What the array of one program is called that a capture at a hook holds as long as it runs.
const ALIVE_MAP_NAME: &str = "trawl_alive";
/// How the names of the programs that take part begin.
const PROGRAM_NAME: &str = "trawl_xdp";

/// The seats of a chain. A program's way on is fixed, so those who come while others are there move on from seat to seat:
/// there are far more than captures at one time.
pub const SEATS: u32 = 256;
/// The seats, and what was at the hook before the first capture came.
pub const ROWS: u32 = SEATS + 1;

/// Whether a program is a capture's.
pub fn is_member(name: &str) -> bool {
    name.starts_with(PROGRAM_NAME)
}

/// How many captures stand in a hook's first slots, of which each capture takes this many.
pub fn count(hook: BorrowedFd<'_>, stride: u32) -> Result<u32> {
    let fail = |e| Error::os("cannot read a hook map", e);
    for slot in 0..stride {
        if let Some(first) = map::program_in(hook, slot).map_err(fail)? {
            let seats = array_of(first, stride)?;
            let seated = seats.map(|map| seated(map.as_fd(), stride));
            // A program of another tool has none after it.
            return Ok(seated.transpose().map_err(fail)?.unwrap_or(1));
        }
    }
    Ok(0)
}

/// The array that a capture's program jumps into; `None` if it is not a capture's.
pub fn array_of(attached: u32, stride: u32) -> Result<Option<OwnedFd>> {
    map_of(attached, |map| {
        [MAP_NAME, SHARED_MAP_NAME].contains(&map.name.as_str()) && map.max_entries == ROWS * stride
    })
}

/// Makes what shows that a capture runs: its programs name an array with one of them in it, which the kernel empties when
/// no process holds it any more.
pub fn show_alive(programs: &[OwnedFd]) -> Result<OwnedFd> {
    let alive = map::create_prog_array(ALIVE_MAP_NAME, 1)?;
    let fail = |e| Error::os("cannot tie a capture's programs to its process", e);
    for program in programs {
        program::bind_map(program, &alive).map_err(fail)?;
        // Any of them will do.
        map::set_program(alive.as_fd(), 0, program.as_fd()).map_err(fail)?;
    }
    Ok(alive)
}

/// Whether a program is a capture's that ended without taking it away.
pub fn is_left_behind(program: u32) -> Result<bool> {
    let alive = map_of(program, |map| map.name == ALIVE_MAP_NAME)?;
    let holds = alive.map(|alive| map::program_in(alive.as_fd(), 0));
    let holds = holds.transpose().map_err(cannot_look)?;
    Ok(holds == Some(None))
}

/// The map of a capture's program that fits.
fn map_of(program: u32, fits: impl Fn(&MapInfo) -> bool) -> Result<Option<OwnedFd>> {
    let Ok(program) = program::open_by_id(program) else {
        return Ok(None);
    };
    let about = info::program(program.as_fd()).map_err(cannot_look)?;
    if !is_member(&about.name) {
        return Ok(None);
    }
    for id in about.map_ids {
        let map = map::open_by_id(id).map_err(cannot_look)?;
        if fits(&map::info(&map).map_err(cannot_look)?) {
            return Ok(Some(map));
        }
    }
    Ok(None)
}

fn cannot_look(error: io::Error) -> Error {
    Error::os("cannot look at the attached program", error)
}

/// The last seat in such an array that is taken.
pub fn last_taken(map: BorrowedFd<'_>, stride: u32) -> io::Result<u32> {
    let mut last = 0;
    for slot in 0..SEATS {
        if map::program_in(map, slot * stride)?.is_some() {
            last = slot;
        }
    }
    Ok(last)
}

/// The last seat of a program in such an array. One that took over from others has theirs as well, in front.
pub fn row_of(map: BorrowedFd<'_>, stride: u32, program: u32) -> io::Result<Option<u32>> {
    let mut last = None;
    for slot in 0..SEATS * stride {
        if map::program_in(map, slot)? == Some(program) {
            last = Some(slot / stride);
        }
    }
    Ok(last)
}

/// How many captures there are in such an array.
pub fn seated(map: BorrowedFd<'_>, stride: u32) -> io::Result<u32> {
    let mut seen = HashSet::new();
    for row in 0..SEATS {
        seen.extend(map::program_in(map, row * stride)?);
    }
    Ok(seen.len() as u32)
}
