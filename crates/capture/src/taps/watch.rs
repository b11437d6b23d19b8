//! Result of a tap's check whether it still sees packets.

use std::fmt;

use serde::Serialize;
use trawl_attach::snapshot;
use trawl_packet::verdict::VerdictKind;
use trawl_sys::netlink::XdpAttachment;

use crate::capture_site::CaptureSite;

/// Reason for which a tap became blind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BlindCause {
    /// Another process detached trawl's link.
    LinkDetached,
    /// Another XDP program replaced the captured one.
    ProgramReplaced { id: u32, name: String },
    /// The captured XDP program is not attached any more.
    ProgramRemoved,
    /// A slot of the hook map was emptied.
    SlotEmptied { slot: u32 },
    /// A slot of the hook map holds a foreign program.
    SlotTaken { slot: u32, id: u32 },
    /// A filter on clsact was deleted, perhaps with its qdisc.
    FilterRemoved,
}

impl BlindCause {
    pub fn replaced_by(present: &XdpAttachment) -> Self {
        let id = present.program_id;
        let name = snapshot::name_of(id).unwrap_or_default();
        Self::ProgramReplaced { id, name }
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    Clear,
    /// Re-attached just now.
    Restored(BlindCause),
    /// Blind, and could not be re-attached: the reason, if known.
    Lost(BlindCause, Option<String>),
    /// Blind, and waiting for a program to trace.
    Waiting(BlindCause),
}

/// Returns the attached XDP program; `None` if the interface is gone, which other checks report.
pub(crate) fn attached_now(site: &CaptureSite) -> Option<Option<XdpAttachment>> {
    let namespace = site.namespace.as_ref();
    let present = site.interface.xdp_attached(namespace).ok()?;
    let exists = present.is_some() || site.interface.is_there(namespace);
    exists.then_some(present)
}

impl fmt::Display for BlindCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Slots of a hook map are numbered like the actions of an XDP program.
        let slot_name = |slot: u32| VerdictKind::Xdp.name(slot.into()).unwrap_or("?");
        let text = match self {
            Self::LinkDetached => "its link was detached".to_owned(),
            Self::ProgramReplaced { id, name } => {
                format!("the XDP program was replaced by {name} (id {id})")
            }
            Self::ProgramRemoved => "the XDP program was removed".to_owned(),
            Self::SlotEmptied { slot } => {
                format!("slot {slot} ({}) of the hook map was emptied", slot_name(*slot))
            }
            Self::SlotTaken { slot, id } => {
                format!("slot {slot} ({}) of the hook map was given to program {id}", slot_name(*slot))
            }
            Self::FilterRemoved => "its tc filter was deleted".to_owned(),
        };
        f.write_str(&text)
    }
}
