//! TCP's options: the window's scale, selective acknowledgements, and timestamps.

use trawl_packet::walk::is_before;

const END: u8 = 0;
const NOTHING: u8 = 1;
const SCALE: u8 = 3;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
/// Largest shift of a window (RFC 7323).
const SCALE_MOST: u8 = 14;

/// Options of a segment that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Shift of the sender's windows, in a segment with SYN.
    pub scale: Option<u8>,
    /// The first block of a selective acknowledgement, from and to, and the second one.
    pub blocks: [Option<(u32, u32)>; 2],
    /// The sender's timestamp, and the one of the other side that it returns.
    pub timestamps: Option<(u32, u32)>,
}

impl Options {
    /// Reads the captured bytes of options, which may be cut off.
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((kind, rest)) = bytes.split_first() {
            bytes = match *kind {
                END => break,
                NOTHING => rest,
                kind => {
                    let Some(length) = rest.first().map(|length| usize::from(*length)) else { break };
                    let (Some(value), Some(rest)) = (bytes.get(2..length), bytes.get(length..)) else { break };
                    options.read(kind, value);
                    rest
                }
            };
        }
        options
    }

    fn read(&mut self, kind: u8, value: &[u8]) {
        let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        match (kind, value) {
            (TIMESTAMPS, value) => {
                self.timestamps = word(value).zip(value.get(4..).and_then(word));
            }
            (SCALE, [shift]) => self.scale = Some((*shift).min(SCALE_MOST)),
            (SACK, value) => {
                let block = |block: &[u8]| Some((word(block)?, word(block.get(4..)?)?));
                let mut blocks = value.chunks_exact(8).map(block);
                self.blocks = [blocks.next().flatten(), blocks.next().flatten()];
            }
            _ => {}
        }
    }

    /// Returns true if the first block reports data that had arrived before (DSACK, RFC 2883).
    pub fn is_duplicate(&self, ack: u32) -> bool {
        let Some((from, to)) = self.blocks[0] else { return false };
        let is_inside = |(start, end): (u32, u32)| !is_before(from, start) && !is_before(end, to);
        is_before(from, ack) || self.blocks[1].is_some_and(is_inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_of_a_syn_and_of_acknowledgements_are_read() {
        let syn = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!((Options::parse(&syn).scale, Options::parse(&syn).timestamps), (Some(7), Some((1, 0))));
        let sack = [1, 1, 5, 18, 0, 0, 0, 10, 0, 0, 0, 20, 0, 0, 0, 5, 0, 0, 0, 30];
        let options = Options::parse(&sack);
        assert_eq!(options.blocks, [Some((10, 20)), Some((5, 30))]);
        assert!(options.is_duplicate(4), "inside of the second block");
        assert!(options.is_duplicate(15) && !Options::parse(&sack[..12]).is_duplicate(15), "cut off");
        let plain = Options { blocks: [Some((10, 20)), None], ..Options::default() };
        assert!(!plain.is_duplicate(10) && plain.is_duplicate(11));
    }

    proptest! {
        #[test]
        fn all_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
            let options = Options::parse(&bytes);
            prop_assert!(options.scale.is_none_or(|shift| shift <= SCALE_MOST));
        }
    }
}
