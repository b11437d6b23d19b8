//! BPF programs like users write them, compiled from tests/programs and tests/objects: file names and objects.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::link;
use trawl_bpf::object::Plain;
use trawl_lab::Station;
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::run_in;

use crate::{Lab, frames};

include!(concat!(env!("OUT_DIR"), "/programs.rs"));
include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// Returns the object compiled from the file of that name.
#[track_caller]
pub fn object(name: &str) -> &'static [u8] {
    let mut all = PROGRAMS.iter().chain(OBJECTS);
    let found = all.find(|(file, _)| *file == name);
    found.unwrap_or_else(|| panic!("there is no source {name}.bpf.c for tests")).1
}

/// Writes the object to a file of the test, `NAME.o`.
#[track_caller]
pub fn object_file(lab: &Lab, name: &str) -> String {
    let path = lab.file(&format!("{name}.o"));
    std::fs::write(&path, object(name)).expect("a file for the test");
    path
}

/// Returns frames that lead the program `tail_calls` to each of its exits, including the ones of the programs it jumps
/// to, with the verdicts.
pub fn tail_call_exits() -> [(Vec<u8>, u64); 6] {
    let frame = |first: u8, second: u8, third: u8| {
        let mut frame = frames::silent(64);
        frame[14] = first;
        frame[20] = second;
        frame[21] = third;
        frame
    };
    [
        (frame(1, 0, 0), 1),
        (frame(41, 0, 0), 2),
        (frame(42, 250, 0), 1),
        (frame(42, 50, 0), 2),
        (frame(42, 150, 200), 3),
        (frame(43, 0, 0), 0),
    ]
}

/// A program on an interface, detached when dropped.
#[derive(Debug)]
pub struct Attached {
    object: Plain,
    link: OwnedFd,
}

impl Drop for Attached {
    /// Detaches at once: a process that another test is starting would hold the link a moment longer.
    fn drop(&mut self) {
        // The interface may be gone, and the link with it.
        let _ = link::detach(self.link.as_fd());
    }
}

impl Attached {
    /// Attaches `program` of the file of that name natively.
    #[track_caller]
    pub fn native(file: &str, program: &str, station: &Station) -> Self {
        Self::attach(file, program, station, XdpMode::Native)
    }

    /// Attaches it in skb mode.
    #[track_caller]
    pub fn skb(file: &str, program: &str, station: &Station) -> Self {
        Self::attach(file, program, station, XdpMode::Skb)
    }

    #[track_caller]
    fn attach(file: &str, program: &str, station: &Station, mode: XdpMode) -> Self {
        let object = Plain::load(object(file), program).unwrap_or_else(|e| panic!("{e}"));
        let program = object.program();
        let link = run_in(&station.namespace, || link::attach_xdp(program, station.index, mode));
        let link = link.expect("the namespace").expect("an interface without a program");
        Self { object, link }
    }

    /// Exchanges it for another program, without a gap.
    #[track_caller]
    pub fn replace(&mut self, file: &str, program: &str) {
        let other = Plain::load(object(file), program).unwrap_or_else(|e| panic!("{e}"));
        link::replace_program(self.link.as_fd(), other.program(), self.object.program()).expect("a link of ours");
        self.object = other;
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.object.program()
    }

    /// Returns its id, as other tools show it.
    pub fn id(&self) -> u32 {
        let about = trawl_bpf::info::program(self.program());
        about.expect("a program of ours").id
    }

    pub fn map(&self, name: &str) -> u32 {
        let map = self.object.map(name).expect("the program has it");
        let about = trawl_bpf::info::map(map);
        about.expect("a map of ours").id
    }
}
