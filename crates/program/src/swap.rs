//! The programs of an interface swapped for a time, and how that is undone.
//!
//! A [`Loan`] is a program with hooks in the place of the one that runs, for the time of a capture: swapped in without a gap,
//! with the same maps, and swapped back at the end, by the warden if trawl is killed. A [`Back`] is what was on an interface
//! before a change that nobody has confirmed yet.

pub mod maps;

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use trawl_attach::plan::time::{self, BackStep, Facts};
use trawl_attach::site::make_directory;
use trawl_attach::{Kind, OldMaps, Request, Site, Snapshot, apply, snapshot};
use trawl_bpf::{bpffs, functions, info, map, program};
use trawl_sys::netlink::{Refusal, XdpAttachment, XdpExpected, XdpMode};
use trawl_sys::netns::Mark;
use trawl_sys::warden::{Undo, Warden, hold};
use trawl_sys::{Error, Result};

use crate::chain::dispatcher::Dispatcher;
use crate::chain::tail_call;
use crate::explain;
use crate::hooks::HOOK;
use crate::load::Source;
use crate::pins::{self, Installed, MAPS, PEER_LINK, PROGRAM, RECORD, Record, STAND_IN};
use crate::readiness::Readiness;
use crate::swap::maps::{Inherited, Succession};
use crate::unload::{Which, unload};

/// The program with hooks is on the interface until this ends.
#[derive(Debug)]
pub struct Loan {
    swap: Option<Swap>,
    inherited: Inherited,
    label: String,
    warden: Warden,
}

/// What it takes to put the old program back.
#[derive(Debug)]
struct Swap {
    site: Site,
    mode: XdpMode,
    /// What attaches it, unless that is netlink.
    link: Option<OwnedFd>,
    old: OwnedFd,
    new: OwnedFd,
    /// The kernel empties an array of programs that nobody holds: they are held until the old program is back.
    maps: Vec<OwnedFd>,
    /// Where the program is pinned that stands in for one that trawl loaded.
    pin: Option<PathBuf>,
}

impl Loan {
    /// Loads the object once more, with hooks, and puts it in the place of the program that runs. `None` where that has
    /// hooks already. Refused where the object is not that program, or where a map of it fits nothing.
    pub fn take(site: &Site, file: &Path) -> Result<Option<Self>> {
        let what = || format!("cannot put hooks into the program on {}", site.label());
        let lock = site.lock()?;
        let refused = |which: &str, refusal| explain::loan(site, which, file, refusal);
        let mut now = Snapshot::read(site)?;
        for one in &mut now.present {
            if let Some(found) = Dispatcher::read(one.program_id) {
                let programs = found.members.len();
                one.kind = Kind::Dispatcher { programs };
            }
        }
        let installed = Installed::all(site)?;
        let hooks = match now.present.as_slice() {
            [only] => has_hooks(only.program_id).map_err(|e| Error::os(what(), e))?,
            _ => false,
        };
        let facts = |of: XdpAttachment| Facts {
            hooks,
            jumps: tail_call::after(of.program_id).len(),
            links: match own_link(&installed, of) {
                Some(_) => 1,
                None => snapshot::links_of(site.index(), of).len(),
            },
        };
        let lent = time::lend(&now, facts).map_err(|refusal| refused("the program", refusal))?;
        let Some(present) = lent else {
            return Ok(None);
        };
        let id = present.program_id;
        let old = program::open_by_id(id).map_err(|e| Error::os(what(), e))?;
        let mut source = Source::read(file)?;
        let name = functions::name_of(old.as_fd()).unwrap_or_default();
        if source.programs().iter().any(|one| one.name == name) {
            source.choose(Some(&name))?;
        }
        source.make_tappable();
        let request = Request {
            mode: Some(present.mode),
            replace: true,
            maps: OldMaps::Keep,
            ..Request::default()
        };
        let succession = Succession::plan(site, &request, &mut source)?;
        let program = source.load(site)?;
        let inherited = match succession {
            Some(succession) => succession.settle(&program)?.unwrap_or_default(),
            None => Inherited::default(),
        };
        time::check_loan(inherited.same_program, &inherited.without_match).map_err(|refusal| {
            let which = format!("{} (id {})", inherited.from_name, inherited.from_id);
            refused(&which, refusal)
        })?;
        let own_maps = program.own_maps();
        let new = hold(program.as_fd())?;
        let is_own = installed.iter().any(|one| one.id() == id);
        let swap = || -> Result<Swap> {
            Ok(Swap {
                site: site.clone(),
                mode: present.mode,
                link: match own_link(&installed, present) {
                    Some(link) => Some(hold(link)?),
                    None => snapshot::link_of(site.index(), present),
                },
                old: hold(old.as_fd())?,
                new: hold(new.as_fd())?,
                maps: own_maps
                    .iter()
                    .map(|(_, fd)| hold(*fd))
                    .collect::<Result<_>>()?,
                pin: is_own.then(|| lock.path().join(id.to_string()).join(STAND_IN)),
            })
        };
        let mut warden = Warden::default();
        warden.watch([Box::new(swap()?) as Box<dyn Undo>])?;
        let swap = swap()?;
        if let Some(pin) = &swap.pin {
            let _ = std::fs::remove_file(pin);
            bpffs::pin(new.as_fd(), pin)?;
        }
        let loan = Self {
            swap: Some(swap),
            inherited,
            label: site.label().to_owned(),
            warden,
        };
        if let Some(swap) = &loan.swap {
            let exchanged = swap.exchange(&swap.old, &swap.new);
            exchanged.map_err(|refusal| refusal.about(what()))?;
        }
        Ok(Some(loan))
    }

    pub fn inherited(&self) -> &Inherited {
        &self.inherited
    }

    /// As `-i` takes it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Puts the old program back. False where another command has taken the program with hooks off, or replaced it.
    pub fn give_back(mut self) -> bool {
        self.end()
    }

    /// Left to the warden, which keeps rights that a capture gives up.
    fn end(&mut self) -> bool {
        let Some(swap) = self.swap.take() else {
            return true;
        };
        self.warden.carry_out();
        // Somebody may have killed the warden.
        swap.is_back() || swap.put_back()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.end();
    }
}

impl Swap {
    fn exchange(&self, from: &OwnedFd, to: &OwnedFd) -> Result<(), Refusal> {
        let link = self.link.as_ref().map(AsFd::as_fd);
        apply::exchange(&self.site, self.mode, link, from.as_fd(), to.as_fd())
    }

    fn is_back(&self) -> bool {
        let Ok(old) = info::program(self.old.as_fd()) else {
            return false;
        };
        let link = self.site.link();
        link.is_ok_and(|link| link.xdp.iter().any(|one| one.program_id == old.id))
    }

    /// The kernel exchanges it only for the program with hooks.
    fn put_back(&self) -> bool {
        let is_back = self.exchange(&self.new, &self.old).is_ok();
        if let Some(pin) = &self.pin {
            let _ = std::fs::remove_file(pin);
        }
        is_back
    }
}

impl Undo for Swap {
    fn undo(&self) -> Result<()> {
        self.put_back();
        Ok(())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let namespace = self.site.namespace().map(AsFd::as_fd);
        let link = self.link.as_ref().map(AsFd::as_fd);
        let maps = self.maps.iter().map(AsFd::as_fd);
        let all = [self.old.as_fd(), self.new.as_fd()].into_iter();
        let all = all.chain(namespace).chain(link).chain(maps);
        all.map(|fd| fd.as_raw_fd()).chain(bpffs::hold()).collect()
    }
}

fn has_hooks(program_id: u32) -> std::io::Result<bool> {
    let program = program::open_by_id(program_id)?;
    for id in info::program(program.as_fd())?.map_ids {
        if map::info(map::open_by_id(id)?)?.name == HOOK {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The link by which trawl keeps the program attached.
fn own_link(installed: &[Installed], of: XdpAttachment) -> Option<BorrowedFd<'_>> {
    let own = installed.iter().find(|one| one.id() == of.program_id)?;
    own.link()
}

/// Names the changes of which one at a time waits to be confirmed: those of an interface.
pub fn scope(site: &Site) -> Result<String> {
    Ok(format!(
        "xdp-{}-{}",
        Mark::of(site.namespace())?,
        site.index()
    ))
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
        let all = pins::programs_on(site)?;
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
        all.map(|fd| fd.as_raw_fd()).chain(bpffs::hold()).collect()
    }
}

#[derive(Debug)]
pub(crate) struct Keepsake {
    record: Record,
    /// By the names of their pins.
    maps: Vec<(PathBuf, OwnedFd)>,
    needs_peer: bool,
}

impl Keepsake {
    pub fn of(installed: &Installed) -> Self {
        let pins = fs::read_dir(installed.maps_directory());
        let names = pins.into_iter().flatten().flatten();
        let maps = names.filter_map(|pin| {
            let map = bpffs::open_map(&pin.path()).ok()?;
            Some((PathBuf::from(pin.file_name()), map))
        });
        // Pins that were made elsewhere go with the program, and are the file's own to make.
        let record = Record {
            pins: Vec::new(),
            ..installed.record().clone()
        };
        Self {
            record,
            maps: maps.collect(),
            needs_peer: installed.peer_link().is_some(),
        }
    }

    /// The program is attached again: pins it with its record and maps, and makes ready what it needs.
    pub fn restore(&self, site: &Site, id: u32, program: BorrowedFd<'_>) -> Result<()> {
        let mut ready = Readiness::again(&self.record.changes);
        if self.needs_peer {
            ready.for_sending_back(site)?;
        }
        let lock = site.lock()?;
        let directory = lock.make_inside(&id.to_string())?;
        bpffs::pin(program, &directory.join(PROGRAM))?;
        self.record.pin(&directory.join(RECORD))?;
        if let Some(link) = ready.link() {
            bpffs::pin(link, &directory.join(PEER_LINK))?;
        }
        let maps = directory.join(MAPS);
        make_directory(&maps)?;
        for (name, map) in &self.maps {
            bpffs::pin(map.as_fd(), &maps.join(name))?;
        }
        ready.keep();
        Ok(())
    }

    pub fn maps(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.maps.iter().map(|(_, map)| map.as_fd())
    }
}
