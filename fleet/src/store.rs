//! A store of captures: sealed chunks with manifests in an object store or a directory, from a capture's spool to the inventory
//! of the store. `docs/internals/store.md` describes the format.

mod account;
mod coverage;
mod fetch;
mod index;
mod pause;
mod prune;
mod remote;
mod upload;
mod verify;
mod waiting;

pub use account::{Account, EpochAccount, Inventory};
pub use coverage::{Coverage, Scope, coverage};
pub use fetch::{PacketLocation, Packets};
pub use index::index;
pub use pause::Pause;
pub use prune::{Limits, prune};
pub use remote::Store;
pub use upload::{push, upload};
pub use verify::{Finding, Problem, verify};
pub use waiting::Run;
