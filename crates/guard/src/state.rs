//! The guard of a network namespace: its pinned maps and guarded interfaces.
//!
//! Rules are kept without guarded interfaces, and interfaces stay guarded without rules. Once both are gone, the maps
//! are removed.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use trawl_attach::AttachRequest;
use trawl_attach::site::{self, DIRECTORY, Lock};
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::guard::{GUARD_FATES, GuardAllTotals, GuardTotals};
use trawl_bpf::probe::{Capability, KernelFeature, ProbeAnswer, has_capability};
use trawl_bpf::table::Table;
use trawl_bpf::{bpffs, info, map, program};
use trawl_program::bundled::GUARD;
use trawl_program::load::Source;
use trawl_program::safety::SessionCare;
use trawl_program::{Installed, Site, install, pins, swap as programs};
use trawl_sys::files::lock::Rank;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{self, Mark, Namespace, NamespaceSearch};
use trawl_sys::process::warden::Undo;
use trawl_sys::{Error, Result, clock};

use crate::live::{self, Store};
use crate::rule::{Action, On};
use crate::session;
use crate::set::{InterfaceDefault, RuleSet};
use trawl_sys::words::word;

pub(super) const FUNCTION: &str = "trawl_guard";
pub(super) const FUNCTION_WITHOUT_ETHERNET: &str = "trawl_guard_ip";
pub(super) const SET: &str = "guard_set";
pub(super) const RATES: &str = "guard_rates";
pub(super) const TOTALS: &str = ".bss.totals";
const PREFIX: &str = "guard-";

/// The guard of one namespace, locked against other commands until it is dropped.
#[derive(Debug)]
pub struct Guard {
    namespace: Option<Namespace>,
    pub(super) store: Store,
    pub(super) rates: OwnedFd,
    lock: Lock,
}

/// A guarded interface.
#[derive(Debug)]
pub struct Post {
    pub site: Site,
    pub installed: Installed,
}

/// Packets of an interface by outcome, in the order of bpf/include/guard.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals(pub [u64; GUARD_FATES]);

impl Guard {
    /// Locks the guard of a namespace, if it has rules or guarded interfaces.
    fn lock_existing(namespace: Option<&Namespace>) -> Result<Option<Lock>> {
        let Some(mount) = mount()? else {
            return Ok(None);
        };
        site::lock_existing(&directory(&mount, namespace)?, Rank::Guard)
    }

    /// Returns the guard of a namespace, if it has rules or guarded interfaces.
    pub fn find(namespace: Option<&Namespace>) -> Result<Option<Self>> {
        let lock = Self::lock_existing(namespace)?;
        lock.map(|lock| Self::open(namespace, lock)).transpose()
    }

    /// Like [`Self::find`], for a command that only reads: nothing is created, and nothing removed.
    pub fn find_to_read(namespace: Option<&Namespace>) -> Result<Option<Self>> {
        let lock = Self::lock_existing(namespace)?.map(Lock::read_only);
        let is_whole = |lock: &Lock| [SET, RATES].iter().all(|name| lock.path().join(name).exists());
        let lock = lock.filter(is_whole);
        lock.map(|lock| Self::open(namespace, lock)).transpose()
    }

    /// Returns the guard of a namespace, an empty one if it has none.
    pub fn find_or_make(namespace: Option<&Namespace>) -> Result<Self> {
        let directory = directory(&bpffs::lasting_or_mounted()?, namespace)?;
        Self::open(namespace, site::make_locked(&directory, Rank::Guard)?)
    }

    fn open(namespace: Option<&Namespace>, lock: Lock) -> Result<Self> {
        let seed = netns::cookie(namespace)?;
        let directory = lock.path();
        let rules = open_or_pin(&directory.join(SET), || Ok(Store::create(seed)?.into()))?;
        let store = Store::of(rules)?;
        let rates = open_or_pin(&directory.join(RATES), live::new_rates)?;
        Ok(Self { namespace: namespace.cloned(), store, rates, lock })
    }

    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// Returns the current rules, without expired ones and without the defaults of interfaces that are no longer
    /// guarded; interfaces have their current names.
    pub fn rules(&self) -> Result<RuleSet> {
        let mut set = self.store.read()?;
        let now = clock::monotonic();
        set.remove(|rule| rule.is_expired(now));
        if !set.defaults.is_empty() {
            let posts = self.posts()?;
            let is_guarded = |on: &On| posts.iter().any(|post| post.site.index() == on.index);
            set.defaults.retain(|default| is_guarded(&default.on));
        }
        if set.interfaces().next().is_some() {
            let sites = Site::all_in(self.namespace())?;
            for on in set.interfaces() {
                if let Some(site) = sites.iter().find(|site| site.index() == on.index) {
                    site.name().clone_into(&mut on.name);
                }
            }
        }
        Ok(set)
    }

    /// Returns the guarded interfaces.
    pub fn posts(&self) -> Result<Vec<Post>> {
        posts(self.namespace())
    }

    /// Changes the rules. Either all of the change takes effect at once, or nothing is changed.
    pub fn change<R>(&self, care: SessionCare, change: impl FnOnce(&mut RuleSet) -> Result<R>) -> Result<R> {
        self.check_programs()?;
        let before = self.rules()?;
        let mut set = before.clone();
        let result = change(&mut set)?;
        self.put(&before, set, care)?;
        Ok(result)
    }

    /// Refuses to work on rules that an attached guard does not use, according to the kernel: its pins were moved or
    /// removed, and the rules at the pins' path are not in force.
    fn check_programs(&self) -> Result<()> {
        let fail = |e| Error::os("cannot read the guard's programs", e);
        let own = map::info(self.store.as_fd()).map_err(fail)?.id;
        for site in Site::all_in(self.namespace())? {
            for attached in pins::programs_on(&site)? {
                // A program that ended meanwhile guards nothing.
                let Ok(opened) = program::open_by_id(attached.program_id) else {
                    continue;
                };
                let about = info::program(opened.as_fd()).map_err(fail)?;
                let is_guard = [FUNCTION, FUNCTION_WITHOUT_ETHERNET].contains(&about.name.as_str());
                if is_guard && !about.map_ids.contains(&own) {
                    return Err(self.uses_other_rules(&site, &about)?);
                }
            }
        }
        Ok(())
    }

    fn uses_other_rules(&self, site: &Site, program: &info::ProgramInfo) -> Result<Error> {
        let mut outside = bpffs::outside().into_iter().filter_map(|mount| {
            let rules = directory(&mount, self.namespace()).ok()?.join(SET);
            map::info(bpffs::open_map(&rules).ok()?.as_fd()).ok()
        });
        let (where_they_are, fix) = if outside.any(|rules| program.map_ids.contains(&rules.id)) {
            (
                "are in the BPF file system of the host: another one is mounted at /sys/fs/bpf here",
                format!(
                    "run the command outside of ip netns exec, with --netns {}",
                    word(name_of(self.namespace())?.as_deref().unwrap_or("NAME"))
                ),
            )
        } else {
            (
                "are not where trawl keeps them: its directory under /sys/fs/bpf was moved or removed, \
                 or another /sys/fs/bpf is mounted over it",
                format!(
                    "trawl guard load {} --replace --yes starts a guard without rules; trawl guard apply FILE.toml applies the rules of a file",
                    word(site.label())
                ),
            )
        };
        Ok(Error::failed(
            "the rules stay as they are",
            format!("the guard on {} (program {}) uses rules that {where_they_are}", site.label(), program.id),
        )
        .fix(fix))
    }

    pub(super) fn put(&self, before: &RuleSet, set: RuleSet, care: SessionCare) -> Result<()> {
        if care == SessionCare::ForTheSession {
            session::check(self.namespace(), before, &set)?;
        }
        self.store.publish(&set)
    }

    /// Replaces the rules in force, without regard to sessions that they cut.
    pub(crate) fn replace(&self, set: &RuleSet) -> Result<()> {
        self.store.publish(set)
    }

    /// Returns true if it is on an interface.
    pub(crate) fn is_on(&self, site: &Site) -> Result<bool> {
        is_on(site)
    }

    /// Removes the guard from an interface, and with the last one the rules.
    pub fn unload(&self, site: &Site) -> Result<()> {
        let Some(installed) = installed_on(site)? else {
            return Err(not_guarded(site));
        };
        installed.detach(site)?;
        self.drop_unused_rules()
    }

    /// Drops the default of an interface that the guard was removed from; after the last one, all rules.
    fn drop_unused_rules(&self) -> Result<()> {
        let set = if self.posts()?.is_empty() { RuleSet::default() } else { self.rules()? };
        self.store.publish(&set)
    }
}

/// Makes a change that may remove the guard from interfaces like any other program. The rules are removed with the last
/// guarded interface, as by `trawl guard unload`.
pub fn around<R>(sites: &[Site], change: impl FnOnce() -> Result<R>) -> Result<R> {
    let mut guarded = Vec::new();
    for site in sites {
        if is_on(site)? {
            guarded.push(site);
        }
    }
    let result = change()?;
    for site in guarded {
        if !is_on(site)?
            && let Some(guard) = Guard::find(site.namespace())?
        {
            guard.drop_unused_rules()?;
        }
    }
    Ok(result)
}

/// Returns true if the guard is on an interface.
pub(crate) fn is_on(site: &Site) -> Result<bool> {
    Ok(installed_on(site)?.is_some())
}

/// Returns true if a program is the guard's.
pub(crate) fn is_guard(installed: &Installed) -> bool {
    [FUNCTION, FUNCTION_WITHOUT_ETHERNET].contains(&installed.name())
}

/// Removes the rules of vanished namespaces, which no program reads.
pub fn sweep() {
    let Some(mount) = bpffs::lasting() else {
        return;
    };
    let entries = fs::read_dir(mount.join(DIRECTORY)).into_iter().flatten();
    let with_mark = |path: PathBuf| {
        let mark: Mark = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
        Some((mark, path))
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let here = Mark::of(None).ok();
    let mut left: Vec<(Mark, PathBuf)> = paths.filter_map(with_mark).collect();
    left.retain(|(mark, _)| Some(*mark) != here);
    let mut search = NamespaceSearch::default();
    left.retain(|(mark, _)| mark.is_gone(&mut search));
    if left.is_empty() {
        return;
    }
    let used: Vec<u32> = bpffs::pinned()
        .into_iter()
        .filter(|pin| pin.path.ends_with(Path::new("maps").join(SET)))
        .filter_map(|pin| match pin.object {
            bpffs::Object::Map(about) => Some(about.id),
            _ => None,
        })
        .collect();
    for (_, path) in left {
        let Some(_lock) = site::try_lock(&path, Rank::Guard) else {
            continue;
        };
        let slot = bpffs::open_map(&path.join(SET))
            .and_then(|fd| map::info(&fd).map_err(|e| Error::os("cannot read a map's properties", e)));
        if !slot.is_ok_and(|about| used.contains(&about.id)) {
            remove_pins(&path);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let is_empty = |set: RuleSet| set.rules.is_empty() && set.defaults.is_empty();
        if !self.lock.is_read_only() && self.store.read().is_ok_and(is_empty) {
            remove_pins(self.lock.path());
        }
    }
}

/// Removes a guard's pins; the directory is removed with its lock.
fn remove_pins(directory: &Path) {
    for name in [SET, RATES] {
        let _ = fs::remove_file(directory.join(name));
    }
}

/// Finds the file system of the pins; `None` if nothing can be pinned. Fails if `ip netns exec` has hidden the file
/// system and this process may not open it, since the rules are then unknown.
fn mount() -> Result<Option<PathBuf>> {
    let mount = bpffs::lasting();
    if mount.is_none() && !has_capability(Capability::SysAdmin) {
        return Err(Error::failed("cannot read the guard's rules", "this process may not open the BPF file system")
            .fix("this requires root"));
    }
    Ok(mount)
}

/// Returns the name of a namespace; for `None`, the name of this process's own.
fn name_of(namespace: Option<&Namespace>) -> Result<Option<String>> {
    let this = namespace.cloned().map_or_else(Namespace::current, Ok)?;
    let is_this = |name: &String| Namespace::by_name(name).is_ok_and(|other| other == this);
    Ok(netns::list().into_iter().find(is_this))
}

fn directory(mount: &Path, namespace: Option<&Namespace>) -> Result<PathBuf> {
    let mark = Mark::of(namespace)?;
    Ok(mount.join(DIRECTORY).join(format!("{PREFIX}{mark}")))
}

fn open_or_pin(path: &Path, make: impl FnOnce() -> Result<OwnedFd>) -> Result<OwnedFd> {
    if path.exists() {
        return bpffs::open_map(path);
    }
    let made = make()?;
    bpffs::pin(made.as_fd(), path)?;
    Ok(made)
}

pub(super) fn installed_on(site: &Site) -> Result<Option<Installed>> {
    let all = Installed::all(site)?;
    Ok(all.into_iter().find(is_guard))
}

pub fn posts(namespace: Option<&Namespace>) -> Result<Vec<Post>> {
    let mut posts = Vec::new();
    for site in Site::all_in(namespace)? {
        if let Some(installed) = installed_on(&site)? {
            posts.push(Post { site, installed });
        }
    }
    Ok(posts)
}

/// Explains that an interface has no guard.
pub fn not_guarded(site: &Site) -> Error {
    Error::failed(format!("{} is not guarded", site.label()), "the guard is not attached to it")
        .fix(format!("trawl guard load {}", word(site.label())))
}

/// Finds the interface of this name, for a rule that is confined to it.
pub fn on(namespace: Option<&Namespace>, name: &str) -> Result<On> {
    let link = Netlink::open(namespace)?.link(name)?;
    Ok(On { index: link.index, name: link.name })
}

impl Post {
    pub fn totals(&self) -> Result<Totals> {
        let fail = |e| Error::os(format!("cannot read the counters of {}", self.site.label()), e);
        let table = Table::new(self.installed.map(TOTALS)?).map_err(fail)?;
        let values = table.lookup(&0u32.to_ne_bytes()).map_err(fail)?.unwrap_or_default();
        let mut sum = Totals::default();
        for value in values.chunks_exact(size_of::<GuardTotals>()) {
            let one = GuardTotals::from_bytes(value).map_or([0; GUARD_FATES], |totals| totals.packets);
            for (sum, one) in sum.0.iter_mut().zip(one) {
                *sum += one;
            }
        }
        Ok(sum)
    }
}

/// The program's constant for the number of its interface.
const INTERFACE: &str = "guard_ifindex";
/// Priority in a chain: dropped packets should cost the other programs nothing.
const PRIORITY: u32 = 10;

/// Refuses to replace a program whose rules are pinned nowhere: they would be lost with it.
fn refuse_to_lose_rules(site: &Site, installed: &Installed) -> Result<()> {
    let set = Store::of(installed.map(SET)?)?.read()?;
    let allows = |one: &InterfaceDefault| one.action == Action::Allow;
    if set.rules.is_empty() && set.defaults.iter().all(allows) {
        return Ok(());
    }
    Err(Error::failed(
        format!("cannot replace the guard on {}", site.label()),
        format!(
            "program {} enforces rules that are not where trawl keeps them; they would no longer be enforced",
            installed.id()
        ),
    )
    .fix("--yes replaces it anyway"))
}

impl Guard {
    /// Puts the guard on an interface, or changes the default of a guarded one. A `tappable` guard can be captured at
    /// on kernels without tracing programs.
    pub fn load(
        &self,
        site: &Site,
        default: Option<Action>,
        request: &AttachRequest,
        care: SessionCare,
    ) -> Result<Installed> {
        if let ProbeAnswer::NotSupported { why } = KernelFeature::Loops.probe() {
            let what = format!("cannot load the guard on {}", site.label());
            return Err(Error::failed(what, format!("{why}, which has bpf_loop")).fix("use Linux 5.17 or newer"));
        }
        let on = On { index: site.index(), name: site.name().to_owned() };
        let present = match installed_on(site)? {
            Some(installed) if self.is_read_by(&installed)? => Some(installed),
            Some(installed) if request.keep_guard => {
                refuse_to_lose_rules(site, &installed)?;
                None
            }
            _ => None,
        };
        let before = self.rules()?;
        let mut set = before.clone();
        let had = before.defaults.iter().find(|one| one.on.index == on.index);
        if let Some(action) = default.or(had.is_none().then_some(Action::Allow)) {
            set.set_default(on, action);
        }
        self.put(&before, set, care)?;
        let has_wanted_priority = |installed: &Installed| {
            let seat = installed.seat().map(|seat| seat.priority);
            request.priority.is_none_or(|wanted| seat == Some(wanted))
        };
        if let Some(installed) = present
            && has_wanted_priority(&installed)
            && request.mode.is_none_or(|mode| installed.mode() == Some(mode))
            && !request.tappable
            && !request.replace
        {
            return Ok(installed);
        }
        let attached = self.attach(site, request);
        if attached.is_err() {
            // The old rules are restored; their hits continue.
            self.store.publish(&before)?;
        }
        attached
    }

    /// Returns true if an attached guard reads these rules. A program that moved with its interface from another
    /// namespace reads that namespace's rules, and knows the interface by its number there.
    fn is_read_by(&self, installed: &Installed) -> Result<bool> {
        let id =
            |fd: BorrowedFd<'_>| map::info(fd).map(|about| about.id).map_err(|e| Error::os("cannot read the rules", e));
        Ok(id(installed.map(SET)?.as_fd())? == id(self.store.as_fd())?)
    }

    /// Lets the new program continue the totals of the replaced one, if both have the same layout.
    fn keep_totals(&self, source: &mut Source, old: &Installed) -> Result<()> {
        if !self.is_read_by(old)? {
            return Ok(());
        }
        let Ok(totals) = old.map(TOTALS) else {
            return Ok(());
        };
        let layout = map::info(totals.as_fd()).map(|about| about.value_size as usize);
        match layout {
            Ok(size) if size == size_of::<GuardAllTotals>() => source.reuse(TOTALS, totals.as_fd()),
            _ => Ok(()),
        }
    }

    fn attach(&self, site: &Site, request: &AttachRequest) -> Result<Installed> {
        let function = if site.has_ethernet()? { FUNCTION } else { FUNCTION_WITHOUT_ETHERNET };
        let mut source = Source::embedded(GUARD, self.store.object())?;
        source.choose(Some(function))?;
        source.reuse(SET, self.store.as_fd())?;
        source.reuse(RATES, self.rates.as_fd())?;
        source.set_variable(INTERFACE, &site.index().to_ne_bytes())?;
        let old = installed_on(site)?;
        let before = old.as_ref().and_then(Installed::seat).map(|seat| seat.priority);
        let request = AttachRequest { priority: request.priority.or(before).or(Some(PRIORITY)), ..*request };
        let put = match old {
            Some(old) => {
                self.keep_totals(&mut source, &old)?;
                install::put_instead(site, source, &request, old, |_| Ok(()))
            }
            None => install::put(site, source, &request, |_| Ok(())),
        };
        put.map(|put| put.installed)
    }
}

/// Returns the scope of changes to the guard of a namespace, of which only one at a time can await confirmation.
pub fn scope(namespace: Option<&Namespace>) -> Result<String> {
    Ok(format!("guard-{}", Mark::of(namespace)?))
}

/// The guard before a change that awaits confirmation.
#[derive(Debug)]
pub struct GuardBackup {
    namespace: Option<Namespace>,
    rules: RuleSet,
    /// The indices of the interfaces that it was on.
    guarded: Vec<u32>,
    /// The programs that it replaced on other interfaces.
    others: Vec<programs::ProgramBackup>,
}

impl GuardBackup {
    /// Records the state in force. `replaced`: the interfaces on which the guard replaces other programs.
    pub fn note(namespace: Option<&Namespace>, replaced: &[Site]) -> Result<Self> {
        let guard = Guard::find(namespace)?;
        let (rules, guarded) = match &guard {
            Some(guard) => {
                let posts = guard.posts()?;
                let indices = posts.iter().map(|post| post.site.index()).collect();
                (guard.rules()?, indices)
            }
            None => (RuleSet::default(), Vec::new()),
        };
        let is_new = |site: &&Site| !guarded.contains(&site.index());
        let others = replaced.iter().filter(is_new).map(programs::ProgramBackup::note);
        Ok(Self { namespace: namespace.cloned(), rules, others: others.collect::<Result<_>>()?, guarded })
    }

    fn put_back(&self) -> Result<()> {
        let namespace = self.namespace.as_ref();
        let guard = Guard::find_or_make(namespace)?;
        // The rules come first, so that the interfaces that stay guarded always have either the new or the old ones.
        guard.replace(&self.rules)?;
        for site in Site::all_in(namespace)? {
            if !self.guarded.contains(&site.index()) && guard.is_on(&site)? {
                guard.unload(&site)?;
            }
        }
        self.others.iter().try_for_each(programs::ProgramBackup::put_back)?;
        // Removing the last interface removes the rules, but there may have been rules without interfaces.
        guard.replace(&self.rules)
    }
}

impl Undo for GuardBackup {
    fn undo(&self) -> Result<()> {
        self.put_back()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let namespace = self.namespace.iter();
        let own = namespace.map(|one| one.as_fd().as_raw_fd());
        own.chain(self.others.iter().flat_map(Undo::descriptors)).chain(bpffs::hold()).collect()
    }
}
