//! Ancillary loads: negative offsets for which Linux returns facts about the packet.
//!
//! libpcap emits a few of them (`inbound`, `outbound`, `ifindex`, and `vlan` for a live handle); a raw program may contain
//! any. Each is translated for the hook or refused with a reason.

use super::{Hook, Target};
use crate::classic::ancillary::AD_OFF;
use crate::error::{FilterError, Instead};

/// A fact about a packet, in the order of `<linux/filter.h>`.
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
    /// Returns the fact at this offset, if the kernel has one.
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

    /// Returns true if a program with this fact expects out-of-band tags.
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
                hook: target.hook.description(),
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

    /// Returns the error for the packet's type, which is unknown before the stack has processed the packet.
    pub(crate) fn packet_type_refusal(target: &Target) -> FilterError {
        FilterError::NotAtHook {
            part: "the packet's type (to this host, to another, broadcast)",
            hook: target.hook.description(),
            instead: Instead::InboundOrTap,
        }
    }
}
