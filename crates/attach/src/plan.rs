//! From what is attached and what is asked for to the steps that lead there, or the reason why none do. Pure functions.

use trawl_sys::netlink::{XdpAttachment, XdpMode};

use crate::snapshot::{Chain, Hold, Kind, Present, Snapshot};

/// As many programs as libxdp's dispatcher takes are in a chain.
pub const LONGEST_CHAIN: usize = 10;

/// How a program is to be attached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// `None`: native, and skb where the driver has no XDP.
    pub mode: Option<XdpMode>,
    /// Take the place of what is there.
    pub replace: bool,
    /// What becomes of the maps of the program whose place is taken.
    pub maps: OldMaps,
    /// Its place in a chain of programs, if one is asked for.
    pub priority: Option<u32>,
    /// Hooks are put into it, for captures to enter.
    pub tappable: bool,
    /// Refuse what would cut the session that the command is typed in.
    pub careful: bool,
    /// Refuse to take the place of a guard, whose rules nothing puts back.
    pub keep_guard: bool,
}

/// What becomes of the maps of a program whose place is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldMaps {
    /// They go with it.
    #[default]
    Drop,
    /// They go with it if nothing is in them; otherwise it stays.
    Ask,
    /// The new program uses them.
    Keep,
}

/// What the plan has to know of the new program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// It has hooks for captures.
    pub hooks: bool,
    /// It takes packets in several pieces.
    pub frags: bool,
    /// It takes no part in a chain.
    pub alone: bool,
}

/// Where a program goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the interface by itself, or as the first of a chain of jumps.
    Alone(AttachPlan),
    /// At the head of a new chain with a dispatcher.
    NewDispatcher(AttachPlan),
    /// Among the programs of a dispatcher, which is exchanged for a longer one.
    Dispatcher(AttachPlan),
    /// Into the chain of jumps that is there; without its part for packets in several pieces, if it has to.
    Jumps { linear: bool },
}

/// Steps that attach a program, or a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachPlan {
    pub mode: XdpMode,
    pub steps: Vec<Step>,
    /// When the steps for skb mode serve instead.
    pub fallback: Fallback,
    pub in_skb_mode: Vec<Step>,
}

/// When skb mode serves where another mode was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    Never,
    /// The driver has no native XDP.
    NoDriverSupport,
    /// Whatever the reason is.
    Always,
}

/// One change of what is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes a program off. It is attached again if a later step fails.
    Remove { old: XdpAttachment },
    /// Attaches the new program where none is.
    Attach { mode: XdpMode, means: Means },
    /// Puts the new program in the place of the old one without a gap: in trawl's own link, else by netlink.
    Exchange { old: XdpAttachment },
}

/// What is to attach a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A link, or netlink where the kernel refuses a link.
    Link,
    /// A link that ends with this process.
    LinkOnly,
    /// Netlink, by which libxdp's tools find a dispatcher.
    Netlink,
}

/// Why a program cannot be put on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// A program is on it, and it is not to be replaced.
    Occupied { by: Present },
    /// Programs with hooks cannot join a dispatcher's chain.
    HooksInDispatcher { by: Present },
    /// The chain runs in another mode than was asked for.
    OtherMode { mode: XdpMode },
    /// The chain takes packets in several pieces, and the new program does not.
    PacketsInPieces,
    /// No program fits into the chain any more.
    ChainFull { programs: usize },
    /// An interface above this one has a program.
    Above { interface: String },
    /// It is a guard that would be replaced.
    Guard { id: u32 },
    /// The maps are to be kept, and none of the running programs has the new one's name.
    NoPredecessor { running: Vec<String> },
    /// Maps of replaced programs would go with what is in them.
    ContentsLost {
        programs: Vec<String>,
        maps: Vec<String>,
    },
}

/// Where a program goes.
pub fn place(
    now: &Snapshot,
    new: Newcomer,
    request: &Request,
) -> std::result::Result<Place, Conflict> {
    let mode = request.mode.unwrap_or(XdpMode::Native);
    if let Some(interface) = &now.above {
        let interface = interface.clone();
        return Err(Conflict::Above { interface });
    }
    if let (true, true, Some(id)) = (request.keep_guard, request.replace, now.guard) {
        return Err(Conflict::Guard { id });
    }
    let met = now.met_in(mode);
    let chains = !new.hooks && !new.alone && mode != XdpMode::Offload && now.dispatchers;
    let Some(by) = met.filter(|_| !request.replace) else {
        return Ok(match chains {
            true => Place::NewDispatcher(steps(now, request.mode, Means::Netlink)),
            false => Place::Alone(steps(now, request.mode, Means::Link)),
        });
    };
    let in_its_mode = || match request.mode {
        Some(wanted) if wanted != by.mode => Err(Conflict::OtherMode { mode: by.mode }),
        _ => Ok(()),
    };
    match &by.kind {
        Kind::Dispatcher { .. } if new.hooks => Err(Conflict::HooksInDispatcher { by: by.clone() }),
        Kind::Dispatcher { programs } if !new.alone => {
            in_its_mode()?;
            let programs = *programs;
            match programs < LONGEST_CHAIN {
                true => Ok(Place::Dispatcher(steps(now, Some(by.mode), Means::Netlink))),
                false => Err(Conflict::ChainFull { programs }),
            }
        }
        Kind::Installed {
            chain: Some(Chain { programs, frags }),
            ..
        } if !new.alone => {
            in_its_mode()?;
            if *frags && !new.frags {
                return Err(Conflict::PacketsInPieces);
            }
            let programs = *programs;
            match programs < LONGEST_CHAIN {
                true => Ok(Place::Jumps {
                    linear: new.frags && !frags,
                }),
                false => Err(Conflict::ChainFull { programs }),
            }
        }
        _ => Err(Conflict::Occupied { by: by.clone() }),
    }
}

/// The steps that put a program on the interface, in the place of what is there.
pub fn steps(now: &Snapshot, asked: Option<XdpMode>, means: Means) -> AttachPlan {
    let mode = asked.unwrap_or(XdpMode::Native);
    let fallback = match (asked, means, now.native) {
        (Some(_), ..) => Fallback::Never,
        (None, Means::LinkOnly, _) => Fallback::Always,
        // The driver says that it has it: the reason is another one.
        (None, _, Some(true)) => Fallback::Never,
        (None, ..) => Fallback::NoDriverSupport,
    };
    AttachPlan {
        mode,
        steps: towards(now.met_in(mode), mode, means),
        fallback,
        in_skb_mode: match fallback {
            Fallback::Never => Vec::new(),
            _ => towards(now.met_in(XdpMode::Skb), XdpMode::Skb, means),
        },
    }
}

fn towards(met: Option<&Present>, mode: XdpMode, means: Means) -> Vec<Step> {
    let Some(met) = met else {
        return vec![Step::Attach { mode, means }];
    };
    let old = met.attachment();
    let in_place = match (met.hold, means) {
        (Hold::Netlink, _) | (Hold::OwnLink, Means::Link) => true,
        // A link of somebody else's would take the new program along when it ends; netlink changes no link's program.
        _ => false,
    };
    match in_place && met.mode == mode {
        true => vec![Step::Exchange { old }],
        // The kernel has a program in one mode only.
        false => vec![Step::Remove { old }, Step::Attach { mode, means }],
    }
}

#[cfg(test)]
mod tests;
