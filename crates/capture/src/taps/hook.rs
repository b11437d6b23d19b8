//! The `tailcall` tap: a map of programs, indexed by action, through which an XDP program jumps when it is done.
//! Programs built for xdpcap have one; trawl fills its slots and restores them afterwards. Programs loaded by `trawl
//! xdp load --tappable` have a second map, through which they jump before they begin.

mod find;
mod slots;

use std::os::fd::AsFd;
use std::sync::Arc;

use trawl_bpf::layout::{ALL, HOLD_AT_ENTRY, HOLD_UNTIL_EXIT, TapConfig};
use trawl_program::captures;
use trawl_program::chain::{self, CaptureCounts};
use trawl_ring::Rings;
use trawl_sys::process::warden::{self, Warden};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::Event;
use crate::filter::Compile;
use crate::filter::XdpBlocks;
use crate::point::{Carries, PointIds};
use crate::taps::facts::{Facts, Gives, MOST};
use crate::taps::watch::{BlindCause, Sight, attached_now};
use crate::{AttachedTap, Tap};
pub use find::{ACTIONS, is_there};
use find::{BODY_SLOT, FoundHook, FoundHooks};
use slots::{Filters, Occupant, Occupied, SlotPlan, occupy};
use trawl_bpf::probe::KernelFeature;
use trawl_plan::TapChoice;
use trawl_plan::options::{At, CaptureOptions};

pub const FACTS: Facts = Facts {
    choice: TapChoice::Tailcall,
    sees: "received packets, and the verdict of an attached XDP program",
    gives: Gives { received: true, entry: true, verdict: true, queue: true, process: true, ..Gives::NOTHING },
    needs: "a program that ends by a tail call through a map, as programs built for xdpcap do, or that `trawl xdp load --tappable` loaded (the latter for --at entry and both)",
    features: &[KernelFeature::Xdp, KernelFeature::MmapableArray],
    stamps_by_polls: true,
    ..MOST
};

#[derive(Debug)]
pub struct Hook;

impl Tap for Hook {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let site = &sites[index];
        let found_hooks = find::find(site, assembly.options.hook.as_deref())?;
        let ends = Ends::choose(&assembly.options, &found_hooks, site)?;
        check_jumps(&found_hooks, &ends, site)?;
        report_maps(&found_hooks, site, assembly);
        let rings = assembly.program_rings()?;
        let mut config = assembly.config(&rings);
        config.only_ifindex = site.interface.index;
        assembly.stamp_by_polls(&mut config, site, &[])?;
        let blocks = match &assembly.options.filter {
            Some(filter) => {
                let compiler = site.compiler_options(config.snaplen)?;
                Some(filter.xdp_blocks(&compiler, assembly.options.follows())?)
            }
            None => None,
        };
        let mut points = Vec::new();
        for (position, hook) in found_hooks.hooks.iter().enumerate() {
            let clock = config.clock_first;
            let mut add = |end| add_point(index, site, assembly, end, hook, &found_hooks, clock);
            let has_entry = hook.entry.is_some() && ends.needs_entry_of(position);
            let entry = (has_entry && ends.entry).then(|| add("xdp entry")).transpose()?;
            let exit = ends.exit.then(|| add("xdp exit")).transpose()?;
            points.push(Points { entry, exit });
        }
        let maps = found_hooks.map_ids();
        let plan =
            HookPlan { site: site.clone(), options: (*assembly.options).clone(), ends, config, blocks, rings, points };
        let occupied = plan.occupy(&found_hooks, &mut assembly.undo.warden)?;
        let now = find::maps_now(site);
        Ok(Box::new(AttachedHook {
            // If the program that jumps through the map is unknown, only the slots are watched.
            watches_program: maps.iter().all(|id| now.contains(id)),
            program: site.interface.xdp_attached(site.namespace.as_ref())?.map(|present| present.program_id),
            maps,
            plan,
            occupied,
        }))
    }
}

/// Points of one program's ends.
#[derive(Debug)]
struct Points {
    entry: Option<PointIds>,
    exit: Option<PointIds>,
}

/// Recipe for the programs in the hooks, which serves again after a replacement of the XDP program.
#[derive(Debug)]
struct HookPlan {
    site: CaptureSite,
    options: CaptureOptions,
    ends: Ends,
    config: TapConfig,
    blocks: Option<XdpBlocks>,
    rings: Arc<Rings>,
    points: Vec<Points>,
}

impl HookPlan {
    fn occupy(&self, found_hooks: &FoundHooks, warden: &mut Warden) -> Result<Vec<Occupied>> {
        let (mut exits, mut entries) = (Vec::new(), Vec::new());
        for (position, (hook, points)) in found_hooks.hooks.iter().zip(&self.points).enumerate() {
            if let Some(map) = &hook.entry
                && self.ends.needs_entry_of(position)
            {
                entries.push(SlotPlan {
                    what: format!("the entry of {}", hook.describe()),
                    map: warden::hold(map.as_fd())?,
                    onward: Some(warden::hold(map.as_fd())?),
                    occupants: vec![self.ends.at_entry(&self.config, points.entry, position)],
                });
            }
            if let Some(ids) = points.exit {
                let onward = hook.next.as_ref().map(|map| warden::hold(map.as_fd()));
                exits.push(SlotPlan {
                    what: hook.describe(),
                    map: warden::hold(hook.map.as_fd())?,
                    onward: onward.transpose()?,
                    occupants: self.ends.at_exit(&self.config, ids, points.entry, hook, &self.options),
                });
            }
        }
        // The first entry comes last: once packets enter there, everything else is attached.
        let mut occupied = Vec::new();
        for slot_plan in exits.into_iter().chain(entries.into_iter().rev()) {
            occupied.push(occupy(slot_plan, self.blocks.as_ref(), &self.rings, &self.site, warden)?);
        }
        Ok(occupied)
    }
}

fn add_point(
    index: usize,
    site: &CaptureSite,
    assembly: &mut Assembly,
    end: &str,
    hook: &FoundHook,
    found_hooks: &FoundHooks,
    clock_first: u32,
) -> Result<PointIds> {
    let rings = assembly.program_rings()?;
    // With several programs in a chain, the hook's name includes the program.
    let name = match (&hook.program, found_hooks.hooks.len()) {
        (Some(program), 2..) => format!("{end} {program}"),
        _ => end.to_owned(),
    };
    let ids = assembly.add_point(index, site, &rings, &FACTS, &name)?;
    assembly.points.set_mode(ids.point, "hook map");
    let attached = || Some(site.interface.xdp_attached(site.namespace.as_ref()).ok()??.program_id);
    if let Some(program) = hook.program_id.or_else(attached) {
        assembly.points.set_program(ids.point, site, program);
    }
    if clock_first > 0 {
        assembly.set_stamped_by_polls(ids.point);
    }
    Ok(ids)
}

fn report_maps(found_hooks: &FoundHooks, site: &CaptureSite, assembly: &mut Assembly) {
    if assembly.options.hook.is_some() {
        return;
    }
    for hook in &found_hooks.hooks {
        if let Some(path) = &hook.path {
            assembly.event(Event::UsingHookMap { interface: site.label.clone(), path: path.clone() });
        }
    }
}

/// Refuses a chain with too many jumps: a packet beyond the kernel's limit would skip the next program, which changes
/// its verdict.
fn check_jumps(found_hooks: &FoundHooks, ends: &Ends, site: &CaptureSite) -> Result<()> {
    let jumps = most_jumps(found_hooks, ends)?;
    if jumps <= chain::MOST_JUMPS {
        return Ok(());
    }
    Err(Error::failed(
        format!("cannot capture at the hooks on {}", site.label),
        format!(
            "its chain of programs and the captures on it would need {jumps} jumps from program to program, and the kernel allows {}",
            chain::MOST_JUMPS
        ),
    )
    .fix("end another capture, or record at one end only: --at exit"))
}

/// Returns the maximum number of jumps of a packet, with one more capture at these ends.
fn most_jumps(found_hooks: &FoundHooks, ends: &Ends) -> Result<u32> {
    // Programs without a hook first: their order does not matter.
    let without = (found_hooks.programs as usize).saturating_sub(found_hooks.hooks.len());
    let mut counts = vec![CaptureCounts::default(); without];
    for (position, hook) in found_hooks.hooks.iter().enumerate() {
        let mut one = CaptureCounts {
            tappable: hook.entry.is_some() || hook.next.is_some(),
            at_entry: 0,
            at_exit: captures::count_captures(hook.map.as_fd(), ACTIONS)? + u32::from(ends.exit),
        };
        if let Some(entry) = &hook.entry {
            let more = u32::from(ends.needs_entry_of(position));
            one.at_entry = captures::count_captures(entry.as_fd(), 1)? + more;
        }
        counts.push(one);
    }
    Ok(chain::most_jumps(&counts))
}

#[derive(Debug)]
struct AttachedHook {
    plan: HookPlan,
    /// Slots in the order in which they were occupied.
    occupied: Vec<Occupied>,
    /// Ids of the hook maps.
    maps: Vec<u32>,
    /// The attached program at the last check.
    program: Option<u32>,
    /// True if the attached program is known to jump through the maps.
    watches_program: bool,
}

impl AttachedHook {
    fn give_up(&mut self) -> Vec<Event> {
        let leave = |mut one: Occupied| one.leave();
        std::mem::take(&mut self.occupied).into_iter().rev().flat_map(leave).collect()
    }

    /// Checks that the attached program still jumps through the maps. If another program has hooks, moves there.
    fn follow(&mut self, warden: &mut Warden) -> Sight {
        let Some(present) = attached_now(&self.plan.site) else {
            return Sight::Clear;
        };
        let id = present.as_ref().map(|present| present.program_id);
        if id == self.program {
            return Sight::Clear;
        }
        let cause = present.as_ref().map_or(BlindCause::ProgramRemoved, BlindCause::replaced_by);
        let now = find::maps_now(&self.plan.site);
        if self.maps.iter().all(|id| now.contains(id)) {
            self.program = id;
            return Sight::Clear;
        }
        if present.is_none() {
            return Sight::Lost(cause, None);
        }
        let again = find::find(&self.plan.site, None).and_then(|found_hooks| {
            let (has, had) = (found_hooks.hooks.len(), self.plan.points.len());
            if has != had {
                let why = format!("the number of programs with hooks changed from {had} to {has}");
                return Err(Error::failed("cannot capture at the hooks", why));
            }
            // The old slots are restored as far as they still exist.
            self.give_up();
            self.occupied = self.plan.occupy(&found_hooks, warden)?;
            Ok(found_hooks.map_ids())
        });
        match again {
            Ok(maps) => {
                self.maps = maps;
                self.program = id;
                Sight::Restored(cause)
            }
            Err(error) => Sight::Lost(cause, Some(error.to_string())),
        }
    }
}

impl AttachedTap for AttachedHook {
    fn detach(&mut self) -> Vec<Event> {
        self.give_up()
    }

    fn needed_capabilities(&self) -> Capabilities {
        crate::TO_FOLLOW_PROGRAMS
    }

    fn watch(&mut self, warden: &mut Warden) -> Sight {
        if self.watches_program {
            let sight = self.follow(warden);
            if sight != Sight::Clear {
                return sight;
            }
        }
        let sights = self.occupied.iter_mut().map(Occupied::watch);
        sights.fold(Sight::Clear, |worst, sight| match (&worst, &sight) {
            (Sight::Lost(..), _) | (_, Sight::Clear) => worst,
            _ => sight,
        })
    }
}

impl Drop for AttachedHook {
    fn drop(&mut self) {
        self.give_up();
    }
}

const DIRECTION_INBOUND: u32 = 1;
const XDP_ABORTED: u32 = 0;
const XDP_REDIRECT: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub entry: bool,
    pub exit: bool,
    /// True if the first entry decides for later programs, which record the packet under the same identifier.
    pub linked: bool,
    /// True if records at the entry wait for the verdict.
    holds: bool,
}

impl Ends {
    pub fn choose(options: &CaptureOptions, found_hooks: &FoundHooks, site: &CaptureSite) -> Result<Self> {
        let tappable = found_hooks.hooks.iter().all(|hook| hook.entry.is_some());
        let at = match options.at {
            // Without hooks at the entry, the packet's path has the step at the exit alone.
            Some(_) if options.follows() && !tappable => At::Exit,
            at => at.unwrap_or(At::Exit),
        };
        let filter_at_entry = options.filter_at == Some(At::Entry);
        let ends = Self {
            entry: at.entry(),
            exit: at.exit(),
            linked: at.exit() && (at.entry() || filter_at_entry),
            holds: at == At::Both && options.verdicts.is_some(),
        };
        let load = || {
            let attached = site.interface.xdp_attached(site.namespace.as_ref());
            let program = attached.ok().flatten().map(|one| one.program_id);
            site.with_hooks(program.unwrap_or_default())
        };
        if at.entry() && !tappable {
            return Err(Error::usage(
                "cannot record at entry through this hook",
                "its slots run after the XDP program has decided",
            )
            .fix(format!("leave out --at, or load the program with hooks: {}", load())));
        }
        if filter_at_entry && !tappable {
            return Err(Error::usage(
                "cannot filter packets as they arrived through this hook",
                "its slots see packets as the XDP program left them",
            )
            .fix(format!("leave out --filter-at, or load the program with hooks: {}", load())));
        }
        options.check_ends()?;
        Ok(ends)
    }

    /// Returns true if a program is needed at the entry of the program at this index of the chain.
    pub fn needs_entry_of(&self, position: usize) -> bool {
        self.entry || (self.linked && position == 0)
    }

    /// Returns the program for an entry; without a point it only decides.
    pub fn at_entry(&self, config: &TapConfig, ids: Option<PointIds>, position: usize) -> Occupant {
        let mut config = *config;
        // Verdict if the XDP program itself is gone.
        config.verdict = XDP_ABORTED;
        config.onward = BODY_SLOT;
        config.silent = u32::from(ids.is_none());
        if let Some(ids) = ids {
            config.first = ids.record(DIRECTION_INBOUND, Carries::Nothing);
            if self.holds {
                config.hold = HOLD_AT_ENTRY as u32;
            }
        }
        let first = position == 0;
        Occupant {
            program: if first { "trawl_xdp_first" } else { "trawl_xdp_again" },
            filters: if first { Filters::Whole } else { Filters::Never },
            redirected: false,
            config,
        }
    }

    /// Returns the programs for an exit, by action.
    pub fn at_exit(
        &self,
        config: &TapConfig,
        ids: PointIds,
        entry: Option<PointIds>,
        hook: &FoundHook,
        options: &CaptureOptions,
    ) -> Vec<Occupant> {
        let wanted = |action: u32| {
            let verdicts = options.verdicts.as_ref();
            verdicts.is_none_or(|set| set.contains(u64::from(action)))
        };
        let one = |action: u32| {
            let mut config = *config;
            config.verdict = action;
            config.first = ids.record(DIRECTION_INBOUND, Carries::Xdp(action));
            config.unwanted = u32::from(!wanted(action));
            if let Some(entry) = entry.filter(|_| self.holds) {
                config.second = entry.record(DIRECTION_INBOUND, Carries::Nothing);
                config.hold = HOLD_UNTIL_EXIT as u32;
            }
            config.onward = match &hook.next {
                Some(_) => action,
                None => ALL as u32,
            };
            Occupant {
                program: if self.linked { "trawl_xdp_again" } else { "trawl_xdp" },
                filters: if self.linked { Filters::Never } else { Filters::Quick },
                redirected: action == XDP_REDIRECT && config.write_comment != 0 && config.unwanted == 0,
                config,
            }
        };
        (0..ACTIONS).map(one).collect()
    }
}
