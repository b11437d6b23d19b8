//! Executes the steps of a plan; if one is refused, the programs removed for it are attached again.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::{link, program};
use trawl_sys::errno::{EBUSY, EOPNOTSUPP};
use trawl_sys::netlink::{Netlink, Refusal, XdpAttachment, XdpExpected, XdpMode};
use trawl_sys::netns::run_maybe_in;
use trawl_sys::{Error, Result};

use crate::explain::cannot_attach;
use crate::plan::{AttachMethod, AttachPlan, AttachStep, Fallback, steps};
use crate::site::Site;
use crate::snapshot::{Snapshot, links_of};

/// The means to keep the previous program, if that is trawl's own. The default is for programs of other tools.
#[derive(Default)]
pub struct Owner<'a> {
    pub link: Option<BorrowedFd<'a>>,
    /// Keeps the link by which the old program is attached again; returns false if that fails.
    pub keep: Option<&'a dyn Fn(BorrowedFd<'_>) -> bool>,
}

impl fmt::Debug for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("link", &self.link).finish()
    }
}

/// An attached program.
#[derive(Debug)]
pub struct Attached {
    pub mode: XdpMode,
    /// `None` if attached by netlink.
    pub link: Option<OwnedFd>,
    /// Refusal of the mode that was tried first.
    pub instead_of: Option<AttachRefusal>,
}

/// A mode that the kernel or the driver refused.
#[derive(Clone, Debug)]
pub struct AttachRefusal {
    pub mode: XdpMode,
    pub refusal: Refusal,
}

impl AttachRefusal {
    /// Returns the error for the program of this name, with the reason and the fix.
    pub fn explain(self, site: &Site, program: &str) -> Error {
        cannot_attach(site, program, self.mode, self.refusal)
    }
}

/// Attaches a program as planned.
pub fn apply(
    site: &Site,
    program: BorrowedFd<'_>,
    plan: &AttachPlan,
    owner: &Owner<'_>,
) -> Result<Attached, AttachRefusal> {
    let refused = |mode| move |refusal| AttachRefusal { mode, refusal };
    let mut removed = Removed { site, owner, program: None };
    let first = match run(site, program, &plan.steps, owner, &mut removed) {
        Ok(link) => {
            return Ok(Attached { mode: plan.mode, link, instead_of: None });
        }
        Err(refusal) => refused(plan.mode)(refusal),
    };
    let uses_fallback = match plan.fallback {
        Fallback::Never => false,
        Fallback::NoDriverSupport => first.refusal.errno == EOPNOTSUPP,
        Fallback::Always => true,
    };
    if !uses_fallback {
        removed.put_back();
        return Err(first);
    }
    let link = run(site, program, &plan.in_skb_mode, owner, &mut removed).map_err(|refusal| {
        removed.put_back();
        refused(XdpMode::Skb)(refusal)
    })?;
    Ok(Attached { mode: XdpMode::Skb, link, instead_of: Some(first) })
}

/// Attaches a program to an interface without one, until the link is closed: in the given mode, or natively with skb
/// mode as the fallback.
pub fn hold(site: &Site, program: BorrowedFd<'_>, mode: Option<XdpMode>) -> Result<(OwnedFd, Attached), AttachRefusal> {
    let plan = steps(&Snapshot::default(), mode, AttachMethod::LinkOnly);
    let mut attached = apply(site, program, &plan, &Owner::default())?;
    let refused = AttachRefusal { mode: attached.mode, refusal: io::Error::from_raw_os_error(EOPNOTSUPP).into() };
    let link = attached.link.take().ok_or(refused)?;
    Ok((link, attached))
}

fn run(
    site: &Site,
    program: BorrowedFd<'_>,
    steps: &[AttachStep],
    owner: &Owner<'_>,
    removed: &mut Removed<'_>,
) -> Result<Option<OwnedFd>, Refusal> {
    let mut link = None;
    for step in steps {
        match *step {
            AttachStep::Remove { old } => {
                let fd = program::open_by_id(old.program_id)?;
                remove(site, old)?;
                removed.program = Some((old, fd));
            }
            AttachStep::Attach { mode, means } => link = attach_new(site, program, mode, means)?,
            AttachStep::Exchange { old } => {
                let fd = program::open_by_id(old.program_id)?;
                exchange(site, old.mode, owner.link, fd.as_fd(), program)?;
                let held = owner.link.map(|held| held.try_clone_to_owned());
                link = held.transpose()?;
            }
        }
    }
    Ok(link)
}

/// The program that the steps have removed, if any.
struct Removed<'a> {
    site: &'a Site,
    owner: &'a Owner<'a>,
    program: Option<(XdpAttachment, OwnedFd)>,
}

impl Removed<'_> {
    /// Attaches the program again: by a new link, because its own has ended.
    fn put_back(&self) {
        let Some((old, program)) = &self.program else {
            return;
        };
        if let Some(keep) = self.owner.keep
            && let Ok(Some(link)) = attach_new(self.site, program.as_fd(), old.mode, AttachMethod::Link)
            && keep(link.as_fd())
        {
            return;
        }
        let nothing = XdpExpected::Nothing;
        let _ = by_netlink(self.site, Some(program.as_fd()), old.mode, nothing);
    }
}

/// Attaches a program to an interface without one: by a link, or by netlink if the kernel has no links or gives no
/// reason for refusing one.
fn attach_new(
    site: &Site,
    program: BorrowedFd<'_>,
    mode: XdpMode,
    means: AttachMethod,
) -> Result<Option<OwnedFd>, Refusal> {
    if means != AttachMethod::Netlink {
        match attach_link(site, program, mode) {
            Ok(link) => return Ok(Some(link)),
            Err(refusal) if means == AttachMethod::LinkOnly => return Err(refusal),
            Err(_) => {}
        }
    }
    by_netlink(site, Some(program), mode, XdpExpected::Nothing).map(|()| None)
}

/// Attaches a program by a link, which ends with its last descriptor.
fn attach_link(site: &Site, program: BorrowedFd<'_>, mode: XdpMode) -> Result<OwnedFd, Refusal> {
    let linked: Result<io::Result<OwnedFd>> =
        run_maybe_in(site.namespace(), || link::attach_xdp(program, site.index(), mode));
    Ok(linked.map_err(|e| failed(&e))??)
}

/// Exchanges the attached program for another one without a gap: in its link, or by netlink.
pub fn exchange(
    site: &Site,
    mode: XdpMode,
    held: Option<BorrowedFd<'_>>,
    old: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
) -> Result<(), Refusal> {
    match held {
        Some(held) => Ok(link::replace_program(held, new, old)?),
        None => by_netlink(site, Some(new), mode, XdpExpected::Program(old)),
    }
}

/// Removes a program, however it is attached.
pub fn remove(site: &Site, old: XdpAttachment) -> Result<(), Refusal> {
    let program = program::open_by_id(old.program_id)?;
    let expected = XdpExpected::Program(program.as_fd());
    let refused = by_netlink(site, None, old.mode, expected);
    // The kernel removes a link's program only by the link.
    let links = match refused {
        Err(Refusal { errno: EBUSY, .. }) => links_of(site.index(), old),
        done => return done,
    };
    match links.as_slice() {
        [link] => Ok(link::detach(link.as_fd())?),
        [] => refused,
        several => Err(Refusal {
            errno: EBUSY,
            says: Some(format!(
                "{} links attach the program to interfaces with the number {}, in different namespaces, and the kernel does not \
                 say which is this one's: end the process that made the link",
                several.len(),
                site.index()
            )),
        }),
    }
}

/// Changes the program of an interface by netlink, if the expected one is attached.
pub fn by_netlink(
    site: &Site,
    program: Option<BorrowedFd<'_>>,
    mode: XdpMode,
    expected: XdpExpected<'_>,
) -> Result<(), Refusal> {
    let mut netlink = Netlink::open(site.namespace()).map_err(|e| failed(&e))?;
    netlink.set_xdp(site.index(), program, mode, expected)
}

fn failed(error: &Error) -> Refusal {
    Refusal { errno: error.errno().unwrap_or(0), says: Some(error.to_string()) }
}
