//! The `hook` tap: a map of programs, indexed by action, that an XDP program jumps through when it is done. Programs
//! built for xdpcap have one; trawl fills its slots and puts back what was there. Programs that `trawl xdp load
//! --tappable` put on the interface have another one besides, which they jump through before they begin.

mod ends;
mod find;
mod stand;

pub use find::is_there;

use std::os::fd::AsFd;
use std::sync::Arc;

use trawl_bpf::layout::TapConfig;
use trawl_program::chain;
use trawl_ring::Rings;
use trawl_sys::privilege::Capabilities;
use trawl_sys::warden::{self, Warden};
use trawl_sys::{Error, Result};

use crate::assembly::{Assembly, PointIds};
use crate::capture_site::CaptureSite;
use crate::event::Event;
use crate::filter::XdpBlocks;
use crate::options::Options;
use crate::table::{self, Facts};
use crate::watch::{Cause, Sight, attached_now};
use crate::{AttachedTap, Tap};
use ends::Ends;
use find::{Found, Looked};
use stand::{Occupied, Stand, occupy};

/// XDP_ABORTED, DROP, PASS, TX and REDIRECT.
pub const ACTIONS: u32 = 5;

#[derive(Debug)]
pub struct Hook;

impl Tap for Hook {
    fn facts(&self) -> &'static Facts {
        &table::HOOK
    }

    fn attach(
        &self,
        index: usize,
        site: &CaptureSite,
        assembly: &mut Assembly,
    ) -> Result<Box<dyn AttachedTap>> {
        let looked = find::find(site, assembly.options.hook.as_deref())?;
        let ends = Ends::choose(&assembly.options, &looked, site)?;
        check_jumps(&looked, &ends, site)?;
        say_which(&looked, site, assembly);
        let rings = assembly.program_rings()?;
        let mut config = assembly.config(&rings);
        config.only_ifindex = site.interface.index;
        assembly.stamp_by_polls(&mut config, site, &[])?;
        let blocks = match &assembly.options.filter {
            Some(filter) => Some(filter.xdp_blocks(site, config.snaplen)?),
            None => None,
        };
        let mut points = Vec::new();
        for (place, hook) in looked.hooks.iter().enumerate() {
            let clock = config.clock_first;
            let mut add = |end| add_point(index, site, assembly, end, hook, &looked, clock);
            let has_entry = hook.entry.is_some() && ends.looks_at_entry_of(place);
            let entry = (has_entry && ends.entry).then(|| add("xdp entry"));
            let entry = entry.transpose()?;
            let exit = ends.exit.then(|| add("xdp exit")).transpose()?;
            points.push(Points { entry, exit });
        }
        let maps = looked.map_ids();
        let plan = HookPlan {
            site: site.clone(),
            options: (*assembly.options).clone(),
            ends,
            config,
            blocks,
            rings,
            points,
        };
        let stands = plan.occupy(&looked, &mut assembly.warden)?;
        let now = find::maps_now(site);
        Ok(Box::new(AttachedHook {
            // Where nobody knows which program jumps through the map, the slots alone are watched.
            watches_program: maps.iter().all(|id| now.contains(id)),
            program: site
                .interface
                .xdp_attached(site.namespace.as_ref())?
                .map(|present| present.program_id),
            maps,
            plan,
            stands,
        }))
    }
}

/// The points of one program's ends.
#[derive(Debug)]
struct Points {
    entry: Option<PointIds>,
    exit: Option<PointIds>,
}

/// What is put into hooks, now and when the program is another one.
#[derive(Debug)]
struct HookPlan {
    site: CaptureSite,
    options: Options,
    ends: Ends,
    config: TapConfig,
    blocks: Option<XdpBlocks>,
    rings: Arc<Rings>,
    points: Vec<Points>,
}

impl HookPlan {
    fn occupy(&self, looked: &Looked, warden: &mut Warden) -> Result<Vec<Occupied>> {
        let (mut exits, mut entries) = (Vec::new(), Vec::new());
        for (place, (hook, points)) in looked.hooks.iter().zip(&self.points).enumerate() {
            if let Some(map) = &hook.entry
                && self.ends.looks_at_entry_of(place)
            {
                entries.push(Stand {
                    what: format!("the entry of {}", hook.describe()),
                    map: warden::hold(map.as_fd())?,
                    onward: Some(warden::hold(map.as_fd())?),
                    occupants: vec![self.ends.at_entry(&self.config, points.entry, place)],
                });
            }
            if let Some(ids) = points.exit {
                let onward = hook.next.as_ref().map(|map| warden::hold(map.as_fd()));
                exits.push(Stand {
                    what: hook.describe(),
                    map: warden::hold(hook.map.as_fd())?,
                    onward: onward.transpose()?,
                    occupants: self.ends.at_exit(
                        &self.config,
                        ids,
                        points.entry,
                        hook,
                        &self.options,
                    ),
                });
            }
        }
        // The first entry comes last: a packet that is let in there finds everything else in place.
        let mut stands = Vec::new();
        for stand in exits.into_iter().chain(entries.into_iter().rev()) {
            stands.push(occupy(
                stand,
                self.blocks.as_ref(),
                &self.rings,
                &self.site,
                warden,
            )?);
        }
        Ok(stands)
    }
}

fn add_point(
    index: usize,
    site: &CaptureSite,
    assembly: &mut Assembly,
    end: &str,
    hook: &Found,
    looked: &Looked,
    clock_first: u32,
) -> Result<PointIds> {
    let rings = assembly.program_rings()?;
    // Of several programs in a chain each point says which one it is at.
    let name = match (&hook.program, looked.hooks.len()) {
        (Some(program), 2..) => format!("{end} {program}"),
        _ => end.to_owned(),
    };
    let ids = assembly.add_point(index, site, &rings, "hook", &name)?;
    assembly.set_mode(ids.point, "hook map");
    let attached = site.interface.xdp_attached(site.namespace.as_ref());
    if let Ok(Some(attached)) = attached {
        assembly.set_program(ids.point, attached.program_id);
    }
    if clock_first > 0 {
        assembly.set_stamped_by_polls(ids.point);
    }
    Ok(ids)
}

fn say_which(looked: &Looked, site: &CaptureSite, assembly: &mut Assembly) {
    if assembly.options.hook.is_some() {
        return;
    }
    for hook in &looked.hooks {
        if let Some(path) = &hook.path {
            assembly.event(Event::UsingHookMap {
                interface: site.label.clone(),
                path: path.clone(),
            });
        }
    }
}

/// A packet that has jumped too often is not let into the next program, which would change what becomes of it.
fn check_jumps(looked: &Looked, ends: &Ends, site: &CaptureSite) -> Result<()> {
    let jumps = looked.jumps(ends)?;
    if jumps <= chain::MOST_JUMPS {
        return Ok(());
    }
    Err(Error::failed(
        format!("cannot capture at the hooks on {}", site.label),
        format!(
            "its chain of programs and the captures on it would take {jumps} jumps from program to program, and the kernel allows {}",
            chain::MOST_JUMPS
        ),
    )
    .fix("end another capture, or record at one end only: --at exit"))
}

#[derive(Debug)]
struct AttachedHook {
    plan: HookPlan,
    /// In the order in which they were taken.
    stands: Vec<Occupied>,
    /// The hook maps, by their ids.
    maps: Vec<u32>,
    /// The attached program when it was last looked at.
    program: Option<u32>,
    /// Whether that is known to jump through the maps.
    watches_program: bool,
}

impl AttachedHook {
    fn give_up(&mut self) -> Vec<Event> {
        let leave = |mut stand: Occupied| stand.leave();
        std::mem::take(&mut self.stands)
            .into_iter()
            .rev()
            .flat_map(leave)
            .collect()
    }

    /// Whether the attached program still jumps through the maps; if another one does through others, goes there.
    fn follow(&mut self, warden: &mut Warden) -> Sight {
        let Some(present) = attached_now(&self.plan.site) else {
            return Sight::Clear;
        };
        let id = present.as_ref().map(|present| present.program_id);
        if id == self.program {
            return Sight::Clear;
        }
        let cause = present
            .as_ref()
            .map_or(Cause::ProgramRemoved, Cause::replaced_by);
        let now = find::maps_now(&self.plan.site);
        if self.maps.iter().all(|id| now.contains(id)) {
            self.program = id;
            return Sight::Clear;
        }
        if present.is_none() {
            return Sight::Lost(cause, None);
        }
        let again = find::find(&self.plan.site, None).and_then(|looked| {
            let (has, had) = (looked.hooks.len(), self.plan.points.len());
            if has != had {
                let why = format!("{has} programs with hooks are on it, and {had} were before");
                return Err(Error::failed("cannot capture at the hooks", why));
            }
            // What was in the old ones is put back as far as they are still there.
            self.give_up();
            self.stands = self.plan.occupy(&looked, warden)?;
            Ok(looked.map_ids())
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

    fn keeps(&self) -> Capabilities {
        crate::TO_FOLLOW_PROGRAMS
    }

    fn watch(&mut self, warden: &mut Warden) -> Sight {
        if self.watches_program {
            let sight = self.follow(warden);
            if sight != Sight::Clear {
                return sight;
            }
        }
        let sights = self.stands.iter_mut().map(Occupied::watch);
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
