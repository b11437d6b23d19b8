//! The first contents of the maps: copied from a running program, copied from pinned maps, or given by the user.
//!
//! A running program's maps change while a trial begins. Each of them is read once, so that both programs begin with the
//! same contents, and nothing is ever written to it.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trawl_bpf::info::MapInfo;
use trawl_bpf::loader::{LoadedFile, MapEntry, Variable, variables_of};
use trawl_bpf::section::variables_of_map;
use trawl_bpf::table::{ANY, Table};
use trawl_bpf::{bpffs, functions, info, map, program};
use trawl_program::load::Source;
use trawl_program::running::Running;
use trawl_program::swap::maps::{MapShape, same_name, section_of, shape};
use trawl_sys::{Error, Result};

use crate::maps::{PART, is_large};
use crate::side::Side;
use crate::wording::hex;

const CONSTANTS: &str = ".rodata";
/// The kernel's configuration, which libbpf reads.
const KERNEL_CONFIGURATION: &str = ".kconfig";
/// Sections whose names are the beginning of other sections' names.
const NAMED_SECTIONS: [&str; 3] = [".rodata", ".data", ".bss"];
/// Number of slots of a program array that are read at most.
const MOST_SLOTS: u32 = 1 << 16;
/// The loopback interface, which exists in each namespace and stands for an interface of the running program's.
const LOOPBACK: u32 = 1;

/// Origin of the maps' first contents.
#[derive(Debug, Default)]
pub enum Origin {
    /// The maps begin as the object files define them.
    #[default]
    Fresh,
    /// A directory of pinned maps, which have the names of the program's.
    Pins(PathBuf),
    /// The maps of a program that runs.
    Running(Running),
}

/// Entries of a map: keys with their values.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The first contents of the maps of all programs.
#[derive(Debug, Default)]
pub struct FirstContents {
    origin: Origin,
    /// Entries that the user gives: the map's name, the key and the value.
    entries: Vec<(String, Vec<u8>, Vec<u8>)>,
    /// Entries of the origin's maps that have been read, by the maps' identifiers.
    read: RefCell<HashMap<u32, Arc<Entries>>>,
}

/// A program that gets its first contents, before it is loaded.
#[derive(Debug)]
pub(crate) struct Newcomer<'s> {
    pub source: &'s mut Source,
    /// True if it is the running program itself.
    pub is_running: bool,
    /// The program that runs, as its file defines it. Values that differ from the file were set by its loader.
    pub running: Option<&'s Source>,
}

/// A map of the origin.
#[derive(Debug)]
struct OldMap {
    fd: OwnedFd,
    about: MapInfo,
}

/// Contents of a section of variables.
#[derive(Debug)]
struct Section {
    bytes: Vec<u8>,
    variables: Vec<Variable>,
}

impl FirstContents {
    pub fn new(origin: Origin, entries: Vec<(String, Vec<u8>, Vec<u8>)>) -> Self {
        Self { origin, entries, read: RefCell::default() }
    }

    /// Sets variables, constants and the sizes of maps before a program is loaded. Returns notes for the user.
    pub(crate) fn set_up(&self, mut newcomer: Newcomer<'_>) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for entry in newcomer.source.maps() {
            if entry.name.ends_with(KERNEL_CONFIGURATION) {
                continue;
            }
            let Some(old) = self.counterpart(&entry)? else {
                continue;
            };
            if entry.is_data {
                notes.extend(self.set_section(&mut newcomer, &entry, &old)?);
            } else {
                newcomer.set_size(&entry, &old.about)?;
            }
        }
        Ok(notes)
    }

    fn set_section(&self, newcomer: &mut Newcomer<'_>, entry: &MapEntry, old: &OldMap) -> Result<Option<String>> {
        let section = section_of(&entry.name);
        let is_constant = section.starts_with(CONSTANTS);
        let entries = self.entries_of(old, &entry.name)?;
        let (Some((_, old_bytes)), Some(mut bytes)) = (entries.first(), newcomer.source.initial_value(&entry.name))
        else {
            return Ok(None);
        };
        let variables = match &self.origin {
            Origin::Running(running) => variables_of(running.id(), section),
            Origin::Pins(_) => variables_of_map(old.fd.as_fd()),
            Origin::Fresh => None,
        };
        let same_length = old_bytes.len() == bytes.len();
        let changed = match (newcomer.source.variables(section), variables) {
            _ if newcomer.is_running && same_length => {
                bytes.clone_from(old_bytes);
                Vec::new()
            }
            (Some(own), Some(old)) => {
                let old = Section { bytes: old_bytes.clone(), variables: old };
                merge(&mut bytes, &own, &old, newcomer.running_section(section).as_ref())
            }
            // Other constants than variables, such as strings, belong to the instructions.
            _ if is_constant || !same_length => return Ok(None),
            _ => {
                bytes.clone_from(old_bytes);
                Vec::new()
            }
        };
        newcomer.source.set_initial_value(&entry.name, &bytes)?;
        let is_worth_a_note = is_constant && !changed.is_empty();
        let names = changed.join(", ");
        Ok(is_worth_a_note.then(|| match &self.origin {
            Origin::Pins(directory) => format!("constants as in {}: {names}", directory.display()),
            _ => format!("constants as in the running program: {names}"),
        }))
    }

    /// Returns the origin's map that serves as this map of an object file.
    fn counterpart(&self, entry: &MapEntry) -> Result<Option<OldMap>> {
        match &self.origin {
            Origin::Fresh => Ok(None),
            Origin::Pins(directory) => {
                let Some(path) = pin_of(directory, entry) else {
                    return Ok(None);
                };
                let fd = bpffs::open_map(&path)?;
                let what = || format!("cannot fill the map {} from {}", entry.name, path.display());
                let about = info::map(fd.as_fd()).map_err(|e| Error::os(what(), e))?;
                let is_same = entry.is_data || has_same_entries(entry, &about);
                is_same.then_some(Some(OldMap { fd, about })).ok_or_else(|| {
                    Error::failed(what(), "the pinned map has another type, or keys or values of another size")
                        .fix("--maps none, or a directory with maps of this program")
                })
            }
            Origin::Running(running) => {
                let is_section = |old: &MapInfo| is_section(&entry.name, &old.name);
                let fits = |old: &MapInfo| {
                    if entry.is_data {
                        is_section(old)
                    } else {
                        same_name(&entry.name, &old.name) && has_same_entries(entry, old)
                    }
                };
                let mut fitting = running.maps().iter().filter(|(_, old)| fits(old));
                // If several fit, the choice would be arbitrary.
                let (Some((fd, about)), None) = (fitting.next(), fitting.next()) else {
                    return Ok(None);
                };
                let fd = fd.try_clone().map_err(|e| Error::os(format!("cannot hold the map {}", about.name), e))?;
                Ok(Some(OldMap { fd, about: about.clone() }))
            }
        }
    }

    /// Reads a map of the origin, once.
    fn entries_of(&self, old: &OldMap, name: &str) -> Result<Arc<Entries>> {
        if let Some(entries) = self.read.borrow().get(&old.about.id) {
            return Ok(Arc::clone(entries));
        }
        let entries = old.fd.try_clone().and_then(Table::new).and_then(|table| table.entries());
        let entries = Arc::new(entries.map_err(|e| {
            Error::os(format!("cannot read the contents of the map {name}"), e)
                .fix("--maps none runs the programs with empty maps")
        })?);
        self.read.borrow_mut().insert(old.about.id, Arc::clone(&entries));
        Ok(entries)
    }

    /// Fills the maps of a loaded program. Returns notes for the user.
    pub(crate) fn fill(&self, side: &mut Side) -> Result<Vec<String>> {
        let mut filling = Filling { contents: self, side, notes: Vec::new(), held: Vec::new() };
        filling.copy_origin()?;
        for (name, key, value) in &self.entries {
            filling.put(name, key, value)?;
        }
        let Filling { notes, held, .. } = filling;
        side.held.extend(held);
        side.maps.add_inner()?;
        Ok(notes)
    }
}

impl Newcomer<'_> {
    /// Gives a map as many entries as the running program's map has, if its loader chose the number.
    fn set_size(&mut self, entry: &MapEntry, old: &MapInfo) -> Result<()> {
        let defined = |source: &Source| source.maps().into_iter().find(|one| one.name == entry.name);
        let is_default = self.running.and_then(defined).is_some_and(|one| one.max_entries == entry.max_entries);
        let is_chosen_by_loader = entry.max_entries == 0 || is_default || self.is_running;
        if is_chosen_by_loader && entry.max_entries != old.max_entries {
            self.source.set_entries(&entry.name, old.max_entries)?;
        }
        Ok(())
    }

    /// Returns a section as the running program's file defines it.
    fn running_section(&self, section: &str) -> Option<Section> {
        let source = self.running?;
        let map = source.maps().into_iter().find(|one| one.is_data && section_of(&one.name) == section)?;
        Some(Section { bytes: source.initial_value(&map.name)?, variables: source.variables(section)? })
    }
}

/// Returns the pin of a map in a directory: the one of its name, or the only one of its section, since the name of a
/// section's map begins with the name of the object file.
fn pin_of(directory: &Path, entry: &MapEntry) -> Option<PathBuf> {
    let path = directory.join(entry.name.replace('.', "_"));
    if path.exists() || !entry.is_data {
        return path.exists().then_some(path);
    }
    let end = section_of(&entry.name).replace('.', "_");
    let holds_section = |path: &PathBuf| {
        let about = bpffs::open_map(path).ok().and_then(|fd| info::map(fd.as_fd()).ok());
        about.is_some_and(|about| is_section(&entry.name, &about.name))
    };
    let pins = std::fs::read_dir(directory).ok()?.filter_map(|pin| Some(pin.ok()?.path()));
    let named = pins.filter(|path| path.to_str().is_some_and(|path| path.ends_with(&end)));
    let mut fitting = named.filter(holds_section);
    fitting.next().filter(|_| fitting.next().is_none())
}

/// Returns true if the kernel's map holds this section of variables. Its name may be cut, but not to another section's.
fn is_section(source: &str, kernel: &str) -> bool {
    let is_whole = |name: &str| NAMED_SECTIONS.contains(&section_of(name));
    kernel.contains('.') && same_name(source, kernel) && (!is_whole(kernel) || section_of(source) == section_of(kernel))
}

/// Returns true if a running program's map has the kind of a file's map, and keys and values of the same sizes.
fn has_same_entries(entry: &MapEntry, old: &MapInfo) -> bool {
    // The number of entries is compared when they are copied.
    let any_number = MapShape { name: &old.name, max_entries: 0, ..shape_of(entry) };
    any_number.fits(&shape(old))
}

fn shape_of(entry: &MapEntry) -> MapShape<'_> {
    MapShape {
        name: &entry.name,
        kind: entry.kind,
        key_size: entry.key_size,
        value_size: entry.value_size,
        max_entries: entry.max_entries,
    }
}

/// Copies the variables of a running program, except those that have the value of its file: only the others were set
/// while it was loaded or while it ran. Returns the names of those that differ from the new program's.
fn merge(bytes: &mut [u8], own: &[Variable], old: &Section, defined: Option<&Section>) -> Vec<String> {
    let mut changed = Vec::new();
    for (name, offset, size) in own {
        let Some(value) = old.value(name, *size) else {
            continue;
        };
        if defined.is_some_and(|section| section.value(name, *size) == Some(value)) {
            continue;
        }
        let start = *offset as usize;
        if let Some(place) = bytes.get_mut(start..start + size)
            && place != value
        {
            place.copy_from_slice(value);
            changed.push(name.clone());
        }
    }
    changed
}

impl Section {
    /// Returns the bytes of a variable of this size.
    fn value(&self, name: &str, size: usize) -> Option<&[u8]> {
        let (_, offset, _) = self.variables.iter().find(|one| one.0 == name && one.2 == size)?;
        let start = *offset as usize;
        self.bytes.get(start..start + size)
    }
}

/// The work of filling the maps of a program.
struct Filling<'f> {
    contents: &'f FirstContents,
    side: &'f Side,
    notes: Vec<String>,
    /// Objects that the maps lose when nobody holds them.
    held: Vec<OwnedFd>,
}

impl Filling<'_> {
    fn copy_origin(&mut self) -> Result<()> {
        let mut without_match = Vec::new();
        let mut has_match = false;
        let used = self.used_maps()?;
        for (name, fd) in self.side.file.maps() {
            let cannot = |e| Error::os(format!("cannot read the properties of the map {name}"), e);
            let table = fd.try_clone_to_owned().and_then(Table::new).map_err(cannot)?;
            let about = table.about();
            // Sections of variables were set before the program was loaded.
            if name.contains('.') || [map::RINGBUF, map::PERF_EVENT_ARRAY].contains(&about.kind) {
                continue;
            }
            if about.kind == map::XSKMAP {
                self.note_sockets(&name);
                continue;
            }
            let entry = MapEntry {
                name,
                kind: about.kind,
                key_size: about.key_size,
                value_size: about.value_size,
                max_entries: about.max_entries,
                is_data: false,
            };
            match self.contents.counterpart(&entry)? {
                Some(old) => {
                    has_match = true;
                    self.map(&entry.name, &table, &old)?;
                }
                None if used.contains(&about.id) => without_match.push(entry.name),
                None => {}
            }
        }
        let names = without_match.join(", ");
        match &self.contents.origin {
            Origin::Pins(directory) if !has_match && !without_match.is_empty() => {
                let what = format!("cannot fill the maps of {}", self.side.tested.source);
                let why = format!("{} has none of them: {names}", directory.display());
                return Err(Error::failed(what, why).fix("name a directory of pinned maps: --maps DIR"));
            }
            Origin::Running(_) if !without_match.is_empty() => self
                .notes
                .push(format!("maps that begin as in the file, since none of the running program fits: {names}")),
            _ => {}
        }
        Ok(())
    }

    /// Returns the identifiers of the maps that the loaded programs use.
    fn used_maps(&self) -> Result<HashSet<u32>> {
        let mut used = HashSet::new();
        for (name, fd) in self.side.file.programs() {
            let about = info::program(fd).map_err(|e| Error::os(format!("cannot read the properties of {name}"), e))?;
            used.extend(about.map_ids);
        }
        Ok(used)
    }

    fn note_sockets(&mut self, name: &str) {
        if !self.contents.entries.iter().any(|(map, ..)| map == name) {
            self.notes.push(format!(
                "the sockets of the map {name} cannot be read, so it is empty: --map {name}:KEY=00000000 puts a \
                 stand-in under a key"
            ));
        }
    }

    fn map(&mut self, name: &str, table: &Table, old: &OldMap) -> Result<()> {
        match old.about.kind {
            kind if map::is_plain(kind) => self.entries(name, table, old),
            kind if map::is_of_maps(kind) => self.inner_maps(name, table, old),
            map::PROG_ARRAY => self.programs(name, table, old),
            map::DEVMAP | map::DEVMAP_HASH | map::CPUMAP => self.targets(name, table, old),
            kind => {
                let kind = info::map_kind_name(kind);
                self.notes.push(format!("the map {name} is empty: the kernel shows no contents of a {kind} map"));
                Ok(())
            }
        }
    }

    fn entries(&mut self, name: &str, table: &Table, old: &OldMap) -> Result<()> {
        let about = table.about();
        if is_large(about.kind, about.max_entries.min(old.about.max_entries)) {
            return self.large_array(name, table, old);
        }
        let mut entries = self.contents.entries_of(old, name)?;
        let room = table.about().max_entries;
        // One note is enough for all maps inside of a map.
        let noted = name.split('[').next().unwrap_or(name);
        if map::is_array(old.about.kind) && room < old.about.max_entries {
            let fits = |key: &[u8]| key.try_into().is_ok_and(|key| u32::from_ne_bytes(key) < room);
            entries = Arc::new(entries.iter().filter(|(key, _)| fits(key)).cloned().collect());
            self.note_missing(name, room, old);
        }
        if map::is_lru(old.about.kind) {
            self.notes.push(format!("the LRU map {noted} may drop other entries than the running program's"));
        } else if entries.len() > room as usize {
            return Err(Error::failed(
                format!("cannot fill the map {name} of {}", self.side.tested.source),
                format!("it has room for {room} entries, and the running program's contains {}", entries.len()),
            )
            .fix("raise max_entries in its source, or begin with empty maps: --maps none"));
        }
        table.update_entries(&entries).map_err(|e| self.cannot_fill(name, e))
    }

    /// Copies the parts of an array that have a value.
    fn large_array(&mut self, name: &str, table: &Table, old: &OldMap) -> Result<()> {
        let room = table.about().max_entries;
        let entries = room.min(old.about.max_entries);
        self.note_missing(name, room, old);
        let cannot_fill = |e| self.cannot_fill(name, e);
        let source = old.fd.try_clone().and_then(Table::new).map_err(cannot_fill)?;
        for first in (0..entries).step_by(PART as usize) {
            let values = source.values_from(first as usize, PART.min(entries - first) as usize).map_err(cannot_fill)?;
            if values.iter().any(|byte| *byte != 0) {
                table.update_values(first as usize, &values).map_err(cannot_fill)?;
            }
        }
        Ok(())
    }

    /// Notes entries of an array for which the file's map has no room.
    fn note_missing(&mut self, name: &str, room: u32, old: &OldMap) {
        // One note is enough for all maps inside of a map.
        let noted = name.split('[').next().unwrap_or(name);
        if room < old.about.max_entries {
            let rest = old.about.max_entries - room;
            self.notes.push(format!("the map {noted} has {rest} entries less than the running program's"));
        }
    }

    fn cannot_fill(&self, name: &str, e: std::io::Error) -> Error {
        Error::os(format!("cannot fill the map {name} of {}", self.side.tested.source), e)
            .fix("begin with empty maps: --maps none")
    }

    /// Fills a map of maps: each slot gets a map of its own, with the contents of the running program's.
    fn inner_maps(&mut self, name: &str, table: &Table, old: &OldMap) -> Result<()> {
        let entries = self.contents.entries_of(old, name)?;
        let taken: HashSet<&Vec<u8>> = entries.iter().map(|(key, _)| key).collect();
        for key in table.keys().map_err(|e| self.cannot_fill(name, e))? {
            if !taken.contains(&key) {
                // A slot may be empty already.
                let _ = table.delete(&key);
            }
        }
        let mut copies: HashMap<u32, OwnedFd> = HashMap::new();
        for (key, value) in entries.iter() {
            let inner_name = format!("{name}[{}]", hex(key));
            let Some(id) = number(value, 0) else {
                continue;
            };
            // A map that was removed meanwhile leaves its slot empty.
            let Ok(fd) = map::open_by_id(id) else {
                continue;
            };
            let copy = match copies.entry(id) {
                Entry::Occupied(copy) => copy.into_mut(),
                Entry::Vacant(place) => {
                    let about = info::map(fd.as_fd()).map_err(|e| self.cannot_fill(&inner_name, e))?;
                    place.insert(self.inner_map(&inner_name, &OldMap { fd, about })?)
                }
            };
            map_descriptor(copy)
                .and_then(|value| table.update(key, &value, ANY))
                .map_err(|e| self.cannot_fill(&inner_name, e))?;
        }
        Ok(())
    }

    /// Returns the map of the file that has this map's name, or else a new one, with its contents.
    fn inner_map(&mut self, name: &str, old: &OldMap) -> Result<OwnedFd> {
        let cannot = |e| self.cannot_fill(name, e);
        if let Some(own) = own_map(&self.side.file, &old.about) {
            return own.map_err(cannot);
        }
        let fd = map::create_like(&old.about).map_err(cannot)?;
        let table = fd.try_clone().and_then(Table::new).map_err(cannot)?;
        self.map(name, &table, old)?;
        Ok(fd)
    }

    /// Fills a program array with the file's programs, which have the names of the running ones.
    fn programs(&mut self, name: &str, table: &Table, old: &OldMap) -> Result<()> {
        let mut missing = Vec::new();
        for slot in 0..old.about.max_entries.min(table.about().max_entries).min(MOST_SLOTS) {
            let running = map::program_in(old.fd.as_fd(), slot).map_err(|e| self.cannot_fill(name, e))?;
            let running = running.and_then(|id| program::open_by_id(id).ok());
            let running = running.and_then(|fd| functions::name_of(fd.as_fd()).ok());
            let own = running.as_deref().and_then(|name| self.side.file.program(name));
            map::put_program(table.as_fd(), slot, own).map_err(|e| self.cannot_fill(name, e))?;
            if let (Some(running), None) = (running, own) {
                missing.push(format!("{slot} ({running})"));
            }
        }
        if !missing.is_empty() {
            let slots = missing.join(", ");
            let source = &self.side.tested.source;
            self.notes.push(format!("slots of {name} are empty, since {source} lacks their programs: {slots}"));
        }
        Ok(())
    }

    /// Fills a map of interfaces or CPUs: with stand-ins, since its values belong to the running program's host.
    fn targets(&mut self, name: &str, table: &Table, old: &OldMap) -> Result<()> {
        let entries = self.contents.entries_of(old, name)?;
        let mut has_programs = false;
        for (key, value) in entries.iter() {
            let target = match old.about.kind {
                // The length of the CPU's queue.
                map::CPUMAP => number(value, 0).unwrap_or_default(),
                _ => LOOPBACK,
            };
            if target == 0 {
                continue;
            }
            has_programs |= number(value, 4).is_some_and(|program| program != 0);
            let mut stand_in = target.to_ne_bytes().to_vec();
            stand_in.resize(value.len(), 0);
            table.update(key, &stand_in, ANY).map_err(|e| self.cannot_fill(name, e))?;
        }
        if has_programs {
            self.notes
                .push(format!("the programs in the entries of {name} do not run: the trial ends at the redirect"));
        }
        Ok(())
    }

    /// Writes an entry that the user gives.
    fn put(&mut self, name: &str, key: &[u8], value: &[u8]) -> Result<()> {
        let what = || format!("cannot fill the map {name}");
        let Some(fd) = self.side.file.map(name) else {
            let names: Vec<String> = self.side.file.maps().into_iter().map(|(name, _)| name).collect();
            let why = format!("{} has no such map", self.side.tested.source);
            return Err(Error::usage(what(), why).fix(format!("maps in it: {}", names.join(", "))));
        };
        let table = fd.try_clone_to_owned().and_then(Table::new).map_err(|e| Error::os(what(), e))?;
        let about = table.about();
        let (key_size, value_size) = (about.key_size as usize, about.value_size as usize);
        if (key.len(), value.len()) != (key_size, value_size) {
            let why = format!("its keys have {key_size} bytes and its values {value_size}");
            return Err(Error::usage(what(), why).fix(format!(
                "--map {name}:KEY=VALUE with {} and {} hexadecimal digits",
                key_size * 2,
                value_size * 2
            )));
        }
        let written = if about.kind == map::XSKMAP {
            let socket = map::unbound_socket().map_err(|e| Error::os("cannot open an AF_XDP socket", e))?;
            let slot = number(key, 0).unwrap_or_default();
            let written = map::set_socket(table.as_fd(), slot, socket.as_fd());
            self.held.push(socket);
            written
        } else {
            table.update_all(key, value)
        };
        written.map_err(|e| Error::os(what(), e))
    }
}

/// Returns the file's map that has the name and the shape of a running program's map.
fn own_map(file: &LoadedFile, old: &MapInfo) -> Option<std::io::Result<OwnedFd>> {
    let mut maps = file.maps().into_iter();
    let is_it = |name: &str, about: &MapInfo| same_name(name, &old.name) && shape(about).fits(&shape(old));
    maps.find_map(|(name, fd)| info::map(fd).is_ok_and(|about| is_it(&name, &about)).then(|| fd.try_clone_to_owned()))
}

/// Returns the descriptor of a map as a value of a map of maps.
fn map_descriptor(inner: &OwnedFd) -> std::io::Result<Vec<u8>> {
    use std::os::fd::AsRawFd;
    Ok(inner.as_raw_fd().to_ne_bytes().to_vec())
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(four))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::arrival::ArrivalInterface;
    use crate::clock::{Moment, Replaced};
    use crate::subject::Subject;
    use trawl_bpf::object;
    use trawl_bpf::test_run::Arrival;
    use trawl_sys::testing::root_or_skip;

    fn section(bytes: &[u8], variables: &[(&str, u64, usize)]) -> Section {
        let variables = variables.iter().map(|(name, offset, size)| ((*name).to_owned(), *offset, *size)).collect();
        Section { bytes: bytes.to_vec(), variables }
    }

    #[test]
    fn sections_have_their_own_maps() {
        assert!(is_section("firewall.data", "firewal.data"));
        assert!(is_section(".data.named", ".data.named"));
        assert!(is_section(".data.with_a_long_name", ".data.with_a_lo"));
        for (source, kernel) in [(".data.named", "one.data"), ("one.data", ".data.named"), ("one.data", "one_data")] {
            assert!(!is_section(source, kernel), "{source} {kernel}");
        }
    }

    #[test]
    fn variables_are_copied_if_they_were_set() {
        let running = section(&[9, 2, 3, 0], &[("limit", 0, 1), ("port", 1, 1), ("wide", 2, 2)]);
        let file = section(&[1, 2, 3, 0], &[("limit", 0, 1), ("port", 1, 1), ("wide", 2, 2)]);
        let own = [("port".to_owned(), 0, 1), ("limit".to_owned(), 1, 1), ("wide".to_owned(), 2, 1)];
        // The new file has another port; the limit was set when the old one was loaded; the size of the last changed.
        let mut bytes = [7, 1, 5];
        assert_eq!(merge(&mut bytes, &own, &running, Some(&file)), ["limit"]);
        assert_eq!(bytes, [7, 9, 5]);
        // Without the old file all of them count as set.
        let mut bytes = [7, 1, 5];
        assert_eq!(merge(&mut bytes, &own, &running, None), ["port", "limit"]);
        assert_eq!(bytes, [2, 9, 5]);
    }

    /// Reads all entries of a program's maps, and of the maps inside of them.
    fn contents_of(maps: &[(OwnedFd, MapInfo)]) -> BTreeMap<String, Entries> {
        let mut all = BTreeMap::new();
        for (fd, about) in maps {
            let mut entries = Table::new(fd.try_clone().unwrap()).unwrap().entries().unwrap();
            entries.sort();
            if map::is_of_maps(about.kind) {
                for (key, value) in &entries {
                    let inner = Table::open_by_id(number(value, 0).unwrap()).unwrap();
                    all.insert(format!("{}[{}]", about.name, hex(key)), inner.entries().unwrap());
                }
            } else {
                all.insert(section_of(&about.name).to_owned(), entries);
            }
        }
        all
    }

    /// Fills the maps of a program that is not part of a trial.
    fn fill_at_random(file: &LoadedFile) {
        let mut state = 7u8;
        let mut random = |length: usize| -> Vec<u8> {
            let next = |_| {
                state = state.wrapping_mul(37).wrapping_add(11);
                state
            };
            (0..length).map(next).collect()
        };
        for (name, fd) in file.maps().into_iter().filter(|(name, _)| !name.contains(".rodata")) {
            let table = Table::new(fd.try_clone_to_owned().unwrap()).unwrap();
            let about = table.about().clone();
            if map::is_of_maps(about.kind) {
                let template = inner_of_balance();
                let inner = map::create_like(&template).unwrap();
                let inner_table = Table::new(inner.try_clone().unwrap()).unwrap();
                for key in 0..64u32 {
                    inner_table.update_all(&key.to_ne_bytes(), &random(template.value_size as usize)).unwrap();
                }
                table.update(&[0; 4], &map_descriptor(&inner).unwrap(), ANY).unwrap();
                continue;
            }
            for number in 0..about.max_entries.min(50) {
                let mut key = random(about.key_size as usize);
                if key.len() == 4 {
                    key = number.to_ne_bytes().to_vec();
                }
                table.update_all(&key, &random(about.value_size as usize)).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }

    /// The shape of the map in which trawl's load balancer looks backends up: an array that programs reach directly,
    /// and whose length may differ from others'.
    fn inner_of_balance() -> MapInfo {
        const MMAPABLE: u32 = 1 << 10;
        const INNER_MAP: u32 = 1 << 12;
        let flags = MMAPABLE | INNER_MAP;
        let name = "inner".to_owned();
        MapInfo { id: 0, kind: 2, key_size: 4, value_size: 64, max_entries: 64, flags, extra: 0, name }
    }

    /// Loads a program of an object as if it ran, with another size of a map, and the same program for a trial that
    /// begins with its contents.
    fn running_and_newcomer(object: &[u8], name: &str, (map, size): (&str, u32)) -> (LoadedFile, FirstContents, Side) {
        let path = std::env::temp_dir().join(format!("trawl-{name}-{}.o", std::process::id()));
        std::fs::write(&path, object).unwrap();
        let mut source = Source::read(&path).unwrap();
        source.choose(Some(name)).unwrap();
        source.set_entries(map, size).unwrap();
        let (file, _) = source.load_edited(|_, _| Ok(())).unwrap();
        let id = info::program(file.program(name).unwrap()).unwrap().id;
        let running = Running::open(id).unwrap().expect("it is loaded");
        let contents = FirstContents::new(Origin::Running(running), Vec::new());
        let subject = Subject::new(path.clone(), Some(name.to_owned()));
        let side = Side::load(&subject, Replaced::Clocks, None, |source| {
            contents.set_up(Newcomer { source, is_running: true, running: None }).map(drop)
        });
        std::fs::remove_file(&path).unwrap();
        let side = side.unwrap();
        assert_eq!(info::map(side.file.map(map).unwrap()).unwrap().max_entries, size);
        (file, contents, side)
    }

    #[test]
    fn constants_are_those_of_the_pinned_section() {
        if !root_or_skip() {
            return;
        }
        let path = std::env::temp_dir().join(format!("trawl-constants-{}.o", std::process::id()));
        std::fs::write(&path, object::XDP_VERDICT).unwrap();
        let open = || {
            let mut source = Source::read(&path).unwrap();
            source.choose(Some("trawl_drop")).unwrap();
            source
        };
        let (mut old, mut new) = (open(), open());
        std::fs::remove_file(&path).unwrap();
        let section = old.maps().into_iter().find(|one| one.name.ends_with(CONSTANTS)).unwrap().name;
        let mut bytes = old.initial_value(&section).unwrap();
        let variables = old.variables(CONSTANTS).unwrap();
        let (_, offset, _) = variables.iter().find(|(name, ..)| name == "config").unwrap();
        bytes[*offset as usize] = 3;
        old.set_initial_value(&section, &bytes).unwrap();
        let (file, _) = old.load_edited(|_, _| Ok(())).unwrap();
        let directory = PathBuf::from(format!("/sys/fs/bpf/trawl-constants-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        // The file that it was loaded from had another name.
        let pin = directory.join("older_rodata");
        let pinned = bpffs::pin(file.map(&section).unwrap(), &pin);
        let contents = FirstContents::new(Origin::Pins(directory.clone()), Vec::new());
        let notes = contents.set_up(Newcomer { source: &mut new, is_running: false, running: None });
        std::fs::remove_file(&pin).unwrap();
        std::fs::remove_dir(&directory).unwrap();
        pinned.unwrap();
        assert_eq!(notes.unwrap(), [format!("constants as in {}: config", directory.display())]);
        assert_eq!(new.initial_value(&section), Some(bytes));
    }

    #[test]
    fn targets_of_redirects_are_stand_ins() {
        if !root_or_skip() {
            return;
        }
        let interface = ArrivalInterface::new("trawl_eth0", 7777, 1);
        let fill = |_| {
            let (file, contents, mut side) =
                running_and_newcomer(object::XDP_REDIRECT, "trawl_redir_map", ("targets", 100));
            let table =
                |file: &LoadedFile| Table::new(file.map("targets").unwrap().try_clone_to_owned().unwrap()).unwrap();
            let value = |index: u32| [index.to_ne_bytes(), [0; 4]].concat();
            table(&file).update(&3u32.to_ne_bytes(), &value(interface.index), ANY).unwrap();
            contents.fill(&mut side).unwrap();
            assert_eq!(table(&side.file).entries().unwrap(), [(3u32.to_ne_bytes().to_vec(), value(LOOPBACK))]);
            Ok(())
        };
        interface.run(fill).unwrap();
    }

    #[test]
    fn trial_begins_with_the_contents_of_a_running_program_and_changes_none_of_them() {
        if !root_or_skip() {
            return;
        }
        let (file, contents, mut side) = running_and_newcomer(object::XDP_BALANCE, "trawl_balance", ("flows", 5000));
        fill_at_random(&file);
        let Origin::Running(running) = &contents.origin else {
            unreachable!("the origin is a running program");
        };
        let before = contents_of(running.maps());
        let cloned = |(fd, about): &(OwnedFd, MapInfo)| (fd.try_clone().unwrap(), about.clone());
        let maps: Vec<(OwnedFd, MapInfo)> = running.maps().iter().map(cloned).collect();
        let notes = contents.fill(&mut side).unwrap();
        assert!(notes.iter().all(|note| note.contains("LRU")), "{notes:?}");
        let own = |(_, fd): (String, BorrowedFd<'_>)| (fd.try_clone_to_owned().unwrap(), info::map(fd).unwrap());
        let is_used = |(_, about): &(OwnedFd, MapInfo)| maps.iter().any(|(_, one)| one.name == about.name);
        let filled: Vec<(OwnedFd, MapInfo)> = side.file.maps().into_iter().map(own).filter(is_used).collect();
        assert_eq!(contents_of(&filled), before);

        side.maps.note().unwrap();
        for byte in 0..=255 {
            let moment = Moment { wall: 1, monotonic: 1 };
            side.run(&[byte; 60], Arrival::default(), moment).unwrap();
        }
        assert_ne!(contents_of(&filled), before, "the program counts its packets");
        side.maps.reset().unwrap();
        assert_eq!(contents_of(&filled), before);
        assert_eq!(contents_of(&maps), before);
    }
}
