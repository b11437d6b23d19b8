//! A few packets of each path through the tested program, for timing and as the first packets of fuzzing.

use std::collections::HashMap;

use crate::coverage::Path;
use crate::packet::Recorded;

/// Number of packets that are kept of each path: one of them may need a state of the maps that is not their first.
const PACKETS: usize = 4;
/// Number of paths beyond which the packets of further ones are counted together.
const MOST_PATHS: usize = 4096;

/// A kept packet.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Position among all packets.
    pub position: u64,
    pub packet: Recorded,
}

/// The packets of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathPackets {
    pub packets: u64,
    pub samples: Vec<Sample>,
}

/// Packets by their paths.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    by_path: HashMap<Path, PathPackets>,
    /// Packets of paths that are not kept.
    pub others: u64,
}

impl Samples {
    /// Counts a packet, and keeps it if it is one of the first of its path.
    pub fn add(&mut self, path: Path, position: u64, packet: &Recorded) {
        if self.by_path.len() >= MOST_PATHS && !self.by_path.contains_key(&path) {
            self.others += 1;
            return;
        }
        let known = self.by_path.entry(path).or_default();
        known.packets += 1;
        if known.samples.len() < PACKETS {
            known.samples.push(Sample { position, packet: packet.clone() });
        }
    }

    /// Returns the paths, the most frequent first.
    pub fn sorted(&self) -> Vec<(Path, &PathPackets)> {
        let mut all: Vec<_> = self.by_path.iter().map(|(path, packets)| (*path, packets)).collect();
        all.sort_by_key(|(_, one)| (std::cmp::Reverse(one.packets), one.samples.first().map(|sample| sample.position)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_packets_of_each_path_are_kept() {
        let mut samples = Samples::default();
        let packet = Recorded { file: 0, number: 1, time: 0, queue: 0, verdict: None, bytes: vec![0; 14] };
        for position in 0..20 {
            samples.add(if position % 3 == 0 { 7 } else { 8 }, position, &packet);
        }
        let sorted = samples.sorted();
        assert_eq!(sorted.iter().map(|(path, one)| (*path, one.packets)).collect::<Vec<_>>(), [(8, 13), (7, 7)]);
        assert_eq!(sorted[1].1.samples.iter().map(|one| one.position).collect::<Vec<_>>(), [0, 3, 6, 9]);
        for path in 0..=MOST_PATHS as u64 {
            samples.add(path, 100, &packet);
        }
        assert_eq!((samples.sorted().len(), samples.others), (MOST_PATHS, 1));
    }
}
