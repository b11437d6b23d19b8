//! Ancillary loads: offsets below zero that Linux answers with facts about the packet.
//!
//! libpcap emits a few of them (`inbound`, `outbound`, `ifindex`, and `vlan` for a live handle); a
//! raw program may hold any. Each is given its meaning at the hook or refused with a reason.

use super::{Hook, Target};
use crate::classic::ancillary::AD_OFF;
use crate::error::{FilterError, Instead};

/// A fact about a packet, by its place in `<linux/filter.h>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ancillary {
    Protocol,
    PacketType,
    Interface,
    NetlinkAttribute,
    Mark,
    Queue,
    HardwareType,
    Hash,
    Cpu,
    XorX,
    VlanTag,
    VlanPresent,
    PayloadOffset,
    Random,
    VlanProtocol,
}

/// How a hook answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// 32 bits of the context at this offset.
    Context(i16),
    /// 16 bits in network order, in 32 bits of the context at this offset.
    ContextBigEndian(i16),
    /// A helper without arguments.
    Helper(i32),
    /// Always this.
    Constant(u32),
    /// 0, good only for comparing with "outgoing".
    NotOutgoing,
    /// The Ethernet type in the packet.
    EtherType,
    /// A ^ X.
    XorX,
}

/// `PACKET_OUTGOING` of `<linux/if_packet.h>`: the one packet type that libpcap asks for.
pub(crate) const PACKET_OUTGOING: u32 = 4;

impl Ancillary {
    /// What stands at this offset, if the kernel has anything there.
    pub(crate) fn at(k: u32) -> Option<Self> {
        use Ancillary::*;
        Some(match k.checked_sub(AD_OFF)? {
            0 => Protocol,
            4 => PacketType,
            8 => Interface,
            12 | 16 => NetlinkAttribute,
            20 => Mark,
            24 => Queue,
            28 => HardwareType,
            32 => Hash,
            36 => Cpu,
            40 => XorX,
            44 => VlanTag,
            48 => VlanPresent,
            52 => PayloadOffset,
            56 => Random,
            60 => VlanProtocol,
            _ => return None,
        })
    }

    /// Whether a program that asks for this expects tags beside the packet, not in it.
    pub(crate) fn is_vlan(self) -> bool {
        matches!(
            self,
            Ancillary::VlanTag | Ancillary::VlanPresent | Ancillary::VlanProtocol
        )
    }

    pub(crate) fn answer(self, target: &Target) -> Result<Answer, FilterError> {
        use Ancillary::*;
        use trawl_ebpf::helper;
        let refuse = |part, instead| {
            Err(FilterError::NotAtHook {
                part,
                hook: target.hook.words(),
                instead,
            })
        };
        Ok(match (self, target.hook) {
            (XorX, _) => Answer::XorX,
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
            // At XDP the tag is in the packet, so none stands beside it.
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
                return refuse(
                    "the payload's offset as the kernel parses it",
                    Instead::Packet,
                );
            }
            (NetlinkAttribute, _) => {
                return refuse("a netlink attribute", Instead::NetlinkSocket);
            }
        })
    }

    /// Why the packet's type as such is unknown before the stack has looked at the packet.
    pub(crate) fn packet_type_refusal(target: &Target) -> FilterError {
        FilterError::NotAtHook {
            part: "the packet's type (to this host, to another, broadcast)",
            hook: target.hook.words(),
            instead: Instead::InboundOrTap,
        }
    }
}
