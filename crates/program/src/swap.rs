//! Temporary exchanges of an interface's programs, and their reversal.
//!
//! A [`Loan`] is a program with hooks that replaces the running one for the duration of a capture: swapped in without a
//! gap, with the same maps, and swapped back at the end, by the warden if trawl is killed. A [`ProgramBackup`] holds
//! the programs of an interface before a change that is not confirmed yet.

pub mod maps;

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use trawl_attach::site::make_directory;
use trawl_attach::{AttachRequest, OldMaps, ProgramOwner, Site, Snapshot, apply, snapshot};
use trawl_bpf::{bpffs, functions, info, map, program};
use trawl_sys::netlink::{Refusal, XdpAttachment, XdpExpected, XdpMode};
use trawl_sys::netns::Mark;
use trawl_sys::process::warden::{Undo, Warden, hold};
use trawl_sys::{Error, Result};

use crate::chain;
use crate::chain::dispatcher::Dispatcher;
use crate::hooks::HOOK;
use crate::load::Source;
use crate::pins::{self, Installed, MAPS, PROGRAM, PinRecord, RECORD, STAND_IN};
use crate::readiness::Readiness;
use crate::swap::maps::{Inherited, Succession};
use crate::unload::{UnloadChoice, unload};
use trawl_sys::words::{path_word, word};

/// Exchange that keeps the program with hooks on the interface until it is dropped.
#[derive(Debug)]
pub struct Loan {
    swap: Option<Swap>,
    inherited: Inherited,
    label: String,
    /// The program with hooks, and its tag without them.
    lent: Option<(u32, String)>,
    warden: Warden,
}

/// State needed to restore the old program.
#[derive(Debug)]
struct Swap {
    site: Site,
    mode: XdpMode,
    /// The link that attaches it; `None` for netlink.
    link: Option<OwnedFd>,
    old: OwnedFd,
    new: OwnedFd,
    /// Held until the old program is restored, since the kernel empties an array of programs that nobody holds.
    maps: Vec<OwnedFd>,
    /// Pin of the program that replaces one of trawl's.
    pin: Option<PathBuf>,
}

impl Loan {
    /// Loads the object again, with hooks, and exchanges it for the running program. Returns `None` if that has hooks
    /// already. Refused if the object is another program, or if one of its maps fits none of the running program's.
    pub fn insert_hooks(site: &Site, file: &Path) -> Result<Option<Self>> {
        let what = || format!("cannot insert hooks into the program on {}", site.label());
        let lock = site.lock()?;
        let refused = |which: &str, refusal| explain_refusal(site, which, file, refusal);
        let mut now = Snapshot::read(site)?;
        for one in &mut now.present {
            if let Some(found) = Dispatcher::read(one.program_id) {
                let programs = found.members.len();
                one.kind = ProgramOwner::Dispatcher { programs };
            }
        }
        let installed = Installed::all(site)?;
        let hooks = match now.present.as_slice() {
            [only] => has_hooks(only.program_id).map_err(|e| Error::os(what(), e))?,
            _ => false,
        };
        let facts = |of: XdpAttachment| Facts {
            hooks,
            jumps: chain::after(of.program_id).len(),
            links: match own_link(&installed, of) {
                Some(_) => 1,
                None => snapshot::links_of(site.index(), of).len(),
            },
        };
        let replaceable = program_to_replace(&now, facts).map_err(|refusal| refused("the program", refusal))?;
        let Some(present) = replaceable else {
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
        let request =
            AttachRequest { mode: Some(present.mode), replace: true, maps: OldMaps::Keep, ..AttachRequest::default() };
        let succession = Succession::plan(site, &request, &mut source)?;
        let program = source.load(site)?;
        let inherited = match succession {
            Some(succession) => succession.settle(&program)?.unwrap_or_default(),
            None => Inherited::default(),
        };
        check_loan(inherited.same_program, &inherited.without_match).map_err(|refusal| {
            let which = format!("{} (id {})", inherited.from_name, inherited.from_id);
            refused(&which, refusal)
        })?;
        let own_maps = program.own_maps();
        let lent = program.plain_tag().map(|tag| (program.id(), tag.to_owned()));
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
                maps: own_maps.iter().map(|(_, fd)| hold(*fd)).collect::<Result<_>>()?,
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
        let loan = Self { swap: Some(swap), inherited, label: site.label().to_owned(), lent, warden };
        if let Some(swap) = &loan.swap {
            let exchanged = swap.exchange(&swap.old, &swap.new);
            exchanged.map_err(|refusal| refusal.about(what()))?;
        }
        Ok(Some(loan))
    }

    pub fn inherited(&self) -> &Inherited {
        &self.inherited
    }

    /// Returns the id of the program with hooks, and its tag without them.
    pub fn lent(&self) -> Option<(u32, &str)> {
        self.lent.as_ref().map(|(id, tag)| (*id, tag.as_str()))
    }

    /// Returns the interface in the syntax of `-i`.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Restores the old program. Returns false if another command has removed or replaced the program with hooks.
    pub fn give_back(mut self) -> bool {
        self.end()
    }

    /// Ends the loan by the warden, which keeps rights that a capture gives up.
    fn end(&mut self) -> bool {
        let Some(swap) = self.swap.take() else {
            return true;
        };
        self.warden.carry_out();
        // The warden may have been killed.
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

    /// Restores the old program; the kernel exchanges it only for the program with hooks.
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
        let all = [self.old.as_fd(), self.new.as_fd()].into_iter().chain(namespace).chain(link).chain(maps);
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

/// Returns the link by which trawl keeps the program attached.
fn own_link(installed: &[Installed], of: XdpAttachment) -> Option<BorrowedFd<'_>> {
    let own = installed.iter().find(|one| one.id() == of.program_id)?;
    own.link()
}

/// Returns the scope of changes to an interface, of which only one at a time can await confirmation.
pub fn scope(site: &Site) -> Result<String> {
    Ok(format!("xdp-{}-{}", Mark::of(site.namespace())?, site.index()))
}

/// A program that was attached.
#[derive(Debug)]
struct Before {
    attachment: XdpAttachment,
    program: OwnedFd,
    /// Held because the kernel empties an array of programs that nobody holds.
    maps: Vec<OwnedFd>,
    /// Set for a program that trawl installed.
    saved_pins: Option<SavedPins>,
}

/// The programs that were on an interface.
#[derive(Debug)]
pub struct ProgramBackup {
    site: Site,
    before: Vec<Before>,
}

impl ProgramBackup {
    /// Records the attached programs, and holds them.
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
                saved_pins: (own.iter().find(|one| one.id() == present.program_id)).map(SavedPins::of),
            });
        }
        Ok(ProgramBackup { site: site.clone(), before })
    }

    pub fn put_back(&self) -> Result<()> {
        let attachments: Vec<XdpAttachment> = self.before.iter().map(|old| old.attachment).collect();
        let installed: Vec<u32> = Installed::all(&self.site)?.iter().map(Installed::id).collect();
        for step in steps_to_revert(&attachments, &self.site.link()?.xdp, &installed) {
            match step {
                RevertStep::Unload { program_id } => {
                    unload(&self.site, UnloadChoice::One(program_id))?;
                }
                RevertStep::Attach { old } => {
                    let held = self.before.iter().find(|one| one.attachment == old);
                    let program = held.map(|one| one.program.as_fd());
                    apply::by_netlink(&self.site, program, old.mode, XdpExpected::Nothing)
                        .map_err(|refusal| refusal.about(format!("cannot restore the program {}", old.program_id)))?;
                    if let Some((held, saved_pins)) = held.zip(held.and_then(|one| one.saved_pins.as_ref())) {
                        saved_pins.restore(&self.site, old.program_id, held.program.as_fd())?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Undo for ProgramBackup {
    fn undo(&self) -> Result<()> {
        self.put_back()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let namespace = self.site.namespace().map(AsFd::as_fd).into_iter();
        let programs = self.before.iter().map(|old| old.program.as_fd());
        let maps = self.before.iter().flat_map(|old| &old.maps).map(AsFd::as_fd);
        let saved_pins = self.before.iter().filter_map(|old| old.saved_pins.as_ref());
        let all = (namespace.chain(programs).chain(maps)).chain(saved_pins.flat_map(SavedPins::maps));
        all.map(|fd| fd.as_raw_fd()).chain(bpffs::hold()).collect()
    }
}

/// The record and the maps of a program that trawl installed, to pin them again when the program is restored.
#[derive(Debug)]
pub(crate) struct SavedPins {
    record: PinRecord,
    /// The maps by the paths of their pins.
    maps: Vec<(PathBuf, OwnedFd)>,
    needs_peer: bool,
    /// Numbers of the interfaces that need a program for it.
    targets: Vec<u32>,
}

impl SavedPins {
    pub fn of(installed: &Installed) -> Self {
        let pins = fs::read_dir(installed.maps_directory());
        let names = pins.into_iter().flatten().flatten();
        let maps = names.filter_map(|pin| {
            let map = bpffs::open_map(&pin.path()).ok()?;
            Some((PathBuf::from(pin.file_name()), map))
        });
        // Pins made elsewhere are removed with the program, and the file defines them.
        let record = PinRecord { pins: Vec::new(), ..installed.record().clone() };
        Self { record, maps: maps.collect(), needs_peer: installed.peer_link().is_some(), targets: installed.targets() }
    }

    /// Pins the re-attached program with its record and maps, and prepares the interfaces that it needs.
    pub fn restore(&self, site: &Site, id: u32, program: BorrowedFd<'_>) -> Result<()> {
        let mut ready = Readiness::again(&self.record.changes);
        if self.needs_peer {
            ready.for_sending_back(site)?;
        }
        for index in &self.targets {
            ready.for_sending(&Site::by_index(site.namespace().cloned(), *index)?)?;
        }
        let lock = site.lock()?;
        let directory = lock.make_inside(&id.to_string())?;
        bpffs::pin(program, &directory.join(PROGRAM))?;
        self.record.pin(&directory.join(RECORD))?;
        for (name, link) in ready.helpers() {
            bpffs::pin(link, &directory.join(name))?;
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

/// Reason why a program with hooks cannot replace the running one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoanRefusal {
    NothingAttached,
    /// Programs run both in the driver and on the card.
    SeveralModes {
        programs: usize,
    },
    /// A chain has no single program to exchange.
    Chain,
    /// Links of several namespaces may attach it.
    SeveralLinks {
        links: usize,
    },
    /// The object file holds another program than the running one.
    OtherProgram,
    /// The program cannot be compared with the object file's.
    UnknownProgram,
    /// These maps of the program fit none of the object file's.
    MapsWithoutMatch {
        maps: Vec<String>,
    },
}

/// Explains the refusal to replace the running program, `which`, by one with hooks for a capture.
fn explain_refusal(site: &Site, which: &str, file: &Path, refusal: LoanRefusal) -> Error {
    let (label, file) = (site.label(), path_word(file));
    let typed = word(label);
    let fail = |why: String| Error::failed(format!("cannot insert hooks into {which} on {label}"), why);
    let other_file = format!(
        "name the file that it was loaded from; trawl xdp load {typed} {file} --replace --keep-maps --tappable replaces it"
    );
    match refusal {
        LoanRefusal::NothingAttached => {
            fail("no XDP program is on it".to_owned()).fix("leave out --tappable to capture what arrives")
        }
        LoanRefusal::SeveralModes { programs } => {
            fail(format!("{programs} programs are on it, in several modes"))
        }
        LoanRefusal::Chain => {
            fail("a chain of several programs is on it".to_owned()).fix("load the program with hooks: trawl xdp load IF FILE.o --keep-maps --tappable --prio N, then unload the one without")
        }
        LoanRefusal::SeveralLinks { links } => fail(format!(
            "{links} links attach it to interfaces with this number, in several namespaces"
        )),
        LoanRefusal::OtherProgram => {
            fail(format!("{file} is another program: the tags differ")).fix(other_file)
        }
        LoanRefusal::UnknownProgram => fail(format!(
            "the tag does not show whether {file} is the running program"
        ))
        .fix(other_file),
        LoanRefusal::MapsWithoutMatch { maps } => fail(format!(
            "no map of {file} fits these of its maps: {}",
            maps.join(", ")
        ))
        .fix(other_file),
    }
}

/// Facts about an attached program that the snapshot lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Set if it has hooks for captures.
    pub hooks: bool,
    /// Number of programs that it jumps on to.
    pub jumps: usize,
    /// Number of links that may attach it.
    pub links: usize,
}

/// Returns the program that one with hooks replaces; `None` if it has hooks itself.
pub fn program_to_replace(
    now: &Snapshot,
    facts: impl Fn(XdpAttachment) -> Facts,
) -> Result<Option<XdpAttachment>, LoanRefusal> {
    let only = match now.present.as_slice() {
        [] => return Err(LoanRefusal::NothingAttached),
        [only] => only,
        several => {
            let programs = several.len();
            return Err(LoanRefusal::SeveralModes { programs });
        }
    };
    let old = only.attachment();
    let Facts { hooks, jumps, links } = facts(old);
    if matches!(only.kind, ProgramOwner::Dispatcher { .. }) || jumps > 0 {
        return Err(LoanRefusal::Chain);
    }
    match (hooks, links) {
        (true, _) => Ok(None),
        (false, 2..) => Err(LoanRefusal::SeveralLinks { links }),
        (false, _) => Ok(Some(old)),
    }
}

/// Checks that a capture changes nothing about a program: the same instructions, with all of its maps.
pub fn check_loan(same_program: Option<bool>, without_match: &[String]) -> Result<(), LoanRefusal> {
    match same_program {
        None => Err(LoanRefusal::UnknownProgram),
        Some(false) => Err(LoanRefusal::OtherProgram),
        Some(true) if without_match.is_empty() => Ok(()),
        Some(true) => Err(LoanRefusal::MapsWithoutMatch { maps: without_match.to_vec() }),
    }
}

/// One step of reverting a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevertStep {
    /// Unloads a program that trawl installed since the change.
    Unload { program_id: u32 },
    /// Attaches a program that was there before the change.
    Attach { old: XdpAttachment },
}

/// Returns the steps from the present programs back to those before the change.
pub fn steps_to_revert(before: &[XdpAttachment], now: &[XdpAttachment], installed: &[u32]) -> Vec<RevertStep> {
    let was_there = |id: u32| before.iter().any(|old| old.program_id == id);
    let is_there = |id: u32| now.iter().any(|one| one.program_id == id);
    let new = installed.iter().filter(|id| !was_there(**id));
    let gone = before.iter().filter(|old| !is_there(old.program_id));
    new.map(|id| RevertStep::Unload { program_id: *id })
        .chain(gone.map(|old| RevertStep::Attach { old: *old }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_attach::{Hold, Present};
    use trawl_sys::netlink::XdpMode::{self, Native, Offload, Skb};

    fn at(mode: XdpMode, program_id: u32) -> XdpAttachment {
        XdpAttachment { mode, program_id }
    }

    fn with(all: &[(XdpMode, ProgramOwner)]) -> Snapshot {
        let present = (7..).zip(all).map(|(program_id, (mode, kind))| Present {
            mode: *mode,
            program_id,
            hold: Hold::Netlink,
            kind: kind.clone(),
        });
        Snapshot { present: present.collect(), ..Snapshot::default() }
    }

    #[test]
    fn single_program_is_exchanged_for_a_time() {
        let other = ProgramOwner::Other { name: None };
        let one = with(&[(Skb, other.clone())]);
        let planned = |now: &Snapshot, hooks, jumps, links| program_to_replace(now, |_| Facts { hooks, jumps, links });
        for links in [0, 1] {
            assert_eq!(planned(&one, false, 0, links), Ok(Some(at(Skb, 7))));
        }
        assert_eq!(planned(&one, true, 0, 2), Ok(None), "it has hooks");
        let refused = |now: &Snapshot, jumps, links| planned(now, false, jumps, links).unwrap_err();
        assert_eq!(refused(&with(&[]), 0, 0), LoanRefusal::NothingAttached);
        assert_eq!(refused(&one, 1, 0), LoanRefusal::Chain);
        assert_eq!(refused(&one, 0, 2), LoanRefusal::SeveralLinks { links: 2 });
        let dispatcher = ProgramOwner::Dispatcher { programs: 1 };
        let chain = with(&[(Native, dispatcher)]);
        assert_eq!(refused(&chain, 0, 0), LoanRefusal::Chain);
        let two = with(&[(Native, other.clone()), (Offload, other)]);
        let several = LoanRefusal::SeveralModes { programs: 2 };
        assert_eq!(refused(&two, 0, 0), several);
    }

    #[test]
    fn loan_requires_the_same_program() {
        assert_eq!(check_loan(Some(true), &[]), Ok(()));
        assert_eq!(check_loan(Some(false), &[]), Err(LoanRefusal::OtherProgram));
        assert_eq!(check_loan(None, &[]), Err(LoanRefusal::UnknownProgram));
        let maps = vec!["table (hash, id 3)".to_owned()];
        let lost = LoanRefusal::MapsWithoutMatch { maps: maps.clone() };
        assert_eq!(check_loan(Some(true), &maps), Err(lost));
    }

    #[test]
    fn unconfirmed_changes_are_reverted() {
        let unload = |program_id| RevertStep::Unload { program_id };
        let attach = |old| RevertStep::Attach { old };
        // The change loaded a program on an empty interface.
        assert_eq!(steps_to_revert(&[], &[at(Native, 8)], &[8]), [unload(8)]);
        // The change replaced a program.
        let back = steps_to_revert(&[at(Skb, 7)], &[at(Native, 8)], &[8]);
        assert_eq!(back, [unload(8), attach(at(Skb, 7))]);
        // The change unloaded a program.
        assert_eq!(steps_to_revert(&[at(Native, 7)], &[], &[]), [attach(at(Native, 7))]);
        // The change added a program to the present one.
        assert_eq!(steps_to_revert(&[at(Native, 7)], &[at(Native, 7)], &[7, 8]), [unload(8)]);
        // The change was refused, or is reverted already.
        assert_eq!(steps_to_revert(&[at(Native, 7)], &[at(Native, 7)], &[7]), []);
        // A program attached by another tool since stays, and the kernel then refuses the old one.
        let back = steps_to_revert(&[at(Native, 7)], &[at(Native, 9)], &[]);
        assert_eq!(back, [attach(at(Native, 7))]);
    }
}
