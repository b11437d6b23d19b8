//! What a network namespace is known by in notes that may outlive it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Namespace, findable, in_first_process_namespace, run_maybe_in};
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

    pub fn is_of(&self, namespace: &Namespace) -> bool {
        namespace.identity().1 == self.inode
            && cookie(Some(namespace)).is_ok_and(|cookie| cookie == self.cookie)
    }

    /// The namespace, if it is among these.
    pub fn find_in<'a>(&self, namespaces: &'a [Namespace]) -> Option<&'a Namespace> {
        namespaces.iter().find(|one| self.is_of(one))
    }

    /// Whether the namespace is certainly no more: it is none of these, which are all that can be found, and nothing
    /// hides others. A container may see notes about namespaces that it does not see.
    pub fn is_gone(&self, findable: &[Namespace]) -> bool {
        let same_number = |one: &&Namespace| one.identity().1 == self.inode;
        if let Some(one) = findable.iter().find(same_number) {
            return cookie(Some(one)).is_ok_and(|cookie| cookie != self.cookie);
        }
        let part = format!("net:[{}]", self.inode);
        let elsewhere = mounts::of_kind("nsfs", "1");
        in_first_process_namespace() && elsewhere.iter().all(|mount| mount.part != part)
    }

    /// The namespace, if there is a way to it.
    pub fn find(&self) -> Option<Namespace> {
        self.find_in(&findable()).cloned()
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
    let ask = || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        socket_option::get(&socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0u64)
    };
    run_maybe_in(namespace, ask)?
        .map_err(|e: std::io::Error| Error::os("cannot tell which network namespace this is", e))
}
