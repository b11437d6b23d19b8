//! The comment on the segments of a packet.

use super::{Note, keys, put, words};

/// Number of segments that a packet stands for: `segs=00045`. The kernel side writes the comment. Comments on drops have
/// the word, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentsNote(pub u16);

impl<'a> Note<'a> for SegmentsNote {
    fn write(&self, out: &mut String) {
        put(out, &keys::SEGMENTS, Some(format_args!("{:05}", self.0)));
    }

    fn parse(text: &'a str) -> Option<Self> {
        words(text).find(|(key, _)| *key == "segs")?.1.parse().ok().map(Self)
    }
}
