//! Chains of trawl's own, by jumps from program to program, for kernels on which no program can replace a function of
//! another one (freplace), and for tappable programs.
//!
//! A chain has no dispatcher: the first program is attached, and each one's exits jump through its own map
//! `trawl_next`, five slots by action. The slots of its chain-call actions hold the next program, the others are empty,
//! and an exit with an empty slot returns. A program joins by filling its own map first and then the slots (or the
//! link) that lead to it, and leaves by redirecting these past it; its map stays filled while packets are still in it.
//! So each packet meets either the old chain or the new one, never half of one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use trawl_attach::site::Lock;
use trawl_attach::{AttachRequest, Site, apply};
use trawl_bpf::{map, program};
use trawl_sys::netlink::XdpAttachment;
use trawl_sys::{Error, Result, events};

use crate::captures::count_captures;
use crate::chain::{CaptureCounts, MOST_JUMPS, after, most_jumps, next_map};
use crate::hooks::{ACTIONS, ENTRY, HOOK};
use crate::load::Program;
use crate::pins::Installed;
use crate::safety;

/// Returns the chain that begins with this program, out of trawl's programs on the interface.
pub(crate) fn from(head: Option<u32>, mut installed: Vec<Installed>) -> Vec<Installed> {
    let mut chain = Vec::new();
    for id in head.into_iter().chain(head.into_iter().flat_map(after)) {
        let Some(at) = installed.iter().position(|one| one.id() == id) else {
            break;
        };
        let found = installed.swap_remove(at);
        if found.seat().is_none() {
            break;
        }
        chain.push(found);
    }
    chain
}

fn next_map_of(program: u32, what: impl Fn() -> String) -> Result<OwnedFd> {
    next_map(program).ok_or_else(|| Error::failed(what(), format!("program {program} has no slot for a next program")))
}

/// Adds a program to the chain on the interface.
pub(crate) fn join(
    site: &Site,
    lock: &Lock,
    mut program: Program,
    chain: Vec<Installed>,
    request: &AttachRequest,
) -> Result<Installed> {
    let what = || format!("cannot join the chain on {}", site.label());
    let (Some(mode), Some(seat)) = (chain.first().and_then(Installed::mode), program.seat()) else {
        return Err(Error::failed(what(), "it is gone"));
    };
    let mut counts = vec![CaptureCounts { tappable: program.is_tappable(), ..CaptureCounts::default() }];
    for one in &chain {
        counts.push(captures_of(one)?);
    }
    let jumps = most_jumps(&counts);
    if jumps > MOST_JUMPS {
        let why = format!(
            "with its captures a packet would jump {jumps} times from program to program, and the kernel allows {}",
            MOST_JUMPS
        );
        return Err(Error::failed(what(), why).fix("end a capture first"));
    }
    let goes_before = |one: &Installed| one.seat().is_some_and(|other| other.priority > seat.priority);
    let at = chain.iter().position(goes_before).unwrap_or(chain.len());
    let (before, after) = chain.split_at(at);
    let unfollowable = match (before.last(), after.first()) {
        (Some(last), _) if last.seat().is_some_and(|one| !one.followable) => Some(last.name()),
        (_, Some(_)) if !seat.followable => Some(program.name()),
        _ => None,
    };
    if let Some(name) = unfollowable {
        let why = format!("{name} can only be the last one, as its exits could not be rewritten");
        return Err(Error::failed(what(), why).fix("choose another position for it with --prio"));
    }
    let id = program.id();
    let fail = |e| Error::os(what(), e);
    if let Some(next) = after.first() {
        let map = next_map_of(id, what)?;
        point_slots(&map, &seat.slots(), Some(&next.program()?)).map_err(fail)?;
    }
    safety::check_session(site, request, program.name(), program.as_fd(), &[])?;
    let pinned = program.pin(lock, false)?;
    let attachment = XdpAttachment { mode, program_id: id };
    let Some(last) = before.last() else {
        let head = &after[0];
        if let Some(link) = head.link() {
            pinned.holds(link)?;
        }
        return match replace_head(site, head, program.as_fd().try_clone_to_owned().map_err(fail)?)? {
            Some(link) => {
                let installed = pinned.attached_by(link, attachment)?;
                head.drop_link();
                Ok(installed)
            }
            None => Ok(pinned.attached(attachment)),
        };
    };
    let slots = last.seat().map(|one| one.slots()).unwrap_or_default();
    let map = next_map_of(last.id(), what)?;
    let held = program.as_fd().try_clone_to_owned().map_err(fail)?;
    if let Err(error) = point_slots(&map, &slots, Some(&held)) {
        // The old order is restored before the error is returned.
        let next = after.first().map(Installed::program).transpose()?;
        let _ = point_slots(&map, &slots, next.as_ref());
        return Err(fail(error));
    }
    Ok(pinned.attached(attachment))
}

/// Counts the captures in a program's hooks.
fn captures_of(installed: &Installed) -> Result<CaptureCounts> {
    let mut counts = CaptureCounts::default();
    if let Ok(hook) = installed.map(HOOK) {
        counts.tappable = true;
        counts.at_exit = count_captures(hook.as_fd(), ACTIONS)?;
    }
    if let Ok(entry) = installed.map(ENTRY) {
        counts.at_entry = count_captures(entry.as_fd(), 1)?;
    }
    Ok(counts)
}

/// Points slots at a program, or empties them.
fn point_slots(map: &OwnedFd, slots: &[u32], to: Option<&OwnedFd>) -> io::Result<()> {
    let program = to.map(AsFd::as_fd);
    let mut slots = slots.iter();
    slots.try_for_each(|slot| map::put_program(map.as_fd(), *slot, program))
}

/// Attaches a program in place of the chain's first one, without a gap; returns the link that does so, if one does.
fn replace_head(site: &Site, head: &Installed, program: OwnedFd) -> Result<Option<OwnedFd>> {
    let what = || format!("cannot change the chain on {}", site.label());
    let Some(mode) = head.mode() else {
        return Err(Error::failed(what(), "it is gone"));
    };
    let old = head.program()?;
    let held = head.link();
    let link = held.map(|link| link.try_clone_to_owned()).transpose().map_err(|e| Error::os(what(), e))?;
    apply::exchange(site, mode, held, old.as_fd(), program.as_fd()).map_err(|refusal| refusal.about(what()))?;
    Ok(link)
}

/// Finishes a change of one program's slots that a killed command left half-done: all slots lead to the same program
/// again, the one that leads on to the others.
pub(crate) fn settle(site: &Site) {
    let Ok(link) = site.link() else { return };
    for head in link.xdp {
        let chain = from(Some(head.program_id), Installed::all(site).unwrap_or_default());
        for (at, one) in chain.iter().enumerate() {
            let slots = one.seat().map(|seat| seat.slots()).unwrap_or_default();
            let Some(map) = next_map(one.id()) else {
                continue;
            };
            let to = |slot: &u32| map::program_in(map.as_fd(), *slot).ok().flatten();
            let found: Vec<Option<u32>> = slots.iter().map(to).collect();
            if found.windows(2).all(|two| two[0] == two[1]) {
                continue;
            }
            let before = |id: &u32| chain[..at].iter().any(|one| one.id() == *id);
            let longest = found.iter().flatten().filter(|id| !before(id));
            let Some(first) = longest.max_by_key(|id| after(**id).len()) else {
                continue;
            };
            if let Ok(program) = program::open_by_id(*first) {
                let _ = point_slots(&map, &slots, Some(&program));
            }
        }
    }
}

/// Removes a program from its chain. Returns false if it is in no chain, or alone.
pub(crate) fn leave(site: &Site, leaving: &Installed) -> Result<bool> {
    let what = || format!("cannot remove {} from {}", leaving.name(), site.label());
    let heads = site.link()?.xdp;
    let Some(order) = heads.iter().find_map(|head| {
        let mut order = vec![head.program_id];
        order.extend(after(head.program_id));
        (order.len() > 1 && order.contains(&leaving.id())).then_some(order)
    }) else {
        return Ok(false);
    };
    let at = order.iter().position(|id| *id == leaving.id()).unwrap_or(0);
    let fail = |e| Error::os(what(), e);
    let next = order.get(at + 1).copied();
    let next_program = next.map(program::open_by_id).transpose().map_err(fail)?;
    match (at.checked_sub(1), next_program) {
        (Some(before), next) => {
            let map = next_map_of(order[before], what)?;
            let leads_here = |slot: &u32| map::program_in(map.as_fd(), *slot).is_ok_and(|id| id == Some(leaving.id()));
            let slots: Vec<u32> = (0..ACTIONS).filter(leads_here).collect();
            point_slots(&map, &slots, next.as_ref()).map_err(fail)?;
        }
        (None, Some(program)) => {
            let own = Installed::all(site)?;
            let successor = own.iter().find(|one| Some(one.id()) == next);
            if let (Some(link), Some(successor)) = (leaving.link(), successor) {
                successor.renew_link(link)?;
            }
            if let Err(error) = replace_head(site, leaving, program) {
                successor.inspect(|successor| successor.drop_link());
                return Err(error);
            }
        }
        (None, None) => return Ok(false),
    }
    // Packets inside the leaving program still find the programs after it.
    events::wait_for_running_programs();
    Ok(true)
}
