//! XDP programs: listed, loaded, chained and made tappable; and the bundled programs.
//!
//! Example of attaching a program that stays on an interface after the command has ended:
//!
//! ```no_run
//! use trawl_attach::{AttachRequest, Site};
//! use trawl_program::{Installed, install, load::Source};
//! # fn main() -> trawl_sys::Result<()> {
//! let site = Site::find("red:veth0", None)?;             // an interface in a namespace
//! let mut source = Source::read("filter.o".as_ref())?;   // or Source::embedded("guard", GUARD_OBJECT)
//! source.choose(Some("filter"))?;                        // by name; None where there is only one
//! source.set_variable("limit", &1000u32.to_ne_bytes())?; // const volatile __u32 limit
//! source.set_entries("rules", 100_000)?;
//! let put = install::put_alone(&site, source, &AttachRequest::default(), |program| {
//!     let rules = program.map("rules");                  // the verifier has seen it; maps can be filled
//!     Ok(())
//! })?;
//! let installed = put.installed;
//! println!("program {} is on {}", installed.id(), site.label());
//!
//! // Another command, later:
//! for installed in Installed::all(&site)? {
//!     if installed.name() == "filter" {
//!         let rules = installed.map("rules")?;            // a descriptor
//!         installed.detach(&site)?;                       // with its pins and maps
//!     }
//! }
//! # Ok(()) }
//! ```

pub mod bundled;
pub mod captures;
pub mod chain;
mod explain;
mod features;
pub mod hooks;
pub mod install;
pub mod load;
pub mod pins;
pub mod readiness;
pub mod reload;
pub mod rewrite;
pub mod running;
pub mod safety;
pub mod sending;
pub mod status;
pub mod swap;
pub mod unload;

pub use pins::Installed;
pub use trawl_attach::card::CardEffects;
pub use trawl_attach::snapshot::name_of;
pub use trawl_attach::{AttachRequest, OldMaps, Site};
pub use trawl_bpf::verifier_log::keep_in as keep_verifier_log;
