//! Search for hooks: by a path, or among the maps of the attached program and of the programs chained to it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use trawl_bpf::layout::ENTRY_SLOT_BODY;
use trawl_bpf::{bpffs, info, map, program};
use trawl_program::hooks::{ENTRY, HOOK, NEXT};
use trawl_sys::netlink::XdpAttachment;
use trawl_sys::{Error, Result};

use crate::capture_chain;
use crate::capture_site::CaptureSite;

/// XDP_ABORTED, DROP, PASS, TX and REDIRECT.
pub const ACTIONS: u32 = 5;
/// Slot of the XDP program itself, after the programs at its entry.
pub const BODY_SLOT: u32 = ENTRY_SLOT_BODY as u32;
/// Maximum length of a chain, more than any tool makes.
const LONGEST: usize = 33;

/// A hook map, and the path at which it is pinned.
#[derive(Debug)]
pub struct FoundHook {
    pub map: OwnedFd,
    pub path: Option<PathBuf>,
    /// Name of the program that jumps through it, if known.
    pub program: Option<String>,
    /// Id of the program that jumps through it, if known.
    pub program_id: Option<u32>,
    /// Map through which the program jumps before it begins, and which contains the program itself.
    pub entry: Option<OwnedFd>,
    /// Map of the next programs in the chain, by action.
    pub next: Option<OwnedFd>,
}

impl FoundHook {
    pub fn describe(&self) -> String {
        match (&self.path, &self.program) {
            (Some(path), _) => format!("the hook map {}", path.display()),
            (None, Some(program)) => format!("the hook map of {program}"),
            (None, None) => "the hook map".to_owned(),
        }
    }
}

/// Search results: one hook, or the hooks of a chain's programs in order.
#[derive(Debug)]
pub struct FoundHooks {
    pub hooks: Vec<FoundHook>,
    /// Number of chained programs, including programs without a hook.
    pub programs: u32,
}

impl FoundHooks {
    pub fn map_ids(&self) -> Vec<u32> {
        let id = |hook: &FoundHook| map::info(&hook.map).map_or(0, |about| about.id);
        self.hooks.iter().map(id).collect()
    }
}

pub fn find(site: &CaptureSite, path: Option<&Path>) -> Result<FoundHooks> {
    match path {
        Some(path) => by_path(site, path),
        None => by_program(site),
    }
}

/// Returns the ids of the hook maps through which the attached program jumps now.
pub fn maps_now(site: &CaptureSite) -> Vec<u32> {
    by_program(site).map_or_else(|_| Vec::new(), |found_hooks| found_hooks.map_ids())
}

/// Finds a hook by path. If the attached program jumps through the map, all of its maps are known.
fn by_path(site: &CaptureSite, path: &Path) -> Result<FoundHooks> {
    let found = open_hook(path)?;
    let id_of = |map: &OwnedFd| map::info(map).map_or(0, |about| about.id);
    let wanted = id_of(&found.map);
    if let Some(present) = site.interface.xdp_attached(site.namespace.as_ref())?
        && let Ok(mut chain) = chain_of(present.program_id)
        && let Some(position) = chain.hooks.iter().position(|one| id_of(&one.map) == wanted)
    {
        let mut hook = chain.hooks.swap_remove(position);
        hook.path = found.path;
        chain.hooks = vec![hook];
        return Ok(chain);
    }
    Ok(FoundHooks { hooks: vec![found], programs: 1 })
}

fn open_hook(path: &Path) -> Result<FoundHook> {
    let what = || format!("cannot use {} as a hook", path.display());
    let map = bpffs::open_map(path)?;
    let about = map::info(&map).map_err(|e| Error::os(what(), e))?;
    if about.kind != map::PROG_ARRAY {
        return Err(Error::failed(what(), format!("it is a map of type {}, not an array of programs", about.kind))
            .fix("name the BPF_MAP_TYPE_PROG_ARRAY that the program jumps through"));
    }
    if about.max_entries < ACTIONS {
        let why = format!("it has {} entries, and a hook needs one for each of {ACTIONS} actions", about.max_entries);
        return Err(Error::failed(what(), why).fix("give the map 5 entries, as xdpcap requires"));
    }
    Ok(FoundHook { map, path: Some(path.to_owned()), program: None, program_id: None, entry: None, next: None })
}

fn by_program(site: &CaptureSite) -> Result<FoundHooks> {
    let what = || format!("cannot find a hook on {}", site.label);
    let Some(present) = site.interface.xdp_attached(site.namespace.as_ref())? else {
        return Err(Error::failed(what(), "no XDP program is attached").fix("use --tap xdp"));
    };
    if let Some(error) = site.missing_right() {
        return Err(error);
    }
    let chain = chain_of(present.program_id)?;
    if !chain.hooks.is_empty() {
        return Ok(chain);
    }
    let mut found = foreign_hooks_of(present.program_id)?;
    // Pinned maps are preferred.
    if found.len() > 1 && found.iter().any(|one| one.path.is_some()) {
        found.retain(|one| one.path.is_some());
    }
    if found.len() > 1 {
        let names: Vec<String> = found.iter().map(FoundHook::describe).collect();
        return Err(Error::failed(what(), format!("it has several: {}", names.join(", "))).fix("name one: --hook PATH"));
    }
    let Some(hook) = found.pop() else {
        return Err(Error::failed(
            what(),
            format!("the attached XDP program (id {}) has no program array with {ACTIONS} entries", present.program_id),
        )
        .fix(format!(
            "load the program with hooks: {}; or name its map with --hook PATH; or capture after XDP with --tap packet",
            site.with_hooks(present.program_id)
        )));
    };
    Ok(FoundHooks { hooks: vec![hook], programs: chain.programs })
}

/// Returns true if an attached program has a map that can serve as a hook.
pub fn is_there(present: &XdpAttachment) -> bool {
    chain_of(present.program_id).is_ok_and(|chain| !chain.hooks.is_empty())
        || foreign_hooks_of(present.program_id).is_ok_and(|found| !found.is_empty())
}

/// Returns the name of a program and its maps.
fn maps_of(program_id: u32) -> Result<(String, Vec<(OwnedFd, info::MapInfo)>)> {
    let fail = |e| Error::os(format!("cannot inspect the XDP program {program_id}"), e);
    let program = program::open_by_id(program_id).map_err(fail)?;
    let about = info::program(program.as_fd()).map_err(fail)?;
    let open = |id: u32| {
        let map = map::open_by_id(id)?;
        let about = map::info(&map)?;
        Ok((map, about))
    };
    let maps = about.map_ids.into_iter().map(open).collect::<Result<_, _>>();
    Ok((about.name, maps.map_err(fail)?))
}

/// Returns the programs that trawl chained, from the attached one on, as far as they have hooks.
fn chain_of(head: u32) -> Result<FoundHooks> {
    let mut found_hooks = FoundHooks { hooks: Vec::new(), programs: 0 };
    let mut at = Some(head);
    while let Some(program) = at.take()
        && (found_hooks.programs as usize) < LONGEST
    {
        found_hooks.programs += 1;
        let (name, maps) = maps_of(program)?;
        let (mut hook, mut entry, mut next) = (None, None, None);
        for (map, about) in maps {
            match about.name.as_str() {
                _ if about.kind != map::PROG_ARRAY => {}
                HOOK => hook = Some((map, about.id)),
                ENTRY => entry = Some(map),
                NEXT => next = Some(map),
                _ => {}
            }
        }
        if let Some(next) = &next {
            at = (0..ACTIONS).find_map(|slot| map::program_in(next.as_fd(), slot).ok().flatten());
        }
        if let Some((map, id)) = hook {
            let path = bpffs::path_of_map(id);
            let program_id = Some(program);
            found_hooks.hooks.push(FoundHook { map, path, program: Some(name), program_id, entry, next });
        }
    }
    Ok(found_hooks)
}

/// Returns all maps of an attached foreign program that can serve as a hook.
fn foreign_hooks_of(program_id: u32) -> Result<Vec<FoundHook>> {
    let (_, maps) = maps_of(program_id)?;
    let found = |(map, about): (OwnedFd, info::MapInfo)| FoundHook {
        map,
        path: bpffs::path_of_map(about.id),
        program: None,
        program_id: Some(program_id),
        entry: None,
        next: None,
    };
    Ok(maps
        .into_iter()
        .filter(|(_, about)| {
            about.kind == map::PROG_ARRAY
                && about.max_entries >= ACTIONS
                && ![capture_chain::MAP_NAME, NEXT].contains(&about.name.as_str())
        })
        .map(found)
        .collect())
}
