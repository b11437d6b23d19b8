//! Capture files of examples, for `--save`.

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::note::keys::CHANGED;
use trawl_packet::pcapng::write::{self, EnhancedPacket, SectionHeader};

use crate::report::Group;

/// Returns a pcapng file with the packets of a group's example; `None` if it has none.
pub fn file(group: &Group, application: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    write::section_header(&mut out, &SectionHeader { userappl: Some(application), ..SectionHeader::default() });
    write::interface_description(&mut out, &Interface { tsresol: NANOSECONDS, ..Interface::default() });
    let last = group.example.packets.len().checked_sub(1)?;
    for (number, (bytes, time)) in group.example.packets.iter().zip(&group.example.times).enumerate() {
        let comment = (number == last).then(|| format!("{}{} becomes {}", CHANGED.begin, group.before, group.after));
        write::enhanced_packet(
            &mut out,
            &EnhancedPacket {
                timestamp_ns: *time,
                captured: bytes,
                original_len: bytes.len() as u32,
                comment: comment.as_deref(),
                ..EnhancedPacket::default()
            },
        );
    }
    Some(out)
}

/// The resolution of times: 10 to the power of -9 s.
const NANOSECONDS: u8 = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_packet::read::CaptureReader;

    #[test]
    fn examples_can_be_read_again() {
        let mut report = crate::sample::report();
        let group = &mut report.groups[0];
        group.example.packets = vec![vec![1; 60], vec![2; 14]];
        group.example.times = vec![1_700_000_000_000_000_001, 1_700_000_000_000_000_002];
        let bytes = file(group, "trawl").expect("it has packets");
        let mut reader = CaptureReader::new(&bytes[..]).expect("a file");
        for (captured, time) in group.example.packets.iter().zip(&group.example.times) {
            let packet = reader.next_packet().expect("a packet").expect("one more");
            assert_eq!((packet.captured, packet.timestamp_ns), (&captured[..], *time));
        }
        assert_eq!(reader.next_packet().expect("the end"), None);
        group.example.packets.clear();
        assert_eq!(file(group, "trawl"), None);
    }
}
