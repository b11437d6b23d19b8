//! XDP programs such as users have, attached to a lab's interfaces.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_attach::Site;
use trawl_bpf::object::{self, Plain};
use trawl_bpf::{link, map};
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};

use crate::pair::Station;

const XDP_DROP: u32 = 1;

/// Behaviour of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Drop,
    /// Drops through a hook map, which a capture can enter.
    DropWithHook,
    PassWithHook,
    /// Returns the action in the frame, if its ethertype is 0x88b5: the two bytes after it.
    ChosenWithHook,
    /// A program that accepts packets in one piece only, with a hook map.
    DropLinearWithHook,
    /// Has a hook map for programs that are loaded like xdpcap's.
    DropForXdpcap,
    PassForXdpcap,
    /// Reads the clock, then drops.
    ReadClock,
    /// Redirects to AF_XDP sockets.
    ToSockets,
}

impl Does {
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "lab_drop",
            Self::DropWithHook => "lab_drop_hook",
            Self::PassWithHook => "lab_pass_hook",
            Self::ChosenWithHook => "lab_chosen_hook",
            Self::DropLinearWithHook => "lab_drop_linear",
            Self::DropForXdpcap => "lab_drop_old",
            Self::PassForXdpcap => "lab_pass_old",
            Self::ReadClock => "lab_clock",
            Self::ToSockets => "lab_xsk",
        }
    }
}

/// A program on an interface, detached when dropped.
#[derive(Debug)]
pub struct Loaded {
    object: Plain,
    link: OwnedFd,
}

impl Loaded {
    pub fn native(does: Does, station: &Station) -> Result<Self> {
        Self::attach(does, station, XdpMode::Native)
    }

    pub fn skb(does: Does, station: &Station) -> Result<Self> {
        Self::attach(does, station, XdpMode::Skb)
    }

    fn attach(does: Does, station: &Station, mode: XdpMode) -> Result<Self> {
        let site = Site::named(Some(station.namespace.clone()), &station.interface)?;
        Self::attach_to(does, &site, mode)
    }

    /// Attaches the program natively to an interface outside of labs.
    pub fn native_on(does: Does, namespace: &Namespace, interface: u32) -> Result<Self> {
        let site = Site::by_index(Some(namespace.clone()), interface)?;
        Self::attach_to(does, &site, XdpMode::Native)
    }

    fn attach_to(does: Does, site: &Site, mode: XdpMode) -> Result<Self> {
        let file = match does {
            Does::ToSockets => object::LAB_XSK,
            _ => object::LAB_XDP,
        };
        let object = Plain::load(file, does.name())?;
        let (link, _) = trawl_attach::hold(site, object.program(), Some(mode))
            .map_err(|refused| refused.explain(site, does.name()))?;
        Ok(Self { object, link })
    }

    /// Returns the map that the program jumps through.
    pub fn hook(&self) -> Option<BorrowedFd<'_>> {
        self.object.map("xdpcap_hook")
    }

    /// Attaches a program after this one's drops, through its hook map.
    pub fn put_after_drops(&self, program: BorrowedFd<'_>) -> Result<()> {
        let what = "cannot put a program into the hook map";
        let hook = self.hook().ok_or_else(|| Error::failed(what, "the program has no hook map"))?;
        map::set_program(hook, XDP_DROP, program).map_err(|e| Error::os(what, e))
    }

    /// Directs a queue's packets to an AF_XDP socket.
    pub fn give_queue(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        let what = "cannot redirect to an AF_XDP socket";
        let sockets =
            self.object.map("sockets").ok_or_else(|| Error::failed(what, "the program has no map of sockets"))?;
        map::set_socket(sockets, queue, socket).map_err(|e| Error::os(what, e))
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.object.program()
    }
}

impl Drop for Loaded {
    /// Detaches explicitly: a child process that another thread is starting may hold the link's descriptor a moment
    /// longer.
    fn drop(&mut self) {
        // A failure means that the interface is gone, and the link with it.
        let _ = link::detach(self.link.as_fd());
    }
}
