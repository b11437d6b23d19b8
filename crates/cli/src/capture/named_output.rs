//! One `-w`: a path, or an address for readers, and after commas the options of that output alone.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use trawl_front::saving::Packing;
use trawl_plan::outputs::{Format, LISTEN, ListenPlan};
use trawl_sys::{Error, Result};

use super::listening;
use super::recording::snaplen;

/// An output as given.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedOutput {
    pub(crate) path: PathBuf,
    pub(crate) snaplen: Option<u32>,
    pub(crate) format: Option<Format>,
    pub(crate) compress: Option<Packing>,
    pub(crate) listen: Option<ListenPlan>,
}

impl NamedOutput {
    pub(crate) fn parse(text: &Path) -> Result<Self> {
        match text.to_str() {
            Some(name) => match name.strip_prefix(LISTEN) {
                Some(address) => listening::parse(name, address),
                None => Self::of_file(name),
            },
            None => Ok(Self { path: text.to_owned(), ..Self::default() }),
        }
    }

    /// Parses a file's name. A part after a comma that does not look like an option belongs to the name.
    fn of_file(text: &str) -> Result<Self> {
        let mut wanted = Self::default();
        let mut rest = text;
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        while let Some((front, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                Some((name, value)) if wanted.set(text, name, value)? => {}
                Some((name, value)) if is_word(name) && is_word(value) => {
                    return Err(not_among(text, name, "snaplen, format, compress"));
                }
                _ => break,
            }
            rest = front;
        }
        if rest.is_empty() {
            let what = format!("cannot write to '{text}'");
            return Err(Error::usage(what, "no file is named").fix("-w FILE,snaplen=N"));
        }
        wanted.path = PathBuf::from(rest);
        Ok(wanted)
    }

    /// Sets an option that all outputs have; returns false for another one.
    pub(super) fn set(&mut self, text: &str, name: &str, value: &str) -> Result<bool> {
        match (name, value) {
            ("snaplen", value) => {
                let length = value.parse().map_err(|_| refused(text, format!("'{value}' is not a number of bytes")))?;
                self.snaplen = Some(snaplen(length)?);
            }
            ("compress", name) => {
                let packing =
                    Packing::from_str(name, false).map_err(|_| not_among(text, name, "none, zstd, lz4, gzip"))?;
                self.compress = Some(packing);
            }
            ("format", "pcap") => self.format = Some(Format::Pcap),
            ("format", "pcapng") => self.format = Some(Format::Pcapng),
            ("format", name) => return Err(not_among(text, name, "pcap, pcapng")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

pub(super) fn refused(text: &str, why: String) -> Error {
    Error::usage(format!("cannot write to {text}"), why)
}

pub(super) fn not_among(text: &str, name: &str, all: &str) -> Error {
    refused(text, format!("'{name}' is not one of {all}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_commas_and_options_may_not_be_mistaken() {
        let parse = |text: &str| NamedOutput::parse(Path::new(text));
        for name in ["a,b.pcapng", "a,host=web.pcapng", "a,b=/c", "a=b,c.pcap"] {
            assert_eq!(parse(name).expect("a name").path, Path::new(name));
        }
        let wanted = parse("a,b.pcapng,snaplen=64,format=pcap").expect("options");
        assert_eq!(wanted.path, Path::new("a,b.pcapng"));
        assert_eq!(wanted.snaplen, Some(64));
        for text in ["a,snap=64", "a,compress=zstd,foo=1", "a,foo=1,snaplen=64", "a,format="] {
            parse(text).expect_err(text);
        }
    }
}
