//! The sink that shows packets as lines on standard output, in tcpdump's manner.

use std::io::{self, Write};

use trawl_kernel::{Error, Result};
use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::print::{PacketView, PrintOptions, Printer};
use trawl_tap::sink::Sink;

/// What a packet's interface block stands for.
#[derive(Clone, Debug)]
pub struct Place {
    pub interface: String,
    pub hook: String,
    pub link_type: u16,
}

pub struct Lines {
    printer: Printer,
    places: Vec<Place>,
    text: String,
}

impl Lines {
    pub fn new(options: PrintOptions, places: Vec<Place>) -> Self {
        Self { printer: Printer::new(options), places, text: String::new() }
    }
}

impl Sink for Lines {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for packet in blocks(bytes).filter_map(|block| block.enhanced_packet()) {
            let Some(place) = self.places.get(packet.interface_id as usize) else { continue };
            let options = PacketOptions::parse(packet.options());
            self.printer.line(
                &mut self.text,
                &PacketView {
                    timestamp_ns: packet.timestamp,
                    link_type: place.link_type,
                    captured: packet.captured,
                    original_len: packet.original_len,
                    interface: Some(&place.interface),
                    direction: options.direction(),
                    hook: Some(&place.hook),
                    verdict: options.verdict,
                },
            );
        }
        let written = io::stdout().lock().write_all(self.text.as_bytes());
        self.text.clear();
        written.map_err(|e| Error::os("cannot write to standard output", e))
    }

    fn rest(&mut self) -> Result<()> {
        io::stdout().lock().flush().map_err(|e| Error::os("cannot write to standard output", e))
    }
}
