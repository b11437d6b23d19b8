//! Features of interfaces that were changed for programs, and their restoration.

use serde::{Deserialize, Serialize};
use trawl_attach::Site;
use trawl_sys::Result;
use trawl_sys::files::lock::{self, Rank};
use trawl_sys::netlink::ethtool::{Ethtool, EthtoolFeature};
use trawl_sys::netlink::{LinkRecord, Netlink, Peer, XdpMode, veth_peer_in};
use trawl_sys::netns::{Mark, NamespaceSearch};

/// A feature of an interface that was changed for a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub(crate) namespace: Mark,
    pub(crate) index: u32,
    pub(crate) feature: String,
    /// The value to restore.
    pub(crate) was: bool,
    /// The interface at the other end, by which this one is found if it moved to another namespace.
    #[serde(default)]
    pub(crate) end_of: Option<(Mark, u32)>,
}

impl Change {
    pub(crate) fn concerns_the_same_as(&self, other: &Self) -> bool {
        (self.namespace, self.index, &self.feature) == (other.namespace, other.index, &other.feature)
    }

    fn is_on_the_same_as(&self, other: &Self) -> bool {
        (self.namespace, self.index, self.end_of) == (other.namespace, other.index, other.end_of)
    }

    /// Finds the interface in its current namespace.
    fn interface(&self, search: &mut NamespaceSearch) -> Option<Peer> {
        let near = self.end_of.and_then(|known| interface_of(known, search));
        let found = near.and_then(|near| veth_peer_in(search, near.namespace.as_ref(), &near.link).ok()?);
        found.or_else(|| interface_of((self.namespace, self.index), search))
    }
}

fn interface_of((namespace, index): (Mark, u32), search: &mut NamespaceSearch) -> Option<Peer> {
    let namespace = namespace.find(search)?;
    let link = Netlink::inside(&namespace).ok()?.find_link_by_index(index);
    Some(Peer { link: link.ok()??, namespace: Some(namespace) })
}

/// The exclusive right to change features for programs. A command that restores features keeps it until their record is
/// gone too: otherwise, of two concurrent commands, each would leave the restoration to the other.
#[derive(Debug)]
pub(crate) struct FeaturesLock {
    _lock: Option<lock::Lock>,
}

impl FeaturesLock {
    pub fn acquire() -> Self {
        // Features are restored even without the lock.
        Self { _lock: lock::Lock::acquire(Rank::Features, "features").ok() }
    }
}

/// Restores features, except those that other programs still need.
pub(crate) fn undo(_lock: &FeaturesLock, changes: &[Change], others: &dyn Fn() -> Vec<Change>) {
    if changes.is_empty() {
        return;
    }
    let (_, leftover) = split(changes.to_vec(), &others());
    set_all(&leftover, false);
    // A command that loads a program may have found the features changed, and have recorded since that it needs them.
    let (needed, _) = split(leftover, &others());
    set_all(&needed, true);
}

/// Splits changes into those that are also among the others, and the rest.
pub(crate) fn split(changes: Vec<Change>, others: &[Change]) -> (Vec<Change>, Vec<Change>) {
    let is_there = |one: &Change| others.iter().any(|other| other.concerns_the_same_as(one));
    changes.into_iter().partition(is_there)
}

/// Sets features as a program needs them, or as they were before. Vanished namespaces and interfaces are skipped.
pub(crate) fn set_all(changes: &[Change], as_needed: bool) {
    for (device, changes) in by_interface(changes) {
        let Ok(ethtool) = Ethtool::open(device.namespace.as_ref(), &device.link.name) else {
            continue;
        };
        for change in changes {
            let _ = ethtool.set_feature(&change.feature, change.was != as_needed);
        }
    }
}

/// Describes changes to other interfaces that another tool has undone.
pub(crate) fn lost(changes: &[Change]) -> Vec<String> {
    let mut lost = Vec::new();
    for (device, changes) in by_interface(changes) {
        let features = Ethtool::open(device.namespace.as_ref(), &device.link.name)
            .and_then(|ethtool| ethtool.features())
            .unwrap_or_default();
        for change in changes {
            let is_lost = |one: &&EthtoolFeature| one.name == change.feature && one.on == change.was;
            let found = features.iter().find(is_lost);
            lost.extend(found.map(|one| {
                format!(
                    "{} is {} again on {}, where trawl had changed it for this program",
                    one.name,
                    if one.on { "on" } else { "off" },
                    device.label()
                )
            }));
        }
    }
    lost
}

/// Groups the changes by interface, leaving out vanished ones.
fn by_interface(changes: &[Change]) -> Vec<(Peer, Vec<&Change>)> {
    let mut groups: Vec<Vec<&Change>> = Vec::new();
    for change in changes {
        let same = |group: &&mut Vec<&Change>| group[0].is_on_the_same_as(change);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(change),
            None => groups.push(vec![change]),
        }
    }
    let mut search = NamespaceSearch::default();
    let found = groups.into_iter().filter_map(|group| Some((group[0].interface(&mut search)?, group)));
    found.collect()
}

/// Explains that frames sent back do not arrive because the program on the other end was removed.
pub(crate) fn why_sent_back_is_lost(site: &Site) -> Option<String> {
    let peer = other_end(&mut NamespaceSearch::default(), site, &site.link().ok()?).ok()??;
    let is_received = peer.link.xdp.iter().any(|one| one.mode == XdpMode::Native);
    (!is_received).then(|| {
        format!(
            "the XDP program that trawl had put on {} is gone, and without one it drops everything sent back",
            peer.label()
        )
    })
}

pub(crate) fn other_end(search: &mut NamespaceSearch, site: &Site, link: &LinkRecord) -> Result<Option<Peer>> {
    match link.kind.as_deref() {
        Some("veth") => veth_peer_in(search, site.namespace(), link),
        _ => Ok(None),
    }
}
