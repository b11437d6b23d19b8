//! Loads a program from an object file: selects one of several, sets up its variables and maps, and finds the programs
//! that packets can jump to from it.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use trawl_attach::site::{Lock, Site};
use trawl_bpf::loader::{LoadFailure, LoadedFile, MapEntry, ObjectFile, ProgramEntry, Variable};
use trawl_bpf::prepared::Prepared;
use trawl_bpf::{info, map, probe, program};
use trawl_sys::{Error, Result};

use crate::chain::{Actions, ChainSeat, RunConfig};
use crate::explain;
use crate::features::Change;
use crate::hooks::{self, HOOK, Hooks, InsertedHooks, Problem, Reach};
use crate::pins::{MapPins, PROGRAM, PinRecord, Pinned};
use crate::readiness::Readiness;

/// Size above which a file is not read as an object file.
const LARGEST: u64 = 64 << 20;

/// Purpose that a program is loaded for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role<'a> {
    /// The program runs alone on an interface.
    Alone,
    /// The program replaces a function of a loaded program.
    Instead { of: BorrowedFd<'a>, function: &'a str },
}

/// An object file from which one program is loaded.
#[derive(Debug)]
pub struct Source {
    label: String,
    object: ObjectFile,
    chosen: Option<String>,
    also: Vec<String>,
    pin_maps: Option<PathBuf>,
    flags: u32,
    offload: bool,
    hooks: Hooks,
    seat: Option<ChainSeat>,
    actions: Option<Actions>,
    linear: bool,
    /// Set if the file's tc programs are meant, not its XDP programs.
    is_tc: bool,
    /// Set if the caller needs the tag that the program has in the file.
    needs_plain_tag: bool,
    /// Set if variables were changed, so that the file's own values are not loaded.
    is_configured: bool,
}

impl Source {
    /// Reads an object file.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("cannot read {}", path.display());
        let about = fs::metadata(path).map_err(|e| Error::os(what(), e))?;
        if !about.is_file() {
            return Err(Error::failed(what(), "it is not a file"));
        }
        if about.len() > LARGEST {
            return Err(Error::failed(what(), "it is far too large for an object file"));
        }
        let bytes = fs::read(path).map_err(|e| Error::os(what(), e))?;
        // `trawl xdp status` shows the path later, and may run in another directory.
        let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Self::open(&whole.display().to_string(), &bytes)
    }

    /// Opens an object file that was compiled into trawl.
    pub fn embedded(label: &str, bytes: &[u8]) -> Result<Self> {
        Self::open(label, bytes)
    }

    /// Returns true if the object was read from a user's file.
    pub(crate) fn is_from_file(&self) -> bool {
        Path::new(&self.label).is_absolute()
    }

    fn open(label: &str, bytes: &[u8]) -> Result<Self> {
        if !bytes.starts_with(b"\x7fELF") {
            return Err(explain::not_an_object(label, bytes));
        }
        if let Some(error) = explain::other_machine(label, bytes) {
            return Err(error);
        }
        let stem = Path::new(label).file_stem().unwrap_or_default();
        let object = ObjectFile::open(&stem.to_string_lossy(), bytes).map_err(|e| explain::cannot_open(label, &e))?;
        Ok(Self {
            label: label.to_owned(),
            object,
            chosen: None,
            also: Vec::new(),
            pin_maps: None,
            flags: 0,
            offload: false,
            hooks: Hooks::default(),
            seat: None,
            actions: None,
            linear: false,
            is_tc: false,
            needs_plain_tag: false,
            is_configured: false,
        })
    }

    /// Means the file's tc programs from now on, if one of them has this name, or, without a name, if the file has no XDP
    /// program. Returns true if it does.
    pub fn prefer_tc(&mut self, name: Option<&str>) -> bool {
        let all = self.object.programs();
        let is_tc = |one: &&ProgramEntry| one.kind == program::SCHED_CLS;
        let has_xdp = all.iter().any(|one| one.kind == program::XDP);
        self.is_tc = match name {
            Some(name) => all.iter().filter(is_tc).any(|one| one.name == name || one.section == name),
            None => !has_xdp && all.iter().any(|one| is_tc(&one)),
        };
        self.is_tc
    }

    /// Returns the programs in sections that begin with `xdp`, or else the programs in sections without a type.
    pub fn programs(&self) -> Vec<ProgramEntry> {
        let is_xdp = |one: &ProgramEntry| {
            let has_such_name = one.section.trim_start_matches('?').starts_with("xdp");
            one.kind == program::XDP || (one.kind == 0 && has_such_name)
        };
        let has_no_type = |one: &ProgramEntry| one.kind == 0;
        let mut all = self.object.programs();
        if self.is_tc {
            all.retain(|one| one.kind == program::SCHED_CLS);
            return all;
        }
        all.retain(|one| one.fed_by().is_none());
        if all.iter().any(is_xdp) {
            all.retain(is_xdp)
        } else {
            all.retain(has_no_type)
        }
        all
    }

    /// Selects the program: by the name of its function or, if it is the only one in it, of its section. Without a name
    /// the file must have just one program.
    pub fn choose(&mut self, name: Option<&str>) -> Result<()> {
        let programs = self.programs();
        let names = || {
            let names: Vec<_> = programs.iter().map(|one| one.name.as_str()).collect();
            names.join(", ")
        };
        let what = format!("cannot load {}", self.label);
        let kind = if self.is_tc { "tc" } else { "XDP" };
        let found = match (name, programs.as_slice()) {
            (_, []) => return Err(explain::no_program(&what, &self.object.programs())),
            (None, [only]) => only,
            (None, _) => {
                return Err(Error::failed(what, format!("it has several {kind} programs"))
                    .fix(format!("name one with --prog: {}", names())));
            }
            (Some(name), all) => {
                let by_name = all.iter().find(|one| one.name == name);
                let mut by_section = all.iter().filter(|one| one.section == name);
                match (by_name, by_section.next(), by_section.next()) {
                    (Some(found), ..) | (None, Some(found), None) => found,
                    (None, Some(_), Some(_)) => {
                        let why = format!("several of its programs are in the section {name}");
                        return Err(Error::failed(what, why).fix(format!("name one with --prog: {}", names())));
                    }
                    (None, None, _) => {
                        let others = self.object.programs();
                        let mut others = others.iter();
                        let error = match others.find(|one| one.name == name || one.section == name) {
                            Some(other) => explain::not_attachable(&what, other),
                            None => Error::failed(what, format!("it has no {kind} program {name}")),
                        };
                        return Err(error.fix(format!("programs in it: {}", names())));
                    }
                }
            }
        };
        self.chosen = Some(found.name.clone());
        Ok(())
    }

    /// Loads another program of the file too, for example one that a map sends packets to (devmap, cpumap).
    pub fn also(&mut self, name: &str) {
        self.also.push(name.to_owned());
    }

    pub fn maps(&self) -> Vec<MapEntry> {
        self.object.maps()
    }

    pub fn set_entries(&mut self, map: &str, entries: u32) -> Result<()> {
        self.object.set_entries(map, entries)
    }

    /// Lets a map's memory be mapped, if it is an array with one value for all CPUs.
    pub fn make_mappable(&mut self, map: &str) -> Result<()> {
        self.object.make_mappable(map)
    }

    /// Sets the initial value of a global variable or constant.
    pub fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<()> {
        self.is_configured = true;
        self.object.set_variable(name, value)
    }

    /// Uses an existing map instead of creating the file's own.
    pub fn reuse(&mut self, map: &str, existing: BorrowedFd<'_>) -> Result<()> {
        self.object.reuse(map, existing)
    }

    /// Sets the verdicts after which the next program of a chain runs, in place of the file's.
    pub fn set_actions(&mut self, actions: Actions) {
        self.actions = Some(actions);
    }

    /// Requests the tag that the program has without hooks.
    pub(crate) fn request_plain_tag(&mut self) {
        self.needs_plain_tag = true;
    }

    /// Returns true if a map's content comes from options of a bundled program or from a pinned map.
    pub(crate) fn is_set_otherwise(&self, entry: &MapEntry) -> bool {
        let is_constant = entry.is_data && entry.name.contains(".rodata");
        let pinned = || match &self.pin_maps {
            Some(directory) => Some(directory.join(entry.name.replace('.', "_"))),
            None => self.object.pin_path(&entry.name),
        };
        (is_constant && self.is_configured) || pinned().is_some_and(|path| path.exists())
    }

    /// Returns the variables of a section, by the file's type information.
    pub fn variables(&self, section: &str) -> Option<Vec<Variable>> {
        self.object.variables(section)
    }

    /// Returns the first contents of a map with variables or constants.
    pub fn initial_value(&self, map: &str) -> Option<Vec<u8>> {
        self.object.initial_value(map)
    }

    /// Sets the first contents of a map with variables or constants.
    pub fn set_initial_value(&mut self, map: &str, bytes: &[u8]) -> Result<()> {
        self.is_configured = true;
        self.object.set_initial_value(map, bytes)
    }

    /// Returns the functions of the kernel and of its modules (kfuncs) that the file's programs call.
    pub fn kernel_functions(&self) -> Vec<String> {
        self.object.kernel_functions()
    }

    pub(crate) fn is_filled_by_source(&self, map: &str) -> bool {
        self.object.is_filled_by_source(map)
    }

    /// Pins the program's maps in this directory too, by their names, or uses the maps already pinned there.
    pub fn pin_maps(&mut self, directory: &Path) {
        self.pin_maps = Some(directory.to_owned());
    }

    /// Loads the program on the card.
    pub fn offload(&mut self) {
        self.offload = true;
    }

    /// Inserts hooks for captures into the program (`trawl capture --tap tailcall`).
    pub fn make_tappable(&mut self) {
        self.hooks.tappable = true;
    }

    /// Inserts a jump to the next program of a chain into its exits.
    pub(crate) fn add_jump(&mut self, seat: ChainSeat) {
        self.hooks.chain_actions = Some(seat.slots());
        self.seat = Some(seat);
    }

    /// Ignores the section's flag for packets in several pieces.
    pub(crate) fn set_linear(&mut self) {
        self.linear = true;
        self.flags &= !program::HAS_FRAGS;
    }

    pub(crate) fn is_tappable(&self) -> bool {
        self.hooks.tappable
    }

    /// Returns the name of the chosen program's function.
    pub fn name(&mut self) -> Result<String> {
        if self.chosen.is_none() {
            self.choose(None)?;
        }
        Ok(self.chosen.clone().unwrap_or_default())
    }

    /// Returns true if the chosen program accepts packets in several pieces.
    pub fn has_frags(&mut self) -> Result<bool> {
        let name = self.name()?;
        let entry = self.programs().into_iter().find(|one| one.name == name);
        let declares = self.flags & program::HAS_FRAGS != 0 || entry.is_some_and(|one| one.section.contains(".frags"));
        Ok(declares && probe::has_xdp_frags())
    }

    /// Returns the chain settings of the chosen program's source (`XDP_RUN_CONFIG` of libxdp), or libxdp's defaults.
    pub fn run_config(&mut self) -> Result<RunConfig> {
        let name = self.name()?;
        let numbers = self.object.numbers_beside(&name, RunConfig::SECTION);
        let mut config = RunConfig::from_numbers(&numbers);
        config.actions = self.actions.unwrap_or(config.actions);
        Ok(config)
    }

    /// Returns the program's position in a chain: the requested priority, or else its own, and its actions.
    pub(crate) fn seat(&mut self, priority: Option<u32>, frags: bool) -> Result<ChainSeat> {
        let config = self.run_config()?;
        Ok(ChainSeat {
            priority: priority.unwrap_or(config.priority),
            actions: config.actions.bits(),
            frags,
            followable: true,
        })
    }

    /// Loads the program for this interface. Maps pinned for it are unpinned again if it is dropped before it is
    /// attached.
    pub fn load(self, site: &Site) -> Result<Program> {
        self.load_as(site, Role::Alone)
    }

    /// Like [`Self::load`], in place of a function of a dispatcher if the role says so.
    pub(crate) fn load_as(mut self, site: &Site, role: Role<'_>) -> Result<Program> {
        let name = self.name()?;
        let targets = self.select(&name);
        match role {
            Role::Alone if self.flags != 0 => self.object.set_flags(&name, self.flags),
            Role::Alone => {}
            // The dispatcher decides whether packets may be in several pieces.
            Role::Instead { of, function } => self
                .object
                .replace_function(&name, of, function)
                .map_err(|e| Error::os(format!("cannot load {name} into a dispatcher"), e))?,
        }
        if self.offload {
            self.object.offload_to(&name, site.index());
        }
        if self.linear {
            self.object.set_linear(&name);
            targets.iter().for_each(|one| self.object.set_linear(one));
        }
        if let Role::Instead { .. } = role {
            for target in &targets {
                self.object
                    .drop_attach_type(target)
                    .map_err(|e| Error::os(format!("cannot load {target} into a dispatcher"), e))?;
            }
        }
        let mut pins = MapPins::set(&mut self.object, self.pin_maps.as_deref())?;
        let (mut inserted, plain_tag) = self.insert_hooks(&name, &targets)?;
        // Hooks for a chain were tried before, and are inserted only if the program works with them.
        let with_hooks = self.hooks.tappable;
        let label = self.label;
        let offload = self.offload;
        let cannot_load = |e: LoadFailure| {
            if offload && e.log.is_empty() {
                trawl_attach::cannot_offload(site, &name)
            } else if with_hooks && !explain::is_about_licence(&e) {
                explain::cannot_insert_hooks(&label, &name, &e)
            } else {
                explain::cannot_load(&label, &name, &e)
            }
        };
        let file = self.object.load().map_err(cannot_load)?;
        pins.pinned_by_now();
        inserted.finish(&file, &name).map_err(cannot_load)?;
        let fd = file.program(&name).ok_or_else(|| Error::failed(format!("cannot load {name}"), "it was left out"))?;
        let about = info::program(fd).map_err(|e| Error::os(format!("cannot read the properties of {name}"), e))?;
        let fd = fd.try_clone_to_owned().map_err(|e| Error::os(format!("cannot hold the program {name}"), e))?;
        let reach = Reach::of(&file, &name).map_err(|e| Error::os(format!("cannot follow the jumps of {name}"), e))?;
        Ok(Program {
            map_ids: reach.map_ids,
            file,
            fd,
            name,
            source: label,
            id: about.id,
            pins,
            inserted,
            seat: self.seat,
            changes: Vec::new(),
            helpers: Vec::new(),
            plain_tag,
        })
    }

    /// Selects the program for loading, with the other programs that it needs. Returns the names of those that it can
    /// jump to.
    fn select(&mut self, name: &str) -> Vec<String> {
        let others = self.programs();
        let entry = others.iter().find(|one| one.name == name);
        let section = entry.map_or("", |one| one.section.as_str());
        if entry.is_some_and(|one| one.kind == 0) {
            self.object.set_xdp(name);
            if section.contains(".frags") {
                self.flags |= program::HAS_FRAGS;
            }
        }
        let mut wanted = vec![name];
        wanted.extend(self.also.iter().map(String::as_str));
        // The compiler may have filled a program array with other programs of the file: the kernel needs all of them.
        if self.object.maps().iter().any(|one| one.kind == map::PROG_ARRAY) {
            for one in others.iter().filter(|one| one.is_automatic && one.name != name) {
                if one.kind == 0 {
                    self.object.set_xdp(&one.name);
                }
                wanted.push(&one.name);
            }
        }
        self.object.want(&wanted);
        // The kernel allows jumps only between programs that agree on packets in several pieces.
        let jumps_there = |other: &str| {
            let found = others.iter().find(|one| one.name == other);
            found.is_some_and(|one| one.section.contains(".frags") == section.contains(".frags"))
        };
        wanted
            .iter()
            .filter(|one| **one != name && !self.also.iter().any(|also| also == *one))
            .filter(|one| jumps_there(one))
            .map(|one| (*one).to_owned())
            .collect()
    }

    /// Loads the program without an interface and without pins, after a function has edited it and the programs that it
    /// can jump to, whose names the function gets.
    pub fn load_edited(
        mut self,
        edit: impl FnOnce(&mut Prepared<'_>, &[String]) -> Result<()>,
    ) -> Result<(LoadedFile, String)> {
        let name = self.name()?;
        let mut programs = vec![name.clone()];
        programs.extend(self.select(&name));
        if self.flags != 0 {
            self.object.set_flags(&name, self.flags);
        }
        self.object.ignore_pins();
        let cannot_load = |label: &str, e: &LoadFailure| explain::cannot_load(label, &name, e);
        let mut prepared = self.object.prepare().map_err(|e| cannot_load(&self.label, &e))?;
        edit(&mut prepared, &programs)?;
        let file = self.object.load().map_err(|e| cannot_load(&self.label, &e))?;
        Ok((file, name))
    }

    /// Inserts the requested hooks. A program that might be followed by others is loaded without them if necessary.
    /// Returns also the program's tag without hooks.
    fn insert_hooks(&mut self, name: &str, targets: &[String]) -> Result<(InsertedHooks, Option<String>)> {
        if !self.hooks.any() && !self.needs_plain_tag {
            return Ok((InsertedHooks::default(), None));
        }
        if self.offload && !self.hooks.any() {
            return Ok((InsertedHooks::default(), None));
        }
        if self.offload {
            return Err(Error::usage(
                format!("cannot make {name} tappable"),
                "programs on the card cannot jump to others",
            )
            .fix("leave out --mode hw"));
        }
        let mut prepared = self.object.prepare().map_err(|e| explain::cannot_load(&self.label, name, &e))?;
        // The kernel cannot report this tag once the hooks are inserted.
        let tag = prepared.tag(name);
        if !self.hooks.any() {
            return Ok((InsertedHooks::default(), tag));
        }
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let inserted = hooks::insert(&mut prepared, name, &targets, &self.hooks);
        if !self.hooks.tappable
            && let Err(Problem::Refused(..) | Problem::RefusedWithHooks(..) | Problem::NameTaken(_)) = &inserted
            && let Some(seat) = &mut self.seat
        {
            seat.close();
            return Ok((InsertedHooks::default(), tag));
        }
        match inserted {
            Ok(inserted) => Ok((inserted, tag)),
            Err(Problem::RefusedWithHooks(which, failure)) => {
                Err(explain::cannot_insert_hooks(&self.label, &which, &failure))
            }
            Err(Problem::Refused(which, refusal)) => {
                Err(Error::failed(format!("cannot make {which} of {} tappable", self.label), refusal)
                    .fix("load it without --tappable"))
            }
            Err(Problem::NameTaken(map)) => Err(Error::failed(
                format!("cannot make {name} of {} tappable", self.label),
                format!("captures find the hooks by a map named {map}, and it has its own"),
            )
            .fix("give the map another name, or load it without --tappable")),
            Err(Problem::RefusedWithoutHooks(which, failure)) => {
                Err(explain::cannot_load(&self.label, &which, &failure))
            }
            Err(Problem::Other(error)) => Err(error),
        }
    }
}

/// A loaded program that is not attached yet.
#[derive(Debug)]
pub struct Program {
    file: LoadedFile,
    fd: OwnedFd,
    name: String,
    source: String,
    id: u32,
    map_ids: Vec<u32>,
    pins: MapPins,
    inserted: InsertedHooks,
    seat: Option<ChainSeat>,
    changes: Vec<Change>,
    /// Links that keep programs on other interfaces, by the names of their pins.
    helpers: Vec<(String, OwnedFd)>,
    plain_tag: Option<String>,
}

impl Program {
    /// Returns the function's full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the tag that it has without hooks, if it was requested and is known.
    pub(crate) fn plain_tag(&self) -> Option<&str> {
        self.plain_tag.as_deref()
    }

    /// Returns a map of the file or of the hooks, by its name in the source.
    pub fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let hooks = self.inserted.maps.iter();
        let mut found = hooks.filter(|(found, _)| found == name);
        let hook = found.next().map(|(_, fd)| fd.as_fd());
        hook.or_else(|| self.file.map(name))
    }

    /// Returns another program that was loaded from the file.
    pub fn other(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.file.program(name)
    }

    /// Returns the maps used by the program and the programs that it jumps to, by their names in the source. All of
    /// them must be held: the kernel empties an array of programs that nobody holds, even if programs still jump
    /// through it.
    pub(crate) fn own_maps(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let is_own = |fd: &BorrowedFd<'_>| info::map(*fd).is_ok_and(|about| self.map_ids.contains(&about.id));
        let mut maps = self.file.maps();
        maps.retain(|(_, fd)| is_own(fd));
        let hooks = self.inserted.maps.iter();
        maps.extend(hooks.map(|(name, fd)| (name.clone(), fd.as_fd())));
        maps
    }

    /// Returns true if captures can enter it.
    pub(crate) fn is_tappable(&self) -> bool {
        self.map(HOOK).is_some()
    }

    /// Returns its position in a chain, if it is meant for one.
    pub(crate) fn seat(&self) -> Option<ChainSeat> {
        self.seat
    }

    /// Returns the notices for the user.
    pub fn notices(&self) -> &[String] {
        &self.inserted.notices
    }

    /// Records changes made to other interfaces for it, to be undone when it is removed.
    pub fn remember(&mut self, ready: &Readiness) -> Result<()> {
        self.changes = ready.changes().to_vec();
        let hold = |(name, link): (String, BorrowedFd<'_>)| Ok((name, link.try_clone_to_owned()?));
        let held: std::io::Result<_> = ready.helpers().map(hold).collect();
        self.helpers = held.map_err(|e| Error::os("cannot hold a link", e))?;
        Ok(())
    }

    /// Pins the program, before it is attached. A member of a dispatcher's chain is held by that chain's own pins, so
    /// that it ends when another tool removes it from the chain.
    pub(crate) fn pin(&mut self, lock: &Lock, member: bool) -> Result<Pinned> {
        let record = PinRecord {
            name: self.name.clone(),
            source: self.source.clone(),
            pins: self.pins.keep(),
            changes: self.changes.clone(),
            plain_tag: self.plain_tag.clone(),
            seat: self.seat,
        };
        let pinned = Pinned::new(lock, self.id, record)?;
        if !member {
            pinned.pin(self.fd.as_fd(), PROGRAM)?;
        }
        pinned.record()?;
        self.pins.recorded();
        for (name, link) in &self.helpers {
            pinned.pin(link.as_fd(), name)?;
        }
        pinned.pin_maps(&self.own_maps())?;
        Ok(pinned)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_bpf::object;

    /// Any change to an object file leads to an error or a loaded source, never to a panic.
    #[test]
    fn changed_object_files_are_refused_or_opened() {
        let is_opened = |bytes: &[u8]| {
            let Ok(mut source) = Source::embedded("changed", bytes) else {
                return false;
            };
            source.maps();
            let _ = source.choose(None).and_then(|()| source.run_config());
            true
        };
        // Names that are not UTF-8, as in: sed 's/\.text/\xfftext/g'
        for name in [&b".text"[..], b".maps", b".BTF", b"license", b"xdp"] {
            let mut bytes = object::XDP_VERDICT.to_vec();
            for at in 0..bytes.len().saturating_sub(name.len()) {
                if bytes[at..].starts_with(name) {
                    bytes[at] = 0xff;
                }
            }
            is_opened(&bytes);
        }
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        let mut opened = 0;
        for _ in 0..4000 {
            let mut bytes = object::XDP_VERDICT.to_vec();
            for _ in 0..1 + random() % 4 {
                let at = random() % bytes.len();
                bytes[at] = random() as u8;
            }
            if random() % 8 == 0 {
                bytes.truncate(random() % bytes.len());
            }
            opened += usize::from(is_opened(&bytes));
        }
        assert!(opened > 0 && opened < 4000, "{opened} of 4000");
    }
}
