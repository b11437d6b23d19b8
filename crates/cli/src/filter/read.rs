//! Which packets of a capture file match a filter.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use serde::Serialize;
use trawl_filter::classic::{ancillary, op};
use trawl_filter::{Classic, Inner, LinkType, Options};
use trawl_kernel::{Error, Result};
use trawl_packet::read::{CaptureReader, ReadError};
use trawl_tap::filter::Filter;

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
    let mut programs = HashMap::new();
    // A mistake in the filter is said even if there is no packet to ask about.
    let first = reader
        .interfaces()
        .first()
        .map_or(1, |interface| interface.link_type);
    programs.insert(first, program(filter, options, first)?);
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
        let program = match programs.entry(packet.link_type) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(program(filter, options, packet.link_type)?)
            }
        };
        if program.run(packet.captured, packet.original_len) != 0 {
            matched.push(packets as u64);
        }
    }
    Ok(Matches {
        file: name,
        packets,
        count: matched.len(),
        matched,
        error,
    })
}

/// What each packet is put to.
enum Program {
    Whole(Classic),
    Inside(Box<Inner>),
}

impl Program {
    fn run(&self, bytes: &[u8], length: u32) -> u32 {
        match self {
            Self::Whole(classic) => classic.run(bytes, length),
            Self::Inside(inner) => inner.run(bytes, length),
        }
    }

    fn parts(&self) -> Vec<&Classic> {
        match self {
            Self::Whole(classic) => vec![classic],
            Self::Inside(inner) => vec![&inner.ethernet, &inner.raw],
        }
    }
}

fn program(filter: &Filter, options: &Options, link_type: u16) -> Result<Program> {
    let options = Options {
        link: dlt(link_type),
        ..*options
    };
    let program = match filter.inner(&options)? {
        Some(inner) => Program::Inside(Box::new(inner)),
        None => Program::Whole(filter.classic(&options)?),
    };
    let asks_for_facts = program
        .parts()
        .into_iter()
        .flat_map(Classic::instructions)
        .any(|i| i.class() == op::LD && i.code & 0xe0 == op::ABS && i.k >= ancillary::AD_OFF);
    if asks_for_facts {
        return Err(Error::usage(
            "cannot ask this of a file",
            "the filter wants to know the packet's direction, its interface or something else that is \
             not among its bytes",
        ));
    }
    Ok(program)
}

/// libpcap's number for a file's link type. They are the same but for the oldest, which systems
/// number differently; these are Linux's.
fn dlt(link_type: u16) -> LinkType {
    LinkType(match link_type {
        100 => 11,
        101 => LinkType::RAW_IP.0,
        106 => 19,
        other => other.into(),
    })
}
