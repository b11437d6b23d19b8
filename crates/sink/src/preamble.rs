//! The blocks that packets refer to, for files and readers that begin in the middle of a capture.

use std::collections::VecDeque;

use trawl_packet::pcapng::block::{self, Block};
use trawl_packet::pcapng::note::ClockNote;

/// Blocks that each file and each reader's stream begins with.
#[derive(Debug, Default)]
pub(crate) struct Preamble {
    /// The section, its interfaces, the names of addresses, and offsets of clocks that were stepped.
    header: Vec<u8>,
    /// The latest descriptions of processes.
    processes: VecDeque<Vec<u8>>,
}

/// Maximum number of processes that are described at the beginning.
const MOST_PROCESSES: usize = 4096;

impl Preamble {
    /// Adds a block, if later packets may refer to it.
    pub(crate) fn add(&mut self, block: &Block<'_>) {
        match block.kind {
            block::SECTION_HEADER => self.begin(block.bytes),
            block::INTERFACE_DESCRIPTION => self.describe(block.bytes),
            block::NAME_RESOLUTION if block.names_addresses() || ClockNote::from_block(block).is_some() => {
                self.describe(block.bytes);
            }
            block::CUSTOM => {
                if self.processes.len() == MOST_PROCESSES {
                    self.processes.pop_front();
                }
                self.processes.push_back(block.bytes.to_vec());
            }
            _ => {}
        }
    }

    /// Starts over with the header of a section or of a pcap file: later packets refer to no earlier block.
    pub(crate) fn begin(&mut self, header: &[u8]) {
        self.header = header.to_vec();
    }

    /// Adds a block that later packets refer to.
    pub(crate) fn describe(&mut self, block: &[u8]) {
        self.header.extend_from_slice(block);
    }

    /// Returns the blocks in pieces.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let processes = self.processes.iter().map(Vec::as_slice);
        std::iter::once(self.header.as_slice()).chain(processes)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use trawl_packet::pcapng::block::blocks;
    use trawl_packet::pcapng::{Interface, write};

    use super::*;

    #[test]
    fn names_and_offsets_of_clocks_stay_and_other_remarks_do_not() {
        let mut written = Vec::new();
        write::section_header(&mut written, &write::SectionHeader::default());
        write::interface_description(&mut written, &Interface::default());
        let address = IpAddr::from([10, 1, 2, 3]);
        write::names(&mut written, [(address, "default/web-0")]);
        write::remark(&mut written, "monotonic-offset=17");
        let expected = written.clone();
        write::remark(&mut written, "a comment");
        let mut preamble = Preamble::default();
        blocks(&written).for_each(|block| preamble.add(&block));
        assert_eq!(preamble.parts().collect::<Vec<_>>().concat(), expected);
    }
}
