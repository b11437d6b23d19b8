//! The stage before outputs in the pcap format, which cannot hold every packet.

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::blocks;
use trawl_pipeline::report::StageReport;
use trawl_pipeline::{Blocks, Counts, Pressure, Stage, WriteOutcome, Writer};
use trawl_sys::Error;

/// Refuses packets of another link type than the file's, and times after 2106.
#[derive(Debug)]
pub(crate) struct PcapCheck {
    link_type: u16,
    /// Link types of the interface blocks.
    link_types: Vec<u16>,
    /// Packets of the batches that contain a refused one.
    refused: Counts,
}

impl PcapCheck {
    pub fn new(link_type: u16) -> Self {
        Self { link_type, link_types: Vec::new(), refused: Counts::default() }
    }
}

impl Stage for PcapCheck {
    fn push(&mut self, written: Blocks<'_>, next: &mut dyn Writer) -> trawl_sys::Result<Pressure> {
        if let Err(why) = self.check(written.bytes()) {
            self.refused.add_blocks(written.bytes());
            next.write(Blocks::Refused)?;
            return Err(Error::failed("cannot write the pcap format", why).fix("write pcapng (--format pcapng)"));
        }
        next.write(written)
    }

    fn account(&mut self, outcome: &mut WriteOutcome) {
        outcome.unwritten.add_all(&self.refused);
    }

    fn report(&mut self) -> StageReport {
        StageReport { is_refused: self.refused.total() > 0, ..StageReport::default() }
    }
}

impl PcapCheck {
    /// Returns the reason for which a packet cannot be written.
    fn check(&mut self, bytes: &[u8]) -> Result<(), String> {
        for block in blocks(bytes) {
            if let Some(interface) = Interface::from_block(&block) {
                self.link_types.push(interface.link_type);
            } else if let Some(packet) = block.enhanced_packet() {
                let other = self.link_types.get(packet.interface_id as usize).copied().unwrap_or_default();
                if other != self.link_type {
                    let first = self.link_type;
                    return Err(format!(
                        "a pcap file holds packets of one link type, and there are packets of types {first} and {other}"
                    ));
                }
                let seconds = packet.timestamp / 1_000_000_000;
                if u32::try_from(seconds).is_err() {
                    return Err(format!(
                        "the times of a pcap file end in 2106, and the time of a packet is {seconds} seconds after 1970"
                    ));
                }
            }
        }
        Ok(())
    }
}
