//! From an object file to a loaded program: which one of several, its variables and maps set up, and loaded.

mod loaded;
pub use loaded::Program;

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use trawl_attach::site::Site;
use trawl_kernel::bpf::loader::{LoadFailure, MapEntry, ObjectFile, ProgramEntry, Variable};
use trawl_kernel::bpf::{info, map, program};
use trawl_kernel::{Error, Result};

use crate::actions::Actions;
use crate::jump_chain::ChainSeat;
use crate::map_pins::Pins;
use crate::reach::Reach;
use crate::run_config::RunConfig;
use crate::tappable::{Fitted, Hooks, Problem};
use crate::{explain, tappable};

/// The largest file that is taken for an object file.
const LARGEST: u64 = 64 << 20;

/// What a program is loaded to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role<'a> {
    /// On an interface by itself.
    Alone,
    /// In the place of a function of a program that is loaded.
    Instead {
        of: BorrowedFd<'a>,
        function: &'a str,
    },
}

/// An object file, of which one program is to be loaded.
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
    /// Its tag as it stands in the file is wanted.
    compared: bool,
    /// Variables were set: those of the file are not what is to be loaded.
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
            return Err(Error::failed(
                what(),
                "it is far too large for an object file",
            ));
        }
        let bytes = fs::read(path).map_err(|e| Error::os(what(), e))?;
        // Status names the file long after, and from elsewhere.
        let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Self::open(&whole.display().to_string(), &bytes)
    }

    /// An object file that was compiled into trawl.
    pub fn embedded(label: &str, bytes: &[u8]) -> Result<Self> {
        Self::open(label, bytes)
    }

    /// Whether a person's file is what it was read from.
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
        let object = ObjectFile::open(&stem.to_string_lossy(), bytes)
            .map_err(|e| explain::cannot_open(label, &e))?;
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
            compared: false,
            is_configured: false,
        })
    }

    /// The file's XDP programs: those in sections that begin with `xdp` or, where there is none, those of sections
    /// that say nothing.
    pub fn programs(&self) -> Vec<ProgramEntry> {
        let is_xdp = |one: &ProgramEntry| {
            let is_named_so = one.section.trim_start_matches('?').starts_with("xdp");
            one.kind == program::XDP || (one.kind == 0 && is_named_so)
        };
        let says_nothing = |one: &ProgramEntry| one.kind == 0;
        let mut all = self.object.programs();
        all.retain(|one| one.fed_by().is_none());
        match all.iter().any(is_xdp) {
            true => all.retain(is_xdp),
            false => all.retain(says_nothing),
        }
        all
    }

    /// Which program: by the name of its function or, if only one has it, of its section. Without a name there must
    /// be just one.
    pub fn choose(&mut self, name: Option<&str>) -> Result<()> {
        let programs = self.programs();
        let names = || {
            let names: Vec<_> = programs.iter().map(|one| one.name.as_str()).collect();
            names.join(", ")
        };
        let what = format!("cannot load {}", self.label);
        let found = match (name, programs.as_slice()) {
            (_, []) => return Err(explain::no_program(&what, &self.object.programs())),
            (None, [only]) => only,
            (None, _) => {
                return Err(Error::failed(what, "it has several XDP programs")
                    .fix(format!("name one with --prog: {}", names())));
            }
            (Some(name), all) => {
                let by_name = all.iter().find(|one| one.name == name);
                let mut by_section = all.iter().filter(|one| one.section == name);
                match (by_name, by_section.next(), by_section.next()) {
                    (Some(found), ..) | (None, Some(found), None) => found,
                    (None, Some(_), Some(_)) => {
                        let why = format!("several of its programs are in the section {name}");
                        return Err(Error::failed(what, why)
                            .fix(format!("name one with --prog: {}", names())));
                    }
                    (None, None, _) => {
                        let others = self.object.programs();
                        let mut others = others.iter();
                        let error = match others.find(|one| one.name == name || one.section == name)
                        {
                            Some(other) => explain::elsewhere(&what, other),
                            None => Error::failed(what, format!("it has no XDP program {name}")),
                        };
                        return Err(error.fix(format!("those that exist: {}", names())));
                    }
                }
            }
        };
        self.chosen = Some(found.name.clone());
        Ok(())
    }

    /// Loads another program of the file too: one that a map sends packets to (devmap, cpumap), for example.
    pub fn also(&mut self, name: &str) {
        self.also.push(name.to_owned());
    }

    pub fn maps(&self) -> Vec<MapEntry> {
        self.object.maps()
    }

    pub fn set_entries(&mut self, map: &str, entries: u32) -> Result<()> {
        self.object.set_entries(map, entries)
    }

    /// Gives a global variable or constant its first value.
    pub fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<()> {
        self.is_configured = true;
        self.object.set_variable(name, value)
    }

    /// Uses a map that exists instead of making the file's own.
    pub fn reuse(&mut self, map: &str, existing: BorrowedFd<'_>) -> Result<()> {
        self.object.reuse(map, existing)
    }

    /// The verdicts after which the next program of a chain runs, whatever the file says.
    pub fn set_actions(&mut self, actions: Actions) {
        self.actions = Some(actions);
    }

    /// Asks for the tag that the program has without hooks.
    pub(crate) fn compare(&mut self) {
        self.compared = true;
    }

    /// Whether somebody said what is to be in a map: options of a bundled program, or a pinned map.
    pub(crate) fn is_set_otherwise(&self, entry: &MapEntry) -> bool {
        let is_constant = entry.is_data && entry.name.contains(".rodata");
        let pinned = || match &self.pin_maps {
            Some(directory) => Some(directory.join(entry.name.replace('.', "_"))),
            None => self.object.pin_path(&entry.name),
        };
        (is_constant && self.is_configured) || pinned().is_some_and(|path| path.exists())
    }

    pub(crate) fn variables(&self, section: &str) -> Option<Vec<Variable>> {
        self.object.variables(section)
    }

    pub(crate) fn is_filled_by_source(&self, map: &str) -> bool {
        self.object.is_filled_by_source(map)
    }

    /// Pins the program's maps in this directory too, by their names, or uses those that are there already.
    pub fn pin_maps(&mut self, directory: &Path) {
        self.pin_maps = Some(directory.to_owned());
    }

    /// For the card to run.
    pub fn offload(&mut self) {
        self.offload = true;
    }

    /// Puts hooks into the program for captures to enter (`trawl capture --tap hook`).
    pub fn make_tappable(&mut self) {
        self.hooks.tappable = true;
    }

    /// Puts a jump to the next program of a chain into its exits.
    pub(crate) fn take_seat(&mut self, seat: ChainSeat) {
        self.hooks.chain_actions = Some(seat.verdicts());
        self.seat = Some(seat);
    }

    /// Leaves out what its section says of packets in several pieces.
    pub(crate) fn set_linear(&mut self) {
        self.linear = true;
        self.flags &= !program::HAS_FRAGS;
    }

    pub(crate) fn is_tappable(&self) -> bool {
        self.hooks.tappable
    }

    /// The name of the chosen program's function.
    pub fn name(&mut self) -> Result<String> {
        if self.chosen.is_none() {
            self.choose(None)?;
        }
        Ok(self.chosen.clone().unwrap_or_default())
    }

    /// Whether the chosen program copes with packets that are not in one piece.
    pub fn has_frags(&mut self) -> Result<bool> {
        let name = self.name()?;
        let entry = self.programs().into_iter().find(|one| one.name == name);
        Ok(self.flags & program::HAS_FRAGS != 0
            || entry.is_some_and(|one| one.section.contains(".frags")))
    }

    /// Where the chosen program wants to be in a chain: what its source says (`XDP_RUN_CONFIG` of libxdp), or libxdp's
    /// defaults.
    pub fn run_config(&mut self) -> Result<RunConfig> {
        let name = self.name()?;
        let numbers = self.object.numbers_beside(&name, RunConfig::SECTION);
        let mut config = RunConfig::from_numbers(&numbers);
        config.actions = self.actions.unwrap_or(config.actions);
        Ok(config)
    }

    /// Loads it, for this interface. Maps that were pinned for it are unpinned again if it is dropped before it is
    /// attached.
    pub fn load(self, site: &Site) -> Result<Program> {
        self.load_as(site, Role::Alone)
    }

    /// As [`Self::load`], to stand in for a function of a dispatcher.
    pub(crate) fn load_as(mut self, site: &Site, role: Role<'_>) -> Result<Program> {
        let name = self.name()?;
        let entry = self.programs().into_iter().find(|one| one.name == name);
        let section = entry.as_ref().map_or("", |one| one.section.as_str());
        if entry.as_ref().is_some_and(|one| one.kind == 0) {
            self.object.set_xdp(&name);
            if section.contains(".frags") {
                self.flags |= program::HAS_FRAGS;
            }
        }
        match role {
            Role::Alone if self.flags != 0 => self.object.set_flags(&name, self.flags),
            Role::Alone => {}
            // Whether packets may be in pieces is the dispatcher's to say.
            Role::Instead { of, function } => self
                .object
                .replace_function(&name, of, function)
                .map_err(|e| Error::os(format!("cannot put {name} into a dispatcher"), e))?,
        }
        let mut wanted = vec![name.as_str()];
        wanted.extend(self.also.iter().map(String::as_str));
        let others = self.programs();
        // The compiler may have filled a program array with others of the file: the kernel needs to have them all.
        if self
            .object
            .maps()
            .iter()
            .any(|one| one.kind == map::PROG_ARRAY)
        {
            let automatic = others.iter().filter(|one| one.is_automatic);
            wanted.extend(automatic.map(|one| one.name.as_str()));
        }
        self.object.want(&wanted);
        if self.offload {
            self.object.offload_to(&name, site.index());
        }
        // The kernel lets a program jump only to those that take packets in pieces as it does.
        let jumps_there = |other: &str| {
            let found = others.iter().find(|one| one.name == other);
            found.is_some_and(|one| one.section.contains(".frags") == section.contains(".frags"))
        };
        let targets: Vec<String> = wanted
            .iter()
            .filter(|one| **one != name && !self.also.iter().any(|also| also == *one))
            .filter(|one| jumps_there(one))
            .map(|one| (*one).to_owned())
            .collect();
        if self.linear {
            self.object.set_linear(&name);
            targets.iter().for_each(|one| self.object.set_linear(one));
        }
        if let Role::Instead { .. } = role {
            for target in &targets {
                self.object
                    .drop_attach_type(target)
                    .map_err(|e| Error::os(format!("cannot put {target} into a dispatcher"), e))?;
            }
        }
        let mut pins = Pins::place(&mut self.object, self.pin_maps.as_deref())?;
        let (mut fitted, plain_tag) = self.fit_hooks(&name, &targets)?;
        // Those of a chain are tried before, and put in only where they fit.
        let with_hooks = self.hooks.tappable;
        let label = self.label;
        let offload = self.offload;
        let cannot_load = |e: LoadFailure| match with_hooks {
            _ if offload && e.log.is_empty() => trawl_attach::cannot_offload(site, &name),
            true if !explain::is_about_licence(&e) => explain::cannot_fit(&label, &name, &e),
            _ => explain::cannot_load(&label, &name, &e),
        };
        let file = self.object.load().map_err(cannot_load)?;
        pins.pinned_by_now();
        fitted.finish(&file, &name).map_err(cannot_load)?;
        let fd = file
            .program(&name)
            .ok_or_else(|| Error::failed(format!("cannot load {name}"), "it was left out"))?;
        let about = info::program(fd)
            .map_err(|e| Error::os(format!("cannot look at the program {name}"), e))?;
        let fd = fd
            .try_clone_to_owned()
            .map_err(|e| Error::os(format!("cannot hold the program {name}"), e))?;
        let reach = Reach::of(&file, &name)
            .map_err(|e| Error::os(format!("cannot look at where {name} leads to"), e))?;
        Ok(Program {
            map_ids: reach.map_ids,
            file,
            fd,
            name,
            source: label,
            id: about.id,
            pins,
            fitted,
            seat: self.seat,
            changes: Vec::new(),
            peer_link: None,
            plain_tag,
        })
    }

    /// Puts in what was asked for. A program that only might be followed by others is loaded without, if need be.
    /// Besides, the program's tag before.
    fn fit_hooks(&mut self, name: &str, targets: &[String]) -> Result<(Fitted, Option<String>)> {
        if !self.hooks.any() && !self.compared {
            return Ok((Fitted::default(), None));
        }
        if self.offload && !self.hooks.any() {
            return Ok((Fitted::default(), None));
        }
        if self.offload {
            return Err(Error::usage(
                format!("cannot make {name} tappable"),
                "programs on the card cannot jump to others",
            )
            .fix("leave out --mode hw"));
        }
        let mut prepared = self
            .object
            .prepare()
            .map_err(|e| explain::cannot_load(&self.label, name, &e))?;
        // With hooks it cannot be asked of the kernel later.
        let tag = prepared.tag(name);
        if !self.hooks.any() {
            return Ok((Fitted::default(), tag));
        }
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let fitted = tappable::fit(&mut prepared, name, &targets, &self.hooks);
        if !self.hooks.tappable
            && let Err(Problem::Refused(..) | Problem::Unfit(..) | Problem::Taken(_)) = &fitted
            && let Some(seat) = &mut self.seat
        {
            seat.close();
            return Ok((Fitted::default(), tag));
        }
        match fitted {
            Ok(fitted) => Ok((fitted, tag)),
            Err(Problem::Unfit(which, failure)) => {
                Err(explain::cannot_fit(&self.label, &which, &failure))
            }
            Err(Problem::Refused(which, refusal)) => Err(Error::failed(
                format!("cannot make {which} of {} tappable", self.label),
                refusal,
            )
            .fix("load it without --tappable")),
            Err(Problem::Taken(map)) => Err(Error::failed(
                format!("cannot make {name} of {} tappable", self.label),
                format!("it has a map {map}, and that is what captures know the hooks by"),
            )
            .fix("give the map another name, or load it without --tappable")),
            Err(Problem::Original(which, failure)) => {
                Err(explain::cannot_load(&self.label, &which, &failure))
            }
            Err(Problem::Other(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_kernel::bpf::object;

    /// Whatever is in an object file, it is opened or refused.
    #[test]
    fn changed_object_files_are_refused_or_opened() {
        let look = |bytes: &[u8]| {
            let Ok(mut source) = Source::embedded("changed", bytes) else {
                return false;
            };
            source.maps();
            let _ = source.choose(None).and_then(|()| source.run_config());
            true
        };
        // Names that are not UTF-8, as in: sed 's/\.text/\xfftext/g'
        for name in [&b".text"[..], b".maps", b".BTF", b"license", b"xdp"] {
            let mut bytes = object::VERDICT.to_vec();
            for at in 0..bytes.len().saturating_sub(name.len()) {
                if bytes[at..].starts_with(name) {
                    bytes[at] = 0xff;
                }
            }
            look(&bytes);
        }
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        let mut opened = 0;
        for _ in 0..4000 {
            let mut bytes = object::VERDICT.to_vec();
            for _ in 0..1 + random() % 4 {
                let at = random() % bytes.len();
                bytes[at] = random() as u8;
            }
            if random() % 8 == 0 {
                bytes.truncate(random() % bytes.len());
            }
            opened += usize::from(look(&bytes));
        }
        assert!(opened > 0 && opened < 4000, "{opened} of 4000");
    }
}
