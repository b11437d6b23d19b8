//! Which packets of a capture file match a filter.

use std::fs::File;
use std::path::Path;

use serde::Serialize;
use trawl_filter::Options;
use trawl_filter::select::{Question, SelectError, Selector};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::{CaptureReader, ReadError, Step};
use trawl_sys::{Error, Result};
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
    let mut selector = Selector::new(question(filter), *options);
    let (mut packets, mut matched, mut error) = (0usize, Vec::new(), None);
    let mut numbers = 0u64;
    loop {
        match reader.step() {
            Ok(Some(Step::Packet)) => {}
            Ok(Some(Step::Block { kind })) => {
                numbers += u64::from(WITH_NUMBERS.contains(&kind));
                continue;
            }
            Ok(None) => break,
            Err(e) => {
                error = Some(unreadable(e).to_string());
                break;
            }
        }
        let Some(packet) = reader.current() else {
            continue;
        };
        packets += 1;
        numbers += 1;
        let kind = (packet.link_type, packet.byte_order);
        let matches = selector.matches(kind, packet.captured, packet.original_len);
        if matches.map_err(|error| explain(filter, error))? {
            matched.push(numbers);
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

/// Blocks that are no packets and that Wireshark counts as it counts these: journal entries and custom blocks.
const WITH_NUMBERS: [u32; 3] = [0x9, 0xbad, 0x4000_0bad];

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

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    }

    fn asked(name: &str, file: &[u8], expression: &str) -> Matches {
        trawl_io::libpcap::compile_filters();
        let path = std::env::temp_dir().join(format!("trawl-{}-{name}", std::process::id()));
        std::fs::write(&path, file).expect("the temporary directory can be written");
        let filter = Filter::Expression(expression.to_owned());
        let found = matches(&path, &filter, &Options::default());
        std::fs::remove_file(&path).expect("it was there");
        found.expect("the file is sound")
    }

    fn frame() -> Vec<u8> {
        [&[0; 12][..], &[8, 0, 0x45], &[0; 45]].concat()
    }

    /// tshark numbers these two packets 2 and 5.
    #[test]
    fn custom_and_journal_blocks_are_numbered() {
        let words =
            |list: &[u32]| -> Vec<u8> { list.iter().flat_map(|w| w.to_le_bytes()).collect() };
        let packet = block(6, &[words(&[0, 0, 0, 60, 60]), frame()].concat());
        let file = [
            block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX])),
            block(1, &words(&[1, 0])),
            block(0xbad, &words(&[32473, 0])),
            packet.clone(),
            block(9, b"MESSAGE=hello\n\0\0"),
            block(0x4000_0bad, &words(&[32473, 0])),
            packet,
        ];
        let found = asked("numbers.pcapng", &file.concat(), "ip");
        assert_eq!((found.packets, found.matched), (2, vec![2, 5]));
    }

    /// tcpdump finds no ninth byte of the IP header here.
    #[test]
    fn records_are_cut_to_the_files_snaplen() {
        let words = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 20, 1, 1, 0, 60, 60];
        let header: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let file = [header, frame()].concat();
        assert_eq!(asked("cut.pcap", &file, "ip[8] = 0").count, 0);
        assert_eq!(asked("whole.pcap", &file, "ip").count, 1);
    }
}
