//! Sums of dropped packets: one row for each reason, function, interface and namespace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use trawl_packet::decode::{Summary, Transport, summary};
use trawl_packet::pcapng::note::{DropNote, Rule};

use crate::record::PacketView;

/// Maximum number of flows, processes and rules of one row; packets of further ones count only for the row.
const FLOWS: usize = 4096;
/// The functions that call a netfilter hook, and the hook's name.
const HOOKS: [(&str, &str); 30] = [
    ("ip_local_deliver", "input"),
    ("ip6_input", "input"),
    ("ip6_mc_input", "input"),
    ("ip_forward", "forward"),
    ("ip6_forward", "forward"),
    ("ip_mr_forward", "forward"),
    ("ip6_mr_forward", "forward"),
    ("__ip_local_out", "output"),
    ("__ip6_local_out", "output"),
    ("ip6_xmit", "output"),
    ("raw_sendmsg", "output"),
    ("rawv6_sendmsg", "output"),
    ("mld_sendpack", "output"),
    ("igmp6_send", "output"),
    ("ndisc_send_skb", "output"),
    ("ip_rcv", "prerouting"),
    ("ipv6_rcv", "prerouting"),
    ("ip_sublist_rcv", "prerouting"),
    ("ip_list_rcv", "prerouting"),
    ("ip6_sublist_rcv", "prerouting"),
    ("ipv6_list_rcv", "prerouting"),
    ("ip_output", "postrouting"),
    ("ip6_output", "postrouting"),
    ("ip_mc_output", "postrouting"),
    ("__netif_receive_skb_core", "ingress"),
    ("__dev_queue_xmit", "egress"),
    ("br_handle_frame", "bridge"),
    ("__br_forward", "bridge"),
    ("br_pass_frame_up", "bridge"),
    ("br_forward_finish", "bridge"),
];
/// The reason of a drop by a rule.
pub const NETFILTER: &str = "NETFILTER_DROP";
/// The functions that run XDP programs on socket buffers; they give no reason.
const RUN_XDP: [&str; 2] = ["veth_xdp_rcv_skb", "do_xdp_generic"];
pub const REASON_XDP: &str = "XDP";

/// The properties that packets of one row share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DropKey {
    pub reason: String,
    /// The function that dropped them.
    pub function: String,
    /// The netfilter hook, if one is involved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The socket that the packets were for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Row {
    pub packets: u64,
    /// Packets of each known process, by its number, with its name.
    pub processes: HashMap<u32, (String, u64)>,
    /// The size of the receive buffer that was full.
    pub receive_buffer: Option<u32>,
    /// Packets of each rule or policy of nftables that dropped some: `rule 4 of inet f in`.
    pub rules: BTreeMap<String, u64>,
    /// Packets for each cgroup whose own programs dropped them, by the cgroup's number.
    pub cgroups: BTreeMap<u64, u64>,
    pub flows: HashMap<String, u64>,
    /// Packets of each protocol: `udp`, `tcp6`.
    pub protocols: BTreeMap<String, u64>,
    /// Destination ports, up to a limit.
    pub ports: BTreeSet<u16>,
    /// Destination of the last packet, and its MAC address.
    pub destination: Option<String>,
    pub mac: Option<String>,
}

impl Row {
    /// Returns the versions of IP among the packets; both if neither is known.
    pub fn versions(&self) -> Vec<u8> {
        let is_six = |name: &str| name.ends_with('6') && !name.starts_with("protocol");
        let has = |six| self.protocols.keys().any(|name| is_six(name) == six);
        match (has(false), has(true)) {
            (true, false) => vec![4],
            (false, true) => vec![6],
            _ => vec![4, 6],
        }
    }

    /// Returns the destination ports of the packets; `None` if some are not known.
    pub fn ports(&self) -> Option<&BTreeSet<u16>> {
        (1..FLOWS).contains(&self.ports.len()).then_some(&self.ports)
    }

    /// Returns the flows with the most packets.
    pub fn largest_flows(&self, count: usize) -> Vec<(&str, u64)> {
        let mut flows: Vec<(&str, u64)> = self.flows.iter().map(|(flow, packets)| (flow.as_str(), *packets)).collect();
        flows.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        flows.truncate(count);
        flows
    }

    fn count_process(&mut self, packet: &PacketView<'_>, drop: &DropNote<'_>) {
        let (id, name) = match (packet.process, drop.pid) {
            (Some(process), _) => (process.id, process.name),
            (None, Some(id)) => (id, drop.command),
            (None, None) => return,
        };
        if self.processes.len() < FLOWS || self.processes.contains_key(&id) {
            let new = || (name.unwrap_or_default().to_owned(), 0);
            self.processes.entry(id).or_insert_with(new).1 += 1;
        }
    }

    fn count_dropper(&mut self, drop: &DropNote<'_>) {
        if let Some(rule) = drop.rule.as_ref().map(Rule::to_string)
            && (self.rules.len() < FLOWS || self.rules.contains_key(&rule))
        {
            *self.rules.entry(rule).or_default() += 1;
        }
        if let Some(cgroup) = drop.cgroup
            && (self.cgroups.len() < FLOWS || self.cgroups.contains_key(&cgroup))
        {
            *self.cgroups.entry(cgroup).or_default() += 1;
        }
    }

    /// Returns the process with the most packets: its number, its name, and their number.
    pub fn process(&self) -> Option<(u32, &str, u64)> {
        let all = self.processes.iter();
        all.map(|(id, (name, packets))| (*id, name.as_str(), *packets))
            .max_by_key(|(id, _, packets)| (*packets, Reverse(*id)))
    }
}

/// The rows, and the number of packets whose drop is no loss.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub rows: HashMap<DropKey, Row>,
    pub no_losses: BTreeMap<String, u64>,
    /// Non-losses by reason and network namespace, which the kernel's counters include too.
    no_losses_in: BTreeMap<(String, Option<String>), u64>,
    /// Packets that did not come from the tap at drops, or were not dropped.
    pub others: u64,
}

impl Tally {
    /// Counts a packet, and returns the row of its drop, if it was lost.
    pub fn count(&mut self, packet: &PacketView<'_>, no_losses_too: bool) -> Option<DropKey> {
        let Some(drop) = packet.drop() else {
            self.others += 1;
            return None;
        };
        if !drop.no_loss.is_loss() && !no_losses_too {
            let reason = drop.reason.to_owned();
            *self.no_losses.entry(reason.clone()).or_default() += 1;
            let netns = drop.netns.map(str::to_owned);
            *self.no_losses_in.entry((reason, netns)).or_default() += 1;
            return None;
        }
        let decoded = summary(packet.link_type, packet.captured);
        let is_received = is_for_socket(&drop, &decoded);
        let function = drop.function();
        let key = DropKey {
            reason: reason(drop.reason, function).to_owned(),
            function: function.to_owned(),
            hook: hook(drop.reason, drop.stack.iter().copied()).map(str::to_owned),
            interface: packet.interface.filter(|name| *name != "unknown").map(str::to_owned),
            netns: drop.netns.map(str::to_owned),
            socket: drop.socket.filter(|_| is_received).map(|socket| match drop.address {
                Some(address) => format!("{} {}", socket.protocol, SocketAddr::new(address, socket.port)),
                None => socket.to_string(),
            }),
        };
        let row_key = key.clone();
        let row = self.rows.entry(key).or_default();
        row.packets += 1;
        row.count_process(packet, &drop);
        row.count_dropper(&drop);
        row.receive_buffer = drop.receive_buffer.or(row.receive_buffer);
        row.destination = decoded.ip.as_ref().map(|ip| ip.dst.to_string());
        row.mac = decoded.ethernet.as_ref().map(|ethernet| ethernet.dst.clone());
        let protocol = protocol(&decoded);
        let mut flow = if is_received {
            // The socket already names the destination.
            flow_from(&protocol, &decoded)
        } else if depends_on_destination(&row_key) {
            flow_to(&protocol, &decoded)
        } else {
            flow(&protocol, &decoded)
        };
        for vlan in &decoded.vlans {
            flow += &format!(" in VLAN {vlan}");
        }
        *row.protocols.entry(protocol).or_default() += 1;
        if let Some(Transport::Tcp { dst_port, .. } | Transport::Udp { dst_port, .. }) = decoded.transport
            && row.ports.len() < FLOWS
        {
            row.ports.insert(dst_port);
        }
        if row.flows.len() < FLOWS || row.flows.contains_key(&flow) {
            *row.flows.entry(flow).or_default() += 1;
        }
        Some(row_key)
    }

    /// Returns the number of packets in all rows.
    pub fn packets(&self) -> u64 {
        self.rows.values().map(|row| row.packets).sum()
    }

    /// Returns the rows, those with the most packets first.
    pub fn sorted(&self) -> Vec<(&DropKey, &Row)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by(|a, b| b.1.packets.cmp(&a.1.packets).then(a.0.cmp(b.0)));
        rows
    }

    /// Returns the packets dropped for one of these reasons (`REASON`, `REASON@FUNCTION`, or `@WORD` of the function's
    /// name), of this protocol and in this namespace if one is named.
    pub fn of_reasons(&self, reasons: &[&str], protocol: Option<&str>, netns: Option<&str>) -> u64 {
        let rows = self.rows.iter().filter(|(key, _)| {
            reasons.iter().any(|one| is_for(key, one)) && (netns.is_none() || key.netns.as_deref() == netns)
        });
        rows.map(|(_, row)| match protocol {
            None => row.packets,
            Some(protocol) => row.protocols.get(protocol).copied().unwrap_or(0),
        })
        .sum()
    }

    /// Returns the packets that were freed for one of these reasons in this namespace and are no losses.
    pub fn no_losses_of(&self, reasons: &[&str], netns: Option<&str>) -> u64 {
        let counts = self.no_losses_in.iter().filter(|((reason, of), _)| {
            reasons.contains(&reason.as_str()) && (netns.is_none() || of.as_deref() == netns)
        });
        counts.map(|(_, packets)| packets).sum()
    }

    /// Returns the packets that XDP programs dropped as socket buffers on an interface.
    pub fn of_xdp(&self, interface: Option<&str>, netns: Option<&str>) -> u64 {
        let rows = self.rows.iter().filter(|(key, _)| {
            key.reason == REASON_XDP && key.interface.as_deref() == interface && key.netns.as_deref() == netns
        });
        rows.map(|(_, row)| row.packets).sum()
    }
}

/// Returns true if a row has this reason, `REASON` or `REASON@FUNCTION`, or a function with this word, `@WORD`.
pub fn is_for(key: &DropKey, reason: &str) -> bool {
    match reason.split_once('@') {
        None => key.reason == reason,
        Some(("", word)) => key.function.contains(word) || key.reason.to_lowercase().contains(word),
        Some((reason, function)) => key.reason == reason && key.function == function,
    }
}

/// Returns the reason for a drop by this function: XDP if it runs XDP programs.
pub fn reason<'a>(reason: &'a str, function: &str) -> &'a str {
    if RUN_XDP.contains(&function) { REASON_XDP } else { reason }
}

/// Returns the netfilter hook that dropped a packet, by the functions that led there.
pub fn hook<'a>(reason: &str, mut functions: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    if reason != NETFILTER {
        return None;
    }
    functions.find_map(|at| {
        let function = at.split(['+', '.']).next()?;
        HOOKS.iter().find(|(name, _)| *name == function).map(|(_, hook)| *hook)
    })
}

/// Returns `udp`, or `udp6` over IPv6.
fn protocol(decoded: &Summary) -> String {
    let (version, number) = decoded.ip.as_ref().map_or((4, None), |ip| (ip.version, Some(ip.protocol)));
    let six = if version == 6 { "6" } else { "" };
    match (&decoded.transport, number) {
        (Some(Transport::Tcp { .. }), _) | (_, Some(6)) => format!("tcp{six}"),
        (Some(Transport::Udp { .. }), _) | (_, Some(17)) => format!("udp{six}"),
        (Some(Transport::Icmp { .. }), _) | (_, Some(1 | 58)) => format!("icmp{six}"),
        (_, Some(number)) => format!("protocol {number}"),
        _ => match (&decoded.arp, &decoded.ethernet) {
            (Some(_), _) => "arp".to_owned(),
            (_, Some(ethernet)) => format!("ethertype {:#06x}", ethernet.ethertype),
            _ => "unknown".to_owned(),
        },
    }
}

/// Returns true if the socket was to receive the packet, false if it sent it.
fn is_for_socket(drop: &DropNote<'_>, decoded: &Summary) -> bool {
    match (drop.socket, &decoded.transport) {
        (Some(socket), Some(Transport::Tcp { dst_port, .. } | Transport::Udp { dst_port, .. })) => {
            socket.port == *dst_port
        }
        (socket, _) => socket.is_some(),
    }
}

/// Returns protocol and destination: `udp to 53`.
fn flow(protocol: &str, decoded: &Summary) -> String {
    match (&decoded.transport, &decoded.ip, &decoded.arp) {
        (Some(Transport::Tcp { dst_port, .. } | Transport::Udp { dst_port, .. }), ..) => {
            format!("{protocol} to {dst_port}")
        }
        (_, Some(ip), _) => format!("{protocol} to {}", ip.dst),
        (_, None, Some(arp)) => format!("{protocol} for {}", arp.target_ip),
        _ => protocol.to_owned(),
    }
}

/// Reasons, and functions without a reason of their own, for which the address matters more than the port.
const BY_DESTINATION: [&str; 17] = [
    "IP_INNOROUTES",
    "IP_OUTNOROUTES",
    "IP_INADDRERRORS",
    "IP_INVALID_DEST",
    "IP_LOCALNET",
    "NEIGH_",
    "OTHERHOST",
    "PKT_TOO_BIG",
    "neigh_invalidate",
    "ndisc_error_report",
    "arp_error_report",
    "ip_error",
    "dst_discard",
    "ip6_pkt_",
    "ip_fragment",
    "ip_forward",
    "ip6_forward",
];

fn depends_on_destination(key: &DropKey) -> bool {
    let mut begins = BY_DESTINATION.iter();
    key.hook.is_none() && begins.any(|one| key.reason.starts_with(one) || key.function.starts_with(one))
}

/// Returns protocol and destination with its address: `udp to 10.9.2.1:53`.
fn flow_to(protocol: &str, decoded: &Summary) -> String {
    match (&decoded.transport, &decoded.ip) {
        (Some(Transport::Tcp { dst_port, .. } | Transport::Udp { dst_port, .. }), Some(ip)) => {
            format!("{protocol} to {}", SocketAddr::new(ip.dst, *dst_port))
        }
        _ => flow(protocol, decoded),
    }
}

/// Returns protocol and source: `udp from 10.9.2.1`.
fn flow_from(protocol: &str, decoded: &Summary) -> String {
    match &decoded.ip {
        Some(ip) => format!("{protocol} from {}", ip.src),
        None => protocol.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_packet::build::Template;
    use trawl_packet::pcapng::NamedProcess;

    #[test]
    fn rows_add_up_and_a_caller_determines_its_hook() {
        let frame =
            |port| Template::new().ethernet([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1234, port).build();
        let dropped = "drop=NETFILTER_DROP at=nft_do_chain+0x1 netns=pb stack=nft_do_chain+0x1,nf_hook_slow+0x2,ip_local_deliver+0x3";
        let by_host = format!("{dropped} pid=8 comm=host");
        let mut tally = Tally::default();
        let mut count = |port, comment| {
            let frame = frame(port);
            let view = PacketView {
                link_type: 1,
                captured: &frame,
                original_len: frame.len() as u32,
                interface: Some("b0"),
                process: (port == 53).then_some(NamedProcess { id: 7, thread: 0, name: Some("dig"), described: None }),
                comment,
                ..PacketView::default()
            };
            tally.count(&view, false);
        };
        count(53, Some(dropped));
        count(53, Some(dropped));
        count(54, Some(&by_host));
        count(1, Some("drop=QUEUE_PURGE at=x+0x1 loss=no"));
        count(1, None);
        assert_eq!((tally.packets(), tally.others), (3, 1));
        assert_eq!(tally.no_losses["QUEUE_PURGE"], 1);
        let rows = tally.sorted();
        assert_eq!(rows[0].0.hook.as_deref(), Some("input"));
        assert_eq!(rows[0].1.largest_flows(1), [("udp to 53", 2)]);
        assert_eq!(rows[0].1.process(), Some((7, "dig", 2)));
        assert_eq!(rows[0].1.processes[&8], ("host".to_owned(), 1));
        assert_eq!(tally.of_reasons(&["NETFILTER_DROP"], Some("udp"), None), 3);
        assert_eq!(tally.of_reasons(&["NETFILTER_DROP"], Some("tcp"), None), 0);
        assert_eq!(tally.of_reasons(&["NETFILTER_DROP"], None, Some("pb")), 3);
        assert_eq!(tally.of_reasons(&["NETFILTER_DROP"], None, Some("pa")), 0);
    }
}
