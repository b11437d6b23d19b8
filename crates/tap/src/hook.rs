//! The `hook` tap: a map of programs, indexed by action, that an XDP program jumps through when it is done. Programs
//! built for xdpcap have one; trawl fills its slots and puts back what was there.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trawl_filter::lower::Target;
use trawl_kernel::bpf::object::{self, TapProgram};
use trawl_kernel::bpf::program::LoadOptions;
use trawl_kernel::bpf::{info, map, program};
use trawl_kernel::interface::Attachment;
use trawl_kernel::layout::TapConfig;
use trawl_kernel::ring::Rings;
use trawl_kernel::warden::{self, Task, Warden};
use trawl_kernel::{Error, Result, bpffs, errno};

use crate::assembly::{Assembly, Carries, PointIds, program_maps};
use crate::chain::{self, Seat};
use crate::site::{At, Site, TimeSource};
use crate::{Attached, Gives, Tap};

/// XDP_ABORTED, DROP, PASS, TX and REDIRECT.
pub const ACTIONS: u32 = 5;
const DIRECTION_INBOUND: u32 = 1;

#[derive(Debug)]
pub struct Hook;

impl Tap for Hook {
    fn name(&self) -> &'static str {
        "hook"
    }

    fn gives(&self) -> Gives {
        Gives {
            received: true,
            sent: false,
            verdict: true,
            hardware_time: false,
            takes_packets_away: false,
        }
    }

    fn attach(
        &self,
        index: usize,
        site: &Site,
        assembly: &mut Assembly<'_>,
    ) -> Result<Box<dyn Attached>> {
        if assembly.options.time == TimeSource::Hardware {
            return Err(Error::usage(
                "cannot read hardware time stamps at a hook",
                "its programs are bound to no device",
            )
            .mend("leave out --time hw"));
        }
        if assembly.options.at.is_some_and(At::entry) {
            return Err(Error::usage(
                "cannot record at entry through a hook",
                "its programs run when the other is done",
            )
            .mend("leave out --at, or say --at exit"));
        }
        if assembly.options.filter_at == Some(At::Entry) {
            return Err(Error::usage(
                "cannot filter packets as they arrived through a hook",
                "its programs see them as the other program left them",
            )
            .mend("leave out --filter-at, or use --tap xdp where no program is attached"));
        }
        let found = find(site, assembly.options.hook.as_deref())?;
        let rings = assembly.program_rings()?;
        let ids = assembly.add_point(index, site, &rings, "hook", "xdp exit")?;
        assembly.set_mode(ids.point, "hook map");
        if let Some(path) = found
            .path
            .as_ref()
            .filter(|_| assembly.options.hook.is_none())
        {
            assembly.notice(format!(
                "{}: using the hook map {}",
                site.label,
                path.display()
            ));
        }
        let mut config = assembly.config(&rings);
        config.only_ifindex = site.interface.index;
        let wanted = |action: u32| {
            assembly
                .options
                .verdicts
                .as_ref()
                .is_none_or(|set| set.contains(u64::from(action)))
        };
        let block = match &assembly.options.filter {
            Some(filter) => Some(filter.block(site, config.snaplen, &Target::xdp())?),
            None => None,
        };
        let plan = Plan {
            config,
            ids,
            unwanted: (0..ACTIONS).map(|action| !wanted(action)).collect(),
            block,
            rings,
        };
        let tap = occupy(found, site, &plan, &mut assembly.warden)?;
        Ok(Box::new(tap))
    }
}

/// What the programs for the slots are made from.
struct Plan {
    config: TapConfig,
    ids: PointIds,
    /// By action: its packets are only counted.
    unwanted: Vec<bool>,
    block: Option<Vec<u64>>,
    rings: Arc<Rings>,
}

/// A hook map, and where it is pinned if it is.
#[derive(Debug)]
struct Found {
    map: OwnedFd,
    path: Option<PathBuf>,
}

impl Found {
    fn describe(&self) -> String {
        match &self.path {
            Some(path) => format!("the hook map {}", path.display()),
            None => "the hook map".to_owned(),
        }
    }
}

fn find(site: &Site, path: Option<&Path>) -> Result<Found> {
    match path {
        Some(path) => open_hook(path),
        None => find_by_program(site),
    }
}

fn open_hook(path: &Path) -> Result<Found> {
    let what = || format!("cannot use {} as a hook", path.display());
    let map = bpffs::open_map(path)?;
    let about = map::info(&map).map_err(|e| Error::os(what(), e))?;
    if about.kind != map::PROG_ARRAY {
        return Err(Error::failed(
            what(),
            format!(
                "it is a map of type {}, not an array of programs",
                about.kind
            ),
        )
        .mend("name the BPF_MAP_TYPE_PROG_ARRAY that the program jumps through"));
    }
    if about.max_entries < ACTIONS {
        let why = format!(
            "it has {} entries, and a hook needs one for each of {ACTIONS} actions",
            about.max_entries
        );
        return Err(Error::failed(what(), why).mend("give the map 5 entries, as xdpcap asks for"));
    }
    Ok(Found {
        map,
        path: Some(path.to_owned()),
    })
}

/// The one program array with enough slots among the maps of the attached program; a pinned one if there are more.
fn find_by_program(site: &Site) -> Result<Found> {
    let what = || format!("cannot find a hook on {}", site.label);
    let Some(present) = site.interface.xdp_attached(site.namespace.as_ref())? else {
        return Err(Error::failed(what(), "no XDP program is on it").mend("use --tap xdp"));
    };
    let mut found = hooks_of(&present)?;
    if found.len() > 1 && found.iter().any(|one| one.path.is_some()) {
        found.retain(|one| one.path.is_some());
    }
    if found.len() > 1 {
        let names: Vec<String> = found.iter().map(Found::describe).collect();
        return Err(
            Error::failed(what(), format!("there are several: {}", names.join(", ")))
                .mend("say which: --hook PATH"),
        );
    }
    found.pop().ok_or_else(|| {
        Error::failed(
            what(),
            format!(
                "the XDP program there (id {}) has no program array with {ACTIONS} entries",
                present.program_id
            ),
        )
        .mend("name the map with --hook PATH, or capture behind XDP with --tap packet")
    })
}

/// Whether an attached program has a map that can serve as a hook.
pub fn is_there(present: &Attachment) -> bool {
    hooks_of(present).is_ok_and(|found| !found.is_empty())
}

/// All maps of an attached program that can serve as a hook.
fn hooks_of(present: &Attachment) -> Result<Vec<Found>> {
    let fail = |e| {
        Error::os(
            format!("cannot look at the XDP program {}", present.program_id),
            e,
        )
    };
    let program = program::open_by_id(present.program_id).map_err(fail)?;
    let about = info::program(program.as_fd()).map_err(fail)?;
    let mut found = Vec::new();
    for id in about.map_ids {
        let map = map::open_by_id(id).map_err(fail)?;
        let about = map::info(&map).map_err(fail)?;
        if about.kind == map::PROG_ARRAY
            && about.max_entries >= ACTIONS
            && about.name != chain::MAP_NAME
        {
            found.push(Found {
                map,
                path: bpffs::path_of_map(id),
            });
        }
    }
    Ok(found)
}

/// The programs that a hook takes must agree with its owner in two ways that cannot be asked for.
const COMBINATIONS: [(u32, u32); 4] = [
    (program::ATTACH_XDP, program::HAS_FRAGS),
    (program::ATTACH_XDP, 0),
    (0, 0),
    (0, program::HAS_FRAGS),
];

fn occupy(found: Found, site: &Site, plan: &Plan, warden: &mut Warden) -> Result<AttachedHook> {
    let mut last = None;
    for (attach_type, flags) in COMBINATIONS {
        let present = slot_programs(&found)?;
        let joined = joined_head(&present);
        let seat = match joined
            .map(|head| Seat::behind(head, ACTIONS))
            .transpose()?
            .flatten()
        {
            Some(seat) => seat,
            None => Seat::first(ACTIONS)?,
        };
        let programs = match plan.load(&seat, attach_type, flags) {
            Ok(programs) => programs,
            Err(error) => {
                last = Some(error.to_string());
                continue;
            }
        };
        let map = warden::hold(found.map.as_fd())?;
        let mut tap = AttachedHook {
            map,
            seat,
            programs,
            before: Vec::new(),
            joined: joined.is_some(),
        };
        match tap.enter(&present, warden) {
            Ok(()) => return Ok(tap),
            Err(EnterError::Kernel(e)) if e.raw_os_error() == Some(errno::EINVAL) => {
                last = Some(
                    "its program was loaded in a way that none of trawl's can follow".to_owned(),
                );
            }
            Err(EnterError::Kernel(e)) => last = Some(e.to_string()),
            Err(EnterError::Trawl(e)) => return Err(e),
        }
    }
    let what = format!("cannot enter {} on {}", found.describe(), site.label);
    Err(Error::failed(what, last.unwrap_or_default()))
}

/// Why the slots could not be taken; the kernel's EINVAL means that another combination may do.
enum EnterError {
    Kernel(std::io::Error),
    Trawl(Error),
}

impl From<std::io::Error> for EnterError {
    fn from(error: std::io::Error) -> Self {
        Self::Kernel(error)
    }
}

impl From<Error> for EnterError {
    fn from(error: Error) -> Self {
        Self::Trawl(error)
    }
}

fn slot_programs(found: &Found) -> Result<Vec<Option<u32>>> {
    let fail = |e| Error::os(format!("cannot read {}", found.describe()), e);
    (0..ACTIONS)
        .map(|slot| map::program_in(found.map.as_fd(), slot).map_err(fail))
        .collect()
}

/// The program of another trawl capture in the hook, if that is what is there.
fn joined_head(present: &[Option<u32>]) -> Option<u32> {
    present.iter().flatten().copied().find(|id| {
        program::open_by_id(*id)
            .and_then(|fd| info::program(fd.as_fd()))
            .is_ok_and(|about| chain::is_member(&about.name))
    })
}

impl Plan {
    fn load(&self, seat: &Seat, expected_attach_type: u32, flags: u32) -> Result<Vec<OwnedFd>> {
        let options = LoadOptions {
            name: if self.block.is_some() {
                "trawl_xdp_f"
            } else {
                "trawl_xdp"
            },
            kind: program::XDP,
            license: "GPL",
            expected_attach_type,
            flags,
            ifindex: 0,
        };
        let maps = program_maps(&self.rings, Some(seat.map()));
        let one = |(action, unwanted): (u32, &bool)| {
            let mut config = self.config;
            config.verdict = action;
            config.first = self.ids.record(DIRECTION_INBOUND, Carries::Xdp(action));
            config.unwanted = u32::from(*unwanted);
            config.chain_next = seat.next(action);
            let mut ready = TapProgram::prepare(object::XDP, options.name, &config, &maps)?;
            if let Some(block) = &self.block {
                ready.filter(block)?;
            }
            ready.load(&options)
        };
        (0u32..).zip(&self.unwanted).map(one).collect()
    }
}

#[derive(Debug)]
struct AttachedHook {
    map: OwnedFd,
    seat: Seat,
    /// By action.
    programs: Vec<OwnedFd>,
    /// What to put back, by slot.
    before: Vec<Option<OwnedFd>>,
    joined: bool,
}

impl AttachedHook {
    fn enter(&mut self, present: &[Option<u32>], warden: &mut Warden) -> Result<(), EnterError> {
        let mut tasks = self.seat.leave_tasks(&self.programs)?;
        for (slot, (program, present)) in (0u32..).zip(self.programs.iter().zip(present)) {
            let before = present.map(program::open_by_id).transpose()?;
            let held = before
                .as_ref()
                .map(|program| warden::hold(program.as_fd()))
                .transpose()?;
            tasks.push(Task::RestoreSlot {
                map: warden::hold(self.map.as_fd())?,
                slot,
                own: program::id(program)?,
                before: held.filter(|_| !self.joined),
                successor: self.seat.successor(slot)?,
            });
            self.before.push(before.filter(|_| !self.joined));
        }
        warden.watch(tasks)?;
        self.seat.sit(&self.programs)?;
        if !self.joined {
            for (slot, program) in (0u32..).zip(&self.programs) {
                map::set_program(self.map.as_fd(), slot, program.as_fd())?;
            }
        }
        Ok(())
    }

    fn leave_slot(&self, slot: u32, before: Option<OwnedFd>) -> std::io::Result<()> {
        let own = program::id(&self.programs[slot as usize])?;
        if map::program_in(self.map.as_fd(), slot)? != Some(own) {
            return Ok(());
        }
        let next = self.seat.program_behind(slot);
        match next.or(before) {
            Some(program) => map::set_program(self.map.as_fd(), slot, program.as_fd()),
            None => map::clear_program(self.map.as_fd(), slot),
        }
    }
}

impl Attached for AttachedHook {
    fn detach(&mut self) -> Vec<String> {
        let mut notices = Vec::new();
        for (slot, before) in (0u32..).zip(std::mem::take(&mut self.before)) {
            if let Err(error) = self.leave_slot(slot, before) {
                notices.push(format!(
                    "could not put back slot {slot} of the hook map: {error}"
                ));
            }
        }
        self.seat.leave();
        notices
    }
}

impl Drop for AttachedHook {
    fn drop(&mut self) {
        self.detach();
    }
}
