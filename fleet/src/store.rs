//! A store of captures: sealed chunks with manifests in an object store or a directory, from a capture's spool to the
//! inventory of the store. `docs/internals/store.md` describes the format.

mod account;
mod avro;
mod catalogue;
mod compact;
mod contents;
mod coverage;
mod directory;
mod draft;
mod evidence;
mod fetch;
mod hashed;
mod incident;
mod index;
mod lease;
mod merge;
pub mod near;
mod new;
mod pause;
mod prune;
mod remote;
mod runs;
mod schema;
mod table;
mod upload;
mod verify;
mod waiting;
mod whole;

pub use account::{Account, EpochAccount};
pub use compact::index;
pub use contents::{Contents, File};
pub use coverage::{Coverage, Scope, coverage};
pub use evidence::Evidence;
pub use fetch::{Absent, PacketLocation, Packets};
pub use incident::{Incident, Part, incidents};
pub use pause::Pause;
pub use prune::{Limits, prune};
pub use remote::Store;
pub use runs::Runs;
pub use schema::schema;
pub use upload::{push, upload};
pub use verify::{Finding, Problem, verify};
pub use waiting::Run;
