//! What a network namespace is known by in notes that may outlive it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::look::number;
use super::{Look, Namespace, in_first_process_namespace, run_maybe_in};
use crate::error::{Error, Result};
use crate::mounts;
use crate::socket_option;

/// No other namespace has it, or will have it until the machine starts anew.
///
/// The kernel gives the inode number of a namespace that is gone to the next one that is made, so that alone names only
/// those that are held open. The cookie is given once, but takes entering the namespace to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    inode: u64,
    cookie: u64,
}

impl Mark {
    /// `None`: the namespace that the calling thread is in.
    pub fn of(namespace: Option<&Namespace>) -> Result<Self> {
        let inode = match namespace {
            Some(namespace) => namespace.identity().1,
            None => Namespace::current()?.identity().1,
        };
        let cookie = cookie(namespace)?;
        Ok(Self { inode, cookie })
    }

    fn is_of(&self, namespace: &Namespace) -> bool {
        namespace.identity().1 == self.inode
            && cookie(Some(namespace)).is_ok_and(|cookie| cookie == self.cookie)
    }

    /// The namespace, if there is a way to it.
    pub fn find(&self, look: &mut Look) -> Option<Namespace> {
        let one = look.numbered(self.inode)?;
        self.is_of(one).then(|| one.clone())
    }

    /// Whether the namespace is certainly no more: none of those that can be found, and nothing hides others. A container
    /// may see notes about namespaces that it does not see. The look must have begun after the note was made.
    pub fn is_gone(&self, look: &mut Look) -> bool {
        if let Some(one) = look.numbered(self.inode) {
            return cookie(Some(one)).is_ok_and(|cookie| cookie != self.cookie);
        }
        if look.is_cut_short() || !in_first_process_namespace() {
            return false;
        }
        // A mount that leads nowhere from here keeps it, too, as does one that was made while processes were looked at.
        let mut mounts = ["self", "1"]
            .into_iter()
            .flat_map(|process| mounts::of_kind("nsfs", process));
        mounts.all(|mount| number(&mount.part) != Some(self.inode))
    }
}

/// In letters that the BPF file system takes for a name.
impl fmt::Display for Mark {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}_{}", self.inode, self.cookie)
    }
}

/// It is not the text of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMark;

impl FromStr for Mark {
    type Err = NoMark;

    fn from_str(text: &str) -> std::result::Result<Self, NoMark> {
        let (inode, cookie) = text.split_once('_').ok_or(NoMark)?;
        let number = |text: &str| text.parse().map_err(|_| NoMark);
        Ok(Self {
            inode: number(inode)?,
            cookie: number(cookie)?,
        })
    }
}

/// The kernel's own number for the namespace (`None`: the calling thread's), given once.
pub fn cookie(namespace: Option<&Namespace>) -> Result<u64> {
    let known = namespace.map(|namespace| &*namespace.cookie);
    if let Some(cookie) = known.and_then(OnceLock::get) {
        return Ok(*cookie);
    }
    let ask = || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        socket_option::get(&socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0u64)
    };
    let asked = run_maybe_in(namespace, ask)?
        .map_err(|e: std::io::Error| Error::os("cannot tell which network namespace this is", e))?;
    Ok(known.map_or(asked, |known| *known.get_or_init(|| asked)))
}
