//! A writer into a pipe that passes on the packets that its reader chooses; another thread may change the choice at any
//! time.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;
use trawl_filter::select::Selector;
use trawl_packet::pcapng::block::{self, Block, ByteOrder, EnhancedPacket, LINKTYPE_ETHERNET, blocks};
use trawl_packet::pcapng::options;
use trawl_packet::verdict::VerdictSet;
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_sys::{Error, Result};

/// The packets that a reader wants, and how much of each. The default is all of all packets.
#[derive(Debug, Default)]
pub struct Choice {
    pub selector: Option<Selector>,
    /// Sets of XDP and of tc verdicts; without any, packets need no verdict.
    pub verdicts: Vec<VerdictSet>,
    /// Bytes to keep of each packet.
    pub snaplen: Option<u32>,
}

impl Choice {
    fn is_all(&self) -> bool {
        self.selector.is_none() && self.verdicts.is_empty() && self.snaplen.is_none()
    }

    fn push(&mut self, block: &Block<'_>, kept: &mut Vec<u8>) {
        match (block.enhanced_packet(), self.snaplen) {
            (Some(packet), _) if !self.includes(&packet) => {}
            (Some(_), Some(snaplen)) => block::push_cut(block.bytes, snaplen, kept),
            _ => kept.extend_from_slice(block.bytes),
        }
    }

    fn includes(&mut self, packet: &EnhancedPacket<'_>) -> bool {
        let kind = (LINKTYPE_ETHERNET, ByteOrder::Little);
        let matches = self
            .selector
            .as_mut()
            .is_none_or(|selector| selector.matches(kind, packet.captured, packet.original_len).unwrap_or(true));
        matches && (self.verdicts.is_empty() || self.has_verdict(packet))
    }

    fn has_verdict(&self, packet: &EnhancedPacket<'_>) -> bool {
        let given = packet.options().filter(|option| option.code == block::EPB_VERDICT);
        let mut given = given.filter_map(|option| options::verdict(option.value, ByteOrder::Little));
        given.any(|verdict| self.verdicts.iter().any(|set| set.includes(verdict)))
    }
}

/// Writes the packets of the choice.
#[derive(Debug)]
pub struct ChosenPackets {
    pipe: File,
    /// The reader's name in errors.
    reader: &'static str,
    choice: Arc<Mutex<Choice>>,
    kept: Vec<u8>,
}

impl ChosenPackets {
    pub fn new(pipe: File, reader: &'static str, choice: Arc<Mutex<Choice>>) -> Self {
        Self { pipe, reader, choice, kept: Vec::new() }
    }
}

impl Writer for ChosenPackets {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        let bytes = written.bytes();
        let fail = |e| Error::os(format!("cannot write to {}", self.reader), e);
        let mut choice = self.choice.lock();
        if choice.is_all() {
            return self.pipe.write_all(bytes).map_err(fail).map(|()| Pressure::Idle);
        }
        self.kept.clear();
        for block in blocks(bytes) {
            choice.push(&block, &mut self.kept);
        }
        self.pipe.write_all(&self.kept).map_err(fail)?;
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> Result<Pressure> {
        Ok(Pressure::Idle)
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}
