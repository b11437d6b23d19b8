//! Building and removal of libxdp's dispatchers: a new dispatcher for a new set of programs is exchanged for the old
//! one, so that either the whole old chain or the whole new one is on the interface. Pins hold the programs behind it,
//! in the paths that libxdp expects.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use trawl_attach::site::make_directory;
use trawl_attach::{AttachPlan, AttachRefusal, Owner, Site, apply};
use trawl_bpf::loader::ObjectFile;
use trawl_bpf::{bpffs, functions, info, link, object, program};
use trawl_sys::files::lock::{self, Rank};
use trawl_sys::netlink::{XdpAttachment, XdpMode};
use trawl_sys::{Error, Result};

use crate::chain::dispatcher::{
    Dispatcher, DispatcherConfig, DispatcherMember, DispatcherSlot, NAME, SLOTS, VERSION, function_of,
};
use crate::explain;
use crate::load::{Program, Role, Source};

/// Environment variable with the directory of libxdp's BPF file system, if it is not the usual one.
const VARIABLE: &str = "LIBXDP_BPFFS";

const DIRECTORY: &str = "xdp";

/// A program for the chain.
#[derive(Debug)]
pub enum Part {
    /// The program is in the chain already; any tool may have loaded it.
    Present {
        program: OwnedFd,
        slot: DispatcherSlot,
    },
    New {
        name: String,
        source: Box<Source>,
        slot: DispatcherSlot,
    },
}

impl Part {
    fn slot(&self) -> DispatcherSlot {
        match self {
            Self::Present { slot, .. } | Self::New { slot, .. } => *slot,
        }
    }

    /// Orders by priority, then by name, with present programs first, as libxdp does.
    fn order(&self) -> (u32, String, bool) {
        let priority = self.slot().priority;
        match self {
            Self::Present { program, .. } => (priority, functions::name_of(program.as_fd()).unwrap_or_default(), false),
            Self::New { name, .. } => (priority, name.clone(), true),
        }
    }
}

/// Returns the parts of a dispatcher on the interface.
pub fn parts_of(dispatcher: &Dispatcher) -> Result<Vec<Part>> {
    let what = "cannot change the chain of programs";
    if dispatcher.config.version != VERSION {
        return Err(Error::failed(
            what,
            format!(
                "its dispatcher is of version {}, and only version {VERSION} can be changed",
                dispatcher.config.version
            ),
        )
        .fix("unload its programs, and load them again with their own tool"));
    }
    if dispatcher.members.len() != dispatcher.config.slots.len() {
        return Err(Error::failed(
            what,
            format!("of its {} programs only {} can be found", dispatcher.config.slots.len(), dispatcher.members.len()),
        ));
    }
    let part = |member: &DispatcherMember| {
        let program = program::open_by_id(member.program)
            .map_err(|e| Error::os(format!("cannot open program {}", member.program), e))?;
        Ok(Part::Present { program, slot: dispatcher.config.slots[member.slot] })
    };
    dispatcher.members.iter().map(part).collect()
}

/// A dispatcher with its programs, not attached to an interface yet.
#[derive(Debug)]
pub struct Built {
    /// The new program, if one was added.
    pub program: Option<Program>,
    dispatcher: OwnedFd,
    pins: DispatcherPins,
}

impl Built {
    /// Returns the program that begins the chain.
    pub fn head(&self) -> BorrowedFd<'_> {
        self.dispatcher.as_fd()
    }

    /// Attaches the dispatcher as planned, and removes the pins of a dispatcher that it replaces.
    pub fn attach(
        &mut self,
        site: &Site,
        plan: &AttachPlan,
        old_dispatcher: Option<u32>,
        lock: &DispatcherLock,
    ) -> Result<XdpMode, AttachRefusal> {
        let attached = apply(site, self.dispatcher.as_fd(), plan, &Owner::default())?;
        self.pins.keep();
        if let Some(old) = old_dispatcher {
            remove_pins(&lock.of(site, old));
        }
        Ok(attached.mode)
    }
}

/// Builds a dispatcher from these parts.
pub fn build(site: &Site, mut parts: Vec<Part>, lock: &DispatcherLock) -> Result<Built> {
    parts.sort_by_cached_key(Part::order);
    let config = DispatcherConfig {
        version: VERSION,
        frags: parts.iter().all(|part| part.slot().flags & program::HAS_FRAGS != 0),
        slots: parts.iter().map(Part::slot).collect(),
    };
    let dispatcher = load(&config)?;
    let id = info::program(dispatcher.as_fd()).map_err(|e| Error::os("cannot read the dispatcher's properties", e))?.id;
    let functions =
        functions::of(dispatcher.as_fd()).map_err(|e| Error::os("cannot read the dispatcher's functions", e))?;
    let pins = DispatcherPins::new(lock.of(site, id))?;
    let mut added = None;
    for (slot, part) in parts.into_iter().enumerate() {
        let name = function_of(slot, config.slots.len());
        let function = functions
            .iter()
            .find(|one| one.name == name)
            .ok_or_else(|| Error::failed("cannot build a chain", format!("the function {name} is missing")))?;
        let program = match part {
            Part::Present { program, .. } => program,
            Part::New { source, .. } => {
                let role = Role::Instead { of: dispatcher.as_fd(), function: &name };
                let program = added.insert(source.load_as(site, role)?);
                program.as_fd().try_clone_to_owned().map_err(|e| Error::os("cannot hold a program", e))?
            }
        };
        let link = link::replace_function(program.as_fd(), dispatcher.as_fd(), function.type_id)
            .map_err(|e| Error::os(format!("cannot replace {name} by a program"), e))?;
        pins.add(slot, &program, &link)?;
    }
    Ok(Built { program: added, dispatcher, pins })
}

/// Removes a whole dispatcher, and releases all of its programs.
pub fn remove(site: &Site, attachment: XdpAttachment, lock: &DispatcherLock) -> Result<()> {
    let what = || format!("cannot remove the dispatcher from {}", site.label());
    apply::remove(site, attachment).map_err(|refusal| refusal.about(what()))?;
    remove_pins(&lock.of(site, attachment.program_id));
    Ok(())
}

fn load(config: &DispatcherConfig) -> Result<OwnedFd> {
    let mut file = ObjectFile::open(NAME, object::XDP_DISPATCHER).map_err(|e| explain::cannot_open(NAME, &e))?;
    file.want(&[NAME]);
    if config.frags {
        file.set_flags(NAME, program::HAS_FRAGS);
    }
    file.set_variable("conf", &config.bytes())?;
    let loaded = file.load().map_err(|e| explain::cannot_load("the chain of programs", NAME, &e))?;
    let fd =
        loaded.program(NAME).ok_or_else(|| Error::failed("cannot build a chain", "the dispatcher was left out"))?;
    fd.try_clone_to_owned().map_err(|e| Error::os("cannot hold the dispatcher", e))
}

/// Exclusive right to change dispatchers of any tool.
#[derive(Debug)]
pub struct DispatcherLock {
    directory: PathBuf,
    _lock: lock::Lock,
}

impl DispatcherLock {
    pub fn acquire() -> Result<Self> {
        let mount = match std::env::var_os(VARIABLE) {
            Some(path) => PathBuf::from(path),
            None => bpffs::lasting_or_mounted()?,
        };
        let directory = mount.join(DIRECTORY);
        make_directory(&directory)?;
        Ok(Self { _lock: lock::Lock::shared_with_others(Rank::Dispatchers, &directory)?, directory })
    }

    /// Returns the directory of a dispatcher's pins.
    pub fn of(&self, site: &Site, dispatcher: u32) -> PathBuf {
        self.directory.join(format!("dispatch-{}-{dispatcher}", site.index()))
    }
}

/// The pins of a dispatcher under construction; removed on drop unless they are kept.
#[derive(Debug)]
pub struct DispatcherPins {
    directory: PathBuf,
    kept: bool,
}

impl DispatcherPins {
    pub fn new(directory: PathBuf) -> Result<Self> {
        make_directory(&directory)?;
        Ok(Self { directory, kept: false })
    }

    pub fn add(&self, slot: usize, program: &OwnedFd, link: &OwnedFd) -> Result<()> {
        bpffs::pin(program.as_fd(), &program_path(&self.directory, slot))?;
        bpffs::pin(link.as_fd(), &link_path(&self.directory, slot))
    }

    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for DispatcherPins {
    fn drop(&mut self) {
        if !self.kept {
            remove_pins(&self.directory);
        }
    }
}

/// Removes a dispatcher's pins.
pub fn remove_pins(directory: &Path) {
    for slot in 0..SLOTS {
        let _ = fs::remove_file(link_path(directory, slot));
        let _ = fs::remove_file(program_path(directory, slot));
    }
    let _ = fs::remove_dir(directory);
}

fn program_path(directory: &Path, slot: usize) -> PathBuf {
    directory.join(format!("prog{slot}-prog"))
}

fn link_path(directory: &Path, slot: usize) -> PathBuf {
    directory.join(format!("prog{slot}-link"))
}
