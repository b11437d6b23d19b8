//! The contract between a capture and its taps, and what several taps share.

use std::fmt;

use trawl_packet::pcapng::Interface;
use trawl_pipeline::Stage;
use trawl_sys::netns::Namespace;
use trawl_sys::process::warden::Warden;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason, LibraryFigures};
use crate::taps::facts::Facts;
use crate::taps::watch::Sight;
use trawl_plan::options::CaptureOptions;

/// The taps to attach at a site.
pub type SiteTaps = Vec<Box<dyn Tap>>;

/// A capture back end.
pub trait Tap: fmt::Debug {
    /// Returns the tap's row of the table.
    fn facts(&self) -> &'static Facts;

    fn name(&self) -> &'static str {
        self.facts().name()
    }

    /// Starts seeing packets at this one of the sites, or at all of them if the tap is attached once for a capture.
    /// Dropping the returned value detaches the tap.
    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>>;
}

/// Returns the capabilities needed to re-attach a program, in the interface's namespace.
pub(crate) fn to_attach_again(site: &CaptureSite) -> Capabilities {
    let entering = match site.namespace {
        Some(_) => Capabilities::SYS_ADMIN,
        None => Capabilities::empty(),
    };
    Capabilities::BPF | Capabilities::NET_ADMIN | entering
}

/// Capabilities needed to find another program, and to load a tap for it.
pub(crate) const TO_FOLLOW_PROGRAMS: Capabilities = Capabilities::BPF
    .union(Capabilities::NET_ADMIN)
    .union(Capabilities::PERFMON)
    .union(Capabilities::SYS_ADMIN)
    .union(Capabilities::DAC_READ_SEARCH);

/// Returns the name of a program's variant, which ends with a letter for each of its features.
pub(crate) fn variant(program: &str, features: &[(bool, &str)]) -> String {
    let letters: String = features.iter().filter(|(has, _)| *has).map(|(_, letter)| *letter).collect();
    if letters.is_empty() { program.to_owned() } else { format!("{program}_{letters}") }
}

/// Capabilities needed to attach any tap to an interface that appears, in another namespace too.
pub(crate) const TO_JOIN: Capabilities = TO_FOLLOW_PROGRAMS.union(Capabilities::NET_RAW);

/// An attached tap.
pub trait AttachedTap: fmt::Debug {
    /// Starts recording. All taps are attached by then, and no more processes are forked: threads may be started.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the stage that completes the tap's records for a file that begins with these interface blocks. Called
    /// once.
    fn stage(&mut self, _interfaces: &[Interface]) -> Option<Box<dyn Stage>> {
        None
    }

    /// Covers a network namespace that a followed command entered, if the tap covers single ones.
    fn enter(&mut self, _namespace: &Namespace) -> Result<()> {
        Ok(())
    }

    /// Stops seeing packets, and undoes all changes. Returns an event for each change that could not be undone.
    fn detach(&mut self) -> Vec<Event>;

    /// Checks that packets still pass here, and re-attaches if possible.
    fn watch(&mut self, _warden: &mut Warden) -> Sight {
        Sight::Clear
    }

    /// Returns true if the kernel announces each change of the attachment as a change of filters at tc.
    fn is_announced(&self) -> bool {
        false
    }

    /// Returns the changes since the last call.
    fn new_events(&mut self) -> Vec<Event> {
        Vec::new()
    }

    /// Returns the capabilities needed while the tap runs.
    fn needed_capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    /// Returns the reason for which the tap cannot see packets any more, if so.
    fn ended(&mut self) -> Option<GoneReason> {
        None
    }

    /// Returns packets that a filter rejected before they reached a ring, by hook point; they count as seen.
    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        Vec::new()
    }

    /// Returns the statistics of the library that reads the packets, by hook point.
    fn library(&mut self) -> Option<(u32, LibraryFigures)> {
        None
    }

    /// Returns packets lost before they reached a ring, by hook point and reason; they count as seen.
    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        Vec::new()
    }
}

/// Refuses --cpu for a tap whose source does not report the CPU of a packet.
pub(crate) fn refuse_cpu(options: &CaptureOptions, tap: &str, why: &str, fix: &'static str) -> Result<()> {
    match options.cpu {
        Some(_) => {
            let what = format!("cannot choose packets by CPU with the {tap} tap");
            Err(Error::usage(what, why).fix(fix))
        }
        None => Ok(()),
    }
}
