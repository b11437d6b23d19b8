//! Choice of the taps for a request at a site, with the reason.

use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_sys::{Error, Result};

use crate::Tap;
use crate::capture_site::CaptureSite;
use crate::event::TapReason;
use crate::taps::drop::AtDrops;
use crate::taps::hook::{self, Hook};
use crate::taps::packet::{self, Packet};
use crate::taps::tap::SiteTaps;
use crate::taps::tc::{self, Tc};
use crate::taps::trace::{self, Trace};
use crate::taps::xdp::{self, Xdp};
use trawl_plan::TapChoice;
use trawl_plan::options::{At, CaptureOptions, Direction};

/// Returns the tap that is attached once for the whole capture, if any.
pub fn of_capture(options: &CaptureOptions) -> Option<Box<dyn Tap>> {
    let drops = options.drops.clone()?;
    Some(Box::new(AtDrops(drops)))
}

fn tap(tap: impl Tap + 'static) -> SiteTaps {
    vec![Box::new(tap)]
}

/// Returns a tap for the XDP program of an interface on the path of followed packets, if possible.
pub(super) fn of_drops(site: &CaptureSite, options: &CaptureOptions) -> SiteTaps {
    if !options.follows() {
        return Vec::new();
    }
    // The program may be gone by now.
    let present = site.interface.xdp_attached(site.namespace.as_ref());
    let Some(present) = present.ok().flatten() else {
        return Vec::new();
    };
    match trace::refusal() {
        None => tap(Trace),
        Some(_) if hook::is_there(&present) => tap(Hook),
        Some(_) => Vec::new(),
    }
}

/// Returns true if only taps at an XDP program can provide the requested data.
fn wants_verdicts(options: &CaptureOptions) -> bool {
    tc::FACTS.check(options).is_err()
}

/// Returns true if the request requires a hook at the entry, which most hook maps lack.
fn wants_entry(options: &CaptureOptions) -> bool {
    options.at.is_some_and(At::entry) || options.filter_at == Some(At::Entry)
}

/// Chooses taps for an interface without an XDP program: tc misses no packets, and leaves the device alone.
fn without_program(site: &CaptureSite, options: &CaptureOptions) -> Result<SiteTaps> {
    // The kernel chooses a packet's send queue after tc.
    if options.queue.is_some() && options.direction != Some(Direction::In) {
        return Ok(tap(Packet));
    }
    let Err(error) = tc::FACTS.check(options) else {
        return Ok(tap(Tc::Asked));
    };
    match xdp::FACTS.check(options) {
        // No packet at this one of many interfaces has the requested data.
        Ok(()) if site.one_of_any => Ok(Vec::new()),
        Ok(()) => Err(error.fix("--tap xdp attaches an XDP program of trawl's own, which sees them")),
        Err(_) => Err(error),
    }
}

/// Adds tc for sent packets to a tap at XDP, which sees received ones. If trawl chose the tap, both directions are
/// wanted.
pub(super) fn with_sent(tap: Box<dyn Tap>, options: &CaptureOptions) -> SiteTaps {
    let sent: Option<Box<dyn Tap>> = match options.direction {
        _ if options.with_tc => Some(Box::new(Tc::Asked)),
        None if options.tap == TapChoice::Auto && !wants_verdicts(options) => Some(Box::new(Tc::Sent)),
        Some(Direction::Both) => Some(Box::new(Tc::Sent)),
        // The table refuses sent packets alone.
        None | Some(Direction::In | Direction::Out) => None,
    };
    std::iter::once(tap).chain(sent).collect()
}

pub(super) fn automatic(site: &CaptureSite, options: &CaptureOptions) -> Result<(SiteTaps, TapReason)> {
    if site.interface.link_type != LINKTYPE_ETHERNET {
        return Ok((tap(Packet), TapReason::NotEthernet));
    }
    if options.direction == Some(Direction::Out) {
        return Ok((tap(Tc::Asked), TapReason::SentOnly));
    }
    if options.hook.is_some() {
        return Ok((with_sent(Box::new(Hook), options), TapReason::HookNamed));
    }
    if options.programs.is_some() {
        return Ok((with_sent(Box::new(Trace), options), TapReason::ProgramNamed));
    }
    let Some(present) = site.interface.xdp_attached(site.namespace.as_ref())? else {
        return Ok((without_program(site, options)?, TapReason::NoProgram));
    };
    if let Some(error) = site.missing_right() {
        return Err(error);
    }
    if xdp::is_trawls(&present) {
        return Ok((without_program(site, options)?, TapReason::OtherCapture));
    }
    if hook::is_there(&present) && !(wants_entry(options) && trace::refusal().is_none()) {
        return Ok((with_sent(Box::new(Hook), options), TapReason::HasHookMap));
    }
    let Some(error) = trace::obstacle(site, &present) else {
        return Ok((with_sent(Box::new(Trace), options), TapReason::CanBeTraced));
    };
    // Packets that the program passes are better than none.
    let packet_suits = packet::FACTS.check(options).is_ok();
    if !packet_suits && tc::FACTS.check(options).is_ok() {
        Ok((tap(Tc::Asked), untraced(&error)))
    } else if packet_suits || site.one_of_any {
        Ok((tap(Packet), untraced(&error)))
    } else {
        Err(error)
    }
}

fn untraced(error: &Error) -> TapReason {
    TapReason::CannotBeTraced { why: error.to_string() }
}

/// Returns a tap with trawl's own program on an interface without one, else a tap at the attached program; tc for sent
/// packets comes with it.
pub(super) fn at_xdp(site: &CaptureSite, options: &CaptureOptions) -> Result<SiteTaps> {
    let present = site.interface.xdp_attached(site.namespace.as_ref())?;
    if present.is_some()
        && let Some(error) = site.missing_right()
    {
        return Err(error);
    }
    let others = present.filter(|present| !xdp::is_trawls(present));
    let has_hook = others.as_ref().is_some_and(hook::is_there) && trace::refusal().is_some();
    let tap: Box<dyn Tap> = match (&others, &options.programs) {
        (Some(_), None) if has_hook => Box::new(Hook),
        (None, None) => Box::new(Xdp),
        _ => Box::new(Trace),
    };
    Ok(with_sent(tap, options))
}
