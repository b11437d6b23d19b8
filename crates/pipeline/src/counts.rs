//! Numbers of packets by interface block.

use trawl_packet::pcapng::block::blocks;
use trawl_sys::Result;

use crate::{Blocks, Pressure, WriteOutcome, Writer};

/// Numbers of packets by interface block. As a writer it counts packets and keeps none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Counts {
    /// Counts the packets in whole blocks.
    pub fn of(bytes: &[u8]) -> Self {
        let mut counts = Self::default();
        counts.add_blocks(bytes);
        counts
    }

    pub fn add(&mut self, interface: u32, packets: u64) {
        let index = interface as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] += packets;
    }

    pub fn add_blocks(&mut self, bytes: &[u8]) {
        for packet in blocks(bytes).filter_map(|block| block.enhanced_packet()) {
            self.add(packet.interface_id, 1);
        }
    }

    pub fn add_all(&mut self, others: &Self) {
        for (interface, packets) in others.iter() {
            self.add(interface, packets);
        }
    }

    /// Subtracts packets; no count becomes negative.
    pub fn subtract(&mut self, others: &Self) {
        for (interface, packets) in others.iter() {
            if let Some(count) = self.0.get_mut(interface as usize) {
                *count = count.saturating_sub(packets);
            }
        }
    }

    /// Returns the smaller of two counts for each interface block.
    pub fn min(&self, other: &Self) -> Self {
        let both = self.0.iter().zip(&other.0);
        Self(both.map(|(one, other)| *one.min(other)).collect())
    }

    /// Returns the number of packets of some interface blocks together.
    pub fn sum(&self, interfaces: &[u32]) -> u64 {
        let of = |interface: &u32| self.0.get(*interface as usize).copied();
        interfaces.iter().filter_map(of).sum()
    }

    /// Removes the packets of an interface block, and returns their number.
    pub fn take(&mut self, interface: u32) -> u64 {
        self.0.get_mut(interface as usize).map_or(0, std::mem::take)
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Limits the number of packets, keeping the first interface blocks' packets.
    pub fn truncate(&mut self, mut packets: u64) {
        for count in &mut self.0 {
            *count = packets.min(*count);
            packets -= *count;
        }
    }

    /// Returns one more than the number of the last interface block with packets.
    pub fn interfaces(&self) -> u32 {
        self.0.len() as u32
    }

    /// Returns the interface blocks that have packets.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        let numbered = self.0.iter().enumerate();
        let counted = numbered.filter(|(_, packets)| **packets > 0);
        counted.map(|(interface, packets)| (interface as u32, *packets))
    }
}

impl Writer for Counts {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        self.add_blocks(blocks.bytes());
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> Result<Pressure> {
        Ok(Pressure::Idle)
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}
