//! Messages of reading a file, besides its packets.

use std::fmt;

use serde::Serialize;

/// Receives notices.
pub type Tell = fn(&Notice);

/// A message about a file.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// The rest of the file cannot be read.
    CannotRead { file: String, error: String },
    /// Times that cannot be shown, of this number of packets.
    TimesBeyond { file: String, packets: u64 },
    /// Fractions of a second that are a second or more.
    LargeFractions { file: String, packets: u64 },
    /// A followed file was truncated.
    #[serde(rename = "followed_file")]
    Truncated { file: String },
    /// A followed file was removed.
    #[serde(rename = "followed_file")]
    Removed { file: String },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = |packets: u64| if packets == 1 { "packet has a time" } else { "packets have times" };
        match self {
            Self::CannotRead { file, error } => write!(f, "cannot read {file}: {error}"),
            Self::TimesBeyond { file, packets } => write!(
                f,
                "{file}: {packets} {} outside 1970-01-01 to 2554-07-21, and is shown with the nearest supported one",
                have(*packets)
            ),
            Self::LargeFractions { file, packets } => write!(
                f,
                "{file}: {packets} {} with a fraction of a second or more: it is added to the seconds",
                have(*packets)
            ),
            Self::Truncated { file } => write!(f, "{file} was truncated: reading it from its beginning"),
            Self::Removed { file } => {
                write!(f, "{file} was removed: waiting for the next file of its ring; Ctrl-C ends")
            }
        }
    }
}
