//! The programs that run on an interface, with their maps: trawl's own and those that other tools loaded.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use trawl_attach::site::Site;
use trawl_bpf::info::{self, MapInfo};
use trawl_bpf::{functions, map, program};
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result};

use crate::chain::dispatcher::Dispatcher;
use crate::hooks::{ENTRY, HOOK, NEXT};
use crate::pins::{GUARD, Installed, NAMES, ROUTE, programs_on};

/// Number of slots of an array that are read at most.
pub(crate) const LONGEST_READ: u32 = 1 << 16;
/// Maximum number of chained programs to follow, more than any tool chains by jumps.
const MOST_PROGRAMS: usize = 64;

/// A running program, with its maps.
#[derive(Debug)]
pub struct Running {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// The tag without hooks, if that is known.
    pub(crate) tag: String,
    pub(crate) maps: Vec<(OwnedFd, MapInfo)>,
    /// Set if it has hooks, and its tag without them is unknown.
    pub(crate) has_hooks: bool,
    /// Set for trawl's bundled programs, whose maps hold counters and option values.
    pub(crate) is_bundled: bool,
    /// The file or the bundled program that trawl loaded it from; `None` if another tool loaded it.
    source: Option<String>,
}

impl Running {
    /// Returns the programs on the interface in modes that the function accepts, except dispatchers, which have no maps
    /// of a user's.
    pub fn on(site: &Site, is_wanted: impl Fn(XdpMode) -> bool) -> Result<Vec<Self>> {
        let own = Installed::all(site)?;
        let mut found: Vec<Self> = Vec::new();
        for one in programs_on(site)? {
            let id = one.program_id;
            let is_known = found.iter().any(|other| other.id == id);
            if is_known || !is_wanted(one.mode) || Dispatcher::read(id).is_some() {
                continue;
            }
            let own_program = own.iter().find(|installed| installed.id() == id || installed.stand_in() == Some(id));
            let fail = |e| Error::os(format!("cannot read program {id} on {}", site.label()), e);
            let Some(mut running) = Self::open(id).map_err(fail)? else {
                continue;
            };
            if let Some(installed) = own_program {
                running.know(installed).map_err(fail)?;
            }
            found.push(running);
        }
        Ok(found)
    }

    /// Returns the program on the interface with this name, or the only one; `option` is the one of the command that
    /// names it.
    pub fn choose(site: &Site, name: &str, option: &str) -> Result<Self> {
        let what = || format!("cannot test against the program on {}", site.label());
        let mut all = Self::on(site, |_| true)?;
        let at = match all.as_slice() {
            [] => return Err(Error::failed(what(), "no XDP program is attached")),
            [_] => 0,
            several => {
                let named = several.iter().position(|one| one.name == name);
                named.ok_or_else(|| {
                    let names: Vec<&str> = several.iter().map(|one| one.name.as_str()).collect();
                    Error::failed(what(), "it has several programs")
                        .fix(format!("name one with {option}: {}", names.join(", ")))
                })?
            }
        };
        Ok(all.swap_remove(at))
    }

    /// Opens a running program; `None` if it was removed.
    pub fn open(id: u32) -> io::Result<Option<Self>> {
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
        Ok(Some(Self { id, name, tag: about.tag, maps, has_hooks, is_bundled: false, source: None }))
    }

    /// Adds trawl's record of the program, or of the one that it replaces for the duration of a capture.
    fn know(&mut self, installed: &Installed) -> io::Result<()> {
        let source = installed.source();
        self.is_bundled = NAMES.contains(&source) || [ROUTE, GUARD].contains(&source);
        self.source = Some(source.to_owned());
        if !installed.name().is_empty() {
            installed.name().clone_into(&mut self.name);
        }
        if let Some(tag) = installed.plain_tag() {
            tag.clone_into(&mut self.tag);
            self.has_hooks = false;
        } else if installed.id() != self.id
            && let Some(original) = Self::open(installed.id())?
        {
            self.tag = original.tag;
            self.has_hooks = original.has_hooks;
        }
        Ok(())
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the full name of its function, if the kernel has its type information.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its maps and the maps of the programs that it can jump to, except the maps of trawl's hooks.
    pub fn maps(&self) -> &[(OwnedFd, MapInfo)] {
        &self.maps
    }

    /// Returns the tag that it has without hooks, if that is known.
    pub fn plain_tag(&self) -> Option<&str> {
        (!self.has_hooks).then_some(self.tag.as_str())
    }

    /// Returns the file that trawl loaded it from; `None` if another tool loaded it, or if it is a bundled program.
    pub fn file(&self) -> Option<PathBuf> {
        let path = Path::new(self.source.as_deref()?);
        path.is_absolute().then(|| path.to_owned())
    }

    /// Returns the name of the bundled program that it is.
    pub fn bundled(&self) -> Option<&str> {
        self.source.as_deref().filter(|source| !Path::new(source).is_absolute())
    }
}
