//! Generic netlink: what a driver says of its XDP abilities (the `netdev` family, since 6.3).

use super::socket::{Refusal, Socket};
use super::wire::{Request, find, read_u16, read_u64};
use crate::error::Result;
use crate::netns::Namespace;

const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_CMD_GETFAMILY: u8 = 3;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
pub(super) const GENERIC_HEADER: usize = 4;

/// What the driver of an interface can do for XDP, by its own word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpAbilities {
    pub features: u64,
    pub metadata: u64,
}

impl XdpAbilities {
    /// Native XDP at all: drop, pass, transmit back.
    pub fn native(self) -> bool {
        self.features & 1 != 0
    }

    pub fn redirect(self) -> bool {
        self.features & 1 << 1 != 0
    }

    /// Others may redirect to it.
    pub fn redirect_target(self) -> bool {
        self.features & 1 << 2 != 0
    }

    pub fn zero_copy(self) -> bool {
        self.features & 1 << 3 != 0
    }

    pub fn offload(self) -> bool {
        self.features & 1 << 4 != 0
    }

    /// Packets of more than one buffer (jumbo frames).
    pub fn multi_buffer(self) -> bool {
        self.features & 1 << 5 != 0
    }

    /// Sends packets of more than one buffer that XDP redirects to it.
    pub fn sends_multi_buffer(self) -> bool {
        self.features & 1 << 6 != 0
    }

    pub fn hardware_time(self) -> bool {
        self.metadata & 1 != 0
    }
}

/// Asks the driver of an interface; `None` where the kernel has no way to ask (before 6.3).
pub fn xdp_abilities(namespace: Option<&Namespace>, index: u32) -> Result<Option<XdpAbilities>> {
    let mut socket = Socket::generic(namespace)?;
    let family = match family_id(&mut socket, "netdev") {
        Ok(Some(family)) => family,
        Ok(None) => return Ok(None),
        Err(refusal) => return Err(refusal.about("cannot look up the netdev netlink family")),
    };
    let mut request = Request::new(family, 0).family_header(&[NETDEV_CMD_DEV_GET, 1, 0, 0]);
    request.u32(NETDEV_A_DEV_IFINDEX, index);
    let reply = socket.get(request).map_err(|r| {
        r.about(format!(
            "cannot ask for the XDP abilities of interface number {index}"
        ))
    })?;
    let attributes = reply.payload.get(GENERIC_HEADER..).unwrap_or(&[]);
    let bits = |kind| {
        find(attributes, kind)
            .and_then(|v| read_u64(v, 0))
            .unwrap_or(0)
    };
    Ok(Some(XdpAbilities {
        features: bits(NETDEV_A_DEV_XDP_FEATURES),
        metadata: bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES),
    }))
}

pub(super) fn family_id(socket: &mut Socket, name: &str) -> Result<Option<u16>, Refusal> {
    let mut request =
        Request::new(libc::GENL_ID_CTRL as u16, 0).family_header(&[CTRL_CMD_GETFAMILY, 1, 0, 0]);
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
