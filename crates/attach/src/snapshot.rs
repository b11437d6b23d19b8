//! The programs attached to an interface at one moment, read once while the lock is held.

use std::os::fd::{AsFd, OwnedFd};

use trawl_bpf::{info, link, program};
use trawl_sys::Result;
use trawl_sys::netlink::{LinkRecord, Netlink, XdpAttachment, XdpMode, xdp_abilities};

use crate::site::Site;

/// The input of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// At most one in the driver or after it, and one on the card.
    pub present: Vec<Present>,
    /// An interface above this one (a bridge, a bond, a VLAN) that has a program: the kernel accepts none below it.
    pub above: Option<String>,
    /// True if the driver reports native XDP; `None` if the kernel cannot be asked.
    pub native: Option<bool>,
    /// True if the kernel can replace functions of programs, as dispatchers need.
    pub dispatchers: bool,
    /// Program of the guard on this interface.
    pub guard: Option<u32>,
}

/// An attached program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    pub mode: XdpMode,
    pub program_id: u32,
    pub hold: Hold,
    pub kind: ProgramOwner,
}

/// Means that keeps a program attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Netlink,
    /// A link that trawl pinned.
    OwnLink,
    /// Another process's link, or one of several candidates.
    OtherLink,
}

/// Owner of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramOwner {
    /// Another tool.
    Other { name: Option<String> },
    /// A dispatcher of a chain by libxdp's protocol.
    Dispatcher { programs: usize },
    /// Trawl, with the chain of jumps that the program heads, if it can.
    Installed { name: String, source: String, chain: Option<Chain> },
}

/// A chain of programs that jump to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    pub programs: usize,
    /// True if its programs accept packets in several pieces.
    pub frags: bool,
}

impl Present {
    pub fn attachment(&self) -> XdpAttachment {
        XdpAttachment { mode: self.mode, program_id: self.program_id }
    }
}

impl Snapshot {
    /// Reads the kernel's state of the interface. The caller adds the owners of the programs.
    pub fn read(site: &Site) -> Result<Self> {
        let link = site.link()?;
        let links = Netlink::open(site.namespace())?.links()?;
        let present = |one: &XdpAttachment| Present {
            mode: one.mode,
            program_id: one.program_id,
            hold: if links_of(site.index(), *one).is_empty() { Hold::Netlink } else { Hold::OtherLink },
            kind: ProgramOwner::Other { name: name_of(one.program_id) },
        };
        Ok(Self {
            present: link.xdp.iter().map(present).collect(),
            above: above(&link, &links),
            native: native(site),
            ..Self::default()
        })
    }

    /// Returns the program that a new one in this mode would meet: one in the driver or after it, or one on the card.
    pub fn conflicting_in(&self, mode: XdpMode) -> Option<&Present> {
        self.present.iter().find(|one| excludes(one.mode, mode))
    }
}

/// Returns true if the kernel allows only one program in these two modes.
pub fn excludes(one: XdpMode, other: XdpMode) -> bool {
    (one == XdpMode::Offload) == (other == XdpMode::Offload)
}

/// Returns true if the driver reports native XDP.
fn native(site: &Site) -> Option<bool> {
    let abilities = xdp_abilities(site.namespace(), site.index());
    abilities.ok().flatten().map(|able| able.native())
}

/// Returns the interface with a program that this one belongs to, or that is on top of this one.
fn above(own: &LinkRecord, links: &[LinkRecord]) -> Option<String> {
    let is_above = |one: &&LinkRecord| {
        let is_on_it = one.peer_index == Some(own.index) && one.kind.as_deref() != Some("veth");
        one.index != own.index && !one.xdp.is_empty() && (own.master == Some(one.index) || is_on_it)
    };
    links.iter().find(is_above).map(|one| one.name.clone())
}

/// Returns the kernel's name of a program, if this process may read it.
pub fn name_of(program_id: u32) -> Option<String> {
    let program = program::open_by_id(program_id).ok()?;
    info::program(program.as_fd()).ok().map(|about| about.name)
}

/// Returns the links that may attach a program to the interface with this index. Links do not name their namespace:
/// others may have interfaces with the same index.
pub fn links_of(index: u32, attachment: XdpAttachment) -> Vec<OwnedFd> {
    let is_its = |fd: &OwnedFd| {
        info::link(fd.as_fd()).is_ok_and(|about| about.program == attachment.program_id && about.ifindex == index)
    };
    link::all_ids().into_iter().filter_map(|id| link::open_by_id(id).ok()).filter(is_its).collect()
}

/// Returns the link that attaches the program; `None` for netlink, or if several links may.
pub fn link_of(index: u32, attachment: XdpAttachment) -> Option<OwnedFd> {
    let [link] = <[OwnedFd; 1]>::try_from(links_of(index, attachment)).ok()?;
    Some(link)
}
