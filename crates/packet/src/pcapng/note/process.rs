//! Comments on processes, their sockets, containers and pods.

use std::borrow::Cow;
use std::fmt;

use super::{Note, Word, keys, put, words};

/// The process of a packet: `process=curl[1234]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessNote<'a> {
    pub name: &'a str,
    pub id: u32,
}

/// The process of a packet and more about it, for readers that do not know the blocks of processes:
/// `process=curl[1234] uid=1000 container=0123456789ab`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFacts<'a> {
    pub process: ProcessNote<'a>,
    pub user: Option<u32>,
    pub container: Option<&'a str>,
    /// The number of the pod.
    pub pod: Option<&'a str>,
}

word_enum! {
    /// Reason why a process is named that may not be the one that uses the socket.
    Owner {
        /// It owns the listening socket.
        Listener = "listener",
        /// It had the socket when the capture began.
        Existing = "existing",
        /// It has the socket open with others.
        Shared = "shared",
        Sender = "sender",
    }
}

/// The socket of a packet: `socket=77 cgroup=/system.slice/ssh.service owner=shared`. The kernel side writes the comment
/// `owner=…` alone, possibly followed by spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketNote<'a> {
    pub cookie: Option<u64>,
    /// The path of the cgroup, or the number of a removed one.
    pub cgroup: Option<Cow<'a, str>>,
    pub owner: Option<Owner>,
}

/// The comment on the process or on the socket of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerNote<'a> {
    Process(ProcessNote<'a>),
    Socket(SocketNote<'a>),
}

/// Properties of a process for which its block has no field: `container=0123456789ab pod=… cgroup=/… inner_pid=7`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupNote<'a> {
    pub container: Option<&'a str>,
    pub pod: Option<&'a str>,
    /// Path of the cgroup.
    pub cgroup: Option<&'a str>,
    /// The process's number in its own namespace.
    pub inner_pid: Option<u32>,
}

/// The Kubernetes pod of an interface: `pod=default/web-0 labels=app=web`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNote<'a> {
    pub name: &'a str,
    pub labels: Option<&'a str>,
}

const PROCESS: &str = keys::PROCESS.word;
const SOCKET: &str = keys::SOCKET.word;
const OWNER: &str = keys::OWNER.word;
const INNER: &str = keys::INNER_PID.word;

impl<'a> ProcessNote<'a> {
    /// Parses `curl[1234]`.
    pub(super) fn named(text: &'a str) -> Option<Self> {
        let (name, id) = text.strip_suffix(']')?.rsplit_once('[')?;
        Some(Self { name, id: id.parse().ok()? })
    }

    /// Returns the process that a comment names. The comment may be one on a drop or a step.
    pub fn in_comment(text: &'a str) -> Option<Self> {
        let word = || words(text).find(|(key, _)| *key == PROCESS);
        Self::parse(text).or_else(|| Self::named(word()?.1))
    }
}

/// Writes `curl[1234]`.
impl fmt::Display for ProcessNote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.name, self.id)
    }
}

impl<'a> Note<'a> for ProcessNote<'a> {
    fn write(&self, out: &mut String) {
        put(out, &keys::PROCESS, Some(self));
    }

    fn parse(text: &'a str) -> Option<Self> {
        ProcessFacts::parse(text).map(|facts| facts.process)
    }
}

impl<'a> Note<'a> for ProcessFacts<'a> {
    fn write(&self, out: &mut String) {
        self.process.write(out);
        put(out, &keys::USER, self.user);
        put(out, &keys::CONTAINER, self.container.map(Word));
        put(out, &keys::PROCESS_POD_KEY, self.pod.map(Word));
    }

    fn parse(text: &'a str) -> Option<Self> {
        let (_, mut rest) = text.split_once('=').filter(|(key, _)| *key == PROCESS)?;
        let (mut user, mut container, mut pod) = (None, None, None);
        // The name may contain anything, and the words after the process no bracket.
        while !rest.ends_with(']') {
            let (before, word) = rest.rsplit_once(' ')?;
            rest = before;
            match word.split_once('=') {
                Some(("uid", value)) => user = value.parse().ok(),
                Some(("container", value)) => container = Some(value),
                Some(("pod", value)) => pod = Some(value),
                _ => {}
            }
        }
        Some(Self { process: ProcessNote::named(rest)?, user, container, pod })
    }
}

impl<'a> SocketNote<'a> {
    /// Parses the text after a comment's first key; `separator` is a space, or `_` in a word of another comment. The
    /// last `owner` is the right one, because users choose the names of their cgroups.
    fn read(key: &str, value: &'a str, separator: &str) -> Option<Self> {
        let (before, owner) = match key {
            OWNER => ("", value),
            SOCKET => value.rsplit_once(&format!("{separator}{OWNER}=")).unwrap_or((value, "")),
            _ => return None,
        };
        let (cookie, cgroup) = before.split_once(&format!("{separator}cgroup=")).unzip();
        let note = Self {
            cookie: cookie.unwrap_or(before).parse().ok(),
            cgroup: cgroup.map(Cow::from),
            owner: Owner::of_word(owner.trim_end_matches(separator)),
        };
        (note != Self::default()).then_some(note)
    }
}

impl<'a> Note<'a> for SocketNote<'a> {
    fn write(&self, out: &mut String) {
        put(out, &keys::SOCKET, self.cookie);
        put(out, &keys::SOCKET_PATH, self.cgroup.as_ref());
        put(out, &keys::OWNER, self.owner);
    }

    fn parse(text: &'a str) -> Option<Self> {
        let (key, value) = text.split_once('=')?;
        Self::read(key, value, " ")
    }
}

impl<'a> OwnerNote<'a> {
    /// Parses a word of another comment.
    pub(super) fn of_word(key: &str, value: &'a str) -> Option<Self> {
        match key {
            PROCESS => ProcessNote::named(value).map(Self::Process),
            _ => SocketNote::read(key, value, "_").map(Self::Socket),
        }
    }
}

impl<'a> Note<'a> for OwnerNote<'a> {
    fn write(&self, out: &mut String) {
        match self {
            Self::Process(note) => note.write(out),
            Self::Socket(note) => note.write(out),
        }
    }

    fn parse(text: &'a str) -> Option<Self> {
        let socket = || SocketNote::parse(text).map(Self::Socket);
        ProcessNote::parse(text).map(Self::Process).or_else(socket)
    }
}

impl<'a> Note<'a> for CgroupNote<'a> {
    fn write(&self, out: &mut String) {
        put(out, &keys::CONTAINER, self.container);
        put(out, &keys::PROCESS_POD_KEY, self.pod);
        put(out, &keys::PROCESS_PATH, self.cgroup);
        put(out, &keys::INNER_PID, self.inner_pid);
    }

    fn parse(text: &'a str) -> Option<Self> {
        // Text in the path is no field, because users choose the names of their cgroups.
        let (fields, path) = text.split_once("cgroup=").unzip();
        let (cgroup, inner) = path.and_then(|path| path.rsplit_once(&format!(" {INNER}="))).unzip();
        let mut note = Self { cgroup: cgroup.or(path), ..Self::default() };
        let inner = inner.map(|id| (INNER, id));
        for (key, value) in words(fields.unwrap_or(text)).chain(inner) {
            match key {
                "container" => note.container = Some(value),
                "pod" => note.pod = Some(value),
                INNER => note.inner_pid = value.parse().ok(),
                _ => {}
            }
        }
        (note != Self::default()).then_some(note)
    }
}

impl<'a> Note<'a> for PodNote<'a> {
    fn write(&self, out: &mut String) {
        put(out, &keys::INTERFACE_POD, Some(self.name));
        put(out, &keys::LABELS, self.labels);
    }

    fn parse(text: &'a str) -> Option<Self> {
        let pod = text.strip_prefix("pod=")?;
        let (name, labels) = pod.split_once(" labels=").unzip();
        Some(Self { name: name.unwrap_or(pod), labels })
    }
}
