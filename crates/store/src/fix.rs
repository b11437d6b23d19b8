//! What fixes the errors of this crate: data, which the command line puts into words.

use serde::Serialize;
use trawl_kernel::error::Remedy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// The spool is full.
    LargerSpool,
    /// The spool cannot be used.
    OtherSpool,
    /// A store in a directory has another kind of URL.
    DirectoryUrl,
    /// There is no such kind of store.
    StoreUrl,
    /// An upload ended early.
    PushAgain,
    /// This build knows directories only.
    BuildWithCloud,
}

impl Remedy for Fix {}
