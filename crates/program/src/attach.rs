//! Putting a program on an interface for good: by a pinned link where the kernel has them, else by netlink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_kernel::bpf::{info, link, program};
use trawl_kernel::errno::{EBUSY, EOPNOTSUPP};
use trawl_kernel::netlink::{Netlink, Refusal, XdpAttachment, XdpExpected, XdpMode, xdp_abilities};
use trawl_kernel::netns::run_maybe_in;
use trawl_kernel::{Result, events};

use crate::chain;
use crate::dispatcher::{Dispatcher, pins};
use crate::explain;
use crate::leftovers::sweep;
use crate::load::Program;
use crate::site::Site;
use crate::standing::{Pinned, Standing};

/// How a program is to be attached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// `None`: native, and skb where the driver has no XDP.
    pub mode: Option<XdpMode>,
    /// Take the place of what is there.
    pub replace: bool,
    /// What becomes of the maps of the program whose place is taken.
    pub maps: OldMaps,
    /// Its place in a chain of programs, where what loads it has one of its own.
    pub priority: Option<u32>,
    /// Refuse what would cut the session that the command is typed in.
    pub careful: bool,
    /// Refuse to take the place of a guard, whose rules nothing puts back.
    pub spares_guard: bool,
}

/// What becomes of the maps of a program whose place is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldMaps {
    /// They go with it.
    #[default]
    Drop,
    /// They go with it if nothing is in them; otherwise it stays.
    Ask,
    /// The new program uses them.
    Keep,
}

/// Attaches a program that was loaded; it stays until it is detached.
pub fn attach(site: &Site, mut program: Program, wish: &Wish) -> Result<Standing> {
    let lock = site.lock()?;
    let present = site.link()?.xdp;
    sweep(&lock, site)?;
    let standing = Standing::all(site)?;
    let mode = wish.mode.unwrap_or(XdpMode::Native);
    let old = present.iter().copied().find(|one| excludes(one.mode, mode));
    if let Some(old) = old
        && !wish.replace
    {
        if let Some(seat) = program.seat() {
            let chain = chain::of(site, wish.mode)?;
            if !chain.is_empty() {
                return chain::join(site, &lock, program, seat, chain, wish);
            }
        }
        let tappable = program.is_tappable();
        return Err(explain::occupied(site, old, &standing, tappable));
    }
    let dispatcher = old.and_then(|old| Dispatcher::read(old.program_id));
    let mut members: Vec<u32> = old.map_or_else(Vec::new, |old| chain::behind(old.program_id));
    members.extend(dispatcher.iter().flat_map(Dispatcher::programs));
    let (members, standing): (Vec<Standing>, Vec<Standing>) = standing
        .into_iter()
        .partition(|one| members.contains(&one.id()));
    let owner = old.and_then(|old| standing.into_iter().find(|one| one.id() == old.program_id));
    let mut place = Place {
        site,
        old,
        owner: owner.as_ref(),
    };
    let pinned = Pinned::new(&lock, &mut program, false)?;
    if let Some(link) = owner.as_ref().and_then(Standing::link) {
        pinned.holds(link)?;
    }
    let (mode, attached) = match place.put(program.as_fd(), mode) {
        Err(refusal) if wish.mode.is_none() && has_no_native(site, &refusal) => {
            (XdpMode::Skb, place.put(program.as_fd(), XdpMode::Skb))
        }
        result => (mode, result),
    };
    let attachment = XdpAttachment {
        mode,
        program_id: program.id(),
    };
    let standing = match attached {
        Ok(Attached::ByLink(link)) => pinned.attached_by(link, attachment)?,
        Ok(Attached::ByNetlink) => pinned.attached(attachment),
        Err(refusal) => {
            return Err(explain::cannot_attach(site, program.name(), mode, refusal));
        }
    };
    // What was there is let go when no packet is in it any more.
    if owner.is_some() || dispatcher.is_some() {
        events::wait_for_running_programs();
    }
    if let Some(dispatcher) = dispatcher {
        let lock = pins::Lock::take()?;
        pins::remove(&lock.of(site, dispatcher.id));
    }
    members.iter().chain(&owner).for_each(Standing::forget);
    Ok(standing)
}

/// One program in the driver or behind it, and another on the card.
pub(crate) fn excludes(one: XdpMode, other: XdpMode) -> bool {
    (one == XdpMode::Offload) == (other == XdpMode::Offload)
}

pub(crate) fn has_no_native(site: &Site, refusal: &Refusal) -> bool {
    let says_native = || {
        xdp_abilities(site.namespace(), site.index())
            .ok()
            .flatten()
            .is_some_and(|able| able.native())
    };
    refusal.errno == EOPNOTSUPP && !says_native()
}

enum Attached {
    ByLink(OwnedFd),
    ByNetlink,
}

/// Where the program goes, and what is there before.
struct Place<'a> {
    site: &'a Site,
    old: Option<XdpAttachment>,
    /// The old one, if it is trawl's.
    owner: Option<&'a Standing>,
}

impl Place<'_> {
    fn put(&mut self, program: BorrowedFd<'_>, mode: XdpMode) -> Result<Attached, Refusal> {
        let Some(old) = self.old else {
            return fresh(self.site, program, mode);
        };
        if old.mode != mode {
            return self.change_mode(program, mode, old);
        }
        let old_program = program::open_by_id(old.program_id)?;
        // A link of ours takes the new program without a gap.
        if let Some(link) = self.owner.and_then(Standing::link) {
            link::replace_program(link, program, old_program.as_fd())?;
            return Ok(Attached::ByLink(link.try_clone_to_owned()?));
        }
        let expected = XdpExpected::Program(old_program.as_fd());
        let index = self.site.index();
        match self
            .netlink()?
            .set_xdp(index, Some(program), mode, expected)
        {
            Ok(()) => Ok(Attached::ByNetlink),
            // A link of somebody else's would take the new program along when it ends.
            Err(Refusal { errno: EBUSY, .. }) => {
                remove(self.site, old)?;
                self.old = None;
                fresh(self.site, program, mode).inspect_err(|_| {
                    self.put_back(old, old_program.as_fd());
                })
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// The kernel has a program in one mode only: the old one has to go first, and comes back if the new one cannot
    /// take its place.
    fn change_mode(
        &mut self,
        program: BorrowedFd<'_>,
        mode: XdpMode,
        old: XdpAttachment,
    ) -> Result<Attached, Refusal> {
        let old_program = program::open_by_id(old.program_id)?;
        remove(self.site, old)?;
        fresh(self.site, program, mode).inspect_err(|_| {
            self.put_back(old, old_program.as_fd());
        })
    }

    fn put_back(&mut self, old: XdpAttachment, program: BorrowedFd<'_>) {
        self.old = Some(old);
        if let (Ok(Attached::ByLink(link)), Some(owner)) =
            (fresh(self.site, program, old.mode), self.owner)
            && owner.renew_link(link.as_fd()).is_ok()
        {
            return;
        }
        if let Ok(mut netlink) = self.netlink() {
            let _ = netlink.set_xdp(
                self.site.index(),
                Some(program),
                old.mode,
                XdpExpected::Nothing,
            );
        }
    }

    fn netlink(&self) -> Result<Netlink, Refusal> {
        open_netlink(self.site)
    }
}

pub(crate) fn open_netlink(site: &Site) -> Result<Netlink, Refusal> {
    Netlink::open(site.namespace()).map_err(|e| Refusal {
        errno: e.errno().unwrap_or(0),
        says: Some(e.to_string()),
    })
}

/// Where nothing is yet: by a link, or by netlink where the kernel has no links or does not say why it refuses one.
fn fresh(site: &Site, program: BorrowedFd<'_>, mode: XdpMode) -> Result<Attached, Refusal> {
    let linked: Result<io::Result<OwnedFd>> = run_maybe_in(site.namespace(), || {
        link::attach_xdp(program, site.index(), mode.flags())
    });
    match linked {
        Ok(Ok(link)) => Ok(Attached::ByLink(link)),
        Ok(Err(_)) => {
            open_netlink(site)?.set_xdp(site.index(), Some(program), mode, XdpExpected::Nothing)?;
            Ok(Attached::ByNetlink)
        }
        Err(e) => Err(Refusal {
            errno: e.errno().unwrap_or(0),
            says: Some(e.to_string()),
        }),
    }
}

/// Takes off what is attached, whoever put it there.
pub(crate) fn remove(site: &Site, old: XdpAttachment) -> Result<(), Refusal> {
    let program = program::open_by_id(old.program_id)?;
    let expected = XdpExpected::Program(program.as_fd());
    let by_netlink = open_netlink(site)?.set_xdp(site.index(), None, old.mode, expected);
    // The kernel lets nobody take a link's program off but by the link.
    let links = match by_netlink {
        Err(Refusal { errno: EBUSY, .. }) => links_of(site, old),
        done => return done,
    };
    match links.as_slice() {
        [link] => Ok(link::detach(link.as_fd())?),
        [] => by_netlink,
        several => Err(Refusal {
            errno: EBUSY,
            says: Some(format!(
                "{} links attach the program to interfaces number {}, in different namespaces, and which is this one's the \
                 kernel does not say: it has to be ended by whoever made it",
                several.len(),
                site.index()
            )),
        }),
    }
}

/// The link that attaches the program to the interface; `None` if it is attached by netlink, or if nobody can tell.
pub(crate) fn link_of(site: &Site, attachment: XdpAttachment) -> Option<OwnedFd> {
    let [link] = <[OwnedFd; 1]>::try_from(links_of(site, attachment)).ok()?;
    Some(link)
}

/// The links that may be it: they name an interface by its number, which others have in other namespaces.
pub(crate) fn links_of(site: &Site, attachment: XdpAttachment) -> Vec<OwnedFd> {
    link::all_ids()
        .into_iter()
        .filter_map(|id| link::open_by_id(id).ok())
        .filter(|fd| {
            info::link(fd.as_fd()).is_ok_and(|about| {
                about.program == attachment.program_id && about.ifindex == site.index()
            })
        })
        .collect()
}
