//! Plans the steps from the attached programs to the request, or finds the conflict, by pure functions.

use trawl_sys::netlink::{XdpAttachment, XdpMode};

use crate::snapshot::{Chain, Hold, Present, ProgramOwner, Snapshot};

/// Longest chain, as in libxdp's dispatcher.
pub const LONGEST_CHAIN: usize = 10;

/// A request to attach a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachRequest {
    /// The mode; `None` means native, or skb if the driver has no XDP.
    pub mode: Option<XdpMode>,
    /// Replaces the attached program.
    pub replace: bool,
    /// Handling of the replaced program's maps.
    pub maps: OldMaps,
    /// Position in a chain of programs, if requested.
    pub priority: Option<u32>,
    /// Adds hooks for captures.
    pub tappable: bool,
    /// Refuses an attachment that would cut the session of the command.
    pub careful: bool,
    /// Refuses to replace a guard, whose rules would be lost.
    pub keep_guard: bool,
}

/// Handling of a replaced program's maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldMaps {
    /// They are removed.
    #[default]
    Drop,
    /// They are removed if empty; otherwise the program stays.
    Ask,
    /// The new program uses them.
    Keep,
}

/// Properties of the new program that the plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// It has hooks for captures.
    pub hooks: bool,
    /// It accepts packets in several pieces.
    pub frags: bool,
    /// It cannot join a chain.
    pub alone: bool,
}

/// Target of a new program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachPosition {
    /// The program goes directly on the interface, or becomes the first one of a chain of jumps.
    Alone(AttachPlan),
    /// The program goes to the head of a new chain with a dispatcher.
    NewDispatcher(AttachPlan),
    /// The program joins the chain of a dispatcher, which is exchanged for a longer one.
    Dispatcher(AttachPlan),
    /// The program joins the existing chain of jumps; if `linear`, without its support of packets in several pieces.
    Jumps { linear: bool },
}

/// Steps that attach a program, or a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachPlan {
    pub mode: XdpMode,
    pub steps: Vec<AttachStep>,
    /// Condition for the fallback to the steps for skb mode, which go on where the others ended.
    pub fallback: Fallback,
    pub in_skb_mode: Vec<AttachStep>,
}

/// Condition for falling back to skb mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    Never,
    /// Skb mode is used if the driver has no native XDP.
    NoDriverSupport,
    /// Skb mode is used after any refusal.
    Always,
}

/// A change of the attached programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachStep {
    /// Removes a program, which is attached again if a later step fails.
    Remove { old: XdpAttachment },
    /// Attaches the new program where none is attached.
    Attach { mode: XdpMode, means: AttachMethod },
    /// Exchanges the old program for the new one without a gap: in trawl's own link, or by netlink.
    Exchange { old: XdpAttachment },
}

/// Means of attaching a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMethod {
    /// A link, or netlink if the kernel refuses a link.
    Link,
    /// A link that ends with this process.
    LinkOnly,
    /// Netlink, by which libxdp's tools find a dispatcher.
    Netlink,
}

/// Reason why a program cannot be attached to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Another program is attached and may not be replaced.
    Occupied { by: Present },
    /// A program with hooks cannot join a dispatcher's chain.
    HooksInDispatcher { by: Present },
    /// The chain runs in a mode other than the requested one.
    OtherMode { mode: XdpMode },
    /// The chain accepts packets in several pieces, the new program does not.
    PacketsInPieces,
    /// The chain is full.
    ChainFull { programs: usize },
    /// An interface above this one has a program.
    Above { interface: String },
    /// A guard would be replaced.
    Guard { id: u32 },
    /// The maps are to be kept, and no running program has the new one's name.
    NoPredecessor { running: Vec<String> },
    /// Maps of replaced programs would lose their contents.
    ContentsLost { programs: Vec<String>, maps: Vec<String> },
}

/// Returns the target of a new program.
pub fn position(
    now: &Snapshot,
    new: Newcomer,
    request: &AttachRequest,
) -> std::result::Result<AttachPosition, Conflict> {
    let mode = request.mode.unwrap_or(XdpMode::Native);
    if let Some(interface) = &now.above {
        let interface = interface.clone();
        return Err(Conflict::Above { interface });
    }
    if let (true, true, Some(id)) = (request.keep_guard, request.replace, now.guard) {
        return Err(Conflict::Guard { id });
    }
    let met = now.conflicting_in(mode);
    let chains = !new.hooks && !new.alone && mode != XdpMode::Offload && now.dispatchers;
    let Some(by) = met.filter(|_| !request.replace) else {
        return Ok(if chains {
            AttachPosition::NewDispatcher(steps(now, request.mode, AttachMethod::Netlink))
        } else {
            AttachPosition::Alone(steps(now, request.mode, AttachMethod::Link))
        });
    };
    let in_its_mode = || match request.mode {
        Some(wanted) if wanted != by.mode => Err(Conflict::OtherMode { mode: by.mode }),
        _ => Ok(()),
    };
    match &by.kind {
        ProgramOwner::Dispatcher { .. } if new.hooks => Err(Conflict::HooksInDispatcher { by: by.clone() }),
        ProgramOwner::Dispatcher { programs } if !new.alone => {
            in_its_mode()?;
            let programs = *programs;
            if programs < LONGEST_CHAIN {
                Ok(AttachPosition::Dispatcher(steps(now, Some(by.mode), AttachMethod::Netlink)))
            } else {
                Err(Conflict::ChainFull { programs })
            }
        }
        ProgramOwner::Installed { chain: Some(Chain { programs, frags }), .. } if !new.alone => {
            in_its_mode()?;
            if *frags && !new.frags {
                return Err(Conflict::PacketsInPieces);
            }
            let programs = *programs;
            if programs < LONGEST_CHAIN {
                Ok(AttachPosition::Jumps { linear: new.frags && !frags })
            } else {
                Err(Conflict::ChainFull { programs })
            }
        }
        _ => Err(Conflict::Occupied { by: by.clone() }),
    }
}

/// Returns the steps that attach the program to the interface, in exchange for the attached one.
pub fn steps(now: &Snapshot, asked: Option<XdpMode>, means: AttachMethod) -> AttachPlan {
    let met = now.conflicting_in(XdpMode::Native);
    let asked = match (asked, means, now.native, met) {
        // An attempt in native mode, which this driver refuses, would leave the interface without a program for a
        // moment.
        (None, AttachMethod::Link | AttachMethod::Netlink, Some(false), Some(met)) => Some(met.mode),
        _ => asked,
    };
    let mode = asked.unwrap_or(XdpMode::Native);
    let fallback = match (asked, means, now.native) {
        (Some(_), ..) => Fallback::Never,
        (None, AttachMethod::LinkOnly, _) => Fallback::Always,
        // The driver reports native support: the reason is another one.
        (None, _, Some(true)) => Fallback::Never,
        (None, ..) => Fallback::NoDriverSupport,
    };
    let steps = towards(now.conflicting_in(mode), mode, means);
    let is_removed = |step: &AttachStep| matches!(step, AttachStep::Remove { .. });
    // The steps for native mode may remove the program.
    let left = now.conflicting_in(XdpMode::Skb).filter(|_| !steps.iter().any(is_removed));
    AttachPlan {
        mode,
        fallback,
        in_skb_mode: match fallback {
            Fallback::Never => Vec::new(),
            _ => towards(left, XdpMode::Skb, means),
        },
        steps,
    }
}

fn towards(met: Option<&Present>, mode: XdpMode, means: AttachMethod) -> Vec<AttachStep> {
    let Some(met) = met else {
        return vec![AttachStep::Attach { mode, means }];
    };
    let old = met.attachment();
    let update = match (met.hold, means) {
        (Hold::Netlink, _) | (Hold::OwnLink, AttachMethod::Link) => true,
        // The link of another process would detach the new program too when it ends, and netlink cannot change the
        // program of a link.
        _ => false,
    };
    if update && met.mode == mode {
        vec![AttachStep::Exchange { old }]
    } else {
        // The kernel allows a program in one mode only.
        vec![AttachStep::Remove { old }, AttachStep::Attach { mode, means }]
    }
}

#[cfg(test)]
mod tests;
