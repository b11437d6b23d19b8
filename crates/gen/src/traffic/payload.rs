//! What frames carry.

use crate::pattern::Value;

/// The bytes after the headers; zeroes fill up what is longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    Bytes(Vec<u8>),
    /// One byte all over.
    Fill(u8),
    /// Bytes without a pattern; the first eight are others in each frame.
    Random(u64),
    /// The frame's number in the first eight bytes.
    Number,
}

impl Payload {
    /// `zeros`, `text:…`, `hex:…`, `fill:0xNN`, `random`, `number`; several with `|` between them take turns.
    pub fn parse(text: &str, seed: u64) -> Result<Vec<Self>, String> {
        text.split('|')
            .map(|one| Self::one(one.trim(), seed))
            .collect()
    }

    fn one(text: &str, seed: u64) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("text", text)) => Ok(Self::Bytes(text.as_bytes().to_vec())),
            Some(("hex", digits)) => hex(digits).map(Self::Bytes),
            Some(("fill", byte)) => {
                let byte = super::field::Kind::Number(8).value(byte)?;
                Ok(Self::Fill(byte as u8))
            }
            None if text == "zeros" => Ok(Self::Bytes(Vec::new())),
            None if text == "random" => Ok(Self::Random(seed)),
            None if text == "number" => Ok(Self::Number),
            _ => Err(format!(
                "'{text}' is not a payload; there are zeros, text:…, hex:…, fill:0xNN, random and number"
            )),
        }
    }

    /// The fewest bytes it takes.
    pub fn least(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Fill(_) => 0,
            Self::Random(_) => 2,
            Self::Number => 8,
        }
    }

    /// This many bytes, at least as many as it takes.
    pub fn bytes(&self, length: usize) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => {
                let mut bytes = bytes.clone();
                bytes.resize(length, 0);
                bytes
            }
            Self::Fill(byte) => vec![*byte; length],
            Self::Number => vec![0; length],
            Self::Random(seed) => {
                let random = Value::Random {
                    first: 0,
                    count: 0,
                    seed: seed ^ 0x7061_796c,
                };
                let words = (0..length.div_ceil(8) as u64).map(|n| random.of(n, n).to_be_bytes());
                let mut bytes: Vec<u8> = words.flatten().collect();
                bytes.truncate(length);
                bytes
            }
        }
    }

    /// What changes at the beginning of a payload of that length, and in how many bytes.
    pub fn varying(&self, length: usize) -> Option<(usize, Value)> {
        let width = match length {
            8.. => 8,
            4.. => 4,
            2.. => 2,
            _ => return None,
        };
        match self {
            Self::Random(seed) => Some((
                width,
                Value::Random {
                    first: 0,
                    count: 1u64.checked_shl(width as u32 * 8).unwrap_or(0),
                    seed: *seed ^ 0x6c6f_6164,
                },
            )),
            Self::Number if width == 8 => Some((8, Value::Number(0))),
            _ => None,
        }
    }
}

/// Pairs of hexadecimal digits, with blanks and colons between them or not.
pub fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<char> = text
        .chars()
        .filter(|c| !c.is_whitespace() && *c != ':')
        .collect();
    if digits.len() % 2 == 1 {
        return Err("an odd number of hexadecimal digits".to_owned());
    }
    let digit = |c: char| {
        c.to_digit(16)
            .ok_or_else(|| format!("'{c}' is not a hexadecimal digit"))
    };
    digits
        .chunks(2)
        .map(|pair| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_as_people_write_them() {
        let one = |text| Payload::parse(text, 1).unwrap().remove(0);
        assert_eq!(one("text:hi").bytes(3), b"hi\0");
        assert_eq!(one("hex:de ad:be ef").bytes(4), [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(one("fill:0xab").bytes(2), [0xab; 2]);
        assert_eq!(Payload::parse("text:a|text:b", 1).unwrap().len(), 2);
        assert_eq!(one("random").bytes(20)[..8], one("random").bytes(9)[..8]);
        for text in ["", "hex:abc", "hex:xy", "fill:256", "words", "text"] {
            assert!(Payload::parse(text, 1).is_err(), "{text}");
        }
    }
}
