//! Features of interfaces that were switched for programs: how they are put back, and how it is told that somebody else
//! did so.

use std::path::Path;

use serde::{Deserialize, Serialize};
use trawl_kernel::ethtool::{Ethtool, Feature};
use trawl_kernel::lock::{self, Rank};
use trawl_kernel::netlink::{Netlink, Peer, veth_peer_in};
use trawl_kernel::netns::{Look, Mark};

use crate::installed::all_changes;

/// A feature of an interface that was switched for a program's sake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub(super) namespace: Mark,
    pub(super) index: u32,
    pub(super) feature: String,
    /// How it was, and is to be again.
    pub(super) was: bool,
    /// The interface that this is the other end of, by which it is found when it has moved to another namespace.
    #[serde(default)]
    pub(super) end_of: Option<(Mark, u32)>,
}

impl Change {
    pub(super) fn concerns_the_same_as(&self, other: &Self) -> bool {
        (self.namespace, self.index, &self.feature)
            == (other.namespace, other.index, &other.feature)
    }

    fn is_on_the_same_as(&self, other: &Self) -> bool {
        (self.namespace, self.index, self.end_of) == (other.namespace, other.index, other.end_of)
    }

    /// The interface, wherever it is now.
    fn interface(&self, look: &mut Look) -> Option<Peer> {
        let near = self.end_of.and_then(|known| interface_of(known, look));
        let found =
            near.and_then(|near| veth_peer_in(look, near.namespace.as_ref(), &near.link).ok()?);
        found.or_else(|| interface_of((self.namespace, self.index), look))
    }
}

fn interface_of((namespace, index): (Mark, u32), look: &mut Look) -> Option<Peer> {
    let namespace = namespace.find(look)?;
    let link = Netlink::inside(&namespace).ok()?.find_link_by_index(index);
    Some(Peer {
        link: link.ok()??,
        namespace: Some(namespace),
    })
}

/// The right to switch features for programs. The command that puts some back keeps it until the note of them is gone too: of two
/// at once, each would leave it to the other.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: Option<lock::Lock>,
}

impl Turn {
    pub fn take() -> Self {
        // What is put back is put back without the lock too.
        Self {
            _lock: lock::Lock::take(Rank::Features, "features").ok(),
        }
    }
}

/// Puts features back as they were, but for those that programs still need, other than the one with this directory.
pub(crate) fn undo(_turn: &Turn, changes: &[Change], of: Option<&Path>) {
    if changes.is_empty() {
        return;
    }
    let (_, leftover) = split(changes.to_vec(), &all_changes(of));
    set_all(&leftover, false);
    // A command that loads a program may have found them switched just before, and have noted since that it needs them.
    let (needed, _) = split(leftover, &all_changes(of));
    set_all(&needed, true);
}

/// Those that are among the others too, and the rest.
pub(super) fn split(changes: Vec<Change>, others: &[Change]) -> (Vec<Change>, Vec<Change>) {
    let is_there = |one: &Change| others.iter().any(|other| other.concerns_the_same_as(one));
    changes.into_iter().partition(is_there)
}

/// Switches features as a program needs them, or as they were. Where the namespace or the interface is gone, there is
/// nothing to do.
pub(super) fn set_all(changes: &[Change], as_needed: bool) {
    for (there, changes) in by_interface(changes) {
        let Ok(ethtool) = Ethtool::open(there.namespace.as_ref(), &there.link.name) else {
            continue;
        };
        for change in changes {
            let _ = ethtool.set_feature(&change.feature, change.was != as_needed);
        }
    }
}

/// What was made ready on other interfaces, and somebody has switched back, in words.
pub(crate) fn lost(changes: &[Change]) -> Vec<String> {
    let mut lost = Vec::new();
    for (there, changes) in by_interface(changes) {
        let features = Ethtool::open(there.namespace.as_ref(), &there.link.name)
            .and_then(|ethtool| ethtool.features())
            .unwrap_or_default();
        for change in changes {
            let is_lost = |one: &&Feature| one.name == change.feature && one.on == change.was;
            let found = features.iter().find(is_lost);
            lost.extend(found.map(|one| {
                format!(
                    "{} is {} again on {}, which trawl had switched for it",
                    one.name,
                    if one.on { "on" } else { "off" },
                    there.label()
                )
            }));
        }
    }
    lost
}

/// The changes of each interface that is still there.
fn by_interface(changes: &[Change]) -> Vec<(Peer, Vec<&Change>)> {
    let mut groups: Vec<Vec<&Change>> = Vec::new();
    for change in changes {
        let same = |group: &&mut Vec<&Change>| group[0].is_on_the_same_as(change);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(change),
            None => groups.push(vec![change]),
        }
    }
    let mut look = Look::default();
    let found = groups
        .into_iter()
        .filter_map(|group| Some((group[0].interface(&mut look)?, group)));
    found.collect()
}
