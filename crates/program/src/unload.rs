//! How programs leave an interface, by themselves or out of a chain.

use std::os::fd::AsFd;

use trawl_attach::plan::Means;
use trawl_attach::{Site, Snapshot, apply, look, plan};
use trawl_kernel::bpf::info;
use trawl_kernel::netlink::XdpAttachment;
use trawl_kernel::{Error, Result, events};

use crate::dispatcher::build::{self, build, parts_of};
use crate::dispatcher::{Dispatcher, pins};
use crate::installed::{Installed, helped_by, on};
use crate::leftovers::{clear_away_at, sweep_everywhere};
use crate::safety;

/// How often others may come in between.
const MOST_ROUNDS: u32 = 20;

/// A dispatcher on an interface.
#[derive(Debug)]
pub(crate) struct Headed {
    head: XdpAttachment,
    dispatcher: Dispatcher,
}

/// The dispatcher on the interface that runs a program.
pub(crate) fn dispatcher_of(site: &Site, program: u32) -> Result<Option<Headed>> {
    let heads = site.link()?.xdp.into_iter();
    let found = heads.filter_map(|head| {
        let dispatcher = Dispatcher::read(head.program_id)?;
        Some(Headed { head, dispatcher })
    });
    let has = |one: &Headed| {
        let mut members = one.dispatcher.members.iter();
        members.any(|member| member.program == program)
    };
    Ok(found.into_iter().find(has))
}

impl Headed {
    /// Puts a chain without this program in the place of the one there is; the last one takes the dispatcher along.
    pub fn without(&self, site: &Site, program: u32) -> Result<()> {
        let lock = pins::Lock::take()?;
        let mut members = self.dispatcher.members.iter();
        let leaving = members.position(|member| member.program == program);
        if self.dispatcher.members.len() <= 1 {
            return build::remove(site, self.head, &lock);
        }
        let mut parts = parts_of(&self.dispatcher)?;
        if let Some(at) = leaving {
            parts.remove(at);
        }
        let plan = plan::steps(&Snapshot::read(site)?, Some(self.head.mode), Means::Netlink);
        build(site, parts, &lock)?
            .attach(site, &plan, Some(self.head.program_id), &lock)
            .map(drop)
            .map_err(|refused| {
                refused.refusal.about(format!(
                    "cannot take program {program} off {}",
                    site.label()
                ))
            })
    }
}

/// Which programs are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The only one that trawl loaded.
    Own,
    One(u32),
    All,
}

/// Refuses to take a guard off, and where that matters (`careful`) programs that the session needs.
pub fn check_unload(site: &Site, which: Which, careful: bool) -> Result<()> {
    let programs = match which {
        Which::One(id) => vec![id],
        Which::All => programs_of(&on(site)?),
        Which::Own => Installed::all(site)?.iter().map(Installed::id).collect(),
    };
    safety::check_absence(site, &programs, careful)
}

/// Takes programs off an interface, no matter what put them there, with all that trawl made for its own. Tells the numbers of
/// those that went.
pub fn unload(site: &Site, which: Which) -> Result<Vec<u32>> {
    let what = || format!("cannot unload from {}", site.label());
    clear_away_at(site);
    let present = site.link()?.xdp;
    let everything = on(site)?;
    let programs = programs_of(&everything);
    let list = |ids: &[u32]| {
        let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
        ids.join(", ")
    };
    let choice = || list(&programs);
    if present.is_empty() {
        return Err(Error::failed(what(), "no XDP program is on it"));
    }
    let own = Installed::all(site)?;
    let gone = match which {
        Which::All => take_all_off(site)?,
        Which::One(id) => {
            let Some(found) = everything.iter().find(|one| one.program_id == id) else {
                return Err(Error::failed(what(), format!("program {id} is not on it"))
                    .fix(format!("those that exist: {}", choice())));
            };
            match own.into_iter().find(|one| one.id() == id) {
                Some(own) => own.detach(site)?,
                None => drop(take_off(site, *found)?),
            }
            vec![id]
        }
        Which::Own => match <[Installed; 1]>::try_from(own) {
            Ok([only]) => {
                let id = only.id();
                only.detach(site)?;
                vec![id]
            }
            Err(own) if own.is_empty() => {
                if let Some(error) = there_for_another(site, &present, what()) {
                    return Err(error);
                }
                return Err(
                    Error::failed(what(), "trawl has not loaded what is on it").fix(format!(
                        "name the program to remove: {}, or --all",
                        choice()
                    )),
                );
            }
            Err(_) => {
                return Err(
                    Error::failed(what(), "trawl has loaded several programs there").fix(format!(
                        "name the program to remove: {}, or --all",
                        choice()
                    )),
                );
            }
        },
    };
    // Leaves nothing of programs that others took off.
    clear_away_at(site);
    sweep_everywhere();
    Ok(gone)
}

/// Trawl put it there for a program on the other end.
fn there_for_another(site: &Site, present: &[XdpAttachment], what: String) -> Option<Error> {
    let (other, name, id) = present.iter().find_map(|one| {
        let link = look::link_of(site.index(), *one)?;
        helped_by(info::link(link.as_fd()).ok()?.id)
    })?;
    let error = Error::failed(
        what,
        format!("it only carries a helper program for {name} (id {id})"),
    );
    Some(match other {
        Some(other) => error.fix(format!(
            "trawl xdp unload {interface} {id} removes both",
            interface = other.label()
        )),
        None => error,
    })
}

/// Another command may put a program there, or in front of the others, until it is this one's turn.
fn take_all_off(site: &Site) -> Result<Vec<u32>> {
    let mut gone = Vec::new();
    for _ in 0..MOST_ROUNDS {
        let heads = site.link()?.xdp;
        if heads.is_empty() {
            return Ok(gone);
        }
        let programs = programs_of(&on(site)?);
        let own = Installed::all(site)?;
        let mut are_off = true;
        for head in heads {
            are_off &= take_off(site, head)?;
        }
        if are_off {
            events::wait_for_running_programs();
            let _lock = site.lock()?;
            own.iter().for_each(Installed::forget);
            gone.extend(programs);
        }
    }
    let what = format!("cannot unload from {}", site.label());
    Err(Error::failed(what, "other commands keep loading programs there").fix("try again"))
}

/// Whether it was still there when it was this command's turn.
fn take_off(site: &Site, attachment: XdpAttachment) -> Result<bool> {
    let id = attachment.program_id;
    if let Some(dispatcher) = dispatcher_of(site, id)? {
        dispatcher.without(site, id)?;
        return Ok(true);
    }
    let _site_lock = site.lock()?;
    if !site.link()?.xdp.contains(&attachment) {
        return Ok(false);
    }
    if Dispatcher::read(id).is_some() {
        build::remove(site, attachment, &pins::Lock::take()?)?;
        return Ok(true);
    }
    apply::remove(site, attachment).map_err(|refusal| {
        refusal.about(format!("cannot take program {id} off {}", site.label()))
    })?;
    Ok(true)
}

/// The programs' numbers. A dispatcher is no program of anyone's.
fn programs_of(attached: &[XdpAttachment]) -> Vec<u32> {
    let all = attached.iter().map(|one| one.program_id);
    all.filter(|id| Dispatcher::read(*id).is_none()).collect()
}
