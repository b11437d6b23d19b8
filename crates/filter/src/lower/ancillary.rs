//! Ancillary loads: negative offsets for which Linux returns facts about the packet.
//!
//! libpcap emits a few of them (`inbound`, `outbound`, `ifindex`, and `vlan` for a live handle); a raw program may
//! contain any. Each is translated for the hook or refused with a reason.

use super::{Hook, Target};
use crate::classic::ancillary::Ancillary;
use crate::error::{FilterError, Instead};

/// A hook's source of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// 32 bits of the context at this offset.
    Context(i16),
    /// 16 bits in network order, in 32 bits of the context at this offset.
    ContextBigEndian(i16),
    /// A helper without arguments.
    Helper(i32),
    /// A constant.
    Constant(u32),
    /// 0, for comparison with "outgoing" only.
    NotOutgoing,
    /// The Ethernet type in the packet.
    EtherType,
    /// A ^ X.
    XorX,
}

/// `PACKET_OUTGOING` of `<linux/if_packet.h>`, the only packet type in libpcap's programs.
pub(crate) const PACKET_OUTGOING: u32 = 4;

impl Ancillary {
    pub(crate) fn answer(self, target: &Target) -> Result<Answer, FilterError> {
        use Ancillary::*;
        use trawl_ebpf::helper;
        let refuse = |part, instead| Err(FilterError::NotAtHook { part, hook: target.hook.description(), instead });
        Ok(match (self, target.hook) {
            (XorX, _) => Answer::XorX,
            // Facts that are not in this list are read from the frame's bytes.
            (PacketType, Hook::Copy { .. }) if target.copy_of_skb => Answer::Context(4),
            (Interface, Hook::Copy { .. }) if target.copy_of_skb => Answer::Context(40),
            (Mark, Hook::Copy { .. }) if target.copy_of_skb => Answer::Context(8),
            (Queue, Hook::Copy { .. }) if target.copy_of_skb => Answer::Context(12),
            (Hash, Hook::Copy { .. }) if target.copy_of_skb => Answer::Context(68),
            (Cpu, _) => Answer::Helper(helper::GET_SMP_PROCESSOR_ID),
            (Random, _) => Answer::Helper(helper::GET_PRANDOM_U32),

            (Protocol, Hook::Tc | Hook::Socket) => Answer::ContextBigEndian(16),
            (PacketType, Hook::Tc | Hook::Socket) => Answer::Context(4),
            (Interface, Hook::Tc | Hook::Socket) => Answer::Context(40),
            (Mark, Hook::Tc | Hook::Socket) => Answer::Context(8),
            (Queue, Hook::Tc | Hook::Socket) => Answer::Context(12),
            (Hash, Hook::Tc | Hook::Socket) => Answer::Context(68),
            (VlanTag, Hook::Tc | Hook::Socket) => Answer::Context(24),
            (VlanPresent, Hook::Tc | Hook::Socket) => Answer::Context(20),
            (VlanProtocol, Hook::Tc | Hook::Socket) => Answer::ContextBigEndian(28),

            (Interface, Hook::Xdp) => Answer::Context(12),
            (Queue, Hook::Xdp) => Answer::Context(16),
            // At XDP the tag is in the packet, never out of band.
            (VlanTag | VlanPresent | VlanProtocol, _) => Answer::Constant(0),
            (Protocol, _) => Answer::EtherType,
            (PacketType, _) => Answer::NotOutgoing,

            (Interface, Hook::Copy { .. }) => {
                return refuse("the interface's number (`ifindex`)", Instead::NameInterface);
            }
            (Queue, Hook::Copy { .. }) => {
                return refuse("the receive queue", Instead::QueueOption);
            }
            (Mark, _) => return refuse("the packet's mark", Instead::TcOrPacket),
            (Hash, _) => return refuse("the packet's hash", Instead::TcOrPacket),
            (HardwareType, _) => {
                return refuse("the device's hardware type", Instead::Packet);
            }
            (PayloadOffset, _) => {
                return refuse("the payload's offset as the kernel parses it", Instead::Packet);
            }
            (NetlinkAttribute, _) => {
                return refuse("a netlink attribute", Instead::NetlinkSocket);
            }
        })
    }

    /// Returns the error for the packet's type, which is unknown before the stack has processed the packet.
    pub(crate) fn packet_type_refusal(target: &Target) -> FilterError {
        FilterError::NotAtHook {
            part: "the packet's type (to this host, to another, broadcast)",
            hook: target.hook.description(),
            instead: Instead::InboundOrTap,
        }
    }
}
