//! Installs programs on an interface, alone or in a chain, and removes them.
//!
//! On kernels where programs can replace functions of others (freplace), a program from an object file is put behind a
//! dispatcher of libxdp's protocol, so that trawl and libxdp's tools can add others.

use std::os::fd::AsFd;

use trawl_attach::plan::{self, Newcomer};
use trawl_attach::site::Lock;
use trawl_attach::snapshot::Chain;
use trawl_attach::{
    AttachPlan, AttachPosition, AttachRequest, Conflict, Hold, OldMaps, Owner, ProgramOwner, Site, Snapshot, apply,
};
use trawl_bpf::probe::KernelFeature;
use trawl_sys::netlink::{XdpAttachment, XdpMode};
use trawl_sys::{Error, Result, events};

use crate::chain::build::{DispatcherLock, Part, build, parts_of, remove_pins};
use crate::chain::dispatcher::{Dispatcher, DispatcherSlot};
use crate::chain::{after, tail_call};
use crate::load::{Program, Source};
use crate::pins::{GUARD, Installed, programs_on};
use crate::swap::maps::{Inherited, Succession};
use crate::unload::sweep;
use crate::{explain, readiness, safety};

/// Loads a program and puts it on the interface: into the present chain, at the head of a new one or, on kernels
/// without chains, alone. The default priority is the source's own. `fill` runs before packets reach the program.
pub fn put(
    site: &Site,
    source: Source,
    request: &AttachRequest,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    install(site, source, request, false, fill)
}

/// Like [`put`], but outside a chain unless a priority is requested.
pub fn put_alone(
    site: &Site,
    source: Source,
    request: &AttachRequest,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    install(site, source, request, request.priority.is_none(), fill)
}

/// The state of an interface: the kernel's, completed by trawl's records.
struct InterfaceState {
    snapshot: Snapshot,
    installed: Vec<Installed>,
    /// The first program on the interface, and the dispatcher that it may be.
    head: Option<XdpAttachment>,
    dispatcher: Option<Dispatcher>,
}

impl InterfaceState {
    fn read(site: &Site, mode: XdpMode) -> Result<Self> {
        let mut snapshot = Snapshot::read(site)?;
        let installed = Installed::all(site)?;
        let mut dispatcher = None;
        let head = snapshot.conflicting_in(mode).map(|one| one.attachment());
        for one in &mut snapshot.present {
            if let Some(found) = Dispatcher::read(one.program_id) {
                one.kind = ProgramOwner::Dispatcher { programs: found.members.len() };
                if head == Some(one.attachment()) {
                    dispatcher = Some(found);
                }
            } else if let Some(ours) = installed.iter().find(|own| own.id() == one.program_id) {
                one.kind = ProgramOwner::Installed {
                    name: ours.name().to_owned(),
                    source: ours.source().to_owned(),
                    chain: ours
                        .seat()
                        .map(|seat| Chain { programs: 1 + after(one.program_id).len(), frags: seat.frags }),
                };
                if ours.link().is_some() {
                    one.hold = Hold::OwnLink;
                }
            }
        }
        let guard = installed.iter().find(|one| one.source() == GUARD);
        snapshot.guard = guard.map(Installed::id);
        Ok(Self { snapshot, installed, head, dispatcher })
    }

    /// Returns the programs that a new one replaces.
    fn replaced(&self, request: &AttachRequest) -> Vec<u32> {
        let present = self.snapshot.present.iter();
        let replaced = present.filter(|_| request.replace);
        replaced.map(|one| one.program_id).collect()
    }
}

/// Locks the interface, reads its state, plans, loads and applies. A program that is `alone` is in no chain.
fn install(
    site: &Site,
    mut source: Source,
    request: &AttachRequest,
    alone: bool,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    let mode = request.mode.unwrap_or(XdpMode::Native);
    if request.tappable {
        source.make_tappable();
    }
    let new = Newcomer { hooks: source.is_tappable(), frags: source.has_frags()?, alone };
    let dispatchers =
        !new.alone && !new.hooks && mode != XdpMode::Offload && KernelFeature::Freplace.probe().is_supported();
    // Filling a chain's maps may make interfaces ready, and this lock comes before the interface's.
    let _ready = if dispatchers { readiness::acquire_lock()? } else { None };
    let lock = site.lock()?;
    sweep(&lock, site)?;
    let mut now = InterfaceState::read(site, mode)?;
    now.snapshot.dispatchers = dispatchers;
    let position =
        plan::position(&now.snapshot, new, request).map_err(|conflict| conflict_of(site, &mut source, conflict))?;
    let succession = Succession::plan(site, request, &mut source)?;
    let task = Task { site, lock: &lock, request };
    let in_chain = !alone && mode != XdpMode::Offload;
    // Runs after loading and after the program got the maps that it keeps.
    let fill = |program: &mut Program| {
        let inherited = succession.map_or(Ok(None), |one| one.settle(program))?;
        fill(program).map(|()| inherited)
    };
    match position {
        AttachPosition::NewDispatcher(plan) => task.behind_dispatcher(source, Vec::new(), &plan, &now, fill),
        AttachPosition::Dispatcher(plan) => {
            let parts = now.dispatcher.as_ref().map(parts_of).transpose()?.unwrap_or_default();
            task.behind_dispatcher(source, parts, &plan, &now, fill)
        }
        AttachPosition::Alone(plan) => {
            if in_chain {
                let seat = source.seat(request.priority, new.frags)?;
                source.add_jump(seat);
            }
            task.attach(source.load(site)?, &plan, now, fill)
        }
        AttachPosition::Jumps { linear } => {
            if linear {
                source.set_linear();
            }
            let seat = source.seat(request.priority, new.frags && !linear)?;
            source.add_jump(seat);
            task.join(source.load(site)?, mode, now, fill)
        }
    }
}

fn conflict_of(site: &Site, source: &mut Source, conflict: Conflict) -> Error {
    match source.name() {
        Ok(name) => explain::conflict(site, &name, source.is_from_file(), conflict),
        Err(error) => error,
    }
}

/// The task of putting a program on a locked interface.
struct Task<'a> {
    site: &'a Site,
    lock: &'a Lock,
    request: &'a AttachRequest,
}

impl Task<'_> {
    /// Puts the program behind a dispatcher, with the programs of the present chain.
    fn behind_dispatcher(
        self,
        mut source: Source,
        mut parts: Vec<Part>,
        plan: &AttachPlan,
        now: &InterfaceState,
        fill: impl FnOnce(&mut Program) -> Result<Option<Inherited>>,
    ) -> Result<Put> {
        let config = source.run_config()?;
        let new = Part::New {
            name: source.name()?,
            slot: DispatcherSlot {
                actions: config.actions,
                priority: self.request.priority.unwrap_or(config.priority),
                flags: if source.has_frags()? { trawl_bpf::program::HAS_FRAGS } else { 0 },
            },
            source: Box::new(source),
        };
        parts.insert(0, new);
        let site = self.site;
        let lock = DispatcherLock::acquire()?;
        let mut built = build(site, parts, &lock)?;
        let nothing_new = || Error::failed("cannot join the chain", "it contains no new program");
        let Some(program) = &mut built.program else {
            return Err(nothing_new());
        };
        let inherited = fill(program)?;
        let (name, program_id) = (program.name().to_owned(), program.id());
        let replaced = now.replaced(self.request);
        safety::check_session(site, self.request, &name, built.head(), &replaced)?;
        let Some(program) = &mut built.program else {
            return Err(nothing_new());
        };
        let notices = program.notices().to_vec();
        let pinned = program.pin(self.lock, true)?;
        let old = now.dispatcher.as_ref().map(|found| found.id);
        let mode = built.attach(site, plan, old, &lock).map_err(|refused| refused.explain(site, &name))?;
        if self.request.replace {
            now.installed.iter().for_each(Installed::forget);
        }
        Ok(Put { installed: pinned.attached(XdpAttachment { mode, program_id }), notices, inherited })
    }

    /// Puts the program on the interface alone, in place of the present one.
    fn attach(
        self,
        mut program: Program,
        plan: &AttachPlan,
        now: InterfaceState,
        fill: impl FnOnce(&mut Program) -> Result<Option<Inherited>>,
    ) -> Result<Put> {
        let inherited = fill(&mut program)?;
        let (name, replaced) = (program.name(), now.replaced(self.request));
        safety::check_session(self.site, self.request, name, program.as_fd(), &replaced)?;
        let notices = program.notices().to_vec();
        let InterfaceState { installed, head: old, dispatcher, .. } = now;
        let mut members: Vec<u32> = old.map_or_else(Vec::new, |old| after(old.program_id));
        members.extend(dispatcher.iter().flat_map(Dispatcher::programs));
        let (members, installed): (Vec<Installed>, Vec<Installed>) =
            installed.into_iter().partition(|one| members.contains(&one.id()));
        let is_old = |one: &Installed| old.is_some_and(|old| old.program_id == one.id());
        let old = installed.into_iter().find(is_old);
        let pinned = program.pin(self.lock, false)?;
        if let Some(link) = old.as_ref().and_then(Installed::link) {
            pinned.holds(link)?;
        }
        let keep = |link: std::os::fd::BorrowedFd<'_>| old.as_ref().is_some_and(|old| old.renew_link(link).is_ok());
        let owner = Owner { link: old.as_ref().and_then(Installed::link), keep: Some(&keep) };
        let attached = apply(self.site, program.as_fd(), plan, &owner)
            .map_err(|refused| refused.explain(self.site, program.name()))?;
        let attachment = XdpAttachment { mode: attached.mode, program_id: program.id() };
        let installed = match attached.link {
            Some(link) => pinned.attached_by(link, attachment)?,
            None => pinned.attached(attachment),
        };
        // The old program is released when no packet is in it any more.
        if old.is_some() || dispatcher.is_some() {
            events::wait_for_running_programs();
        }
        if let Some(dispatcher) = dispatcher {
            let lock = DispatcherLock::acquire()?;
            remove_pins(&lock.of(self.site, dispatcher.id));
        }
        members.iter().chain(&old).for_each(Installed::forget);
        Ok(Put { installed, notices, inherited })
    }

    /// Puts the program into the chain of jumps on the interface.
    fn join(
        self,
        mut program: Program,
        mode: XdpMode,
        now: InterfaceState,
        fill: impl FnOnce(&mut Program) -> Result<Option<Inherited>>,
    ) -> Result<Put> {
        let inherited = fill(&mut program)?;
        let notices = program.notices().to_vec();
        let head = now.snapshot.conflicting_in(mode).map(|one| one.program_id);
        let chain = tail_call::from(head, now.installed);
        let installed = tail_call::join(self.site, self.lock, program, chain, self.request)?;
        Ok(Put { installed, notices, inherited })
    }
}

/// Like [`put_alone`], in place of trawl's previous program of the same kind. That one is removed once the new one is
/// attached: packets meet one of them at every moment, and if the new one is refused, the old one stays.
pub fn put_instead(
    site: &Site,
    source: Source,
    request: &AttachRequest,
    old: Installed,
    fill: impl FnOnce(&mut Program) -> Result<()>,
) -> Result<Put> {
    let others = |one: &XdpAttachment| one.program_id != old.id() && Dispatcher::read(one.program_id).is_none();
    let is_alone = !programs_on(site)?.iter().any(others);
    let request = AttachRequest {
        mode: request.mode.or(old.mode()),
        priority: (request.priority).or(old.seat().map(|seat| seat.priority)),
        replace: request.replace || is_alone,
        // A caller whose program is alone keeps the maps that its kind of program keeps.
        maps: if is_alone { OldMaps::Drop } else { request.maps },
        // The new program does the same work.
        keep_guard: request.keep_guard && request.replace && old.source() != GUARD,
        ..*request
    };
    let put = put_alone(site, source, &request, fill)?;
    if !request.replace {
        old.detach(site)?;
    }
    Ok(put)
}

/// A program that has been put on an interface.
#[derive(Debug)]
pub struct Put {
    pub installed: Installed,
    /// Notices for the user.
    pub notices: Vec<String>,
    /// Result for the maps of the replaced program, if they were to be kept.
    pub inherited: Option<Inherited>,
}
