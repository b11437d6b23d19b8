//! The other end of a veth, wherever it is.

use super::{Link, Netlink};
use crate::error::Result;
use crate::netns::{self, Namespace};

/// The other end of a veth.
#[derive(Clone, Debug)]
pub struct Peer {
    pub link: Link,
    /// `None`: the namespace of the calling thread.
    pub namespace: Option<Namespace>,
}

/// Looks for the other end of a veth in the namespaces that can be found; `None` where it is in none of them, or the
/// interface has no other end.
pub fn veth_peer(namespace: Option<&Namespace>, interface: &Link) -> Result<Option<Peer>> {
    let Some(index) = interface.peer_index else {
        return Ok(None);
    };
    let Some(wanted) = interface.peer_namespace_id else {
        let link = Netlink::open(namespace)?.find_link_by_index(index)?;
        return Ok(link.map(|link| Peer {
            link,
            namespace: namespace.cloned(),
        }));
    };
    let mut here = Netlink::open(namespace)?;
    for candidate in netns::findable() {
        if here.namespace_id(&candidate)? == Some(wanted) {
            let link = Netlink::inside(&candidate)?.find_link_by_index(index)?;
            return Ok(link.map(|link| Peer {
                link,
                namespace: Some(candidate),
            }));
        }
    }
    Ok(None)
}
