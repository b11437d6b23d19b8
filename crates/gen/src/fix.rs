//! What fixes the errors of this crate: data, which the command line puts into words.

use serde::Serialize;
use trawl_kernel::error::Remedy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// All source ports are taken.
    OtherSource,
    /// Neither is given.
    InterfaceOrDestination,
    /// There is no route.
    Route,
    /// The address is neither given nor known.
    Address { option: String },
    /// The server refuses connections.
    CheckServer,
}

impl Remedy for Fix {}
