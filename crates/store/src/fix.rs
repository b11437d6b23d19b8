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
    /// A store elsewhere takes its place and its credentials from the environment.
    Access { store: Kind },
}

/// Whose store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    S3,
    Google,
    Azure,
}

impl Kind {
    pub fn of_scheme(scheme: &str) -> Option<Self> {
        Some(match scheme {
            "s3" | "s3a" => Self::S3,
            "gs" => Self::Google,
            "az" | "azure" | "abfs" | "abfss" => Self::Azure,
            _ => return None,
        })
    }
}

impl Remedy for Fix {}
