//! Taps: where a packet is seen, one file each, all with one trait; and the merge of what they saw.
//!
//! A capture has an [`Options`](options::Options), sites, a [session] that attaches the taps and moves
//! their records, and a [`Writer`](trawl_pipeline::Writer) of finished pcapng blocks. It requires root:
//!
//! ```
//! use std::time::Duration;
//!
//! use trawl_sys::Result;
//! use trawl_pipeline::{Blocks, Outcome, Pressure, Writer};
//! use trawl_tap::Choice;
//! use trawl_tap::summary::Summary;
//! use trawl_tap::assembly::{Host, Point};
//! use trawl_tap::event::Event;
//! use trawl_tap::options::{Memory, Options};
//! use trawl_tap::session::{self, Observer};
//! use trawl_tap::capture_site::CaptureSite;
//!
//! /// Keeps all blocks, which are a pcapng file together.
//! struct Kept(Vec<u8>);
//!
//! impl Writer for Kept {
//!     fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
//!         self.0.extend_from_slice(blocks.bytes());
//!         Ok(Pressure::Idle)
//!     }
//!
//!     fn flush(&mut self) -> Result<Pressure> {
//!         Ok(Pressure::Idle)
//!     }
//!
//!     fn finish(&mut self) -> Outcome {
//!         Outcome::default()
//!     }
//! }
//!
//! struct Quiet;
//!
//! impl Observer for Quiet {
//!     fn event(&mut self, _event: &Event) {}
//!     fn started(&mut self, _points: &[Point]) {}
//!     fn figures(&mut self, _summary: &Summary) {}
//! }
//!
//! fn capture() -> Result<()> {
//!     let sites = [CaptureSite::find("lo", None)?];
//!     let mut options = Options::new(Choice::Packet, Memory::total(16 << 20));
//!     options.duration = Some(Duration::from_millis(50));
//!     let mut file = Kept(Vec::new());
//!     let attached = session::attach(&sites, &options, Host::this(), &mut Quiet)?;
//!     let (summary, _) = attached.keep_rights().run(&mut file, &mut Quiet)?;
//!     assert_eq!(file.0[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
//!     let total = summary.total;
//!     assert_eq!(total.seen, total.filtered_out + total.recorded + total.lost_total());
//!     Ok(())
//! }
//!
//! // Without root it says what is missing.
//! if let Err(error) = capture() {
//!     assert!(error.to_string().contains("CAP_"), "{error}");
//! }
//! ```

use std::fmt;

use crate::event::{Event, GoneReason};
use serde::{Deserialize, Serialize};
use trawl_sys::Result;
use trawl_sys::privilege::Capabilities;
use trawl_sys::warden::Warden;

pub mod assembly;
pub mod capture_chain;
pub mod capture_site;
pub mod doctor;
pub mod dpdk;
pub mod drop;
pub mod event;
pub mod filter;
pub mod hook;
pub mod many;
pub mod merge;
pub mod options;
pub mod packet;
pub mod pcap;
pub mod plan;
mod polls;
mod second;
pub mod select;
pub mod session;
pub mod sources;
pub mod summary;
pub mod table;
pub mod tc;
pub mod trace;
pub mod trigger;
pub mod watch;
pub mod xdp;

use assembly::Assembly;
use capture_site::CaptureSite;
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
pub(crate) fn to_attach_again(site: &capture_site::CaptureSite) -> Capabilities {
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
