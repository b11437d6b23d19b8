//! Interfaces: found, listed, changed and deleted.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::Netlink;
use super::socket::{
    NetlinkRequest, Refusal, Reply, attributes, find, read_i32, read_text, read_u16, read_u32, read_u64,
};
use crate::error::{Error, Result};
use crate::netns::Namespace;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IF_OPER_UP: u8 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_STATS64: u16 = 23;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_ALT_IFNAME: u16 = 53;
pub(super) const IFLA_NEW_NETNSID: u16 = 45;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const ETH_P_8021Q: u16 = 0x8100;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_FLAGS_HW_MODE: u32 = 1 << 3;
const XDP_FLAGS_REPLACE: u32 = 1 << 4;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const LINK_HEADER: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// The program runs in the driver.
    Native,
    /// The program runs after the driver made an skb (generic mode).
    Skb,
    /// The program runs on the card.
    Offload,
}

impl XdpMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Skb => "skb",
            Self::Offload => "offload",
        }
    }

    /// Returns `XDP_FLAGS_…_MODE`, as links and netlink expect it.
    pub fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Skb => XDP_FLAGS_SKB_MODE,
            Self::Offload => XDP_FLAGS_HW_MODE,
        }
    }
}

/// The program that must be on the interface for a change of its XDP program to succeed.
#[derive(Clone, Copy, Debug)]
pub enum XdpExpected<'a> {
    Nothing,
    Program(BorrowedFd<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpAttachment {
    pub mode: XdpMode,
    pub program_id: u32,
}

/// The counters of `ip -s link`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

/// The tag of a VLAN interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// The ethertype: 0x8100, or 0x88a8 for a service tag.
    pub protocol: u16,
    pub id: u16,
}

/// An interface as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkRecord {
    pub index: u32,
    pub name: String,
    /// `IFF_…`
    pub flags: u32,
    pub mtu: u32,
    pub mac: Vec<u8>,
    /// `ARPHRD_…`: 1 is Ethernet.
    pub hardware_type: u16,
    /// The driver's kind for virtual ones: veth, bridge, vlan, …
    pub kind: Option<String>,
    pub rx_queues: u32,
    pub tx_queues: u32,
    /// Set once the kernel has noticed that the other end exists; until then it drops packets.
    pub operational: bool,
    pub alias: Option<String>,
    /// The other end of a veth, the lower device of a vlan.
    pub peer_index: Option<u32>,
    /// The peer's namespace, by this namespace's numbering; `None` for the same one.
    pub peer_namespace_id: Option<i32>,
    pub master: Option<u32>,
    pub vlan: Option<VlanTag>,
    pub xdp: Vec<XdpAttachment>,
    pub statistics: LinkStatistics,
}

impl LinkRecord {
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// Returns true if it is up and has a carrier.
    pub fn is_running(&self) -> bool {
        self.flags & libc::IFF_RUNNING as u32 != 0
    }

    pub fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }

    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let mut link = Self {
            hardware_type: read_u16(payload, 2)?,
            index: read_u32(payload, 4)?,
            flags: read_u32(payload, 8)?,
            ..Self::default()
        };
        for (kind, value) in attributes(payload.get(LINK_HEADER..)?) {
            let number = || read_u32(value, 0).unwrap_or(0);
            match kind {
                IFLA_IFNAME => link.name = read_text(value),
                IFLA_ADDRESS => link.mac = value.to_vec(),
                IFLA_MTU => link.mtu = number(),
                IFLA_LINK => link.peer_index = read_u32(value, 0).filter(|i| *i != 0),
                IFLA_OPERSTATE => link.operational = value.first() == Some(&IF_OPER_UP),
                IFLA_MASTER => link.master = read_u32(value, 0),
                IFLA_IFALIAS => link.alias = Some(read_text(value)),
                IFLA_NUM_RX_QUEUES => link.rx_queues = number(),
                IFLA_NUM_TX_QUEUES => link.tx_queues = number(),
                IFLA_LINK_NETNSID => link.peer_namespace_id = read_i32(value, 0),
                IFLA_LINKINFO => {
                    link.kind = find(value, IFLA_INFO_KIND).map(read_text);
                    if link.kind.as_deref() == Some("vlan") {
                        link.vlan = find(value, IFLA_INFO_DATA).and_then(parse_vlan);
                    }
                }
                IFLA_STATS64 => link.statistics = parse_statistics(value),
                IFLA_XDP => link.xdp = parse_xdp(value),
                _ => {}
            }
        }
        Some(link)
    }
}

fn parse_vlan(value: &[u8]) -> Option<VlanTag> {
    let protocol = find(value, IFLA_VLAN_PROTOCOL).and_then(|v| read_u16(v, 0));
    Some(VlanTag {
        protocol: protocol.map_or(ETH_P_8021Q, u16::from_be),
        id: find(value, IFLA_VLAN_ID).and_then(|v| read_u16(v, 0))?,
    })
}

fn parse_statistics(value: &[u8]) -> LinkStatistics {
    let at = |index: usize| read_u64(value, index * 8).unwrap_or(0);
    LinkStatistics {
        rx_packets: at(0),
        tx_packets: at(1),
        rx_bytes: at(2),
        tx_bytes: at(3),
        rx_errors: at(4),
        tx_errors: at(5),
        rx_dropped: at(6),
        tx_dropped: at(7),
    }
}

fn parse_xdp(value: &[u8]) -> Vec<XdpAttachment> {
    let id = |kind| find(value, kind).and_then(|v| read_u32(v, 0)).filter(|id| *id != 0);
    let mut attached: Vec<_> = [
        (IFLA_XDP_DRV_PROG_ID, XdpMode::Native),
        (IFLA_XDP_SKB_PROG_ID, XdpMode::Skb),
        (IFLA_XDP_HW_PROG_ID, XdpMode::Offload),
    ]
    .into_iter()
    .filter_map(|(kind, mode)| Some(XdpAttachment { mode, program_id: id(kind)? }))
    .collect();
    if attached.is_empty() {
        // Kernels before 4.20 report only one mode and one id.
        let mode = match find(value, IFLA_XDP_ATTACHED).and_then(|v| v.first().copied()) {
            Some(1) => Some(XdpMode::Native),
            Some(2) => Some(XdpMode::Skb),
            Some(3) => Some(XdpMode::Offload),
            _ => None,
        };
        if let (Some(mode), Some(program_id)) = (mode, id(IFLA_XDP_PROG_ID)) {
            attached.push(XdpAttachment { mode, program_id });
        }
    }
    attached
}

/// struct ifinfomsg.
pub(super) fn link_header(index: u32, flags: u32, change: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

fn link_request(kind: u16, index: u32) -> NetlinkRequest {
    NetlinkRequest::new(kind, 0).family_header(&link_header(index, 0, 0))
}

/// An interface's own name has at most 15 bytes, its other names (altname) up to 127.
const LONGEST_NAME: usize = 15;
const LONGEST_OTHER_NAME: usize = 127;

/// Refuses a name that no interface can have.
fn check_name(name: &str) -> Result<()> {
    let wrong = name.is_empty()
        || name.len() > LONGEST_OTHER_NAME
        || name.contains(['/', '\0'])
        || name.contains(char::is_whitespace);
    if wrong {
        return Err(Error::failed(
            format!("interface {name:?}"),
            "the name is not valid (1 to 127 characters, no blanks or slashes)",
        ));
    }
    Ok(())
}

/// Number of interfaces that a message names; a host may have a thousand.
const NAMES_SHOWN: usize = 20;

impl Netlink {
    /// Returns all interfaces of the namespace, by index.
    pub fn links(&mut self) -> Result<Vec<LinkRecord>> {
        let replies = self
            .socket
            .dump(|| link_request(libc::RTM_GETLINK, 0))
            .map_err(|r| r.about(format!("cannot list interfaces{}", self.scope)))?;
        Ok(parse_links(&replies))
    }

    /// Returns the interface of that name; the error lists the existing ones.
    pub fn link(&mut self, name: &str) -> Result<LinkRecord> {
        match self.find_link(name)? {
            Some(link) => Ok(link),
            None => Err(self.no_such_interface(name)),
        }
    }

    /// Finds the interface of that name, or of that alternative name (`ip link property add altname`).
    pub fn find_link(&mut self, name: &str) -> Result<Option<LinkRecord>> {
        check_name(name)?;
        let mut request = link_request(libc::RTM_GETLINK, 0);
        if name.len() > LONGEST_NAME {
            request.text(IFLA_ALT_IFNAME, name)
        } else {
            request.text(IFLA_IFNAME, name)
        };
        self.one_link(request, || format!("interface {name}"))
    }

    pub fn find_link_by_index(&mut self, index: u32) -> Result<Option<LinkRecord>> {
        self.one_link(link_request(libc::RTM_GETLINK, index), || format!("interface number {index}"))
    }

    fn one_link(&mut self, request: NetlinkRequest, what: impl Fn() -> String) -> Result<Option<LinkRecord>> {
        match self.socket.get(request) {
            Ok(reply) => Ok(LinkRecord::parse(&reply.payload)),
            Err(Refusal { errno: libc::ENODEV, .. }) => Ok(None),
            Err(refusal) => Err(refusal.about(format!("cannot look up {}{}", what(), self.scope))),
        }
    }

    fn no_such_interface(&mut self, name: &str) -> Error {
        let error = Error::failed(format!("interface {name}{}", self.scope), "it does not exist");
        match self.links() {
            Ok(links) => {
                let mut names: Vec<_> = links.into_iter().map(|l| l.name).collect();
                let others = names.len().saturating_sub(NAMES_SHOWN);
                names.truncate(NAMES_SHOWN);
                if others > 0 {
                    names.push(format!("and {others} others (ip link lists them)"));
                }
                error.fix(format!("existing interfaces: {}", names.join(", ")))
            }
            Err(_) => error,
        }
    }

    pub fn set_up(&mut self, index: u32) -> Result<()> {
        self.set_flags(index, libc::IFF_UP as u32, libc::IFF_UP as u32)
    }

    pub fn set_down(&mut self, index: u32) -> Result<()> {
        self.set_flags(index, 0, libc::IFF_UP as u32)
    }

    /// Turns address resolution (ARP and IPv6 alike) on or off.
    pub fn set_arp(&mut self, index: u32, on: bool) -> Result<()> {
        let noarp = libc::IFF_NOARP as u32;
        self.set_flags(index, if on { 0 } else { noarp }, noarp)
    }

    /// Turns multicast on or off. Without it IPv6 reports no groups, and every router is in some.
    pub fn set_multicast(&mut self, index: u32, on: bool) -> Result<()> {
        let multicast = libc::IFF_MULTICAST as u32;
        self.set_flags(index, if on { multicast } else { 0 }, multicast)
    }

    /// Sets the `IFF_…` bits of `flags` that are in `mask`.
    fn set_flags(&mut self, index: u32, flags: u32, mask: u32) -> Result<()> {
        let request = NetlinkRequest::new(libc::RTM_NEWLINK, 0).family_header(&link_header(index, flags, mask));
        self.change_link(request, index, "change the flags of")
    }

    pub fn rename(&mut self, index: u32, name: &str) -> Result<()> {
        check_name(name)?;
        let mut request = link_request(libc::RTM_NEWLINK, index);
        request.text(IFLA_IFNAME, name);
        self.change_link(request, index, "rename")
    }

    /// Moves the interface to another namespace; its index may change.
    pub fn move_to(&mut self, index: u32, namespace: &Namespace) -> Result<()> {
        let mut request = link_request(libc::RTM_NEWLINK, index);
        request.u32(IFLA_NET_NS_FD, namespace.as_fd().as_raw_fd() as u32);
        self.change_link(request, index, "move")
    }

    /// Attaches an XDP program to the interface, or detaches it with `None`, by netlink: it stays until it is detached.
    /// The refusal includes the driver's own text, if any.
    pub fn set_xdp(
        &mut self,
        index: u32,
        program: Option<BorrowedFd<'_>>,
        mode: XdpMode,
        expected: XdpExpected<'_>,
    ) -> Result<(), Refusal> {
        let mut request = link_request(libc::RTM_NEWLINK, index);
        let fd = program.map_or(-1, |program| program.as_raw_fd());
        request.nest(IFLA_XDP, |xdp| {
            xdp.u32(IFLA_XDP_FD, fd as u32);
            match expected {
                XdpExpected::Nothing => {
                    xdp.u32(IFLA_XDP_FLAGS, mode.flags() | XDP_FLAGS_UPDATE_IF_NOEXIST);
                }
                XdpExpected::Program(old) => {
                    xdp.u32(IFLA_XDP_FLAGS, mode.flags() | XDP_FLAGS_REPLACE);
                    xdp.u32(IFLA_XDP_EXPECTED_FD, old.as_raw_fd() as u32);
                }
            }
        });
        self.socket.change(request)
    }

    pub fn delete_link(&mut self, index: u32) -> Result<()> {
        self.change_link(link_request(libc::RTM_DELLINK, index), index, "delete")
    }

    fn change_link(&mut self, request: NetlinkRequest, index: u32, verb: &str) -> Result<()> {
        self.socket
            .change(request)
            .map_err(|r| r.about(format!("cannot {verb} interface number {index}{}", self.scope)))
    }

    /// Returns the number by which this namespace knows another one, as in [`LinkRecord::peer_namespace_id`].
    pub fn namespace_id(&mut self, other: &Namespace) -> Result<Option<i32>> {
        let mut request = NetlinkRequest::new(RTM_GETNSID, 0).family_header(&[0; 4]);
        request.u32(NETNSA_FD, other.as_fd().as_raw_fd() as u32);
        let reply =
            self.socket.get(request).map_err(|r| r.about(format!("cannot number the namespace {}", other.label())))?;
        let id = find(reply.payload.get(4..).unwrap_or(&[]), NETNSA_NSID).and_then(|v| read_i32(v, 0));
        Ok(id.filter(|id| reply.kind == RTM_NEWNSID && *id >= 0))
    }
}

fn parse_links(replies: &[Reply]) -> Vec<LinkRecord> {
    replies.iter().filter(|r| r.kind == libc::RTM_NEWLINK).filter_map(|r| LinkRecord::parse(&r.payload)).collect()
}

// veth pairs, each end created in its namespace, with the queues it needs.

const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;

/// One end of a pair to be made.
#[derive(Clone, Debug)]
pub struct VethEnd<'a> {
    pub name: &'a str,
    /// Its number; 0 lets the kernel choose.
    pub index: u32,
    /// The namespace of this end; `None` for the current one.
    pub namespace: Option<&'a Namespace>,
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u32>,
    /// Receive and transmit queues, both this many.
    pub queues: u32,
    /// Suppresses the link-local IPv6 address, and the packets that come with one.
    pub no_link_local: bool,
}

impl VethEnd<'_> {
    fn write(&self, request: &mut NetlinkRequest) {
        request.text(IFLA_IFNAME, self.name);
        request.u32(IFLA_NUM_TX_QUEUES, self.queues).u32(IFLA_NUM_RX_QUEUES, self.queues);
        if let Some(mac) = self.mac {
            request.attribute(IFLA_ADDRESS, &mac);
        }
        if let Some(mtu) = self.mtu {
            request.u32(IFLA_MTU, mtu);
        }
        if let Some(namespace) = self.namespace {
            request.u32(IFLA_NET_NS_FD, namespace.as_fd().as_raw_fd() as u32);
        }
    }
}

/// Creates a veth pair; both ends are down.
pub fn create_veth(a: &VethEnd<'_>, b: &VethEnd<'_>) -> Result<()> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut request = NetlinkRequest::new(libc::RTM_NEWLINK, flags).family_header(&link_header(a.index, 0, 0));
    a.write(&mut request);
    request.nest(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.raw(&link_header(b.index, 0, 0));
                b.write(peer);
            });
        });
    });
    let mut here = Netlink::current()?;
    here.socket.change(request).map_err(|r| r.about(format!("cannot make the veth pair {} and {}", a.name, b.name)))?;
    for end in [a, b].into_iter().filter(|end| end.no_link_local) {
        let mut there = Netlink::open(end.namespace)?;
        let index = there.link(end.name)?.index;
        there.forbid_link_local(index)?;
    }
    Ok(())
}

const IFLA_NETKIT_PEER_INFO: u16 = 1;
const IFLA_NETKIT_MODE: u16 = 5;
const NETKIT_L2: u32 = 0;

/// Creates a netkit pair whose packets have Ethernet headers (Linux 6.7), in the current namespace; both ends are down.
pub fn create_netkit(a: &str, b: &str) -> Result<()> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut request = NetlinkRequest::new(libc::RTM_NEWLINK, flags).family_header(&link_header(0, 0, 0));
    request.text(IFLA_IFNAME, a);
    request.nest(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_KIND, "netkit").nest(IFLA_INFO_DATA, |data| {
            data.u32(IFLA_NETKIT_MODE, NETKIT_L2);
            data.nest(IFLA_NETKIT_PEER_INFO, |peer| {
                peer.raw(&link_header(0, 0, 0));
                peer.text(IFLA_IFNAME, b);
            });
        });
    });
    let mut here = Netlink::current()?;
    let made = here.socket.change(request);
    made.map_err(|r| r.about(format!("cannot make the netkit pair {a} and {b}")))
}

impl Netlink {
    /// Keeps IPv6 from creating a link-local address; must be set before the interface goes up.
    fn forbid_link_local(&mut self, index: u32) -> Result<()> {
        let mut request = NetlinkRequest::new(libc::RTM_NEWLINK, 0).family_header(&link_header(index, 0, 0));
        request.nest(IFLA_AF_SPEC, |families| {
            families.nest(libc::AF_INET6 as u16, |inet6| {
                inet6.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
            });
        });
        match self.socket.change(request) {
            // No IPv6 in this kernel: no link-local address either.
            Err(refusal) if refusal.errno == libc::EAFNOSUPPORT => Ok(()),
            result => result.map_err(|r| r.about(format!("cannot stop IPv6 from addressing interface number {index}"))),
        }
    }
}

// IPIP devices: they receive the IPv4 packets inside packets to a local address.

const IFLA_IPTUN_LOCAL: u16 = 2;

impl Netlink {
    /// Creates an IPIP device that accepts tunnels from every address to `local`. Returns false if the kernel has no
    /// such devices.
    pub fn create_ipip(&mut self, name: &str, local: Ipv4Addr) -> Result<bool> {
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let mut request = NetlinkRequest::new(libc::RTM_NEWLINK, flags).family_header(&link_header(0, 0, 0));
        request.text(IFLA_IFNAME, name);
        request.nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "ipip").nest(IFLA_INFO_DATA, |data| {
                data.attribute(IFLA_IPTUN_LOCAL, &local.octets());
            });
        });
        match self.socket.change(request) {
            Ok(_) => Ok(true),
            Err(refusal) if refusal.errno == libc::EOPNOTSUPP => Ok(false),
            Err(refusal) => Err(refusal.about(format!("cannot make the IPIP device {name}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_interface_is_read_with_its_tag() {
        let mut request = NetlinkRequest::new(libc::RTM_NEWLINK, 0);
        request.u32(IFLA_LINK, 3).nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "vlan").nest(IFLA_INFO_DATA, |data| {
                data.attribute(IFLA_VLAN_ID, &7u16.to_ne_bytes())
                    .attribute(IFLA_VLAN_PROTOCOL, &0x88a8u16.to_be_bytes());
            });
        });
        let attributes = &request.finish(0)[16..];
        let payload = [&[0; LINK_HEADER][..], attributes].concat();
        let link = LinkRecord::parse(&payload).unwrap();
        let tag = VlanTag { protocol: 0x88a8, id: 7 };
        assert_eq!((link.vlan, link.peer_index), (Some(tag), Some(3)));
    }
}
