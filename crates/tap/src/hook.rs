//! The `hook` tap: a map of programs, indexed by action, that an XDP program jumps through when it is done. Programs
//! built for xdpcap have one; trawl fills its slots and puts back what was there. Programs that `trawl xdp load
//! --tappable` put on the interface have another one besides, which they jump through before they begin.

mod ends;
mod find;
mod stand;

pub use find::is_there;

use std::os::fd::AsFd;

use trawl_kernel::warden;
use trawl_kernel::{Error, Result};
use trawl_program::jumps;

use crate::assembly::{Assembly, PointIds};
use crate::site::{Site, TimeSource};
use crate::{Attached, Gives, Tap};
use ends::Ends;
use find::{Found, Looked};
use stand::{Occupied, Stand, occupy};

/// XDP_ABORTED, DROP, PASS, TX and REDIRECT.
pub const ACTIONS: u32 = 5;

#[derive(Debug)]
pub struct Hook;

impl Tap for Hook {
    fn name(&self) -> &'static str {
        "hook"
    }

    fn gives(&self) -> Gives {
        Gives::AT_ANOTHERS_PROGRAM
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
        let looked = find::find(site, assembly.options.hook.as_deref())?;
        let ends = Ends::choose(assembly.options, &looked, site)?;
        check_jumps(&looked, &ends, site)?;
        say_which(&looked, site, assembly);
        let rings = assembly.program_rings()?;
        let mut config = assembly.config(&rings);
        config.only_ifindex = site.interface.index;
        let blocks = match &assembly.options.filter {
            Some(filter) => Some(filter.xdp_blocks(site, config.snaplen)?),
            None => None,
        };
        let (mut exits, mut entries) = (Vec::new(), Vec::new());
        for (place, hook) in looked.hooks.iter().enumerate() {
            if let Some(map) = &hook.entry
                && ends.looks_at_entry_of(place)
            {
                let ids = match ends.entry {
                    true => Some(add_point(
                        index,
                        site,
                        assembly,
                        "xdp entry",
                        hook,
                        &looked,
                    )?),
                    false => None,
                };
                entries.push(Stand {
                    what: format!("the entry of {}", hook.describe()),
                    map: warden::hold(map.as_fd())?,
                    onward: Some(warden::hold(map.as_fd())?),
                    occupants: vec![ends.at_entry(&config, ids, place)],
                });
            }
            if ends.exit {
                let ids = add_point(index, site, assembly, "xdp exit", hook, &looked)?;
                let onward = hook.next.as_ref().map(|map| warden::hold(map.as_fd()));
                exits.push(Stand {
                    what: hook.describe(),
                    map: warden::hold(hook.map.as_fd())?,
                    onward: onward.transpose()?,
                    occupants: ends.at_exit(&config, ids, hook, assembly.options),
                });
            }
        }
        // The first entry comes last: a packet that is let in there finds everything else in place.
        let mut attached = AttachedHook { stands: Vec::new() };
        for stand in exits.into_iter().chain(entries.into_iter().rev()) {
            let occupied = occupy(stand, blocks.as_ref(), &rings, site, &mut assembly.warden)?;
            attached.stands.push(occupied);
        }
        Ok(Box::new(attached))
    }
}

fn add_point(
    index: usize,
    site: &Site,
    assembly: &mut Assembly<'_>,
    end: &str,
    hook: &Found,
    looked: &Looked,
) -> Result<PointIds> {
    let rings = assembly.program_rings()?;
    // Of several programs in a chain each point says which one it is at.
    let name = match (&hook.program, looked.hooks.len()) {
        (Some(program), 2..) => format!("{end} {program}"),
        _ => end.to_owned(),
    };
    let ids = assembly.add_point(index, site, &rings, "hook", &name)?;
    assembly.set_mode(ids.point, "hook map");
    Ok(ids)
}

fn say_which(looked: &Looked, site: &Site, assembly: &mut Assembly<'_>) {
    if assembly.options.hook.is_some() {
        return;
    }
    for hook in &looked.hooks {
        if let Some(path) = &hook.path {
            assembly.notice(format!(
                "{}: using the hook map {}",
                site.label,
                path.display()
            ));
        }
    }
}

/// A packet that has jumped too often is not let into the next program, which would change what becomes of it.
fn check_jumps(looked: &Looked, ends: &Ends, site: &Site) -> Result<()> {
    let jumps = looked.jumps(ends)?;
    if jumps <= jumps::MOST {
        return Ok(());
    }
    Err(Error::failed(
        format!("cannot capture at the hooks on {}", site.label),
        format!(
            "its chain of programs and the captures on it would take {jumps} jumps from program to program, and the kernel allows {}",
            jumps::MOST
        ),
    )
    .mend("end another capture, or record at one end only: --at exit"))
}

#[derive(Debug)]
struct AttachedHook {
    /// In the order in which they were taken.
    stands: Vec<Occupied>,
}

impl Attached for AttachedHook {
    fn detach(&mut self) -> Vec<String> {
        let leave = |mut stand: Occupied| stand.leave();
        std::mem::take(&mut self.stands)
            .into_iter()
            .rev()
            .flat_map(leave)
            .collect()
    }
}

impl Drop for AttachedHook {
    fn drop(&mut self) {
        self.detach();
    }
}
