//! A change of an interface's programs that is taken back unless it is confirmed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use trawl_kernel::bpf::{info, map, program};
use trawl_kernel::confirm::{self, About, Pending, Reverted};
use trawl_kernel::netlink::{XdpAttachment, XdpExpected};
use trawl_kernel::netns::Mark;
use trawl_kernel::warden::Undo;
use trawl_kernel::{Error, Result};

use crate::installed::{self, Installed};
use crate::keepsake::Keepsake;
use crate::unload::{Which, unload};
use trawl_attach::plan::time::{self, BackStep};
use trawl_attach::{Site, apply};

/// One change at a time waits on an interface.
fn scope(site: &Site) -> Result<String> {
    Ok(format!(
        "xdp-{}-{}",
        Mark::of(site.namespace())?,
        site.index()
    ))
}

/// Begins a change that is to be confirmed in time: what is attached now is noted, and held.
pub fn begin(site: &Site, command: &str, time: Duration) -> Result<Pending> {
    confirm::begin(&scope(site)?, command, time, &Back::note(site)?)
}

/// Keeps the change that waits.
pub fn confirm(site: &Site) -> Result<About> {
    confirm::confirm(&scope(site)?)
}

/// The last change with a time limit, if it was reverted.
pub fn reverted(site: &Site) -> Result<Option<Reverted>> {
    confirm::reverted(&scope(site)?)
}

/// Refuses another change while one waits to be confirmed.
pub fn refuse_if_pending(site: &Site) -> Result<()> {
    confirm::refuse_if_pending(&scope(site)?)
}

/// A program that was attached.
#[derive(Debug)]
struct Before {
    attachment: XdpAttachment,
    program: OwnedFd,
    /// The kernel empties an array of programs that nobody holds.
    maps: Vec<OwnedFd>,
    /// Of one that trawl put there.
    keepsake: Option<Keepsake>,
}

/// What was on an interface.
#[derive(Debug)]
pub struct Back {
    site: Site,
    before: Vec<Before>,
}

impl Back {
    /// Notes what is attached now, and holds it.
    pub fn note(site: &Site) -> Result<Self> {
        let what = || format!("cannot change the programs on {} for a time", site.label());
        let fail = |e| Error::os(what(), e);
        let all = installed::on(site)?;
        let attached = site.link()?.xdp;
        if all.len() > attached.len() {
            return Err(Error::failed(
                what(),
                "it has a chain of several programs, which cannot be restored as a whole",
            )
            .fix("leave out --confirm"));
        }
        let own = Installed::all(site)?;
        let mut before = Vec::new();
        for present in attached {
            let program = program::open_by_id(present.program_id).map_err(fail)?;
            let maps = info::program(program.as_fd()).map_err(fail)?.map_ids;
            let maps = maps.into_iter().filter_map(|id| map::open_by_id(id).ok());
            before.push(Before {
                attachment: present,
                program,
                maps: maps.collect(),
                keepsake: (own.iter().find(|one| one.id() == present.program_id)).map(Keepsake::of),
            });
        }
        Ok(Back {
            site: site.clone(),
            before,
        })
    }

    pub fn put_back(&self) -> Result<()> {
        let attachments: Vec<XdpAttachment> =
            self.before.iter().map(|old| old.attachment).collect();
        let installed = Installed::all(&self.site)?;
        let installed: Vec<u32> = installed.iter().map(Installed::id).collect();
        for step in time::take_back(&attachments, &self.site.link()?.xdp, &installed) {
            match step {
                BackStep::Unload { program_id } => {
                    unload(&self.site, Which::One(program_id))?;
                }
                BackStep::Attach { old } => {
                    let held = self.before.iter().find(|one| one.attachment == old);
                    let program = held.map(|one| one.program.as_fd());
                    apply::by_netlink(&self.site, program, old.mode, XdpExpected::Nothing)
                        .map_err(|refusal| {
                            refusal.about(format!("cannot restore the program {}", old.program_id))
                        })?;
                    if let Some((held, keepsake)) =
                        held.zip(held.and_then(|one| one.keepsake.as_ref()))
                    {
                        keepsake.restore(&self.site, old.program_id, held.program.as_fd())?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Undo for Back {
    fn undo(&self) -> Result<()> {
        self.put_back()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let namespace = self.site.namespace().map(AsFd::as_fd).into_iter();
        let programs = self.before.iter().map(|old| old.program.as_fd());
        let maps = self
            .before
            .iter()
            .flat_map(|old| &old.maps)
            .map(AsFd::as_fd);
        let keepsakes = self.before.iter().filter_map(|old| old.keepsake.as_ref());
        let all = (namespace.chain(programs).chain(maps)).chain(keepsakes.flat_map(Keepsake::maps));
        all.map(|fd| fd.as_raw_fd()).collect()
    }
}
