//! A new dispatcher for a new set of programs, and its atomic exchange for the one before: what is on the interface is
//! always the whole old chain or the whole new one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_attach::{AttachPlan, Owner, Refused, Site, apply};
use trawl_kernel::bpf::loader::ObjectFile;
use trawl_kernel::bpf::{functions, info, link, object, program};
use trawl_kernel::netlink::{XdpAttachment, XdpMode};
use trawl_kernel::{Error, Result};

use super::config::{Config, Slot, VERSION};
use super::pins::{self, Lock, Pins};
use super::{Dispatcher, NAME, function_of};
use crate::explain;
use crate::load::{Program, Role, Source};

/// A program that is to be in the chain.
#[derive(Debug)]
pub enum Part {
    /// In the chain already; loaded by whomever.
    Present { program: OwnedFd, slot: Slot },
    New {
        name: String,
        source: Box<Source>,
        slot: Slot,
    },
}

impl Part {
    fn slot(&self) -> Slot {
        match self {
            Self::Present { slot, .. } | Self::New { slot, .. } => *slot,
        }
    }

    /// By priority, then by name, and those that are there already first, as libxdp does it.
    fn order(&self) -> (u32, String, bool) {
        let priority = self.slot().priority;
        match self {
            Self::Present { program, .. } => (
                priority,
                functions::name_of(program.as_fd()).unwrap_or_default(),
                false,
            ),
            Self::New { name, .. } => (priority, name.clone(), true),
        }
    }
}

/// The parts of a dispatcher that is on the interface.
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
        .fix("unload its programs, and load them again with what loaded them"));
    }
    if dispatcher.members.len() != dispatcher.config.slots.len() {
        return Err(Error::failed(
            what,
            format!(
                "of its {} programs only {} can be found",
                dispatcher.config.slots.len(),
                dispatcher.members.len()
            ),
        ));
    }
    let part = |member: &super::Member| {
        let program = program::open_by_id(member.program)
            .map_err(|e| Error::os(format!("cannot open program {}", member.program), e))?;
        Ok(Part::Present {
            program,
            slot: dispatcher.config.slots[member.slot],
        })
    };
    dispatcher.members.iter().map(part).collect()
}

/// A dispatcher with its programs, on no interface yet.
#[derive(Debug)]
pub struct Built {
    /// The program that was new, if one was.
    pub program: Option<Program>,
    dispatcher: OwnedFd,
    pins: Pins,
}

impl Built {
    /// What begins the chain.
    pub fn head(&self) -> BorrowedFd<'_> {
        self.dispatcher.as_fd()
    }
}

/// Makes a dispatcher of these parts.
pub fn build(site: &Site, mut parts: Vec<Part>, lock: &Lock) -> Result<Built> {
    parts.sort_by_cached_key(Part::order);
    let config = Config {
        version: VERSION,
        frags: parts
            .iter()
            .all(|part| part.slot().flags & program::HAS_FRAGS != 0),
        slots: parts.iter().map(Part::slot).collect(),
    };
    let dispatcher = load(&config)?;
    let id = info::program(dispatcher.as_fd())
        .map_err(|e| Error::os("cannot look at the dispatcher", e))?
        .id;
    let functions = functions::of(dispatcher.as_fd())
        .map_err(|e| Error::os("cannot look at the dispatcher's functions", e))?;
    let pins = Pins::new(lock.of(site, id))?;
    let mut added = None;
    for (slot, part) in parts.into_iter().enumerate() {
        let name = function_of(slot, config.slots.len());
        let function = functions
            .iter()
            .find(|one| one.name == name)
            .ok_or_else(|| Error::failed("cannot build a chain", format!("there is no {name}")))?;
        let program = match part {
            Part::Present { program, .. } => program,
            Part::New { source, .. } => {
                let role = Role::Instead {
                    of: dispatcher.as_fd(),
                    function: &name,
                };
                let program = added.insert(source.load_as(site, role)?);
                program
                    .as_fd()
                    .try_clone_to_owned()
                    .map_err(|e| Error::os("cannot hold a program", e))?
            }
        };
        let link = link::replace_function(program.as_fd(), dispatcher.as_fd(), function.type_id)
            .map_err(|e| Error::os(format!("cannot put a program in the place of {name}"), e))?;
        pins.add(slot, &program, &link)?;
    }
    Ok(Built {
        program: added,
        dispatcher,
        pins,
    })
}

impl Built {
    /// Puts it on the interface as planned; of a dispatcher whose place it takes, the pins go.
    pub fn attach(
        &mut self,
        site: &Site,
        plan: &AttachPlan,
        old_dispatcher: Option<u32>,
        lock: &Lock,
    ) -> Result<XdpMode, Refused> {
        let attached = apply(site, self.dispatcher.as_fd(), plan, &Owner::default())?;
        self.pins.keep();
        if let Some(old) = old_dispatcher {
            pins::remove(&lock.of(site, old));
        }
        Ok(attached.mode)
    }
}

/// Takes a whole dispatcher off, and lets all of its programs go.
pub fn remove(site: &Site, attachment: XdpAttachment, lock: &Lock) -> Result<()> {
    let what = || format!("cannot take the dispatcher off {}", site.label());
    apply::remove(site, attachment).map_err(|refusal| refusal.about(what()))?;
    pins::remove(&lock.of(site, attachment.program_id));
    Ok(())
}

fn load(config: &Config) -> Result<OwnedFd> {
    let mut file =
        ObjectFile::open(NAME, object::DISPATCHER).map_err(|e| explain::cannot_open(NAME, &e))?;
    file.want(&[NAME]);
    if config.frags {
        file.set_flags(NAME, program::HAS_FRAGS);
    }
    file.set_variable("conf", &config.bytes())?;
    let loaded = file
        .load()
        .map_err(|e| explain::cannot_load("the chain of programs", NAME, &e))?;
    let fd = loaded
        .program(NAME)
        .ok_or_else(|| Error::failed("cannot build a chain", "the dispatcher was left out"))?;
    fd.try_clone_to_owned()
        .map_err(|e| Error::os("cannot hold the dispatcher", e))
}
