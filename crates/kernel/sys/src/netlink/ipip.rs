//! IPIP devices: they receive the IPv4 packets inside of packets to a local address.

use std::net::Ipv4Addr;

use super::Netlink;
use super::link::{IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, link_header};
use super::wire::Request;
use crate::error::Result;

const IFLA_IPTUN_LOCAL: u16 = 2;

impl Netlink {
    /// Makes an IPIP device that accepts tunnels from every address to `local`. Returns false where the kernel has no
    /// such devices.
    pub fn create_ipip(&mut self, name: &str, local: Ipv4Addr) -> Result<bool> {
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let mut request =
            Request::new(libc::RTM_NEWLINK, flags).family_header(&link_header(0, 0, 0));
        request.text(IFLA_IFNAME, name);
        request.nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "ipip")
                .nest(IFLA_INFO_DATA, |data| {
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
