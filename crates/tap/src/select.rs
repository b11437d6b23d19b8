//! Which taps serve what was asked for at a site, and why those.

use trawl_kernel::{Error, Result};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;

use crate::hook::{self, Hook};
use crate::site::{Direction, Options, Site};
use crate::tc::{Tc, TcEgress};
use crate::xdp::{self, Xdp};
use crate::{Choice, Tap, packet::Packet};

/// The taps to attach, and the reason in words where it was trawl that chose.
#[derive(Debug)]
pub struct Selection {
    pub taps: Vec<Box<dyn Tap>>,
    pub why: Option<String>,
}

pub fn select(site: &Site, options: &Options) -> Result<Selection> {
    let chosen = |tap: Box<dyn Tap>| Selection {
        taps: vec![tap],
        why: None,
    };
    match options.tap {
        Choice::Xdp => with_sent(Box::new(Xdp), options),
        Choice::Hook => with_sent(Box::new(Hook), options),
        Choice::Tc => Ok(chosen(Box::new(Tc))),
        Choice::Packet => Ok(chosen(Box::new(Packet))),
        Choice::Auto => automatic(site, options),
    }
}

/// An XDP hook sees what is received; what is sent is left to tc.
fn with_sent(tap: Box<dyn Tap>, options: &Options) -> Result<Selection> {
    match options.direction {
        None | Some(Direction::In) => Ok(Selection {
            taps: vec![tap],
            why: None,
        }),
        Some(Direction::Both) => Ok(Selection {
            taps: vec![tap, Box::new(TcEgress)],
            why: None,
        }),
        Some(Direction::Out) => {
            let what = format!("cannot see sent packets with the {} tap", tap.name());
            Err(Error::usage(what, "an XDP hook sees received ones only")
                .mend("use --tap tc or --tap packet"))
        }
    }
}

fn automatic(site: &Site, options: &Options) -> Result<Selection> {
    let because = |mut selection: Selection, why: &str| {
        selection.why = Some(why.to_owned());
        Ok(selection)
    };
    if site.interface.link_type != LINKTYPE_ETHERNET {
        let packet = Selection {
            taps: vec![Box::new(Packet)],
            why: None,
        };
        return because(packet, "its frames are not Ethernet");
    }
    if options.direction == Some(Direction::Out) {
        let tc = Selection {
            taps: vec![Box::new(Tc)],
            why: None,
        };
        return because(tc, "sent packets pass no XDP hook");
    }
    if options.hook.is_some() {
        return because(with_sent(Box::new(Hook), options)?, "--hook was given");
    }
    let Some(present) = site.interface.xdp_attached(site.namespace.as_ref())? else {
        return because(
            with_sent(Box::new(Xdp), options)?,
            "no XDP program is on it",
        );
    };
    if xdp::is_trawls(&present) {
        return because(
            with_sent(Box::new(Xdp), options)?,
            "another trawl capture is on it",
        );
    }
    if hook::is_there(&present) {
        return because(
            with_sent(Box::new(Hook), options)?,
            "the XDP program on it has a hook map",
        );
    }
    Err(xdp::occupied(site, &present))
}
