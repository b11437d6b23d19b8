//! Meanings of packets that the kernel frees as dropped: the table that `trawl why`, `trawl follow` and the drop tap
//! share.

use serde::{Serialize, Serializer};

/// The meaning of a packet that the kernel frees as dropped. Recordings have the word of a non-loss as `loss=WORD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freed {
    /// The packet is lost.
    #[default]
    Lost,
    /// No socket wanted it, such as a packet in the queue of a closing socket.
    Unwanted,
    /// A socket got a copy.
    Copied,
    /// It has done its work, or its data were received before.
    Done,
}

/// The non-losses, with their words in recordings and their texts for people.
const TABLE: [(Freed, &str, &str); 3] = [
    (Freed::Unwanted, "no", "no loss: no socket wanted it"),
    (Freed::Copied, "copied", "no loss: a socket got a copy"),
    (Freed::Done, "done", "no loss: it has done its work"),
];

impl Freed {
    /// Returns the kind of a recorded word. An unknown word was written by a later trawl; it is a non-loss as well.
    pub fn of_word(word: &str) -> Self {
        let found = TABLE.iter().find(|(_, one, _)| *one == word);
        found.map_or(Self::Unwanted, |(kind, ..)| *kind)
    }

    /// Returns the word in recordings; `None` for a loss.
    pub fn word(self) -> Option<&'static str> {
        let found = TABLE.iter().find(|(kind, ..)| *kind == self);
        found.map(|(_, word, _)| *word)
    }

    /// Returns the text for people; `None` for a loss.
    pub fn text(self) -> Option<&'static str> {
        let found = TABLE.iter().find(|(kind, ..)| *kind == self);
        found.map(|(.., text)| *text)
    }

    pub fn is_loss(&self) -> bool {
        *self == Self::Lost
    }
}

impl Serialize for Freed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.word().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recorded_word_is_read_back() {
        for kind in [Freed::Unwanted, Freed::Copied, Freed::Done] {
            assert_eq!(kind.word().map(Freed::of_word), Some(kind));
            assert!(kind.text().is_some() && !kind.is_loss());
        }
        assert_eq!(Freed::Lost.word(), None);
        assert!(!Freed::of_word("of a later trawl").is_loss());
    }
}
