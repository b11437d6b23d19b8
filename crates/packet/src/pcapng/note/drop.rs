//! The comment of a dropped packet.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use serde::{Serialize, Serializer};

use super::{Note, OwnerNote, Word, keys, put, words};
use crate::freed::Freed;

/// The end of a packet, as seen by the drop tap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DropNote<'a> {
    /// The kernel's own name for the reason, or its number; empty for a packet that is not dropped.
    pub reason: &'a str,
    /// The function that dropped the packet, and the offset in it; empty if unknown.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub at: &'a str,
    /// The network namespace: its name, or its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<&'a str>,
    /// Number of packets that one of several segments stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<LocalSocket<'a>>,
    /// The socket's local address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of the process that has the socket open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<&'a str>,
    /// The comment on the process or socket, as in packets that are not dropped.
    #[serde(skip)]
    pub owner: Option<OwnerNote<'a>>,
    /// Size of the receive buffer that was full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u32>,
    /// The meaning of the drop: a loss, or a kind of non-loss.
    #[serde(skip_serializing_if = "Freed::is_loss")]
    pub no_loss: Freed,
    /// The rule of nftables that dropped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule<'a>>,
    /// The number of the cgroup whose programs dropped it as a received packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<u64>,
    /// The functions that led to the drop, the innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<&'a str>,
}

/// A socket's protocol and local port: `udp:53`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSocket<'a> {
    pub protocol: &'a str,
    pub port: u16,
}

/// A rule of nftables, or a chain's policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule<'a> {
    pub family: Cow<'a, str>,
    pub table: Cow<'a, str>,
    pub chain: Cow<'a, str>,
    /// `None` for the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
}

const REASON: &str = keys::REASON.word;
const CGROUP: &str = "cgroup:";

impl<'a> Note<'a> for DropNote<'a> {
    fn write(&self, out: &mut String) {
        self.write_end(out);
        self.write_facts(out);
    }

    fn parse(text: &'a str) -> Option<Self> {
        let mut note = Self::default();
        let mut fields = words(text);
        let (_, reason) = fields.next().filter(|(key, _)| *key == REASON)?;
        note.reason = reason;
        fields.for_each(|(key, value)| note.read(key, value));
        Some(note)
    }
}

impl<'a> DropNote<'a> {
    /// Appends the words for the reason and the function.
    pub(super) fn write_end(&self, out: &mut String) {
        let known = |text: &'a str| Some(Word(text)).filter(|_| !text.is_empty());
        put(out, &keys::REASON, known(self.reason));
        put(out, &keys::AT, known(self.at));
    }

    /// Appends the other words.
    pub(super) fn write_facts(&self, out: &mut String) {
        let Self { reason: _, at: _, netns, segments, socket, address, pid, command, .. } = self;
        let Self { owner, receive_buffer, no_loss, rule, cgroup, stack, .. } = self;
        put(out, &keys::NETNS, netns.map(Word));
        put(out, &keys::SEGMENTS, *segments);
        put(out, &keys::SOCK, *socket);
        put(out, &keys::ADDRESS, *address);
        put(out, &keys::PID, *pid);
        put(out, &keys::COMMAND, command.map(Word));
        if let Some(text) = owner.as_ref().map(OwnerNote::text) {
            let _ = write!(out, " {}", Word(&text));
        }
        put(out, &keys::RECEIVE_BUFFER, *receive_buffer);
        put(out, &keys::NO_LOSS, no_loss.word());
        put(out, &keys::DROPPER, cgroup.map(|number| format!("{CGROUP}{number}")));
        if let Some(Rule { family, table, chain, handle }) = rule {
            put(out, &keys::RULE, Some(format_args!("{},{},{}", Word(family), Word(table), Word(chain))));
            let _ = handle.map_or(Ok(()), |handle| write!(out, ",{handle}"));
        }
        put(out, &keys::STACK, (!stack.is_empty()).then(|| stack.join(",")));
    }

    /// Stores the value of a word. Skips an unknown word.
    pub(super) fn read(&mut self, key: &str, value: &'a str) {
        match key {
            REASON => self.reason = value,
            "at" => self.at = value,
            "netns" => self.netns = Some(value),
            "segs" => self.segments = value.parse().ok(),
            "sock" => self.socket = LocalSocket::parse(value),
            "addr" => self.address = value.parse().ok(),
            "pid" => self.pid = value.parse().ok(),
            "comm" => self.command = Some(value),
            "rcvbuf" => self.receive_buffer = value.parse().ok(),
            "loss" => self.no_loss = Freed::of_word(value),
            "by" => self.cgroup = value.strip_prefix(CGROUP).and_then(|number| number.parse().ok()),
            "rule" => self.rule = Rule::parse(value),
            "stack" => self.stack = value.split(',').filter(|one| !one.is_empty()).collect(),
            _ => self.owner = OwnerNote::of_word(key, value).or(self.owner.take()),
        }
    }

    /// Returns the name of the function without the offset.
    pub fn function(&self) -> &'a str {
        self.at.split('+').next().unwrap_or(self.at)
    }
}

impl<'a> LocalSocket<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (protocol, port) = text.rsplit_once(':')?;
        Some(Self { protocol, port: port.parse().ok()? })
    }
}

impl fmt::Display for LocalSocket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.protocol, self.port)
    }
}

impl Serialize for LocalSocket<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'a> Rule<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (family, rest) = text.split_once(',')?;
        let (table, chain) = rest.split_once(',')?;
        let (chain, handle) = match chain.rsplit_once(',') {
            Some((chain, handle)) => (chain, Some(handle.parse().ok()?)),
            None => (chain, None),
        };
        Some(Self { family: family.into(), table: table.into(), chain: chain.into(), handle })
    }
}

/// Writes `rule 4 of inet f in` or `policy of inet f in`.
impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.handle {
            Some(handle) => write!(f, "rule {handle}")?,
            None => write!(f, "policy")?,
        }
        write!(f, " of {} {} {}", self.family, self.table, self.chain)
    }
}

/// Writes the end of a line: `NETFILTER_DROP at nft_do_chain+0x3e8 in pb`.
impl fmt::Display for DropNote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        if !self.at.is_empty() {
            write!(f, " at {}", self.at)?;
        }
        if let Some(netns) = self.netns {
            write!(f, " in {netns}")?;
        }
        if let Some(rule) = &self.rule {
            write!(f, ", {rule}")?;
        }
        if let Some(segments) = self.segments {
            write!(f, ", {segments} segments")?;
        }
        if let Some(socket) = self.socket {
            write!(f, ", socket {socket}")?;
            if let (Some(command), Some(pid)) = (self.command, self.pid) {
                write!(f, " of {command}[{pid}]")?;
            }
        }
        Ok(())
    }
}
