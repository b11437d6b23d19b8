//! The kernel's drop reasons, with their names and the non-losses among them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use trawl_bpf::kernel_types::enumerations;
use trawl_bpf::layout::drop::{DROP_REASON_WORDS, DROP_REASONS};
use trawl_sys::{Error, Result};

/// Suffix of the enumerations of reasons: `skb_drop_reason` in the core, `ovs_drop_reason`, `mac80211_drop_reason` in
/// subsystems, which may be modules.
const LISTS: &str = "_drop_reason";
/// Suffixes of enumerators that are not reasons.
const NO_REASONS: [&str; 2] = ["_MAX", "_MASK"];
const NO_REASON_BEGINS: &str = "__";
/// Prefixes of all names, in the enumeration of the kernel's core and in the subsystems' enumerations.
const PREFIXES: [&str; 3] = ["SKB_DROP_REASON_", "SKB_", "OVS_DROP_"];
/// Reasons of buffers purged with the socket or the queue that held them.
pub const UNWANTED: [&str; 3] = ["NOT_DROPPED_YET", "CONSUMED", "QUEUE_PURGE"];
/// Reasons of packets to a group that no socket of this machine has joined.
pub const UNWANTED_IN_GROUP: [&str; 8] = [
    "NO_TX_TARGET",
    "NOT_SPECIFIED",
    "NO_SOCKET",
    "UNHANDLED_PROTO",
    "IP_INVALID_DEST",
    "IP_INNOROUTES",
    "IP_INADDRERRORS",
    "UNICAST_IN_L2_MULTICAST",
];
/// Reasons with which the kernel frees a packet after a raw socket or a DHCP client received a copy.
pub const MAY_BE_COPIED: [&str; 7] = [
    "NOT_SPECIFIED",
    "NO_SOCKET",
    "UNHANDLED_PROTO",
    "IP_INVALID_DEST",
    "IP_INNOROUTES",
    "IP_INADDRERRORS",
    "OTHERHOST",
];
/// Reasons of TCP segments with old data, and of resets that have ended a connection.
pub const DONE: [&str; 4] = ["TCP_OLD_DATA", "TCP_OLD_SEQUENCE", "TCP_OFOMERGE", "TCP_RESET"];
/// Reasons of TCP segments without payload that have served their purpose: acknowledgements, and segments for a
/// connection in TIME_WAIT.
pub const DONE_IF_EMPTY: [&str; 5] =
    ["NOT_SPECIFIED", "TCP_OLD_ACK", "TCP_RFC7323_PAWS", "TCP_RFC7323_PAWS_ACK", "TCP_CLOSE"];
/// Reasons of TCP segments for a connection that is closed here, which have served their purpose if they only say that
/// the sender closes as well (TLS's close_notify).
pub const DONE_IF_GOODBYE: [&str; 3] = ["NOT_SPECIFIED", "TCP_CLOSE", "TCP_ABORT_ON_DATA"];
/// Reason of TCP segments without a connection, which are no loss if they reset or end it.
pub const DONE_IF_END: [&str; 1] = ["NO_SOCKET"];
/// Reason of a packet that a socket's filter rejects.
pub const FILTERED: [&str; 1] = ["SOCKET_FILTER"];
/// Minimum length of a common part of a similar name, and maximum number of similar names.
const LIKE_LEAST: usize = 3;
const LIKE_MOST: usize = 6;
const REASON_XDP: &str = "XDP";
const REASON_NETFILTER: &str = "NETFILTER_DROP";
const REASON_NONE: &str = "NOT_SPECIFIED";

/// One bit for each reason.
pub type Bits = [u64; DROP_REASON_WORDS];

/// The reasons of the running kernel.
#[derive(Debug, Default)]
pub struct Reasons {
    names: BTreeMap<u32, String>,
}

/// Returns names that share a part with an unknown one, longest match first.
pub fn similar<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_ascii_uppercase();
    let words = || name.split('_').filter(|word| word.len() >= LIKE_LEAST);
    let common = |one: &str| -> usize { words().filter(|word| one.contains(word)).map(str::len).sum() };
    let mut found: Vec<(usize, &str)> = all.map(|one| (common(one), one)).filter(|(common, _)| *common > 0).collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    found.truncate(LIKE_MOST);
    found.into_iter().map(|(_, one)| one).collect()
}

impl Reasons {
    pub fn of_kernel() -> Result<Self> {
        let fail = |e| Error::os("cannot read the kernel's type information", e);
        let mut names = BTreeMap::new();
        for (name, value) in enumerations(LISTS).map_err(fail)? {
            let is_reason = !NO_REASONS.iter().any(|end| name.ends_with(end)) && !name.starts_with(NO_REASON_BEGINS);
            if is_reason && let Ok(number) = u32::try_from(value & i64::from(u32::MAX)) {
                names.entry(number).or_insert_with(|| short(&name).to_owned());
            }
        }
        Ok(Self { names })
    }

    /// Returns true if the kernel gives no reasons (before 5.17).
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the kernel's name of a reason, or else its number.
    pub fn name(&self, reason: u32) -> Cow<'_, str> {
        self.names.get(&reason).map_or_else(|| Cow::Owned(reason.to_string()), |name| Cow::Borrowed(name.as_str()))
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        self.names.iter().find(|(_, one)| one.eq_ignore_ascii_case(name)).map(|(number, _)| *number)
    }

    pub fn xdp(&self) -> u32 {
        self.number(REASON_XDP).unwrap_or(0)
    }

    pub fn netfilter(&self) -> u32 {
        self.number(REASON_NETFILTER).unwrap_or(0)
    }

    /// Returns the reason for unspecified drops.
    pub fn none(&self) -> u32 {
        self.number(REASON_NONE).unwrap_or(0)
    }

    /// Returns all names, in the order of their numbers.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.names.values().map(String::as_str)
    }

    /// Parses a list of names; numbers stand for themselves.
    pub fn parse(&self, list: &[String]) -> Result<Vec<u32>> {
        let one = |name: &String| {
            let plain = short(name);
            self.number(plain).or_else(|| plain.parse().ok()).ok_or_else(|| {
                let like = similar(plain, self.all());
                let why = if like.is_empty() {
                    "the running kernel has no reason of that name".to_owned()
                } else {
                    format!("the running kernel has no reason of that name; it has {}", like.join(", "))
                };
                Error::usage(format!("cannot choose drops by the reason {name}"), why)
                    .fix("--reason help lists all reasons")
            })
        };
        list.iter().map(one).collect()
    }

    /// Returns a bit for each of these names that the running kernel has.
    pub fn bits(&self, names: &[&str]) -> Bits {
        let numbers: Vec<u32> = names.iter().filter_map(|name| self.number(name)).collect();
        bits(&numbers)
    }
}

/// Returns a bit for each of these reasons.
pub fn bits(reasons: &[u32]) -> Bits {
    let mut bits = [0; DROP_REASON_WORDS];
    for reason in reasons {
        if let Some(word) = bits.get_mut(*reason as usize / 64) {
            *word |= 1 << (reason % 64);
        }
    }
    bits
}

/// Returns true if a reason belongs to a subsystem rather than to the kernel's core.
pub fn is_of_subsystem(reason: u32) -> bool {
    reason as usize >= DROP_REASONS
}

fn short(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons() -> Reasons {
        let names = [(0, "NOT_DROPPED_YET"), (2, "NOT_SPECIFIED"), (104, "QUEUE_PURGE")];
        Reasons { names: names.into_iter().map(|(number, name)| (number, name.to_owned())).collect() }
    }

    #[test]
    fn names_are_accepted_with_and_without_their_prefix() {
        let list = ["queue_purge", "SKB_DROP_REASON_NOT_SPECIFIED", "131074"].map(str::to_owned);
        assert_eq!(reasons().parse(&list).unwrap(), [104, 2, 131_074]);
        let wrong = reasons().parse(&["queue_purged".to_owned(), "NO_SUCH".to_owned()]);
        let message = wrong.unwrap_err().to_string();
        assert!(message.contains("queue_purged") && message.contains("it has QUEUE_PURGE"));
        assert_eq!(reasons().name(2), "NOT_SPECIFIED");
        assert_eq!(reasons().name(3), "3");
    }

    #[test]
    fn purges_are_not_losses_and_unknown_reasons_are() {
        let none = reasons().bits(&UNWANTED);
        let has = |reason: usize| none[reason / 64] >> (reason % 64) & 1 == 1;
        assert!(has(104) && has(0) && !has(2) && !has(300));
    }
}
