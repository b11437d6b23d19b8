//! A store of captures: sealed chunks with manifests in an object store or a directory, from the capture's blocks to the
//! inventory of the store. `docs/internals/store.md` describes the format.

mod account;
mod capture;
mod chunk;
mod chunker;
mod coverage;
mod fetch;
mod index;
pub mod key;
pub mod manifest;
mod prune;
mod remote;
mod spool;
mod upload;
mod verify;

pub use account::{Account, EpochAccount, Gap, Inventory};
pub use capture::{Accounts, Config, StoreWriter, StoredCapture};
pub use coverage::{Coverage, Scope, coverage};
pub use fetch::{Fetched, PacketLocation, Packets};
pub use index::{Indexed, index};
pub use prune::{Limits, Pruned, prune};
pub use remote::Store;
pub use spool::default_spool;
pub use upload::{Pushed, push};
pub use verify::{Finding, Problem, Verified, verify};
