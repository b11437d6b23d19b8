//! The stage before outputs in the pcap format, which cannot hold every packet.

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::blocks;
use trawl_pipeline::{Blocks, Counts, Pressure, Stage, WriteOutcome, Writer};
use trawl_sys::Error;
use trawl_view::rewrite::RewriteError;

/// Refuses packets of another link type than the file's, and times after 2106.
#[derive(Debug)]
pub(crate) struct PcapCheck {
    link_type: u16,
    /// Link types of the interface blocks.
    all: Vec<u16>,
    /// Packets of the blocks with a refused one.
    refused: Counts,
}

impl PcapCheck {
    pub fn new(link_type: u16) -> Self {
        Self { link_type, all: Vec::new(), refused: Counts::default() }
    }
}

impl Stage for PcapCheck {
    fn push(&mut self, written: Blocks<'_>, next: &mut dyn Writer) -> trawl_sys::Result<Pressure> {
        if let Err(why) = self.check(written.bytes()) {
            self.refused.add_blocks(written.bytes());
            return Err(Error::failed("cannot write the pcap format", why).fix("write pcapng (--format pcapng)"));
        }
        next.write(written)
    }

    fn account(&mut self, outcome: &mut WriteOutcome) {
        outcome.unwritten.add_all(&self.refused);
    }
}

impl PcapCheck {
    fn check(&mut self, bytes: &[u8]) -> Result<(), RewriteError> {
        for block in blocks(bytes) {
            if let Some(interface) = Interface::from_block(&block) {
                self.all.push(interface.link_type);
            } else if let Some(packet) = block.enhanced_packet() {
                let other = self.all.get(packet.interface_id as usize).copied().unwrap_or_default();
                if other != self.link_type {
                    return Err(RewriteError::LinkTypes { first: self.link_type, other });
                }
                let seconds = packet.timestamp / 1_000_000_000;
                if u32::try_from(seconds).is_err() {
                    return Err(RewriteError::Late { seconds });
                }
            }
        }
        Ok(())
    }
}
