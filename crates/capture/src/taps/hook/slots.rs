//! A capture's programs in the slots of a hook map, and the restoration of the previous programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use trawl_bpf::layout::TapConfig;
use trawl_bpf::object::{self, TapProgram, Taps};
use trawl_bpf::program::LoadOptions;
use trawl_bpf::{info, map, program};
use trawl_program::captures;
use trawl_ring::Rings;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::process::warden::{self, Undo, Warden};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result, errno};

use crate::assembly::program_maps;
use crate::capture_chain::{self, CaptureSeat, Successor, TO_EXCHANGE_PROGRAMS};
use crate::capture_site::CaptureSite;
use crate::event::{Event, LeftBehind};
use crate::filter::XdpBlocks;
use crate::taps::tap::variant;
use crate::taps::watch::{BlindCause, Sight};

/// Name, in the BPF source, of the map of the programs after all captures.
const ONWARD: &str = "trawl_onward";

/// A program for a slot, before loading.
#[derive(Debug)]
pub struct Occupant {
    pub program: &'static str,
    /// Use of the filter, if any.
    pub filters: Filters,
    /// True if its packets are redirected, and the target is named.
    pub redirected: bool,
    pub config: TapConfig,
}

/// A program's use of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    Never,
    Whole,
    /// With the quick version first.
    Quick,
}

/// The programs for the first slots of a map, before they are loaded.
#[derive(Debug)]
pub struct SlotPlan {
    /// Description of the map.
    pub what: String,
    pub map: OwnedFd,
    /// Map of the programs that run after all captures.
    pub onward: Option<OwnedFd>,
    pub occupants: Vec<Occupant>,
}

/// Attach types and flags to try: they must match the hook's owner, and cannot be queried.
const COMBINATIONS: [(u32, u32); 4] =
    [(program::ATTACH_XDP, program::HAS_FRAGS), (program::ATTACH_XDP, 0), (0, 0), (0, program::HAS_FRAGS)];

pub fn occupy(
    plan: SlotPlan,
    blocks: Option<&XdpBlocks>,
    rings: &Rings,
    site: &CaptureSite,
    warden: &mut Warden,
) -> Result<Occupied> {
    let stride = plan.occupants.len() as u32;
    let (mut last, mut refusal) = (None, None);
    // Without the lock, two captures that start at once would claim the same seat.
    let _lock = netns::lock(site.namespace.as_ref())?;
    plan.clear_killed()?;
    for (attach_type, flags) in COMBINATIONS {
        let present = plan.present()?;
        let joined = joined_head(&present).map(|head| CaptureSeat::in_front_of(head, stride)).transpose()?.flatten();
        let is_joining = joined.is_some();
        let seat = joined.map_or_else(|| CaptureSeat::last(stride), Ok)?;
        let programs = match plan.load(&seat, blocks, rings, attach_type, flags) {
            Ok(programs) => programs,
            Err(error) => {
                refusal = error.refusal();
                last = Some(error.to_string());
                continue;
            }
        };
        let mut occupied = Occupied {
            namespace: site.namespace.clone(),
            map: warden::hold(plan.map.as_fd())?,
            seat,
            _alive: captures::show_alive(&programs)?,
            programs,
            before: Vec::new(),
            retaken: Vec::new(),
            known: Vec::new(),
        };
        let before = if is_joining { None } else { Some(&*present) };
        match occupied.enter(before, warden) {
            Ok(()) => return Ok(occupied),
            Err(EnterError::Kernel(e)) if e.raw_os_error() == Some(errno::EINVAL) => {
                last =
                    Some("its program was loaded with options under which it cannot call trawl's programs".to_owned());
            }
            Err(EnterError::Kernel(e)) => last = Some(e.to_string()),
            Err(EnterError::Trawl(e)) => return Err(e),
        }
    }
    let what = format!("cannot enter {} on {}", plan.what, site.label);
    let error = Error::failed(what, last.unwrap_or_default());
    // A filter that the kernel refuses can be applied in user space.
    Err(match refusal {
        Some(refusal) => error.refused(refusal),
        None => error,
    })
}

/// Reason for which the slots could not be occupied; with the kernel's EINVAL another combination may work.
enum EnterError {
    Kernel(io::Error),
    Trawl(Error),
}

impl From<io::Error> for EnterError {
    fn from(error: io::Error) -> Self {
        Self::Kernel(error)
    }
}

impl From<Error> for EnterError {
    fn from(error: Error) -> Self {
        Self::Trawl(error)
    }
}

/// Returns the program of another trawl capture in the hook, if any.
fn joined_head(present: &[Option<u32>]) -> Option<u32> {
    present.iter().flatten().copied().find(|id| {
        program::open_by_id(*id)
            .and_then(|fd| info::program(fd.as_fd()))
            .is_ok_and(|about| capture_chain::is_member(&about.name))
    })
}

impl SlotPlan {
    fn present(&self) -> Result<Vec<Option<u32>>> {
        let fail = |e| Error::os(format!("cannot read {}", self.what), e);
        (0..self.occupants.len() as u32).map(|slot| map::program_in(self.map.as_fd(), slot).map_err(fail)).collect()
    }

    /// Removes captures that were killed together with their warden.
    fn clear_killed(&self) -> Result<()> {
        let fail = |e| Error::os(format!("cannot clear {}", self.what), e);
        while let Some(head) = joined_head(&self.present()?)
            && captures::is_left_behind(head)?
            && let Some(others) = capture_chain::after_killed(head, self.occupants.len() as u32)?
        {
            for (slot, other) in (0u32..).zip(others) {
                let other = other.as_ref().map(AsFd::as_fd);
                map::put_program(self.map.as_fd(), slot, other).map_err(fail)?;
            }
        }
        Ok(())
    }

    fn load(
        &self,
        seat: &CaptureSeat,
        blocks: Option<&XdpBlocks>,
        rings: &Rings,
        expected_attach_type: u32,
        flags: u32,
    ) -> Result<Vec<OwnedFd>> {
        let mut maps = program_maps(rings, Some(seat.map()));
        let names_processes = rings.names_processes();
        maps.extend(self.onward.as_ref().map(|map| (ONWARD, map.as_fd())));
        let one = |(slot, occupant): (u32, &Occupant)| {
            let mut config = occupant.config;
            config.chain_next = seat.next(slot);
            let load = |taps, redirected: bool| {
                // The quick version has no room for a target, and knows no process.
                let quickly = occupant.filters == Filters::Quick && !names_processes && !redirected;
                let blocks = blocks.filter(|_| occupant.filters != Filters::Never);
                let filtered = blocks.map_or("", |blocks| blocks.suffix(quickly));
                let name = variant(occupant.program, &[(names_processes, "p"), (redirected, "r"), (true, filtered)]);
                let mut ready = TapProgram::prepare(taps, &name, &config, &maps)?;
                if let Some(blocks) = blocks {
                    blocks.put_into(&mut ready, quickly)?;
                }
                ready.load(&LoadOptions { expected_attach_type, flags, ..LoadOptions::new(&name, program::XDP) })
            };
            // The target is in the kernel's memory, which a kernel in lockdown, for example, refuses to read.
            let redirected = occupant.redirected.then(|| load(Taps::reading_kernel(object::TAP_XDP), true));
            let program = match redirected {
                Some(Ok(program)) => program,
                _ => load(Taps::of(object::TAP_XDP), false)?,
            };
            seat.mark(&program)?;
            Ok(program)
        };
        (0u32..).zip(&self.occupants).map(one).collect()
    }
}

/// Occupied slots.
#[derive(Debug)]
pub struct Occupied {
    namespace: Option<Namespace>,
    map: OwnedFd,
    seat: CaptureSeat,
    /// Marks this capture as running while it is open.
    _alive: OwnedFd,
    /// Programs by slot.
    programs: Vec<OwnedFd>,
    /// Programs to restore, by slot.
    before: Vec<Option<OwnedFd>>,
    /// Slots that another process took, and that this capture took again.
    retaken: Vec<u32>,
    /// Programs of other captures that jump to this one.
    known: Vec<u32>,
}

impl Occupied {
    /// Occupies the slots. `present` are their programs; without it, other captures occupy them and keep the previous
    /// programs.
    fn enter(&mut self, present: Option<&[Option<u32>]>, warden: &mut Warden) -> Result<(), EnterError> {
        let mut tasks = self.seat.leave_tasks(&self.programs)?;
        for (slot, program) in (0u32..).zip(&self.programs) {
            let before = match present {
                Some(present) => present[slot as usize].map(program::open_by_id).transpose()?,
                None => self.seat.kept_before(slot)?,
            };
            let held = before.as_ref().map(|program| warden::hold(program.as_fd())).transpose()?;
            tasks.push(Box::new(RestoreSlot {
                map: warden::hold(self.map.as_fd())?,
                slot,
                own: program::id(program)?,
                before: held,
                successor: self.seat.successor(slot)?,
            }));
            self.before.push(before);
        }
        warden.watch(tasks)?;
        self.seat.sit(&self.programs)?;
        for (slot, (program, before)) in (0u32..).zip(self.programs.iter().zip(&self.before)) {
            if let Some(before) = before {
                self.seat.keep_before(slot, before.as_fd())?;
            }
            map::set_program(self.map.as_fd(), slot, program.as_fd())?;
        }
        Ok(())
    }

    fn leave_slot(&self, slot: u32, before: Option<OwnedFd>) -> std::io::Result<()> {
        let own = program::id(&self.programs[slot as usize])?;
        if map::program_in(self.map.as_fd(), slot)? != Some(own) {
            return Ok(());
        }
        let program = self.seat.program_after(slot).or(before);
        map::put_program(self.map.as_fd(), slot, program.as_ref().map(AsFd::as_fd))
    }

    /// Checks that the slots hold this capture's programs, or another capture's that jump to them. A slot that was
    /// emptied or taken is occupied again, and the program found in it is restored in the end. A slot taken a second
    /// time is left alone.
    pub fn watch(&mut self) -> Sight {
        let mut sight = Sight::Clear;
        for slot in 0..self.programs.len() as u32 {
            // The map is open, so reading does not fail.
            let Ok(present) = map::program_in(self.map.as_fd(), slot) else {
                continue;
            };
            let cause = match present {
                Some(id) if self.is_ours(slot, id) => continue,
                Some(id) => BlindCause::SlotTaken { slot, id },
                None => BlindCause::SlotEmptied { slot },
            };
            if present.is_some() && self.retaken.contains(&slot) {
                return Sight::Lost(cause, None);
            }
            sight = match self.restore_slot(slot, present) {
                Ok(()) => Sight::Restored(cause),
                Err(error) => return Sight::Lost(cause, Some(error.to_string())),
            };
        }
        sight
    }

    /// Returns true for a program of this capture, or of one that jumps to it.
    fn is_ours(&mut self, slot: u32, id: u32) -> bool {
        let own = program::id(&self.programs[slot as usize]);
        if own.is_ok_and(|own| own == id) || self.known.contains(&id) {
            return true;
        }
        let holds = self.seat.holds(id);
        if holds {
            self.known.push(id);
        }
        holds
    }

    fn restore_slot(&mut self, slot: u32, present: Option<u32>) -> io::Result<()> {
        if let Some(id) = present {
            let program = program::open_by_id(id)?;
            self.seat.keep_before(slot, program.as_fd())?;
            self.before[slot as usize] = Some(program);
            self.retaken.push(slot);
        }
        map::set_program(self.map.as_fd(), slot, self.programs[slot as usize].as_fd())
    }

    /// Restores the previous programs, and returns an event for each failure.
    pub fn leave(&mut self) -> Vec<Event> {
        // Without the lock, at worst a capture that starts at the same moment goes unnoticed.
        let _lock = netns::lock(self.namespace.as_ref());
        self.give_up()
    }

    fn give_up(&mut self) -> Vec<Event> {
        let mut notices = Vec::new();
        for (slot, before) in (0u32..).zip(std::mem::take(&mut self.before)) {
            if let Err(error) = self.leave_slot(slot, before) {
                notices.push(Event::NotUndone { what: LeftBehind::HookSlot { slot }, why: error.to_string() });
            }
        }
        self.seat.leave();
        notices
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Restores a slot of a hook's map, if it still holds this capture's program.
#[derive(Debug)]
struct RestoreSlot {
    map: OwnedFd,
    slot: u32,
    own: u32,
    before: Option<OwnedFd>,
    successor: Successor,
}

impl RestoreSlot {
    fn restore(&self) -> io::Result<()> {
        if map::program_in(self.map.as_fd(), self.slot)? != Some(self.own) {
            return Ok(());
        }
        let next = self.successor.program();
        let program = next.as_ref().or(self.before.as_ref()).map(AsFd::as_fd);
        map::put_program(self.map.as_fd(), self.slot, program)
    }
}

impl Undo for RestoreSlot {
    fn undo(&self) -> Result<()> {
        self.restore().map_err(|e| Error::os("cannot restore a hook's slot", e))
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let held = [&self.map, &self.successor.chain].into_iter().chain(&self.before);
        held.map(AsRawFd::as_raw_fd).collect()
    }

    fn needed_capabilities(&self) -> Capabilities {
        TO_EXCHANGE_PROGRAMS
    }
}
