//! Programs that trawl put on an interface and that stay there: found by their pins, and removed.
//!
//! In the interface's directory each program has a directory of its own, named by its number, with the pins `program`,
//! `link` (unless it is attached by netlink), `record`, and the maps it uses under `maps`. Pins of maps are necessary
//! even if nobody opens them: the kernel empties a program array without a descriptor or pin.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trawl_attach::site::{self, Lock, Site, make_directory};
use trawl_attach::snapshot;
use trawl_bpf::loader::ObjectFile;
use trawl_bpf::table::Table;
use trawl_bpf::{bpffs, info, link, program};
use trawl_sys::errno::EPERM;
use trawl_sys::netlink::{XdpAttachment, XdpMode};
use trawl_sys::process::warden::{Undo, Warden};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::chain::dispatcher::Dispatcher;
use crate::chain::{self, ChainSeat};
use crate::features::{self, Change, FeaturesLock};
use crate::sending;

/// Sources recorded for the programs of the guard, the load balancer and the router.
pub const GUARD: &str = "guard";
pub const BALANCE: &str = "balance";
pub const ROUTE: &str = "route";
/// Names of bundled programs, accepted in place of a file.
pub const NAMES: [&str; 5] = ["drop", "pass", "aborted", "tx", "redirect"];

pub(crate) const PROGRAM: &str = "program";
const LINK: &str = "link";
/// Link of a program on the other end of a veth, without which the veth drops this one's packets.
pub(crate) const PEER_LINK: &str = "peer_link";
/// Prefix of the names of the links that keep programs on the interfaces to which this program sends, if their drivers
/// send nothing without a program. The interface's number follows.
const TARGET_LINK: &str = "target_link_";
/// Program with hooks that replaces this one for the duration of a capture.
pub(crate) const STAND_IN: &str = "stand_in";
pub(crate) const RECORD: &str = "record";
pub(crate) const MAPS: &str = "maps";

#[derive(Debug, Default)]
pub struct Installed {
    directory: PathBuf,
    id: u32,
    link: Option<OwnedFd>,
    /// `None` if it is not attached to the interface directly: it is dead, or a member of a chain.
    attachment: Option<XdpAttachment>,
    record: PinRecord,
}

impl Installed {
    /// Returns trawl's programs on this interface that still run.
    pub fn all(site: &Site) -> Result<Vec<Self>> {
        let attached = match programs_on(site) {
            // A vanished interface has no programs.
            Err(_) if site.is_gone() => return Ok(Vec::new()),
            attached => attached?,
        };
        check_rights(site, &attached)?;
        let Some(directory) = site.directory() else {
            return Ok(Vec::new());
        };
        let mut all = read_all(&directory, &attached);
        all.retain(|one| one.attachment.is_some());
        all.extend(moved_here(&directory, &attached));
        Ok(all)
    }

    /// Returns the program of that name, if the interface has only that one.
    pub fn named(site: &Site, name: &str) -> Result<Option<Self>> {
        Ok(Self::all(site)?.into_iter().find(|one| one.name() == name))
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the full name of its function.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Returns the file it came from, or the name of the bundled program.
    pub fn source(&self) -> &str {
        &self.record.source
    }

    pub(crate) fn record(&self) -> &PinRecord {
        &self.record
    }

    /// Returns the tag that it had without hooks.
    pub(crate) fn plain_tag(&self) -> Option<&str> {
        self.record.plain_tag.as_deref()
    }

    pub fn mode(&self) -> Option<XdpMode> {
        self.attachment.map(|found| found.mode)
    }

    /// Returns its position in a chain of trawl's own, if it can be in one.
    pub fn seat(&self) -> Option<ChainSeat> {
        self.record.seat
    }

    /// Returns how it is attached to the interface directly.
    pub(crate) fn attachment(&self) -> Option<XdpAttachment> {
        self.attachment
    }

    /// Returns the link that was pinned for it, even if the link has ended.
    pub(crate) fn pinned_link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(AsFd::as_fd)
    }

    /// Returns the link that attaches the program; `None` if netlink or a chain does.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        let link = self.pinned_link()?;
        let about = info::link(link).ok()?;
        let is_its = |id: u32| id == self.id || self.stand_in() == Some(id);
        (about.ifindex != 0 && is_its(about.program)).then_some(link)
    }

    /// Returns the program that replaces this one for the duration of a capture.
    pub(crate) fn stand_in(&self) -> Option<u32> {
        stand_in_program(&self.directory)
    }

    /// Opens the program.
    pub fn program(&self) -> Result<OwnedFd> {
        program::open_by_id(self.id).map_err(|e| Error::os(format!("cannot open the program {}", self.name()), e))
    }

    /// Opens a map of the program, by its name in the source; the program's variables are in `….bss`, `….data`.
    pub fn map(&self, name: &str) -> Result<OwnedFd> {
        bpffs::open_map(&self.directory.join(MAPS).join(pin_name(name)))
    }

    /// Returns the directory of its maps' pins.
    pub fn maps_directory(&self) -> PathBuf {
        self.directory.join(MAPS)
    }

    /// Returns the link that keeps a program on the other end of a veth for it, while that is attached.
    pub(crate) fn peer_link(&self) -> Option<OwnedFd> {
        let link = bpffs::open_link(&self.directory.join(PEER_LINK)).ok()?;
        let attached = info::link(link.as_fd()).is_ok_and(|about| about.ifindex != 0);
        attached.then_some(link)
    }

    /// Returns the numbers of the interfaces on which programs are kept for it.
    pub(crate) fn targets(&self) -> Vec<u32> {
        let paths = entries(&self.directory).into_iter();
        paths.filter_map(|path| target_of(&path)).collect()
    }

    /// Returns the interfaces on which programs are kept for it alone.
    pub fn carriers(&self, site: &Site) -> Vec<Site> {
        let id = |pin: &Path| number(bpffs::open_link(pin).ok()?.as_fd());
        let is_alone = |pin: &PathBuf| {
            let own = id(pin);
            let mut others = all_helpers().filter(|(_, _, other)| other != pin);
            own.is_some() && !others.any(|(_, _, other)| id(&other) == own)
        };
        helper_pins(&self.directory)
            .filter(is_alone)
            .filter_map(|pin| Site::by_index(site.namespace().cloned(), target_of(&pin)?).ok())
            .collect()
    }

    /// Describes settings of other interfaces that the program needs and has lost.
    pub fn lost(&self, site: &Site) -> Vec<String> {
        let mut lost = features::lost(&self.record.changes);
        let had_link = bpffs::open_link(&self.directory.join(PEER_LINK)).is_ok();
        if had_link && self.peer_link().is_none() {
            lost.extend(features::why_sent_back_is_lost(site));
        }
        let is_silent = |target: &Site| sending::needs_program(target).unwrap_or(false);
        for index in self.targets() {
            let target = Site::by_index(site.namespace().cloned(), index);
            lost.extend(target.ok().filter(is_silent).map(|target| {
                format!(
                    "the XDP program that trawl had put on {} is gone, and without one its driver sends nothing",
                    target.label()
                )
            }));
        }
        lost
    }

    /// Removes the pins, and undoes the changes made for the program.
    pub(crate) fn forget(&self) {
        let lock = FeaturesLock::acquire();
        // Settings come first, while the record still lists them, in case this process is killed.
        let others = || all_changes(Some(&self.directory));
        features::undo(&lock, &self.record.changes, &others);
        // Pins shared with other programs stay until the last of them is removed.
        let shared: Vec<PathBuf> = all_records()
            .filter(|(directory, _)| *directory != self.directory)
            .flat_map(|(_, record)| record.pins)
            .collect();
        let mut own = self.record.pins.clone();
        own.retain(|path| !shared.contains(path));
        remove_pins(&own);
        for file in entries(&self.directory.join(MAPS)) {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir(self.directory.join(MAPS));
        for path in helper_pins(&self.directory) {
            drop_helper(&path);
        }
        for name in [STAND_IN, LINK, RECORD, PROGRAM] {
            let _ = fs::remove_file(self.directory.join(name));
        }
        let _ = fs::remove_dir(&self.directory);
    }

    /// Removes the pin of its link, which now attaches another program.
    pub(crate) fn drop_link(&self) {
        let _ = fs::remove_file(self.directory.join(LINK));
    }

    /// Pins a link, in place of an ended one if necessary.
    ///
    /// A link that is about to attach another program is pinned for that one first, and unpinned for the old one last:
    /// if the command is killed in between, one of the pins holds it.
    pub(crate) fn renew_link(&self, link: BorrowedFd<'_>) -> Result<()> {
        let path = self.directory.join(LINK);
        let held = bpffs::open_link(&path).ok();
        if let Some(held) = held
            && number(held.as_fd()) == number(link)
        {
            return Ok(());
        }
        let _ = fs::remove_file(&path);
        bpffs::pin(link, &path)
    }
}

fn number(link: BorrowedFd<'_>) -> Option<u32> {
    info::link(link).map(|about| about.id).ok()
}

/// Returns the pins of links that keep programs on other interfaces.
fn helper_pins(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let is_helper = |path: &PathBuf| path.ends_with(PEER_LINK) || target_of(path).is_some();
    entries(directory).into_iter().filter(is_helper)
}

/// Returns the number of the interface whose program this pin keeps.
fn target_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix(TARGET_LINK)?.parse().ok()
}

/// Returns the name of the pin that keeps a program on the interface of this number.
pub(crate) fn target_link(index: u32) -> String {
    format!("{TARGET_LINK}{index}")
}

/// Removes a program on another interface, unless another program needs it too. A command that reads the link at this
/// moment may keep it a little longer.
fn drop_helper(path: &Path) {
    let link = bpffs::open_link(path);
    let _ = fs::remove_file(path);
    let Ok(link) = link else { return };
    let mut others = all_helpers().filter_map(|(_, _, pin)| bpffs::open_link(&pin).ok());
    if !others.any(|other| number(other.as_fd()) == number(link.as_fd())) {
        let _ = link::detach(link.as_fd());
    }
}

/// Returns the pins that keep programs on other interfaces, each with its program's directory and record.
fn all_helpers() -> impl Iterator<Item = (PathBuf, PinRecord, PathBuf)> {
    all_records().flat_map(|(directory, record)| {
        let pins: Vec<PathBuf> = helper_pins(&directory).collect();
        let with = move |pin| (directory.clone(), record.clone(), pin);
        pins.into_iter().map(with)
    })
}

/// Returns the link of the program that is kept on an interface for another one, if there is one.
pub(crate) fn helper_on(site: &Site) -> Result<Option<OwnedFd>> {
    let links = site.link()?.xdp.into_iter().filter_map(|present| snapshot::link_of(site.index(), present));
    let is_helper = |link: &OwnedFd| number(link.as_fd()).and_then(helped_by).is_some();
    Ok(links.into_iter().find(is_helper))
}

/// Pins of a program that is about to be attached; removed on drop unless it is.
#[derive(Debug)]
pub(crate) struct Pinned {
    installed: Installed,
    done: bool,
}

impl Pinned {
    /// Records a program, so that its pins are removed with it.
    pub fn new(lock: &Lock, id: u32, record: PinRecord) -> Result<Self> {
        let directory = lock.make_inside(&id.to_string())?;
        let pinned = Self { installed: Installed { directory, id, link: None, attachment: None, record }, done: false };
        Ok(pinned)
    }

    pub fn record(&self) -> Result<()> {
        let Installed { directory, record, .. } = &self.installed;
        record.pin(&directory.join(RECORD))
    }

    /// Pins an object of the program.
    pub fn pin(&self, object: BorrowedFd<'_>, name: &str) -> Result<()> {
        bpffs::pin(object, &self.installed.directory.join(name))
    }

    /// Pins the program's maps, by their names in the source.
    pub fn pin_maps(&self, own: &[(String, BorrowedFd<'_>)]) -> Result<()> {
        let maps = self.installed.directory.join(MAPS);
        make_directory(&maps)?;
        for (name, fd) in own {
            bpffs::pin(*fd, &maps.join(pin_name(name)))?;
        }
        Ok(())
    }

    /// Pins the link that is about to attach the program in place of another one.
    pub fn holds(&self, link: BorrowedFd<'_>) -> Result<()> {
        self.installed.renew_link(link)
    }

    /// Pins the link that attaches the program.
    pub fn attached_by(mut self, link: OwnedFd, attachment: XdpAttachment) -> Result<Installed> {
        self.installed.renew_link(link.as_fd())?;
        self.installed.link = Some(link);
        Ok(self.finish(attachment))
    }

    /// Completes the pins of a program that was attached by netlink.
    pub fn attached(self, attachment: XdpAttachment) -> Installed {
        self.finish(attachment)
    }

    fn finish(mut self, attachment: XdpAttachment) -> Installed {
        self.done = true;
        let mut installed = std::mem::take(&mut self.installed);
        installed.attachment = Some(attachment);
        installed
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.done {
            self.installed.forget();
        }
    }
}

/// Returns the program whose helper on another interface this link attaches: its interface, if that can be found, its
/// name and its number.
pub(crate) fn helped_by(link: u32) -> Option<(Option<Site>, String, u32)> {
    all_helpers().find_map(|(directory, record, pin)| {
        let held = bpffs::open_link(&pin).ok()?;
        if info::link(held.as_fd()).ok()?.id != link {
            return None;
        }
        let id = directory.file_name()?.to_str()?.parse().ok()?;
        Some((Site::of_directory(directory.parent()?), record.name, id))
    })
}

/// Returns programs that are attached here and were installed before the interface moved into this namespace.
fn moved_here(own: &Path, attached: &[XdpAttachment]) -> Vec<Installed> {
    let others = || site::all_directories().into_iter().filter(|one| one != own);
    let mut found = Vec::new();
    for id in attached.iter().map(|one| one.program_id.to_string()) {
        let Some(directory) = others().find(|one| one.join(&id).join(RECORD).exists()) else {
            continue;
        };
        // Another tool may have attached it to a second interface.
        let is_there =
            |site: Site| programs_on(&site).is_ok_and(|all| all.iter().any(|one| one.program_id.to_string() == id));
        if !Site::of_directory(&directory).is_some_and(is_there) {
            found.extend(read_one(directory.join(&id), attached));
        }
    }
    found
}

/// Returns all changes made for trawl's programs on any interface, except the program with this directory.
pub(crate) fn all_changes(but: Option<&Path>) -> Vec<Change> {
    all_records()
        .filter(|(directory, _)| Some(directory.as_path()) != but)
        .flat_map(|(_, record)| record.changes)
        .collect()
}

/// Returns all pins and directories made for trawl's programs on any interface.
pub(crate) fn all_pins() -> Vec<PathBuf> {
    all_records().flat_map(|(_, record)| record.pins).collect()
}

/// Returns the records of all programs, with their directories.
fn all_records() -> impl Iterator<Item = (PathBuf, PinRecord)> {
    let sites = site::all_directories();
    let programs: Vec<PathBuf> = sites.iter().flat_map(|site| entries(site)).collect();
    programs.into_iter().filter_map(|program| {
        let record = PinRecord::read(&program.join(RECORD))?;
        Some((program, record))
    })
}

/// Checks that this process may read the programs' owners. Without that right, each program would seem to have none.
fn check_rights(site: &Site, attached: &[XdpAttachment]) -> Result<()> {
    let Some(first) = attached.first() else {
        return Ok(());
    };
    match program::open_by_id(first.program_id) {
        Err(error) if error.raw_os_error() == Some(EPERM) => {
            let (id, mode) = (first.program_id, first.mode.name());
            let what = format!("cannot read the program on {} (id {id}, {mode} mode)", site.label());
            Err(Error::os(what, error).fix("this requires root"))
        }
        _ => Ok(()),
    }
}

/// Returns all programs on the interface: the attached ones, and those in a chain with them.
pub fn programs_on(site: &Site) -> Result<Vec<XdpAttachment>> {
    let mut all = site.link()?.xdp;
    for head in all.clone() {
        let dispatcher = Dispatcher::read(head.program_id);
        let members = dispatcher.map_or_else(Vec::new, |found| found.members);
        all.extend(members.iter().map(|member| XdpAttachment { mode: head.mode, program_id: member.program }));
        let jumped_to = chain::after(head.program_id).into_iter();
        all.extend(jumped_to.map(|program_id| XdpAttachment { mode: head.mode, program_id }));
    }
    Ok(all)
}

/// Returns the name of a map's pin, without dots, which the BPF file system does not allow.
fn pin_name(map: &str) -> String {
    map.replace('.', "_")
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

pub(crate) fn read_all(directory: &Path, attached: &[XdpAttachment]) -> Vec<Installed> {
    entries(directory).into_iter().filter_map(|path| read_one(path, attached)).collect()
}

fn stand_in_program(directory: &Path) -> Option<u32> {
    let program = bpffs::open_program(&directory.join(STAND_IN)).ok()?;
    info::program(program.as_fd()).map(|about| about.id).ok()
}

fn read_one(directory: PathBuf, attached: &[XdpAttachment]) -> Option<Installed> {
    let id: u32 = directory.file_name()?.to_str()?.parse().ok()?;
    let link = bpffs::open_link(&directory.join(LINK)).ok();
    let stand_in = stand_in_program(&directory);
    Some(Installed {
        id,
        attachment: attached.iter().copied().find(|one| one.program_id == id || Some(one.program_id) == stand_in),
        record: PinRecord::read(&directory.join(RECORD)).unwrap_or_default(),
        link,
        directory,
    })
}

/// Returns the tag without hooks of a program that trawl put on this interface.
pub fn plain_tag(site: &Site, program_id: u32) -> Option<String> {
    let directory = site.directory()?.join(program_id.to_string());
    PinRecord::read(&directory.join(RECORD))?.plain_tag
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PinRecord {
    /// The function's full name, which the kernel cuts at 15 characters.
    pub name: String,
    /// The file it came from, or the bundled program's name.
    pub source: String,
    /// Pins and directories made elsewhere for it, in order of creation.
    pub pins: Vec<PathBuf>,
    /// Interface features that were changed for it.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// The kernel's tag of the program without hooks; `None` if it has none.
    #[serde(default)]
    pub plain_tag: Option<String>,
    /// Its position among programs that jump to one another.
    #[serde(default)]
    pub seat: Option<ChainSeat>,
}

const MAP_NAME: &str = "trawl_record";

impl PinRecord {
    pub fn pin(&self, path: &Path) -> Result<()> {
        let fail = |e| Error::os(format!("cannot pin a record at {}", path.display()), e);
        let text = serde_json::to_vec(self).map_err(|e| fail(e.into()))?;
        let table = Table::holding(MAP_NAME, &text).map_err(fail)?;
        bpffs::pin(std::os::fd::AsFd::as_fd(&table), path)
    }

    pub fn read(path: &Path) -> Option<Self> {
        let table = Table::new(bpffs::open_map(path).ok()?).ok()?;
        let text = table.lookup(&[0; 4]).ok()??;
        serde_json::from_slice(&text).ok()
    }
}

/// Pins of maps outside trawl's own directory, made while loading; removed on drop unless they are kept.
#[derive(Debug, Default)]
pub(crate) struct MapPins {
    expected: Vec<PathBuf>,
    made: Vec<PathBuf>,
    /// Made for other programs of trawl before; removed with the last of them.
    shared: Vec<PathBuf>,
    kept: bool,
    /// Removes them if trawl is killed before they are in a record.
    warden: Warden,
}

#[derive(Debug)]
struct Unpin(Vec<PathBuf>);

impl Undo for Unpin {
    fn undo(&self) -> Result<()> {
        remove_pins(&self.0);
        Ok(())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        bpffs::hold().into_iter().collect()
    }

    fn needed_capabilities(&self) -> Capabilities {
        Capabilities::DAC_OVERRIDE
    }
}

impl MapPins {
    /// Sets the paths at which libbpf pins maps, and notes the paths that did not exist.
    pub fn set(object: &mut ObjectFile, directory: Option<&Path>) -> Result<Self> {
        let mut pins = Self::default();
        let maps = object.maps();
        let mut missing = Vec::new();
        if let Some(directory) = directory {
            let directory = visible(directory)?;
            if directory.is_dir() {
                pins.share(&directory);
            } else {
                missing = missing_of(&directory);
            }
            for one in maps.iter().filter(|one| !one.is_data) {
                object.pin_at(&one.name, &directory.join(one.name.replace('.', "_")))?;
            }
        } else if maps.iter().any(|one| object.pin_path(&one.name).is_some()) {
            bpffs::lasting_or_mounted()?;
        }
        for one in &maps {
            match object.pin_path(&one.name) {
                Some(path) if path.exists() => pins.share(&path),
                Some(path) => pins.expected.push(path),
                None => {}
            }
        }
        if !missing.is_empty() || !pins.expected.is_empty() {
            let unpin = Unpin([missing.as_slice(), &pins.expected].concat());
            pins.warden.watch([Box::new(unpin) as Box<dyn Undo>])?;
        }
        for one in missing {
            make_directory(&one)?;
            pins.made.push(one);
        }
        Ok(pins)
    }

    /// Notes that the pins are in a pinned record, and are removed with it.
    pub fn recorded(&mut self) {
        self.warden = Warden::default();
    }

    /// Notes an existing pin.
    fn share(&mut self, path: &Path) {
        let usual = bpffs::usual_path(path);
        if all_pins().contains(&usual) {
            self.shared.push(path.to_owned());
        }
    }

    /// Notes that libbpf has pinned the maps.
    pub fn pinned_by_now(&mut self) {
        let made = self.expected.drain(..).filter(|path| path.exists());
        self.made.extend(made);
    }

    /// Keeps the pins, and returns those to be removed with the program.
    pub fn keep(&mut self) -> Vec<PathBuf> {
        self.kept = true;
        let all = self.shared.iter().chain(&self.made);
        all.map(|path| bpffs::usual_path(path)).collect()
    }
}

impl Drop for MapPins {
    fn drop(&mut self) {
        if !self.kept {
            self.pinned_by_now();
            remove_pins(&self.made);
        }
    }
}

/// Removes pins and empty directories, the latest first.
pub(crate) fn remove_pins(made: &[PathBuf]) {
    for path in made.iter().rev() {
        let path = bpffs::path_from_here(path);
        let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
    }
}

/// Returns a missing directory and its missing parents, outermost first.
fn missing_of(directory: &Path) -> Vec<PathBuf> {
    let missing = directory.ancestors().take_while(|one| !one.exists());
    let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Returns a path that leads from this process to a directory in a BPF file system; an error if it is in none.
fn visible(directory: &Path) -> Result<PathBuf> {
    let mount = bpffs::lasting_or_mounted()?;
    let directory = match directory.strip_prefix(bpffs::USUAL) {
        Ok(rest) => mount.join(rest),
        Err(_) => std::path::absolute(directory)
            .map_err(|e| Error::os(format!("cannot pin maps in {}", directory.display()), e))?,
    };
    let what = || format!("cannot pin maps in {}", directory.display());
    if directory.exists() && !directory.is_dir() {
        return Err(Error::failed(what(), "it is not a directory"));
    }
    let exists = directory.ancestors().find(|path| path.exists());
    if !exists.is_some_and(bpffs::is_on_bpffs) {
        return Err(Error::failed(what(), "it is not in a BPF file system")
            .fix(format!("name a directory under {}", bpffs::USUAL)));
    }
    let missing = missing_of(&directory);
    let mut names = missing.iter().filter_map(|path| path.file_name());
    if names.any(|name| name.to_string_lossy().contains('.')) {
        return Err(Error::failed(what(), "the BPF file system allows no names with a dot"));
    }
    Ok(directory)
}

/// Returns the paths of all pinned objects of the host.
pub fn all_paths() -> BTreeSet<PathBuf> {
    bpffs::pinned().into_iter().map(|pin| pin.path).collect()
}

/// Keeps the pins reachable for a child process that outlives the ancestors of this process.
pub fn hold() {
    let _ = bpffs::hold();
}
