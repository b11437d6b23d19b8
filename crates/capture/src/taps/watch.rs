//! What a tap finds when it looks at what it hangs on: whether packets still come by there.

use std::fmt;

use serde::{Deserialize, Serialize};
use trawl_attach::snapshot;
use trawl_packet::verdict::Kind;
use trawl_sys::netlink::XdpAttachment;

use crate::capture_site::CaptureSite;

/// What took a tap's sight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// Somebody detached trawl's own link.
    LinkDetached,
    /// Another XDP program is in the place of the one that was captured at.
    ProgramReplaced { id: u32, name: String },
    /// The XDP program that was captured at is not attached any more.
    ProgramRemoved,
    /// A slot of the hook map was emptied.
    SlotEmptied { slot: u32 },
    /// A slot of the hook map holds somebody else's program.
    SlotTaken { slot: u32, id: u32 },
    /// A filter on clsact was deleted, perhaps with its qdisc.
    FilterRemoved,
}

impl Cause {
    pub fn replaced_by(present: &XdpAttachment) -> Self {
        let id = present.program_id;
        let name = snapshot::name_of(id).unwrap_or_default();
        Self::ProgramReplaced { id, name }
    }
}

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    Clear,
    /// It was attached again just now.
    Restored(Cause),
    /// It cannot see, and could not be attached again either: the reason, where there is one to tell.
    Lost(Cause, Option<String>),
    /// It cannot see, and waits for a program to look at.
    Waiting(Cause),
}

/// The attached XDP program; nothing if the interface is gone, which others tell of.
pub(crate) fn attached_now(site: &CaptureSite) -> Option<Option<XdpAttachment>> {
    let namespace = site.namespace.as_ref();
    let present = site.interface.xdp_attached(namespace).ok()?;
    let there = present.is_some() || site.interface.is_there(namespace);
    there.then_some(present)
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The slots of a hook map are numbered as the actions of an XDP program are.
        let slot_name = |slot: u32| Kind::Xdp.name(slot.into()).unwrap_or("?");
        let text = match self {
            Self::LinkDetached => "its link was detached".to_owned(),
            Self::ProgramReplaced { id, name } => {
                format!("the XDP program was replaced by {name} (id {id})")
            }
            Self::ProgramRemoved => "the XDP program was removed".to_owned(),
            Self::SlotEmptied { slot } => {
                format!(
                    "slot {slot} ({}) of the hook map was emptied",
                    slot_name(*slot)
                )
            }
            Self::SlotTaken { slot, id } => format!(
                "slot {slot} ({}) of the hook map was given to program {id}",
                slot_name(*slot)
            ),
            Self::FilterRemoved => "its tc filter was deleted".to_owned(),
        };
        f.write_str(&text)
    }
}
