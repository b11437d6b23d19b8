//! Who is on an interface: the names of programs, and the links that attach them.

use std::os::fd::{AsFd, OwnedFd};

use trawl_bpf::{info, link, program};
use trawl_sys::netlink::XdpAttachment;

/// The kernel's name of a program, where this process may look at it.
pub fn name_of(program_id: u32) -> Option<String> {
    let program = program::open_by_id(program_id).ok()?;
    info::program(program.as_fd()).ok().map(|about| about.name)
}

/// The links that may attach a program to the interface with this number. They do not name its namespace: others may
/// have interfaces with the same number.
pub fn links_of(index: u32, attachment: XdpAttachment) -> Vec<OwnedFd> {
    let is_its = |fd: &OwnedFd| {
        info::link(fd.as_fd())
            .is_ok_and(|about| about.program == attachment.program_id && about.ifindex == index)
    };
    link::all_ids()
        .into_iter()
        .filter_map(|id| link::open_by_id(id).ok())
        .filter(is_its)
        .collect()
}

/// The link that attaches the program; `None` if that is netlink, or if several links may.
pub fn link_of(index: u32, attachment: XdpAttachment) -> Option<OwnedFd> {
    let [link] = <[OwnedFd; 1]>::try_from(links_of(index, attachment)).ok()?;
    Some(link)
}
