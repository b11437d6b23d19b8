//! Removes programs from an interface or out of a chain, and cleans up after vanished interfaces and namespaces and
//! killed commands.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use trawl_attach::plan::{self, AttachMethod};
use trawl_attach::site::{self, Lock};
use trawl_attach::{Site, Snapshot, apply, snapshot};
use trawl_bpf::{info, link};
use trawl_sys::files::lock::Rank;
use trawl_sys::netlink::XdpAttachment;
use trawl_sys::netns::{self, Namespace, NamespaceSearch};
use trawl_sys::{Error, Result, events};

use crate::chain::build::{self, DispatcherLock, build, parts_of};
use crate::chain::dispatcher::Dispatcher;
use crate::chain::{after, tail_call};
use crate::pins::{Installed, helped_by, programs_on, read_all};
use crate::{readiness, safety};
use trawl_sys::words::word;

/// Maximum number of attempts while other commands keep loading programs, or keep clearing leftovers away.
const MOST_ROUNDS: u32 = 20;

/// Time in which other commands finish their work on an interface.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(50);

/// A dispatcher on an interface.
#[derive(Debug)]
struct Headed {
    head: XdpAttachment,
    dispatcher: Dispatcher,
}

/// Returns the dispatcher on the interface that runs a program.
fn dispatcher_of(site: &Site, program: u32) -> Result<Option<Headed>> {
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
    /// Replaces the chain by one without this program; with the last one the dispatcher is removed too.
    fn without(&self, site: &Site, program: u32) -> Result<()> {
        let lock = DispatcherLock::acquire()?;
        let mut members = self.dispatcher.members.iter();
        let leaving = members.position(|member| member.program == program);
        if self.dispatcher.members.len() <= 1 {
            return build::remove(site, self.head, &lock);
        }
        let mut parts = parts_of(&self.dispatcher)?;
        if let Some(at) = leaving {
            parts.remove(at);
        }
        let plan = plan::steps(&Snapshot::read(site)?, Some(self.head.mode), AttachMethod::Netlink);
        build(site, parts, &lock)?
            .attach(site, &plan, Some(self.head.program_id), &lock)
            .map(drop)
            .map_err(|refused| refused.refusal.about(format!("cannot remove program {program} from {}", site.label())))
    }
}

impl Installed {
    /// Removes it from the interface, and undoes all that was made for it.
    pub fn detach(self, site: &Site) -> Result<()> {
        let _lock = site.lock()?;
        tail_call::settle(site);
        // Another command may have given its link to another program since it was found, or removed it.
        let mut all = Self::all(site)?.into_iter();
        match all.find(|one| one.id() == self.id()) {
            Some(found) => found.detach_locked(site),
            None => Ok(()),
        }
    }

    fn detach_locked(self, site: &Site) -> Result<()> {
        let what = || format!("cannot remove {} from {}", self.name(), site.label());
        if let Some(dispatcher) = dispatcher_of(site, self.id())? {
            dispatcher.without(site, self.id())?;
            self.forget();
            return Ok(());
        }
        if tail_call::leave(site, &self)? {
            self.forget();
            return Ok(());
        }
        if let Some(link) = self.pinned_link() {
            link::detach(link).map_err(|e| Error::os(what(), e))?;
        } else if let Some(attachment) = self.attachment() {
            apply::remove(site, attachment).map_err(|refusal| refusal.about(what()))?;
        }
        // Its program arrays are emptied with their pins: not while a packet is about to jump through them.
        events::wait_for_running_programs();
        self.forget();
        Ok(())
    }
}

/// The programs to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnloadChoice {
    /// The only one that trawl loaded.
    Own,
    One(u32),
    All,
}

/// Refuses to remove a guard, and if `careful` programs that the session needs.
pub fn check_unload(site: &Site, which: UnloadChoice, careful: bool) -> Result<()> {
    let programs = match which {
        UnloadChoice::One(id) => vec![id],
        UnloadChoice::All => programs_of(&programs_on(site)?),
        UnloadChoice::Own => Installed::all(site)?.iter().map(Installed::id).collect(),
    };
    safety::check_absence(site, &programs, careful)
}

/// Removes programs from an interface, installed by any tool, and undoes all that trawl made for its own. Returns the
/// numbers of the removed programs.
pub fn unload(site: &Site, which: UnloadChoice) -> Result<Vec<u32>> {
    let what = || format!("cannot unload from {}", site.label());
    clear_leftovers_at(site);
    let present = site.link()?.xdp;
    let everything = programs_on(site)?;
    let programs = programs_of(&everything);
    let choice = || {
        let ids: Vec<_> = programs.iter().map(u32::to_string).collect();
        ids.join(", ")
    };
    if present.is_empty() {
        return Err(Error::failed(what(), "no XDP program is on it"));
    }
    let own = Installed::all(site)?;
    let gone = match which {
        UnloadChoice::All => detach_all(site)?,
        UnloadChoice::One(id) => {
            let Some(found) = everything.iter().find(|one| one.program_id == id) else {
                return Err(Error::failed(what(), format!("program {id} is not on it"))
                    .fix(format!("programs there: {}", choice())));
            };
            match own.into_iter().find(|one| one.id() == id) {
                Some(own) => own.detach(site)?,
                None => drop(detach(site, *found)?),
            }
            vec![id]
        }
        UnloadChoice::Own => match <[Installed; 1]>::try_from(own) {
            Ok([only]) => {
                let id = only.id();
                only.detach(site)?;
                vec![id]
            }
            Err(own) => {
                let why = if own.is_empty() {
                    "its programs were not loaded by trawl"
                } else {
                    "trawl has loaded several programs on it"
                };
                let helper = if own.is_empty() { explain_helper(site, &present, what()) } else { None };
                let fix = || format!("name the program to remove: {}, or --all", choice());
                return Err(helper.unwrap_or_else(|| Error::failed(what(), why).fix(fix())));
            }
        },
    };
    // Also clears up after programs that other tools removed.
    clear_leftovers_at(site);
    sweep_everywhere();
    Ok(gone)
}

/// Explains that trawl installed the program for another one, on another interface.
fn explain_helper(site: &Site, present: &[XdpAttachment], what: String) -> Option<Error> {
    let (other, name, id) = present.iter().find_map(|one| {
        let link = snapshot::link_of(site.index(), *one)?;
        helped_by(info::link(link.as_fd()).ok()?.id)
    })?;
    let error = Error::failed(what, format!("it only carries a helper program for {name} (id {id})"));
    Some(match other {
        Some(other) => {
            error.fix(format!("trawl xdp unload {interface} {id} removes both", interface = word(other.label())))
        }
        None => error,
    })
}

/// Removes all programs; another command may attach one, or put one first, before this one gets the lock.
fn detach_all(site: &Site) -> Result<Vec<u32>> {
    let mut gone = Vec::new();
    for _ in 0..MOST_ROUNDS {
        let heads = site.link()?.xdp;
        if heads.is_empty() {
            return Ok(gone);
        }
        let programs = programs_of(&programs_on(site)?);
        let own = Installed::all(site)?;
        let mut are_off = true;
        for head in heads {
            are_off &= detach(site, head)?;
        }
        if are_off {
            events::wait_for_running_programs();
            let _lock = site.lock()?;
            own.iter().for_each(Installed::forget);
            gone.extend(programs);
        }
    }
    let what = format!("cannot unload from {}", site.label());
    Err(Error::failed(what, "other commands keep loading programs on it").fix("try again"))
}

/// Removes a program; returns false if it was removed before this command got the lock.
fn detach(site: &Site, attachment: XdpAttachment) -> Result<bool> {
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
        build::remove(site, attachment, &DispatcherLock::acquire()?)?;
        return Ok(true);
    }
    apply::remove(site, attachment)
        .map_err(|refusal| refusal.about(format!("cannot remove program {id} from {}", site.label())))?;
    Ok(true)
}

/// Returns the programs' numbers, without dispatchers, which belong to no user.
fn programs_of(attached: &[XdpAttachment]) -> Vec<u32> {
    let all = attached.iter().map(|one| one.program_id);
    all.filter(|id| Dispatcher::read(*id).is_none()).collect()
}

/// Clears leftovers away, except on interfaces that another command is working on.
pub fn clear_leftovers() {
    for _ in 0..MOST_ROUNDS {
        if sweep_everywhere() {
            return;
        }
        std::thread::sleep(BETWEEN_ROUNDS);
    }
}

/// Like [`clear_leftovers`], and on the interfaces of this namespace and of all named ones also clears up after
/// programs that another tool removed, and after chains that a killed command changed in part.
pub fn clear_all_leftovers() {
    let named = netns::list();
    let named = named.iter().filter_map(|name| Namespace::open(name).ok());
    for namespace in std::iter::once(None).chain(named.map(Some)) {
        // A namespace that vanishes meanwhile has nothing to clear away.
        let sites = Site::all_in(namespace.as_ref()).unwrap_or_default();
        sites.iter().for_each(clear_leftovers_if_free);
    }
    clear_leftovers();
}

/// Like [`sweep`], at this interface alone, if it has leftovers and this process may remove them.
///
/// A check that nothing is left must not leave something itself: it creates no directory, unless programs that came
/// with the interface from another namespace have theirs there.
pub(crate) fn clear_leftovers_at(site: &Site) {
    let lock = match site.directory() {
        Some(directory) if directory.exists() => site::lock_existing(&directory, Rank::Interface),
        Some(_) if Installed::all(site).is_ok_and(|all| !all.is_empty()) => site.lock().map(Some),
        _ => return,
    };
    if let Ok(Some(lock)) = lock {
        let _ = sweep_here(&lock, site);
    }
}

/// Like [`clear_leftovers_at`], unless another command works on the interface at this moment.
fn clear_leftovers_if_free(site: &Site) {
    let directory = site.directory().filter(|directory| directory.exists());
    if let Some(lock) = directory.and_then(|found| site::try_lock(&found, Rank::Interface)) {
        let _ = sweep_here(&lock, site);
    }
}

/// Removes pins of programs that are no longer attached: their interface is gone, another tool removed them, or the
/// command that loaded them was killed half-way.
pub(crate) fn sweep(lock: &Lock, site: &Site) -> Result<()> {
    sweep_here(lock, site)?;
    sweep_everywhere();
    Ok(())
}

fn sweep_here(lock: &Lock, site: &Site) -> Result<()> {
    // A chain that was changed in part hides some of its programs from some listings, so it is settled first.
    tail_call::settle(site);
    for one in read_all(lock.path(), &programs_on(site)?) {
        // A program whose link still attaches it moved with its interface to another namespace.
        if one.attachment().is_none() && one.link().is_none() {
            one.forget();
        }
    }
    Ok(())
}

/// Sweeps all interfaces that no other command is working on. Returns false if another command held members of an ended
/// chain, which is left for the next sweep then: only its first program leads to them.
fn sweep_everywhere() -> bool {
    readiness::sweep();
    let directories = site::all_directories();
    let mut search = NamespaceSearch::default();
    let mut complete = true;
    for directory in &directories {
        // On an interface in use by another command, seeming leftovers may be about to be attached.
        let Some(lock) = site::try_lock(directory, Rank::Interface) else {
            continue;
        };
        let left = read_all(lock.path(), &[]);
        let mut has_ended = |one: &Installed| match one.pinned_link() {
            Some(link) => info::link(link).is_ok_and(|about| about.ifindex == 0),
            // Attached by netlink, or behind a dispatcher: alive as long as its namespace.
            None => site::namespace_of(directory).is_some_and(|mark| mark.is_gone(&mut search)),
        };
        let (ended, others): (Vec<_>, Vec<_>) = left.iter().partition(|one| has_ended(one));
        // A chain ends with its first program, which alone has a link.
        let chained = ended.iter().any(|one| one.seat().is_some());
        let heads = others.iter().filter(|one| chained && one.pinned_link().is_some());
        let alive: Vec<u32> = heads.flat_map(|head| after(head.id())).collect();
        let orphaned = |one: &&&Installed| {
            chained && one.seat().is_some() && one.pinned_link().is_none() && !alive.contains(&one.id())
        };
        let heads = ended.iter().filter(|one| one.pinned_link().is_some());
        let members: Vec<u32> = heads.flat_map(|head| after(head.id())).collect();
        if !forget_members(&members, directories.iter().filter(|one| *one != directory)) {
            complete = false;
            continue;
        }
        for one in ended.iter().chain(others.iter().filter(orphaned)) {
            one.forget();
        }
    }
    complete
}

/// Removes pins of an ended chain's members that were installed in other namespaces, before the interface moved.
/// Returns false if another command is working there.
fn forget_members<'a>(members: &[u32], elsewhere: impl Iterator<Item = &'a PathBuf>) -> bool {
    let ids: Vec<String> = members.iter().map(u32::to_string).collect();
    let mut complete = true;
    for directory in elsewhere.filter(|one| ids.iter().any(|id| one.join(id).exists())) {
        let Some(lock) = site::try_lock(directory, Rank::Interface) else {
            complete = false;
            continue;
        };
        let left = read_all(lock.path(), &[]);
        let orphaned = |one: &&Installed| one.pinned_link().is_none() && members.contains(&one.id());
        left.iter().filter(orphaned).for_each(Installed::forget);
    }
    complete
}
