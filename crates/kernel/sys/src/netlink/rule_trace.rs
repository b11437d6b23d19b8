//! Tracing of packets through the rules of nftables: a table of trawl's own marks packets, and the kernel reports each
//! rule's verdict on them.

use std::collections::HashMap;
use std::process;
use std::time::Duration;

use super::socket::{NetlinkRequest, Refusal, Reply, Socket, find, read_text};
use crate::error::Result;
use crate::netns::Namespace;

/// Maximum number of packets marked at each place in a second, so that tracing hardly slows a flood.
const MARKED_EACH_SECOND: u64 = 200;
const BURST: u32 = 20;
/// Priority of the chains that mark packets: before all others.
const FIRST: i32 = i32::MIN;

const INET: u8 = libc::NFPROTO_INET as u8;
const BRIDGE: u8 = libc::NFPROTO_BRIDGE as u8;
const NETDEV: u8 = libc::NFPROTO_NETDEV as u8;

/// Since 5.12, the kernel removes a table with this flag when the socket that created it is closed.
const TABLE_OWNED: u32 = 2;
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const LIMIT_RATE: u16 = 1;
const LIMIT_UNIT: u16 = 2;
const LIMIT_BURST: u16 = 3;
const IMMEDIATE_REGISTER: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const META_KEY: u16 = 2;
const META_FROM: u16 = 3;
const TRACE_TABLE: u16 = 1;
const TRACE_CHAIN: u16 = 2;
const TRACE_HANDLE: u16 = 3;
const TRACE_TYPE: u16 = 4;
const TRACE_VERDICT: u16 = 5;
const TRACE_ID: u16 = 6;
const TRACE_IIF: u16 = 10;
const TRACE_OIF: u16 = 12;
const TRACE_POLICY: u16 = 16;
const VERDICT_CODE: u16 = 1;
/// Length of `struct nfgenmsg`.
const FAMILY_HEADER: usize = 4;

/// Places where packets are marked, in addition to prerouting and output of IP.
#[derive(Clone, Debug, Default)]
pub struct MarkedPlaces {
    /// Prerouting of bridges.
    pub bridges: bool,
    /// Names of devices.
    pub ingress: Vec<String>,
    pub egress: Vec<String>,
}

/// A rule or policy that dropped a traced packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDrop {
    pub family: &'static str,
    pub table: String,
    pub chain: String,
    /// `None` for the policy.
    pub handle: Option<u64>,
    /// Numbers of the packet's interfaces: where it came in and where it was to go out; 0 for none.
    pub interfaces: [u32; 2],
}

/// A running trace in one namespace, which ends when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct RuleTrace {
    socket: Socket,
    /// Interfaces of traced packets: only the first report from a base chain names them.
    interfaces: HashMap<u32, [u32; 2]>,
}

impl RuleTrace {
    /// Prefix of the names of tables that mark packets.
    pub const TABLES: &str = "trawl-trace-";

    /// Begins to mark packets. Hooks that the kernel does not have are left out.
    pub fn begin(namespace: Option<&Namespace>, places: &MarkedPlaces) -> Result<Self> {
        let mut socket = Socket::netfilter(namespace, 1 << (libc::NFNLGRP_NFTRACE - 1))?;
        let ip = [libc::NF_INET_PRE_ROUTING, libc::NF_INET_LOCAL_OUT];
        let mut chains: Vec<_> = ip.map(|hook| (INET, hook as u32, None)).into();
        if places.bridges {
            chains.push((BRIDGE, libc::NF_BR_PRE_ROUTING as u32, None));
        }
        for (hook, devices) in [(libc::NF_NETDEV_INGRESS, &places.ingress), (libc::NF_NETDEV_EGRESS, &places.egress)] {
            let devices = devices.iter();
            chains.extend(devices.map(|name| (NETDEV, hook as u32, Some(&**name))));
        }
        let mut refusal = None;
        let mut marked = 0;
        for (number, (family, hook, device)) in chains.into_iter().enumerate() {
            match mark(&mut socket, number, family, hook, device) {
                Ok(()) => marked += 1,
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            Some(refusal) if marked == 0 => Err(refusal.about("cannot trace packets by nftables")),
            _ => Ok(Self { socket, interfaces: HashMap::new() }),
        }
    }

    /// Waits at most this long for reports, and returns the drops among them.
    pub fn drops(&mut self, at_most: Duration) -> Result<Vec<TracedDrop>> {
        let cannot = |refusal: Refusal| refusal.about("cannot read the trace of nftables");
        self.socket.wait(at_most).map_err(cannot)?;
        let mut drops = Vec::new();
        loop {
            match self.socket.events() {
                Ok(reports) if reports.is_empty() => return Ok(drops),
                Ok(reports) => drops.extend(reports.iter().filter_map(|one| self.dropped(one))),
                // Some reports were lost; the rest can still be read.
                Err(refusal) if refusal.errno == libc::ENOBUFS => {}
                Err(refusal) => return Err(cannot(refusal)),
            }
        }
    }

    /// Returns the drop that the kernel reports, if it is one.
    fn dropped(&mut self, report: &Reply) -> Option<TracedDrop> {
        if report.kind != message(libc::NFT_MSG_TRACE) {
            return None;
        }
        let attributes = report.payload.get(FAMILY_HEADER..)?;
        let number = |kind| find(attributes, kind).and_then(big_endian);
        let id = number(TRACE_ID)? as u32;
        let at = [TRACE_IIF, TRACE_OIF].map(|kind| number(kind).unwrap_or(0) as u32);
        if at != [0; 2] {
            self.interfaces.insert(id, at);
        }
        let (is_drop, handle) = match number(TRACE_TYPE)? as i32 {
            libc::NFT_TRACETYPE_RULE => {
                let code = find(find(attributes, TRACE_VERDICT)?, VERDICT_CODE)?;
                let code = big_endian(code)? as i32;
                // The upper bits hold the error for the sender; negative verdicts are internal to nftables.
                let is_drop = code >= 0 && code & 0xff == libc::NF_DROP;
                (is_drop, Some(number(TRACE_HANDLE)?))
            }
            libc::NFT_TRACETYPE_POLICY => (number(TRACE_POLICY)? as i32 == libc::NF_DROP, None),
            _ => return None,
        };
        is_drop.then_some(TracedDrop {
            family: nft_family((*report.payload.first()?).into())?,
            table: read_text(find(attributes, TRACE_TABLE)?),
            chain: read_text(find(attributes, TRACE_CHAIN)?),
            handle,
            interfaces: self.interfaces.get(&id).copied().unwrap_or_default(),
        })
    }
}

/// Adds a chain with a rule that marks packets.
fn mark(socket: &mut Socket, number: usize, family: u8, hook: u32, device: Option<&str>) -> Result<(), Refusal> {
    let name = format!("{}{}", RuleTrace::TABLES, process::id());
    let chain_name = format!("mark-{number}");
    let request = |kind, flags: libc::c_int| {
        let flags = (libc::NLM_F_CREATE | flags) as u16;
        NetlinkRequest::new(message(kind), flags).family_header(&[family, 0, 0, 0])
    };
    let mut table = request(libc::NFT_MSG_NEWTABLE, 0);
    table.text(TABLE_NAME, &name).attribute(TABLE_FLAGS, &TABLE_OWNED.to_be_bytes());
    let mut chain = request(libc::NFT_MSG_NEWCHAIN, libc::NLM_F_EXCL);
    chain.text(CHAIN_TABLE, &name).text(CHAIN_NAME, &chain_name).text(CHAIN_TYPE, "filter").nest(CHAIN_HOOK, |at| {
        at.attribute(HOOK_NUMBER, &hook.to_be_bytes()).attribute(HOOK_PRIORITY, &FIRST.to_be_bytes());
        if let Some(device) = device {
            at.text(HOOK_DEVICE, device);
        }
    });
    let mut rule = request(libc::NFT_MSG_NEWRULE, libc::NLM_F_APPEND);
    rule.text(RULE_TABLE, &name).text(RULE_CHAIN, &chain_name).nest(RULE_EXPRESSIONS, |list| {
        let register = (libc::NFT_REG_1 as u32).to_be_bytes();
        expression(list, "limit", |limit| {
            limit
                .attribute(LIMIT_RATE, &MARKED_EACH_SECOND.to_be_bytes())
                .attribute(LIMIT_UNIT, &1u64.to_be_bytes())
                .attribute(LIMIT_BURST, &BURST.to_be_bytes());
        });
        expression(list, "immediate", |immediate| {
            immediate.attribute(IMMEDIATE_REGISTER, &register).nest(IMMEDIATE_DATA, |data| {
                data.attribute(DATA_VALUE, &[1]);
            });
        });
        expression(list, "meta", |meta| {
            let key = libc::NFT_META_NFTRACE as u32;
            meta.attribute(META_KEY, &key.to_be_bytes()).attribute(META_FROM, &register);
        });
    });
    let edge = |kind: libc::c_int| {
        let [high, low] = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
        NetlinkRequest::new(kind as u16, 0).family_header(&[0, 0, high, low])
    };
    socket.change_together([
        edge(libc::NFNL_MSG_BATCH_BEGIN),
        table,
        chain,
        rule.with_acknowledgement(),
        edge(libc::NFNL_MSG_BATCH_END),
    ])
}

fn expression(list: &mut NetlinkRequest, name: &str, fill: impl FnOnce(&mut NetlinkRequest)) {
    list.nest(LIST_ELEMENT, |one| {
        one.text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, fill);
    });
}

/// Returns the type of a message of nftables.
fn message(kind: libc::c_int) -> u16 {
    (libc::NFNL_SUBSYS_NFTABLES << 8 | kind) as u16
}

fn big_endian(value: &[u8]) -> Option<u64> {
    match value.len() {
        4 => Some(u32::from_be_bytes(value.try_into().ok()?).into()),
        8 => Some(u64::from_be_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

/// Returns the name of a family of nftables.
pub fn nft_family(number: u32) -> Option<&'static str> {
    match i32::try_from(number).ok()? {
        libc::NFPROTO_INET => Some("inet"),
        libc::NFPROTO_IPV4 => Some("ip"),
        libc::NFPROTO_IPV6 => Some("ip6"),
        libc::NFPROTO_ARP => Some("arp"),
        libc::NFPROTO_BRIDGE => Some("bridge"),
        libc::NFPROTO_NETDEV => Some("netdev"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::socket::messages;
    use super::*;

    fn report(fill: impl FnOnce(&mut NetlinkRequest)) -> Reply {
        let kind = message(libc::NFT_MSG_TRACE);
        let mut request = NetlinkRequest::new(kind, 0).family_header(&[INET, 0, 0, 0]);
        request.text(TRACE_TABLE, "f").text(TRACE_CHAIN, "in");
        fill(&mut request);
        let bytes = request.finish(0);
        let found = messages(&bytes).next().expect("a message");
        Reply { kind: found.kind, payload: found.payload.to_vec() }
    }

    fn by_rule(fill: &mut NetlinkRequest, verdict: i32) {
        fill.attribute(TRACE_ID, &7u32.to_be_bytes())
            .attribute(TRACE_TYPE, &(libc::NFT_TRACETYPE_RULE as u32).to_be_bytes())
            .attribute(TRACE_HANDLE, &4u64.to_be_bytes())
            .nest(TRACE_VERDICT, |inner| {
                inner.attribute(VERDICT_CODE, &verdict.to_be_bytes());
            });
    }

    #[test]
    fn drops_are_found_among_reports() {
        let mut trace = RuleTrace { socket: Socket::netfilter(None, 0).expect("a socket"), interfaces: HashMap::new() };
        let jumps = report(|fill| {
            by_rule(fill, libc::NFT_JUMP);
            fill.attribute(TRACE_IIF, &3u32.to_be_bytes());
        });
        assert_eq!(trace.dropped(&jumps), None);
        let drops = report(|fill| by_rule(fill, libc::NF_DROP | 1 << 16));
        let expected = TracedDrop {
            family: "inet",
            table: "f".to_owned(),
            chain: "in".to_owned(),
            handle: Some(4),
            interfaces: [3, 0],
        };
        assert_eq!(trace.dropped(&drops), Some(expected));
        let policy = |verdict: libc::c_int| {
            report(|fill| {
                let kind = (libc::NFT_TRACETYPE_POLICY as u32).to_be_bytes();
                fill.attribute(TRACE_ID, &8u32.to_be_bytes())
                    .attribute(TRACE_TYPE, &kind)
                    .attribute(TRACE_POLICY, &verdict.to_be_bytes());
            })
        };
        assert_eq!(trace.dropped(&policy(libc::NF_ACCEPT)), None);
        let dropped = trace.dropped(&policy(libc::NF_DROP)).expect("a drop");
        assert_eq!((dropped.handle, dropped.interfaces), (None, [0; 2]));
        let mut cut = drops;
        cut.payload.truncate(9);
        assert_eq!(trace.dropped(&cut), None);
    }
}
