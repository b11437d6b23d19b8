//! The answer to a question, as trawl-query writes it to its standard output: parts of a text, and the end or an error.
//! Each begins with a byte for its kind, and its length.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use trawl_sys::Error;
use trawl_sys::error::ErrorKind;

const TEXT: u8 = b'T';
const END: u8 = b'E';
const FAILED: u8 = b'F';

/// Part of an answer.
#[derive(Debug)]
pub enum Part {
    Text(Vec<u8>),
    /// The answer is complete.
    End,
    Failed(Error),
}

/// An error in an answer.
#[derive(Serialize, Deserialize)]
struct Failure {
    is_usage: bool,
    what: String,
    why: String,
    fix: Option<String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            is_usage: error.kind() == ErrorKind::Usage,
            what: error.what().to_owned(),
            why: error.why().to_owned(),
            fix: error.how_to_fix().map(str::to_owned),
        }
    }
}

impl From<Failure> for Error {
    fn from(Failure { is_usage, what, why, fix }: Failure) -> Self {
        let error = if is_usage { Self::usage(what, why) } else { Self::failed(what, why) };
        match fix {
            Some(fix) => error.fix(fix),
            None => error,
        }
    }
}

impl Part {
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let failure;
        let (kind, bytes) = match self {
            Self::Text(text) => (TEXT, &text[..]),
            Self::End => (END, &[][..]),
            Self::Failed(error) => {
                failure = serde_json::to_vec(&Failure::from(error))?;
                (FAILED, &failure[..])
            }
        };
        out.write_all(&[kind])?;
        out.write_all(&(bytes.len() as u64).to_le_bytes())?;
        out.write_all(bytes)?;
        out.flush()
    }

    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let (mut kind, mut length) = ([0], [0; 8]);
        from.read_exact(&mut kind)?;
        from.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        let mut bytes = Vec::new();
        if from.take(length).read_to_end(&mut bytes)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match kind {
            [TEXT] => Ok(Self::Text(bytes)),
            [END] => Ok(Self::End),
            [FAILED] => {
                let failure: Failure = serde_json::from_slice(&bytes)?;
                Ok(Self::Failed(failure.into()))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is of another version of trawl")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_written_and_a_cut_answer_is_an_error() {
        let error = Error::usage("cannot answer the query", "no such column").fix("SELECT *");
        let mut bytes = Vec::new();
        for part in [Part::Text(b"rows".to_vec()), Part::Failed(error.clone()), Part::End] {
            part.write(&mut bytes).unwrap();
        }
        let mut from = &bytes[..];
        assert!(matches!(Part::read(&mut from), Ok(Part::Text(text)) if text == b"rows"));
        let Ok(Part::Failed(read)) = Part::read(&mut from) else { panic!("an error") };
        assert_eq!((read.to_string(), read.kind()), (error.to_string(), error.kind()));
        assert!(matches!(Part::read(&mut from), Ok(Part::End)));
        for length in [0, 1, 8, 12] {
            let error = Part::read(&mut &bytes[..length]).expect_err("a cut part");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }
}
