//! A capture: its plan, the taps that see packets, the merge of their records by time, and the summary at the end.
//!
//! A capture has a [`CaptureOptions`](trawl_plan::options::CaptureOptions), sites, a [session] that attaches the taps
//! and moves their records, and a [`Writer`](trawl_pipeline::Writer) of finished pcapng blocks. It requires root:
//!
//! ```
//! use std::time::Duration;
//!
//! use trawl_sys::Result;
//! use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
//! use trawl_plan::TapChoice;
//! use trawl_capture::summary::Summary;
//! use trawl_capture::assembly::HostFeatures;
//! use trawl_capture::event::Event;
//! use trawl_plan::options::{CaptureOptions, Memory};
//! use trawl_capture::point::Point;
//! use trawl_capture::session::{self, Observer};
//! use trawl_capture::capture_site::CaptureSite;
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
//!     fn finish(&mut self) -> WriteOutcome {
//!         WriteOutcome::default()
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
//!     let mut options = CaptureOptions::new(TapChoice::Packet, Memory::Total(16 << 20));
//!     options.duration = Some(Duration::from_millis(50));
//!     let mut file = Kept(Vec::new());
//!     let attached = session::attach(&sites, &options, HostFeatures::this(), &mut Quiet)?;
//!     let (summary, _) = attached.keep_rights().run(&mut file, &mut Quiet)?;
//!     assert_eq!(file.0[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
//!     let total = summary.total;
//!     assert_eq!(total.seen, total.filtered_out + total.recorded + total.lost_total());
//!     Ok(())
//! }
//!
//! // Without root, the error names the missing capability.
//! if let Err(error) = capture() {
//!     assert!(error.to_string().contains("CAP_"), "{error}");
//! }
//! ```

mod account;
pub mod assembly;
pub mod capture_chain;
pub mod capture_site;
pub mod containers;
pub mod dedup;
pub mod doctor;
pub mod event;
pub mod extent;
pub mod filter;
mod loans;
pub mod many;
pub mod memory;
pub mod merge;
mod once;
pub mod own_traffic;
pub mod pods;
pub mod point;
pub mod process;
mod run;
mod sampling;
mod second;
pub mod session;
pub mod sources;
pub mod subject;
pub mod summary;
pub mod taps;
pub mod traffic;
pub mod trigger;

use process::pod_in;
pub use run::run;
pub use taps::tap::{AttachedTap, Tap};
use taps::tap::{TO_FOLLOW_PROGRAMS, TO_JOIN, to_attach_again};

/// Most bytes of a packet that are recorded.
pub const MAX_CAPTURED: u32 = trawl_bpf::layout::RECORD_MAX_CAPTURED as u32;
