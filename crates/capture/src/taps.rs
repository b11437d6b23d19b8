//! The taps: capture back ends, a file or folder each, behind one trait.

pub mod dpdk;
pub mod drop;
pub mod hook;
pub mod packet;
pub mod pcap;
pub(crate) mod polls;
pub mod select;
pub mod table;
pub mod tc;
pub mod trace;
pub mod watch;
pub mod xdp;

use std::fmt;

use serde::{Deserialize, Serialize};
use trawl_sys::Result;
use trawl_sys::privilege::Capabilities;
use trawl_sys::warden::Warden;

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason};
use table::Facts;
use watch::Sight;

/// The taps by name, as `--tap` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    Auto,
    Xdp,
    Hook,
    Tc,
    Packet,
    /// A device of a libpcap.
    Pcap,
    /// Ports of a DPDK application.
    Dpdk,
    /// Nothing but what the kernel drops.
    Drop,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Xdp => "xdp",
            Self::Hook => "hook",
            Self::Tc => "tc",
            Self::Packet => "packet",
            Self::Pcap => "pcap",
            Self::Dpdk => "dpdk",
            Self::Drop => "drop",
        })
    }
}

/// A capture back end.
pub trait Tap: fmt::Debug {
    /// Its line of the table.
    fn facts(&self) -> &'static Facts;

    fn name(&self) -> &'static str {
        self.facts().name
    }

    /// Starts seeing packets at this site. What it attached is gone once the returned value is dropped.
    fn attach(
        &self,
        index: usize,
        site: &CaptureSite,
        assembly: &mut Assembly,
    ) -> Result<Box<dyn AttachedTap>>;
}

/// Capabilities needed to attach a program again, in the interface's namespace.
pub(crate) fn to_attach_again(site: &CaptureSite) -> Capabilities {
    let entering = match site.namespace {
        Some(_) => Capabilities::SYS_ADMIN,
        None => Capabilities::empty(),
    };
    Capabilities::BPF | Capabilities::NET_ADMIN | entering
}

/// What it takes to find another program, and to load one for it.
pub(crate) const TO_FOLLOW_PROGRAMS: Capabilities = Capabilities::BPF
    .union(Capabilities::NET_ADMIN)
    .union(Capabilities::PERFMON)
    .union(Capabilities::SYS_ADMIN)
    .union(Capabilities::DAC_READ_SEARCH);

/// Capabilities needed to attach any tap to an interface that appears, in another namespace too.
pub(crate) const TO_JOIN: Capabilities = TO_FOLLOW_PROGRAMS.union(Capabilities::NET_RAW);

/// A tap at work.
pub trait AttachedTap: fmt::Debug {
    /// Begins to record. All taps are attached by then, and no process is forked any more: threads may be started.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Stops seeing packets, and leaves things as they were. What could not be put right is said.
    fn detach(&mut self) -> Vec<Event>;

    /// Looks whether packets still come by here, and attaches again where that can be.
    fn watch(&mut self, _warden: &mut Warden) -> Sight {
        Sight::Clear
    }

    /// What changed there since the last time.
    fn news(&mut self) -> Vec<Event> {
        Vec::new()
    }

    /// The capabilities that it takes to look after it while it runs.
    fn keeps(&self) -> Capabilities {
        Capabilities::empty()
    }

    /// Why the tap cannot see packets any more, if that has happened.
    fn ended(&mut self) -> Option<GoneReason> {
        None
    }

    /// Packets that a filter rejected before they reached a ring, by hook point; they count as seen.
    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        Vec::new()
    }

    /// The figures of the library that reads the packets, by hook point.
    fn library(&mut self) -> Option<(u32, pcap::LibraryFigures)> {
        None
    }

    /// Packets lost before they reached a ring, by hook point and reason; they count as seen.
    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        Vec::new()
    }
}
