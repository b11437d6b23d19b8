//! Hands the maps of the running program to its replacement: found by their numbers in the kernel, matched with the
//! maps of an object file by name, type and size.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;
use trawl_attach::site::Site;
use trawl_attach::snapshot::excludes;
use trawl_attach::{AttachRequest, Conflict, OldMaps};
use trawl_bpf::info::{self, MapInfo};
use trawl_bpf::loader::variables_of;
use trawl_bpf::table::Table;
use trawl_bpf::{map, program};
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result};

use crate::explain;
use crate::hooks::{ENTRY, HOOK, NEXT};
use crate::load::{Program, Source};
use crate::running::{LONGEST_READ, Running};

const CONSTANTS: &str = ".rodata";

/// The maps that a program kept when it replaced another one, and those that it did not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inherited {
    /// The kernel's number of the old program, and its name.
    pub from_id: u32,
    pub from_name: String,
    /// True if the object's program has the old one's tag; unknown if either has hooks.
    pub same_program: Option<bool>,
    /// Maps that both programs use.
    pub kept: Vec<String>,
    /// Maps of the new program without a match in the old one.
    pub new: Vec<String>,
    /// Maps of the old program without a match in the new one.
    pub without_match: Vec<String>,
}

/// The programs to be replaced, and the treatment of their maps.
#[derive(Debug)]
pub(crate) struct Succession {
    request: AttachRequest,
    site: Site,
    /// The program whose maps are kept.
    inherits_from: Option<Running>,
    others: Vec<Running>,
    /// Set if the new program is from a user's file, which may have the same maps.
    is_from_file: bool,
}

impl Succession {
    /// Reads the running programs, and gives the source their maps if these are to be kept.
    pub fn plan(site: &Site, request: &AttachRequest, source: &mut Source) -> Result<Option<Self>> {
        if request.maps == OldMaps::Drop || !(request.replace || request.maps == OldMaps::Keep) {
            return Ok(None);
        }
        let mode = request.mode.unwrap_or(XdpMode::Native);
        let mut running = Running::on(site, |other| excludes(other, mode))?;
        let name = source.name()?;
        let names: Vec<&str> = running.iter().map(|one| one.name.as_str()).collect();
        let inherits_from = predecessor(&names, &name, request)
            .map_err(|conflict| explain::conflict(site, &name, source.is_from_file(), conflict))?
            .map(|at| running.remove(at));
        if let Some(old) = &inherits_from {
            hand_over(old, source)?;
            source.request_plain_tag();
        }
        Ok(Some(Self {
            request: *request,
            site: site.clone(),
            inherits_from,
            is_from_file: source.is_from_file(),
            others: if request.replace { running } else { Vec::new() },
        }))
    }

    /// Reports which old maps the loaded program has, before it is attached, and refuses to lose contents without
    /// consent.
    pub fn settle(self, program: &Program) -> Result<Option<Inherited>> {
        let own = program.own_maps();
        let mut used = Vec::new();
        for (name, fd) in &own {
            let about =
                info::map(*fd).map_err(|e| Error::os(format!("cannot read the properties of map {name}"), e))?;
            used.push((name.as_str(), *fd, about));
        }
        let is_used = |about: &MapInfo| used.iter().any(|(.., one)| one.id == about.id);
        if self.request.maps == OldMaps::Ask {
            return self.check_contents(program, &used).map(|()| None);
        }
        let Some(old) = &self.inherits_from else {
            return Ok(None);
        };
        for (name, fd, about) in &used {
            if about.kind == map::PROG_ARRAY
                && !old.maps.iter().any(|(_, one)| one.id == about.id)
                && let Some((array, _)) = old.maps.iter().find(|(_, one)| {
                    let new = MapShape { name, ..shape(about) };
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
            let chosen = used.iter().filter(|(name, _, about)| is_old(about) == wanted && (wanted || !is_hook(name)));
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
            without_match: left.filter(|(_, about)| !is_used(about)).map(|(_, about)| text_of(about)).collect(),
        }))
    }

    /// Refuses to lose contents without consent.
    fn check_contents(&self, program: &Program, used: &[(&str, BorrowedFd<'_>, MapInfo)]) -> Result<()> {
        let is_shared = |about: &MapInfo| used.iter().any(|(.., one)| one.id == about.id);
        let losing = self.others.iter().filter(|one| !one.is_bundled);
        let maps: Vec<(String, &OwnedFd, &MapInfo)> =
            losing.flat_map(|one| &one.maps).map(|(fd, about)| (text_of(about), fd, about)).collect();
        let old = maps.iter().map(|(text, fd, about)| OldMap {
            text,
            is_shared: is_shared(about),
            has_contents: if shape(about).is_data() {
                differs_from_source(fd.as_fd(), about, used)
            } else {
                has_contents(fd, about)
            },
        });
        let maps: Vec<OldMap<'_>> = old.collect();
        let programs = self.others.iter();
        let programs: Vec<String> = programs.map(|one| format!("{} (id {})", one.name, one.id)).collect();
        check_contents(&self.request, &programs, &maps)
            .map_err(|conflict| explain::conflict(&self.site, program.name(), self.is_from_file, conflict))
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

/// Returns the shape of a map in the kernel.
pub fn shape(about: &MapInfo) -> MapShape<'_> {
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
    if old.has_hooks { None } else { program.plain_tag().map(|_| false) }
}

fn text_of(about: &MapInfo) -> String {
    let kind = info::map_kind_name(about.kind);
    format!("{} ({kind}, id {})", about.name, about.id)
}

/// Returns true if a map has non-zero contents, or cannot be read.
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

/// Returns true if variables differ from the new program's initial values. Constants of the old program matter only if
/// the new one has the same.
fn differs_from_source(old: BorrowedFd<'_>, about: &MapInfo, used: &[(&str, BorrowedFd<'_>, MapInfo)]) -> bool {
    let read = |fd: BorrowedFd<'_>| {
        let table = fd.try_clone_to_owned().and_then(Table::new).ok()?;
        table.lookup(&[0; 4]).ok()?
    };
    let contents = read(old);
    let counterpart =
        used.iter().find(|(name, _, new)| same_name(name, &about.name) && new.value_size == about.value_size);
    match counterpart {
        Some((_, new, _)) => contents.is_none() || contents != read(*new),
        None if section_of(&about.name).starts_with(CONSTANTS) => false,
        None => contents.is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)),
    }
}

/// Length at which the kernel cuts names off.
const NAME_LENGTH: usize = 15;
const KERNEL_CONFIGURATION: &str = ".kconfig";

/// Properties of a map, from an object file or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    /// In an object file, 0 stands for the number of CPUs.
    pub max_entries: u32,
}

/// A map of a program to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldMap<'a> {
    /// Description for the user.
    pub text: &'a str,
    /// Set if the new program has it too.
    pub is_shared: bool,
    pub has_contents: bool,
}

impl MapShape<'_> {
    /// Returns true if it holds variables of the program.
    pub fn is_data(&self) -> bool {
        self.name.contains('.')
    }

    /// Returns true if a running program's map can serve as this map of an object file.
    pub fn fits(&self, old: &MapShape<'_>) -> bool {
        let sizes = (self.key_size, self.value_size) == (old.key_size, old.value_size);
        let entries = self.max_entries == old.max_entries || self.max_entries == 0;
        self.kind == old.kind
            && sizes
            && entries
            && same_name(self.name, old.name)
            && !self.name.ends_with(KERNEL_CONFIGURATION)
    }

    /// Returns the only map that fits; `None` if several do, since the choice would be arbitrary.
    pub fn only_fitting<'m>(&self, old: impl IntoIterator<Item = MapShape<'m>>) -> Option<usize> {
        let mut fitting = old.into_iter().enumerate().filter(|(_, one)| self.fits(one));
        match (fitting.next(), fitting.next()) {
            (Some((at, _)), None) => Some(at),
            _ => None,
        }
    }
}

/// Returns the section of variables, whose map is named by the object's name and the section's.
pub fn section_of(name: &str) -> &str {
    name.find('.').map_or(name, |dot| &name[dot..])
}

/// Returns true if the kernel may use this name for an object file's map.
pub fn same_name(source: &str, kernel: &str) -> bool {
    fn short(name: &str) -> &str {
        name.get(..NAME_LENGTH).unwrap_or(name)
    }
    match (source.contains('.'), kernel.contains('.')) {
        (true, true) => short(section_of(source)).starts_with(section_of(kernel)),
        (false, false) => short(source) == kernel,
        _ => false,
    }
}

/// Returns the running program whose maps the new program `name` gets: the only one, which it replaces, or else the one
/// with its name.
pub fn predecessor(running: &[&str], name: &str, request: &AttachRequest) -> Result<Option<usize>, Conflict> {
    if request.maps != OldMaps::Keep || running.is_empty() {
        return Ok(None);
    }
    if request.replace && running.len() == 1 {
        return Ok(Some(0));
    }
    let named = running.iter().position(|one| *one == name);
    named
        .map(Some)
        .ok_or_else(|| Conflict::NoPredecessor { running: running.iter().map(|one| (*one).to_owned()).collect() })
}

/// Refuses to lose contents without consent.
pub fn check_contents(request: &AttachRequest, replaced: &[String], maps: &[OldMap<'_>]) -> Result<(), Conflict> {
    let lost = maps.iter().filter(|one| one.has_contents && !one.is_shared);
    let lost: Vec<String> = lost.map(|one| one.text.to_owned()).collect();
    if request.maps == OldMaps::Ask && !lost.is_empty() {
        Err(Conflict::ContentsLost { programs: replaced.to_vec(), maps: lost })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: MapShape<'_> = MapShape { name: "table", kind: 1, key_size: 4, value_size: 8, max_entries: 16 };

    fn keeps(replace: bool) -> AttachRequest {
        AttachRequest { replace, maps: OldMaps::Keep, ..AttachRequest::default() }
    }

    #[test]
    fn names_are_compared_as_the_kernel_cuts_them() {
        assert!(same_name("ports", "ports"));
        assert!(!same_name("ports", "port"));
        assert!(same_name("a_name_of_a_map_that_is_long", "a_name_of_a_map"));
        assert!(same_name("one.bss", "other.bss"));
        assert!(same_name(".rodata.str1.16", ".rodata.str1.16"));
        assert!(same_name("firewall.rodata", "firewal.rodata"));
        assert!(!same_name("one.bss", "one.data"));
        assert!(!same_name("bss", "one.bss"));
    }

    #[test]
    fn maps_fit_by_type_and_size() {
        assert!(TABLE.fits(&TABLE));
        for other in [
            MapShape { kind: 2, ..TABLE },
            MapShape { key_size: 8, ..TABLE },
            MapShape { value_size: 4, ..TABLE },
            MapShape { max_entries: 17, ..TABLE },
            MapShape { name: "tables", ..TABLE },
        ] {
            assert!(!TABLE.fits(&other), "{other:?}");
        }
        let per_cpu = MapShape { max_entries: 0, ..TABLE };
        assert!(per_cpu.fits(&TABLE), "the number of CPUs");
        let kernel = MapShape { name: "one.kconfig", ..TABLE };
        assert!(!kernel.fits(&kernel), "the kernel's configuration is created anew");
    }

    #[test]
    fn ambiguous_map_is_created_anew() {
        let other = MapShape { name: "ports", ..TABLE };
        assert_eq!(TABLE.only_fitting([other, TABLE]), Some(1));
        assert_eq!(TABLE.only_fitting([TABLE, TABLE]), None);
        assert_eq!(TABLE.only_fitting([other]), None);
    }

    #[test]
    fn predecessor_is_the_only_program_or_the_one_of_that_name() {
        assert_eq!(predecessor(&["old"], "new", &keeps(true)), Ok(Some(0)));
        assert_eq!(predecessor(&[], "new", &keeps(true)), Ok(None));
        assert_eq!(predecessor(&["a", "new"], "new", &keeps(true)), Ok(Some(1)));
        assert_eq!(predecessor(&["a", "new"], "new", &keeps(false)), Ok(Some(1)));
        let running = vec!["old".to_owned()];
        let nobody = Err(Conflict::NoPredecessor { running });
        assert_eq!(predecessor(&["old"], "new", &keeps(false)), nobody);
        assert_eq!(predecessor(&["old"], "new", &AttachRequest::default()), Ok(None));
    }

    #[test]
    fn contents_are_lost_only_with_consent() {
        let map = OldMap { text: "table (hash, id 3)", is_shared: false, has_contents: true };
        let old = ["filter (id 7)".to_owned()];
        let ask = AttachRequest { maps: OldMaps::Ask, ..AttachRequest::default() };
        let lost = Conflict::ContentsLost { programs: old.to_vec(), maps: vec![map.text.to_owned()] };
        assert_eq!(check_contents(&ask, &old, &[map]), Err(lost));
        let shared = OldMap { is_shared: true, ..map };
        let empty = OldMap { has_contents: false, ..map };
        assert_eq!(check_contents(&ask, &old, &[shared, empty]), Ok(()));
        assert_eq!(check_contents(&AttachRequest::default(), &old, &[map]), Ok(()));
    }
}
