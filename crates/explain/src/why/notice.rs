//! Messages of a search for drops, besides its result.

use std::fmt;

use serde::Serialize;

use super::traced;

/// A message of a search for drops.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// Losses by XDP are not counted.
    NotWatched { error: String },
    /// Counters of some network namespaces are not compared: there are too many.
    NamespacesLeftOut { compared: usize, all: usize },
    /// Packets of a namespace are traced by nftables.
    TracingPackets { netns: Option<String>, seconds: u64 },
}

impl Notice {
    pub(super) fn tracing(netns: Option<&str>) -> Self {
        Self::TracingPackets { netns: netns.map(str::to_owned), seconds: traced::AT_MOST.as_secs() }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWatched { error } => f.write_str(error),
            Self::NamespacesLeftOut { compared, all } => {
                write!(f, "counters of {compared} of {all} network namespaces are compared: choose one by --netns")
            }
            Self::TracingPackets { netns, seconds } => {
                let place = netns.as_ref().map_or_else(String::new, |netns| format!(" in {netns}"));
                write!(
                    f,
                    "tracing packets{place} by nftables for at most {seconds} s, to find the rules that drop some; \
                     --no-trace prevents it"
                )
            }
        }
    }
}
