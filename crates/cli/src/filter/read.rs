//! Which packets of a capture file match a filter.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use serde::Serialize;
use trawl_filter::classic::{ancillary, op};
use trawl_filter::{Classic, Inner, LinkType, Options};
use trawl_kernel::{Error, Result};
use trawl_packet::pcapng::block::{ByteOrder, LINKTYPE_ETHERNET};
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
        let program = match programs.entry(kind) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(program(filter, options, kind)?)
            }
        };
        if program.run(packet.captured, packet.original_len) != 0 {
            matched.push(packets as u64);
        }
    }
    // A mistake in the filter is said even if there is no packet to ask about.
    if programs.is_empty() {
        let first = reader.interfaces().first();
        let link_type = first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type);
        program(filter, options, (link_type, reader.byte_order()))?;
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

/// For packets that begin like this, in a file whose writer had this order of bytes.
fn program(
    filter: &Filter,
    options: &Options,
    (link_type, order): (u16, ByteOrder),
) -> Result<Program> {
    let options = Options {
        link: dlt(link_type),
        file: Some(match order {
            ByteOrder::Little => trawl_filter::expression::ByteOrder::Little,
            ByteOrder::Big => trawl_filter::expression::ByteOrder::Big,
        }),
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
