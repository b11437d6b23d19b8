//! A filter for the packets of files.

use trawl_filter::CompilerOptions;
use trawl_filter::select::{PacketKind, Question, SelectError, Selector};
use trawl_packet::pcapng::block::{ByteOrder, LINKTYPE_ETHERNET};
use trawl_plan::filter::Filter;
use trawl_sys::{Error, Result};

use crate::Input;

/// A filter, compiled for the link types and byte orders of the files.
#[derive(Debug)]
pub struct FileFilter<'a> {
    filter: &'a Filter,
    selector: Selector,
}

impl<'a> FileFilter<'a> {
    pub fn new(filter: &'a Filter, options: CompilerOptions) -> Self {
        let question = match filter.clone() {
            Filter::Expression(text) => Question::Expression(text),
            Filter::Inner(text) => Question::Inner(text),
            Filter::Classic(text) => Question::Classic(text),
        };
        Self { filter, selector: Selector::new(question, options) }
    }

    /// Reports a mistake in the filter, even if no packet of this kind follows.
    pub fn check(&mut self, kind: PacketKind) -> Result<()> {
        let prepared = self.selector.prepare(kind);
        prepared.map_err(|error| self.explain(error))
    }

    pub fn matches(&mut self, kind: PacketKind, captured: &[u8], length: u32) -> Result<bool> {
        let matches = self.selector.matches(kind, captured, length);
        matches.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: SelectError) -> Error {
        match error {
            SelectError::Filter(error) => self.filter.explain(&error),
            SelectError::NotInFiles => Error::usage("cannot filter a file by this", error),
            SelectError::NotEthernet => Error::failed("cannot look inside tunnels", error),
        }
    }
}

/// Returns the filter for the packets of the first file: a mistake in it is reported even if the file has no packets.
pub fn file_filter<'a>(filter: Option<&'a Filter>, first: Option<&Input>) -> Result<Option<FileFilter<'a>>> {
    let Some(filter) = filter else {
        return Ok(None);
    };
    let kind = first.map_or((LINKTYPE_ETHERNET, ByteOrder::Little), Input::first_kind);
    let mut filter = FileFilter::new(filter, CompilerOptions::default());
    filter.check(kind)?;
    Ok(Some(filter))
}
