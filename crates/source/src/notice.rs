//! Messages of reading a file, besides its packets.

use std::fmt;

use serde::Serialize;
use trawl_view::rewrite::LeftOut;

/// Receives notices.
pub type OnNotice = fn(&Notice);

/// A message about a file.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// The rest of the file cannot be read.
    CannotRead { file: String, error: String },
    /// Packets whose times trawl cannot show.
    TimesBeyond { file: String, packets: u64 },
    /// Fractions of a second that are a second or more.
    LargeFractions { file: String, packets: u64 },
    /// A followed file was truncated.
    #[serde(rename = "followed_file")]
    Truncated { file: String },
    /// A followed file was removed.
    #[serde(rename = "followed_file")]
    Removed { file: String },
    /// A file of pcap, which does not store the property that an option asks for.
    OnlyInPcapng { file: String, option: &'static str },
    /// Packets left out because another interface or direction saw them before.
    DuplicatesLeftOut { packets: u64 },
    /// Parts left out for privacy, besides payload.
    LeftOutForPrivacy { packets: u64, comments: u64, blocks: u64 },
    /// Blocks that cannot be written in another byte order.
    BlocksLeftOut { blocks: u64 },
}

impl Notice {
    /// Returns the notice of the parts left out for privacy, if there are any.
    pub fn of_privacy(left_out: LeftOut) -> Option<Self> {
        let LeftOut { contents, comments, blocks } = left_out;
        (left_out != LeftOut::default()).then_some(Self::LeftOutForPrivacy { packets: contents, comments, blocks })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = |packets: u64| if packets == 1 { "packet has a time" } else { "packets have times" };
        match self {
            Self::CannotRead { file, error } => write!(f, "cannot read {file}: {error}"),
            Self::TimesBeyond { file, packets } => write!(
                f,
                "{file}: {packets} {} outside 1970-01-01 to 2554-07-21: shown with the nearest supported time",
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
            Self::OnlyInPcapng { file, option } => {
                write!(f, "no packet of {file} matches {option}: pcap files do not store that, only pcapng files do")
            }
            Self::DuplicatesLeftOut { packets } => {
                let noun = if *packets == 1 { "packet" } else { "packets" };
                write!(f, "left out {packets} {noun} that another interface or direction saw before")
            }
            Self::LeftOutForPrivacy { packets, comments, blocks } => {
                let counted = |count: u64, one: &str, more: &str| match count {
                    0 => None,
                    1 => Some(format!("1 {one}")),
                    _ => Some(format!("{count} {more}")),
                };
                let unknown = "contents after the link header, which trawl does not know";
                let contents = counted(*packets, &format!("packet's {unknown}"), &format!("packets' {unknown}"));
                let comments = counted(*comments, "comment", "comments");
                let unknown = "contents, which trawl does not know";
                let blocks = counted(*blocks, &format!("block's {unknown}"), &format!("blocks' {unknown}"));
                let parts: Vec<String> = [contents, comments, blocks].into_iter().flatten().collect();
                write!(f, "left out for privacy: {}", parts.join("; "))
            }
            Self::BlocksLeftOut { blocks } => {
                let noun = if *blocks == 1 { "block" } else { "blocks" };
                write!(
                    f,
                    "left out {blocks} {noun} of sections in big-endian order: the numbers in blocks of an unknown type \
                     cannot be written in another order; read the file alone to keep them"
                )
            }
        }
    }
}
