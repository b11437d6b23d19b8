//! Descriptions of processes, which each frame of a chunk repeats: a reader of one frame knows the processes of its
//! packets.

use std::collections::{HashMap, VecDeque};

use trawl_packet::pcapng::Process;
use trawl_packet::pcapng::block::{Block, EnhancedPacket};
use trawl_packet::pcapng::options::PacketOptions;

/// Number of descriptions above which the oldest is forgotten.
const MOST: usize = 65_536;

/// The descriptions so far, as blocks.
#[derive(Debug, Default)]
pub struct Descriptions {
    by_id: HashMap<u32, VecDeque<Vec<u8>>>,
    /// The process of each description, the oldest first.
    order: VecDeque<u32>,
}

impl Descriptions {
    /// Adds a description, and returns the number of its process; `None` for other blocks.
    pub fn add(&mut self, block: &Block<'_>) -> Option<u32> {
        let id = Process::from_block(block)?.id;
        let of_process = self.by_id.entry(id).or_default();
        of_process.push_back(block.bytes.to_vec());
        self.order.push_back(id);
        if self.order.len() > MOST {
            self.forget_oldest();
        }
        Some(id)
    }

    fn forget_oldest(&mut self) {
        let Some(id) = self.order.pop_front() else {
            return;
        };
        if let Some(of_process) = self.by_id.get_mut(&id) {
            of_process.pop_front();
            if of_process.is_empty() {
                self.by_id.remove(&id);
            }
        }
    }

    /// Returns the number of a packet's process, and its descriptions.
    pub(crate) fn of(&self, packet: &EnhancedPacket<'_>) -> Option<(u32, &VecDeque<Vec<u8>>)> {
        if self.by_id.is_empty() {
            return None;
        }
        let id = PacketOptions::parse(packet.options()).process?.id;
        Some((id, self.by_id.get(&id)?))
    }
}
