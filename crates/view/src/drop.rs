//! The comment of a dropped packet: `key=value` pairs, of which the first is the reason.

use std::fmt;

use serde::Serialize;
use trawl_packet::freed::Freed;

/// A packet's end, as reported by the tap at drops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drop<'a> {
    /// The kernel's own name for the reason, or its number.
    pub reason: &'a str,
    /// The function that dropped the packet, and the offset in it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub at: &'a str,
    /// The network namespace: its name, or its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<&'a str>,
    /// Number of packets that one of several segments stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    /// The socket's protocol and local port: `udp:53`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Name of the process that has the socket open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<&'a str>,
    /// Size of the receive buffer that was full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u32>,
    /// The kind of a packet that is no loss.
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

/// A rule of nftables, or a chain's policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule<'a> {
    pub family: &'a str,
    pub table: &'a str,
    pub chain: &'a str,
    /// `None` for the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
}

impl<'a> Rule<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (family, rest) = text.split_once(',')?;
        let (table, chain) = rest.split_once(',')?;
        let (chain, handle) = match chain.rsplit_once(',') {
            Some((chain, handle)) => (chain, Some(handle.parse().ok()?)),
            None => (chain, None),
        };
        Some(Self { family, table, chain, handle })
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

impl<'a> Drop<'a> {
    /// Parses a drop's comment; `None` for any other comment. Unknown keys are skipped.
    pub fn parse(comment: &'a str) -> Option<Self> {
        let reason = comment.strip_prefix("drop=")?;
        let reason = reason.split(' ').next()?;
        let mut drop = Self { reason, ..Self::default() };
        let fields = comment.split(' ').filter_map(|word| word.split_once('='));
        for (key, value) in fields.skip(1) {
            match key {
                "at" => drop.at = value,
                "netns" => drop.netns = Some(value),
                "segs" => drop.segments = value.parse().ok(),
                "sock" => drop.socket = Some(value),
                "addr" => drop.address = Some(value),
                "pid" => drop.pid = value.parse().ok(),
                "rcvbuf" => drop.receive_buffer = value.parse().ok(),
                "loss" => drop.no_loss = Freed::of_word(value),
                "by" => drop.cgroup = value.strip_prefix("cgroup:").and_then(|id| id.parse().ok()),
                "rule" => drop.rule = Rule::parse(value),
                "comm" => drop.command = Some(value),
                "stack" => drop.stack = value.split(',').filter(|one| !one.is_empty()).collect(),
                _ => {}
            }
        }
        Some(drop)
    }

    /// Returns the name of the function without the offset.
    pub fn function(&self) -> &'a str {
        self.at.split('+').next().unwrap_or(self.at)
    }
}

/// Writes the end of a line: `NETFILTER_DROP at nft_do_chain+0x3e8 in pb`.
impl fmt::Display for Drop<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_read_back() {
        let comment = "drop=SOCKET_RCVBUFF at=__udp_enqueue+0x1 netns=pb segs=3 sock=udp:53 addr=10.9.2.2 pid=4711 comm=dnsd stack=a+0x1,b+0x2";
        let drop = Drop::parse(comment).unwrap();
        assert_eq!(drop.reason, "SOCKET_RCVBUFF");
        assert_eq!(drop.function(), "__udp_enqueue");
        assert_eq!((drop.pid, drop.segments), (Some(4711), Some(3)));
        assert_eq!(drop.stack, ["a+0x1", "b+0x2"]);
        assert_eq!(
            drop.to_string(),
            "SOCKET_RCVBUFF at __udp_enqueue+0x1 in pb, 3 segments, socket udp:53 of dnsd[4711]"
        );
        let full = Drop::parse("drop=SOCKET_RCVBUFF at=x+0x1 rcvbuf=212992").unwrap();
        assert_eq!(full.receive_buffer, Some(212_992));
        let by_rule = "drop=NETFILTER_DROP at=x+0x1 netns=pb rule=inet,f,in,4";
        assert_eq!(Drop::parse(by_rule).unwrap().to_string(), "NETFILTER_DROP at x+0x1 in pb, rule 4 of inet f in");
        let by_cgroup = Drop::parse("drop=SOCKET_FILTER by=cgroup:77").unwrap();
        assert_eq!(by_cgroup.cgroup, Some(77));
        let by_policy = Drop::parse("drop=NETFILTER_DROP rule=ip,filter,INPUT").unwrap();
        assert_eq!(by_policy.rule.unwrap().to_string(), "policy of ip filter INPUT");
        assert_eq!(Drop::parse("redirect to interface 3"), None);
        assert_eq!(Drop::parse("drop=7").unwrap().to_string(), "7");
    }
}
