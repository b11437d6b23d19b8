//! What a capture has to say on the way: data, which the command line puts into words.

use serde::Serialize;

use crate::trigger::Event;
use crate::watch::Cause;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// A tap cannot see packets any more.
    Blind(Gap),
    /// It sees them again.
    SeesAgain(Gap),
    /// The process that cleans up after a killed trawl was killed itself, and another one was started.
    WardenReplaced,
    /// The kernel does not take the filter: the tap is attached without it, and trawl leaves out what does not match.
    FilteredInUserSpace { why: String },
    /// The filter follows chains of headers, the kernel only so far: packets with longer ones are judged in user space.
    LongChainsInUserSpace,
    /// An event has packets written.
    Triggered(Event),
    /// In words already.
    Text { text: String },
}

impl From<String> for Notice {
    fn from(text: String) -> Self {
        Self::Text { text }
    }
}

impl From<&str> for Notice {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// A time in which packets went by unseen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub interface: String,
    pub tap: &'static str,
    /// When the tap was last found to see, and when it was found to see again: nanoseconds since 1970. Without an end,
    /// it lasted as long as the capture.
    pub from_ns: u64,
    pub to_ns: Option<u64>,
    pub cause: Cause,
    /// Why the tap could not be attached again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
