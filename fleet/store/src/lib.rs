//! A store of captures: sealed chunks with manifests in an object store or a directory, from a capture's spool to the
//! inventory of the store. `docs/internals/store.md` describes the format.

mod catalogue;
pub mod chunks;
mod index;
mod object;
mod runs;
pub mod search;

pub use catalogue::backlog::Backlog;
pub use catalogue::contents::{Contents, File};
pub use catalogue::new_records::Source;
pub use catalogue::update::{Indexed, index, index_if_free};
pub use chunks::fetch::{Absent, PacketLocation, Packets};
pub use chunks::prune::{Limits, Pruned, prune};
pub use chunks::upload::{push, upload};
pub use chunks::verify::{Finding, Problem, verify};
pub use index::flow_number;
pub use index::schema::{properties, schema};
pub use object::remote::Store;
pub use runs::Runs;
pub use runs::account::{Account, EpochAccount};
pub use runs::coverage::{Coverage, Scope, coverage};
pub use runs::evidence::Evidence;
pub use runs::incident::{Incident, Part, incidents};
pub use runs::pauses::Pause;
pub use runs::spooled::Run;
