//! What is left of programs and settings: their interface or namespace is no more, or a command was killed.

use trawl_kernel::Result;
use trawl_kernel::bpf::info;
use trawl_kernel::lock::Rank;
use trawl_kernel::netns::{self, Look, Namespace};

use crate::installed::{Installed, on, read_all};
use crate::{jump_chain, ready};
use trawl_attach::site::{self, Lock, Site};

/// Clears it away, as far as nobody is working on it at this moment.
pub fn clear_away() {
    sweep_everywhere();
}

/// As [`clear_away`], and at the interfaces of this namespace and of those that have a name also what is left of
/// programs that another tool removed, and of chains that a killed command changed in part.
pub fn clear_away_all() {
    let named = netns::list();
    let named = named.iter().filter_map(|name| Namespace::open(name).ok());
    for namespace in std::iter::once(None).chain(named.map(Some)) {
        // One that goes away meanwhile has nothing to clear away.
        let sites = Site::all_in(namespace.as_ref()).unwrap_or_default();
        sites.iter().for_each(clear_away_if_free);
    }
    clear_away();
}

/// As [`sweep`], at this interface alone, if there is anything to look through and this process may do so.
///
/// A look whether all is gone is to find it so: no directory is made for that, unless programs that came with the
/// interface from another namespace have theirs there.
pub(crate) fn clear_away_at(site: &Site) {
    let lock = match site.directory() {
        Some(directory) if directory.exists() => site::lock_existing(&directory, Rank::Interface),
        Some(_) if Installed::all(site).is_ok_and(|all| !all.is_empty()) => site.lock().map(Some),
        _ => return,
    };
    if let Ok(Some(lock)) = lock {
        let _ = sweep_here(&lock, site);
    }
}

/// As [`clear_away_at`], unless another command works on the interface at this moment.
fn clear_away_if_free(site: &Site) {
    let directory = site.directory().filter(|directory| directory.exists());
    if let Some(lock) = directory.and_then(|found| site::try_lock(&found, Rank::Interface)) {
        let _ = sweep_here(&lock, site);
    }
}

/// Removes pins of programs that are attached nowhere any more: their interface is gone, somebody else took them off,
/// or the command that loaded them was killed half-way.
pub(crate) fn sweep(lock: &Lock, site: &Site) -> Result<()> {
    sweep_here(lock, site)?;
    sweep_everywhere();
    Ok(())
}

fn sweep_here(lock: &Lock, site: &Site) -> Result<()> {
    // Before it is asked who is there: in a chain that is changed in part some are found by some ways only.
    jump_chain::settle(site);
    for one in read_all(lock.path(), &on(site)?) {
        // One whose link still attaches it went with its interface to another namespace.
        if !one.is_attached() && one.link().is_none() {
            one.forget();
        }
    }
    Ok(())
}

/// Of all interfaces that no other command is working on.
pub(crate) fn sweep_everywhere() {
    ready::sweep();
    let directories = site::all_directories();
    let mut look = Look::default();
    let mut after_ended = Vec::new();
    for directory in directories {
        // Of one that another command is working on, what looks like leftovers may be about to be attached.
        let Some(lock) = site::try_lock(&directory, Rank::Interface) else {
            continue;
        };
        let left = read_all(lock.path(), &[]);
        let mut has_ended = |one: &Installed| match one.pinned_link() {
            Some(link) => info::link(link).is_ok_and(|about| about.ifindex == 0),
            // Attached by netlink, or behind a dispatcher: there for as long as its namespace is.
            None => site::namespace_of(&directory).is_some_and(|mark| mark.is_gone(&mut look)),
        };
        let (ended, others): (Vec<_>, Vec<_>) = left.iter().partition(|one| has_ended(one));
        // A chain goes with its first program, which alone has a link.
        let chained = ended.iter().any(|one| one.seat().is_some());
        let heads = others
            .iter()
            .filter(|one| chained && one.pinned_link().is_some());
        let alive: Vec<u32> = heads
            .flat_map(|head| jump_chain::after(head.id()))
            .collect();
        let orphaned = |one: &&&Installed| {
            chained
                && one.seat().is_some()
                && one.pinned_link().is_none()
                && !alive.contains(&one.id())
        };
        let heads = ended.iter().filter(|one| one.pinned_link().is_some());
        after_ended.extend(heads.flat_map(|head| jump_chain::after(head.id())));
        for one in ended.iter().chain(others.iter().filter(orphaned)) {
            one.forget();
        }
    }
    forget_orphans(&after_ended);
}

/// A chain may have got its first program in another namespace than the others, where the interface was before.
fn forget_orphans(after_ended: &[u32]) {
    let ids: Vec<String> = after_ended.iter().map(u32::to_string).collect();
    let mut directories = site::all_directories();
    directories.retain(|one| ids.iter().any(|id| one.join(id).exists()));
    for lock in directories
        .iter()
        .filter_map(|one| site::try_lock(one, Rank::Interface))
    {
        let left = read_all(lock.path(), &[]);
        let orphaned =
            |one: &&Installed| one.pinned_link().is_none() && after_ended.contains(&one.id());
        left.iter().filter(orphaned).for_each(Installed::forget);
    }
}
