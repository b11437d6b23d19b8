//! What fixes the errors of this crate: data, which the command line puts into words.

use serde::Serialize;
use trawl_kernel::error::Remedy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// The rule denies every packet.
    DenyWhat,
    /// The rules would cut the SSH session; this rule keeps it.
    KeepSession {
        rule: String,
        namespace: Option<String>,
    },
    /// The rules would cut the SSH session.
    ApplyAnyway,
    /// The rules are not where trawl keeps them.
    LoadAgain { interface: String },
    /// The rules are in the BPF file system that is mounted outside of this mount namespace.
    Outside { namespace: Option<String> },
    /// Rules that are in force would be lost.
    ReplaceAnyway,
    /// No guard is attached.
    Load { interface: String },
    /// Two rules have the same name.
    LeaveOneOut,
    /// The rules take more room than there is.
    FewerRanges,
    /// Another version of trawl loaded the guard.
    OtherVersion,
    /// There is no room for the rules.
    FewerRules,
}

impl Remedy for Fix {}
