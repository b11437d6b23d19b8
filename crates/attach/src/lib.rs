//! Attaches XDP programs to interfaces: for programs that stay, captures, the generator's receiver and labs.
//!
//! 1. [`Site`]: the interface in its namespace, and [`Site::lock`], the right to change its programs. The order of all
//!    locks is in `trawl_sys::files::lock`.
//! 2. [`Snapshot::read`]: the attached programs, read once while the lock is held.
//! 3. [`plan`]: turns the snapshot and the [`AttachRequest`] into steps, or a typed [`Conflict`], without asking the
//!    kernel, so that unit tests can cover the cases.
//! 4. [`apply`]: executes the steps. If one is refused, the programs removed for it are attached again.
//!
//! [`card`] reports beforehand what a card's driver does when a program is attached, and [`passing`] holds programs on
//! devices that send XDP frames only with one.

pub mod apply;
pub mod card;
pub mod explain;
pub mod passing;
pub mod plan;
pub mod site;
pub mod snapshot;

pub use apply::{AttachRefusal, Attached, Owner, apply, hold};
pub use explain::cannot_offload;
pub use plan::{AttachPlan, AttachPosition, AttachRequest, Conflict, OldMaps};
pub use site::Site;
pub use snapshot::{Hold, Present, ProgramOwner, Snapshot};
