//! A writer into a pipe that passes on the packets of a filter; another thread may change the filter at any time.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;
use trawl_filter::select::Selector;
use trawl_packet::pcapng::block::{ByteOrder, LINKTYPE_ETHERNET, blocks};
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_sys::{Error, Result};

/// Writes the packets that the selector matches; without a selector, all packets.
#[derive(Debug)]
pub struct ChosenPackets {
    pipe: File,
    /// The reader's name in errors.
    reader: &'static str,
    selector: Arc<Mutex<Option<Selector>>>,
    kept: Vec<u8>,
}

impl ChosenPackets {
    pub fn new(pipe: File, reader: &'static str, selector: Arc<Mutex<Option<Selector>>>) -> Self {
        Self { pipe, reader, selector, kept: Vec::new() }
    }
}

impl Writer for ChosenPackets {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        let bytes = written.bytes();
        let fail = |e| Error::os(format!("cannot write to {}", self.reader), e);
        let mut chosen = self.selector.lock();
        let Some(selector) = chosen.as_mut() else {
            return self.pipe.write_all(bytes).map_err(fail).map(|()| Pressure::Idle);
        };
        self.kept.clear();
        for block in blocks(bytes) {
            let wanted = block.enhanced_packet().is_none_or(|packet| {
                let kind = (LINKTYPE_ETHERNET, ByteOrder::Little);
                selector.matches(kind, packet.captured, packet.original_len).unwrap_or(true)
            });
            if wanted {
                self.kept.extend_from_slice(block.bytes);
            }
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
