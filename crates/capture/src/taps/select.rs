//! TapChoice of the taps for a request at a site, with the reason.

use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_sys::Result;

use crate::capture_site::CaptureSite;
use crate::event::TapReason;
use crate::options::{At, CaptureOptions, Direction};
use crate::taps::dpdk::Dpdk;
use crate::taps::hook::{self, Hook};
use crate::taps::packet::Packet;
use crate::taps::pcap::Pcap;
use crate::taps::table;
use crate::taps::tc::{Tc, TcEgress};
use crate::taps::trace::{self, Trace};
use crate::taps::xdp::{self, Xdp};
use crate::{Tap, TapChoice};

/// The taps to attach, and the reason if trawl chose.
#[derive(Debug)]
pub struct Selection {
    pub taps: Vec<Box<dyn Tap>>,
    pub why: Option<TapReason>,
}

pub fn select(site: &CaptureSite, options: &CaptureOptions) -> Result<Selection> {
    let chosen = |tap: Box<dyn Tap>| Selection {
        taps: vec![tap],
        why: None,
    };
    let selection = match options.tap {
        TapChoice::Xdp => with_sent(xdp_tap(site, options)?, options),
        TapChoice::Tailcall => with_sent(Box::new(Hook), options),
        TapChoice::Tc => Ok(chosen(Box::new(Tc))),
        TapChoice::Packet => Ok(chosen(Box::new(Packet))),
        TapChoice::Pcap => Ok(chosen(Box::new(Pcap))),
        TapChoice::Dpdk => Ok(chosen(Box::new(Dpdk))),
        TapChoice::Auto => automatic(site, options),
        // The drop tap is attached once for the whole capture.
        TapChoice::Drop => Ok(Selection {
            taps: along_the_way(site, options)?,
            why: None,
        }),
    }?;
    if let Some(tap) = selection.taps.first() {
        tap.facts().check(options)?;
    }
    Ok(selection)
}

/// Returns a tap for the XDP program of an interface on the path of followed packets, if possible.
fn along_the_way(site: &CaptureSite, options: &CaptureOptions) -> Result<Vec<Box<dyn Tap>>> {
    if !options.follows() {
        return Ok(Vec::new());
    }
    // The program may be gone by now.
    let present = site.interface.xdp_attached(site.namespace.as_ref());
    let Some(present) = present.ok().flatten() else {
        return Ok(Vec::new());
    };
    let tap: Box<dyn Tap> = match trace::refusal() {
        None => Box::new(Trace),
        Some(_) if hook::is_there(&present) => Box::new(Hook),
        Some(_) => return Ok(Vec::new()),
    };
    Ok(vec![tap])
}

/// Returns true if only taps at an XDP program can provide the requested data.
fn wants_verdicts(options: &CaptureOptions) -> bool {
    table::TC.check(options).is_err()
}

/// Returns true if the request exceeds most hook maps.
fn wants_entry(options: &CaptureOptions) -> bool {
    options.at.is_some_and(At::entry) || options.filter_at == Some(At::Entry)
}

/// Chooses taps for an interface without an XDP program: tc misses no packets, and leaves the device alone.
fn without_program(site: &CaptureSite, options: &CaptureOptions) -> Result<Selection> {
    let tc = |taps| Selection { taps, why: None };
    // The kernel chooses a packet's send queue after tc.
    if options.queue.is_some() && options.direction != Some(Direction::In) {
        return Ok(tc(vec![Box::new(Packet)]));
    }
    let Err(error) = table::TC.check(options) else {
        return Ok(tc(vec![Box::new(Tc)]));
    };
    match table::XDP.check(options) {
        // No packet at this one of many interfaces has the requested data.
        Ok(()) if site.one_of_any => Ok(tc(Vec::new())),
        Ok(()) => {
            Err(error.fix("--tap xdp attaches an XDP program of trawl's own, which sees them"))
        }
        Err(_) => Err(error),
    }
}

/// Adds tc for sent packets to a tap at XDP, which sees received ones. If trawl chose the tap, both directions are wanted.
fn with_sent(tap: Box<dyn Tap>, options: &CaptureOptions) -> Result<Selection> {
    match options.direction {
        _ if options.with_tc => Ok(Selection {
            taps: vec![tap, Box::new(Tc)],
            why: None,
        }),
        None if options.tap == TapChoice::Auto && !wants_verdicts(options) => Ok(Selection {
            taps: vec![tap, Box::new(TcEgress)],
            why: None,
        }),
        None | Some(Direction::In) => Ok(Selection {
            taps: vec![tap],
            why: None,
        }),
        Some(Direction::Both) => Ok(Selection {
            taps: vec![tap, Box::new(TcEgress)],
            why: None,
        }),
        // The table refuses this.
        Some(Direction::Out) => Ok(Selection {
            taps: vec![tap],
            why: None,
        }),
    }
}

fn automatic(site: &CaptureSite, options: &CaptureOptions) -> Result<Selection> {
    let because = |mut selection: Selection, why: TapReason| {
        selection.why = Some(why);
        Ok(selection)
    };
    if site.interface.link_type != LINKTYPE_ETHERNET {
        let packet = Selection {
            taps: vec![Box::new(Packet)],
            why: None,
        };
        return because(packet, TapReason::NotEthernet);
    }
    if options.direction == Some(Direction::Out) {
        let tc = Selection {
            taps: vec![Box::new(Tc)],
            why: None,
        };
        return because(tc, TapReason::SentOnly);
    }
    if options.hook.is_some() {
        return because(with_sent(Box::new(Hook), options)?, TapReason::HookNamed);
    }
    if options.programs.is_some() {
        return because(
            with_sent(Box::new(Trace), options)?,
            TapReason::ProgramNamed,
        );
    }
    let Some(present) = site.interface.xdp_attached(site.namespace.as_ref())? else {
        return because(without_program(site, options)?, TapReason::NoProgram);
    };
    if let Some(error) = site.may_not_look() {
        return Err(error);
    }
    if xdp::is_trawls(&present) {
        return because(without_program(site, options)?, TapReason::OtherCapture);
    }
    if hook::is_there(&present) && !(wants_entry(options) && trace::refusal().is_none()) {
        return because(with_sent(Box::new(Hook), options)?, TapReason::HasHookMap);
    }
    match trace::refusal() {
        None => because(with_sent(Box::new(Trace), options)?, TapReason::CanBeTraced),
        Some(_) if site.one_of_any => because(
            Selection {
                taps: vec![Box::new(Packet)],
                why: None,
            },
            TapReason::CannotBeTraced,
        ),
        Some(answer) => Err(trace::refused(site, &present, answer)),
    }
}

/// Returns a tap with trawl's own program on an interface without one, else a tap at the attached program.
fn xdp_tap(site: &CaptureSite, options: &CaptureOptions) -> Result<Box<dyn Tap>> {
    let present = site.interface.xdp_attached(site.namespace.as_ref())?;
    if present.is_some()
        && let Some(error) = site.may_not_look()
    {
        return Err(error);
    }
    let others = present.filter(|present| !xdp::is_trawls(present));
    if let Some(present) = &others
        && options.programs.is_none()
        && trace::refusal().is_some()
        && hook::is_there(present)
    {
        return Ok(Box::new(Hook));
    }
    if others.is_some() || options.programs.is_some() {
        Ok(Box::new(Trace))
    } else {
        Ok(Box::new(Xdp))
    }
}
