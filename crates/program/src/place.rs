//! Where a program goes: on the interface by itself, or among others in a chain; and how it leaves again.
//!
//! Where the kernel lets programs replace functions of others (freplace), a program from an object file goes behind a
//! dispatcher of libxdp's protocol, so that others can join it, by trawl or by libxdp's tools.

use std::os::fd::AsFd;

use trawl_kernel::bpf::info;
use trawl_kernel::netlink::{XdpAttachment, XdpMode};
use trawl_kernel::probe::Feature;
use trawl_kernel::{Error, Result, events};

use crate::attach::{self, Wish, excludes, has_no_native, link_of};
use crate::chain;
use crate::dispatcher::build::{self, Before, Part, build, parts_of};
use crate::dispatcher::config::Slot;
use crate::dispatcher::{Dispatcher, pins};
use crate::explain;
use crate::keep::{Inherited, Succession};
use crate::leftovers::{clear_away_at, sweep, sweep_everywhere};
use crate::load::{Program, Source};
use crate::ready;
use crate::safety;
use crate::site::Site;
use crate::standing::{Pinned, Standing, helped_by, on};

/// How often others may come in between.
const MOST_ROUNDS: u32 = 20;

/// Loads a program and puts it on the interface: into the chain that is there, at the head of a new one, or, where the
/// kernel knows no chains, by itself. The priority is the source's own if none is given.
pub fn put(site: &Site, source: Source, wish: &Wish, priority: Option<u32>) -> Result<Put> {
    put_filled(site, source, wish, priority, |_| Ok(()))
}

/// As [`put`], for a program whose maps have to be filled before packets come to it.
pub fn put_filled(
    site: &Site,
    mut source: Source,
    wish: &Wish,
    priority: Option<u32>,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    let mode = wish.mode.unwrap_or(XdpMode::Native);
    let present = site.link()?.xdp;
    let old = present.iter().copied().find(|one| excludes(one.mode, mode));
    let dispatcher = old.and_then(|one| Dispatcher::read(one.program_id));
    let free = old.is_none() || wish.replace;
    let chained = match &dispatcher {
        Some(_) => true,
        None => free && mode != XdpMode::Offload && Feature::Freplace.probe().is_supported(),
    };
    // Hooks are for captures where functions of programs cannot be replaced, nor looked at.
    if !chained || source.is_tappable() {
        if mode != XdpMode::Offload {
            chain::prepare(site, &mut source, wish, priority)?;
        }
        return put_alone(site, source, wish, fill);
    }
    safety::check_guard(site, wish)?;
    let succession = Succession::plan(site, wish, &mut source)?;
    let config = source.run_config()?;
    let new = Part::New {
        name: source.name()?,
        slot: Slot {
            actions: config.actions,
            priority: priority.unwrap_or(config.priority),
            flags: match source.has_frags()? {
                true => trawl_kernel::bpf::program::HAS_FRAGS,
                false => 0,
            },
        },
        source: Box::new(source),
    };
    join(site, new, wish, succession, fill)
}

/// As [`put_filled`], on the interface by itself, or where its seat in a chain of jumps is.
pub fn put_alone(
    site: &Site,
    mut source: Source,
    wish: &Wish,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    safety::check_guard(site, wish)?;
    let succession = Succession::plan(site, wish, &mut source)?;
    let mut program = source.load(site)?;
    let inherited = settle(succession, &program)?;
    fill(&mut program)?;
    // In a chain that is there, what comes after it has a say too.
    let joins =
        program.seat().is_some() && !wish.replace && !chain::of(site, wish.mode)?.is_empty();
    if !joins {
        safety::check_session(site, wish, program.name(), program.as_fd())?;
    }
    let notices = program.notices().to_vec();
    let standing = attach::attach(site, program, wish)?;
    Ok(Put {
        standing,
        notices,
        inherited,
    })
}

fn settle(succession: Option<Succession>, program: &Program) -> Result<Option<Inherited>> {
    succession.map_or(Ok(None), |one| one.settle(program))
}

/// As [`put_filled`], in the place of one of the same kind that trawl put there before. That one goes when the new one
/// is there: packets meet one of them at every moment, and where the new one is refused, the old one stays.
pub fn put_instead(
    site: &Site,
    source: Source,
    wish: &Wish,
    priority: Option<u32>,
    old: Standing,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    let others = |one: &XdpAttachment| {
        one.program_id != old.id() && Dispatcher::read(one.program_id).is_none()
    };
    let is_alone = !on(site)?.iter().any(others);
    let wish = Wish {
        mode: wish.mode.or(old.mode()),
        replace: wish.replace || is_alone,
        ..*wish
    };
    let priority = priority.or(old.seat().map(|seat| seat.priority));
    let put = match priority {
        Some(_) => put_filled(site, source, &wish, priority, fill)?,
        None => put_alone(site, source, &wish, fill)?,
    };
    if !wish.replace {
        old.detach(site)?;
    }
    Ok(put)
}

/// A program that has been put on an interface.
#[derive(Debug)]
pub struct Put {
    pub standing: Standing,
    /// What the person should know.
    pub notices: Vec<String>,
    /// What became of the maps of the program whose place it took, if they were to be kept.
    pub inherited: Option<Inherited>,
}

fn join(
    site: &Site,
    new: Part,
    wish: &Wish,
    succession: Option<Succession>,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    let _alone = ready::alone()?;
    let site_lock = site.lock()?;
    let lock = pins::Lock::take()?;
    sweep(&site_lock, site)?;
    // What is there is looked at once more, now that nobody changes it.
    let mode = wish.mode.unwrap_or(XdpMode::Native);
    let head = site
        .link()?
        .xdp
        .into_iter()
        .find(|one| excludes(one.mode, mode));
    let dispatcher = head.and_then(|one| Dispatcher::read(one.program_id));
    let standing = Standing::all(site)?;
    let before = head.map(|attachment| Before {
        attachment,
        is_dispatcher: dispatcher.is_some(),
    });
    let mut parts = vec![new];
    match (head, &dispatcher) {
        (Some(head), None) if !wish.replace => {
            return Err(explain::occupied(site, head, &standing, false));
        }
        (Some(head), Some(dispatcher)) if !wish.replace => {
            if wish.mode.is_some_and(|wanted| wanted != head.mode) {
                return Err(Error::failed(
                    format!("cannot join the chain on {}", site.label()),
                    format!("it runs in {} mode", head.mode.name()),
                )
                .fix(format!(
                    "--mode {}, or --replace to take the whole chain's place",
                    head.mode.name()
                )));
            }
            parts.extend(parts_of(dispatcher)?);
        }
        _ => {}
    }
    let mode = match (head, wish.replace) {
        (Some(head), false) => head.mode,
        _ => mode,
    };
    let mut built = build(site, parts, &lock)?;
    let nothing_new = || Error::failed("cannot join the chain", "nothing new is in it");
    let Some(program) = &mut built.program else {
        return Err(nothing_new());
    };
    let inherited = settle(succession, program)?;
    fill(program)?;
    let name = program.name().to_owned();
    safety::check_session(site, wish, &name, built.head())?;
    let Some(program) = &mut built.program else {
        return Err(nothing_new());
    };
    let (name, id) = (program.name().to_owned(), program.id());
    let notices = program.notices().to_vec();
    let pinned = Pinned::new(&site_lock, program, true)?;
    let explained = |mode, refusal| explain::cannot_attach(site, &name, mode, refusal);
    let mode = match built.attach(site, mode, before.as_ref(), &lock) {
        Ok(()) => mode,
        Err(refusal) if wish.mode.is_none() && has_no_native(site, &refusal) => {
            built
                .attach(site, XdpMode::Skb, before.as_ref(), &lock)
                .map_err(|refusal| explained(XdpMode::Skb, refusal))?;
            XdpMode::Skb
        }
        Err(refusal) => return Err(explained(mode, refusal)),
    };
    if wish.replace {
        for one in &standing {
            one.forget();
        }
    }
    let standing = pinned.attached(XdpAttachment {
        mode,
        program_id: id,
    });
    Ok(Put {
        standing,
        notices,
        inherited,
    })
}

/// A dispatcher on an interface.
#[derive(Debug)]
pub(crate) struct Headed {
    head: XdpAttachment,
    dispatcher: Dispatcher,
}

/// The dispatcher on the interface that a program is behind.
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
        let before = Before {
            attachment: self.head,
            is_dispatcher: true,
        };
        build(site, parts, &lock)?
            .attach(site, self.head.mode, Some(&before), &lock)
            .map_err(|refusal| {
                refusal.about(format!(
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
        Which::Own => Standing::all(site)?.iter().map(Standing::id).collect(),
    };
    safety::check_absence(site, &programs, careful)
}

/// Takes programs off an interface, whoever put them there, with all that trawl made for its own. Tells the numbers of
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
    let own = Standing::all(site)?;
    let gone = match which {
        Which::All => take_all_off(site)?,
        Which::One(id) => {
            let Some(found) = everything.iter().find(|one| one.program_id == id) else {
                return Err(Error::failed(what(), format!("program {id} is not on it"))
                    .fix(format!("those that are: {}", choice())));
            };
            match own.into_iter().find(|one| one.id() == id) {
                Some(own) => own.detach(site)?,
                None => drop(take_off(site, *found)?),
            }
            vec![id]
        }
        Which::Own => match <[Standing; 1]>::try_from(own) {
            Ok([only]) => {
                let id = only.id();
                only.detach(site)?;
                vec![id]
            }
            Err(own) if own.is_empty() => {
                if let Some(error) = there_for_another(site, &present, what()) {
                    return Err(error);
                }
                return Err(Error::failed(what(), "trawl has not loaded what is on it")
                    .fix(format!("name what to take off: {}, or --all", choice())));
            }
            Err(_) => {
                return Err(
                    Error::failed(what(), "trawl has loaded several programs there")
                        .fix(format!("name what to take off: {}, or --all", choice())),
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
        let link = link_of(site, *one)?;
        helped_by(info::link(link.as_fd()).ok()?.id)
    })?;
    let error = Error::failed(what, format!("what is on it is there for {name} (id {id})"));
    Some(match other {
        Some(other) => error.fix(format!(
            "trawl xdp unload {} {id} takes both off",
            other.label()
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
        let own = Standing::all(site)?;
        let mut are_off = true;
        for head in heads {
            are_off &= take_off(site, head)?;
        }
        if are_off {
            events::wait_for_running_programs();
            let _lock = site.lock()?;
            own.iter().for_each(Standing::forget);
            gone.extend(programs);
        }
    }
    let what = format!("cannot unload from {}", site.label());
    Err(Error::failed(what, "other commands go on loading programs there").fix("try again"))
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
    attach::remove(site, attachment).map_err(|refusal| {
        refusal.about(format!("cannot take program {id} off {}", site.label()))
    })?;
    Ok(true)
}

/// The programs' numbers. A dispatcher is no program of anyone's.
fn programs_of(attached: &[XdpAttachment]) -> Vec<u32> {
    let all = attached.iter().map(|one| one.program_id);
    all.filter(|id| Dispatcher::read(*id).is_none()).collect()
}
