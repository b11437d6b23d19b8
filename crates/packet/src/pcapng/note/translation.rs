//! The comment on a connection whose addresses are translated.

use std::net::SocketAddr;

use super::{Note, keys, put};

const BEGUN: &str = keys::TRANSLATION_BEGUN.word;
const ENDED: &str = keys::TRANSLATION_ENDED.word;

/// A connection whose addresses are translated. Without ports, as in ICMP, these are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    pub protocol: u8,
    /// Source and destination of the first packet, before the translation.
    pub original: [SocketAddr; 2],
    /// Source and destination of the answer, before its translation.
    pub reply: [SocketAddr; 2],
}

/// A translation that begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TranslationNews {
    pub translation: Translation,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    pub ended: bool,
}

impl Note<'_> for TranslationNews {
    fn write(&self, out: &mut String) {
        let Translation { protocol, original: [from, to], reply: [back_from, back_to] } = self.translation;
        let time = self.time_ns;
        let key = if self.ended { &keys::TRANSLATION_ENDED } else { &keys::TRANSLATION_BEGUN };
        put(out, key, Some(format_args!("{protocol} {from}>{to} {back_from}>{back_to} {time}")));
    }

    fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once('=')?;
        let mut parts = rest.split(' ');
        let protocol = parts.next()?.parse().ok()?;
        let mut pair = || {
            let (from, to) = parts.next()?.split_once('>')?;
            Some([from.parse().ok()?, to.parse().ok()?])
        };
        let (original, reply) = (pair()?, pair()?);
        Some(Self {
            translation: Translation { protocol, original, reply },
            time_ns: parts.next()?.parse().ok()?,
            ended: match word {
                BEGUN => false,
                ENDED => true,
                _ => return None,
            },
        })
    }
}
