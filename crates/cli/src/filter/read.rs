//! Which packets of a capture file match a filter.

use std::fs::File;
use std::path::Path;

use serde::Serialize;
use trawl_filter::Options;
use trawl_kernel::{Error, Result};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::{CaptureReader, ReadError};
use trawl_tap::filter::Filter;
use trawl_view::select::{Question, SelectError, Selector};

/// What was found in a file.
#[derive(Debug, Serialize)]
pub struct Matches {
    pub file: String,
    /// How many there are in it.
    pub packets: usize,
    pub count: usize,
    /// The numbers of those that match, from 1 on.
    pub matched: Vec<u64>,
    /// Why it could not be read to its end.
    pub error: Option<String>,
}

/// Asks about each packet as far as it was captured, and its true length, as tcpdump does.
pub fn matches(path: &Path, filter: &Filter, options: &Options) -> Result<Matches> {
    let name = path.display().to_string();
    let source = if path == Path::new("-") {
        Path::new("/dev/stdin")
    } else {
        path
    };
    let file = File::open(source).map_err(|e| Error::os(format!("cannot read {name}"), e))?;
    let unreadable = |e: ReadError| Error::failed(format!("cannot read {name}"), e);
    let mut reader = CaptureReader::new(file).map_err(unreadable)?;
    let mut selector = Selector::new(question(filter), *options);
    let (mut packets, mut matched, mut error) = (0usize, Vec::new(), None);
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(e) => {
                error = Some(unreadable(e).to_string());
                break;
            }
        };
        packets += 1;
        let kind = (packet.link_type, packet.byte_order);
        let matches = selector.matches(kind, packet.captured, packet.original_len);
        if matches.map_err(|error| explain(filter, error))? {
            matched.push(packets as u64);
        }
    }
    // A mistake in the filter is said even if there is no packet to ask about.
    if packets == 0 {
        let first = reader.interfaces().first();
        let link_type = first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type);
        let prepared = selector.prepare((link_type, reader.byte_order()));
        prepared.map_err(|error| explain(filter, error))?;
    }
    Ok(Matches {
        file: name,
        packets,
        count: matched.len(),
        matched,
        error,
    })
}

/// The filter as files are asked.
pub fn question(filter: &Filter) -> Question {
    match filter {
        Filter::Expression(text) => Question::Expression(text.clone()),
        Filter::Inner(text) => Question::Inner(text.clone()),
        Filter::Classic(text) => Question::Classic(text.clone()),
    }
}

/// Why the filter cannot be used, in words.
pub fn explain(filter: &Filter, error: SelectError) -> Error {
    match error {
        SelectError::Filter(error) => filter.explain(&error),
        SelectError::NotInFiles => Error::usage("cannot ask this of a file", error),
        SelectError::NotEthernet => Error::failed("cannot look inside tunnels", error),
    }
}
