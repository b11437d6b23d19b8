//! The maps of the program that runs, for the program that takes its place: found by their numbers in the kernel,
//! matched with the maps of an object file by name, type and size.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;
use trawl_attach::plan::maps as plan;
use trawl_attach::plan::maps::{MapShape, same_name, section_of};
use trawl_attach::site::Site;
use trawl_attach::snapshot::excludes;
use trawl_attach::{OldMaps, Request};
use trawl_bpf::info::{self, MapInfo};
use trawl_bpf::loader::variables_of;
use trawl_bpf::table::Table;
use trawl_bpf::{functions, map, program};
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result};

use crate::bundled::{self, route};
use crate::chain::dispatcher::Dispatcher;
use crate::explain;
use crate::hooks::{ENTRY, HOOK, NEXT};
use crate::load::{Program, Source};
use crate::pins::{Installed, programs_on};

/// An array longer than this counts as one with contents; it is not read through.
const LONGEST_READ: u32 = 1 << 16;
/// More programs than any tool chains by jumps are not followed.
const MOST_PROGRAMS: usize = 64;
const CONSTANTS: &str = ".rodata";

/// What became of the maps when a program took another one's place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inherited {
    /// The kernel's number of the program that ran, and its name.
    pub from_id: u32,
    pub from_name: String,
    /// Whether the object's program has the tag of the one that ran; unknown where either has hooks in it.
    pub same_program: Option<bool>,
    /// Maps that both programs use.
    pub kept: Vec<String>,
    /// Maps of the new program that nothing of the old one fits.
    pub new: Vec<String>,
    /// Maps of the old program that nothing of the new one fits.
    pub without_match: Vec<String>,
}

/// A program that runs, with its maps.
#[derive(Debug)]
struct Running {
    id: u32,
    name: String,
    tag: String,
    maps: Vec<(OwnedFd, MapInfo)>,
    /// It has hooks in it, and nothing tells what its tag was without.
    has_hooks: bool,
    /// One of trawl's own: its maps hold counters, and what its options said.
    is_bundled: bool,
}

/// The programs whose place is taken, and what is to become of their maps.
#[derive(Debug)]
pub(crate) struct Succession {
    request: Request,
    site: Site,
    /// The one whose maps are kept.
    heir_of: Option<Running>,
    others: Vec<Running>,
    /// The new program is one of a person's own, which may have maps like theirs.
    is_from_file: bool,
}

impl Succession {
    /// Looks at what runs there, and gives the source its maps where they are to be kept.
    pub fn plan(site: &Site, request: &Request, source: &mut Source) -> Result<Option<Self>> {
        if request.maps == OldMaps::Drop || !(request.replace || request.maps == OldMaps::Keep) {
            return Ok(None);
        }
        let mut running = running_on(site, request.mode.unwrap_or(XdpMode::Native))?;
        let name = source.name()?;
        let names: Vec<&str> = running.iter().map(|one| one.name.as_str()).collect();
        let heir_of = plan::predecessor(&names, &name, request)
            .map_err(|conflict| explain::conflict(site, &name, source.is_from_file(), conflict))?
            .map(|at| running.remove(at));
        if let Some(old) = &heir_of {
            hand_over(old, source)?;
            source.compare();
        }
        Ok(Some(Self {
            request: *request,
            site: site.clone(),
            heir_of,
            is_from_file: source.is_from_file(),
            others: match request.replace {
                true => running,
                false => Vec::new(),
            },
        }))
    }

    /// The program is loaded and not attached yet: what of the old maps it has, and whether contents would be lost
    /// that nobody agreed to lose.
    pub fn settle(self, program: &Program) -> Result<Option<Inherited>> {
        let own = program.own_maps();
        let mut used = Vec::new();
        for (name, fd) in &own {
            let about = info::map(*fd)
                .map_err(|e| Error::os(format!("cannot look at the map {name}"), e))?;
            used.push((name.as_str(), *fd, about));
        }
        let is_used = |about: &MapInfo| used.iter().any(|(.., one)| one.id == about.id);
        if self.request.maps == OldMaps::Ask {
            return self.check_contents(program, &used).map(|()| None);
        }
        let Some(old) = &self.heir_of else {
            return Ok(None);
        };
        for (name, fd, about) in &used {
            if about.kind == map::PROG_ARRAY
                && !old.maps.iter().any(|(_, one)| one.id == about.id)
                && let Some((array, _)) = old.maps.iter().find(|(_, one)| {
                    let new = MapShape {
                        name,
                        ..shape(about)
                    };
                    new.fits(&shape(one))
                })
            {
                copy_programs(array.as_fd(), *fd, about.max_entries)
                    .map_err(|e| Error::os(format!("cannot copy the program array {name}"), e))?;
            }
        }
        let is_old = |about: &MapInfo| old.maps.iter().any(|(_, one)| one.id == about.id);
        let is_hook = |name: &str| [HOOK, ENTRY, NEXT].contains(&name);
        let names = |wanted: bool| {
            let chosen = used
                .iter()
                .filter(|(name, _, about)| is_old(about) == wanted && (wanted || !is_hook(name)));
            chosen.map(|(name, ..)| (*name).to_owned()).collect()
        };
        let others = self.others.iter().flat_map(|one| &one.maps);
        let left = old.maps.iter().chain(others);
        Ok(Some(Inherited {
            from_id: old.id,
            from_name: old.name.clone(),
            same_program: same_program(old, program),
            kept: names(true),
            new: names(false),
            without_match: left
                .filter(|(_, about)| !is_used(about))
                .map(|(_, about)| text_of(about))
                .collect(),
        }))
    }

    /// Whether contents would be lost that nobody agreed to lose.
    fn check_contents(
        &self,
        program: &Program,
        used: &[(&str, BorrowedFd<'_>, MapInfo)],
    ) -> Result<()> {
        let is_shared = |about: &MapInfo| used.iter().any(|(.., one)| one.id == about.id);
        let losing = self.others.iter().filter(|one| !one.is_bundled);
        let maps: Vec<(String, &OwnedFd, &MapInfo)> = losing
            .flat_map(|one| &one.maps)
            .map(|(fd, about)| (text_of(about), fd, about))
            .collect();
        let old = maps.iter().map(|(text, fd, about)| plan::OldMap {
            text,
            is_shared: is_shared(about),
            has_contents: match shape(about).is_data() {
                true => differs_from_source(fd.as_fd(), about, used),
                false => has_contents(fd, about),
            },
        });
        let maps: Vec<plan::OldMap<'_>> = old.collect();
        let programs = self.others.iter();
        let programs: Vec<String> = programs
            .map(|one| format!("{} (id {})", one.name, one.id))
            .collect();
        plan::check_contents(&self.request, &programs, &maps).map_err(|conflict| {
            explain::conflict(&self.site, program.name(), self.is_from_file, conflict)
        })
    }
}

/// Programs on the interface, but for dispatchers, which have no maps of a person's.
fn running_on(site: &Site, mode: XdpMode) -> Result<Vec<Running>> {
    let own = Installed::all(site)?;
    let mut found: Vec<Running> = Vec::new();
    for one in programs_on(site)? {
        let id = one.program_id;
        let is_known = found.iter().any(|other| other.id == id);
        if is_known || !excludes(one.mode, mode) || Dispatcher::read(id).is_some() {
            continue;
        }
        let trawls = own.iter().find(|installed| installed.id() == id);
        let source = trawls.map(Installed::source).unwrap_or_default();
        let is_bundled =
            bundled::NAMES.contains(&source) || [route::NAME, bundled::GUARD].contains(&source);
        let fail = |e| {
            Error::os(
                format!("cannot look at program {id} on {}", site.label()),
                e,
            )
        };
        let Some(mut running) = Running::open(id, is_bundled).map_err(fail)? else {
            continue;
        };
        if let Some(tag) = trawls.and_then(Installed::plain_tag) {
            tag.clone_into(&mut running.tag);
            running.has_hooks = false;
        }
        found.push(running);
    }
    Ok(found)
}

impl Running {
    /// `None`: it is gone by now.
    fn open(id: u32, is_bundled: bool) -> std::io::Result<Option<Self>> {
        let Ok(fd) = program::open_by_id(id) else {
            return Ok(None);
        };
        let about = info::program(fd.as_fd())?;
        let name = functions::name_of(fd.as_fd()).unwrap_or(about.name.clone());
        let mut maps: Vec<(OwnedFd, MapInfo)> = Vec::new();
        let mut has_hooks = false;
        let mut programs = vec![id];
        let mut at = 0;
        while let Some(from) = programs.get(at).copied() {
            at += 1;
            let Ok(fd) = program::open_by_id(from) else {
                continue;
            };
            for number in info::program(fd.as_fd())?.map_ids {
                if maps.iter().any(|(_, known)| known.id == number) {
                    continue;
                }
                let fd = map::open_by_id(number)?;
                let about = info::map(fd.as_fd())?;
                if [HOOK, ENTRY, NEXT].contains(&about.name.as_str()) {
                    has_hooks = true;
                    continue;
                }
                if about.kind == map::PROG_ARRAY {
                    for slot in 0..about.max_entries.min(LONGEST_READ) {
                        if let Some(next) = map::program_in(fd.as_fd(), slot)?
                            && !programs.contains(&next)
                            && programs.len() < MOST_PROGRAMS
                        {
                            programs.push(next);
                        }
                    }
                }
                maps.push((fd, about));
            }
        }
        Ok(Some(Self {
            id,
            name,
            tag: about.tag,
            maps,
            has_hooks,
            is_bundled,
        }))
    }
}

/// Gives the source each map of the old program that fits one of its own.
fn hand_over(old: &Running, source: &mut Source) -> Result<()> {
    for entry in source.maps() {
        if source.is_set_otherwise(&entry) {
            continue;
        }
        let wanted = MapShape {
            name: &entry.name,
            kind: entry.kind,
            key_size: entry.key_size,
            value_size: entry.value_size,
            max_entries: entry.max_entries,
        };
        let Some(at) = wanted.only_fitting(old.maps.iter().map(|(_, about)| shape(about))) else {
            continue;
        };
        let (fd, about) = &old.maps[at];
        let section = section_of(&entry.name);
        let has_other_variables = entry.is_data
            && match (source.variables(section), variables_of(old.id, section)) {
                (Some(new), Some(old)) => new != old,
                _ => false,
            };
        let is_filled = about.kind == map::PROG_ARRAY && source.is_filled_by_source(&entry.name);
        if !has_other_variables && !is_filled {
            source.reuse(&entry.name, fd.as_fd())?;
        }
    }
    Ok(())
}

fn shape(about: &MapInfo) -> MapShape<'_> {
    MapShape {
        name: &about.name,
        kind: about.kind,
        key_size: about.key_size,
        value_size: about.value_size,
        max_entries: about.max_entries,
    }
}

fn copy_programs(from: BorrowedFd<'_>, to: BorrowedFd<'_>, slots: u32) -> std::io::Result<()> {
    for slot in 0..slots {
        if map::program_in(to, slot)?.is_none()
            && let Some(id) = map::program_in(from, slot)?
        {
            map::set_program(to, slot, program::open_by_id(id)?.as_fd())?;
        }
    }
    Ok(())
}

fn same_program(old: &Running, program: &Program) -> Option<bool> {
    let loaded = info::program(program.as_fd()).ok()?.tag;
    if old.tag == loaded || program.plain_tag() == Some(old.tag.as_str()) {
        return Some(true);
    }
    match old.has_hooks {
        true => None,
        false => program.plain_tag().map(|_| false),
    }
}

fn text_of(about: &MapInfo) -> String {
    let kind = info::map_kind_name(about.kind);
    format!("{} ({kind}, id {})", about.name, about.id)
}

/// Anything but zeroes. What cannot be read counts as something.
fn has_contents(fd: &OwnedFd, about: &MapInfo) -> bool {
    if about.kind == map::PROG_ARRAY {
        let mut slots = 0..about.max_entries.min(LONGEST_READ);
        return slots.any(|slot| !matches!(map::program_in(fd.as_fd(), slot), Ok(None)));
    }
    if !map::has_keys(about.kind) {
        return true;
    }
    let Ok(table) = fd.try_clone().and_then(Table::new) else {
        return true;
    };
    if !map::is_array(about.kind) {
        return table.has_entries().unwrap_or(true);
    }
    if about.max_entries > LONGEST_READ {
        return true;
    }
    (0..about.max_entries).any(|key| match table.lookup(&key.to_ne_bytes()) {
        Ok(Some(value)) => value.iter().any(|byte| *byte != 0),
        Ok(None) => false,
        Err(_) => true,
    })
}

/// Variables that are not as the new program's are from the beginning. Constants of a program that goes matter only to
/// one that has the same.
fn differs_from_source(
    old: BorrowedFd<'_>,
    about: &MapInfo,
    used: &[(&str, BorrowedFd<'_>, MapInfo)],
) -> bool {
    let read = |fd: BorrowedFd<'_>| {
        let table = fd.try_clone_to_owned().and_then(Table::new).ok()?;
        table.lookup(&[0; 4]).ok()?
    };
    let contents = read(old);
    let counterpart = used
        .iter()
        .find(|(name, _, new)| same_name(name, &about.name) && new.value_size == about.value_size);
    match counterpart {
        Some((_, new, _)) => contents.is_none() || contents != read(*new),
        None if section_of(&about.name).starts_with(CONSTANTS) => false,
        None => contents.is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)),
    }
}
