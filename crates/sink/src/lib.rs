//! Sinks: destinations of the finished blocks of a capture.
//!
//! [`Outputs`] opens all outputs that a plan names, and records to them. It requires root:
//!
//! ```
//! use std::time::Duration;
//!
//! use trawl_plan::TapChoice;
//! use trawl_capture::event::Event;
//! use trawl_plan::options::{CaptureOptions, Memory};
//! use trawl_plan::CapturePlan;
//! use trawl_capture::point::Point;
//! use trawl_capture::session::Observer;
//! use trawl_plan::sources::Sources;
//! use trawl_capture::summary::Summary;
//! use trawl_plan::outputs::{Compression, Format, OutputPlan};
//! use trawl_sink::Outputs;
//! use trawl_sys::Result;
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
//!     let path = std::env::temp_dir().join(format!("trawl-sink-{}.pcapng.zst", std::process::id()));
//!     let output = OutputPlan {
//!         path: path.clone(),
//!         format: Format::Pcapng,
//!         compression: Compression::of_name(&path),
//!         snaplen: None,
//!         listen: None,
//!     };
//!     let options = CaptureOptions {
//!         duration: Some(Duration::from_millis(50)),
//!         ..CaptureOptions::new(TapChoice::Packet, Memory::Total(16 << 20))
//!     };
//!     let sources = Sources { names: vec!["lo".to_owned()], ..Sources::default() };
//!     let plan = CapturePlan { outputs: vec![output], ..CapturePlan::new(sources, options) };
//!     let sites = trawl_capture::sources::find(&plan.sources, plan.options.tap, Vec::new())?;
//!     let outputs = Outputs::open(&plan, None, None, &mut Quiet, |_| {})?;
//!     let record = |attached, observer: &mut Quiet| outputs.record(attached, observer);
//!     let (summary, _) = trawl_capture::run(&plan, sites, &mut Quiet, record)?;
//!     let total = summary.total;
//!     assert_eq!(total.seen, total.filtered_out + total.recorded + total.lost_total());
//!     let file = std::fs::read(&path).expect("it was written");
//!     assert_eq!(file[..4], [0x28, 0xb5, 0x2f, 0xfd]);
//!     std::fs::remove_file(&path).expect("it can be removed");
//!     Ok(())
//! }
//!
//! // Without root, the error names the missing capability.
//! if let Err(error) = capture() {
//!     assert!(error.to_string().contains("CAP_"), "{error}");
//! }
//! ```

mod chosen;
mod direct;
mod file;
mod finished;
mod form;
mod intact;
mod next_files;
mod outputs;
mod packed;
mod pcap_check;
mod preamble;
mod readers;
mod series;
mod series_plan;
mod shown;
mod threaded;

pub use chosen::{Choice, ChosenPackets};
pub use direct::DirectFile;
pub use file::{Pipe, PlainFile};
pub use finished::{Finished, wait_for_commands};
pub use form::OutputForm;
pub use next_files::NextFiles;
pub use outputs::{Carried, Output, Outputs, are_same, one_file, one_link_type, refuse_rotation};
pub use packed::{COMPRESSION_LIMIT, Packed, compression_threads, is_nearly_full};
pub use readers::{Budget, Listener, ReaderFate, ReaderLog, ReaderNews, Readers};
pub use series::Series;
pub use series_plan::SeriesPlan;
pub use threaded::{OutputFate, Several, ThreadedOutput};
