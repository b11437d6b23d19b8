//! XDP programs as things to be seen, loaded, chained and made tappable, and the bundled ones.
//!
//! How a program gets onto an interface and stays there when the command has ended:
//!
//! ```no_run
//! use trawl_attach::{Request, Site};
//! use trawl_program::{Installed, load::Source, place};
//! # fn main() -> trawl_kernel::Result<()> {
//! let site = Site::find("red:veth0", None)?;             // an interface in a namespace
//! let mut source = Source::read("filter.o".as_ref())?;   // or Source::embedded("guard", GUARD_OBJECT)
//! source.choose(Some("filter"))?;                        // by name; None where there is only one
//! source.set_variable("limit", &1000u32.to_ne_bytes())?; // const volatile __u32 limit
//! source.set_entries("rules", 100_000)?;
//! let put = place::put_alone(&site, source, &Request::default(), |program| {
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
//!         installed.detach(&site)?;                       // and all that came with it is gone
//!     }
//! }
//! # Ok(()) }
//! ```

pub mod actions;
pub mod again;
pub mod bundled;
pub mod captures;
pub mod dispatcher;
mod explain;
pub mod installed;
pub mod jump_chain;
pub mod jumps;
pub mod keep;
mod keepsake;
pub mod leftovers;
pub mod load;
pub mod loan;
mod map_pins;
pub mod maps;
pub mod place;
mod reach;
pub mod ready;
mod record;
pub mod redirects;
pub mod revert;
pub mod rewrite;
pub mod route;
pub mod run_config;
pub mod safety;
pub mod stats;
pub mod status;
pub mod tappable;
pub mod unload;

pub use installed::Installed;
pub use trawl_attach::Site;
