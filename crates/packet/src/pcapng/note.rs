//! Comments that trawl writes into files, as values: each is written and parsed here.
//!
//! Most comments are `key=value` words separated by spaces. A name in a word has `_` instead of white space. Readers skip
//! unknown words.

/// Defines an enumeration with the word of each value, by which it is displayed and serialized.
macro_rules! word_enum {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// Returns the value's word in comments.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }

            /// Returns the value of a word.
            pub fn of_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }
    };
}

mod drop;
pub mod keys;
mod origin;
mod process;
mod segments;
mod step;
mod translation;

use std::fmt::{self, Write as _};

use keys::Key;

pub use drop::{DropNote, LocalSocket, Rule};
pub use origin::{ClockNote, ProgramNote};
pub use process::{CgroupNote, Owner, OwnerNote, PodNote, ProcessFacts, ProcessNote, SocketNote};
pub use segments::SegmentsNote;
pub use step::{FollowStep, Found, Side, Step, Tracking, Translated};
pub use translation::{Translation, TranslationNews};

/// A comment that trawl writes.
pub trait Note<'a>: Sized {
    /// Appends the comment.
    fn write(&self, out: &mut String);

    /// Parses a comment; `None` for a comment of another kind.
    fn parse(text: &'a str) -> Option<Self>;

    /// Returns the comment.
    fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }
}

/// A text inside a word.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.0.split(char::is_whitespace).enumerate() {
            f.write_str(if number > 0 { "_" } else { "" })?;
            f.write_str(part)?;
        }
        Ok(())
    }
}

/// Appends a word if there is a value.
fn put(out: &mut String, key: &Key, value: Option<impl fmt::Display>) {
    if let Some(value) = value {
        let space = if out.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(out, "{space}{}={value}", key.word);
    }
}

/// Returns the words with their keys.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(' ').filter_map(|word| word.split_once('='))
}

#[cfg(test)]
mod tests;
