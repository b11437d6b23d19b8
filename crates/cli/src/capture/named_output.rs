//! One `-w`: a path, and after commas the options of that output alone.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use trawl_pipeline::plan::Format;
use trawl_sys::{Error, Result};

use super::recording::snaplen;
use crate::args::Packing;

/// An output as given.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedOutput {
    pub(super) path: PathBuf,
    pub(super) snaplen: Option<u32>,
    pub(super) format: Option<Format>,
    pub(super) compress: Option<Packing>,
}

impl NamedOutput {
    /// Parses an output. A part after a comma that does not look like an option belongs to the name.
    pub(super) fn parse(text: &Path) -> Result<Self> {
        let mut wanted = Self::default();
        let Some(mut rest) = text.to_str().map(str::to_owned) else {
            wanted.path = text.to_owned();
            return Ok(wanted);
        };
        let refused = |why| Error::usage(format!("cannot write to {}", text.display()), why);
        let not_among = |name: &str, all| refused(format!("'{name}' is not one of {all}"));
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        while let Some((front, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                Some(("snaplen", value)) => {
                    let length = value
                        .parse()
                        .map_err(|_| refused(format!("'{value}' is not a number of bytes")))?;
                    wanted.snaplen = Some(snaplen(length)?);
                }
                Some(("compress", name)) => {
                    let packing = Packing::from_str(name, false)
                        .map_err(|_| not_among(name, "none, zstd, lz4, gzip"))?;
                    wanted.compress = Some(packing);
                }
                Some(("format", "pcap")) => wanted.format = Some(Format::Pcap),
                Some(("format", "pcapng")) => wanted.format = Some(Format::Pcapng),
                Some(("format", name)) => return Err(not_among(name, "pcap, pcapng")),
                Some((name, value)) if is_word(name) && is_word(value) => {
                    return Err(not_among(name, "snaplen, format, compress"));
                }
                _ => break,
            }
            rest = front.to_owned();
        }
        if rest.is_empty() {
            let what = format!("cannot write to '{}'", text.display());
            return Err(Error::usage(what, "no file is named").fix("-w FILE,snaplen=N"));
        }
        wanted.path = PathBuf::from(rest);
        Ok(wanted)
    }
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
        for text in [
            "a,snap=64",
            "a,compress=zstd,foo=1",
            "a,foo=1,snaplen=64",
            "a,format=",
        ] {
            parse(text).expect_err(text);
        }
    }
}
