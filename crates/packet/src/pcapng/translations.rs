//! Translations of addresses in a file: comments in Name Resolution Blocks without names, which other readers skip.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use super::block::{Block, ByteOrder, NAME_RESOLUTION};
use super::note::{Note, Translation, TranslationNews};
use super::options::remark;
use super::write;

impl TranslationNews {
    /// Returns the news in a little-endian block; `None` for a block without any.
    pub fn from_block(block: &Block<'_>) -> Option<Self> {
        let comment = (block.kind == NAME_RESOLUTION).then(|| remark(block.body, ByteOrder::Little))?;
        Self::parse(&comment?)
    }

    /// Appends a block with the news.
    pub fn append(&self, out: &mut Vec<u8>) {
        write::remark(out, &self.text());
    }
}

/// Protocol, source and destination of a packet.
type Key = (u8, [SocketAddr; 2]);

/// The translations of a file.
#[derive(Debug, Default)]
pub struct Translations(HashMap<Key, BTreeMap<u64, [SocketAddr; 2]>>);

impl Translations {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, news: &TranslationNews) {
        if news.ended {
            return;
        }
        let Translation { protocol, original, reply } = news.translation;
        let back = |[from, to]: [SocketAddr; 2]| [to, from];
        for (one, other) in
            [(original, back(reply)), (back(reply), original), (reply, back(original)), (back(original), reply)]
        {
            let by_time = self.0.entry((protocol, one)).or_default();
            by_time.insert(news.time_ns, other);
        }
    }

    /// Returns source and destination of a packet on the other side of its translation. A packet older than all news of
    /// its connection belongs to the first translation, because the first packet may precede the news.
    pub fn of(&self, protocol: u8, ends: [SocketAddr; 2], time_ns: u64) -> Option<[SocketAddr; 2]> {
        let by_time = self.0.get(&(protocol, ends))?;
        let last = by_time.range(..=time_ns).next_back();
        last.or(by_time.first_key_value()).map(|(_, ends)| *ends)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::blocks;
    use super::*;

    fn news(original: [&str; 2], reply: [&str; 2], time_ns: u64) -> TranslationNews {
        let parsed = |ends: [&str; 2]| ends.map(|end| end.parse().expect("an address"));
        TranslationNews {
            translation: Translation { protocol: 17, original: parsed(original), reply: parsed(reply) },
            time_ns,
            ended: false,
        }
    }

    #[test]
    fn both_directions_have_their_other_side() {
        let one = news(["10.0.0.2:4000", "192.0.2.1:53"], ["192.0.2.1:53", "198.51.100.1:4001"], 100);
        let later = news(["10.0.0.2:4000", "192.0.2.1:53"], ["192.0.2.1:53", "198.51.100.1:4002"], 200);
        let v6 =
            TranslationNews { ended: true, ..news(["[fd00::1]:7", "[fd00::2]:8"], ["[fd00::3]:8", "[fd00::1]:7"], 5) };
        let mut bytes = Vec::new();
        [one, later, v6].iter().for_each(|one| one.append(&mut bytes));
        write::remark(&mut bytes, "nat=17 nonsense");
        let read: Vec<_> = blocks(&bytes).filter_map(|block| TranslationNews::from_block(&block)).collect();
        assert_eq!(read, [one, later, v6]);
        let mut all = Translations::default();
        read.iter().for_each(|one| all.add(one));
        let of = |from: &str, to: &str, time| {
            let ends = [from, to].map(|end| end.parse().expect("an address"));
            let other = all.of(17, ends, time)?;
            Some(other.map(|end: SocketAddr| end.to_string()).join(">"))
        };
        let is = |text: &str| Some(text.to_owned());
        let (inside, outside) = ("10.0.0.2:4000", "192.0.2.1:53");
        for (time, port) in [(90, 4001), (150, 4001), (250, 4002)] {
            let address = format!("198.51.100.1:{port}");
            assert_eq!(of(inside, outside, time), is(&format!("{address}>{outside}")));
            assert_eq!(of(outside, inside, time), is(&format!("{outside}>{address}")));
        }
        assert_eq!(of("198.51.100.1:4001", outside, 150), is("10.0.0.2:4000>192.0.2.1:53"));
        assert_eq!(of(outside, "198.51.100.1:4002", 150), is("192.0.2.1:53>10.0.0.2:4000"));
        assert_eq!(of("10.0.0.3:4000", outside, 150), None);
        assert_eq!(of("[fd00::1]:7", "[fd00::2]:8", 9), None);
    }
}
