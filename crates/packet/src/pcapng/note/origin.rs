//! Comments on the origin of a file's packets: the clocks of the host, and the XDP program of an interface.

use super::{Note, Word, keys, put, words};
use crate::pcapng::block::{Block, ByteOrder, NAME_RESOLUTION};
use crate::pcapng::options::remark;

/// The clocks of a section's host: `monotonic-offset=1795996800123456789`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockNote {
    /// Nanoseconds to add to the monotonic clock, modulo 2^64, to get the packets' time stamps.
    pub monotonic_offset: u64,
}

impl ClockNote {
    /// Returns the note in a little-endian block without names, as it is written after a step of a clock.
    pub fn from_block(block: &Block<'_>) -> Option<Self> {
        let comment = (block.kind == NAME_RESOLUTION).then(|| remark(block.body, ByteOrder::Little))?;
        Self::parse(&comment?)
    }
}

impl Note<'_> for ClockNote {
    fn write(&self, out: &mut String) {
        put(out, &keys::MONOTONIC_OFFSET, Some(self.monotonic_offset));
    }

    fn parse(text: &str) -> Option<Self> {
        let (_, offset) = words(text).find(|(key, _)| *key == keys::MONOTONIC_OFFSET.word)?;
        Some(Self { monotonic_offset: offset.parse().ok()? })
    }
}

/// The XDP program at which an interface's packets were seen: `xdp_program=filter xdp_id=7 xdp_tag=0011223344556677`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramNote<'a> {
    /// Name in the kernel, which cuts it at 15 characters.
    pub name: &'a str,
    pub id: u32,
    /// The kernel's tag of the program.
    pub tag: &'a str,
    /// The tag that the program has without the hooks that trawl inserted; `None` if there are no hooks.
    pub plain_tag: Option<&'a str>,
}

impl<'a> ProgramNote<'a> {
    /// Returns the tag that the kernel computes if the program is loaded from its file as it is.
    pub fn file_tag(&self) -> &'a str {
        self.plain_tag.unwrap_or(self.tag)
    }
}

impl<'a> Note<'a> for ProgramNote<'a> {
    fn write(&self, out: &mut String) {
        put(out, &keys::XDP_PROGRAM, Some(Word(self.name)));
        put(out, &keys::XDP_ID, Some(self.id));
        put(out, &keys::XDP_TAG, Some(Word(self.tag)));
        put(out, &keys::XDP_PLAIN_TAG, self.plain_tag.map(Word));
    }

    fn parse(text: &'a str) -> Option<Self> {
        let value = |wanted: &keys::Key| words(text).find(|(key, _)| *key == wanted.word).map(|(_, value)| value);
        Some(Self {
            name: value(&keys::XDP_PROGRAM)?,
            id: value(&keys::XDP_ID)?.parse().ok()?,
            tag: value(&keys::XDP_TAG)?,
            plain_tag: value(&keys::XDP_PLAIN_TAG),
        })
    }
}
