//! BPF programs as people write them, compiled from tests/programs and tests/objects: the names of the files with the
//! objects.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::link;
use trawl_bpf::object::Plain;
use trawl_lab::Station;
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::run_in;

use crate::{Lab, frames};

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

/// What the program `tail_calls` asks of these frames leads to each of its exits, those of the programs it jumps to
/// included: with the verdicts.
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

/// One of them on an interface; gone when dropped.
#[derive(Debug)]
pub struct Attached {
    object: Plain,
    link: OwnedFd,
}

impl Drop for Attached {
    /// At once: a process that another test is about to start has the link too, and holds it a moment longer.
    fn drop(&mut self) {
        // The interface may be gone, and the link with it.
        let _ = link::detach(self.link.as_fd());
    }
}

impl Attached {
    /// `program` out of the file of that name, in the driver.
    #[track_caller]
    pub fn native(file: &str, program: &str, station: &Station) -> Self {
        Self::attach(file, program, station, XdpMode::Native)
    }

    /// The same, after the driver.
    #[track_caller]
    pub fn skb(file: &str, program: &str, station: &Station) -> Self {
        Self::attach(file, program, station, XdpMode::Skb)
    }

    #[track_caller]
    fn attach(file: &str, program: &str, station: &Station, mode: XdpMode) -> Self {
        let object = Plain::load(object(file), program).unwrap_or_else(|e| panic!("{e}"));
        let program = object.program();
        let link = run_in(&station.namespace, || {
            link::attach_xdp(program, station.index, mode)
        });
        let link = link
            .expect("the namespace")
            .expect("an interface without a program");
        Self { object, link }
    }

    /// Another program in its place, without a gap.
    #[track_caller]
    pub fn replace(&mut self, file: &str, program: &str) {
        let other = Plain::load(object(file), program).unwrap_or_else(|e| panic!("{e}"));
        link::replace_program(self.link.as_fd(), other.program(), self.object.program())
            .expect("a link of ours");
        self.object = other;
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.object.program()
    }

    /// Its number, as other tools show it.
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
