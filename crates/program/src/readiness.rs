//! Prepares interfaces for programs that send packets on, and undoes the changes.
//!
//! A veth delivers frames that XDP sends to its other end only while that has GRO or a program of its own (before Linux
//! 5.13 only the latter); it accepts packets from the stack there with incomplete checksums and with VLAN tags outside
//! the packet, both of which are lost when XDP sends the packet on. Cards can hide tags from XDP, too.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use trawl_attach::passing::{XdpSending, gro_suffices, hold_passing};
use trawl_attach::site::{DIRECTORY, Lock, Site, make_locked, try_lock};
use trawl_bpf::bpffs;
use trawl_sys::files::lock::Rank;
use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::{LinkRecord, Peer, XdpMode};
use trawl_sys::netns::{Mark, NamespaceSearch};
use trawl_sys::process::warden::{Undo, Warden};
use trawl_sys::{Error, Result};

use crate::features::{Change, FeaturesLock, other_end, set_all, split, undo};
use crate::pins::{Installed, PEER_LINK, all_changes, helper_on, target_link};
use crate::sending::{IN_STACK, accepts_frames, needs_program, sends_frames};
use trawl_sys::words::word;

const GRO: &str = "rx-gro";
/// Features with which the stack leaves checksums incomplete, and tags outside the packet.
const OF_INCOMPLETE_PACKETS: [&str; 4] =
    ["tx-checksum-ip-generic", "tx-checksum-sctp", "tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"];
const TAG_REMOVAL: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

/// Changes features; they are restored on drop, unless another owner keeps the changes.
#[derive(Debug, Default)]
pub struct Readiness {
    changes: Vec<Change>,
    switched: Vec<Switched>,
    /// The link that keeps a program on the other end.
    link: Option<OwnedFd>,
    /// Links that keep programs on interfaces whose drivers send frames only with one, or on the other ends of veths.
    /// The keys are the numbers of the sending interfaces.
    targets: Vec<(u32, OwnedFd)>,
    /// Restores settings if trawl is killed before another owner keeps the changes.
    warden: Warden,
    search: NamespaceSearch,
    /// Lock held until the need is recorded: before that, other commands would mistake changed settings for
    /// the original ones.
    lock: Option<Arc<Lock>>,
}

#[derive(Debug)]
struct RestoreFeature {
    change: Change,
    lock: Option<Arc<Lock>>,
}

impl Undo for RestoreFeature {
    fn undo(&self) -> Result<()> {
        undo(&FeaturesLock::acquire(), std::slice::from_ref(&self.change), &|| all_changes(None));
        Ok(())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let lock = self.lock.iter();
        lock.filter_map(|lock| Some(lock.descriptor()?.as_raw_fd())).chain(bpffs::hold()).collect()
    }
}

#[derive(Debug)]
struct Switched {
    interface: String,
    on: bool,
    features: Vec<String>,
}

impl Readiness {
    /// Resumes the changes made for a restored program; `keep` applies them again.
    pub(crate) fn again(changes: &[Change]) -> Self {
        let mut ready = Self::default();
        ready.changes = changes.to_vec();
        ready
    }

    /// Ensures that frames sent by XDP out of the interface reach the other end. If its driver sends them only while it
    /// has an XDP program, a program that passes every packet is attached to it.
    pub fn for_sending(&mut self, site: &Site) -> Result<()> {
        let is_card = XdpSending::of(site)? != XdpSending::AsOtherEnd;
        // While this second holder keeps the link, it outlives the program that it was attached for.
        if is_card && let Some(link) = helper_on(site)? {
            self.targets.push((site.index(), link));
        } else if needs_program(site)? {
            let link = hold_passing(site)?;
            self.targets.push((site.index(), link));
            self.note(site.label().to_owned(), true, HELPER);
        }
        self.for_sending_as_is(site)
    }

    /// Ensures the same as [`Self::for_sending`], without a program on the interface.
    pub fn for_sending_as_is(&mut self, site: &Site) -> Result<()> {
        let link = site.link()?;
        let peer = other_end(&mut self.search, site, &link)?;
        // Read under the lock: an unloading command may restore the feature until this need is recorded, and `keep`
        // sets it again then.
        let _features_lock;
        if let Some(peer) = &peer
            && !gro_suffices()
        {
            self.keep_program_on(peer, site)?;
        } else if let Some(peer) = &peer {
            let features_lock = self.lock_features()?;
            self.switch(&features_lock, peer, &[GRO], true, Some((site, &link)))?;
            if !accepts_frames(site)? {
                // The driver checks its peer only when that changes, and may have checked too early.
                set(peer, GRO, false)?;
                set(peer, GRO, true)?;
            }
            _features_lock = features_lock;
        }
        if accepts_frames(site)? {
            return Ok(());
        }
        let what = format!("cannot send XDP frames out of {}", site.label());
        // A veth accepts frames when its other end is ready to poll for them, which requires it to be up.
        if let Some(down) = peer.as_ref().filter(|peer| !peer.link.is_up()) {
            return Err(Error::failed(what, format!("its other end, {}, is down", down.label())).fix(format!(
                "{}ip link set {} up; or use --mode skb",
                down.exec_prefix(),
                word(&down.link.name)
            )));
        }
        if let (None, Some("veth")) = (&peer, link.kind.as_deref()) {
            return Err(Error::failed(
                what,
                "its other end has neither GRO nor a native XDP program, and is in a namespace that cannot be found",
            )
            .fix(IN_STACK));
        }
        sends_frames(site)
    }

    /// Ensures the same as [`Self::for_sending`] for an interface that gets a native program itself. Many cards send
    /// frames only while they have one, so [`sends_frames`] decides when it is attached.
    pub fn for_sending_with_program(&mut self, site: &Site) -> Result<()> {
        let decides_later = match XdpSending::of(site)? {
            XdpSending::WithProgram => true,
            XdpSending::Unknown => site.link()?.kind.is_none(),
            _ => false,
        };
        if decides_later { Ok(()) } else { self.for_sending_as_is(site) }
    }

    /// Ensures that frames that a program on the interface sends back reach the other end: a veth wakes the other end
    /// for them only if that has a program, with or without GRO.
    pub fn for_sending_back(&mut self, site: &Site) -> Result<()> {
        let Some(peer) = other_end(&mut self.search, site, &site.link()?)? else {
            return Ok(());
        };
        // While this second holder keeps the link, it outlives the program that it was attached for.
        let own = Installed::all(site)?;
        if let Some(link) = own.iter().find_map(Installed::peer_link) {
            self.link = Some(link);
            return Ok(());
        }
        if peer.link.xdp.iter().any(|one| one.mode == XdpMode::Native) {
            return Ok(());
        }
        self.link = Some(self.hold_on(&peer)?);
        Ok(())
    }

    /// Ensures that the other end of a veth has a native program.
    fn keep_program_on(&mut self, peer: &Peer, site: &Site) -> Result<()> {
        let to = Site::named(peer.namespace.clone(), &peer.link.name)?;
        // While this second holder keeps the link, it outlives the program that it was attached for.
        if let Some(link) = helper_on(&to)? {
            self.targets.push((site.index(), link));
            return Ok(());
        }
        if !peer.link.xdp.iter().any(|one| one.mode == XdpMode::Native) && peer.link.is_up() {
            let link = self.hold_on(peer)?;
            self.targets.push((site.index(), link));
        }
        Ok(())
    }

    /// Attaches a program that passes every packet to the other end of a veth.
    fn hold_on(&mut self, peer: &Peer) -> Result<OwnedFd> {
        let to = Site::named(peer.namespace.clone(), &peer.link.name)?;
        let link = hold_passing(&to).map_err(|error| {
            Error::failed(format!("cannot make {} accept XDP frames", peer.label()), error.why()).fix(IN_STACK)
        })?;
        self.note(peer.label(), true, HELPER);
        Ok(link)
    }

    /// Ensures that packets arriving by the interface are complete: with their checksums and tags in them.
    pub fn for_sending_on(&mut self, site: &Site) -> Result<()> {
        let link = site.link()?;
        if let Some(peer) = other_end(&mut self.search, site, &link)? {
            let end_of = Some((site, &link));
            let features_lock = self.lock_features()?;
            return self.switch(&features_lock, &peer, &OF_INCOMPLETE_PACKETS, false, end_of);
        }
        let own = Peer { link, namespace: site.namespace().cloned() };
        let features_lock = self.lock_features()?;
        self.switch(&features_lock, &own, &TAG_REMOVAL, false, None)
    }

    /// Describes the changes for the user.
    pub fn notices(&self) -> Vec<String> {
        let line = |one: &Switched| {
            format!(
                "{} on {} until it is unloaded: {}",
                if one.on { "switched on" } else { "switched off" },
                one.interface,
                one.features.join(", ")
            )
        };
        self.switched.iter().map(line).collect()
    }

    fn note(&mut self, interface: String, on: bool, feature: &str) {
        let same = |one: &&mut Switched| one.interface == interface && one.on == on;
        match self.switched.iter_mut().find(same) {
            Some(one) => one.features.push(feature.to_owned()),
            None => self.switched.push(Switched { interface, on, features: vec![feature.to_owned()] }),
        }
    }

    /// Returns the links that keep programs on other interfaces, with the names of their pins.
    pub(crate) fn helpers(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        let peer = self.link.iter().map(|link| (PEER_LINK.to_owned(), link.as_fd()));
        let targets = self.targets.iter();
        peer.chain(targets.map(|(index, link)| (target_link(*index), link.as_fd())))
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Hands the changes over to a record of a program; they are undone when that program is removed.
    pub fn keep(mut self) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return;
        }
        // The command that unloaded the last program in need of a change may have run before this record existed.
        let _features_lock = FeaturesLock::acquire();
        let (noted, _) = split(changes, &all_changes(None));
        set_all(&noted, true);
    }

    /// Acquires the right to change features, which one command at a time has.
    fn lock_features(&mut self) -> Result<FeaturesLock> {
        if self.lock.is_none() {
            self.lock = acquire_lock()?;
        }
        Ok(FeaturesLock::acquire())
    }

    /// Changes features; those that the driver lacks or keeps fixed are left as they are.
    fn switch(
        &mut self,
        _features_lock: &FeaturesLock,
        interface: &Peer,
        features: &[&str],
        on: bool,
        end_of: Option<(&Site, &LinkRecord)>,
    ) -> Result<()> {
        let ethtool = Ethtool::open(interface.namespace.as_ref(), &interface.link.name)?;
        let namespace = Mark::of(interface.namespace.as_ref())?;
        let end_of = end_of.map(|(site, link)| Ok((Mark::of(site.namespace())?, link.index))).transpose()?;
        let others = all_changes(None);
        let present = ethtool.features()?;
        let by_name = |name: &&str| present.iter().find(|one| one.name == *name);
        let mut new = Vec::new();
        for found in features.iter().filter_map(by_name) {
            let mut change =
                Change { namespace, index: interface.link.index, feature: found.name.clone(), was: found.on, end_of };
            let mut same = others.iter().filter(|other| other.concerns_the_same_as(&change));
            // The last program restores the feature.
            match same.next() {
                Some(shared) => change.was = shared.was,
                None if found.on == on || !found.changeable => continue,
                None => {}
            }
            new.push((change, found.on != on));
        }
        let restore = |change: &Change| {
            Box::new(RestoreFeature { change: change.clone(), lock: self.lock.clone() }) as Box<dyn Undo>
        };
        let switched = new.iter().filter(|(_, is_switched)| *is_switched);
        let tasks: Vec<_> = switched.map(|(change, _)| restore(change)).collect();
        if !tasks.is_empty() {
            self.warden.watch(tasks)?;
        }
        for (change, is_switched) in new {
            if is_switched {
                ethtool.set_feature(&change.feature, on)?;
                self.note(interface.label(), on, &change.feature);
            }
            self.changes.push(change);
        }
        Ok(())
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        if !self.changes.is_empty() {
            undo(&FeaturesLock::acquire(), &self.changes, &|| all_changes(None));
        }
    }
}

thread_local! {
    /// The lock of a command that prepares interfaces, for everything that it loads.
    static HELD_LOCK: RefCell<Weak<Lock>> = const { RefCell::new(Weak::new()) };
}

/// Acquires the right to prepare interfaces, which one command at a time has. It is acquired before the lock of an
/// interface.
pub(crate) fn acquire_lock() -> Result<Option<Arc<Lock>>> {
    if let Some(held) = HELD_LOCK.with_borrow(Weak::upgrade) {
        return Ok(Some(held));
    }
    let Some(directory) = directory() else {
        return Ok(None);
    };
    let lock = Arc::new(make_locked(&directory, Rank::Readiness)?);
    HELD_LOCK.set(Arc::downgrade(&lock));
    Ok(Some(lock))
}

/// Returns the directory that a command locks to prepare interfaces.
fn directory() -> Option<PathBuf> {
    Some(bpffs::lasting()?.join(DIRECTORY).join("ready"))
}

/// Removes the directory left by a killed command.
pub(crate) fn sweep() {
    drop(directory().and_then(|directory| try_lock(&directory, Rank::Readiness)));
}

const HELPER: &str = "an XDP program that passes everything";

/// Removes a program that has been attached natively if its driver nevertheless sends no redirected frames. A veth has
/// been made ready before, and a concurrent command may undo that until [`Readiness::keep`].
pub(crate) fn check_sending(site: &Site, installed: Installed) -> Result<Installed> {
    if installed.mode() == Some(XdpMode::Native)
        && XdpSending::of(site)? != XdpSending::AsOtherEnd
        && let Err(error) = sends_frames(site)
    {
        installed.detach(site)?;
        return Err(error);
    }
    Ok(installed)
}

fn set(interface: &Peer, feature: &str, on: bool) -> Result<()> {
    Ethtool::open(interface.namespace.as_ref(), &interface.link.name)?.set_feature(feature, on)
}
