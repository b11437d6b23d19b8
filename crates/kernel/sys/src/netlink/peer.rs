//! The other end of a veth, wherever it is.

use super::{Link, Netlink};
use crate::error::Result;
use crate::netns::{Look, Namespace, exec_prefix};

/// The other end of a veth.
#[derive(Clone, Debug)]
pub struct Peer {
    pub link: Link,
    /// `None`: the namespace of the calling thread.
    pub namespace: Option<Namespace>,
}

impl Peer {
    /// `veth0`, or `veth0 in NAMESPACE`.
    pub fn label(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} in {}", self.link.name, namespace.label()),
            None => self.link.name.clone(),
        }
    }

    /// What a command for a person needs in front to run in its namespace.
    pub fn exec_prefix(&self) -> String {
        exec_prefix(self.namespace.as_ref())
    }
}

/// Looks for the other end of a veth in the namespaces that can be found; `None` where it is in none of them, or the
/// interface has no other end.
pub fn veth_peer(namespace: Option<&Namespace>, interface: &Link) -> Result<Option<Peer>> {
    veth_peer_in(&mut Look::default(), namespace, interface)
}

/// As [`veth_peer`], for who looks for several.
pub fn veth_peer_in(
    look: &mut Look,
    namespace: Option<&Namespace>,
    interface: &Link,
) -> Result<Option<Peer>> {
    let Some(index) = interface.peer_index else {
        return Ok(None);
    };
    let mut here = Netlink::open(namespace)?;
    let Some(wanted) = interface.peer_namespace_id else {
        let link = here.find_link_by_index(index)?;
        return Ok(link.map(|link| Peer {
            link,
            namespace: namespace.cloned(),
        }));
    };
    let mut failure = None;
    let is_there = |candidate: &Namespace| match here.namespace_id(candidate) {
        Ok(id) => id == Some(wanted),
        Err(error) => {
            failure.get_or_insert(error);
            false
        }
    };
    let Some(there) = look.find(is_there).cloned() else {
        return failure.map_or(Ok(None), Err);
    };
    let link = Netlink::inside(&there)?.find_link_by_index(index)?;
    Ok(link.map(|link| Peer {
        link,
        namespace: Some(there),
    }))
}
