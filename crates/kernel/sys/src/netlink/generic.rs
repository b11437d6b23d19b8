//! Generic netlink: the XDP abilities that drivers report (the `netdev` family, since 6.3).

use super::socket::{NetlinkRequest, Refusal, Socket, find, read_text, read_u16, read_u64};
use crate::error::Result;
use crate::netns::Namespace;

const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_CMD_GETFAMILY: u8 = 3;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const GENERIC_HEADER: usize = 4;

/// The XDP abilities of an interface, as its driver reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpAbilities {
    pub features: u64,
    pub metadata: u64,
}

impl XdpAbilities {
    /// Returns true if the driver supports native XDP: drop, pass, transmit back.
    pub fn native(self) -> bool {
        self.features & 1 != 0
    }

    pub fn redirect(self) -> bool {
        self.features & 1 << 1 != 0
    }

    /// Returns true if other interfaces may redirect to this one.
    pub fn redirect_target(self) -> bool {
        self.features & 1 << 2 != 0
    }

    pub fn zero_copy(self) -> bool {
        self.features & 1 << 3 != 0
    }

    pub fn offload(self) -> bool {
        self.features & 1 << 4 != 0
    }

    /// Returns true if programs see packets of more than one buffer (jumbo frames).
    pub fn multi_buffer(self) -> bool {
        self.features & 1 << 5 != 0
    }

    /// Returns true if it sends packets of more than one buffer that XDP redirects to it.
    pub fn sends_multi_buffer(self) -> bool {
        self.features & 1 << 6 != 0
    }

    pub fn hardware_time(self) -> bool {
        self.metadata & 1 != 0
    }
}

/// Asks the driver of an interface; `None` if the kernel cannot report abilities (before 6.3).
pub fn xdp_abilities(namespace: Option<&Namespace>, index: u32) -> Result<Option<XdpAbilities>> {
    let mut socket = Socket::generic(namespace)?;
    let family = match family_id(&mut socket, "netdev") {
        Ok(Some(family)) => family,
        Ok(None) => return Ok(None),
        Err(refusal) => return Err(refusal.about("cannot look up the netdev netlink family")),
    };
    let mut request = NetlinkRequest::new(family, 0).family_header(&[NETDEV_CMD_DEV_GET, 1, 0, 0]);
    request.u32(NETDEV_A_DEV_IFINDEX, index);
    let reply = socket
        .get(request)
        .map_err(|r| r.about(format!("cannot ask for the XDP abilities of interface number {index}")))?;
    let attributes = reply.payload.get(GENERIC_HEADER..).unwrap_or(&[]);
    let bits = |kind| find(attributes, kind).and_then(|v| read_u64(v, 0)).unwrap_or(0);
    Ok(Some(XdpAbilities {
        features: bits(NETDEV_A_DEV_XDP_FEATURES),
        metadata: bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES),
    }))
}

fn family_id(socket: &mut Socket, name: &str) -> Result<Option<u16>, Refusal> {
    let mut request = NetlinkRequest::new(libc::GENL_ID_CTRL as u16, 0).family_header(&[CTRL_CMD_GETFAMILY, 1, 0, 0]);
    request.text(CTRL_ATTR_FAMILY_NAME, name);
    match socket.get(request) {
        Ok(reply) => {
            let attributes = reply.payload.get(GENERIC_HEADER..).unwrap_or(&[]);
            Ok(find(attributes, CTRL_ATTR_FAMILY_ID).and_then(|v| read_u16(v, 0)))
        }
        Err(refusal) if refusal.errno == libc::ENOENT => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

// Devlink: the counters of packets that switches and smart cards trapped or dropped themselves.

const FAMILY: &str = "devlink";
const VERSION: u8 = 1;
const CMD_TRAP_GET: u8 = 61;
const ATTR_BUS_NAME: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_STATS: u16 = 129;
const ATTR_TRAP_NAME: u16 = 130;
const ATTR_TRAP_TYPE: u16 = 132;
/// Attributes inside the statistics.
const STATS_RX_PACKETS: u16 = 0;
const STATS_RX_DROPPED: u16 = 2;
/// Type of traps for packets that the host handles, such as packets of routing protocols.
const TYPE_CONTROL: u8 = 2;

/// A trap for packets that a device did not forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Bus and device, as `devlink dev` names it: `pci/0000:01:00.0`.
    pub device: String,
    pub name: String,
    /// Packets that were reported or dropped.
    pub packets: u64,
}

/// Returns the traps of all devices; none if the kernel has no devlink.
pub fn traps(namespace: &Namespace) -> Result<Vec<Trap>> {
    let mut socket = Socket::generic(Some(namespace))?;
    let family = match family_id(&mut socket, FAMILY) {
        Ok(Some(family)) => family,
        Ok(None) => return Ok(Vec::new()),
        Err(refusal) => return Err(refusal.about("cannot look up the devlink netlink family")),
    };
    let replies = socket
        .dump(|| NetlinkRequest::new(family, 0).family_header(&[CMD_TRAP_GET, VERSION, 0, 0]))
        .map_err(|refusal| refusal.about("cannot read the traps of devlink"))?;
    let found = replies.iter().filter_map(|reply| trap(&reply.payload));
    Ok(found.collect())
}

fn trap(payload: &[u8]) -> Option<Trap> {
    let attributes = payload.get(GENERIC_HEADER..)?;
    let text = |kind| find(attributes, kind).map(read_text);
    if find(attributes, ATTR_TRAP_TYPE) == Some(&[TYPE_CONTROL]) {
        return None;
    }
    let statistics = find(attributes, ATTR_STATS)?;
    let count = |kind| find(statistics, kind).and_then(|value| read_u64(value, 0));
    Some(Trap {
        device: format!("{}/{}", text(ATTR_BUS_NAME)?, text(ATTR_DEV_NAME)?),
        name: text(ATTR_TRAP_NAME)?,
        packets: count(STATS_RX_PACKETS).unwrap_or(0) + count(STATS_RX_DROPPED).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETLINK_HEADER: usize = 16;

    fn reply(kind: u8) -> Vec<u8> {
        let mut request = NetlinkRequest::new(0, 0).family_header(&[63, VERSION, 0, 0]);
        request.text(ATTR_BUS_NAME, "pci");
        request.text(ATTR_DEV_NAME, "0000:01:00.0");
        request.nest(ATTR_STATS, |statistics| {
            statistics.attribute(STATS_RX_PACKETS, &5u64.to_ne_bytes());
            statistics.attribute(1, &600u64.to_ne_bytes());
            statistics.attribute(STATS_RX_DROPPED, &2u64.to_ne_bytes());
        });
        request.text(ATTR_TRAP_NAME, "ttl_value_is_too_small");
        request.attribute(ATTR_TRAP_TYPE, &[kind]);
        let message = request.finish(1);
        message[NETLINK_HEADER..].to_vec()
    }

    #[test]
    fn a_trap_counts_packets_that_were_not_forwarded() {
        let expected =
            Trap { device: "pci/0000:01:00.0".to_owned(), name: "ttl_value_is_too_small".to_owned(), packets: 7 };
        assert_eq!(trap(&reply(1)), Some(expected));
        assert_eq!(trap(&reply(TYPE_CONTROL)), None);
        assert_eq!(trap(&[]), None);
    }
}
