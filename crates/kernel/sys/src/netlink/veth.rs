//! veth pairs, both ends made where they are wanted, with the queues they need.

use std::os::fd::{AsFd, AsRawFd};

use super::Netlink;
use super::link::{
    IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO,
    IFLA_MTU, IFLA_NET_NS_FD, IFLA_NUM_RX_QUEUES, IFLA_NUM_TX_QUEUES, link_header,
};
use super::wire::Request;
use crate::error::Result;
use crate::netns::Namespace;

const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;

/// One end of a pair to be made.
#[derive(Clone, Debug)]
pub struct VethEnd<'a> {
    pub name: &'a str,
    /// Where it goes; `None`: here.
    pub namespace: Option<&'a Namespace>,
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u32>,
    /// Receive and transmit queues, both this many.
    pub queues: u32,
    /// No link-local IPv6 address by itself, and so none of the packets that come with one.
    pub no_link_local: bool,
}

impl VethEnd<'_> {
    fn write(&self, request: &mut Request) {
        request.text(IFLA_IFNAME, self.name);
        request
            .u32(IFLA_NUM_TX_QUEUES, self.queues)
            .u32(IFLA_NUM_RX_QUEUES, self.queues);
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

/// Makes a veth pair; both ends are down.
pub fn create_veth(a: &VethEnd<'_>, b: &VethEnd<'_>) -> Result<()> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let mut request = Request::new(libc::RTM_NEWLINK, flags).family_header(&link_header(0, 0, 0));
    a.write(&mut request);
    request.nest(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_KIND, "veth")
            .nest(IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |peer| {
                    peer.raw(&link_header(0, 0, 0));
                    b.write(peer);
                });
            });
    });
    let mut here = Netlink::here()?;
    here.socket.change(request).map_err(|r| {
        r.about(format!(
            "cannot make the veth pair {} and {}",
            a.name, b.name
        ))
    })?;
    for end in [a, b].into_iter().filter(|end| end.no_link_local) {
        let mut there = Netlink::open(end.namespace)?;
        let index = there.link(end.name)?.index;
        there.forbid_link_local(index)?;
    }
    Ok(())
}

impl Netlink {
    /// Keeps IPv6 from making a link-local address; has to be said before the interface goes up.
    fn forbid_link_local(&mut self, index: u32) -> Result<()> {
        let mut request =
            Request::new(libc::RTM_NEWLINK, 0).family_header(&link_header(index, 0, 0));
        request.nest(IFLA_AF_SPEC, |families| {
            families.nest(libc::AF_INET6 as u16, |inet6| {
                inet6.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
            });
        });
        match self.socket.change(request) {
            // No IPv6 in this kernel: no link-local address either.
            Err(refusal) if refusal.errno == libc::EAFNOSUPPORT => Ok(()),
            result => result.map_err(|r| {
                r.about(format!(
                    "cannot stop IPv6 from addressing interface number {index}"
                ))
            }),
        }
    }
}
